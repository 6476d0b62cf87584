"""Space of a search, its query and its result: axes of values, blocks of layouts that they span, a ranking.

A question about Mixtral on H100 may leave open how tokens reach their experts. It is then searched twice, as it stands
and with DeepEP's kernels overlapped; `chosen` of an answer names the selected kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from simulator.cost.derived import Alike, Pricing
from simulator.cost.pricing.estimate import Estimate, Violation
from simulator.cost.pricing.price import Priced, Sized, first_needs_most
from simulator.cost.stages import cuts_alike
from simulator.cost.timing.products import forward_flops_per_token
from simulator.errors import InputError, check_kind
from simulator.question.arrays import Index, Mask, numbered, selected
from simulator.question.question import Question
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.complete import default_chunks
from simulator.question.scenario.inputs import GROUPS, InputSetting, check_count
from simulator.question.scenario.layout import (
    BY_NAME,
    COLUMNS,
    SEARCHED_RECOMPUTE_MODES,
    SETTINGS,
    Layout,
    default_cut,
    layout_object,
    rank_layers,
)
from simulator.question.scenario.scenario import Scenario
from simulator.question.scenario.typed import Axes
from simulator.question.vocabulary import RecomputeMethod, RecomputeMode, RecomputeModule, ScheduleName, StackName
from simulator.records import NamedTuple, Record, field, replace
from simulator.tabular import Tabular

CHUNK = 16384
"""Layouts priced at once, few enough for their arrays to stay in the processor's cache."""
MOST_CANDIDATES = 100_000_000
"""Limit on a search: beyond it a search takes minutes."""


