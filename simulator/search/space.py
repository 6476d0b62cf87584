"""The layouts a search looks at: axes, and blocks generated from them a chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.cost.timing.flops import forward_flops_per_token
from simulator.errors import InputError
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import (
    OFFLOADS,
    RECOMPUTE_METHODS,
    RECOMPUTE_MODES,
    SEARCHED_RECOMPUTE_MODES,
    check_choice,
    check_count,
    default_cut,
)
from simulator.question.scenario.scenario import Scenario

CHUNK = 8192
"""Layouts priced at once: their arrays stay in the processor's cache."""
MICRO_BATCH_SIZES = (1, 2, 4, 8)
MOST_CANDIDATES = 100_000_000
"""A search beyond this would take minutes: the ranges are narrowed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Allowed values per axis; None is the default choice described at each field."""

    tensor_parallel: tuple[int, ...] | None = None
    """Default: every divisor of the devices up to 64."""
    pipeline_parallel: tuple[int, ...] | None = None
    """Default: every divisor of the devices up to the layers."""
    context_parallel: tuple[int, ...] | None = None
    """Default: every divisor of the devices up to 64."""
    expert_parallel: tuple[int, ...] | None = None
    """Default: every divisor of the experts up to the devices."""
    expert_tensor_parallel: tuple[int, ...] | None = None
    """Default: 1 and the tensor-parallel size."""
    data_parallel: tuple[int, ...] | None = None
    """Default: what is left of the devices."""
    virtual_stages: tuple[int, ...] | None = None
    """Default: every number that divides the layers of a rank."""
    layers_per_virtual_stage: tuple[int, ...] | None = None
    """The same, given as layers per chunk."""
    micro_batch_size: tuple[int, ...] | None = None
    """Default: 1, 2, 4, 8."""
    zero_stage: tuple[int, ...] | None = None
    """Default: what the framework uses, 1 or (torch) 3."""
    sequence_parallel: tuple[bool, ...] | None = None
    """Default: on where tensor parallel is above 1."""
    recompute: tuple[str, ...] | None = None
    """Default: none, selective, full."""
    recompute_method: tuple[str, ...] | None = None
    """Default: uniform."""
    recompute_layers: tuple[int, ...] | None = None
    """Default: 1 (uniform: every layer on its own)."""
    recompute_layer_list: tuple[int, ...] = ()
    """Explicit layers to recompute; replaces the two above."""
    offload: tuple[str, ...] | None = None
    """Default: none."""
    stage_layers: tuple[int, ...] = ()
    """Explicit layers per pipeline rank; fixes the pipeline size."""
    tensor_parallel_across_nodes: bool = False
    """Allow tensor-parallel groups that leave a node."""

    def __post_init__(self) -> None:
        """Refuse values that no layout has. Raises InputError naming the axis."""
        for name in _COUNTED_AXES:
            for value in getattr(self, name) or ():
                check_count(name, value)
        for name, choices in _CHOSEN_AXES.items():
            for value in getattr(self, name) or ():
                check_choice(name, value, choices)
        if self.recompute_layer_list and self.recompute is not None and "full" not in self.recompute:
            raise InputError("recompute_layer_list: needs recompute full")


_COUNTED_AXES = (
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "data_parallel",
    "virtual_stages",
    "layers_per_virtual_stage",
    "micro_batch_size",
    "recompute_layers",
    "stage_layers",
)
_CHOSEN_AXES: dict[str, tuple[object, ...]] = {
    "zero_stage": (0, 1, 2, 3),
    "recompute": RECOMPUTE_MODES,
    "recompute_method": RECOMPUTE_METHODS,
    "offload": OFFLOADS,
}


