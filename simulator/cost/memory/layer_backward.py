"""The backward pass of one layer, operation by operation as PyTorch runs it: what is alive at its widest moment."""

from __future__ import annotations

import numpy as np

from simulator.cost.memory.activations import (
    dense_ffn_tensors,
    layer_bytes,
    layer_input_bytes,
    norm_tensors,
    routed_tokens,
    tokens_per_device,
    total,
)
from simulator.cost.memory.elements import FP32, element_bytes
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario


def layer_backward_bytes(scenario: Scenario, block: LayoutBlock, *, moe: bool, keeps_gradients: Array) -> Array:
    """Most bytes alive in a layer's backward pass, shape (n,): what it kept, and what the pass makes.

    Gathered weights and the gradients of other layers are not counted. `keeps_gradients` is 1 where the weights'
    gradients stay until the layer's end, and 0 where each is added to an accumulated one at once.
    """
    kept = layer_bytes(scenario, block, moe=moe)
    incoming = layer_input_bytes(scenario, block)
    if moe:
        return kept + incoming + _experts(scenario, block)
    feed_forward = _feed_forward(scenario, block, keeps_gradients)
    return np.maximum(kept + incoming + feed_forward, _attention(scenario, block, keeps_gradients))


def _widths(scenario: Scenario, block: LayoutBlock) -> tuple[Array, Array, Array]:
    """Bytes of the gathered residual stream, of one tensor of the feed-forward width, and of all queries."""
    model = scenario.model
    per_width = element_bytes(scenario) * tokens_per_device(scenario, block)
    t = block.tensor_parallel
    return per_width * model.hidden_size, per_width * model.intermediate_size / t, per_width * model.query_width / t


def _feed_forward(scenario: Scenario, block: LayoutBlock, keeps_gradients: Array) -> Array:
    """Beside what the layer kept and the gradient that came in, at the widest of three moments.

    At the down projection the gathered incoming gradient is alive beside the product's; at the product the gradients of
    product, silu and up, where the product itself is gone; at the second of gate and up both input gradients and one
    inner gradient, where all inner tensors are gone. Each with the weights' gradients made until then.
    """
    gathered, inner, _ = _widths(scenario, block)
    weight = _weight_bytes(scenario, block, scenario.model.intermediate_size)
    kept_inner = total(dense_ffn_tensors(scenario, block)) - total(norm_tensors(scenario, block, "ffn_norm"))
    down = np.where(block.sequence_parallel > 0.0, gathered, 0.0) + inner + weight
    product = 2.0 * inner + keeps_gradients * weight
    inputs = 2.0 * gathered + inner - kept_inner + (2.0 * keeps_gradients + 1.0) * weight
    return np.maximum(np.maximum(down, product), inputs)


def _attention(scenario: Scenario, block: LayoutBlock, keeps_gradients: Array) -> Array:
    """Everything of the layer alive in the backward pass of attention, at the widest of two moments.

    At the rotation of the queries: their gradient in fp32, three products and a negation in fp32, the gradients of keys
    and values. At the last of the three projections: two input gradients, and the gradient of the queries.
    """
    model = scenario.model
    gathered, _, query = _widths(scenario, block)
    wide = FP32 * tokens_per_device(scenario, block) * model.query_width / block.tensor_parallel
    key_value = 2.0 * query * model.kv_width / model.query_width
    outside = total(norm_tensors(scenario, block, "attention_norm")) + layer_input_bytes(scenario, block)
    feed_forward = 3.0 * _weight_bytes(scenario, block, model.intermediate_size)
    output = _weight_bytes(scenario, block, model.query_width)
    projections = output + _weight_bytes(scenario, block, 2 * model.kv_width)
    rotation = 3.0 * wide + key_value + keeps_gradients * (feed_forward + output)
    inputs = 2.0 * gathered + query + keeps_gradients * (feed_forward + output) + projections
    return outside + np.maximum(rotation, inputs)


def _weight_bytes(scenario: Scenario, block: LayoutBlock, width: int) -> Array:
    """A weight of the hidden size times `width`, as computed with."""
    return element_bytes(scenario) * scenario.model.hidden_size * width / block.tensor_parallel


def _experts(scenario: Scenario, block: LayoutBlock) -> Array:
    """Gradients of gate and up and of what goes in and out, and the largest weight's gradient."""
    model = scenario.model
    width = 2.0 * model.moe_intermediate_size / block.expert_tensor_parallel + 2.0 * model.hidden_size
    weight = model.num_experts * model.moe_intermediate_size * model.hidden_size / block.expert_ranks
    return element_bytes(scenario) * (routed_tokens(scenario, block) * width + weight)
