"""Rules that a layout must keep to run, each with a stable id, a message and a fix.

A rule is a mask over a block of layouts and a row of `rules.csv` with its messages; a ranking drops a layout and counts
it under the first rule it breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

import numpy as np

from simulator.cost.derived import Pricing, of_sizes
from simulator.cost.operations.sums import inner_context, micro_batches, sequence_split
from simulator.cost.schedule.orders import schedule_of
from simulator.files import read_table
from simulator.question.arrays import Mask
from simulator.question.scenario.layout import BY_NAME, ROUND, Layout, model_chunks, rank_layers
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LATENT, TRAITS, UNDIVIDED
from simulator.question.vocabulary import RECOMPUTE_MODULES
from simulator.records import NamedTuple

Masks = Callable[[Pricing], Any]
"""Function that returns which layouts of a block break a rule: an array, or one bool for all of them."""


class Rule(NamedTuple):
    """One rule."""

    id: str
    masks: Masks
    about: str
    """Condition that must hold, as a sentence."""
    template: str
    """Message with figures in braces: fields of the layout, or entries of `_FIGURES`."""
    fix_template: str
    settings: tuple[str, ...]
    """What decides whether it is broken: options of a layout, a cluster or a stack."""

    def broken(self, pricing: Pricing) -> Mask:
        """Return which layouts of a block break it."""
        mask = np.asarray(self.masks(pricing), dtype=np.bool_)
        return mask if mask.ndim else np.full(len(pricing), mask)

    def message(self, scenario: Scenario, layout: Layout) -> str:
        """Return how this layout breaks the rule."""
        return self.template.format_map(_Figures(scenario, layout))

    def fix(self, scenario: Scenario, layout: Layout) -> str:
        """Return how to keep it."""
        return self.fix_template.format_map(_Figures(scenario, layout))


def _divisors(number: int) -> str:
    return ", ".join(str(d) for d in range(1, min(number, 64) + 1) if number % d == 0)


def _devices(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    used = block.tensor_parallel * block.context_parallel * block.data_parallel * block.pipeline_parallel
    return used != scenario.devices


@of_sizes
def _heads(pricing: Pricing) -> Any:
    return np.any([heads % pricing.block.tensor_parallel != 0 for heads in _head_counts(pricing.scenario)], axis=0)


def _head_counts(scenario: Scenario) -> tuple[int, ...]:
    """Return the heads and groups that tensor parallelism splits, of every mixer in the model."""
    model = scenario.model
    sliding = (model.sliding_attention_heads,) if model.sliding_attention_heads else ()
    linear = (model.linear_key_heads, model.linear_value_heads, model.mamba_heads, model.mamba_groups)
    return (model.num_attention_heads, *sliding, *(heads for heads in linear if heads))


def _undivided(pricing: Pricing) -> Any:
    alone = not UNDIVIDED.isdisjoint(kind.mixer for kind in pricing.scenario.model.layer_kinds)
    return alone and (pricing.block.tensor_parallel > 1) | (pricing.block.context_parallel > 1)


def _kv_head_counts(scenario: Scenario) -> tuple[int, ...]:
    """Return the key-value heads of the mixers with such heads."""
    model = scenario.model
    mixers = {kind.mixer for kind in model.layer_kinds if TRAITS[kind.mixer].heads == "key_value"}
    return tuple(sorted({model.heads(mixer).shared for mixer in mixers}))


@of_sizes
def _kv_heads(pricing: Pricing) -> Any:
    t, replicates = pricing.block.tensor_parallel, pricing.scenario.framework.limits.replicates_kv_heads
    each = [(shared % t != 0) & ~((t % shared == 0) & replicates) for shared in _kv_head_counts(pricing.scenario)]
    return np.any(each, axis=0)


def _ffn_widths(scenario: Scenario) -> tuple[int, ...]:
    model = scenario.model
    dense = tuple(
        dict.fromkeys(model.of_kind(kind).intermediate_size for kind in model.layer_counts if kind.has_network)
    )
    return dense + ((model.shared_width,) if model.num_shared_experts else ())


@of_sizes
def _ffn(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    each = [width % block.tensor_parallel != 0 for width in _ffn_widths(scenario)]
    if scenario.model.is_moe:
        each.append(scenario.model.moe_intermediate_size % block.expert_tensor_parallel != 0)
    return np.any(each, axis=0)


def _refused_widths(scenario: Scenario, layout: Layout) -> str:
    """Return the widths that do not divide."""
    t, etp, width = layout.tensor_parallel, layout.expert_tensor_parallel, scenario.model.moe_intermediate_size
    problems = [
        f"feed-forward width {w} does not divide by tensor parallel {t}" for w in _ffn_widths(scenario) if w % t
    ]
    of_experts = f"expert width {width} does not divide by expert tensor parallel {etp}"
    return ", ".join([*problems, of_experts] if scenario.model.is_moe and width % etp else problems)


@of_sizes
def _batch(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    return scenario.global_batch_size % (block.micro_batch_size * block.data_parallel) != 0


@of_sizes
def _sequence(pricing: Pricing) -> Any:
    # Causal balancing gives every context-parallel rank two pieces of the sequence; lengths that differ are padded.
    scenario, block = pricing.scenario, pricing.block
    if scenario.lengths is not None and not scenario.lengths.packs:
        return False
    pieces = np.where(block.context_parallel > 1, 2.0 * block.context_parallel, 1.0)
    return scenario.seq_length % (pieces * sequence_split(block)) != 0


def _exchanged_heads(scenario: Scenario) -> int:
    """Return the fewest heads that an all-to-all splits: query heads are a multiple of key-value heads."""
    model = scenario.model
    return model.num_attention_heads if scenario.framework.repeat_kv else model.num_key_value_heads


def _context(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    if scenario.framework.cp_communication not in ("all_to_all", "all_to_all_ring"):
        return False
    inner = inner_context(pricing)
    undivided = (_exchanged_heads(scenario) % (block.tensor_parallel * inner) != 0) & (inner > 1)
    return undivided | (block.context_parallel % inner != 0)


def _unfused_context(pricing: Pricing) -> Any:
    framework = pricing.scenario.framework
    plain = framework.name == "megatron" and not framework.flash_attention
    return (pricing.block.context_parallel > 1) & plain


@of_sizes
def _experts(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    if not scenario.model.is_moe:
        return block.expert_ranks > 1
    ranks = block.tensor_parallel * block.replicas
    return (scenario.model.num_experts % block.expert_parallel != 0) | (ranks % block.expert_ranks != 0)


def _sequence_parallel(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    alone = (block.sequence_parallel > 0) & (block.tensor_parallel == 1)
    needed = (block.sequence_parallel == 0) & (block.tensor_parallel > 1)
    needs = scenario.model.is_moe and scenario.framework.limits.experts_need_sequence_parallel
    return alone | (needed & needs)


def _zero_stage(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    limits = scenario.framework.limits
    highest = limits.zero_stage_with_pipeline if block.pipeline_parallel > 1 else limits.zero_stage
    if scenario.framework.fully_shard and highest:
        # FSDP2 shards everything, whatever the framework's own optimizer shards; replicas shard nothing.
        highest = 3
    return block.zero_stage > highest


def _sharding_degree(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    degree, groups = scenario.framework.sharding_degree, scenario.framework.sharding_replicas
    if groups > 1:
        return (block.zero_stage > 0) & ((block.replicas % groups != 0) | (degree > 0))
    if not degree:
        return False
    return (block.zero_stage >= 1) & (block.replicas % np.minimum(degree, block.replicas) != 0)


def _fp4_of_device(scenario: Scenario) -> str:
    return "nvfp4" if scenario.hardware.vendor == "NVIDIA" else "mxfp4"


def _fp8_recipe(pricing: Pricing) -> Any:
    """Return whether 8-bit scales of blocks of 32 meet a device without them (compute capability 10.0 and later)."""
    scenario = pricing.scenario
    blocks = scenario.precision == "fp8" and scenario.framework.fp8_recipe == "mxfp8"
    without = [each for each in scenario.kinds_of_device if each.vendor == "NVIDIA" and each.peak_flops.fp4 is None]
    return blocks and bool(without)


def _recompute_layers(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    if any(not 0 <= layer < scenario.model.num_hidden_layers for layer in block.recompute_layer_list):
        return True
    counted = pricing.recomputes("full") & ~pricing.recomputes_by("list")
    per_chunk = max(block.chunk_layers) if block.chunk_layers else max(block.stage_layers) / block.virtual_stages
    return counted & (block.recompute_layers > per_chunk)


def _recompute_modules(pricing: Pricing) -> Any:
    scenario, block = pricing.scenario, pricing.block
    selective = pricing.recomputes("selective")
    if not selective.any():
        return False
    encoded = BY_NAME["recompute_modules"].encoded
    foreign = set(RECOMPUTE_MODULES) - set(scenario.framework.limits.recompute_modules)
    foreign |= set() if scenario.model.attention == "mla" else {"mla_up_proj"}
    foreign |= set() if scenario.model.is_moe else {"moe_act", "moe_gate_up"}
    refused = int(encoded(tuple(foreign)))
    return selective & ((block.recompute_modules.astype(np.intp) & refused) > 0)


def _refused_modules(scenario: Scenario, layout: Layout) -> str:
    """Return why modules of selective recompute are refused."""
    modules = ",".join(layout.recompute_modules)
    known = scenario.framework.limits.recompute_modules
    if not set(layout.recompute_modules) <= set(known):
        return f"recompute modules {modules}: {scenario.framework.name} has {', '.join(known)}"
    return f"recompute modules {modules}: mla_up_proj needs latent attention, moe_act and moe_gate_up need experts"


@of_sizes
def _vocabulary(pricing: Pricing) -> Any:
    # Megatron pads the vocabulary and DTensor takes uneven shards; Paddle splits it as it is.
    scenario, block = pricing.scenario, pricing.block
    padded = scenario.framework.limits.pads_vocabulary
    return (scenario.model.vocab_size % block.tensor_parallel != 0) & (not padded)


def _uneven_chunks(scenario: Scenario, layout: Layout) -> str:
    """Return which layers and micro batches do not divide, with both numbers."""
    ranks, chunks, layers = layout.pipeline_parallel, layout.virtual_stages, sum(layout.stage_layers)
    batches = scenario.global_batch_size / (layout.micro_batch_size * layout.data_parallel)
    parts = [f"{layers} layers do not divide by {ranks} x {chunks}"] if layers % (ranks * chunks) else []
    if not parts and any(count % chunks for count in layout.stage_layers):
        parts.append(f"the layers {list(layout.stage_layers)} of the ranks do not divide by {chunks}")
    if batches % ranks:
        parts.append(f"{batches:g} micro batches do not divide by {ranks}")
    remedy = ", and ".join(parts) or "a pipeline of several is needed, whose layers are cut so"
    return f"{chunks} virtual stages on {ranks} pipeline ranks: {remedy}"


def _refused_layers(scenario: Scenario, layout: Layout) -> str:
    """Return which layers to recompute are beyond the model or a chunk."""
    layers, listed = scenario.model.num_hidden_layers, layout.recompute_layer_list
    if listed:
        return f"recompute layers {list(listed)}: the model's are 0 to {layers - 1}"
    return (
        f"{layout.recompute_layers} recomputed layers a chunk: {layers} layers on "
        f"{layout.pipeline_parallel} x {layout.virtual_stages} chunks have fewer"
    )


def _refused_experts(scenario: Scenario, layout: Layout) -> str:
    if not scenario.model.is_moe:
        return f"{scenario.model.name} has no experts"
    ranks = layout.tensor_parallel * layout.context_parallel * layout.data_parallel
    return (
        f"expert parallel {layout.expert_parallel} x expert tensor parallel {layout.expert_tensor_parallel} does not "
        f"divide {scenario.model.num_experts} experts over {ranks} ranks of a stage"
    )


def _sharding_groups(scenario: Scenario, _: Layout) -> str:
    groups = scenario.framework.sharding_replicas
    return f"{groups} groups" if groups > 1 else f"groups of {scenario.framework.sharding_degree}"


@of_sizes
def tensor_parallel_across_nodes(pricing: Pricing) -> Any:
    """Return the layouts whose (expert-)tensor-parallel group leaves a node, or nodes joined by links."""
    scenario, block = pricing.scenario, pricing.block
    each = [hardware.joined_devices(scenario.devices) for hardware in scenario.kinds_of_device]
    sizes = (block.tensor_parallel, block.expert_tensor_parallel)
    return np.any([joined % size != 0 for joined in each for size in sizes], axis=0)


def _cut(pricing: Pricing) -> Any:
    """Return whether a rank lacks a layer or the cut does not add up."""
    scenario, block = pricing.scenario, pricing.block
    layers = block.stage_layers
    total, listed = scenario.model.num_hidden_layers, block.chunk_layers
    if listed and (
        len(listed) != block.pipeline_parallel * block.first_virtual_stages
        or rank_layers(listed, block.pipeline_parallel, block.schedule) != layers
    ):
        return True
    fewest = 0 if listed and scenario.framework.limits.unequal_chunks else 1
    return len(layers) != block.pipeline_parallel or sum(layers) != total or min(layers) < fewest


def _node_groups(pricing: Pricing) -> Any:
    """Return whether a pipeline rank has devices of several kinds: speed and memory of a rank must be uniform."""
    scenario, block = pricing.scenario, pricing.block
    if len(scenario.groups) < 2:
        return False
    p, ends = block.pipeline_parallel, accumulate(group.devices for group in scenario.groups)
    return scenario.devices % p != 0 or any(e % (scenario.devices // p) for e in ends)


def _virtual_stages(pricing: Pricing) -> Any:
    """Return the layouts with virtual stages but no pipeline, or layers or micro batches that do not divide."""
    block = pricing.block
    several = block.virtual_stages > 1.0
    if not several.any():
        return False
    if block.pipeline_parallel < 2 or not _divides(pricing):
        return several
    if block.shape == "there_and_back":
        return False
    return several & (micro_batches(pricing) % block.pipeline_parallel != 0)


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


def _schedule(pricing: Pricing) -> Any:
    """Return the layouts whose framework, ranks, chunks or micro batches do not match their schedule."""
    scenario, block = pricing.scenario, pricing.block
    p, name = block.pipeline_parallel, block.schedule
    if name == BY_NAME["schedule"].default:
        return False
    shape = block.shape
    if name not in scenario.framework.limits.schedules or p == 1 or (shape == "round" and name not in ROUND):
        return True
    m = micro_batches(pricing)
    odd = (m % 2 != 0) & (shape == "both_ends")
    return (m < schedule_of(pricing).min_micro_batches(p)) | odd


def _refused_schedule(scenario: Scenario, layout: Layout) -> str:
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


def _two_stages(pricing: Pricing) -> Any:
    """Return the layouts that interleave chunks on two ranks without overlapped sends."""
    scenario, block = pricing.scenario, pricing.block
    profile = scenario.framework
    allowed = profile.overlap_p2p or profile.limits.interleaving_of_two_stages_without_overlap
    return (block.virtual_stages > 1.0) & (not allowed and block.pipeline_parallel == 2)


def _expert_overlap(pricing: Pricing) -> Any:
    """Return the layouts without another micro batch's compute to hide the exchange: one chunk, or full recompute."""
    scenario, block = pricing.scenario, pricing.block
    if not (scenario.framework.overlap_expert_exchange and scenario.model.is_moe):
        return False
    alone = (block.chunks == 1.0) & (block.pipeline_parallel > 1)
    return (block.expert_parallel > 1) & (alone | pricing.recomputes("full"))


