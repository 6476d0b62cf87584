"""Space of a search: axes of values, and the blocks of layouts that they span.

`search.rules` drops layouts, `search.rank` prices what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Alike, Pricing, alike
from simulator.cost.stages import cuts_alike
from simulator.cost.timing.products import forward_flops_per_token
from simulator.errors import InputError, check_kind
from simulator.question.arrays import Index
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.complete import default_chunks
from simulator.question.scenario.inputs import GROUPS, InputSetting, check_count
from simulator.question.scenario.layout import (
    BY_NAME,
    COLUMNS,
    SEARCHED_RECOMPUTE_MODES,
    SETTINGS,
    default_cut,
    rank_layers,
)
from simulator.question.scenario.scenario import Scenario
from simulator.question.scenario.typed import Axes
from simulator.question.vocabulary import RecomputeMethod, RecomputeMode, RecomputeModule, ScheduleName

CHUNK = 8192
"""Layouts priced at once, few enough for their arrays to stay in the processor's cache."""
MOST_CANDIDATES = 100_000_000
"""Limit on a search: beyond it a search takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space(Axes):
    """Allowed values per axis; None (or no layers) is the default stated at each field of `Axes`."""

    tensor_parallel_across_nodes: bool = False
    """Whether tensor-parallel groups may leave a node."""

    def __post_init__(self) -> None:
        """Refuse values that no layout has. Raises InputError naming the axis."""
        for setting in SETTINGS:
            values = getattr(self, setting.name) or ()
            check_kind(setting.name, values, (list, tuple, set, range, str), "a list of values")
            for value in values:
                setting.check(value)
        for layers in self.stage_layers:
            check_count("stage_layers", layers)
        if any(layers < 0 for layers in self.chunk_layers):
            raise InputError(f"chunk_layers {list(self.chunk_layers)}: must be whole numbers from 0")
        if self.recompute_layer_list and self.recompute is not None and "full" not in self.recompute:
            raise InputError("recompute_layer_list: needs recompute full")
        if self.recompute_modules and self.recompute is not None and "selective" not in self.recompute:
            raise InputError("recompute_modules: needs recompute selective")


def divisors(number: int, limit: int) -> tuple[int, ...]:
    """Return the divisors of `number` up to `limit`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    both = sorted({*small, *(number // d for d in small)})
    return tuple(d for d in both if d <= limit)


class Shape(NamedTuple):
    """A pipeline shape with the tensor, context and data parallel sizes that fill the devices."""

    pipeline_parallel: int
    virtual_stages: tuple[int, ...]
    """Several where all have chunks of equal layers, so one block can hold them."""
    schedule: ScheduleName
    stage_layers: tuple[int, ...]
    chunk_layers: tuple[int, ...]
    """Layers of every model chunk if unequal, else empty."""
    splits: tuple[tuple[int, int, int], ...]
    """(tensor, context, data) parallel sizes."""


def shapes(scenario: Scenario, space: Space) -> list[Shape]:
    """Return every pipeline shape of the space."""
    layers, devices = scenario.model.num_hidden_layers, scenario.devices
    if space.stage_layers and not space.chunk_layers:
        pipelines: tuple[int, ...] = (len(space.stage_layers),)
    else:
        pipelines = space.pipeline_parallel or divisors(devices, min(devices, layers))
    result: list[Shape] = []
    for pipeline in pipelines:
        splits = _splits(scenario, space, pipeline)
        if not splits:
            continue
        unequal = _unequal_chunks(scenario, space, pipeline)
        for schedule in space.schedule or (BY_NAME["schedule"].default,):
            result += [
                Shape(
                    pipeline,
                    (len(chunks_of_model) // pipeline,),
                    schedule,
                    rank_layers(chunks_of_model, pipeline, schedule),
                    chunks_of_model,
                    splits,
                )
                for chunks_of_model in unequal
            ]
            for cut in () if space.chunk_layers else _cuts(scenario, space, pipeline):
                chunks = _virtual_stages(scenario, space, pipeline, cut)
                several = Shape(pipeline, chunks, schedule, cut, (), splits)
                alike = not space.recompute_layer_list and cuts_alike(scenario, schedule, cut, np.array(chunks))
                result += [several] if chunks and alike else [several._replace(virtual_stages=(v,)) for v in chunks]
    return result


def _unequal_chunks(scenario: Scenario, space: Space, pipeline: int) -> list[tuple[int, ...]]:
    """Return lists of unequal chunks to try: the requested one, or balanced ones if equal chunks do not divide.

    Without a requested number of chunks, it is the fewest for each size of the largest chunk, if no rank has more than
    one layer less than others. Cuts that divide over the ranks, and mixed devices, are not combined with them.
    """
    if space.chunk_layers:
        return [space.chunk_layers] if len(space.chunk_layers) % pipeline == 0 else []
    model, layers = scenario.model, scenario.model.num_hidden_layers
    if space.stage_layers or space.layers_per_virtual_stage or scenario.groups:
        return []
    counts = space.virtual_stages or ()
    if space.virtual_stages is None and layers % pipeline:
        items = layers + 2 + scenario.prediction_modules
        fewest = {size: -(-items // (pipeline * size)) for size in range(1, items // pipeline)}
        counts = tuple(sorted(v for size, v in fewest.items() if size * v * pipeline - items < pipeline))
    tried = (default_chunks(model, scenario.framework, pipeline, count) for count in counts)
    return [listed for listed in tried if listed]


def _cuts(scenario: Scenario, space: Space, pipeline: int) -> list[tuple[int, ...]]:
    """Return the cuts to try: the requested one, else the default, and on mixed devices one balanced by speed."""
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
    """Return a cut whose ranks take about equal time on devices of different peaks.

    Every rank gets one layer; each further layer goes where work over peak is then smallest. The output layer counts as
    the layers of equal FLOP.
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


def _virtual_stages(scenario: Scenario, space: Space, pipeline: int, cut: tuple[int, ...]) -> tuple[int, ...]:
    per_rank = cut[0]
    if space.layers_per_virtual_stage is not None:
        return tuple(
            per_rank // layers for layers in space.layers_per_virtual_stage if layers >= 1 and per_rank % layers == 0
        )
    if space.virtual_stages is not None:
        unequal = not space.stage_layers and not scenario.groups
        return tuple(
            v
            for v in space.virtual_stages
            if v <= per_rank and not (unequal and default_chunks(scenario.model, scenario.framework, pipeline, v))
        )
    if pipeline == 1 or len(set(cut)) > 1:
        return (1,)
    return divisors(per_rank, per_rank)


class Choices(NamedTuple):
    """Values of an axis beside the shape: one field, or a few that depend on each other."""

    names: tuple[str, ...]
    """Columns of a block."""
    values: Array
    """One row per choice, shape (choices, names)."""

    @property
    def of_work(self) -> bool:
        """Return whether the work of a layer depends on it."""
        return any(BY_NAME[name].of_work for name in self.names)


_AS_TENSOR_PARALLEL = 0.0
"""Marker of an expert tensor parallel size equal to the tensor parallel size."""
_BESIDE_TENSOR_PARALLEL = -1.0
"""Marker of sequence parallelism wherever tensor parallel is above 1."""
_OF_SHAPE = frozenset({"tensor_parallel", "context_parallel", "data_parallel", "virtual_stages"})
"""Columns that shapes and their splits set."""


def axes(scenario: Scenario, space: Space) -> tuple[Choices, ...]:
    """Return the axes of the space for a scenario; a layout is one row of each."""
    joint = {
        ("expert_parallel", "expert_tensor_parallel"): _expert_pairs(scenario, space),
        ("recompute", "recompute_modules", "recompute_method", "recompute_layers"): _recompute_choices(scenario, space),
    }
    together = {name: names for names in joint for name in names}
    values_of: dict[tuple[str, ...], Array] = {}
    for field in sorted(COLUMNS, key=lambda field: GROUPS.index(field.group)):
        names = together.get(field.name, (field.name,))
        if field.name not in _OF_SHAPE and names not in values_of:
            rows: object = joint[names] if names in joint else _values(scenario, space, field)
            values_of[names] = np.asarray(rows, dtype=np.float64).reshape(-1, len(names))
    return tuple(Choices(names, values) for names, values in values_of.items())


def _values(scenario: Scenario, space: Space, field: InputSetting) -> list[float]:
    """Return the values that an axis of one field tries, as numbers of its column."""
    allowed = getattr(space, field.name)
    if not allowed and field.name == "sequence_parallel":
        return [_BESIDE_TENSOR_PARALLEL]
    usual = scenario.framework.zero_stage_on(scenario.devices)
    default = usual if field.name == "zero_stage" else field.default
    return [field.encoded(value) for value in allowed or field.searched or (default,)]


def _expert_pairs(scenario: Scenario, space: Space) -> list[tuple[int, int]]:
    if scenario.model.is_moe:
        parallel = space.expert_parallel or divisors(scenario.model.num_experts, scenario.devices)
        tensor: tuple[int, ...] = space.expert_tensor_parallel or (1, 0)
    else:
        parallel, tensor = space.expert_parallel or (1,), space.expert_tensor_parallel or (1,)
    return [(ep, etp) for ep in parallel for etp in tensor]


def searched_modules(scenario: Scenario) -> tuple[tuple[RecomputeModule, ...], ...]:
    """Return the sets of selective recompute modules that a search tries, as far as the framework has them.

    With experts, the cheapest tensors of their layers; with latent attention also its up-projections, alone or with the
    former.
    """
    usual: tuple[RecomputeModule, ...] = BY_NAME["recompute_modules"].default
    model = scenario.model
    sets: list[tuple[RecomputeModule, ...]] = [usual]
    if model.attention == "mla":
        sets.append(("mla_up_proj",))
    if model.is_moe:
        sets.append(("layernorm", "moe_act"))
        if model.attention == "mla":
            sets.append(("layernorm", "moe_act", "mla_up_proj"))
    allowed = scenario.framework.limits.recompute_modules
    return tuple(modules for modules in sets if set(modules) <= set(allowed))


def searched_modes(scenario: Scenario) -> tuple[RecomputeMode, ...]:
    """Return the recompute modes that a search tries; `operations` replaces `selective` where the framework has it."""
    keeps = scenario.framework.limits.recomputes_operations
    return tuple("operations" if keeps and mode == "selective" else mode for mode in SEARCHED_RECOMPUTE_MODES)


def _recompute_choices(scenario: Scenario, space: Space) -> list[tuple[float, ...]]:
    """Return (mode, modules, method, layers) as numbers of their columns."""
    implied = "full" if space.recompute_layer_list else "selective" if space.recompute_modules else None
    modes = space.recompute or ((implied,) if implied else searched_modes(scenario))
    methods: tuple[RecomputeMethod, ...] = space.recompute_method or ("uniform",)
    counts = space.recompute_layers or (1,)
    usual = BY_NAME["recompute_modules"].default
    modules = (space.recompute_modules,) if space.recompute_modules else searched_modules(scenario)
    if space.recompute_layer_list:
        methods, counts = ("list",), (1,)
    return [
        (
            BY_NAME["recompute"].encoded(mode),
            BY_NAME["recompute_modules"].encoded(chosen),
            BY_NAME["recompute_method"].encoded(method),
            float(count),
        )
        for mode in modes
        for chosen in (modules if mode == "selective" else (usual,))
        for method in (methods if mode == "full" else ("uniform",))
        for count in (counts if mode == "full" else (1,))
    ]


def blocks(scenario: Scenario, space: Space, *, chunk: int = CHUNK) -> Iterator[Pricing]:
    """Yield every candidate of the space, at most `chunk` at a time, in a fixed order."""
    choices, all_shapes = axes(scenario, space), shapes(scenario, space)
    work = _kinds_of_work(scenario, space, all_shapes, choices)
    for shape in all_shapes:
        splits = np.array(
            [(virtual, *split) for virtual in shape.virtual_stages for split in shape.splits], dtype=float
        )
        sizes = (len(splits), *(len(axis.values) for axis in choices))
        count = math.prod(sizes)
        for start in range(0, count, chunk):
            split, *index = np.unravel_index(np.arange(start, min(start + chunk, count)), sizes)
            block = _block(space, shape, splits[split], choices, index)
            shared = None
            if work is not None:
                pairs = np.array([work.pairs[tensor, context] for tensor, context, _ in shape.splits], dtype=np.intp)
                shared = Alike(work.pricing, _of_work(choices, pairs[split % len(pairs)], index))
            yield _distinct(Pricing(scenario, block, work=shared), choices, split, index)


class _KindsOfWork(NamedTuple):
    """Kinds of work of a space: every pair of tensor and context parallel sizes with every choice of work."""

    pricing: Pricing
    pairs: dict[tuple[int, int], int]
    """Index of each pair."""


def _kinds_of_work(
    scenario: Scenario, space: Space, all_shapes: Sequence[Shape], choices: Sequence[Choices]
) -> _KindsOfWork | None:
    """Return the kinds of work; None if they are too many to compute at once."""
    pairs = dict.fromkeys((tensor, context) for shape in all_shapes for tensor, context, _ in shape.splits)
    sizes = (len(pairs), *(len(axis.values) if axis.of_work else 1 for axis in choices))
    if not 0 < math.prod(sizes) <= CHUNK:
        return None
    pair, *index = np.unravel_index(np.arange(math.prod(sizes)), sizes)
    splits = np.array([(np.nan, *pair, np.nan) for pair in pairs])
    block = _block(space, Shape(0, (), "1f1b", (), (), ()), splits[pair], choices, index)
    return _KindsOfWork(Pricing(scenario, block), {pair: number for number, pair in enumerate(pairs)})


def candidates(scenario: Scenario, space: Space) -> int:
    """Return the number of layouts that `blocks` visits, repeated expert splits included."""
    per_split = math.prod(len(axis.values) for axis in axes(scenario, space))
    return sum(len(shape.splits) * len(shape.virtual_stages) for shape in shapes(scenario, space)) * per_split


def _block(
    space: Space, shape: Shape, splits: Array, choices: Sequence[Choices], index: Sequence[Index]
) -> LayoutBlock:
    """Return the layouts of a shape with these (virtual stages, *split), shape (n, 4), and the choices at an index."""
    columns = {
        name: axis.values[chosen, at]
        for axis, chosen in zip(choices, index, strict=True)
        for at, name in enumerate(axis.names)
    }
    chunks, tensor, context, data = splits.T
    experts, sequence = columns["expert_tensor_parallel"], columns["sequence_parallel"]
    columns["expert_tensor_parallel"] = np.where(experts == _AS_TENSOR_PARALLEL, tensor, experts)
    columns["sequence_parallel"] = np.where(sequence == _BESIDE_TENSOR_PARALLEL, (tensor > 1) * 1.0, sequence)
    return LayoutBlock(
        pipeline_parallel=shape.pipeline_parallel,
        virtual_stages=chunks,
        schedule=shape.schedule,
        stage_layers=shape.stage_layers,
        chunk_layers=shape.chunk_layers,
        recompute_layer_list=space.recompute_layer_list,
        tensor_parallel=tensor,
        context_parallel=context,
        data_parallel=data,
        **columns,
    )


def _distinct(pricing: Pricing, choices: Sequence[Choices], split: Index, index: Sequence[Index]) -> Pricing:
    """Return the layouts without repeated ones, with equal sizes marked."""
    _, first, kind = np.unique(_of_work(choices, split, index), return_index=True, return_inverse=True)
    pricing = replace(pricing, sizes=alike(pricing, first, kind))
    # Without tensor parallelism "the tensor-parallel size" and 1 are the same expert split: keep one of them.
    at, axis = next((at, axis) for at, axis in enumerate(choices) if "expert_tensor_parallel" in axis.names)
    experts = axis.values[index[at], axis.names.index("expert_tensor_parallel")]
    repeated = (experts == _AS_TENSOR_PARALLEL) & (pricing.block.tensor_parallel == 1)
    return pricing.take(~repeated) if repeated.any() else pricing


def _of_work(choices: Sequence[Choices], start: Index, index: Sequence[Index]) -> Index:
    """Return a number per layout that is equal where `start` and the choices on every axis of work are."""
    code = start
    for axis, chosen in zip(choices, index, strict=True):
        if axis.of_work:
            code = code * len(axis.values) + chosen
    return code
