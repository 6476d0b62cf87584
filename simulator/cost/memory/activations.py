"""Activations that layers save for their backward pass: of one layer by recompute policy, and of a rank in flight.

Figures of a layer are per micro batch and device. In formulas T is tokens on the device (micro batch x sequence /
context parallel), t tensor parallel and h hidden size; bytes are those of 16-bit training (an fp32 element takes four).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import groupby
from typing import Final

import numpy as np

from simulator.cost.derived import Pricing, derived, of_passes, of_sizes, of_work, recomputed_inside, remembered
from simulator.cost.dtypes import FP32, HALF, adapter_bytes, element_bytes, parameter_dtype
from simulator.cost.operations.attention import softmax_gradient_bytes
from simulator.cost.operations.blocks import (
    casts_listed,
    decomposed,
    decomposing,
    inputs,
    keeps_inputs,
    merges_experts,
    norm_copies,
    puts_out_wide,
)
from simulator.cost.operations.layer import NETWORKS, layer_operations, product_inputs, whole_operations
from simulator.cost.operations.recompute import Modules, freed, parts, returning
from simulator.cost.operations.record import (
    Amount,
    Conditions,
    Operation,
    Saved,
    conditions_of,
    moved,
    sent,
    summed,
)
from simulator.cost.operations.sums import adapters_of, extent, micro_batches, saved_amounts, total, weights_of
from simulator.cost.schedule.orders import schedule_of
from simulator.cost.schedule.schedule import BACKWARD, FORWARD, HELD, INPUT_GRADIENT, STEADY, Schedule
from simulator.cost.stages import over_layers
from simulator.question.arrays import NDArray, equal_columns, largest
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.scenario.block import Array, KindArray, Mask, StageArray
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode
from simulator.records import Bare

_Tensors = Callable[[Conditions, LayerKind, Operation], tuple[Saved, ...]]
"""Tensors of an operation that leave the device."""


@derived
def layer_input_bytes(pricing: Pricing) -> Array:
    """Return the bytes of residual streams at a layer boundary, `2 T h` each, shape (n,): what full recompute saves.

    A table in fp32 that nothing casts makes them fp32: one that peft stored so, or autocast's; so does its LayerNorm.
    """
    scenario = pricing.scenario
    normed = scenario.model.embedding_norm and casts_listed(conditions_of(scenario))[1]
    wide = (pricing.block.zero_stage < normed) | (scenario.widened_modules and scenario.trains("embedding"))
    width = np.where(wide | has_wide_stream(pricing) | autocasts(pricing), FP32, element_bytes(scenario))
    streams: Array = width * scenario.model.stream_width * extent(pricing, "sequence")
    return streams


def widened_rest(pricing: Pricing) -> Mask:
    """Return where a 4-bit base's tables and norms are stored in fp32: not where ZeRO 3 shards them (M2)."""
    return pricing.scenario.widened_rest & (pricing.block.zero_stage < 3)


def has_wide_stream(pricing: Pricing) -> Mask:
    """Return where norms over a quantised base put out fp32, as its products do then: stored so or autocast's (M36)."""
    return widened_rest(pricing) | puts_out_wide(conditions_of(pricing.scenario))


def autocasts(pricing: Pricing) -> Mask:
    """Return where fp32 weights that nothing wraps are cast product by product (M36)."""
    scenario = pricing.scenario
    framework, frozen = scenario.framework, scenario.lora_rank is not None
    stored = framework.frozen_dtype if frozen and not framework.quantised_base else parameter_dtype(scenario)
    plain = framework.plain_module and stored == "fp32" and element_bytes(scenario) < FP32
    return (plain and not (frozen and framework.quantised_base)) & (pricing.block.zero_stage < 1)


def gathers_adapters(pricing: Pricing) -> Mask:
    """Return where FSDP2 gathers adapters in the compute type, so that nothing casts what they read (M15)."""
    scenario, profile = pricing.scenario, pricing.scenario.framework
    casts = scenario.lora_rank is not None and profile.adapter_copies and profile.adapter_dropout != "before"
    return (pricing.block.zero_stage >= 1) & (casts and profile.fully_shard and not profile.flat_parameters)