_EXPERTS: Final = ("expert_fc1", "moe_act", "fused_group_mlp")
_NORMS: Final = ("attn_norm", "mlp_norm")
_MIXERS: Final = LATENT | {"grouped_query", "sliding"}  # mixers whose saved tensors are known by module
_BY_MODULE: Final = ("none", "selective")  # recompute modes under which layers still save tensors by module


def _offload_with_pipeline(pricing: Pricing) -> Any:
    """Return the layouts that offload whole layers with a pipeline, where the framework cannot."""
    limits = pricing.scenario.framework.limits
    refused = pricing.block.pipeline_parallel > 1 and not limits.activation_offload_with_pipeline
    return pricing.offloads("activations") & refused


def _offload_with_recompute(pricing: Pricing) -> Any:
    """Return the layouts that offload whole layers with recompute, where the framework cannot."""
    if pricing.scenario.framework.limits.activation_offload_with_recompute:
        return False
    return pricing.offloads("activations") & ~pricing.recomputes("none")


def _offloaded_modules(pricing: Pricing) -> Any:
    """Return the layouts that offload modules which stack, graphs or recompute exclude."""
    scenario = pricing.scenario
    offloaded = scenario.framework.offloaded_modules
    if not offloaded or any(_offload_problems(scenario)):
        return bool(offloaded)
    again = _experts_again(pricing) & bool(set(_EXPERTS) & set(offloaded))
    return ~pricing.recomputes(*_BY_MODULE) | pricing.offloads("activations") | again


