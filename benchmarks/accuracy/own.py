"""The user's own table, fitted as any user's own rows are: from what all other sources say of its family.

Nobody's annotations are read by that fit. They say which rows count when it is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

import numpy as np

from benchmarks.accuracy.hierarchy import expected_deviation
from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import DOES_NOT_FIT, STARVED, price
from simulator.evidence.calibration.cluster import ClusterFit, Known, Sample, predict, sample_of
from simulator.evidence.calibration.own import OwnFit, fit_own
from simulator.evidence.calibration.store import FittedPart
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.question.arrays import Mask
from simulator.question.coefficients import CoefficientKind, Coefficients, replaced

OWN: Final = "z2000-megatron"
"""The user's own experiments."""
OWN_FAMILY: Final = "hopper"
CLUSTER: Final = "z2000"
"""Hardware that the calibration of the table serves."""
APART: Final = 0.02
"""Share by which two measured speeds differ that are to be put in order."""
_FEATURES: Final = ("tensor_parallel", "context_parallel", "micro_batch_size", "recompute")


@dataclass(frozen=True, slots=True)
class OwnRow:
    """One figure of the table; errors are predicted over measured, less one."""

    kind: str
    key: str
    question: str
    """Model, precision and devices."""
    measured: float
    """Bytes, or TFLOP/s per device."""
    counted: bool
    """Whether the row is what it says, by the annotation beside it."""
    used: bool
    """Whether the fit used it, which it decides without the annotation."""
    fitted: float
    left_out: float
    """Fitted without the row."""
    left_model_out: float
    """Fitted without any row of its model."""
    inside: bool
    """Whether the measured figure lies in the 90 % interval of the fit without the row."""
    sole_support: bool
    """Whether it alone has its tensor- or context-parallel size, micro batch size or recompute mode."""


@dataclass(frozen=True, slots=True)
class OwnVerdict:
    """What is said of a row that ran or ran out of memory."""

    key: str
    ran: bool
    said: str
    """`fits`, `starved` or `does_not_fit`."""
    annotated_starved: bool

    @property
    def right(self) -> bool:
        """Whether it ran and is said to fit, or to be starved if it was; or did not and is not said to fit."""
        if not self.ran:
            return self.said != "fits"
        return self.said == "fits" or (self.said == "starved" and self.annotated_starved)


def own_fit(parts: Mapping[CoefficientKind, FittedPart], samples: Sequence[Sample]) -> OwnFit:
    """Fit the table from what `parts` say of its family without it."""
    base = Coefficients()
    for kind, part in parts.items():
        base = replaced(base, kind, part.names, part.vector)
    known = {kind: Known.of_part(kind, part) for kind, part in parts.items()}
    return fit_own(OWN_FAMILY, [s for s in samples if s.row.table == OWN], known, base)


def own_rows(parts: Mapping[CoefficientKind, FittedPart], samples: Sequence[Sample]) -> Iterator[OwnRow]:
    """Judge every figure of the table."""
    found = own_fit(parts, samples)
    fitted = found.coefficients()
    for kind, fit in found.fits.items():
        with_figure = [s for s in found.samples if s.figure(kind) is not None]
        alone = sole_support([s for s in with_figure if s.counts(kind)])
        yield from (_judged(fit, sample, fitted, sample.key in alone) for sample in with_figure)


def _judged(fit: ClusterFit, sample: Sample, fitted: Coefficients, sole: bool) -> OwnRow:  # noqa: FBT001  a plain value
    keys = [s.key for s in fit.state.design.samples]
    models = np.array([s.row.model for s in fit.state.design.samples])
    others = np.array([key != sample.key for key in keys])
    left_out, without = _error(fit, sample, fitted, others), _error(fit, sample, fitted, models != sample.row.model)
    inside = True
    if sample.key in keys:
        index = keys.index(sample.key)
        deviation = expected_deviation(fit.state, fit.known_by(others), index, fit.noise)
        inside = abs(np.log1p(left_out)) <= 1.6448536269514722 * deviation
    scenario = sample.scenario
    return OwnRow(
        kind=fit.kind,
        key=sample.key,
        question=f"{scenario.model.name} {scenario.precision} on {scenario.devices}",
        measured=float(sample.figure(fit.kind) or 0.0),
        counted=sample.counts(fit.kind),
        used=sample.key in fit.keys,
        fitted=_error(fit, sample, fitted, np.ones(len(keys), dtype=np.bool_)),
        left_out=left_out,
        left_model_out=without,
        inside=bool(inside),
        sole_support=sole,
    )


def _error(fit: ClusterFit, sample: Sample, fitted: Coefficients, rows: Mask) -> float:
    """Relative error of a row predicted by some rows of a fit."""
    point = fit.state.design.bounded(fit.state.point(fit.known_by(rows)))
    coefficients = replaced(fitted, fit.kind, fit.names, np.exp(point))
    alone = replace(sample, scenario=replace(sample.scenario, coefficients=coefficients))
    predicted = float(predict(fit.kind, alone, coefficients, (), np.zeros((0, 1)))[0])
    return predicted / float(sample.figure(fit.kind) or np.nan) - 1.0


def sole_support(samples: Sequence[Sample]) -> set[str]:
    """Rows that alone hold a value of one of the main features: what is left without them is what was known before."""
    result: set[str] = set()
    for feature in _FEATURES:
        values = [getattr(s.layout, feature) for s in samples]
        result |= {s.key for s, value in zip(samples, values, strict=True) if values.count(value) == 1}
    return result


def own_verdicts(rows: Sequence[MeasuredRow], coefficients: Coefficients) -> Iterator[OwnVerdict]:
    """Judge the table's rows that ran or ran out of memory, as they are stated."""
    for row in rows:
        if row.table != OWN or row.outcome == "error" or not row.asks:
            continue
        sample = sample_of(row)
        code = int(price(Pricing(replace(sample.scenario, coefficients=coefficients), sample.block)).verdict[0])
        said = "does_not_fit" if code == DOES_NOT_FIT else "starved" if code == STARVED else "fits"
        yield OwnVerdict(sample.key, row.outcome == "ok", said, row.status == "starved")


def in_order(rows: Sequence[OwnRow]) -> tuple[int, int, float]:
    """Pairs of one model, precision and devices measured apart, how many are in the right order, and the largest loss.

    The loss is that of the row predicted best against the best measured, as a share of the speed.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.kind == "time" and row.counted:
            groups.setdefault(row.question, []).append((row.measured, row.measured * (1.0 + row.fitted)))
    pairs = right = 0
    loss = 0.0
    for runs in groups.values():
        for one, other in combinations(runs, 2):
            if abs(one[0] / other[0] - 1.0) > APART:
                pairs += 1
                right += (one[0] > other[0]) == (one[1] > other[1])
        chosen = max(runs, key=lambda run: run[1])[0]
        loss = max(loss, 1.0 - chosen / max(measured for measured, _ in runs))
    return pairs, right, loss


def mean(rows: Sequence[OwnRow], kind: CoefficientKind, which: str, **kept: Any) -> float:
    """Mean absolute error of the rows that count; `kept` asks for values of their fields."""
    values = [
        abs(getattr(row, which))
        for row in rows
        if row.kind == kind and row.counted and all(getattr(row, name) == value for name, value in kept.items())
    ]
    return float(np.mean(values))


def worst(rows: Sequence[OwnRow], kind: CoefficientKind, which: str) -> OwnRow:
    """The row that counts with the largest error."""
    return max((r for r in rows if r.kind == kind and r.counted), key=lambda row: abs(getattr(row, which)))
