"""Whole training run at an estimate's speed: days, device hours, cost. Prices no step."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cost.pricing.estimate import Estimate, Interval

SECONDS_PER_HOUR = 3600.0
_HOURS_PER_DAY = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Duration and cost of a whole training run with one layout."""

    tokens: int
    """Tokens of the run."""
    days: float
    """Days of the run."""
    device_hours: float
    """Hours of the run times its devices."""
    cost: float | None
    """Cost of the run, in the currency of the price; None without a price."""
    days_interval: Interval | None = None
    """90 % interval of the days, from that of the step time; None without a calibration."""
    cost_interval: Interval | None = None
    """90 % interval of the cost; None without a calibration or a price."""


def run_of(estimate: Estimate, tokens: int, price_per_device_hour: float | None, goodput: float = 1.0) -> TrainingRun:
    """Return the whole run at the estimate's speed; `goodput` is the share of the time that trains."""
    speed = estimate.throughput
    hours = tokens / (speed.tokens_per_second_per_device * estimate.devices * goodput) / SECONDS_PER_HOUR
    days = hours / _HOURS_PER_DAY
    cost = None if price_per_device_hour is None else hours * estimate.devices * price_per_device_hour
    return TrainingRun(
        tokens=tokens,
        days=days,
        device_hours=hours * estimate.devices,
        cost=cost,
        days_interval=_scaled(estimate, days),
        cost_interval=None if cost is None else _scaled(estimate, cost),
    )


def _scaled(estimate: Estimate, figure: float) -> Interval | None:
    """Return the 90 % interval of a figure proportional to the step time."""
    step, seconds = estimate.throughput.interval_seconds, estimate.throughput.step_seconds
    return None if step is None else Interval(figure * step.low / seconds, figure * step.high / seconds)
