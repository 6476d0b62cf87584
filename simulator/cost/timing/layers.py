"""Seconds of one layer, the embedding and the output layer, for one micro batch on one device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.cost.memory.activations import (
    attention_score_bytes,
    routed_tokens,
    sequence_split,
    tokens_per_device,
)
from simulator.cost.memory.elements import HALF, element_bytes, gradient_bytes
from simulator.cost.memory.loss import labelled_tokens
from simulator.cost.memory.parameters import adapter_totals, weight_totals
from simulator.cost.timing.collectives import (
    all_to_all_seconds,
    context_group,
    expert_group,
    expert_tensor_group,
    gather_seconds,
    neighbour_seconds,
    tensor_group,
)
from simulator.cost.timing.flops import attention_width, head_flops, layer_work, prediction_projection
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.weights import attention_weights

PARTS = (
    "gemm",
    "attention",
    "memory_bound",
    "vocabulary",
    "tensor_parallel",
    "context_parallel",
    "ring_attention",
    "expert_parallel",
    "overlap",
    "overhead",
)
"""Parts of a pipeline rank's work per micro batch."""

Parts = dict[str, Array]
"""Seconds by part, shape (n,)."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds by part of a forward and a backward pass, recomputation apart."""

    forward: Parts
    backward: Parts


def attention_backward_factor(scenario: Scenario) -> float:
    """Flash attention's backward pass computes five products for the forward pass's two (Dao 2023)."""
    products = 2.5 if scenario.framework.flash_attention else 2.0
    return products * scenario.coefficients.time.attention_backward_slowdown


def exposed(share: float, seconds: Array | float, beside: Array) -> Array:
    """What is left of communication that runs beside compute: its exposed share, and what outlasts the compute."""
    left: Array = np.maximum(share * seconds, seconds - beside)
    return left


def product_seconds(scenario: Scenario, flops: Array, parameters: Array) -> tuple[Array, Array]:
    """Forward and backward seconds of matrix products with weights, by roofline.

    Forward and input gradient read the weights; the weight gradient reads and writes the accumulated gradients, while
    it is computed or in a kernel behind it. Frozen weights have no weight gradient.
    """
    compute = flops / gemm_rate(scenario)
    reads = element_bytes(scenario) * parameters / memory_rate(scenario)
    once = np.maximum(compute, reads)
    if scenario.lora_rank is not None:
        return once, once
    if scenario.framework.fused_gradient_accumulation:
        accumulates = 2.0 * gradient_bytes(scenario) * parameters / memory_rate(scenario)
        return once, once + np.maximum(compute, accumulates)
    return once, 2.0 * once + accumulation_seconds(scenario, parameters)


def accumulation_seconds(scenario: Scenario, parameters: Array) -> Array:
    """Adding weight gradients to the accumulated ones in a kernel of its own: it reads both and writes the sum."""
    each = element_bytes(scenario) + 2.0 * gradient_bytes(scenario)
    return each * parameters / memory_rate(scenario)


@dataclass(frozen=True, slots=True)
class LayerTraffic:
    """Seconds of communication that all layers have alike, hidden or not; shape (n,)."""

    gather: Array
    """One gather of the whole activation over the tensor-parallel group."""
    context: Array
    """The context-parallel exchange of one forward pass."""


def layer_traffic(scenario: Scenario, block: LayoutBlock) -> LayerTraffic:
    """Price the collectives around a layer's activations `2 T h` and keys and values."""
    whole = element_bytes(scenario) * tokens_per_device(scenario, block) * scenario.model.hidden_size
    return LayerTraffic(gather_seconds(scenario, tensor_group(block), whole), context_exchange(scenario, block))


