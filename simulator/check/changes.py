"""The smallest changes after which a recipe fits, each priced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from simulator.calibration.apply import with_calibration
from simulator.check.case import Case
from simulator.check.verdict import Change, Gates
from simulator.errors import SimulateError
from simulator.pricing.build import estimate_layout
from simulator.pricing.estimate import Estimate
from simulator.rules.frameworks import Launch, Mark, findings
from simulator.scenario.layout import Layout, Offload, default_cut
from simulator.scenario.scenario import Scenario

MOST_SHOWN, MOST_WIDER = 5, 2
"""Sets of changes shown, on the same devices and on more."""
FULL_RECOMPUTE = "--recompute full"
_LARGEST_STEP = 4
"""Sizes up to this many times the recipe's are tried; nodes up to the fourth doubling."""


@dataclass(frozen=True, slots=True)
class _Try:
    """One candidate: what was changed, and the question with it."""

    options: tuple[str, ...]
    scenario: Scenario
    layout: Layout
    axes: frozenset[str]


_Found = list[tuple[_Try, Change]]


def changes_for(case: Case, base: Estimate, marks: frozenset[Mark], gates: Gates) -> tuple[Change, ...]:
    """The smallest sets of changes that make the recipe fit and pass: on the same devices, then on more nodes.

    Sets of one change, where there are none of two, where there are none of three with full recompute among them; the
    fastest of each kind.
    """
    start = _Try((), case.scenario, case.layout, frozenset())

    def fitting(candidates: Iterable[_Try]) -> _Found:
        return _fitting(case, base, marks, gates, _distinct(candidates))

    singles = list(_single(start))
    found = fitting(singles) or fitting(_further(singles, 2))
    if not found:
        recomputed = [x for x in singles if x.options == (FULL_RECOMPUTE,)]
        found = fitting(_further(_further(recomputed, 2), 3))
    wider = [] if case.scenario.groups else list(_nodes(case, start))
    more = fitting(wider) or fitting(_further(wider, 2))
    if not more:
        more = fitting(_further((x for x in _further(wider, 2) if FULL_RECOMPUTE in x.options), 3))
    fewest = min((candidate.scenario.devices for candidate, _ in more), default=0)
    smallest = [pair for pair in more if pair[0].scenario.devices == fewest]
    return (*_best(found, MOST_SHOWN), *_best(smallest, MOST_WIDER))


def _further(candidates: Iterable[_Try], changes: int) -> Iterator[_Try]:
    """Every candidate with one more change."""
    for first in candidates:
        yield from (second for second in _single(first) if len(second.options) == changes)


def _best(found: _Found, limit: int) -> Iterator[Change]:
    """The fastest of each kind of change, fastest first."""
    seen: set[frozenset[str]] = set()
    for candidate, change in sorted(found, key=lambda pair: (-pair[1].speed_ratio, pair[1].options)):
        if candidate.axes not in seen and len(seen) < limit:
            seen.add(candidate.axes)
            yield change


def _distinct(candidates: Iterable[_Try]) -> list[_Try]:
    """Each set of changes once, however it was reached."""
    return list({(x.layout, x.scenario.devices): x for x in candidates}.values())


def _fitting(case: Case, base: Estimate, marks: frozenset[Mark], gates: Gates, candidates: Iterable[_Try]) -> _Found:
    found: _Found = []
    reference = base.throughput.tokens_per_second_per_device
    for candidate in candidates:
        try:
            estimate = estimate_layout(candidate.scenario, candidate.layout)
        except SimulateError:
            continue
        if estimate.verdict != "fits" or not estimate.memory.fits:
            continue
        launch = Launch(scenario=candidate.scenario, layout=candidate.layout, recipe=case.recipe, marks=marks)
        if findings(launch, estimate.violations):
            continue
        estimate = with_calibration(candidate.scenario, estimate, case.used)
        if gates.broken(estimate):
            continue
        ratio = estimate.throughput.tokens_per_second_per_device / reference
        found.append((candidate, Change(options=candidate.options, estimate=estimate, speed_ratio=ratio)))
    return found


def _single(start: _Try) -> Iterator[_Try]:
    """The candidates one change away, on the same devices."""
    yield from _recompute(start)
    yield from _offload(start)
    yield from _micro_batch(start)
    yield from _sizes(start)
    yield from _experts(start)
    yield from _zero(start)
    yield from _chunks(start)


def _with(
    start: _Try, axis: str | tuple[str, ...], option: str, scenario: Scenario | None = None, **fields: Any
) -> Iterator[_Try]:
    """One more change, where it is not of a kind that was made already."""
    axes = {axis} if isinstance(axis, str) else set(axis)
    if axes & start.axes:
        return
    try:
        layout = replace(start.layout, **fields)
    except SimulateError:
        return
    yield _Try((*start.options, option), scenario or start.scenario, layout, start.axes | axes)


