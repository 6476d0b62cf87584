"""How far off the calibrated model is: every row, by group, left out one by one and model by model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from simulator.evidence.calibration.fit import NOISE, Problem, posterior, problem, solve
from simulator.evidence.calibration.run import FamilyFit
from simulator.evidence.calibration.sample import Sample, measured
from simulator.evidence.calibration.uncertainty import NORMAL_90
from simulator.question.arrays import Vector
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute relative errors of a group of rows."""

    rows: int
    mean: float
    median: float
    worst: float
    worst_row: str


@dataclass(frozen=True, slots=True)
class RowError:
    """One row's errors, predicted over measured less one."""

    sample: Sample
    measured: float
    """Bytes, or TFLOP/s per device."""
    predicted: float
    counted: bool
    """Whether the row is consistent, by the annotation beside it."""
    used: bool
    """Whether the fit used the row, which it decides without the annotation."""
    fitted: float
    """With all rows used in the fit."""
    left_out: float | None
    """Refitted without the row."""
    left_model_out: float | None
    """Refitted without any row of its model."""
    inside_interval: bool | None
    """Whether the measured figure lies in the 90 % interval of the refit without the row."""
    sole_support: bool
    """The only row with its tensor-parallel size, context-parallel size, recompute mode or micro batch size."""
    baseline: float | None
    """Error of a constant per precision, the median of the other counted rows of the table."""
    carried: float | None
    """With the coefficients of the primary family as shares of this device's peaks; None for that family itself."""

    @property
    def key(self) -> str:
        """Table and row number."""
        return self.sample.key

    @property
    def table(self) -> str:
        """Table of the row."""
        return self.sample.row.table

    @property
    def group(self) -> tuple[str, str, str]:
        """Table, model and precision."""
        return self.table, self.sample.scenario.model.name, self.sample.scenario.precision


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of one kind of figure in one family."""

    kind: CoefficientKind
    rows: tuple[RowError, ...]

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables with rows of this kind."""
        return tuple(sorted({row.table for row in self.rows}))

    def part(self, *, table: str | None = None, group: tuple[str, str, str] | None = None) -> Accuracy:
        """Only the rows of a table or of a group; the refits stay those of all rows."""
        kept = (row for row in self.rows if table in (None, row.table) and group in (None, row.group))
        return Accuracy(self.kind, tuple(kept))

    def errors(self, which: str, *, sole_support: bool = True) -> Errors | None:
        """Summary over counted rows of one of a row's errors, such as `left_out`; None without rows."""
        found = [
            (abs(value), row.key)
            for row in self.rows
            if row.counted and (sole_support or not row.sole_support)
            if (value := getattr(row, which)) is not None
        ]
        if not found:
            return None
        values = [value for value, _ in found]
        worst, key = max(found)
        return Errors(len(found), float(np.mean(values)), float(np.median(values)), worst, key)

    @property
    def coverage(self) -> float | None:
        """Share of counted rows inside the 90 % interval of the refit without them."""
        inside = [row.inside_interval for row in self.rows if row.counted and row.inside_interval is not None]
        return sum(inside) / len(inside) if inside else None


def accuracy(
    fitted: FamilyFit, kind: CoefficientKind, base: Coefficients | None = None, *, primary: Coefficients | None = None
) -> Accuracy | None:
    """Errors of a family's rows for one kind; None where there are none.

    `primary` holds the primary family's coefficients, for a family that is another.
    """
    fit = fitted.fit(kind)
    if fit is None:
        return None
    samples = tuple(s for s in fitted.samples if s.figure(kind) is not None)
    task = problem(kind, samples, base)
    used = np.array([s.key in fit.keys for s in samples], dtype=np.bool_)
    predicted = task.predicted(fit.values)
    models = _without_models(task, used, fit.values)
    sole = sole_support([s for s in samples if s.counts(kind)])
    baseline = _baseline(kind, samples)
    carried = None if primary is None else _ratios(task, primary)
    rows = []
    for index, sample in enumerate(samples):
        left_out, inside = _without_row(task, used, fit.values, index) if sample.counts(kind) else (None, None)
        rows.append(
            RowError(
                sample=sample,
                measured=float(task.measured[index]),
                predicted=float(predicted[index]),
                counted=sample.counts(kind),
                used=bool(used[index]),
                fitted=float(predicted[index] / task.measured[index]) - 1.0,
                left_out=left_out,
                left_model_out=models.get(index),
                inside_interval=inside,
                sole_support=sample.key in sole,
                baseline=baseline.get(sample.key),
                carried=None if carried is None else float(carried[index]),
            )
        )
    return Accuracy(kind, tuple(rows))