@of_work
def _cast_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that a layer saves more under autocast, shape (n,) (M36)."""
    conditions, model = conditions_of(pricing.scenario), pricing.scenario.model
    operations, framework, copies = layer_operations(conditions, kind), conditions.framework, norm_copies(conditions)
    every, more = [each for operation in operations for each in operation.saved], FP32 / element_bytes(conditions) - 1.0
    entered = [tensor for tensor in every if tensor.name.endswith("_norm_input") and copies < FP32]
    bases = [each for each in every if each.name.endswith("_base_output")]
    if conditions.lora_rank is not None and not framework.quantised_base:
        narrow = HALF * sum(w.parameters for w in weights_of(operations) if w.matmul) / pricing.block.tensor_parallel
        return narrow + more * total(pricing, summed(entered))
    if conditions.lora_rank is not None and framework.adapter_copies and not framework.autocast:
        # Nothing is cast to 16 bits.
        wide_names = ("_statistics", *(("_norm_input",) if copies >= FP32 else ()))
        layer = [each for operation in operations if operation.group != "adapter" for each in operation.saved]
        layer = [each for each in layer if not each.name.endswith(wide_names)]
        return more * total(pricing, summed([*layer, *bases]))
    if conditions.lora_rank is not None:
        networks = (operation for operation in operations if operation.group in ("feed_forward", "shared_experts"))
        entered += [tensor for each in networks for tensor in each.saved if not tensor.name.endswith("_product")]
        entered += [tensor for tensor in product_inputs(conditions, kind) if tensor.name != "attention_output"]
        # Values are cast, and no view of a joint projection that was rotated is left.
        joint = total(pricing, summed(tensor for tensor in every if tensor.name == "qkv_output"))
        viewed = model.rotary * (model.query_width + model.kv_width) / (model.query_width + 2 * model.kv_width)
        return more * total(pricing, summed([*entered, *bases])) - viewed * joint
    further = _read_again(conditions, operations)
    wide = FP32 if copies <= FP32 else 2.0 * FP32  # one kernel saves the stream alone
    norms = [operation.saved for operation in operations if operation.group == "norm"]
    further += max(wide - copies, 0.0) * sum(any(each.name.endswith("_norm_input") for each in norm) for norm in norms)
    return further * float(model.hidden_size) * extent(pricing, "sequence")


def _read_again(conditions: Conditions, operations: Iterable[Operation]) -> float:
    """Return the bytes per feature of casts of what norms put out, one for each product, beyond the first (M36)."""
    model, further = conditions.model, 0.0
    for operation in operations:
        readers = [weight for weight in operation.weights if weight.matmul and weight.split == "column"]
        reads = min(len(readers), 1) if conditions.framework.fused_projections else len(readers)
        further += HALF * max(reads - (not model.shared_norm or operation.group != "feed_forward"), 0)
    return further


@of_work
def _listed_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that a layer saves more where each LayerNorm casts 16 bits for itself, shape (n,) (M36)."""
    conditions = conditions_of(pricing.scenario)
    operations = layer_operations(conditions, kind)
    names = [tensor.name for operation in operations for tensor in operation.saved]
    number = FP32 * sum(name.endswith("_norm_statistics") for name in names)
    number -= HALF * sum(name.endswith("_norm_input") for name in names)
    number += 0.0 if conditions.lora_rank is not None else _read_again(conditions, operations)
    return number * float(conditions.model.hidden_size) * extent(pricing, "sequence")


