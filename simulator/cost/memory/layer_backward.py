"""Largest memory of a layer's backward pass, operation by operation as PyTorch runs it. One layer at a time."""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.memory.activations import layer_bytes, layer_input_bytes, repeated_working_set
from simulator.cost.operations.blocks import into_products
from simulator.cost.operations.conditions import conditions_of
from simulator.cost.operations.extents import tokens_per_device, total
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Operation, summed
from simulator.question.scenario.block import Array, Mask
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind


def layer_backward_bytes(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return the most bytes alive in a layer's backward pass, shape (n,): saved tensors and gradients (M16).

    Gathered weights and other layers' gradients are not counted. Where `keeps_gradients`, weight gradients stay until
    the layer ends; elsewhere each is added to an accumulated gradient at once.
    """
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    saved = layer_bytes(pricing, kind) + repeated_working_set(pricing, kind)
    incoming = layer_input_bytes(pricing)
    if kind.routed:
        return saved + incoming + _experts(pricing, operations)
    feed_forward = _feed_forward(pricing, kind, keeps_gradients)
    widest = saved + incoming + feed_forward
    mixing = {operation.name for operation in operations if operation.group == "core_attention"}
    if not mixing:
        return widest
    if "core_attention" not in mixing:  # no scores: a scan of a linear mixer
        return np.maximum(widest, saved + incoming + _scan(pricing, kind, operations))
    return np.maximum(widest, _attention(pricing, kind, keeps_gradients))


def _products(scenario: Scenario, kind: LayerKind) -> int:
    """Return how many products read the input of a dense feed-forward network; 0 where a layer has none."""
    return 0 if kind.feed_forward == "none" else len(into_products(conditions_of(scenario)))


def _scan(pricing: Pricing, kind: LayerKind, operations: tuple[Operation, ...]) -> Array:
    """Return the gradients alive in a linear mixer's scan, with the gathered input's and its first projection's."""
    scan = (operation for operation in operations if operation.group == "core_attention")
    gradients = total(pricing, summed(amount for operation in scan for amount in operation.temporary))
    first = next(operation for operation in operations if operation.group == "attention_projection")
    inner = sum(weight.outputs for weight in first.weights if weight.matmul)
    return gradients + _widths(pricing, kind)[0] + _weight_bytes(pricing, inner)


def _saved(pricing: Pricing, kind: LayerKind, name: str) -> Array:
    """Return the bytes that the operation called `name` saves."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    return total(
        pricing, summed(tensor for operation in operations if operation.name == name for tensor in operation.saved)
    )


def _widths(pricing: Pricing, kind: LayerKind) -> tuple[Array, Array, Array]:
    """Return the bytes of the gathered residual stream, one tensor of the feed-forward width, and all queries."""
    scenario, block = pricing.scenario, pricing.block
    model = scenario.model.of_kind(kind)
    per_width = element_bytes(scenario) * tokens_per_device(pricing)
    t = block.tensor_parallel
    return per_width * model.hidden_size, per_width * model.intermediate_size / t, per_width * model.query_width / t


def _feed_forward(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return the feed-forward bytes beside saved tensors and the incoming gradient, at the widest of three moments.

    Down projection: the gathered incoming gradient and the product's. Product: the gradients of product, silu and up,
    with the product itself freed. Second of gate and up: both input gradients and one inner gradient, with all inner
    tensors freed. Each moment adds the weight gradients made so far. Without a gate, one product replaces gate and up.
    """
    scenario, block = pricing.scenario, pricing.block
    products = _products(scenario, kind)
    if not products:
        return np.zeros(len(pricing))
    gathered, inner, _ = _widths(pricing, kind)
    weight = _weight_bytes(pricing, scenario.model.of_kind(kind).intermediate_size)
    saved_inner = _saved(pricing, kind, "ffn_activation")
    down = np.where(block.sequence_parallel > 0.0, gathered, 0.0) + inner + weight
    product = 2.0 * inner + keeps_gradients * weight
    inputs = products * gathered + inner - saved_inner + (products * keeps_gradients + 1.0) * weight
    return np.maximum(np.maximum(down, product), inputs)


def _attention(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return all bytes of a layer alive in the backward pass of attention, at the widest of three moments.

    Rotation of the queries: their gradient, three products and a negation in fp32, and the gradients of keys and
    values. Last of the three projections: two input gradients and the queries' gradient. Core attention: with context
    parallelism, the gathered keys and values and their gradients.
    """
    scenario, block = pricing.scenario, pricing.block
    model = scenario.model
    gathered, _, query = _widths(pricing, kind)
    wide = FP32 * tokens_per_device(pricing) * model.query_width / block.tensor_parallel
    key_value = 2.0 * query * model.kv_width / model.query_width
    outside = _saved(pricing, kind, "attention_norm") + layer_input_bytes(pricing)
    products = _products(scenario, kind)
    feed_forward = (products + 1.0) * bool(products) * _weight_bytes(pricing, model.of_kind(kind).intermediate_size)
    output = _weight_bytes(pricing, model.query_width)
    projections = output + _weight_bytes(pricing, 2 * model.kv_width)
    rotation = 3.0 * wide + key_value + keeps_gradients * (feed_forward + output)
    inputs = 2.0 * gathered + query + keeps_gradients * (feed_forward + output) + projections
    # The gathered keys and values and their gradients are alive before the rotation is differentiated.
    core = 3.0 * query + key_value + _gathered_context(pricing, kind)
    return outside + np.maximum(np.maximum(rotation, inputs), core)


def _gathered_context(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes of gathered keys and values and their gradients, where ranks share a sequence."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    context = ("key_value_context", "sliding_key_value_context")
    return total(pricing, summed(a for operation in operations for a in operation.temporary if a.spread in context))


def _weight_bytes(pricing: Pricing, width: int) -> Array:
    """Return the bytes of a weight of hidden size times `width`, in the compute type."""
    scenario, block = pricing.scenario, pricing.block
    return element_bytes(scenario) * scenario.model.hidden_size * width / block.tensor_parallel


def _experts(pricing: Pricing, operations: tuple[Operation, ...]) -> Array:
    """Return the gradients of gate, up and the experts' inputs and outputs, and of the largest weight."""
    scenario, block = pricing.scenario, pricing.block
    experts = (operation for operation in operations if operation.group == "experts")
    gradients = total(pricing, summed(amount for operation in experts for amount in operation.temporary))
    largest = max(weight.parameters for operation in operations for weight in operation.weights if weight.routed)
    return gradients + element_bytes(scenario) * largest / block.expert_ranks
