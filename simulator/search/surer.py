"""Layouts as fast as the best within uncertainty, and the surer one among them. Reads intervals; computes none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.cost.pricing.estimate import Estimate
from simulator.search.query import PricedLayout

_SURE = 0.99
"""Probability to fit above which more room makes no layout surer."""


def equal_to_first(layouts: Sequence[PricedLayout]) -> tuple[int, ...]:
    """Return the positions of layouts whose step time may equal the first's, within the interval of the difference.

    Empty without a calibration.
    """
    if len(layouts) <= 1 or (calibration := layouts[0].query.scenario.calibration) is None:
        return ()
    widths = calibration.difference_half_widths([(priced.query.scenario, priced.layout) for priced in layouts])
    first = layouts[0].step_seconds
    return tuple(
        position
        for position, (priced, width) in enumerate(zip(layouts, widths, strict=True))
        if position and math.log(priced.step_seconds / first) <= width
    )


def surer_than_first(estimates: Sequence[Estimate], equal: Sequence[int]) -> int | None:
    """Return the position, among those equal to the first, of the surer one; None where the first is.

    Surer is the smallest upper end of the step time, or, where the first may not fit, the largest probability to fit.
    """
    if not equal:
        return None
    first = estimates[0]
    room = first.memory.fit_probability
    if room is not None and room < _SURE:
        fits = {position: estimates[position].memory.fit_probability or 0.0 for position in equal}
        best = max(fits, key=lambda position: fits[position])
        if fits[best] > room:
            return best
    ends = {position: _slowest(estimates[position]) for position in equal}
    best = min(ends, key=lambda position: ends[position])
    return best if ends[best] < _slowest(first) else None


def _slowest(estimate: Estimate) -> float:
    """Return the upper end of the step time."""
    interval = estimate.throughput.interval_seconds
    return estimate.throughput.step_seconds if interval is None else interval.high