@derived
def adapter_casts(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes of a layer's adapters, but experts', as autocast casts them for a pass, shape (n,) (M36)."""
    scenario, conditions = pricing.scenario, conditions_of(pricing.scenario)
    if adapter_bytes(scenario) == element_bytes(scenario):
        return np.zeros(len(pricing))
    number = adapters_of(conditions, layer_operations(conditions, kind))
    whole = number.split / pricing.block.tensor_parallel + number.replicated
    return np.where(pricing.block.zero_stage < 1, HALF, 0.0) * whole


@of_work
def embedded_bytes(pricing: Pricing) -> Array:
    """Return the bytes that a micro batch saves before the first layer, shape (n,): norm and dropout of embeddings."""
    operations = inputs(conditions_of(pricing.scenario))
    return total(pricing, summed(tensor for operation in operations for tensor in operation.saved))


@of_work
def saved_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that a layer saves when nothing is recomputed, shape (n,)."""
    conditions, split = conditions_of(pricing.scenario), (pricing.block.tensor_parallel, pricing.block.expert_ranks)
    width, weights = decomposing(conditions)[3], decomposed(conditions, layer_operations(conditions, kind))
    dropped = width * sum(each.parameters / split[each.routed] for each in weights)  # of which the inputs are (M42)
    return total(pricing, saved_amounts(conditions, kind)) + merged_bytes(pricing, kind)[0] + dropped


def merged_bytes(pricing: Pricing, kind: LayerKind) -> tuple[Array | float, Array | float]:
    """Return the bytes of a layer's experts merged with adapters, and those beside them in its backward pass (M40).

    Beside them is one matrix's gradient, or all that was added to them, made anew with the layer.
    """
    scenario, conditions = pricing.scenario, conditions_of(pricing.scenario)
    operations = layer_operations(conditions, kind) if kind.routed and merges_experts(conditions) else ()
    sizes = [each.parameters for part in operations for each in part.weights if each.routed and each.matmul]
    if not sizes:
        return 0.0, 0.0
    wide = scenario.frozen_in_fp32 | (widened_rest(pricing) & (not scenario.framework.quantised_experts))
    number = np.where(wide, FP32, element_bytes(scenario)) / pricing.block.expert_ranks
    beside = sum(sizes) if scenario.framework.merged_expert_adapters == "added" else min(sizes)
    return number * sum(sizes), number * beside


def by_policy(pricing: Pricing, otherwise: Array, figure: Callable[[RecomputeMode, Modules], Array]) -> Array:
    """Return a layer's figure under each policy of selective recompute of the block, `otherwise` without one."""
    for mode, modules, chosen in recomputed_inside(pricing):
        otherwise = np.where(chosen, figure(mode, modules), otherwise)
    return otherwise


def layer_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that a layer saves under selective recompute, shape (n,); full recompute is per stage (M6)."""
    result = by_policy(pricing, saved_bytes(pricing, kind), partial(_bytes_left, pricing, kind))
    result = result + adapter_casts(pricing, kind)
    model, narrow = pricing.scenario.model, gathers_adapters(pricing)
    listed, normed = casts_listed(conditions_of(pricing.scenario))
    wide = has_wide_stream(pricing)
    cast = autocasts(pricing) | wide
    result = result + np.where(cast, _cast_bytes(pricing, kind), 0.0) if cast.any() else result
    result = result + np.where(cast, 0.0, _listed_bytes(pricing, kind)) if normed else result
    if listed and model.activation == "gelu_new":
        powers = 3.0 * (FP32 - HALF) * kind.has_network * model.of_kind(kind).intermediate_size
        result = result + np.where(wide, 0.0, powers * extent(pricing, "tensor"))
    if not narrow.any():
        return result
    saved = (each for operation in layer_operations(conditions_of(pricing.scenario), kind) for each in operation.saved)
    copies = summed(each for each in saved if each.name == "adapter_copies")
    return result - np.where(narrow, total(pricing, copies), 0.0)


@of_work
def _bytes_left(pricing: Pricing, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Array:
    """Return the bytes that a layer saves under one recompute policy."""
    dropped = freed(conditions_of(pricing.scenario), kind, mode, modules)
    saved = saved_bytes(pricing, kind)
    return saved - total(pricing, dropped) if dropped else saved


@of_work
def delayed_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that a layer's backward pass holds for weight gradients computed later, shape (n,).

    They are the output gradients of its products, and two copies of each routed token for the other micro batch's
    exchange: one read, one written (MindSpeed 028de58c, moe_feature/fb_overlap/overlap_funcs/fwdbwd.py and
    modules/weight_grad_store.py).
    """
    conditions = conditions_of(pricing.scenario)
    operations = layer_operations(conditions, kind)
    amounts = [Amount(float(w.outputs), w.output_spread) for w in weights_of(operations) if w.matmul]
    if any(operation.name == "dispatch" for operation in operations):
        amounts.append(Amount(2.0 * conditions.model.expert_width, "copies"))
    return element_bytes(conditions) * total(pricing, summed(amounts))


def repeated_working_set(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that selective recompute adds to a layer's backward pass, shape (n,).

    Modules are recomputed one at a time, after the modules behind them have freed their tensors: the largest counts.
    Attention scores are alive together with their gradient.
    """
    return by_policy(pricing, np.zeros(len(pricing)), partial(_policy_working_set, pricing, kind))


@of_work
def _policy_working_set(pricing: Pricing, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Array:
    """Return the bytes that one recompute policy adds to a layer's backward pass."""
    most = np.zeros(len(pricing))
    for returned, released in returning(conditions_of(pricing.scenario), kind, mode, modules):
        if returned:
            most = np.maximum(total(pricing, returned) - total(pricing, released), most)
    return most


def returning_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that one layer brings back to the device, shape (n,), by offload or a share that is recomputed.

    Selective recompute makes its tensors again, whether or not their module is offloaded.
    """
    profile, conditions = pricing.scenario.framework, conditions_of(pricing.scenario)
    if not returning_layers(profile):
        return np.zeros(len(pricing))
    whole = summed(tensor for operation in whole_operations(conditions, kind) for tensor in operation.saved)
    every = total(pricing, whole) - total(pricing, saved_amounts(conditions, kind))
    left = partial(_offloaded, pricing, kind)
    return by_policy(pricing, every, lambda mode, modules: every - (left("none", ()) - left(mode, modules)))


def returning_layers(profile: FrameworkProfile) -> float:
    """Return how many layers hold what they bring back at once; 0 if nothing is brought back.

    Swapped attention holds two layers: one computed, one copied. Offloaded modules hold three, as backward and forward
    passes alternate: one computed, one on its way out, one on its way in.
    """
    if profile.offloaded_modules:
        return 3.0
    if profile.swapped_attention:
        return 2.0
    return 1.0 if profile.recomputed_expert_share or profile.recomputed_network_share else 0.0


def sent_bytes(pricing: Pricing) -> KindArray | float:
    """Return the bytes that each kind of rank's layers offload to the host per micro batch; 0 if none do."""
    profile, contents = pricing.scenario.framework, pricing.contents
    if not profile.swapped_attention and not profile.offloaded_modules:
        return 0.0
    figures = (partial(_offloaded, pricing, kind, tensors=sent) for kind in contents.layer_kinds)
    each = [by_policy(pricing, figure("none", ()), figure) for figure in figures]
    return over_layers(contents.with_prediction, each)


@of_work
def _offloaded(
    pricing: Pricing, kind: LayerKind, mode: RecomputeMode, modules: Modules, tensors: _Tensors = moved
) -> Array:
    """Return the bytes of a layer's offloaded tensors that a recompute policy does not make again, shape (n,)."""
    conditions = conditions_of(pricing.scenario)
    again = parts(conditions, kind, mode, modules)
    left = (
        tensor
        for operation in whole_operations(conditions, kind)
        for tensor in tensors(conditions, kind, operation)
        if not any(part.drops(operation, tensor) for part in again)
    )
    return total(pricing, summed(left))


@remembered
def score_tensors(conditions: Conditions, kind: LayerKind) -> list[Saved]:
    """Return what a layer saves for every score of its attention, but a mask."""
    saved = (tensor for operation in whole_operations(conditions, kind) for tensor in operation.saved)
    return [tensor for tensor in saved if tensor.spread == "scores" and tensor.name != "attention_mask"]


def score_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes of the score gradients in the backward pass of attention without a flash kernel, shape (n,).

    They are made on the device, wherever the scores were meanwhile; beside them are those that a layer returned (M6).
    """
    conditions, profile = conditions_of(pricing.scenario), pricing.scenario.framework
    of_each = score_tensors(conditions, kind)
    if of_each and (wide := softmax_gradient_bytes(conditions, kind.mixer)):
        of_each = [of_each[0]._replace(amount=wide)]
    scores = total(pricing, summed(of_each))
    if not (of_each and profile.returned_scores) or profile.recompute_stops_early:
        return scores
    pair = Saved("scores", 2.0 * element_bytes(conditions) * conditions.model.num_attention_heads, "scores")
    return scores + np.where(pricing.recomputes("full"), total(pricing, summed([pair])), 0.0)


def network_bytes(pricing: Pricing, kind: LayerKind, *, wide: bool) -> Array:
    """Return the bytes that a layer's feed-forward part saves, shape (n,), `wide` behind norms in fp32."""
    conditions = conditions_of(pricing.scenario)
    operations = (each for each in layer_operations(conditions, kind) if each.group in NETWORKS)
    saved = [tensor for operation in operations for tensor in operation.saved]
    inside = summed(tensor for tensor in saved if not tensor.name.endswith("_product"))
    more = (FP32 / element_bytes(conditions) - 1.0) * (wide and not kind.routed)
    return total(pricing, summed(saved)) + more * total(pricing, inside)


@of_sizes
def in_flight(pricing: Pricing) -> StageArray:
    """Return the micro batches that a rank holds at its peak, in fractions for chunks, shape (held, n) (M8)."""
    ranks, chunks = pricing.block.pipeline_parallel, pricing.block.chunks
    every = schedule_of(pricing).in_flight(ranks, chunks, micro_batches(pricing)) / chunks
    return every[pricing.contents.held] if pricing.fullest else every


class RecomputePlan(Bare):
    """Layers recomputed in full, by distinct chunk."""

    layers: NDArray[np.float64]
    """Layers recomputed, shape (distinct chunks, layer kinds, rank kinds, n or 1)."""
    unit: Array
    """Layers between two saved inputs, shape (n,); the backward pass holds one unit in full."""
    inputs: NDArray[np.float64]
    """Layer inputs saved, shape (distinct chunks, rank kinds, n or 1)."""
    on_rank: NDArray[np.float64]
    """Layers recomputed on each kind of rank, shape (layer kinds, rank kinds, n or 1)."""


@of_passes
def recompute_plan(pricing: Pricing) -> RecomputePlan:
    """Return which layers are recomputed in full, by Megatron's and Paddle's three methods (M6)."""
    block, contents, chunks = pricing.block, pricing.contents, pricing.chunk_layers
    full = pricing.recomputes("full")
    if not full.any():
        none = np.zeros_like(chunks)
        return RecomputePlan(none, np.ones(len(pricing)), none[:, 0], none[0])
    uniform = full & pricing.recomputes_by("uniform")
    leading = full & pricing.recomputes_by("block")
    listed = full & pricing.recomputes_by("list")
    unit = np.where(uniform, block.recompute_layers, 1.0)
    if pricing.chunks_alike:
        recomputed = np.where(leading, np.minimum(block.recompute_layers, chunks), uniform * chunks)
        inputs = np.where(uniform, np.ceil(chunks[:, 0] / unit), recomputed[:, 0])
        return RecomputePlan(recomputed, unit, inputs, block.virtual_stages * recomputed[0])
    # Index of each layout's choice: the first 0, 1, ... layers of a chunk, all of them, or the listed ones.
    every = contents.leading.shape[-1] - 1
    first = np.minimum(block.recompute_layers, every).astype(np.intp)
    choice = np.where(leading, first, every * uniform + (every + 1) * listed)
    layers = contents.recompute_choices.take(choice, axis=-1)
    inputs = np.where(uniform, np.ceil(chunks.sum(axis=1) / unit), layers.sum(axis=1))
    on_rank = np.asarray(sum(times * chunk for times, chunk in zip(contents.repeats, layers, strict=True)))
    return RecomputePlan(layers, unit, inputs, on_rank)


class StageActivations(Bare):
    """Bytes of activations by kind of pipeline rank, shape (kinds, n)."""

    by_chunk: tuple[KindArray, ...]
    """Bytes on the device that one micro batch saves in each distinct chunk."""
    one_micro_batch: KindArray
    """Bytes that one micro batch saves in all chunks."""
    embedded: KindArray
    """Bytes that one micro batch saves before the first layer, on the rank with the input table."""
    offloaded: NDArray[np.bool_]
    """Layouts that offload activations, shape (n,): bytes on the device do not grow with micro batches in flight."""
    recompute_working_set: KindArray
    """Bytes that recompute adds to a backward pass: one unit in full, or the largest recomputed module."""
    offload_traffic: KindArray
    """Bytes copied to the host per micro batch; as many come back."""

    def first_chunk(self, pricing: Pricing) -> KindArray:
        """Return the bytes that one micro batch saves in a rank's first chunk, freed last in backward."""
        share = self.one_micro_batch / sum(pricing.chunk_repeats)
        return self.embedded + np.where(self.offloaded, share, self.by_chunk[pricing.contents.chunk[0]])


@of_passes
def stage_activations(pricing: Pricing) -> StageActivations:
    """Price the layers of each kind of rank, with full recompute and offload.

    Offloaded activations leave two layers on the device: one computed and one copied. Where all are recomputed their
    inputs are all that travels (pytorch/torchtune 05cda5e, training/_activation_offloading.py: what autograd saves,
    brought back for a node and freed behind the next).
    """
    contents, plan = pricing.contents, recompute_plan(pricing)
    of_kind = [layer_bytes(pricing, kind) for kind in contents.layer_kinds]
    some = pricing.recomputes("selective") & pricing.recomputes_by("list")
    # What a layer of each kind saves more where it is not listed for selective recompute.
    kinds = zip(contents.layer_kinds, of_kind, strict=True) if some.any() else ()
    unlisted = [np.where(some, saved_bytes(pricing, kind) - size, 0.0) for kind, size in kinds]
    boundary, conditions = layer_input_bytes(pricing), conditions_of(pricing.scenario)
    # A checkpoint that ends early drops what autograd saves; the other kind runs the first pass without any of it.
    apart = keeps_inputs(conditions) and conditions.framework.recompute_stops_early
    predicted = contents.prediction_layers * of_kind[contents.prediction_index]
    by_chunk: list[KindArray] = []
    for index, (chunk, full, saved_inputs) in enumerate(
        zip(pricing.chunk_layers, plan.layers, plan.inputs, strict=True)
    ):
        saved = saved_inputs * boundary
        for kind, size in enumerate(of_kind):
            if not chunk[kind].any():
                continue
            saved = saved + (chunk[kind] - full[kind]) * size
            if apart:
                saved = saved + full[kind] * _product_input_bytes(pricing, contents.layer_kinds[kind])
            if unlisted:
                saved = saved + (chunk - contents.listed[index])[kind] * unlisted[kind]
        # Prediction modules follow the last layers.
        by_chunk.append(saved + predicted if index == contents.chunk[-1] else saved)
    whole = np.asarray(sum(times * saved for times, saved in zip(pricing.chunk_repeats, by_chunk, strict=True)))
    layer = largest(of_kind)
    offloaded = pricing.offloads("activations")
    recomputed = plan.on_rank.sum(axis=0)
    copied = np.where(recomputed < contents.num_layers + contents.prediction_layers, layer, boundary)
    in_layers = [
        repeated_working_set(pricing, kind) + _returned(pricing, at) for at, kind in enumerate(contents.layer_kinds)
    ]
    return StageActivations(
        by_chunk=tuple(by_chunk),
        embedded=contents.embeddings * embedded_bytes(pricing),
        one_micro_batch=np.where(offloaded, np.minimum(2.0 * copied, whole), whole),
        offloaded=offloaded,
        recompute_working_set=np.where(recomputed > 0.0, plan.unit * layer, largest(in_layers)),
        offload_traffic=np.where(offloaded, whole, 0.0),
    )


def _product_input_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes of the inputs that a layer's products keep, shape (n,), in fp32 behind norms in fp32 (M38)."""
    entered = [*product_inputs(conditions_of(pricing.scenario), kind)]
    wide = total(pricing, summed(each for each in entered if each.name != "attention_output"))
    return total(pricing, summed(entered)) + np.where(has_wide_stream(pricing), wide, 0.0)


def _returned(pricing: Pricing, index: int) -> KindArray | Array:
    """Return the bytes that layers of one kind hold for a moment, brought back by offload or recompute.

    Shape (kinds, n) or (n,): of a few layers at once, and of no more than the rank has in flight.
    """
    contents, layers = pricing.contents, returning_layers(pricing.scenario.framework)
    each = returning_bytes(pricing, contents.layer_kinds[index])
    if not layers:
        return each
    passes = in_flight(pricing)
    most = np.array([passes[contents.held_kind == kind].max(axis=0) for kind in range(len(contents.ranks))])
    at_once: KindArray = np.minimum(layers, contents.with_prediction[index] * most)
    return at_once * each


@of_passes
def activations_in_flight(pricing: Pricing) -> StageArray:
    """Return the bytes that all micro batches in flight save on every rank, shape (pipeline_parallel, n) (M9)."""
    block, contents, activations = pricing.block, pricing.contents, stage_activations(pricing)
    saved_of_one = contents.on_ranks(activations.one_micro_batch)
    flight = in_flight(pricing)
    if len(activations.by_chunk) == 1:
        held = saved_of_one * np.where(activations.offloaded, 1.0, flight)
    else:
        held = np.where(activations.offloaded, saved_of_one, _uneven_in_flight(pricing, flight))
    if pricing.scenario.framework.delayed_weight_gradients and pricing.scenario.model.is_moe:
        held = held + np.max([delayed_bytes(pricing, kind) for kind in contents.layer_kinds], axis=0)
    if not activations.embedded.any():
        return held
    schedule, ranks, chunks = schedule_of(pricing), block.pipeline_parallel, block.chunks
    return held + contents.on_ranks(activations.embedded) * schedule.of_chunk(flight * chunks, 0, ranks, chunks)


def overlapped_bytes(pricing: Pricing) -> StageArray | float:
    """Return the bytes of a layer that overlapped forward and backward passes hold beside those in flight (M10).

    Shape (pipeline_parallel, n), or 0. At the loss of one micro batch the other's backward pass has ended
    (megatron-core d98e8a6, models/common/model_chunk_schedule_plan.py, `TransformerModelChunkSchedulePlan.run`).
    """
    if not pricing.scenario.framework.overlap_expert_exchange or not pricing.scenario.model.is_moe:
        return 0.0
    saved = pricing.contents.on_ranks(stage_activations(pricing).one_micro_batch)
    layers = np.array(pricing.block.stage_layers, dtype=np.float64)[pricing.contents.held, None]
    return saved / np.maximum(layers, 1.0)


def _uneven_in_flight(pricing: Pricing, flight: StageArray) -> StageArray:
    """Return the bytes in flight where a rank's chunks differ, from the passes of each that have begun.

    With chunks of unequal layers the peak is the maximum over all moments of the schedule.
    """
    block, contents = pricing.block, pricing.contents
    schedule, ranks, chunks = schedule_of(pricing), block.pipeline_parallel, block.chunks
    if contents.unequal or (schedule.by_run and np.all(chunks == len(contents.chunk))):
        return most_in_flight(pricing)
    by_chunk = [contents.on_ranks(saved) for saved in stage_activations(pricing).by_chunk]
    passes = flight * chunks
    held = np.zeros_like(flight)
    chunk = 0
    for distinct, alike in groupby(contents.chunk.tolist()):
        several = len([*alike])
        held = held + schedule.of_chunk(passes, chunk, ranks, chunks, several) * by_chunk[distinct]
        chunk += several
    return held


def most_in_flight(pricing: Pricing, chunk: int | None = None) -> StageArray:
    """Return the most bytes that a rank's layers hold at once, shape (pipeline_parallel, n), where none are offloaded.

    With `chunk`, the first (0) or the last (-1), only moments at which a backward pass of it begins count.
    """
    block, contents = pricing.block, pricing.contents
    schedule, ranks, chunks = schedule_of(pricing), block.pipeline_parallel, tuple(map(int, contents.chunk))
    run = np.maximum(micro_batches(pricing), schedule.min_micro_batches(ranks))
    cycles = np.minimum(np.ceil(run / ranks), STEADY)
    shape = len(contents.ranks), len(pricing)
    by_chunk = np.array([np.broadcast_to(saved, shape) for saved in stage_activations(pricing).by_chunk])
    held = np.empty((len(contents.held), len(pricing)))
    for count in np.unique(cycles):
        of_count = np.flatnonzero(cycles == count)
        places = [(rank, ranks, int(count) * ranks) for rank in contents.held.tolist()]
        moments = [_alive(schedule, place, chunks, chunk) for place in places]
        first, alike = of_count, np.arange(len(of_count))
        if sum(map(len, moments)) > _FEW_MOMENTS:
            first, alike = equal_columns(by_chunk[..., of_count].reshape(-1, len(of_count)))
            first = of_count[first]
        for at, alive in enumerate(moments):
            saved = by_chunk[:, contents.held_kind[at], first]
            now = alive[:, 0, None] * saved[0]
            for number, size in zip(alive.T[1:], saved[1:], strict=True):
                now += number[:, None] * size
            held[at, of_count] = np.max(now, axis=0)[alike]
    return held


_FEW_MOMENTS: Final = 12
"""Moments of all ranks that are summed for every layout in less time than equal layouts are found."""


@lru_cache(maxsize=4096)
def _alive(
    schedule: Schedule, place: tuple[int, int, int], chunks: tuple[int, ...], before: int | None
) -> NDArray[np.float64]:
    """Return the passes of each distinct chunk in flight on a rank, at every moment that no other dominates.

    `place` is the rank, the pipeline's ranks and the micro batches; `chunks` maps each model chunk to a distinct one;
    shape (moments, distinct chunks). With `before`, only moments before a backward pass of that chunk count.
    """
    rank, ranks, micro_batches = place
    kind, _, chunk = schedule.turns(rank, ranks, len(chunks), micro_batches).T
    begun = np.zeros((len(kind), max(chunks) + 1))
    begun[np.arange(len(kind)), np.array(chunks)[chunk]] = HELD[kind]
    if before is not None:
        begins = np.isin(kind, (BACKWARD, INPUT_GRADIENT)) & (chunk == before % len(chunks))
        return _distinct(np.cumsum(begun, axis=0)[np.append(begins[1:], False)])
    backward = schedule.together(rank, ranks, len(chunks), micro_batches)
    # An overlapped forward pass takes the memory that the backward pass frees.
    beside = np.zeros(len(kind), dtype=np.bool_) if backward is None else np.append(backward[1:], False)
    alone = (kind == FORWARD) & ~beside
    most = alone & ~np.append(alone[1:], False)
    moments = _distinct(np.cumsum(begun, axis=0)[most])
    exceeded = np.ones((len(moments), len(moments)), dtype=np.bool_)
    for counts in moments.T:
        exceeded &= counts[:, None] <= counts
    return np.asarray(moments[np.count_nonzero(exceeded, axis=1) == 1])


_EXACT: Final = 2.0**53  # first whole number above which floats skip some


def _distinct(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distinct rows of whole numbers from 0, sorted."""
    base = np.max(counts, initial=0.0) + 1.0
    if base ** counts.shape[1] > _EXACT:
        return np.unique(counts, axis=0)
    codes = counts @ base ** np.arange(counts.shape[1] - 1.0, -1.0, -1.0)
    return np.asarray(counts[np.unique(codes, return_index=True)[1]])
