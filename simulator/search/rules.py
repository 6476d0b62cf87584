"""The rules a layout must keep, each with a stable id, a message and a fix.

A rule is a mask over a block of layouts; a ranking drops what any rule marks and counts it under the first such rule.
Whether memory is enough is no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.operations.extents import inner_context, sequence_split
from simulator.question.arrays import Mask
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.mixers import TRAITS, UNDIVIDED
from simulator.question.vocabulary import RECOMPUTE_MODULES
from simulator.search import pipelines
from simulator.search.pipelines import every, mask


class Rule(NamedTuple):
    """One rule."""

    id: str
    about: str
    """What must hold, as a sentence."""
    broken: Callable[[Pricing], Mask]
    message: Callable[[Scenario, Layout], str]
    fix: Callable[[Scenario, Layout], str]


def _divisors(number: int) -> str:
    return ", ".join(str(d) for d in range(1, min(number, 64) + 1) if number % d == 0)


def _devices(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    used = block.tensor_parallel * block.context_parallel * block.data_parallel * block.pipeline_parallel
    return mask(used != scenario.devices)


def _heads(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    broken = every(pricing, broken=False)
    for heads in _head_counts(scenario):
        broken = broken | (heads % block.tensor_parallel != 0)
    return mask(broken)


def _head_counts(scenario: Scenario) -> tuple[int, ...]:
    """Heads and groups that tensor parallelism splits, of every mixer the model has."""
    model = scenario.model
    sliding = (model.sliding_attention_heads,) if model.sliding_attention_heads else ()
    linear = (model.linear_key_heads, model.linear_value_heads, model.mamba_heads, model.mamba_groups)
    return (model.num_attention_heads, *sliding, *(heads for heads in linear if heads))


def _undivided(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    if UNDIVIDED.isdisjoint(kind.mixer for kind in scenario.model.layer_kinds):
        return every(pricing, broken=False)
    return mask((block.tensor_parallel > 1) | (block.context_parallel > 1))


def _kv_head_counts(scenario: Scenario) -> tuple[int, ...]:
    """Key-value heads of the mixers that have some."""
    model = scenario.model
    mixers = {kind.mixer for kind in model.layer_kinds if TRAITS[kind.mixer].heads == "key_value"}
    return tuple(sorted({model.heads(mixer).shared for mixer in mixers}))


def _kv_heads(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    t, broken = block.tensor_parallel, every(pricing, broken=False)
    for shared in _kv_head_counts(scenario):
        copied = (t % shared == 0) & scenario.framework.limits.replicates_kv_heads
        broken = broken | ((shared % t != 0) & ~copied)
    return mask(broken)


def _ffn_widths(scenario: Scenario) -> tuple[int, ...]:
    model = scenario.model
    dense = tuple(dict.fromkeys(model.of_kind(kind).intermediate_size for kind in model.layers if kind.has_network))
    return dense + ((model.shared_width,) if model.num_shared_experts else ())


def _ffn(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    broken = every(pricing, broken=False)
    for width in _ffn_widths(scenario):
        broken = broken | (width % block.tensor_parallel != 0)
    if scenario.model.is_moe:
        broken = broken | (scenario.model.moe_intermediate_size % block.expert_tensor_parallel != 0)
    return mask(broken)


def _refused_widths(scenario: Scenario, layout: Layout) -> str:
    """Each width that does not divide."""
    t, etp, width = layout.tensor_parallel, layout.expert_tensor_parallel, scenario.model.moe_intermediate_size
    problems = [
        f"feed-forward width {w} does not divide by tensor parallel {t}" for w in _ffn_widths(scenario) if w % t
    ]
    of_experts = f"expert width {width} does not divide by expert tensor parallel {etp}"
    return ", ".join([*problems, of_experts] if scenario.model.is_moe and width % etp else problems)


def _batch(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    return mask(scenario.global_batch_size % (block.micro_batch_size * block.data_parallel) != 0)


def _sequence(pricing: Pricing) -> Mask:
    # Causal balance gives every context-parallel rank two pieces of the sequence.
    scenario, block = pricing.scenario, pricing.block
    pieces = np.where(block.context_parallel > 1, 2.0 * block.context_parallel, 1.0)
    return mask(scenario.seq_length % (pieces * sequence_split(block)) != 0)


def _exchanged_heads(scenario: Scenario) -> int:
    """The fewest heads that an all-to-all splits: query heads are a multiple of the key-value heads."""
    model = scenario.model
    return model.num_attention_heads if scenario.framework.repeat_kv else model.num_key_value_heads


def _context(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    if scenario.framework.cp_communication not in ("all_to_all", "all_to_all_ring"):
        return every(pricing, broken=False)
    inner = inner_context(pricing)
    undivided = (_exchanged_heads(scenario) % (block.tensor_parallel * inner) != 0) & (inner > 1)
    return mask(undivided | (block.context_parallel % inner != 0))


def _experts(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    if not scenario.model.is_moe:
        return mask(block.expert_ranks > 1)
    ranks = block.tensor_parallel * block.replicas
    return mask((scenario.model.num_experts % block.expert_parallel != 0) | (ranks % block.expert_ranks != 0))


def _sequence_parallel(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    alone = (block.sequence_parallel > 0) & (block.tensor_parallel == 1)
    needed = (block.sequence_parallel == 0) & (block.tensor_parallel > 1)
    if scenario.model.is_moe and scenario.framework.limits.experts_need_sequence_parallel:
        return mask(alone | needed)
    return mask(alone)


def _zero_stage(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    limits = scenario.framework.limits
    highest = limits.zero_stage_with_pipeline if block.pipeline_parallel > 1 else limits.zero_stage
    if scenario.framework.fully_shard:
        # FSDP2 shards all there is, whatever the framework's own optimizer does.
        highest = 3
    return mask(block.zero_stage > highest)


def _sharding_degree(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    degree, groups = scenario.framework.sharding_degree, scenario.framework.sharding_replicas
    if groups > 1:
        return mask((block.zero_stage > 0) & ((block.replicas % groups != 0) | (degree > 0)))
    if not degree:
        return every(pricing, broken=False)
    return mask((block.zero_stage >= 1) & (block.replicas % np.minimum(degree, block.replicas) != 0))


def _offload_parameters(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    return mask((block.zero_stage < 3) & scenario.framework.offload_parameters)


def _offload(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    refused = block.pipeline_parallel > 1 and not scenario.framework.limits.activation_offload_with_pipeline
    return mask(pricing.offloads("activations") & refused)


def _offload_recompute(pricing: Pricing) -> Mask:
    scenario = pricing.scenario
    if scenario.framework.limits.activation_offload_with_recompute:
        return every(pricing, broken=False)
    return mask(pricing.offloads("activations") & ~pricing.recomputes("none"))


def _recompute_layers(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    if any(not 0 <= layer < scenario.model.num_hidden_layers for layer in block.recompute_layer_list):
        return every(pricing, broken=True)
    counted = pricing.recomputes("full") & ~pricing.recomputes_by("list")
    largest = max(block.chunk_layers, default=0)
    per_chunk = largest if block.chunk_layers else max(block.stage_layers, default=1) / block.virtual_stages
    return mask(counted & (block.recompute_layers > per_chunk))


def _recompute_modules(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    selective = pricing.recomputes("selective")
    if not selective.any():
        return every(pricing, broken=False)
    encoded = BY_NAME["recompute_modules"].encoded
    foreign = set(RECOMPUTE_MODULES) - set(scenario.framework.limits.recompute_modules)
    foreign |= set() if scenario.model.attention == "mla" else {"mla_up_proj"}
    foreign |= set() if scenario.model.is_moe else {"moe_act", "moe_gate_up"}
    refused = int(encoded(tuple(foreign)))
    return mask(selective & ((block.recompute_modules.astype(np.intp) & refused) > 0))


def _recompute_operations(pricing: Pricing) -> Mask:
    scenario = pricing.scenario
    return mask(pricing.recomputes("operations") & (not scenario.framework.limits.recomputes_operations))


def _refused_modules(scenario: Scenario, layout: Layout) -> str:
    """Why modules of selective recompute are refused."""
    modules = ",".join(layout.recompute_modules)
    known = scenario.framework.limits.recompute_modules
    if not set(layout.recompute_modules) <= set(known):
        return f"recompute modules {modules}: {scenario.framework.name} has {', '.join(known)}"
    return f"recompute modules {modules}: mla_up_proj needs latent attention, moe_act and moe_gate_up need experts"


def _vocabulary(pricing: Pricing) -> Mask:
    # Megatron pads the vocabulary and DTensor takes uneven shards; Paddle splits it as it is.
    scenario, block = pricing.scenario, pricing.block
    padded = scenario.framework.limits.pads_vocabulary
    return mask((scenario.model.vocab_size % block.tensor_parallel != 0) & (not padded))


def _uneven_chunks(scenario: Scenario, layout: Layout) -> str:
    """What of layers and micro batches does not divide, with both numbers."""
    ranks, chunks, layers = layout.pipeline_parallel, layout.virtual_stages, sum(layout.stage_layers)
    batches = scenario.global_batch_size / (layout.micro_batch_size * layout.data_parallel)
    parts = [f"{layers} layers do not divide by {ranks} x {chunks}"] if layers % (ranks * chunks) else []
    if not parts and any(count % chunks for count in layout.stage_layers):
        parts.append(f"the layers {list(layout.stage_layers)} of the ranks do not divide by {chunks}")
    if batches % ranks:
        parts.append(f"{batches:g} micro batches do not divide by {ranks}")
    remedy = ", and ".join(parts) or "a pipeline of several is needed, whose layers are cut so"
    return f"{chunks} virtual stages on {ranks} pipeline ranks: {remedy}"


RULES: tuple[Rule, ...] = (
    Rule(
        "devices",
        "tensor x pipeline x context x data parallel equals the devices",
        _devices,
        lambda s, x: f"the layout takes {x.devices} devices, the cluster has {s.devices}",
        lambda s, _: f"choose sizes whose product is {s.devices}",
    ),
    Rule(
        "heads",
        "attention heads divide by tensor parallel",
        _heads,
        lambda s, x: (
            f"{' or '.join(map(str, dict.fromkeys(_head_counts(s))))} attention heads do not divide by tensor parallel "
            f"{x.tensor_parallel}"
        ),
        lambda s, _: f"tensor parallel of {_divisors(math.gcd(*_head_counts(s)))}",
    ),
    Rule(
        "undivided_attention",
        "attention that no framework cuts is whole on every device",
        _undivided,
        lambda s, _x: f"no framework cuts the attention of {s.model.name} over tensor or context parallelism",
        lambda _s, _x: "--tp 1 --cp 1, and expert or pipeline parallelism",
    ),
    Rule(
        "kv_heads",
        "key-value heads divide by tensor parallel",
        _kv_heads,
        lambda s, x: (
            f"{' or '.join(map(str, _kv_head_counts(s)))} key-value heads do not divide by tensor parallel "
            f"{x.tensor_parallel}"
        ),
        lambda s, _: f"tensor parallel of {_divisors(math.gcd(*_kv_head_counts(s)))}",
    ),
    Rule(
        "ffn",
        "feed-forward widths divide by tensor parallel, expert widths by expert tensor parallel",
        _ffn,
        _refused_widths,
        lambda _s, _x: "a smaller tensor or expert tensor parallel size",
    ),
    Rule(
        "vocabulary",
        "the vocabulary divides by tensor parallel where the framework does not pad it",
        _vocabulary,
        lambda s, x: f"vocabulary {s.model.vocab_size} does not divide by tensor parallel {x.tensor_parallel}",
        lambda _s, _x: "a smaller tensor parallel size or a padded vocabulary",
    ),
    Rule(
        "layers",
        "every pipeline rank has a layer and the cut adds up",
        pipelines.cut,
        lambda s, x: (
            f"the cut {list(x.stage_layers)} has {sum(x.stage_layers)} layers on {len(x.stage_layers)} ranks; "
            f"{s.model.name} has {s.model.num_hidden_layers}, the pipeline {x.pipeline_parallel} ranks"
        ),
        lambda s, _: f"pipeline parallel of at most {s.model.num_hidden_layers}, and a cut with that sum",
    ),
    Rule(
        "expert_overlap",
        "an overlapped exchange of experts has model chunks in a pipeline and no full recompute",
        pipelines.expert_overlap,
        lambda _s, x: (
            "the exchange of experts overlaps only with model chunks where there is a pipeline, and without full "
            f"recompute; the layout has pipeline parallel {x.pipeline_parallel}, virtual stages {x.virtual_stages}, "
            f"recompute {x.recompute}"
        ),
        lambda _s, _x: "virtual stages of 2 or more, recompute of modules, or --option overlap_expert_exchange=false",
    ),
    Rule(
        "node_groups",
        "every pipeline rank lies inside one node group",
        pipelines.node_groups,
        lambda s, x: (
            f"pipeline parallel {x.pipeline_parallel} puts a rank on devices of two kinds: the groups have "
            f"{', '.join(str(g.devices) for g in s.groups)} devices"
        ),
        lambda _s, _x: "a pipeline size that divides the devices at the groups' borders",
    ),
    Rule(
        "schedule",
        "framework, ranks, chunks and micro batches are those of the schedule",
        pipelines.schedule,
        pipelines.refused_schedule,
        lambda s, _: f"--schedule {' or '.join(s.framework.limits.schedules)}",
    ),
    Rule(
        "virtual_stages",
        "virtual stages need a pipeline, layers that divide, and micro batches that divide by pipeline ranks",
        pipelines.virtual_stages,
        _uneven_chunks,
        lambda _s, _x: "fewer virtual stages, or micro batches that are a multiple of pipeline parallel",
    ),
    Rule(
        "batch",
        "the global batch divides by micro batch x data parallel",
        _batch,
        lambda s, x: (
            f"global batch {s.global_batch_size} does not divide by micro batch {x.micro_batch_size} x data "
            f"parallel {x.data_parallel}"
        ),
        lambda _s, x: f"a global batch that is a multiple of {x.micro_batch_size * x.data_parallel}",
    ),
    Rule(
        "sequence",
        "the sequence divides by 2 x context parallel (x tensor parallel with sequence parallelism)",
        _sequence,
        lambda s, x: (
            f"sequence length {s.seq_length} does not divide over context parallel {x.context_parallel} in "
            f"two pieces each and tensor parallel {x.tensor_parallel}"
        ),
        lambda _s, x: f"a multiple of {2 * x.context_parallel * x.tensor_parallel}",
    ),
    Rule(
        "context_heads",
        "all-to-all context parallelism splits heads",
        _context,
        lambda s, x: (
            f"all-to-all needs {_exchanged_heads(s)} "
            f"{'' if s.framework.repeat_kv else 'key-value '}heads to divide by tensor parallel "
            f"{x.tensor_parallel} x the ranks that exchange, of context parallel {x.context_parallel}"
        ),
        lambda _s, _x: "--option cp_communication=ring, or less context parallelism",
    ),
    Rule(
        "experts",
        "experts divide by expert parallel, and expert groups fill the ranks of a stage",
        _experts,
        lambda s, x: (
            f"expert parallel {x.expert_parallel} x expert tensor parallel {x.expert_tensor_parallel} does not divide "
            f"{s.model.num_experts} experts over {x.tensor_parallel * x.context_parallel * x.data_parallel} ranks of a "
            "stage"
            if s.model.is_moe
            else f"{s.model.name} has no experts"
        ),
        lambda s, _x: "an expert parallel size that divides both" if s.model.is_moe else "--ep 1 --etp 1",
    ),
    Rule(
        "sequence_parallel",
        "sequence parallelism needs tensor parallelism; Megatron's experts with tensor parallelism need it",
        _sequence_parallel,
        lambda _s, x: (
            f"sequence parallelism {'on' if x.sequence_parallel else 'off'} with tensor parallel {x.tensor_parallel}"
        ),
        lambda _s, x: "--no-sequence-parallel" if x.sequence_parallel else "--sequence-parallel",
    ),
    Rule(
        "zero_stage",
        "the framework offers the ZeRO stage",
        _zero_stage,
        lambda s, x: (
            f"{s.framework.name} does not offer ZeRO stage {x.zero_stage} with pipeline parallel {x.pipeline_parallel}"
        ),
        lambda _s, _x: "--zero-stage 1",
    ),
    Rule(
        "sharding_groups",
        "the ranks with the same parameters divide into groups that ZeRO shards over",
        _sharding_degree,
        lambda s, x: (
            f"{x.data_parallel * x.context_parallel} ranks with the same parameters do not divide into "
            + (
                f"{n} groups"
                if (n := s.framework.sharding_replicas) > 1
                else f"groups of {s.framework.sharding_degree}"
            )
        ),
        lambda _s, _x: "--option sharding_degree=0, or a degree or sharding_replicas that divides them",
    ),
    Rule(
        "parameters_on_host",
        "parameters on the host need ZeRO 3",
        _offload_parameters,
        lambda _s, x: f"parameters are kept on the host with ZeRO stage {x.zero_stage}",
        lambda _s, _x: "--zero-stage 3, or --option offload_parameters=false",
    ),
    Rule(
        "offload_pipeline",
        "Megatron refuses activation offloading with a pipeline",
        _offload,
        lambda _s, x: (
            f"activations offloaded beside pipeline parallel {x.pipeline_parallel}: the framework answers "
            "'Currently there is no support for Pipeline parallelism with CPU offloading'"
        ),
        lambda _s, _x: "--pp 1, or recompute instead of offload",
    ),
    Rule(
        "offload_recompute",
        "Megatron refuses activation offloading beside recomputation",
        _offload_recompute,
        lambda _s, x: f"activations offloaded beside recompute {x.recompute}",
        lambda _s, _x: "--recompute none, or --offload none",
    ),
    Rule(
        "two_stages",
        "Megatron interleaves two pipeline ranks only with overlapped sends",
        pipelines.two_stages,
        lambda _s, x: f"{x.virtual_stages} virtual stages on 2 pipeline ranks whose sends nothing overlaps",
        lambda _s, _x: "--vpp 1, --pp 4, or --option overlap_p2p=true",
    ),
    Rule(
        "recompute_layers",
        "recomputed layers exist on every chunk",
        _recompute_layers,
        lambda s, x: (
            f"recompute layers {list(x.recompute_layer_list)}: the model's are 0 to {s.model.num_hidden_layers - 1}"
            if x.recompute_layer_list
            else f"{x.recompute_layers} recomputed layers a chunk: {s.model.num_hidden_layers} layers on "
            f"{x.pipeline_parallel} x {x.virtual_stages} chunks have fewer"
        ),
        lambda _s, _x: "a number from 1 to the layers of a chunk, indices within the model",
    ),
    Rule(
        "recompute_modules",
        "framework and model have the modules that are recomputed",
        _recompute_modules,
        _refused_modules,
        lambda _s, _x: "--recompute selective --recompute-modules core_attn, or another --recompute",
    ),
    Rule(
        "recompute_operations",
        "only torch keeps what a list of operations puts out and does the others again",
        _recompute_operations,
        lambda s, _x: f"recompute operations: {s.framework.name} recomputes modules or whole layers",
        lambda _s, _x: "--framework torch, or --recompute selective",
    ),
)
"""In the order they are checked."""


def tensor_parallel_across_nodes(pricing: Pricing) -> Mask:
    """Layouts whose tensor-parallel or expert-tensor-parallel group leaves a node, or the nodes that links join."""
    scenario, block = pricing.scenario, pricing.block
    across = every(pricing, broken=False)
    for hardware in scenario.kinds_of_device:
        joined = hardware.joined_devices(scenario.devices)
        across |= mask((joined % block.tensor_parallel != 0) | (joined % block.expert_tensor_parallel != 0))
    return across


ACROSS_NODES = Rule(
    "tensor_parallel_across_nodes",
    "tensor-parallel groups stay inside a node",
    tensor_parallel_across_nodes,
    lambda s, x: (
        f"tensor parallel {x.tensor_parallel} leaves the {s.hardware.joined_devices(s.devices)} devices of a node"
    ),
    lambda _s, _x: "--allow-tp-across-nodes, or a smaller tensor parallel size",
)
"""A ranking drops these unless told otherwise; an estimate prices them."""