def _ratios(task: Problem, coefficients: Coefficients) -> Vector:
    """Errors of all rows under a given coefficient set."""
    task = replace(task, base=coefficients)
    return task.predicted(task.prior_values) / task.measured - 1.0


def _without_row(task: Problem, used: NDArray[np.bool_], start: Vector, index: int) -> tuple[float, bool]:
    """Error of one row after a refit without it, and whether the refit's 90 % interval holds it."""
    keep = used.copy()
    keep[index] = False
    values = solve(task, keep, noise=NOISE[task.kind], start=start, evaluations=12)
    alone = task.kept(np.arange(len(task.samples)) == index)
    error = float(np.log(alone.predicted(values) / alone.measured)[0])
    covariance, noise = posterior(task, keep, values)
    slopes = alone.slopes(values)[0]
    spread = float(np.sqrt(slopes @ covariance @ slopes + noise**2))
    return float(np.expm1(error)), abs(error) <= NORMAL_90 * spread


def _without_models(task: Problem, used: NDArray[np.bool_], start: Vector) -> dict[int, float]:
    """Errors of the counted rows after refits without any row of their model."""
    names = np.array([s.row.model for s in task.samples])
    result: dict[int, float] = {}
    if len(set(names)) < 2:
        return result
    for name in sorted(set(names)):
        keep = used & (names != name)
        if not keep.any():
            continue
        values = solve(task, keep, noise=NOISE[task.kind], start=start, evaluations=20)
        errors = np.expm1(np.log(task.predicted(values) / task.measured))
        for index in np.flatnonzero(names == name):
            if task.samples[int(index)].counts(task.kind):
                result[int(index)] = float(errors[index])
    return result


def sole_support(samples: Sequence[Sample]) -> set[str]:
    """Rows that alone hold a value of one of the main features: what is left without them is the prior."""
    result: set[str] = set()
    for feature in ("tensor_parallel", "context_parallel", "micro_batch_size", "recompute"):
        values = [getattr(s.layout, feature) for s in samples]
        result |= {s.key for s, value in zip(samples, values, strict=True) if values.count(value) == 1}
    return result


def _baseline(kind: CoefficientKind, samples: Sequence[Sample]) -> dict[str, float]:
    """A constant per precision, the median of the table's other counted rows, as a predictor."""
    counted = [s for s in samples if s.counts(kind)]
    figures = measured(kind, counted)
    result: dict[str, float] = {}
    for index, sample in enumerate(counted):
        others = [
            figure
            for other, figure in zip(counted, figures, strict=True)
            if other is not sample
            and (other.row.table, other.scenario.precision) == (sample.row.table, sample.scenario.precision)
        ]
        if others:
            result[sample.key] = float(np.median(others) / figures[index] - 1.0)
    return result


@dataclass(frozen=True, slots=True)
class Ordering:
    """Whether the faster of two layouts is predicted faster."""

    pairs: int
    """Pairs of counted rows of one model and precision whose measured TFLOPS differ by more than 2 %."""
    right: int
    best_within: float
    """Largest shortfall of the row predicted best against the best measured, over models and precisions."""


def ordering(fitted: FamilyFit, coefficients: Coefficients, *, table: str | None = None) -> Ordering:
    """Pairs in the right order, and what following the prediction would have cost."""
    groups: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {}
    samples = [s for s in fitted.samples if s.counts("time") and table in (None, s.row.table)]
    task = replace(problem("time", samples), base=coefficients)
    for sample, value in zip(samples, task.predicted(task.prior_values), strict=True):
        key = (sample.row.table, sample.row.model, sample.scenario.precision, sample.scenario.devices)
        groups.setdefault(key, []).append((float(sample.measured_tflops or 0.0), float(value)))
    pairs = right = 0
    shortfall = 0.0
    for rows in groups.values():
        for (first, first_predicted), (second, second_predicted) in combinations(rows, 2):
            if abs(first / second - 1.0) > 0.02:
                pairs += 1
                right += (first > second) == (first_predicted > second_predicted)
        best = max(measured for measured, _ in rows)
        chosen = max(rows, key=lambda row: row[1])[0]
        shortfall = max(shortfall, 1.0 - chosen / best)
    return Ordering(pairs, right, shortfall)