def layer_seconds(scenario: Scenario, block: LayoutBlock, traffic: LayerTraffic, *, moe: bool) -> PassSeconds:
    """Both passes of one layer; a backward pass does twice the forward's matrix products."""
    work = layer_work(scenario, block, moe=moe)
    dense = product_seconds(scenario, work.dense_flops, work.dense_parameters)
    routed = product_seconds(scenario, work.routed_flops, work.routed_parameters)
    adapters = work.adapter_flops / gemm_rate(scenario)
    attention = attention_seconds(scenario, work.attention_flops)
    elementwise = layer_elementwise_bytes(scenario, block, moe=moe) / memory_rate(scenario)
    elementwise = elementwise + _score_seconds(scenario, block)
    values = scenario.coefficients.time
    overhead = np.full(len(block), values.layer_overhead_seconds / 3.0)
    # Either pass makes the same calls.
    split_overhead = np.where(block.tensor_parallel > 1.0, values.tensor_overhead_seconds / 2.0, 0.0)
    exchange = expert_exchange(scenario, block) if moe else np.zeros(len(block))

    def one_pass(index: int, attending: float, repeats: float) -> Parts:
        parts: Parts = {
            "gemm": dense[index] + routed[index] + adapters * repeats,
            "attention": attention * attending,
            "memory_bound": elementwise * repeats,
            "tensor_parallel": tensor_seconds(scenario, traffic, dense[index], moe=moe),
            "overlap": overlap_seconds(scenario, block, dense[index]),
            "context_parallel": exposed(values.context_exposed, repeats * traffic.context, attention * attending),
            "ring_attention": ring_seconds(scenario, block, attention * attending),
        }
        if moe:
            parts["expert_parallel"] = exposed(values.expert_exposed, exchange, routed[index])
        return parts | {"overhead": overhead * repeats + split_overhead}

    return PassSeconds(one_pass(0, 1.0, 1.0), one_pass(1, attention_backward_factor(scenario), 2.0))


def attention_core_seconds(scenario: Scenario, block: LayoutBlock) -> Array:
    """Forward seconds of one layer's attention core: its products and, without a flash kernel, its score traffic."""
    products = attention_seconds(scenario, layer_work(scenario, block, moe=False).attention_flops)
    return products + _score_seconds(scenario, block)


def attention_block_seconds(scenario: Scenario, block: LayoutBlock, traffic: LayerTraffic) -> Array:
    """Forward seconds of one layer's attention block, from the norm's output on: projections, core, collectives."""
    model, values = scenario.model, scenario.coefficients.time
    tokens, t, split = tokens_per_device(scenario, block), block.tensor_parallel, sequence_split(block)
    totals = weight_totals(attention_weights(model), matmul_only=True)
    flops = 2.0 * tokens * (totals.split / t + totals.replicated / split)
    gemm, _ = product_seconds(scenario, flops, totals.split / t + totals.replicated)
    if scenario.lora_rank is not None:
        extra = adapter_totals(attention_weights(model), scenario.lora_rank)
        gemm = gemm + 2.0 * tokens * (extra.split / t + extra.replicated / split) / gemm_rate(scenario)
    core = attention_core_seconds(scenario, block)
    moved = 4.0 * tokens * (model.query_width + model.kv_width) / t * (element_bytes(scenario) / HALF)
    if scenario.precision == "fp8":
        moved = moved + 4.0 * (tokens / split * model.hidden_size + tokens * model.value_width / t)
    gathers = 2.0 * traffic.gather
    if scenario.framework.tp_comm_overlap:
        gathers = exposed(values.tensor_exposed, gathers, gemm)
    return (
        gemm
        + core
        + moved / memory_rate(scenario)
        + gathers
        + overlap_seconds(scenario, block, gemm)
        + exposed(values.context_exposed, traffic.context, core)
        + ring_seconds(scenario, block, core)
        + values.layer_overhead_seconds / 6.0
    )


def _score_seconds(scenario: Scenario, block: LayoutBlock) -> Array:
    """Scores of unfused attention are written and read by the products, the mask and the softmax."""
    if scenario.framework.flash_attention:
        return np.zeros(len(block))
    return 3.0 * attention_score_bytes(scenario, block) / memory_rate(scenario)


def projection_seconds(scenario: Scenario, block: LayoutBlock) -> PassSeconds:
    """The projection that joins embedding and hidden state in one prediction layer."""
    parameters = prediction_projection(scenario.model) / block.tensor_parallel
    forward, backward = product_seconds(scenario, 2.0 * tokens_per_device(scenario, block) * parameters, parameters)
    return PassSeconds({"gemm": forward}, {"gemm": backward})


