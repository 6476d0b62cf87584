"""Comparison of two estimates: the difference in bytes and seconds, by part and by input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from simulator.answers.cases import Case
from simulator.answers.ranking import estimate_of
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import SimulateError
from simulator.files import read_words
from simulator.question.frameworks.profile import switches
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import to_gib
from simulator.question.vocabulary import NARROW
from simulator.records import Record, replace
from simulator.search.build import estimate_layout
from simulator.tabular import Tabular

_FOLLOWS = ("data_parallel", "stage_layers")  # fields of a layout that follow from the others
_INPUTS = ("model", "hardware", "devices", "seq_length", "lengths", "global_batch_size", "precision", "lora_rank")


class InputDifference(Record, kw_only=True):
    """Input that differs."""

    name: str
    """Name of the input."""
    first: str
    """Value in A."""
    second: str
    """Value in B."""
    memory_bytes: float | None
    """Change of A's fullest device in bytes with B's value of this input alone; None if no such layout is allowed."""
    step_seconds: float | None
    """The same change of the step, in seconds."""


class PartDifference(Record, kw_only=True):
    """A part of the memory or of the step, in A and B."""

    name: str
    """Name of the part."""
    first: float
    """Size in A."""
    second: float
    """Size in B."""

    @property
    def difference(self) -> float:
        """B less A."""
        return self.second - self.first


class Comparison(Tabular, Record, kw_only=True):
    """Two estimates and their differences."""

    names: tuple[str, str]
    """Names of A and B."""
    first: Estimate
    """Estimate of A."""
    second: Estimate
    """Estimate of B."""
    inputs: tuple[InputDifference, ...]
    """Inputs that differ."""
    memory: tuple[PartDifference, ...]
    """Parts of the fullest device in bytes; they add up to its need."""
    step: tuple[PartDifference, ...]
    """Parts of the step in seconds; they add up to it."""
    causes: tuple[str, ...] = ()
    """Sentences on parts of B's fullest device that grew, the largest first: which input alone does it, and how."""
    step_half_width: float | None = None
    """Half of the 90 % range of log(B's step / A's step); None without a calibration."""

    @property
    def differ(self) -> bool | None:
        """Whether the 90 % range of the ratio of steps excludes 1; None without a calibration."""
        if self.step_half_width is None:
            return None
        apart = math.log(self.second.throughput.step_seconds / self.first.throughput.step_seconds)
        return abs(apart) > self.step_half_width

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each part: of the fullest device in bytes, then of the step in seconds."""
        return [
            {"of": whole, "part": p.name, "first": p.first, "second": p.second, "difference": p.difference}
            for whole, parts in (("memory_bytes", self.memory), ("step_seconds", self.step))
            for p in parts
        ]

    def __repr__(self) -> str:
        """Return one line: the differing inputs, with memory and time."""
        memory = self.second.memory.device_bytes / self.first.memory.device_bytes - 1
        step = self.second.throughput.step_seconds / self.first.throughput.step_seconds - 1
        names = ", ".join(differing.name for differing in self.inputs) or "nothing"
        return f"<Comparison {self.first.model}: {names} differs, memory {memory:+.1%}, step {step:+.1%}>"


_Side = tuple[Scenario, Layout]  # A scenario and its layout


def compare(first: Case, second: Case, names: tuple[str, str] = ("first", "second")) -> Comparison:
    """Compare two cases in bytes and seconds; an input's effect is the first case's change with the second's value."""
    sides = (first.scenario, first.layout), (second.scenario, second.layout)
    mine, theirs = priced = estimate_of(first), estimate_of(second)
    alone = {
        (name, str(before), str(after)): _priced(first.scenario, layout, changes)
        for name, before, after, changes, layout in _differences(*sides)
    }
    memory = _parts(mine.memory.parts_bytes, theirs.memory.parts_bytes)
    return Comparison(
        names=names,
        first=mine,
        second=theirs,
        inputs=tuple(_inputs(alone, mine)),
        memory=memory,
        causes=tuple(_causes(sides, priced, memory, alone)),
        step=_parts(mine.throughput.parts_seconds, theirs.throughput.parts_seconds),
        step_half_width=_step_half_width(sides, priced),
    )


def _step_half_width(sides: tuple[_Side, _Side], priced: tuple[Estimate, Estimate]) -> float | None:
    """Return half of the range of log(B / A): of one question without shared errors, else both ranges combined."""
    intervals = [each.throughput.interval_seconds for each in priced]
    known, (first, second) = sides[0][0].calibration, intervals
    if known is None or first is None or second is None:
        return None
    if sides[0] == sides[1]:
        return 0.0
    if all(_shown(sides[0][0], name) == _shown(sides[1][0], name) for name in _INPUTS):
        return float(known.difference_half_widths(sides)[1])
    return first.half_width_of_ratio(second)


