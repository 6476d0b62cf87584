"""Goodput: the share of paid time that trains beside failures, checkpoints and evaluation.

`answers.plan` divides days and cost by it; `show.report.plan` writes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from simulator.answers.run import SECONDS_PER_HOUR
from simulator.errors import InputError, UnsupportedError

BYTES_PER_PARAMETER = 14.0
"""Bytes of a checkpoint per parameter: a 16-bit weight, and the weight and both moments of Adam in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Failures of devices, and a run's work beside training."""

    device_mtbf_hours: float = 16_384 * 54 * 24 / 419
    """Mean time between failures of one device, in hours: 419 unexpected interruptions of a job on 16,384 H100 in 54
    days (The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.4 and table 5)."""
    restart_minutes: float = 10.0
    """Time from a failure to the loading of the checkpoint, in minutes: detection and diagnosis took less than that on
    average on more than 10,000 devices (MegaScale, NSDI 2024, arXiv 2402.15627, section 6.3)."""
    checkpoint_bandwidth_per_device: float = 2e12 / 16_384
    """Storage bandwidth of one device of a job, in bytes/s: 2 TB/s sustained for 16,384 devices (The Llama 3 Herd of
    Models, section 3.3.1). A checkpoint is written while the step waits, and read again at the same rate."""
    checkpoint_minutes: float | None = None
    """Training between two checkpoints, in minutes; None is the interval that loses least, `sqrt(2 C M)` for writing
    time C and mean time between failures M of the job (Young 1974)."""
    evaluation_share: float = 100 / 1000 / 3
    """Evaluation, as a share of the time of training steps: Megatron-LM's defaults are 100 forward passes after every
    1,000 steps, and a forward pass is a third of a step."""

    def __post_init__(self) -> None:
        """Raise InputError for a figure out of its range."""
        for field in fields(self):
            value, may_be_zero = getattr(self, field.name), field.name in ("restart_minutes", "evaluation_share")
            if value is None and field.name == "checkpoint_minutes":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < 0 or (value == 0 and not may_be_zero):
                allowed = "0 or more" if may_be_zero else "above 0"
                raise InputError(f"{field.name} {value!r}: must be a number, {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Shares of a run's time for training and for everything else, which add up to 1."""

    training: float
    """Share of steps that count."""
    checkpoints: float
    """Share of writing checkpoints."""
    evaluation: float
    """Share of evaluation."""
    failures: float
    """Share of restarts, and of steps repeated since the last checkpoint."""
    failures_per_day: float
    """Expected failures of the job per day."""
    checkpoint_seconds: float
    """Seconds to write one checkpoint."""
    interval_seconds: float
    """Seconds of training between two checkpoints."""


def goodput(availability: Availability, devices: int, parameters: float) -> Goodput:
    """Return the goodput of a job on `devices` devices that trains `parameters` parameters.

    Per second of training that counts a run spends `C / T` on checkpoints and `e` on evaluation; failures come every
    `M = MTBF / devices`, and each costs the restart, reading the checkpoint, and on average half of the interval `T`
    with its checkpoint and evaluation. Raises UnsupportedError where a job fails faster than it recovers.
    """
    mean = availability.device_mtbf_hours * SECONDS_PER_HOUR / devices
    write = parameters * BYTES_PER_PARAMETER / (availability.checkpoint_bandwidth_per_device * devices)
    every = availability.checkpoint_minutes
    interval = math.sqrt(2.0 * write * mean) if every is None else 60.0 * every
    stretched = 1.0 + write / interval + availability.evaluation_share
    failures = (60.0 * availability.restart_minutes + write + interval * stretched / 2.0) / mean
    if failures >= 1.0:
        raise UnsupportedError(
            f"{devices} devices fail every {mean / 60.0:.3g} minutes and need {failures * mean / 60.0:.3g} to recover: "
            "such a run makes no progress (--device-mtbf-hours, --restart-minutes, --checkpoint-minutes)"
        )
    training = (1.0 - failures) / stretched
    return Goodput(
        training=training,
        checkpoints=training * write / interval,
        evaluation=training * availability.evaluation_share,
        failures=failures,
        failures_per_day=24.0 * SECONDS_PER_HOUR / mean,
        checkpoint_seconds=write,
        interval_seconds=interval,
    )