class Space(Axes, kw_only=True):
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
    """Return a cut for devices of different peaks: a layer each, further ones where work over peak is then smallest.

    The output layer counts as the layers of equal FLOP.
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
    used = ((tensor, context, tensor * context * pipeline) for tensor in tensors for context in contexts)
    filling = ((tensor, context, devices // product) for tensor, context, product in used if devices % product == 0)
    return tuple(split for split in filling if space.data_parallel is None or split[-1] in space.data_parallel)


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


_AS_TENSOR_PARALLEL = 0.0  # marker of an expert tensor parallel size equal to the tensor parallel size
_BESIDE_TENSOR_PARALLEL = -1.0  # marker of sequence parallelism wherever tensor parallel is above 1
_OF_SHAPE = frozenset({"tensor_parallel", "context_parallel", "data_parallel", "virtual_stages"})
"""Columns that shapes and their splits set."""


def axes(scenario: Scenario, space: Space) -> tuple[Choices, ...]:
    """Return the axes of the space for a scenario; a layout is one row of each."""
    experts, has_experts = scenario.model.num_experts, scenario.model.is_moe
    parallel = space.expert_parallel or (divisors(experts, scenario.devices) if has_experts else (1,))
    tensor: tuple[int, ...] = space.expert_tensor_parallel or ((1, 0) if has_experts else (1,))
    joint = {
        ("expert_parallel", "expert_tensor_parallel"): [(ep, etp) for ep in parallel for etp in tensor],
        ("recompute", "recompute_modules", "recompute_method", "recompute_layers"): _recompute_choices(scenario, space),
    }
    together = {name: names for names in joint for name in names}
    values_of: dict[tuple[str, ...], Array] = {}
    for setting in sorted(COLUMNS, key=lambda setting: GROUPS.index(setting.group)):
        names = together.get(setting.name, (setting.name,))
        if setting.name not in _OF_SHAPE and names not in values_of:
            rows: object = joint[names] if names in joint else _values(scenario, space, setting)
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
    names = ("recompute", "recompute_modules", "recompute_method")
    return [
        (*(BY_NAME[name].encoded(word) for name, word in zip(names, (mode, chosen, method), strict=True)), float(count))
        for mode in modes
        for chosen in (modules if mode == "selective" else (usual,))
        for method in (methods if mode == "full" else ("uniform",))
        for count in (counts if mode == "full" else (1,))
    ]


def blocks(
    scenario: Scenario,
    space: Space,
    *,
    chunk: int = CHUNK,
    possible: Callable[[Pricing], Mask] | None = None,
    fullest: bool = False,
) -> Iterator[Pricing]:
    """Yield every candidate of the space, at most `chunk` at a time, in a fixed order.

    With `possible`, a mask by all but recompute, only those that it allows. With `fullest`, memory is priced of one
    rank of each kind where that suffices.
    """
    choices, all_shapes = axes(scenario, space), shapes(scenario, space)
    work = _kinds_of_work(scenario, space, all_shapes, choices)
    for shape in all_shapes:
        splits = np.array([(virtual, *split) for virtual in shape.virtual_stages for split in shape.splits], float).T
        sizes = (splits.shape[1], *(len(axis.values) for axis in choices))
        every = np.arange(math.prod(sizes))
        if possible is not None:
            few = (splits.shape[1], *(1 if "recompute" in axis.names else len(axis.values) for axis in choices))
            split, *index = _places(np.arange(math.prod(few)), few)
            block = _block(space, shape, splits.take(split, axis=1), choices, index)
            allowed = possible(Pricing(scenario, block, work=_shared(work, shape, choices, split, index)))
            every = np.flatnonzero(np.broadcast_to(allowed.reshape(few), sizes))
        for start in range(0, len(every), chunk):
            places = _places(every[start : start + chunk], sizes)
            split, *index = selected(places, _unrepeated(choices, splits[1], *places), len(places[0]))
            block = _block(space, shape, splits.take(split, axis=1), choices, index)
            pricing = Pricing(scenario, block, work=_shared(work, shape, choices, split, index))
            if fullest and first_needs_most(pricing):
                pricing = replace(pricing, fullest=True)
            yield _sharing(pricing, choices, split, index)


class _KindsOfWork(NamedTuple):
    """Kinds of work of a space: every pair of tensor and context parallel sizes with every choice of work."""

    pricing: Pricing
    pairs: dict[tuple[int, int], int]


def _kinds_of_work(
    scenario: Scenario, space: Space, all_shapes: Sequence[Shape], choices: Sequence[Choices]
) -> _KindsOfWork | None:
    """Return the kinds of work; None if they are too many to compute at once."""
    pairs = dict.fromkeys((tensor, context) for shape in all_shapes for tensor, context, _ in shape.splits)
    sizes = (len(pairs), *(len(axis.values) if _is_work(axis) else 1 for axis in choices))
    if not 0 < math.prod(sizes) <= CHUNK:
        return None
    pair, *index = _places(np.arange(math.prod(sizes)), sizes)
    splits = np.array([(np.nan, *pair, np.nan) for pair in pairs]).T.take(pair, axis=1)
    block = _block(space, Shape(0, (), "1f1b", (), (), ()), splits, choices, index)
    return _KindsOfWork(Pricing(scenario, block), {pair: number for number, pair in enumerate(pairs)})


def _shared(
    work: _KindsOfWork | None, shape: Shape, choices: Sequence[Choices], split: Index, index: Sequence[Index]
) -> Alike | None:
    """Return the work of the layouts with these splits of a shape, and the choices at an index."""
    if work is None:
        return None
    pairs = np.array([work.pairs[tensor, context] for tensor, context, _ in shape.splits], dtype=np.intp)
    return Alike(work.pricing, _coded(choices, pairs[split % len(pairs)], index, _is_work))


def _places(numbers: Index, sizes: Sequence[int]) -> tuple[Index, ...]:
    """Return the place on each axis of numbered choices, as np.unravel_index, which divides by sizes of 1 too."""
    several = [size for size in sizes if size > 1]
    places, none = iter(np.unravel_index(numbers, several) if several else ()), np.broadcast_to(0, len(numbers))
    return tuple(next(places) if size > 1 else none for size in sizes)


def _unrepeated(choices: Sequence[Choices], tensor: Array, split: Index, *index: Index) -> Index:
    """Return the positions of choices but for those whose experts are split by a tensor-parallel size of 1: as by 1."""
    at, axis = next((at, axis) for at, axis in enumerate(choices) if "expert_tensor_parallel" in axis.names)
    as_tensor = axis.values[:, axis.names.index("expert_tensor_parallel")] == _AS_TENSOR_PARALLEL
    return np.flatnonzero(~(as_tensor.take(index[at]) & (tensor == 1.0).take(split)))


def candidates(scenario: Scenario, space: Space) -> int:
    """Return the number of layouts of `blocks`, repeated expert splits included. Raises InputError if too many."""
    per_split = math.prod(len(axis.values) for axis in axes(scenario, space))
    total = sum(len(shape.splits) * len(shape.virtual_stages) for shape in shapes(scenario, space)) * per_split
    if total > MOST_CANDIDATES:
        raise InputError(
            f"the options span {total:,} layouts; at most {MOST_CANDIDATES:,} are searched: narrow a range"
        )
    return total


def _block(
    space: Space, shape: Shape, splits: Array, choices: Sequence[Choices], index: Sequence[Index]
) -> LayoutBlock:
    """Return the layouts of a shape with `splits`, (virtual stages, *split) by row, and the choices at an index."""
    columns = {
        name: axis.values[:, at].take(chosen)
        if len(axis.values) > 1 or len(chosen) < 4096
        else np.broadcast_to(axis.values[0, at], len(chosen))
        for axis, chosen in zip(choices, index, strict=True)
        for at, name in enumerate(axis.names)
    }
    chunks, tensor, context, data = splits
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


def _sharing(pricing: Pricing, choices: Sequence[Choices], split: Index, index: Sequence[Index]) -> Pricing:
    """Return the layouts with those marked that differ in recompute, or in what shards or offloads state, alone."""
    _, first, kind = numbered(_coded(choices, split, index, lambda axis: "recompute" not in axis.names))
    if 2 * len(first) <= len(kind):  # with fewer, sharing is not faster
        pricing = replace(pricing, sizes=Alike(pricing.take(first), kind))
    if any(len(axis.values) > 1 for axis in choices if _ABOUT_STATE & set(axis.names)):
        passing = _coded(choices, split, index, lambda axis: not _ABOUT_STATE & set(axis.names))
        stage = np.digitize(pricing.block.zero_stage, (1, 3)) * (
            pricing.scenario.widened_rest
            or pricing.scenario.framework.plain_module
            or (pricing.scenario.lora_rank is not None and pricing.scenario.framework.adapter_copies)
        )
        _, first, kind = numbered(6 * passing + 2 * stage + pricing.offloads("activations"))
        if 2 * len(first) <= len(kind):
            pricing = replace(pricing, passes=Alike(pricing.take(first), kind))
    return pricing


_ABOUT_STATE = frozenset({"zero_stage", "offload"})
"""Axes on which no pass depends, but for offloaded activations and fp32 streams by stage (`layer_input_bytes`)."""


def _is_work(axis: Choices) -> bool:
    """Return whether the work of a layer depends on an axis."""
    return any(BY_NAME[name].of_work for name in axis.names)


def _coded(
    choices: Sequence[Choices], start: Index, index: Sequence[Index], counts: Callable[[Choices], bool]
) -> Index:
    """Return a number per layout that is equal where `start` and the choices on every axis that `counts` are."""
    code = start
    for axis, chosen in zip(choices, index, strict=True):
        if len(axis.values) > 1 and counts(axis):
            code = code * len(axis.values) + chosen
    return code


MIN_FIT_PROBABILITY = 0.95
"""Default smallest probability to fit of a recommended layout."""
_EXCHANGE = ("expert_dispatch", "overlap_expert_exchange")
"""Switches of the experts' exchange; a question that sets one is searched as it stands."""


