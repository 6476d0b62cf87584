"""What a reader asked to see beside the estimates themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.cost.pricing.estimate import Estimate, Interval

_SECONDS_PER_HOUR = 3600.0
_HOURS_PER_DAY = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """How much to show, and what a whole training run is."""

    verbosity: int = 0
    """Below 0: the table alone. 0: with what was assumed in short. Above 0: everything."""
    colour: bool = False
    """Whether the text may hold terminal colour codes."""
    train_tokens: int | None = None
    """Tokens of the whole training run; None leaves out its duration and cost."""
    price_per_device_hour: float | None = None
    """Price of one device for one hour, in any currency; None leaves out the cost."""
    width: int | None = None
    """Characters in a line of a table; None is no limit."""
    variants: bool = False
    """Whether a ranking has every layout, not only the best of each split."""
    device_has_fp8: bool | None = None
    """Whether the hardware has an fp8 peak; None if nobody looked."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Inputs of a single estimate that were left to their default, by option name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Duration and cost of a whole training run with one layout."""

    tokens: int
    days: float
    device_hours: float
    cost: float | None
    """In the currency of the price; None without a price."""
    days_interval: Interval | None = None
    """90 % interval of the days, that of the step time carried over; None without a calibration."""
    cost_interval: Interval | None = None
    """The same of the cost."""


def training_run(estimate: Estimate, presentation: Presentation) -> TrainingRun | None:
    """Return the whole run at the estimate's speed, or None if no number of tokens was given."""
    tokens = presentation.train_tokens
    if tokens is None or estimate.throughput.tokens_per_second_per_device <= 0:
        return None
    return run_of(estimate, tokens, presentation.price_per_device_hour)


def run_of(estimate: Estimate, tokens: int, price_per_device_hour: float | None, goodput: float = 1.0) -> TrainingRun:
    """Return the whole run at the estimate's speed; `goodput` is the share of the time that trains."""
    speed = estimate.throughput
    hours = tokens / (speed.tokens_per_second_per_device * estimate.devices * goodput) / _SECONDS_PER_HOUR
    rate = None if price_per_device_hour is None else estimate.devices * price_per_device_hour

    def scaled(factor: float | None) -> Interval | None:
        step = speed.interval_seconds
        if step is None or factor is None:
            return None
        return Interval(factor * step.low / speed.step_seconds, factor * step.high / speed.step_seconds)

    days, cost = hours / _HOURS_PER_DAY, None if rate is None else hours * rate
    return TrainingRun(
        tokens=tokens,
        days=days,
        device_hours=hours * estimate.devices,
        cost=cost,
        days_interval=scaled(days),
        cost_interval=scaled(cost),
    )
