"""Seconds of one layer, the embedding and the output layer, for one micro batch on one device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.memory.activations import (
    ELEMENT,
    attention_score_bytes,
    routed_tokens,
    sequence_split,
    tokens_per_device,
)
from simulator.scenario.block import Array, LayoutBlock
from simulator.scenario.scenario import Scenario
from simulator.timing.collectives import (
    all_to_all_seconds,
    context_group,
    expert_group,
    expert_tensor_group,
    gather_seconds,
    neighbour_seconds,
    tensor_group,
)
from simulator.timing.flops import head_flops, layer_flops, prediction_projection

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
    return 2.5 if scenario.framework.flash_attention else 2.0


def layer_seconds(scenario: Scenario, block: LayoutBlock, *, moe: bool) -> PassSeconds:
    """Both passes of one layer. A backward pass does twice the forward's matrix products (once with frozen weights)."""
    values = scenario.coefficients.time
    flops = layer_flops(scenario, block, moe=moe)
    gemm = flops.matmul / gemm_rate(scenario)
    attention = flops.attention / attention_rate(scenario)
    forward: Parts = {
        "gemm": gemm,
        "attention": attention,
        "memory_bound": layer_elementwise_bytes(scenario, block, moe=moe) / memory_rate(scenario)
        + _score_seconds(scenario, block),
        "tensor_parallel": tensor_seconds(scenario, block),
        "overlap": overlap_seconds(scenario, block, gemm),
        "context_parallel": context_seconds(scenario, block),
        "ring_attention": ring_seconds(scenario, block, attention),
    }
    if moe:
        forward["expert_parallel"] = expert_seconds(scenario, block)
    forward["overhead"] = np.full(len(block), values.layer_overhead_seconds / 3.0)
    products = 1.0 if scenario.lora_rank is not None else 2.0
    factors = {
        "gemm": products,
        "overlap": products,
        "attention": attention_backward_factor(scenario),
        "ring_attention": attention_backward_factor(scenario),
        "memory_bound": 2.0,
        "context_parallel": 2.0,
        "overhead": 2.0,
    }
    return PassSeconds(forward, {part: seconds * factors.get(part, 1.0) for part, seconds in forward.items()})


def attention_core_seconds(scenario: Scenario, block: LayoutBlock) -> Array:
    """Forward seconds of one layer's attention core: its products and, without a flash kernel, its score traffic."""
    products = layer_flops(scenario, block, moe=False).attention / attention_rate(scenario)
    return products + _score_seconds(scenario, block)


def _score_seconds(scenario: Scenario, block: LayoutBlock) -> Array:
    """Scores of unfused attention are written and read by the products, the mask and the softmax."""
    if scenario.framework.flash_attention:
        return np.zeros(len(block))
    return 3.0 * attention_score_bytes(scenario, block) / memory_rate(scenario)


def projection_seconds(scenario: Scenario, block: LayoutBlock) -> PassSeconds:
    """The projection that joins embedding and hidden state in one prediction layer."""
    parameters = prediction_projection(scenario.model) / block.tensor_parallel
    forward = 2.0 * tokens_per_device(scenario, block) * parameters / gemm_rate(scenario)
    return PassSeconds({"gemm": forward}, {"gemm": forward * (1.0 if scenario.lora_rank is not None else 2.0)})


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
    and writes q and k; SwiGLU reads gate and up and writes their product `6 f`; fp8 reads every matrix product's
    16-bit input and writes it and its transpose in 8 bits `4 w`.
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


def tensor_seconds(scenario: Scenario, block: LayoutBlock) -> Array:
    """Exposed tensor-parallel collectives of one pass through a layer.

    Two gathers and two scatters of the whole activation `2 T h` (or two all-reduces, the same traffic).
    """
    profile, values = scenario.framework, scenario.coefficients.time
    whole = ELEMENT * tokens_per_device(scenario, block) * scenario.model.hidden_size
    exposed = values.tensor_exposed if profile.tp_comm_overlap else 1.0
    return exposed * 4.0 * gather_seconds(scenario, tensor_group(block), whole)


def overlap_seconds(scenario: Scenario, block: LayoutBlock, gemm: Array) -> Array:
    """What matrix products lose to collectives that run under them: smaller pieces, shared units."""
    overlapped = (block.tensor_parallel > 1.0) & scenario.framework.tp_comm_overlap
    return np.where(overlapped, scenario.coefficients.time.overlap_slowdown * gemm, 0.0)


def ring_seconds(scenario: Scenario, block: LayoutBlock, attention: Array) -> Array:
    """What attention loses by working over a ring: `c` pieces, and `c - 1` merges of their results."""
    if scenario.framework.cp_communication != "ring":
        return np.zeros(len(block))
    return scenario.coefficients.time.ring_slowdown * (block.context_parallel - 1.0) * attention


def context_seconds(scenario: Scenario, block: LayoutBlock) -> Array:
    """Exposed context-parallel exchange of one forward pass through a layer.

    Ring: every rank passes its keys and values on `c - 1` times. All-to-all: q, k, v and the output change from
    sequence to head splits.
    """
    model, values = scenario.model, scenario.coefficients.time
    tokens, t = tokens_per_device(scenario, block), block.tensor_parallel
    group = context_group(block)
    if scenario.framework.cp_communication == "ring":
        keys_values = ELEMENT * tokens * (model.kv_width + _value_key_width(scenario)) / t
        seconds = (block.context_parallel - 1.0) * neighbour_seconds(scenario, group, keys_values)
    else:
        widths = model.query_width + model.value_width + model.kv_width + _value_key_width(scenario)
        seconds = all_to_all_seconds(scenario, group, ELEMENT * tokens * widths / t)
    return np.where(block.context_parallel > 1.0, values.context_exposed * seconds, 0.0)


def _value_key_width(scenario: Scenario) -> float:
    """Width of the values that accompany the keys: kv heads x value head size."""
    model = scenario.model
    return model.num_key_value_heads * float(model.v_head_dim or model.head_dim)


def expert_seconds(scenario: Scenario, block: LayoutBlock) -> Array:
    """Exposed expert-parallel exchange of one pass: dispatch and combine of every routed copy."""
    values = scenario.coefficients.time
    copies = routed_tokens(scenario, block) / block.expert_tensor_parallel
    sent = ELEMENT * copies * scenario.model.hidden_size
    exchange = 2.0 * all_to_all_seconds(scenario, expert_group(block), sent)
    gathered = 2.0 * gather_seconds(
        scenario,
        expert_tensor_group(block),
        ELEMENT * routed_tokens(scenario, block) * scenario.model.hidden_size,
    )
    return values.expert_exposed * (exchange + gathered)


def head_seconds(scenario: Scenario, block: LayoutBlock) -> PassSeconds:
    """The output layer and the loss, in 16 bit also under fp8: products, and passes over the logits.

    The loss reads and writes the logits about ten bytes forward (cast, maximum, exponent, sum) and six backward.
    """
    values = scenario.coefficients.time
    rate = scenario.hardware.peak(_wide(scenario)) * values.gemm_efficiency
    products = head_flops(scenario, block) / rate
    logits = tokens_per_device(scenario, block) * scenario.model.vocab_size / block.tensor_parallel
    per_logit = 8.0 if scenario.framework.fused_cross_entropy else 16.0
    passes = per_logit * logits / memory_rate(scenario)
    frozen = scenario.lora_rank is not None
    return PassSeconds(
        {"vocabulary": products + passes},
        {"vocabulary": products * (1.0 if frozen else 2.0) + passes},
    )
