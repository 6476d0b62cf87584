"""From measured rows to a calibration of one hardware family."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator._version import __version__
from simulator.evidence.calibration.doubts import Doubt, device_doubts, is_starved, misfits, standing_out
from simulator.evidence.calibration.fit import Fit, Freedom, fit
from simulator.evidence.calibration.ranges import CalibratedRange, numbers, signature, usual_words, words
from simulator.evidence.calibration.sample import Sample, sample_of
from simulator.evidence.calibration.store import Calibration, FittedPart, shipped_calibration
from simulator.evidence.measurements.row import MeasuredRow
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, replaced

MOST_SCATTER = 0.20
"""Root mean square of relative errors above which a fitted part is not stored: it does not describe its rows."""
_OTHER_UNIT = 5.0
"""Times that a figure is off from which it is asked whether its unit is another one."""


@dataclass(frozen=True, slots=True)
class FamilyFit:
    """A family's samples and fits."""

    family: str
    samples: tuple[Sample, ...]
    """Rows that ran."""
    memory: Fit | None
    time: Fit | None
    doubts: tuple[Doubt, ...]
    """Rows that are not what they say, or cannot be used as they stand."""
    known_memory: FittedPart | None = None
    """Memory coefficients that need no rows; `memory` is then None."""

    def coefficients(self, base: Coefficients | None = None) -> Coefficients:
        """The fitted set."""
        return self.calibration().coefficients(base)

    def calibration(self) -> Calibration:
        """What is stored."""
        memory, time = self.stored("memory"), self.stored("time")
        used = set(memory.keys if memory else ()) | set(time.keys if time else ())
        tables = sorted({sample.key.rsplit(":", 1)[0] for sample in self.samples})
        return Calibration(
            family=self.family,
            tool_version=__version__,
            tables=tuple(tables),
            memory=_part(memory) if memory else self.known_memory,
            time=_part(time) if time else None,
            range=range_of([s for s in self.samples if s.key in used] or self.samples),
        )

    def fit(self, kind: CoefficientKind) -> Fit | None:
        """The fit of one kind, stored or not."""
        return self.memory if kind == "memory" else self.time

    def stored(self, kind: CoefficientKind) -> Fit | None:
        """The fit of one kind, where it describes its rows well enough to be used."""
        found = self.fit(kind)
        return None if found is None or found.scatter > MOST_SCATTER else found

    def not_stored(self, kind: CoefficientKind) -> str:
        """Why the fit of one kind is not stored, in one sentence; empty where it is, or there is none."""
        found = self.fit(kind)
        if found is None or self.stored(kind) is not None:
            return ""
        errors = [found.residuals[key] for key in found.keys]
        side = "" if min(errors) < 0.0 < max(errors) else ", all on one side"
        worst = max(found.keys, key=lambda key: abs(math.log1p(found.residuals[key])))
        times = 1.0 + found.residuals[worst]
        unit = f"; {worst} is {times:.3g} times what was measured: is it in the column's unit?"
        return (
            f"{kind} of family {self.family} is not stored: after the fit its {len(errors)} rows still scatter by "
            f"{100.0 * found.scatter:.1f} % (at most {100.0 * MOST_SCATTER:.0f} %){side}, so they are not runs of the "
            "layouts they name, or the model lacks what they show"
            + (unit if max(times, 1.0 / times) > _OTHER_UNIT else "")
        )


def prepared(rows: Iterable[MeasuredRow]) -> tuple[Sample, ...]:
    """Samples of the rows that ran and name a model and hardware this project knows."""
    return tuple(sample_of(row) for row in rows if row.outcome == "ok" and row.asks)


def fit_family(
    family: str, samples: Sequence[Sample], base: Coefficients | None = None, freedom: Freedom | None = None
) -> FamilyFit:
    """Fit memory and time of one family, apart; a kind without rows is left at `base`."""
    mine = tuple(s for s in samples if s.scenario.hardware.family == family)
    known = known_memory(family)
    if known is not None:
        base = replaced(base or Coefficients(), "memory", known.names, known.vector)
    memory = None if known is not None else _fit_memory(mine, base, freedom)
    so_far = _merged(base, memory, None)
    starved = {s.key for s in mine if is_starved(s, so_far)}
    with_speed = [s for s in mine if s.measured_tflops is not None and s.key not in starved]
    time = fit("time", with_speed, base, freedom) if with_speed else None
    # A row that reads as another layout is no sample of the one it names: its speed goes too.
    found = tuple(misfits(mine, memory, time, _merged(base, memory, time)))
    relabelled = {doubt.key for doubt in found if doubt.finding in ("relabelled", "ambiguous")}
    if relabelled:
        with_speed = [s for s in with_speed if s.key not in relabelled]
        time = fit("time", with_speed, base, freedom) if with_speed else None
        found = tuple(misfits(mine, memory, time, _merged(base, memory, time)))
    out = standing_out(mine, memory, time, _merged(base, memory, time))
    return FamilyFit(family, mine, memory, time, (*device_doubts(mine), *found, *out), known)


def known_memory(family: str) -> FittedPart | None:
    """The memory coefficients of a family whose hardware leaves nothing to be fitted; None for most."""
    shipped = shipped_calibration(family)
    return None if shipped is None or shipped.memory is None or not shipped.memory.known else shipped.memory


def _fit_memory(samples: Sequence[Sample], base: Coefficients | None, freedom: Freedom | None) -> Fit | None:
    """Fit memory; rows that turn out starved hold the device's capacity, not their need, and are left out."""
    rows = [s for s in samples if s.row.memory_bytes is not None]
    if not rows:
        return None
    first = fit("memory", rows, base, freedom)
    so_far = _merged(base, first, None)
    fed = [s for s in rows if not is_starved(s, so_far)]
    return first if len(fed) == len(rows) else fit("memory", fed, base, freedom)


def _merged(base: Coefficients | None, memory: Fit | None, time: Fit | None) -> Coefficients:
    """`base` with what was fitted."""
    result = base or Coefficients()
    for fitted in (memory, time):
        if fitted is not None:
            result = replaced(result, fitted.kind, fitted.names, fitted.values)
    return result


def _part(fitted: Fit) -> FittedPart:
    """The stored form of a fit."""
    decided = {}
    for column, name in enumerate(fitted.names):
        shares = fitted.influence[:, column]
        order = [int(i) for i in np.argsort(-shares, kind="stable")[:4] if shares[i] > 0.05]
        decided[name] = tuple(fitted.keys[i] for i in order)
    return FittedPart(
        values={name: float(value) for name, value in zip(fitted.names, fitted.values, strict=True)},
        covariance=fitted.covariance,
        noise=fitted.noise,
        rows_used=fitted.keys,
        rows_left_out={key: fitted.residuals[key] for key in fitted.left_out},
        decided_by=decided,
    )


def range_of(samples: Sequence[Sample]) -> CalibratedRange:
    """The range that the samples cover."""
    sizes: dict[str, tuple[float, float]] = {}
    seen: dict[str, set[str]] = {}
    for sample in samples:
        for name, value in numbers(sample.scenario, sample.layout).items():
            low, high = sizes.get(name, (value, value))
            sizes[name] = (min(low, value), max(high, value))
        for name, word in words(sample.scenario, sample.layout).items():
            seen.setdefault(name, set()).add(word)
    return CalibratedRange(
        sizes=sizes,
        seen={name: tuple(sorted(found)) for name, found in seen.items() if not found <= set(usual_words(name))},
        runs=tuple(sorted({signature(s.scenario, s.layout) for s in samples})),
    )
