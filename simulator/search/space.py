"""Space of a search: axes of values, and blocks of layouts generated from them, with what a pipeline and offload allow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from simulator.cost.derived import Alike, Pricing, alike
from simulator.cost.operations.extents import micro_batches
from simulator.cost.schedule.registry import schedule_of
from simulator.cost.stages import cuts_alike
from simulator.cost.timing.flops import forward_flops_per_token
from simulator.errors import InputError
from simulator.question.arrays import Index, Mask
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.complete import default_chunks
from simulator.question.scenario.inputs import GROUPS, InputSetting, check_count
from simulator.question.scenario.layout import (
    BY_NAME,
    COLUMNS,
    ROUND,
    SEARCHED_RECOMPUTE_MODES,
    SETTINGS,
    Layout,
    default_cut,
    model_chunks,
    rank_layers,
)
from simulator.question.scenario.scenario import Scenario
from simulator.question.scenario.typed import Axes
from simulator.question.specs.model import LATENT
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
            for value in getattr(self, setting.name) or ():
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
        fewest = {size: -(-items // (pipeline * size)) for size in range(1, items // pipeline + 1)}
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
    default = scenario.framework.limits.default_zero_stage if field.name == "zero_stage" else field.default
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


def mask(condition: Any) -> Mask:
    """Return a condition over layouts as a typed array (numpy's stubs lose the type of comparisons)."""
    return np.asarray(condition, dtype=np.bool_)


def every(pricing: Pricing, *, broken: bool) -> Mask:
    """Return the same value for every layout of a block."""
    return np.full(len(pricing), broken)


def cut(pricing: Pricing) -> Mask:
    """Return whether a rank lacks a layer or the cut does not add up."""
    scenario, block = pricing.scenario, pricing.block
    layers = block.stage_layers
    total, listed = scenario.model.num_hidden_layers, block.chunk_layers
    if listed and (
        len(listed) != block.pipeline_parallel * block.first_virtual_stages
        or rank_layers(listed, block.pipeline_parallel, block.schedule) != layers
    ):
        return every(pricing, broken=True)
    fewest = 0 if listed and scenario.framework.limits.unequal_chunks else 1
    return every(
        pricing,
        broken=len(layers) != block.pipeline_parallel or sum(layers) != total or min(layers, default=0) < fewest,
    )


def node_groups(pricing: Pricing) -> Mask:
    """Return whether a pipeline rank has devices of several kinds: speed and memory of a rank must be uniform."""
    scenario, block = pricing.scenario, pricing.block
    if len(scenario.groups) < 2:
        return every(pricing, broken=False)
    p = block.pipeline_parallel
    ends, end = [], 0
    for group in scenario.groups:
        end += group.devices
        ends.append(end)
    straddles = scenario.devices % p != 0 or any(e % (scenario.devices // p) for e in ends)
    return every(pricing, broken=straddles)


def virtual_stages(pricing: Pricing) -> Mask:
    """Return the layouts with virtual stages but no pipeline, or layers or micro batches that do not divide."""
    block = pricing.block
    several = block.virtual_stages > 1.0
    if not several.any():
        return every(pricing, broken=False)
    if block.pipeline_parallel < 2 or not _divides(pricing):
        return mask(several)
    if block.shape == "there_and_back":
        return every(pricing, broken=False)
    return mask(several & (micro_batches(pricing) % block.pipeline_parallel != 0))


def _divides(pricing: Pricing) -> bool:
    """Return whether every rank has its virtual stages, of equal layers unless the framework has unequal ones."""
    scenario, block = pricing.scenario, pricing.block
    if pricing.chunks_alike:
        return True
    chunks = model_chunks(block.stage_layers, block.first_virtual_stages, block.chunk_layers, block.schedule)
    sizes = {layers for of_rank in chunks for _, layers in of_rank}
    return len(chunks[0]) == block.first_virtual_stages and (
        len(sizes) == 1 or scenario.framework.limits.unequal_chunks
    )


def schedule(pricing: Pricing) -> Mask:
    """Return the layouts whose framework, ranks, chunks or micro batches do not match their schedule."""
    scenario, block = pricing.scenario, pricing.block
    p, name = block.pipeline_parallel, block.schedule
    if name == BY_NAME["schedule"].default:
        return every(pricing, broken=False)
    shape = block.shape
    if name not in scenario.framework.limits.schedules or p == 1 or (shape == "round" and name not in ROUND):
        return every(pricing, broken=True)
    m = micro_batches(pricing)
    odd = (m % 2 != 0) & (shape == "both_ends")
    return mask((m < schedule_of(pricing).min_micro_batches(p)) | odd)


def refused_schedule(scenario: Scenario, layout: Layout) -> str:
    """Return why a schedule is refused."""
    profile, name = scenario.framework, layout.schedule
    if name not in profile.limits.schedules:
        stack = "" if profile.stack == "default" else f" ({profile.stack})"
        return f"schedule {name}: {profile.name}{stack} has {', '.join(profile.limits.schedules)}"
    count = scenario.global_batch_size / (layout.micro_batch_size * layout.data_parallel)
    needs = {
        "zb_v": "2 virtual stages",
        "dualpipev": "2 virtual stages and micro batches of twice the pipeline ranks",
        "dualpipe": "an even number of ranks without virtual stages, and of micro batches, twice the ranks or more",
    }.get(name, "no more")
    return (
        f"schedule {name} needs 2 pipeline ranks and {needs}; the layout has pipeline parallel "
        f"{layout.pipeline_parallel}, virtual stages {layout.virtual_stages}, {count:g} micro batches"
    )


def two_stages(pricing: Pricing) -> Mask:
    """Return the layouts that interleave chunks on two ranks without overlapped sends."""
    scenario, block = pricing.scenario, pricing.block
    profile = scenario.framework
    allowed = profile.overlap_p2p or profile.limits.interleaving_of_two_stages_without_overlap
    return mask((block.virtual_stages > 1.0) & (not allowed and block.pipeline_parallel == 2))


def expert_overlap(pricing: Pricing) -> Mask:
    """Return the layouts without another micro batch's compute to hide the exchange: one chunk, or full recompute."""
    scenario, block = pricing.scenario, pricing.block
    if not (scenario.framework.overlap_expert_exchange and scenario.model.is_moe):
        return every(pricing, broken=False)
    alone = (block.chunks == 1.0) & (block.pipeline_parallel > 1)
    return mask((block.expert_parallel > 1) & (alone | pricing.recomputes("full")))


_EXPERTS: Final = ("expert_fc1", "moe_act", "fused_group_mlp")
_NORMS: Final = ("attn_norm", "mlp_norm")
_MIXERS: Final = LATENT | {"grouped_query", "sliding"}
"""Mixers whose saved tensors are known by module."""
_BY_MODULE: Final = ("none", "selective")
"""Recompute modes under which layers still save tensors by module."""


def parameters(pricing: Pricing) -> Mask:
    """Return the layouts with parameters on the host below ZeRO 3."""
    return mask((pricing.block.zero_stage < 3) & pricing.scenario.framework.offload_parameters)


def activations(pricing: Pricing) -> Mask:
    """Return the layouts that offload whole layers with a pipeline, where the framework cannot."""
    scenario, block = pricing.scenario, pricing.block
    refused = block.pipeline_parallel > 1 and not scenario.framework.limits.activation_offload_with_pipeline
    return mask(pricing.offloads("activations") & refused)


def beside_recompute(pricing: Pricing) -> Mask:
    """Return the layouts that offload whole layers with recompute, where the framework cannot."""
    if pricing.scenario.framework.limits.activation_offload_with_recompute:
        return every(pricing, broken=False)
    return mask(pricing.offloads("activations") & ~pricing.recomputes("none"))


def modules(pricing: Pricing) -> Mask:
    """Return the layouts that offload modules which stack, graphs or recompute exclude."""
    scenario, block = pricing.scenario, pricing.block
    offloaded = scenario.framework.offloaded_modules
    if not offloaded or any(_refused(scenario)):
        return every(pricing, broken=bool(offloaded))
    experts = int(BY_NAME["recompute_modules"].encoded(("moe",))) if set(_EXPERTS) & set(offloaded) else 0
    again = pricing.recomputes("selective") & ((block.recompute_modules.astype(np.intp) & experts) > 0)
    return mask(~pricing.recomputes(*_BY_MODULE) | pricing.offloads("activations") | again)


def refused_modules(scenario: Scenario, layout: Layout) -> str:
    """Return why a layout may not offload the modules of its stack."""
    stated = f"offloaded modules {','.join(scenario.framework.offloaded_modules)}"
    if reason := next(_refused(scenario), None):
        return f"{stated}: {reason}"
    if layout.recompute not in _BY_MODULE:
        if layout.recompute_method != "uniform":
            return f"{stated} beside full recompute of some layers: the mixture is not priced"
        return f"{stated} beside recompute {layout.recompute}: of layers that are done again nothing is left to move"
    if layout.offload == "activations":
        return f"{stated}: 'fine_grained_activation_offloading cannot be enabled with cpu_offloading.'"
    return (
        f"{stated} beside recompute module moe: 'offloading activations inside it is redundant and will cause errors'"
    )


def _refused(scenario: Scenario) -> Iterator[str]:
    """Yield why no layout may offload the modules (Megatron-LM d98e8a6, core/transformer/transformer_config.py)."""
    profile, chosen = scenario.framework, set(scenario.framework.offloaded_modules)
    if not profile.limits.offloads_modules:
        yield "only Megatron-LM offloads parts of layers"
    if "attn_proj" in chosen and "core_attn" not in chosen:
        yield "'attn_proj cannot be set to offload_modules alone without core_attn'"
    if "fused_group_mlp" in chosen and not profile.fused_experts:
        yield "'fused_group_mlp requires use_transformer_engine_op_fuser.' (--option fused_experts=true)"
    if "fused_group_mlp" in chosen and chosen & {"expert_fc1", "moe_act"}:
        yield "fused_group_mlp offloads the whole network of experts, expert_fc1 and moe_act with it"
    if profile.expert_stash > 1.0 and chosen & set(_EXPERTS):
        yield "'paged stash covers those activations' (--option expert_stash=1)"
    graphs = profile.cuda_graphs
    allowed = {"attention_router": chosen - set(_NORMS), "full_iteration": chosen & set(_EXPERTS)}
    if graphs != "none" and chosen - allowed.get(graphs, set()):
        yield f"CUDA graphs {graphs} hold {', '.join(sorted(chosen - allowed.get(graphs, set())))}"
    foreign = {kind.mixer for kind in scenario.model.layer_kinds} - _MIXERS
    if foreign and chosen - {"mlp_norm", *_EXPERTS}:
        yield f"what layers with {', '.join(sorted(foreign))} save by module is not known"
