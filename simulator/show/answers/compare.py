"""Two questions side by side: what differs in bytes and seconds, by part, and which input makes it differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from simulator.cost.pricing.estimate import Estimate
from simulator.errors import SimulateError
from simulator.question.frameworks.profile import switches
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.recipes.check.case import Case
from simulator.recipes.check.judge import estimate_of
from simulator.search.build import estimate_layout

_FOLLOWS = ("data_parallel", "stage_layers")
"""Fields of a layout that follow from the others."""
_INPUTS = ("model", "hardware", "devices", "seq_length", "global_batch_size", "precision", "lora_rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input that differs."""

    name: str
    first: str
    second: str
    memory_bytes: float | None
    """What the fullest device needs more with the second's value of this input alone; None if it cannot stand alone."""
    step_seconds: float | None
    """The same of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the memory or of the step in both."""

    name: str
    first: float
    second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two estimates and their differences."""

    names: tuple[str, str]
    first: Estimate
    second: Estimate
    inputs: tuple[Input, ...]
    memory: tuple[Part, ...]
    """Parts of the fullest device in bytes; they add up to its need."""
    step: tuple[Part, ...]
    """Parts of the step in seconds; they add up to it."""


def compare(first: Case, second: Case, names: tuple[str, str]) -> Comparison:
    """Compare two cases. The effect of an input is that of the first case with this input of the second alone."""
    one, other = estimate_of(first), estimate_of(second)
    return Comparison(
        names=names,
        first=one,
        second=other,
        inputs=tuple(_inputs(first, second, one)),
        memory=_parts(one.memory.parts_bytes, other.memory.parts_bytes),
        step=_parts(one.throughput.parts_seconds, other.throughput.parts_seconds),
    )


def _parts(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[Part, ...]:
    names = dict.fromkeys((*first, *second))
    parts = (Part(name=name, first=first.get(name, 0.0), second=second.get(name, 0.0)) for name in names)
    return tuple(part for part in parts if part.first or part.second)


def _inputs(first: Case, second: Case, base: Estimate) -> Iterator[Input]:
    a, b = first.scenario, second.scenario
    for name in _INPUTS:
        shown = _shown(a, name), _shown(b, name)
        if shown[0] != shown[1]:
            changes: dict[str, Any] = {name: getattr(b, name)}
            if name == "hardware":
                changes |= {"groups": b.groups, "coefficients": b.coefficients}
            yield _alone(name, shown, base, a, first.layout, changes=changes)
    if a.framework.name != b.framework.name:
        shown = a.framework.name, b.framework.name
        yield _alone("framework", shown, base, a, first.layout, changes={"framework": b.framework})
    else:
        for switch in switches():
            values = getattr(a.framework, switch.name), getattr(b.framework, switch.name)
            if values[0] != values[1]:
                profile = replace(a.framework, **{switch.name: values[1]})
                shown = str(values[0]), str(values[1])
                yield _alone(f"option {switch.name}", shown, base, a, first.layout, changes={"framework": profile})
    for field in fields(Layout):
        values = getattr(first.layout, field.name), getattr(second.layout, field.name)
        if values[0] != values[1] and field.name not in _FOLLOWS:
            shown = str(values[0]), str(values[1])
            yield _alone(field.name, shown, base, a, replace(first.layout, **{field.name: values[1]}))


def _shown(scenario: Scenario, name: str) -> str:
    if name == "hardware":
        return scenario.hardware_name
    return str(scenario.model.name if name == "model" else getattr(scenario, name))


def _alone(  # noqa: PLR0913, PLR0917  an input, and the question it is put into
    name: str,
    shown: tuple[str, str],
    base: Estimate,
    scenario: Scenario,
    layout: Layout,
    changes: Mapping[str, Any] | None = None,
) -> Input:
    """An input with its own effect, where the first question can have it alone."""
    priced = _priced(scenario, layout, changes or {})
    return Input(
        name=name,
        first=shown[0],
        second=shown[1],
        memory_bytes=None if priced is None else priced.memory.device_bytes - base.memory.device_bytes,
        step_seconds=None if priced is None else priced.throughput.step_seconds - base.throughput.step_seconds,
    )


def _priced(scenario: Scenario, layout: Layout, changes: Mapping[str, Any]) -> Estimate | None:
    """The changed question, its data parallelism and cut following; None where the rules forbid it."""
    try:
        changed = replace(scenario, **changes)
        model_parallel = layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel
        if changed.devices % model_parallel:
            return None
        cut, chunks = layout.stage_layers, layout.chunk_layers
        if len(cut) != layout.pipeline_parallel or sum(cut) != changed.model.num_hidden_layers:
            cut, chunks = default_cut(changed.model.num_hidden_layers, layout.pipeline_parallel), ()
        data = changed.devices // model_parallel
        moved = replace(layout, data_parallel=data, stage_layers=cut, chunk_layers=chunks)
        priced = estimate_layout(changed, moved)
    except SimulateError:
        return None
    return None if priced.violations else priced