def attention_seconds(scenario: Scenario, flops: Array) -> Array:
    """Forward seconds of attention's products, with what it does beside them for every score and every cut tile."""
    values = scenario.coefficients.time
    width = attention_width(scenario.model) / scenario.model.num_attention_heads
    beside = 1.0 + values.attention_score_width / width
    tiles = 1.0 + values.attention_tile_tokens / scenario.seq_length
    return flops / attention_rate(scenario) * beside * tiles


def attention_rate(scenario: Scenario) -> float:
    """FLOP/s of attention on the causal half of the scores; 16 bit also under fp8."""
    return scenario.hardware.peak(_wide(scenario)) * scenario.coefficients.time.attention_efficiency


def _wide(scenario: Scenario) -> str:
    """The 16-bit type used where fp8 is not: attention and the output layer."""
    return "bf16" if scenario.precision == "fp8" else scenario.precision


def gemm_rate(scenario: Scenario) -> float:
    """FLOP/s of the layers' matrix products."""
    values = scenario.coefficients.time
    efficiency = values.gemm_efficiency_fp8 if scenario.precision == "fp8" else values.gemm_efficiency
    return scenario.hardware.peak(scenario.precision) * efficiency


def memory_rate(scenario: Scenario) -> float:
    """Bytes per second of elementwise kernels."""
    return scenario.hardware.memory_bandwidth_bytes_per_second * scenario.coefficients.time.memory_efficiency


def layer_elementwise_bytes(scenario: Scenario, block: LayoutBlock, *, moe: bool) -> Array:
    """Bytes the elementwise kernels of one forward layer read and write.

    Two norms and two residual additions: `2 x (4 h) + 2 x (6 h)` per token of the rank's part; rotary embedding reads
    and writes q and k; SwiGLU reads gate and up and writes their product `6 f`; twice that in fp32. fp8 reads every
    matrix product's 16-bit input and writes it and its transpose in 8 bits `4 w`.
    """
    model = scenario.model
    tokens, t = tokens_per_device(scenario, block), block.tensor_parallel
    hidden = float(model.hidden_size)
    per_rank = tokens / sequence_split(block)
    inner = _inner_products(scenario, block, moe=moe)
    result = 20.0 * per_rank * hidden + 4.0 * tokens * (model.query_width + model.kv_width) / t + 6.0 * inner
    if not scenario.framework.fused_swiglu:
        result = result + 4.0 * inner
    if moe:
        # Permute, un-permute and weigh every routed copy.
        result = result + 10.0 * routed_tokens(scenario, block) * hidden
    result = result * (element_bytes(scenario) / HALF)
    if scenario.precision == "fp8":
        result = result + 4.0 * (2.0 * per_rank * hidden + tokens * model.value_width / t + inner)
    return result


def _inner_products(scenario: Scenario, block: LayoutBlock, *, moe: bool) -> Array:
    """Tokens x feed-forward width on one device."""
    model = scenario.model
    tokens = tokens_per_device(scenario, block)
    if not moe:
        return tokens * model.intermediate_size / block.tensor_parallel
    routed = routed_tokens(scenario, block) * model.moe_intermediate_size / block.expert_tensor_parallel
    shared = float(model.num_shared_experts * model.moe_intermediate_size)
    return routed + tokens * shared / block.tensor_parallel


def tensor_seconds(scenario: Scenario, traffic: LayerTraffic, gemm: Array, *, moe: bool) -> Array:
    """Exposed tensor-parallel collectives of one pass through a layer.

    A gather and a scatter of the whole activation (or an all-reduce, the same traffic) around the attention block, and
    around the feed-forward block where it is split: dense, or the shared experts.
    """
    profile, values = scenario.framework, scenario.coefficients.time
    blocks = 1.0 if moe and not scenario.model.num_shared_experts else 2.0
    seconds = blocks * traffic.gather * (1.0 + values.reduce_slowdown)
    return exposed(values.tensor_exposed, seconds, gemm) if profile.tp_comm_overlap else seconds


def overlap_seconds(scenario: Scenario, block: LayoutBlock, gemm: Array) -> Array:
    """What matrix products lose to collectives that run under them: smaller pieces, shared units."""
    overlapped = (block.tensor_parallel > 1.0) & scenario.framework.tp_comm_overlap
    return np.where(overlapped, scenario.coefficients.time.overlap_slowdown * gemm, 0.0)