def divisors(number: int, limit: int) -> tuple[int, ...]:
    """Divisors of `number` up to `limit`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    both = sorted({*small, *(number // d for d in small)})
    return tuple(d for d in both if d <= limit)


@dataclass(frozen=True, slots=True)
class Shape:
    """A pipeline shape with the tensor, context and data sizes that fill the devices with it."""

    pipeline_parallel: int
    virtual_stages: int
    stage_layers: tuple[int, ...]
    splits: tuple[tuple[int, int, int], ...]
    """(tensor, context, data) parallel sizes."""


def shapes(scenario: Scenario, space: Space) -> list[Shape]:
    """Every pipeline shape of the space."""
    layers, devices = scenario.model.num_hidden_layers, scenario.devices
    if space.stage_layers:
        pipelines: tuple[int, ...] = (len(space.stage_layers),)
    else:
        pipelines = space.pipeline_parallel or divisors(devices, min(devices, layers))
    result: list[Shape] = []
    for pipeline in pipelines:
        splits = _splits(scenario, space, pipeline)
        if not splits:
            continue
        for cut in _cuts(scenario, space, pipeline):
            result += [Shape(pipeline, v, cut, splits) for v in _virtual_stages(space, pipeline, cut)]
    return result


def _cuts(scenario: Scenario, space: Space, pipeline: int) -> list[tuple[int, ...]]:
    """Cuts of the layers to try: the given one, else the default, and on mixed devices one balanced by their speed."""
    layers = scenario.model.num_hidden_layers
    if space.stage_layers:
        return [space.stage_layers]
    if pipeline > layers:
        return []
    even = default_cut(layers, pipeline)
    if len(scenario.groups) < 2:
        return [even]
    return list(dict.fromkeys((balanced_cut(scenario, pipeline), even)))


def balanced_cut(scenario: Scenario, pipeline: int) -> tuple[int, ...]:
    """A cut whose ranks take about equal time on devices of different peaks.

    Every rank gets one layer; each further layer goes where the work over the peak is smallest after it. The output
    layer counts as the layers whose matrix products it equals.
    """
    model = scenario.model
    width = scenario.devices // pipeline
    kinds = scenario.kinds_of_device
    peaks = [kinds[scenario.group_of(rank * width)].peak(scenario.precision) for rank in range(pipeline)]
    head = 2.0 * model.hidden_size * model.vocab_size
    layer = (forward_flops_per_token(scenario) - head) / model.num_hidden_layers
    load = [layer] * pipeline
    load[-1] += head
    cut = [1] * pipeline
    for _ in range(model.num_hidden_layers - pipeline):
        rank = min(range(pipeline), key=lambda i: (load[i] + layer) / peaks[i])
        load[rank] += layer
        cut[rank] += 1
    return tuple(cut)


def _splits(scenario: Scenario, space: Space, pipeline: int) -> tuple[tuple[int, int, int], ...]:
    devices = scenario.devices
    tensors = [t for t in space.tensor_parallel or divisors(devices, 64) if devices % (t * pipeline) == 0]
    contexts = [c for c in space.context_parallel or divisors(devices, 64) if devices % (c * pipeline) == 0]
    result: list[tuple[int, int, int]] = []
    for tensor in tensors:
        for context in contexts:
            used = tensor * context * pipeline
            if devices % used == 0 and (space.data_parallel is None or devices // used in space.data_parallel):
                result.append((tensor, context, devices // used))
    return tuple(result)


def _virtual_stages(space: Space, pipeline: int, cut: tuple[int, ...]) -> tuple[int, ...]:
    per_rank = cut[0]
    if space.layers_per_virtual_stage is not None:
        return tuple(
            per_rank // layers for layers in space.layers_per_virtual_stage if layers >= 1 and per_rank % layers == 0
        )
    if space.virtual_stages is not None:
        return tuple(v for v in space.virtual_stages if v <= per_rank)
    if pipeline == 1 or len(set(cut)) > 1:
        return (1,)
    return divisors(per_rank, per_rank)


@dataclass(frozen=True, slots=True)
class Axes:
    """The choices beside the shape, as arrays; a layout is one entry of each."""

    experts: Array
    """(expert parallel, expert tensor parallel) pairs, shape (k, 2); 0 as the second means the tensor-parallel size."""
    micro_batch_size: Array
    recompute: Array
    """(mode, method, layers), shape (k, 3)."""
    zero_stage: Array
    sequence_parallel: Array
    """1, 0, or -1: on where tensor parallel is above 1."""
    offload: Array

    @property
    def sizes(self) -> tuple[int, ...]:
        """Choices per axis."""
        return (
            len(self.experts),
            len(self.micro_batch_size),
            len(self.recompute),
            len(self.zero_stage),
            len(self.sequence_parallel),
            len(self.offload),
        )


def axes(scenario: Scenario, space: Space) -> Axes:
    """The axes of the space for a scenario."""

    def array(values: object) -> Array:
        return np.asarray(values, dtype=np.float64)

    default_zero = scenario.framework.limits.default_zero_stage
    sequence = (-1,) if space.sequence_parallel is None else tuple(int(x) for x in space.sequence_parallel)
    return Axes(
        experts=array(_expert_pairs(scenario, space)).reshape(-1, 2),
        micro_batch_size=array(space.micro_batch_size or MICRO_BATCH_SIZES),
        recompute=array(_recompute_choices(space)).reshape(-1, 3),
        zero_stage=array(space.zero_stage if space.zero_stage is not None else (default_zero,)),
        sequence_parallel=array(sequence),
        offload=array([OFFLOADS.index(x) for x in space.offload or ("none",)]),
    )


def _expert_pairs(scenario: Scenario, space: Space) -> list[tuple[int, int]]:
    if scenario.model.is_moe:
        parallel = space.expert_parallel or divisors(scenario.model.num_experts, scenario.devices)
        tensor: tuple[int, ...] = space.expert_tensor_parallel or (1, 0)
    else:
        parallel, tensor = space.expert_parallel or (1,), space.expert_tensor_parallel or (1,)
    return [(ep, etp) for ep in parallel for etp in tensor]


def _recompute_choices(space: Space) -> list[tuple[int, int, int]]:
    default = ("full",) if space.recompute_layer_list else SEARCHED_RECOMPUTE_MODES
    modes = space.recompute or default
    uniform = RECOMPUTE_METHODS.index("uniform")
    result: list[tuple[int, int, int]] = []
    for mode in modes:
        code = RECOMPUTE_MODES.index(mode)
        if mode != "full":
            result.append((code, uniform, 1))
        elif space.recompute_layer_list:
            result.append((code, RECOMPUTE_METHODS.index("list"), 1))
        else:
            methods = [RECOMPUTE_METHODS.index(x) for x in space.recompute_method or ("uniform",)]
            result += [(code, method, n) for method in methods for n in space.recompute_layers or (1,)]
    return result


def blocks(scenario: Scenario, space: Space, *, chunk: int = CHUNK) -> Iterator[LayoutBlock]:
    """Every candidate of the space, at most `chunk` at a time, in a fixed order."""
    choices = axes(scenario, space)
    for shape in shapes(scenario, space):
        splits = np.asarray(shape.splits, dtype=np.float64).reshape(-1, 3)
        sizes = (len(splits), *choices.sizes)
        count = math.prod(sizes)
        for start in range(0, count, chunk):
            index = np.unravel_index(np.arange(start, min(start + chunk, count)), sizes)
            yield _block(space, shape, splits[index[0]], choices, index[1:])


def candidates(scenario: Scenario, space: Space) -> int:
    """How many layouts `blocks` looks at, for a progress bar; repeated expert splits counted."""
    per_split = math.prod(axes(scenario, space).sizes)
    return sum(len(shape.splits) for shape in shapes(scenario, space)) * per_split


def _block(
    space: Space,
    shape: Shape,
    splits: Array,
    choices: Axes,
    index: tuple[np.ndarray, ...],
) -> LayoutBlock:
    tensor = splits[:, 0]
    experts = choices.experts[index[0]]
    recompute = choices.recompute[index[2]]
    sequence = choices.sequence_parallel[index[4]]
    block = LayoutBlock(
        pipeline_parallel=shape.pipeline_parallel,
        virtual_stages=shape.virtual_stages,
        stage_layers=shape.stage_layers,
        recompute_layer_list=space.recompute_layer_list,
        tensor_parallel=tensor,
        context_parallel=splits[:, 1],
        expert_parallel=experts[:, 0],
        expert_tensor_parallel=np.where(experts[:, 1] == 0, tensor, experts[:, 1]),
        data_parallel=splits[:, 2],
        micro_batch_size=choices.micro_batch_size[index[1]],
        sequence_parallel=np.where(sequence < 0, (tensor > 1) * 1.0, sequence),
        zero_stage=choices.zero_stage[index[3]],
        recompute=recompute[:, 0],
        recompute_method=recompute[:, 1],
        recompute_layers=recompute[:, 2],
        offload=choices.offload[index[5]],
    )
    # Without tensor parallelism "the tensor-parallel size" and 1 are the same expert split: keep one of them.
    repeated = (experts[:, 1] == 0) & (tensor == 1)
    return block.take(~repeated) if repeated.any() else block
