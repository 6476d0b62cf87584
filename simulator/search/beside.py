"""Answers next to an answer: another precision, another stack, and, where nothing fits, what would and why.

A ranking in bf16 on H100 also names the best layout in fp8; one without a fitting layout names single changes that make
something fit, such as `--offload optimizer` or twice the nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.violation import Violation
from simulator.question.frameworks.stacks import DEFAULT, suggested
from simulator.question.frameworks.stacks import framework as framework_profile
from simulator.question.question import SEARCH
from simulator.question.scenario.inputs import MOST_DEVICES
from simulator.question.scenario.layout import SPLIT, Layout
from simulator.question.vocabulary import NARROW
from simulator.search.build import estimates_of
from simulator.search.fewest import node_counts, on_nodes
from simulator.search.query import Query
from simulator.search.rank import SearchResult, best_of, fastest_of
from simulator.search.result import Remedy, StackBest
from simulator.search.rules import ACROSS_NODES, RULES
from simulator.search.space import Space


def in_fp8(query: Query, near: Collection[Layout]) -> Estimate | None:
    """Return the best layout in fp8, if the question asks for a wider precision and the device has fp8."""
    scenario = query.scenario
    if scenario.precision in NARROW or any("fp8" not in h.peak_flops_per_second for h in scenario.kinds_of_device):
        return None
    narrow = query.question.changed(SEARCH, precision="fp8")
    return _best(replace(query, scenario=replace(scenario, precision="fp8"), question=narrow), near)


def on_other_stacks(query: Query, near: Collection[Layout]) -> Iterator[StackBest]:
    """Yield the best layout under the framework's defaults if a stack was assumed, else under tuned stacks."""
    scenario, profile = query.scenario, query.scenario.framework
    makers = {device.vendor for device in scenario.kinds_of_device}
    families = {device.family for device in scenario.kinds_of_device}
    tuned = (stack.name for stack in suggested(profile.name, makers, families))
    for name in (DEFAULT,) if profile.stack != DEFAULT else tuned:
        other = replace(scenario, framework=framework_profile(profile.name, query.options, name))
        question = query.question.changed(SEARCH, stack=name)
        yield StackBest(name, _best(replace(query, scenario=other, question=question), near))


def _best(query: Query, near: Collection[Layout]) -> Estimate | None:
    """Return the best layout among the splits of `near`, or of all layouts if none of these is likely to fit."""
    best = best_of(replace(query, space=_among(query.space, near)), near) if near else None
    best = best or best_of(query)
    return None if best is None else estimates_of([best])[0]


def _among(space: Space, layouts: Collection[Layout]) -> Space:
    """Return the part of a space whose layouts take each size of their split from one of `layouts`."""
    sizes: dict[str, Any] = {
        size.name: tuple(sorted({getattr(layout, size.name) for layout in layouts})) for size in SPLIT
    }
    return replace(space, **sizes)


def reasons(query: Query, searched: SearchResult) -> Iterator[Violation]:
    """Yield each rule's violation by one layout that it dropped."""
    for rule in (*RULES, ACROSS_NODES):
        if rule.id in searched.examples:
            layout = searched.examples[rule.id]
            yield Violation(rule.id, rule.message(query.scenario, layout), rule.fix(query.scenario, layout))


def remedies(query: Query) -> Iterator[Remedy]:
    """Yield the single changes that make something fit, each with its fastest layout."""
    for change, changed in _changes(query):
        best = fastest_of(changed)
        if best is not None:
            yield Remedy(change, estimates_of([best])[0])


def _changes(query: Query) -> Iterator[tuple[str, Query]]:
    space = query.space
    for axis in dataclasses.fields(space):
        if getattr(space, axis.name) != axis.default:
            free: dict[str, Any] = {axis.name: axis.default}
            yield f"free choice of {axis.name}", replace(query, space=replace(space, **free))
    for offload in ("optimizer", "optimizer_tensorwise"):
        if offload not in (space.offload or ()):
            yield f"--offload {offload}", replace(query, space=replace(space, offload=(offload,)))
    larger = None if query.scenario.groups else _on_enough_nodes(query)
    if larger is not None:
        yield f"--nodes {larger.scenario.nodes}", larger


def _on_enough_nodes(query: Query) -> Query | None:
    """Return the question on the fewest whole nodes, up to 64 times as many, where something fits; None if nowhere."""
    per_node = query.scenario.hardware.devices_per_node
    nodes = query.scenario.devices // per_node
    for doublings in range(1, 7):
        most = max(nodes, 1) * 2**doublings
        if most * per_node > MOST_DEVICES:
            return None
        if fastest_of(on_nodes(query, most)) is not None:
            smaller = (on_nodes(query, count) for count in node_counts(nodes + 1, most - 1))
            return next((fewer for fewer in smaller if fastest_of(fewer) is not None), on_nodes(query, most))
    return None