def ring_seconds(scenario: Scenario, block: LayoutBlock, attention: Array) -> Array:
    """What attention loses by working over a ring: `c` pieces, and `c - 1` merges of their results."""
    if scenario.framework.cp_communication != "ring":
        return np.zeros(len(block))
    return scenario.coefficients.time.ring_slowdown * (block.context_parallel - 1.0) * attention


def context_exchange(scenario: Scenario, block: LayoutBlock) -> Array:
    """Context-parallel exchange of one forward pass through a layer; the backward pass exchanges twice as much.

    Ring: every rank passes its keys and values on `c - 1` times. All-to-all: q, k, v and the output change from
    sequence to head splits.
    """
    model = scenario.model
    tokens, t = tokens_per_device(scenario, block), block.tensor_parallel
    group = context_group(block)
    if scenario.framework.cp_communication == "ring":
        keys_values = element_bytes(scenario) * tokens * (model.kv_width + _value_key_width(scenario)) / t
        seconds = (block.context_parallel - 1.0) * neighbour_seconds(scenario, group, keys_values)
    else:
        widths = model.query_width + model.value_width + model.kv_width + _value_key_width(scenario)
        seconds = all_to_all_seconds(scenario, group, element_bytes(scenario) * tokens * widths / t)
    return np.where(block.context_parallel > 1.0, seconds, 0.0)


def _value_key_width(scenario: Scenario) -> float:
    """Width of the values that accompany the keys: kv heads x value head size."""
    model = scenario.model
    return model.num_key_value_heads * float(model.v_head_dim or model.head_dim)


def expert_exchange(scenario: Scenario, block: LayoutBlock) -> Array:
    """Expert-parallel exchange of one pass: dispatch and combine of every routed copy, gathers of expert tensors."""
    copies = routed_tokens(scenario, block)
    sent = element_bytes(scenario) * copies / block.expert_tensor_parallel * scenario.model.hidden_size
    exchange = 2.0 * all_to_all_seconds(scenario, expert_group(block), sent)
    whole = element_bytes(scenario) * copies * scenario.model.hidden_size
    both = 1.0 + scenario.coefficients.time.reduce_slowdown
    return exchange + both * gather_seconds(scenario, expert_tensor_group(block), whole)


def head_seconds(scenario: Scenario, block: LayoutBlock) -> PassSeconds:
    """The output layer and the loss, in 16 bit also under fp8: products, and passes over the logits.

    The loss reads and writes the logits, sixteen bytes each in either pass (cast, maximum, exponent, sum; gradient and
    cast back), half of that in one fused kernel. fp32 logits have no casts, and wider reads: the same bytes.
    """
    rate = scenario.hardware.peak(_wide(scenario)) * scenario.coefficients.time.gemm_efficiency
    parameters = scenario.model.vocab_size * float(scenario.model.hidden_size) / block.tensor_parallel
    reads = element_bytes(scenario) * parameters / memory_rate(scenario)
    products = np.maximum(head_flops(scenario, block) / rate, reads)
    labelled = labelled_tokens(scenario, block)
    parts = block.tensor_parallel if scenario.framework.vocabulary_parallel_loss else 1.0
    per_logit = 8.0 if scenario.framework.fused_cross_entropy else 16.0
    passes = per_logit * (labelled * scenario.model.vocab_size / parts) / memory_rate(scenario)
    ends = scenario.coefficients.time.tensor_ends_overhead_seconds / 2.0
    around = passes + np.where(block.tensor_parallel > 1.0, ends, 0.0)
    frozen = scenario.lora_rank is not None
    accumulates = np.zeros(len(block))
    if not frozen and not scenario.framework.fused_gradient_accumulation:
        accumulates = accumulation_seconds(scenario, parameters)
    forward: Parts = {"vocabulary": products + around}
    backward: Parts = {"vocabulary": products * (1.0 if frozen else 2.0) + around + accumulates}
    if not scenario.framework.vocabulary_parallel_loss:
        # Every rank takes its own part of the gradient: nothing is sent back.
        whole = element_bytes(scenario) * labelled * scenario.model.vocab_size
        forward["tensor_parallel"] = gather_seconds(scenario, tensor_group(block), whole)
        backward["tensor_parallel"] = np.zeros(len(block))
    return PassSeconds(forward, backward)
