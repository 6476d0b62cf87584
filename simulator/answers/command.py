"""Command line that prices one layout of an answer, as text to copy. Runs nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from simulator.cost.pricing.estimate import Estimate
from simulator.question.scenario.inputs import LISTS
from simulator.question.scenario.layout import FIELDS, Layout

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


def _question(estimate: Estimate) -> list[str]:
    """Return the options that all layouts of an answer share."""
    question = estimate.question
    hardware = str(question.stated("hardware") or estimate.hardware)
    inputs = {
        "model": question.stated("model") or estimate.model,
        "hardware": hardware,
        "devices": estimate.devices if ":" not in hardware else None,
        "seq_length": estimate.seq_length,
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
