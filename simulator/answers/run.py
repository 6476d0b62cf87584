"""Command that prices an estimate again, to copy; days and cost of a whole training run at its speed.

`answers.plan` compares runs on several offers; `answers.saved` reads answers that were written as JSON.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.question.frameworks.stacks import DEFAULT
from simulator.question.question import Question
from simulator.question.scenario.inputs import LISTS
from simulator.question.scenario.layout import FIELDS, Layout
from simulator.search.space import Remedy

_BELONGS_TO = {
    "recompute_modules": "selective",
    "recompute_method": "full",
    "recompute_layers": "full",
    "recompute_layer_list": "full",
}
"""The mode of recompute that each field refines."""


def estimate_command(estimate: Estimate, *, has_experts: bool) -> str:
    """Return the command that prices the layout of an estimate; `has_experts` tells whether its model has experts."""
    options = {**estimate.question.options, **estimate.options}
    switches = (word for name, value in options.items() for word in ("--option", f"{name}={value}"))
    return shlex.join([*_question(estimate), *_fields(estimate.layout, has_experts=has_experts), *switches])


def remedy_options(remedy: Remedy, asked: Question, *, has_experts: bool) -> tuple[str, ...]:
    """Return the options to add to a question without a layout: a change, then the layout and stack of its estimate."""
    estimate = remedy.estimate
    options = [remedy.change]
    for word in _fields(estimate.layout, has_experts=has_experts):
        if word.startswith("--"):
            options.append(word)
        else:
            options[-1] += f" {word}"
    options += (f"--option {name}={value}" for name, value in estimate.options.items())
    if estimate.stack != DEFAULT and asked.stated("stack") is None:
        options.append(f"--stack {estimate.stack}")
    return tuple(dict.fromkeys(options))


def _question(estimate: Estimate) -> list[str]:
    """Return the options that all layouts of an answer share."""
    question = estimate.question
    hardware = str(question.stated("hardware") or estimate.hardware)
    inputs = {
        "model": question.stated("model") or estimate.model,
        "hardware": hardware,
        "devices": estimate.devices if ":" not in hardware else None,
        **_lengths(estimate),
        "global_batch_size": estimate.global_batch_size,
        "precision": estimate.precision,
        "framework": estimate.framework,
        "stack": estimate.stack,
        "lora_rank": estimate.lora_rank,
        "num_layers": question.stated("num_layers"),
        "calibration": question.stated("calibration"),
    }
    options = ((f"--{name.replace('_', '-')}", str(value)) for name, value in inputs.items() if value is not None)
    return ["simulate", "estimate", *(word for pair in options for word in pair)]


def _lengths(estimate: Estimate) -> dict[str, object]:
    """Return the length of all sequences, or what the question says of lengths that differ."""
    if estimate.lengths is None:
        return {"seq_length": estimate.seq_length}
    stated = {name: estimate.question.stated(name) for name in ("batching", "cutoff", "survive")}
    return {"lengths": estimate.lengths.source} | stated


def _fields(layout: Layout, *, has_experts: bool) -> Iterator[str]:
    """Yield the options of fields that differ from an estimate's defaults."""
    cut_is_even = len(set(layout.stage_layers)) <= 1 or layout.chunk_layers
    for field in FIELDS:
        value = getattr(layout, field.name)
        plain: Any = field.default
        match field.name:
            case "data_parallel":
                continue
            case "stage_layers" if cut_is_even:
                continue
            case "sequence_parallel":
                plain = layout.tensor_parallel > 1
            case "zero_stage":
                plain = None
            case "expert_tensor_parallel":
                plain = None if has_experts else 1
            case "recompute_method" | "recompute_layers" if layout.recompute_method == "list":
                continue
        if value == plain or _BELONGS_TO.get(field.name, layout.recompute) != layout.recompute:
            continue
        if field.kind == "flag":
            yield field.option if value else field.option.replace("--", "--no-", 1)
        else:
            yield from (field.option, ",".join(map(str, value)) if field.kind in LISTS else str(value))


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
