"""Rules that a layout must keep, each with a stable id, a message and a fix.

A rule is a mask over a block of layouts and a row of `rules.csv` with its messages; a ranking drops a layout and counts
it under the first rule it breaks. Sufficient memory is not a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.operations.extents import inner_context, sequence_split
from simulator.question.arrays import Mask
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.documents import read_table
from simulator.question.specs.model import TRAITS, UNDIVIDED
from simulator.question.vocabulary import RECOMPUTE_MODULES
from simulator.search import pipelines
from simulator.search import space as offloads
from simulator.search.space import every, mask

Masks = Callable[[Pricing], Mask]
"""Function that returns which layouts of a block break a rule."""


class Rule(NamedTuple):
    """One rule."""

    id: str
    broken: Masks
    about: str
    """Condition that must hold, as a sentence."""
    template: str
    """Message with figures in braces: fields of the layout, or entries of `_FIGURES`."""
    fix_template: str

    def message(self, scenario: Scenario, layout: Layout) -> str:
        """Return how this layout breaks the rule."""
        return self.template.format_map(_Figures(scenario, layout))

    def fix(self, scenario: Scenario, layout: Layout) -> str:
        """Return how to keep it."""
        return self.fix_template.format_map(_Figures(scenario, layout))


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
    """Return the heads and groups that tensor parallelism splits, of every mixer in the model."""
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
    """Return the key-value heads of the mixers with such heads."""
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
    """Return the widths that do not divide."""
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
    # Causal balancing gives every context-parallel rank two pieces of the sequence.
    scenario, block = pricing.scenario, pricing.block
    pieces = np.where(block.context_parallel > 1, 2.0 * block.context_parallel, 1.0)
    return mask(scenario.seq_length % (pieces * sequence_split(block)) != 0)


def _exchanged_heads(scenario: Scenario) -> int:
    """Return the fewest heads that an all-to-all splits: query heads are a multiple of key-value heads."""
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
        # FSDP2 shards everything, whatever the framework's own optimizer shards.
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


def _fp4_of_device(scenario: Scenario) -> str:
    return "nvfp4" if scenario.hardware.vendor == "NVIDIA" else "mxfp4"


def _fp4_recipe(pricing: Pricing) -> Mask:
    scenario = pricing.scenario
    foreign = scenario.framework.fp4_recipe != _fp4_of_device(scenario)
    return every(pricing, broken=scenario.precision == "fp4" and foreign)


def _recompute_layers(pricing: Pricing) -> Mask:
    scenario, block = pricing.scenario, pricing.block
    if any(not 0 <= layer < scenario.model.num_hidden_layers for layer in block.recompute_layer_list):
        return every(pricing, broken=True)
    counted = pricing.recomputes("full") & ~pricing.recomputes_by("list")
    per_chunk = max(block.chunk_layers) if block.chunk_layers else max(block.stage_layers) / block.virtual_stages
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
    """Return why modules of selective recompute are refused."""
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


def tensor_parallel_across_nodes(pricing: Pricing) -> Mask:
    """Return the layouts whose (expert-)tensor-parallel group leaves a node, or nodes joined by links."""
    scenario, block = pricing.scenario, pricing.block
    across = every(pricing, broken=False)
    for hardware in scenario.kinds_of_device:
        joined = hardware.joined_devices(scenario.devices)
        across |= mask((joined % block.tensor_parallel != 0) | (joined % block.expert_tensor_parallel != 0))
    return across


_BROKEN: Mapping[str, Masks] = {
    "devices": _devices,
    "heads": _heads,
    "undivided_attention": _undivided,
    "kv_heads": _kv_heads,
    "ffn": _ffn,
    "vocabulary": _vocabulary,
    "layers": pipelines.cut,
    "expert_overlap": pipelines.expert_overlap,
    "node_groups": pipelines.node_groups,
    "schedule": pipelines.schedule,
    "virtual_stages": pipelines.virtual_stages,
    "batch": _batch,
    "sequence": _sequence,
    "context_heads": _context,
    "experts": _experts,
    "sequence_parallel": _sequence_parallel,
    "zero_stage": _zero_stage,
    "sharding_groups": _sharding_degree,
    "fp4_recipe": _fp4_recipe,
    "parameters_on_host": offloads.parameters,
    "offload_pipeline": offloads.activations,
    "offload_recompute": offloads.beside_recompute,
    "offloaded_modules": offloads.modules,
    "two_stages": pipelines.two_stages,
    "recompute_layers": _recompute_layers,
    "recompute_modules": _recompute_modules,
    "recompute_operations": _recompute_operations,
    "tensor_parallel_across_nodes": tensor_parallel_across_nodes,
}
_FIGURES: Mapping[str, Callable[[Scenario, Layout], object]] = {
    "scenario": lambda s, _: s,
    "model": lambda s, _: s.model,
    "framework": lambda s, _: s.framework,
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
    "schedule_refused": pipelines.refused_schedule,
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
    "hardware": lambda s, _: s.hardware_name,
    "fp4_of_device": lambda s, _: _fp4_of_device(s),
    "layers_recomputed": _refused_layers,
    "modules": _refused_modules,
    "offloaded_modules": offloads.refused_modules,
}
"""Figures in messages beside the fields of the layout."""


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
        yield Rule(row["id"], _BROKEN[row["id"]], row["about"], row["message"], row["fix"])


*_ALWAYS, ACROSS_NODES = _rules()
RULES = tuple(_ALWAYS)
"""Rules for every layout, in order; a ranking also drops layouts that break `ACROSS_NODES` unless allowed."""