class Query(Record, kw_only=True):
    """A question whose layout is searched."""

    scenario: Scenario
    question: Question = field(default_factory=Question)
    """Values that were said; of the switches that it sets no other values are tried."""
    space: Space = field(default_factory=Space)
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Further switches that the search chose, as text."""
    min_fit_probability: float = 0.0
    """Smallest probability to fit of a recommended layout; 0 recommends all that fit."""
    over_open: OverOpen | None = None
    """Judges of layouts over what nobody said; None judges them as they are priced."""

    @property
    def options(self) -> dict[str, str]:
        """Switches that the question sets, as text."""
        return self.question.options

    def alternatives(self) -> tuple[Query, ...]:
        """Return the question as it stands, and with overlapped expert exchange where kernels for it exist.

        Kernels that send a token once to each rank are never slower than those that send every copy, and overlap is
        never slower than none: one further search covers what a tuned run would choose.
        """
        scenario = self.scenario
        if not scenario.model.is_moe or not set(_EXCHANGE).isdisjoint(self.options):
            return (self,)
        kernels = set(scenario.framework.limits.expert_dispatches)
        for device in scenario.kinds_of_device:
            kernels &= set(device.expert_kernels)
        if not kernels:
            return (self,)
        dispatch = min(kernels)
        profile = replace(scenario.framework, expert_dispatch=dispatch, overlap_expert_exchange=True)
        chosen = {"expert_dispatch": dispatch, "overlap_expert_exchange": "true"}
        return (self, replace(self, scenario=replace(scenario, framework=profile), chosen=chosen))


class OverOpen(NamedTuple):
    """Judges of layouts over what nobody said of their run."""

    likely: Callable[[Query, Sized, Index], Mask | None]
    """Function to the layouts of a block, at an index, that fit with the requested probability; None as priced."""
    judged: Callable[[PricedLayout, Estimate], Estimate]
    """Function to an estimate over what is open."""


class PricedLayout(NamedTuple):
    """A layout with the figures that searches compare."""

    query: Query
    """Question that it answers; its scenario prices it."""
    layout: Layout
    step_seconds: float
    """NaN where only its memory was priced."""
    device_bytes: float
    """Memory in use on the fullest device."""
    priced: Priced | None = None
    """The layout alone, priced in full, where a search keeps it."""


class Counts(Record, kw_only=True):
    """Numbers of layouts visited, by outcome."""

    evaluated: int
    """All candidates: `feasible` plus every number in `rejected`."""
    feasible: int
    """Candidates with verdict `fits`."""
    rejected: Mapping[str, int]
    """By the first rule a candidate breaks, or `memory` (does not fit) or `near_capacity` (starved)."""
    elapsed_seconds: float
    """Duration of the search."""


class Remedy(Record):
    """A change that would make the nearest miss fit."""

    change: str
    """Change in words, such as `--recompute full`."""
    estimate: Estimate
    """The fastest layout after it."""


class StackBest(Record):
    """The best layout under another named stack."""

    stack: StackName
    """Name of the stack, as `--stack` takes it."""
    estimate: Estimate | None
    """None where nothing fits."""


class NodeCount(Record):
    """Fastest layout on a number of nodes."""

    nodes: int
    """Number of whole nodes."""
    layout: Layout
    """Fastest layout on them that is likely enough to fit."""
    tokens_per_second_per_device: float
    """Its speed."""


class FewestNodes(Record):
    """Result of a search for the fewest nodes."""

    nodes: int | None
    """Fewest nodes whose best layout fits and meets the deadline, if any; None if there are none."""
    ranked_nodes: int
    """Nodes of the ranking: `nodes`, else the number that comes nearest."""
    fitting_nodes: int | None
    """Fewest nodes that fit, in time or not; None if there are none."""
    most_nodes: int
    """Upper limit of the search."""
    deadline_days: float | None
    """Longest duration of the run in days; None without a deadline."""
    counts: tuple[NodeCount, ...] = ()
    """The ranked number of nodes and the next powers of two, within the limit, each with its fastest layout."""

    @property
    def knee(self) -> NodeCount | None:
        """Fewest of `counts` whose tokens cost nearly the least device time; None where none was priced."""
        best = max((count.tokens_per_second_per_device for count in self.counts), default=0.0)
        return next((count for count in self.counts if count.tokens_per_second_per_device >= _NEARLY * best), None)


_NEARLY: Final = 0.95  # part of the best speed of a device from which more nodes save next to nothing


class Ranking(Tabular, Record, kw_only=True):
    """Layouts of one question, fastest first."""

    query: Mapping[str, object]
    """Every input by option name, defaults included."""
    question: Question = field(default_factory=Question, repr=False, compare=False)
    """Values that were said of the question, with who said each."""
    defaults: tuple[str, ...]
    """Names in `query` that the user left unset."""
    counts: Counts
    estimates: tuple[Estimate, ...]
    """Layouts that fit with at least the requested probability, best first."""
    risky: tuple[Estimate, ...] = ()
    """The fastest layouts that fit, with less than the requested probability; without others the likeliest first."""
    starved: tuple[Estimate, ...]
    """The fastest layout too near capacity to recommend, if any."""
    nearest: Estimate | None
    """If nothing fits, the layout with the least memory over capacity."""
    remedies: tuple[Remedy, ...]
    """If nothing fits, changes that make a layout fit."""
    reasons: tuple[Violation, ...]
    """If nothing fits, one violation of each rule that dropped layouts."""
    fp8: Estimate | None
    """Best layout in fp8, of the best few splits or else of all; None for questions in fp8 or devices without."""
    equal: tuple[int, ...] = ()
    """Positions in `estimates` whose difference to the first is within its 90 % interval; empty if uncalibrated."""
    surer: int | None = None
    """Position among `equal` of the layout whose step time has the smallest upper end, or that is likelier to fit.

    None where that is the first.
    """
    stacks: tuple[StackBest, ...] = ()
    """Best layout, searched as for `fp8`, under the framework's defaults or tuned stacks."""
    fewest: FewestNodes | None = None
    """Result of the search for nodes, if requested."""

    def __repr__(self) -> str:
        """Return one line: the question, how many layouts fit, the best."""
        question = f"{self.query.get('model')} on {self.query.get('devices')} x {self.query.get('hardware')}"
        listed = f"{len(self.estimates)} of {self.counts.feasible} layouts that fit"
        best = f", best {self.estimates[0]!r}" if self.estimates else ""
        return f"<Ranking {question}: {listed}{best}>"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each layout, best first: its fields by key, speed and memory."""
        return [
            {
                "rank": rank,
                **layout_object(estimate.layout),
                "tokens_per_second": estimate.throughput.tokens_per_second_per_device * estimate.devices,
                "mfu": estimate.throughput.mfu,
                "causal_mfu": estimate.throughput.causal_mfu,
                "step_seconds": estimate.throughput.step_seconds,
                "device_bytes": estimate.memory.device_bytes,
                "fit_probability": estimate.memory.fit_probability,
            }
            for rank, estimate in enumerate(self.estimates, start=1)
        ]
