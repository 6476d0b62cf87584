"""Calibration by launches: rows of a record fitted and stored, and the ranking before and after.

Stores nothing where rows scatter too much after the fit, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.cost.pricing.estimate import Estimate
from simulator.evidence.calibration.own import fit_own, unused
from simulator.evidence.calibration.sample import prepared
from simulator.evidence.calibration.store import KINDS, calibration_text
from simulator.evidence.measurements.row import MeasuredRow
from simulator.files import write_file
from simulator.question.scenario.layout import Layout

Rank = Callable[[str], Sequence[Estimate]]
"""Function that ranks the campaign's question with a calibration file, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Layout in both rankings."""

    layout: Layout
    """The layout."""
    before: int | None
    """Place among the layouts ranked, from 1; None beyond them."""
    after: int | None
    """Place with the new calibration."""
    estimate_before: Estimate | None
    """Estimate before; None beyond the layouts ranked."""
    estimate_after: Estimate | None
    """Estimate with the new calibration; None beyond the layouts ranked."""
    measured_seconds: float | None
    """Median step of its launches; None where it was not launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Changes that the rows of a record made."""

    path: Path
    """File of the calibration, written or not."""
    stored: bool
    rows: int
    """Rows that decide a coefficient."""
    reasons: tuple[str, ...]
    """Reasons why something was not stored or not used."""
    moved: tuple[Moved, ...]
    """Best layouts of both rankings, in the new order; empty where nothing was stored."""


def learn(rows: Sequence[MeasuredRow], path: Path, *, before: Sequence[Estimate], rank: Rank, top: int) -> Learned:
    """Fit all rows of a record from the shipped calibration, write the new one, and rank again.

    `before` is the ranking so far; the best `top` of both are reported. Raises InputError where the file cannot be
    written.
    """
    samples = prepared(rows)
    fitted = fit_own(samples[0].scenario.hardware.family, samples)
    stored = [fit for kind in KINDS if (fit := fitted.stored(kind))]
    refused = map(fitted.not_stored, KINDS)
    reasons = tuple(filter(None, (*refused, *unused(rows, [fitted]))))
    if not stored:
        return Learned(path=path, stored=False, rows=0, reasons=reasons, moved=())
    write_file(path, calibration_text(fitted.calibration()))
    used = {key for fit in stored for key in fit.keys}
    moved = _moved(before, rank(str(path)), _measured(rows, before), top)
    return Learned(path=path, stored=True, rows=len(used), reasons=reasons, moved=moved)


def _measured(rows: Sequence[MeasuredRow], before: Sequence[Estimate]) -> dict[Layout, float]:
    """Return the median step seconds of ranked layouts that were measured."""
    seconds: dict[Layout, list[float]] = {}
    for sample in prepared(rows):
        if sample.row.step_seconds is not None:
            seconds.setdefault(sample.layout, []).append(sample.row.step_seconds)
    known = {estimate.layout for estimate in before}
    return {layout: sorted(times)[len(times) // 2] for layout, times in seconds.items() if layout in known}


def _moved(
    before: Sequence[Estimate], after: Sequence[Estimate], measured: Mapping[Layout, float], top: int
) -> tuple[Moved, ...]:
    """Return the best `top` of either ranking and all measured layouts, in the new order."""
    places = [{row.layout: (at, row) for at, row in enumerate(ranking, start=1)} for ranking in (before, after)]
    layouts = [*(row.layout for row in after[:top]), *(row.layout for row in before[:top])]
    layouts += [row.layout for row in before if row.layout in measured]
    moved = []
    for layout in dict.fromkeys(layouts):
        was, now = places[0].get(layout), places[1].get(layout)
        moved.append(
            Moved(
                layout=layout,
                before=was and was[0],
                after=now and now[0],
                estimate_before=was and was[1],
                estimate_after=now and now[1],
                measured_seconds=measured.get(layout),
            )
        )
    last = len(before) + len(after)
    return tuple(sorted(moved, key=lambda row: (row.after or last, row.before or last)))