def _recompute(start: _Try) -> Iterator[_Try]:
    """Full recompute of every layer, or of the fewest layers of each chunk that suffice (the fastest one wins)."""
    layout = start.layout
    if layout.recompute == "full" and layout.recompute_method == "uniform":
        return
    plain: dict[str, Any] = {"recompute": "full", "recompute_layer_list": ()}
    yield from _with(start, "recompute", FULL_RECOMPUTE, **plain, recompute_method="uniform", recompute_layers=1)
    if start.scenario.framework.name != "megatron":
        return
    per_chunk = max(max(layout.stage_layers) // layout.virtual_stages, 1)
    for layers in sorted({max(per_chunk * share // 4, 1) for share in (1, 2, 3)} - {per_chunk}):
        option = f"--recompute full --recompute-method block --recompute-layers {layers}"
        yield from _with(start, "recompute", option, **plain, recompute_method="block", recompute_layers=layers)


def _offload(start: _Try) -> Iterator[_Try]:
    if start.layout.offload == "activations":
        yield from _with(start, "offload", "--offload none", offload="none")
    for kind in _OFFLOADS[start.scenario.framework.name]:
        if start.layout.offload != kind and not (kind == "optimizer" and start.layout.offload != "none"):
            yield from _with(start, "offload", f"--offload {kind}", offload=kind)


_OFFLOADS: dict[str, tuple[Offload, ...]] = {
    "megatron": ("optimizer_tensorwise",),
    "paddle": ("optimizer", "optimizer_tensorwise"),
    "torch": (),
}
"""What each framework can move off the device."""


def _micro_batch(start: _Try) -> Iterator[_Try]:
    size = start.layout.micro_batch_size
    for smaller in range(size - 1, 0, -1):
        if size % smaller == 0:
            yield from _with(start, "micro_batch", f"--micro-batch-size {smaller}", micro_batch_size=smaller)


_SIZES = (("tensor_parallel", "--tp"), ("context_parallel", "--cp"), ("pipeline_parallel", "--pp"))


def _sizes(start: _Try) -> Iterator[_Try]:
    """Other tensor, context and pipeline sizes on the same devices."""
    layout = start.layout
    for field, option in _SIZES:
        size = getattr(layout, field)
        for other in _steps(size, layout.data_parallel * size):
            yield from _resized(start, field, option, other, start.scenario)


def _steps(size: int, limit: int) -> list[int]:
    """Sizes up to a few doublings above, and the divisors below."""
    above = [size * 2**n for n in range(1, _LARGEST_STEP) if size * 2**n <= limit]
    below = [n for n in range(1, size) if size % n == 0]
    return above + below


def _resized(start: _Try, field: str, option: str, size: int, scenario: Scenario) -> Iterator[_Try]:
    layout = start.layout
    sizes = {name: getattr(layout, name) for name, _ in _SIZES} | {field: size}
    replica = sizes["tensor_parallel"] * sizes["context_parallel"] * sizes["pipeline_parallel"]
    if scenario.devices % replica or sizes["pipeline_parallel"] > scenario.model.num_hidden_layers:
        return
    fields: dict[str, Any] = {field: size, "data_parallel": scenario.devices // replica}
    if field == "tensor_parallel":
        fields["sequence_parallel"] = size > 1
        if layout.expert_tensor_parallel == layout.tensor_parallel > 1:
            fields["expert_tensor_parallel"] = size
        elif layout.expert_parallel == layout.tensor_parallel > 1:
            fields["expert_parallel"] = size
        if size > min(hardware.devices_per_node for hardware in scenario.kinds_of_device):
            return
    if field == "pipeline_parallel":
        fields["stage_layers"] = default_cut(scenario.model.num_hidden_layers, size)
        fields["virtual_stages"] = 1 if size == 1 else layout.virtual_stages
        cut = fields["stage_layers"]
        if layout.virtual_stages > 1 and size > 1:
            per_chunk = max(layout.stage_layers) // layout.virtual_stages
            even = len(set(cut)) == 1 and cut[0] % max(per_chunk, 1) == 0
            fields["virtual_stages"] = cut[0] // max(per_chunk, 1) if even else 1
    yield from _with(start, field, f"{option} {size}", scenario, **fields)


def _experts(start: _Try) -> Iterator[_Try]:
    """Experts spread over more ranks of a stage."""
    layout, model = start.layout, start.scenario.model
    ranks = layout.tensor_parallel * layout.context_parallel * layout.data_parallel
    for size in range(layout.expert_parallel + 1, model.num_experts + 1):
        if model.num_experts % size == 0 and ranks % (size * layout.expert_tensor_parallel) == 0:
            yield from _with(start, "experts", f"--ep {size}", expert_parallel=size)


def _zero(start: _Try) -> Iterator[_Try]:
    for stage in (1, 2, 3):
        if stage != start.layout.zero_stage:
            yield from _with(start, "zero", f"--zero-stage {stage}", zero_stage=stage)


def _chunks(start: _Try) -> Iterator[_Try]:
    layout = start.layout
    if layout.virtual_stages > 1:
        yield from _with(start, "chunks", "--vpp 1", virtual_stages=1)
        per_rank = layout.stage_layers[0]
        for count in range(2, per_rank):
            if per_rank % count == 0 and count != layout.virtual_stages:
                yield from _with(start, "chunks", f"--vpp {count}", virtual_stages=count)


def _nodes(case: Case, start: _Try) -> Iterator[_Try]:
    """More nodes: as more replicas, or as a deeper pipeline."""
    scenario, layout = start.scenario, start.layout
    if "nodes" in start.axes:
        return
    per_node = case.recipe.devices_per_node or scenario.hardware.devices_per_node
    nodes = max(scenario.devices // per_node, 1)
    for factor in (2, 4, 8, 16):
        wider = replace(scenario, devices=scenario.devices * factor)
        option = f"--nodes {nodes * factor}"
        yield from _with(start, "nodes", option, wider, data_parallel=layout.data_parallel * factor)
        deeper = layout.pipeline_parallel * factor
        if deeper <= scenario.model.num_hidden_layers:
            cut = default_cut(scenario.model.num_hidden_layers, deeper)
            option = f"{option} --pp {deeper}"
            fields = {"pipeline_parallel": deeper, "stage_layers": cut, "virtual_stages": 1}
            yield from _with(start, ("nodes", "pipeline_parallel"), option, wider, **fields)
