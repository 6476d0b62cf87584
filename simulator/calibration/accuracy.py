"""How far off the calibrated model is: every row, by group, left out one by one and model by model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.fit import NOISE, Problem, posterior, problem, solve
from simulator.calibration.run import FamilyFit
from simulator.calibration.sample import Sample
from simulator.calibration.uncertainty import NORMAL_90
from simulator.coefficients import Coefficients
from simulator.coefficients.values import Kind

Vector = NDArray[np.float64]


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

    key: str
    counted: bool
    """Whether the row is consistent, by the annotation beside it."""
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
    """Error of a constant per precision (time only), the median of the other counted rows."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of one kind of figure in one family."""

    kind: Kind
    rows: tuple[RowError, ...]

    def errors(self, which: str, *, sole_support: bool = True) -> Errors | None:
        """Summary over counted rows of `fitted`, `left_out`, `left_model_out` or `baseline`; None without rows."""
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


def accuracy(fitted: FamilyFit, kind: Kind, base: Coefficients | None = None) -> Accuracy | None:
    """Errors of a family's rows for one kind; None where it was not fitted."""
    fit = fitted.memory if kind == "memory" else fitted.time
    if fit is None:
        return None
    samples = tuple(s for s in fitted.samples if _has(kind, s))
    task = problem(kind, samples, base)
    used = np.array([s.key in fit.keys for s in samples], dtype=np.bool_)
    errors = np.log(task.predicted(fit.values) / task.measured)
    models = _without_models(task, used, fit.values)
    sole = sole_support([s for s in samples if _counted(kind, s)])
    baseline = _baseline(kind, samples)
    rows = []
    for index, sample in enumerate(samples):
        left_out, inside = _without_row(task, used, fit.values, index) if _counted(kind, sample) else (None, None)
        rows.append(
            RowError(
                key=sample.key,
                counted=_counted(kind, sample),
                fitted=float(np.expm1(errors[index])),
                left_out=left_out,
                left_model_out=models.get(index),
                inside_interval=inside,
                sole_support=sample.key in sole,
                baseline=baseline.get(sample.key),
            )
        )
    return Accuracy(kind, tuple(rows))


def _has(kind: Kind, sample: Sample) -> bool:
    return (sample.row.memory_bytes if kind == "memory" else sample.measured_tflops) is not None


def _counted(kind: Kind, sample: Sample) -> bool:
    return sample.row.memory_counts if kind == "memory" else sample.row.speed_counts


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
            if _counted(task.kind, task.samples[int(index)]):
                result[int(index)] = float(errors[index])
    return result


def sole_support(samples: Sequence[Sample]) -> set[str]:
    """Rows that alone hold a value of one of the main features: what is left without them is the prior."""
    result: set[str] = set()
    for feature in ("tensor_parallel", "context_parallel", "micro_batch_size", "recompute"):
        values = [getattr(s.layout, feature) for s in samples]
        result |= {s.key for s, value in zip(samples, values, strict=True) if values.count(value) == 1}
    return result


def _baseline(kind: Kind, samples: Sequence[Sample]) -> dict[str, float]:
    """A constant TFLOPS per precision, the median of the other counted rows, as a predictor."""
    if kind == "memory":
        return {}
    counted = [s for s in samples if _counted(kind, s)]
    result: dict[str, float] = {}
    for sample in counted:
        others = [
            s.measured_tflops
            for s in counted
            if s.key != sample.key and s.scenario.precision == sample.scenario.precision and s.measured_tflops
        ]
        if others and sample.measured_tflops:
            result[sample.key] = float(np.median(others)) / sample.measured_tflops - 1.0
    return result


@dataclass(frozen=True, slots=True)
class Ordering:
    """Whether the faster of two layouts is predicted faster."""

    pairs: int
    """Pairs of counted rows of one model and precision whose measured TFLOPS differ by more than 2 %."""
    right: int
    best_within: float
    """Largest shortfall of the row predicted best against the best measured, over models and precisions."""


def ordering(fitted: FamilyFit, coefficients: Coefficients) -> Ordering:
    """Pairs in the right order, and what following the prediction would have cost."""
    groups: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    samples = [s for s in fitted.samples if _has("time", s) and _counted("time", s)]
    task = problem("time", samples)
    task = Problem("time", task.samples, coefficients, task.names, task.scale)
    predicted = task.predicted(task.prior_values)
    for sample, value in zip(samples, predicted, strict=True):
        key = (sample.row.model, sample.scenario.precision, sample.scenario.devices)
        groups.setdefault(key, []).append((float(sample.measured_tflops or 0.0), float(value)))
    pairs = right = 0
    shortfall = 0.0
    for rows in groups.values():
        for i, (first, first_predicted) in enumerate(rows):
            for second, second_predicted in rows[i + 1 :]:
                if abs(first / second - 1.0) > 0.02:
                    pairs += 1
                    right += (first > second) == (first_predicted > second_predicted)
        best = max(measured for measured, _ in rows)
        chosen = max(rows, key=lambda row: row[1])[0]
        shortfall = max(shortfall, 1.0 - chosen / best)
    return Ordering(pairs, right, shortfall)