def _experts_again(pricing: Pricing) -> Any:
    """Return the layouts whose selective recompute does the experts again."""
    modules, experts = pricing.block.recompute_modules, int(BY_NAME["recompute_modules"].encoded(("moe",)))
    return pricing.recomputes("selective") & ((modules.astype(np.intp) & experts) > 0)


def _captured(pricing: Pricing) -> Any:
    """Return the layouts whose layers are captured one by one and done again whole, or moved to the host."""
    graphs = pricing.scenario.framework.cuda_graphs
    if graphs in ("none", "full_iteration"):
        return False
    again = _experts_again(pricing) & (graphs == "attention_router")
    return pricing.recomputes("full") | pricing.offloads("activations") | again


def _refused_offload(scenario: Scenario, layout: Layout) -> str:
    """Return why a layout may not offload the modules of its stack."""
    stated = f"offloaded modules {','.join(scenario.framework.offloaded_modules)}"
    if reason := next(_offload_problems(scenario), None):
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


def _offload_problems(scenario: Scenario) -> Iterator[str]:
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


_BROKEN: Mapping[str, Masks] = {
    "devices": _devices,
    "heads": _heads,
    "undivided_attention": _undivided,
    "kv_heads": _kv_heads,
    "ffn": _ffn,
    "vocabulary": _vocabulary,
    "layers": _cut,
    "expert_overlap": _expert_overlap,
    "node_groups": _node_groups,
    "schedule": _schedule,
    "virtual_stages": _virtual_stages,
    "batch": _batch,
    "sequence": _sequence,
    "context_heads": _context,
    "unfused_context": _unfused_context,
    "experts": _experts,
    "sequence_parallel": _sequence_parallel,
    "zero_stage": _zero_stage,
    "sharding_groups": _sharding_degree,
    "fp4_recipe": lambda p: (
        p.scenario.precision == "fp4" and p.scenario.framework.fp4_recipe != _fp4_of_device(p.scenario)
    ),
    "fp8_recipe": _fp8_recipe,
    "parameters_on_host": lambda p: (p.block.zero_stage < 3) & p.scenario.framework.offload_parameters,
    "step_in_backward": lambda p: (micro_batches(p) > 1.0) & p.scenario.framework.step_in_backward,
    "offload_pipeline": _offload_with_pipeline,
    "offload_recompute": _offload_with_recompute,
    "offloaded_modules": _offloaded_modules,
    "captured_layers": _captured,
    "two_stages": _two_stages,
    "recompute_layers": _recompute_layers,
    "recompute_modules": _recompute_modules,
    "recompute_operations": lambda p: (
        p.recomputes("operations") & (not p.scenario.framework.limits.recomputes_operations)
    ),
    "tensor_parallel_across_nodes": tensor_parallel_across_nodes,
}
_FIGURES: Mapping[str, Callable[[Scenario, Layout], object]] = {
    "scenario": lambda s, _: s,
    "heads": lambda s, _: " or ".join(map(str, dict.fromkeys(_head_counts(s)))),
    "divisors_of_heads": lambda s, _: _divisors(math.gcd(*_head_counts(s))),
    "kv_heads": lambda s, _: " or ".join(map(str, _kv_head_counts(s))),
    "divisors_of_kv_heads": lambda s, _: _divisors(math.gcd(*_kv_head_counts(s))),
    "exchanged_heads": lambda s, _: f"{_exchanged_heads(s)} {'' if s.framework.repeat_kv else 'key-value '}".rstrip(),
    "widths": _refused_widths,
    "cut": lambda _, x: list(x.stage_layers),
    "layers_of_cut": lambda _, x: sum(x.stage_layers),
    "ranks_of_cut": lambda _, x: len(x.stage_layers),
    "devices_of_groups": lambda s, _: ", ".join(str(group.devices) for group in s.groups),
    "devices_of_node": lambda s, _: s.hardware.joined_devices(s.devices),
    "schedule_refused": _refused_schedule,
    "schedules": lambda s, _: " or ".join(s.framework.limits.schedules),
    "chunks": _uneven_chunks,
    "batch_piece": lambda _, x: x.micro_batch_size * x.data_parallel,
    "sequence_piece": lambda _, x: 2 * x.context_parallel * x.tensor_parallel,
    "experts": _refused_experts,
    "expert_fix": lambda s, _: "an expert parallel size that divides both" if s.model.is_moe else "--ep 1 --etp 1",
    "on_or_off": lambda _, x: "on" if x.sequence_parallel else "off",
    "switch_of_sequence_parallel": lambda _, x: f"--{'no-' if x.sequence_parallel else ''}sequence-parallel",
    "replicas": lambda _, x: x.data_parallel * x.context_parallel,
    "sharding_groups": _sharding_groups,
    "fp4_of_device": lambda s, _: _fp4_of_device(s),
    "layers_recomputed": _refused_layers,
    "modules": _refused_modules,
    "offloaded_modules": _refused_offload,
}  # figures in messages beside the fields of the layout


class _Figures(dict[str, object]):
    """Figures of a message, each computed when a template names it."""

    def __init__(self, scenario: Scenario, layout: Layout) -> None:
        super().__init__()
        self.scenario, self.layout = scenario, layout

    def __missing__(self, name: str) -> object:
        figure = _FIGURES.get(name)
        return getattr(self.layout, name) if figure is None else figure(self.scenario, self.layout)


def _rules() -> Iterator[Rule]:
    for row in read_table(__file__, "rules"):
        settings = tuple(row["settings"].split())
        yield Rule(row["id"], _BROKEN[row["id"]], row["about"], row["message"], row["fix"], settings)


*_ALWAYS, ACROSS_NODES = _rules()
RULES = tuple(_ALWAYS)
"""Rules for every layout, in order; a ranking also drops layouts that break `ACROSS_NODES` unless allowed."""