def _parts(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[PartDifference, ...]:
    names = dict.fromkeys((*first, *second))
    parts = (PartDifference(name=name, first=first.get(name, 0.0), second=second.get(name, 0.0)) for name in names)
    return tuple(part for part in parts if part.first or part.second)


_Alone = Mapping[tuple[str, str, str], Estimate | None]
"""A with B's value of one input, by the input's name, A's and B's value; None where a rule forbids it."""


def _inputs(alone: _Alone, base: Estimate) -> Iterator[InputDifference]:
    """Yield every input that differs, with its effect on the first question."""
    for (name, mine, theirs), priced in alone.items():
        yield InputDifference(
            name=name,
            first=mine,
            second=theirs,
            memory_bytes=None if priced is None else priced.memory.device_bytes - base.memory.device_bytes,
            step_seconds=None if priced is None else priced.throughput.step_seconds - base.throughput.step_seconds,
        )


_WORTH_TELLING = 0.01  # least growth of a part, over the whole need of A, that is a cause


def _causes(
    sides: tuple[_Side, _Side], priced: tuple[Estimate, Estimate], memory: Iterable[PartDifference], alone: _Alone
) -> Iterator[str]:
    """Yield why B does not need less: its moment, then the parts that grew, each with the inputs that do it alone."""
    first, second = (each.memory for each in priced)
    smallest = _WORTH_TELLING * first.device_bytes
    if not alone or {"model", "hardware"} & {name for name, _, _ in alone}:  # other weights, other capacities
        return
    if second.device_bytes > first.device_bytes - smallest:
        peaks = [f"{each.moment.replace('_', ' ')} on rank {each.binding_stage}" for each in (first, second)]
        yield f"B's peak is at {peaks[1]}" + (", as A's" if peaks[0] == peaks[1] else f", A's at {peaks[0]}")
    for part in sorted(memory, key=lambda part: -part.difference):
        if part.difference < smallest:
            return
        growths = {
            (name, value): other.memory.parts_bytes.get(part.name, 0.0) - part.first
            for (name, _, value), other in alone.items()
            if other is not None
        }
        inputs = [name for name, growth in growths.items() if growth >= smallest]
        whose = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in inputs) or "inputs together"
        how = (_mechanism(name, part.name, sides) for name, _ in inputs)
        inside = ""
        if part.name == "outside_allocator":
            grown = {key: size - first.outside_parts_bytes[key] for key, size in second.outside_parts_bytes.items()}
            most = max(grown, key=grown.__getitem__)
            inside = f" ({most.replace('_', ' ')} +{to_gib(grown[most]):.2f})"
        text = f"{part.name.replace('_', ' ')} +{to_gib(part.difference):.2f} GiB{inside} by {whose}"
        yield ": ".join([text, *dict.fromkeys(filter(None, how))])


def _mechanism(name: str, part: str, sides: tuple[_Side, _Side]) -> str:
    """Return how B's value of an input makes a part larger; empty where its name says so."""
    (_, mine), (scenario, theirs) = sides
    wider = name == "precision" and scenario.precision not in NARROW
    if wider or (name == "zero_stage" and theirs.zero_stage <= mine.zero_stage):
        return ""
    known = read_words("mechanisms")
    text = known.get(f"{name}.{part}") or known.get(name, "")
    sizes = {"data": theirs.data_parallel, "before": mine.data_parallel, "pipeline": theirs.pipeline_parallel}
    return text.format(**sizes)


def _differences(first: _Side, second: _Side) -> Iterator[tuple[str, Any, Any, Mapping[str, Any], Layout]]:
    """Yield each differing input: name, both values, changes of A's scenario, and A's layout with B's value."""
    (a, layout), (b, other) = first, second
    for name in _INPUTS:
        mine, theirs = _shown(a, name), _shown(b, name)
        if mine != theirs and not (name == "seq_length" and (a.lengths or b.lengths)):
            changes: dict[str, Any] = {name: getattr(b, name)}
            if name == "hardware":
                changes |= {"groups": b.groups, "coefficients": b.coefficients}
            elif name == "lengths":
                changes["seq_length"] = b.seq_length
            yield name, mine, theirs, changes, layout
    if a.framework.name != b.framework.name:
        yield "framework", a.framework.name, b.framework.name, {"framework": b.framework}, layout
    else:
        for switch in switches():
            mine, theirs = getattr(a.framework, switch.name), getattr(b.framework, switch.name)
            if mine != theirs:
                profile = replace(a.framework, **{switch.name: theirs})
                yield f"option {switch.name}", mine, theirs, {"framework": profile}, layout
    for field in fields(Layout):
        mine, theirs = getattr(layout, field.name), getattr(other, field.name)
        if mine != theirs and field.name not in _FOLLOWS:
            yield field.name, mine, theirs, {}, replace(layout, **{field.name: theirs})


def _shown(scenario: Scenario, name: str) -> str:
    if name == "hardware":
        return scenario.hardware_name
    return str(scenario.model.name if name == "model" else getattr(scenario, name))


def _priced(scenario: Scenario, layout: Layout, changes: Mapping[str, Any]) -> Estimate | None:
    """Price a changed question, with data parallelism and stages to match; None where a rule forbids it."""
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
