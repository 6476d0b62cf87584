"""Seconds of matrix products: what they compute at the rate of their shape, and no less than what they read and write.

A product of T tokens with a weight of n inputs and m outputs is three: forward, the gradient of its inputs and that of
its weights, `2 T n m` FLOPs each.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.dtypes import element_bytes, gradient_bytes, narrow_element_bytes
from simulator.cost.memory.parameters import whole_layer
from simulator.cost.operations.extents import extent, sequence_split
from simulator.cost.operations.sums import WeightTotals
from simulator.cost.operations.work import Product, Work
from simulator.cost.timing.rates import gemm_rate, memory_rate
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario

Side: TypeAlias = "Array | float"
"""One side of a matrix product on a device, shape (n,) or the same for all layouts."""


class Products(NamedTuple):
    """Seconds of matrix products with weights by pass, shape (n,)."""

    forward: Array
    inputs: Array
    """Gradient of the inputs."""
    weights: Array | float = 0.0
    """Gradient of the weights; none of frozen ones."""

    @property
    def passes(self) -> tuple[Array, Array]:
        """Forward and whole backward pass."""
        return self.forward, self.inputs + self.weights


def product_seconds(scenario: Scenario, compute: Products, parameters: Array) -> Products:
    """Seconds of matrix products with weights, by roofline (T2).

    Forward and input gradient read the weights; the weight gradient reads and writes the accumulated gradients, while
    it is computed or in a kernel behind it. Frozen weights have no weight gradient.
    """
    reads = element_bytes(scenario) * parameters / memory_rate(scenario)
    forward, inputs = np.maximum(compute.forward, reads), np.maximum(compute.inputs, reads)
    if scenario.lora_rank is not None:
        return Products(forward, inputs)
    if scenario.framework.fused_gradient_accumulation:
        accumulates = 2.0 * gradient_bytes(scenario) * parameters / memory_rate(scenario)
        return Products(forward, inputs, np.maximum(compute.weights, accumulates))
    weights = np.maximum(compute.weights, reads)
    return Products(forward, inputs, weights + accumulation_seconds(scenario, parameters))


def at_rate(flops: Array, rate: float) -> Products:
    """Compute of products at one rate in every pass, whatever their shape."""
    seconds = flops / rate
    return Products(seconds, seconds, seconds)


def shaped_seconds(scenario: Scenario, rate: float, rows: Array, outputs: Side, depth: Side) -> Products:
    """Compute of the three products of a layer with a weight: rows (tokens), outputs and depth (inputs) per device."""
    seconds = 2.0 * rows * outputs * depth / rate
    return Products(
        forward=seconds * shape_factor(scenario, rate, rows, outputs, depth),
        inputs=seconds * shape_factor(scenario, rate, rows, depth, outputs),
        weights=seconds * shape_factor(scenario, rate, depth, outputs, rows),
    )


def shape_factor(scenario: Scenario, rate: float, rows: Side, outputs: Side, depth: Side) -> Array | float:
    """Time of a product over that of its FLOPs at the rate of large ones, `(1 + K j / k) (1 + A / (m n j))` (T3).

    A device works on tiles of `a` outputs, one per processor: `A = w S a` outputs are started for nothing (waves that
    are not full). A product with few outputs is split into `j` pieces along its depth `k`, as many as balance both
    factors, and each piece costs `t` seconds: `K = t rate / (2 S a)`. Without the device's processors no shape counts.
    """
    hardware, values = scenario.hardware, scenario.coefficients.time
    if hardware.processors is None or hardware.product_tile is None:
        return 1.0
    at_once = float(hardware.processors.value * hardware.product_tile.value)
    started = np.maximum(values.product_waves, 0.0) * at_once
    piece = np.maximum(values.product_split_seconds, 0.0) * rate / (2.0 * at_once)
    made = rows * outputs
    with np.errstate(divide="ignore", invalid="ignore"):
        pieces = np.maximum(1.0, np.sqrt(started * depth / (np.maximum(piece, 1e-9) * made)))
    factor: Array = (1.0 + piece * pieces / depth) * (1.0 + started / (made * pieces))
    return factor


def accumulation_seconds(scenario: Scenario, parameters: Array) -> Array:
    """Adding weight gradients to the accumulated ones in a kernel of its own: it reads both and writes the sum."""
    each = element_bytes(scenario) + 2.0 * gradient_bytes(scenario)
    return each * parameters / memory_rate(scenario)


def product_flops(pricing: Pricing, totals: WeightTotals) -> tuple[Array, Array]:
    """Forward FLOPs on one device of products with these weights: all but routed experts, and those, shape (n,)."""
    block, tokens = pricing.block, extent(pricing, "whole")
    dense = 2.0 * tokens * (totals.split / block.tensor_parallel + totals.replicated / sequence_split(block))
    if not totals.routed:
        return dense, np.zeros_like(tokens)
    return dense, 2.0 * extent(pricing, "copies_tensor") * totals.routed / pricing.scenario.model.num_experts


def dense_products(pricing: Pricing, work: Work) -> Products:
    """Seconds of all products but those of routed experts, each at the rate of its shape."""
    nothing = np.zeros_like(extent(pricing, "whole"))
    compute = Products(nothing, nothing, nothing)
    for product in work.shapes:
        here = product_compute(pricing, product)
        compute = Products(compute.forward + here.forward, compute.inputs + here.inputs, compute.weights + here.weights)
    held = whole_layer(pricing, WeightTotals(work.products.split, work.products.replicated))
    return product_seconds(pricing.scenario, compute, held)


@derived
def product_compute(pricing: Pricing, product: Product) -> Products:
    """Compute of one product and its gradients, cut as its weight is."""
    block, m = pricing.block, extent(pricing, "whole")
    n: Side = float(product.outputs)
    k: Side = float(product.inputs)
    match product.split:
        case "column" | "vocabulary":
            n = n / block.tensor_parallel
        case "row":
            k = k / block.tensor_parallel
        case _:
            m = m / sequence_split(block)
    return shaped_seconds(pricing.scenario, gemm_rate(pricing.scenario), m, n, k)


def expert_products(pricing: Pricing, work: Work) -> Products:
    """Seconds of the routed experts' products, all experts of a device in one grouped kernel (T11).

    Both what they compute and what they move count: weights, tokens, accumulated gradients (read and written).
    """
    scenario, tensor = pricing.scenario, pricing.block.expert_tensor_parallel
    _, flops = product_flops(pricing, work.products)
    parameters = whole_layer(pricing, WeightTotals(routed=work.products.routed))
    compute, rate = flops / gemm_rate(scenario), memory_rate(scenario)
    narrow, wide = narrow_element_bytes(scenario), element_bytes(scenario)
    entered: Array | float = 0.0
    left: Array | float = 0.0
    for product in work.grouped:
        entered = entered + (product.inputs / tensor if product.split == "expert_row" else product.inputs)
        left = left + (product.outputs / tensor if product.split == "expert_column" else product.outputs)
    copies = extent(pricing, "copies")
    weights = narrow * parameters
    joined, parted = _sliced(pricing, copies)
    forward = compute + (weights + (narrow * entered + wide * left) * copies + joined) / rate
    inputs = compute + (weights + (narrow * left + wide * entered) * copies + parted) / rate
    if scenario.lora_rank is not None:
        return Products(forward, inputs)
    tokens = narrow * (entered + left) * copies
    gradients = 2.0 * gradient_bytes(scenario) * parameters / rate
    if not scenario.framework.fused_gradient_accumulation:
        gradients = wide * parameters / rate + accumulation_seconds(scenario, parameters)
    return Products(forward, inputs, compute + tokens / rate + gradients)


def _sliced(pricing: Pricing, copies: Array) -> tuple[Array | float, Array | float]:
    """Bytes beside the products where experts run one by one on slices, forward and backward.

    Forward, outputs are zeroed and copied into slices. Backward, every expert copies the gradient of all outputs,
    and fills and adds one of all inputs: SequentialMLP of megatron-core up to 0.8.
    """
    scenario = pricing.scenario
    if not scenario.framework.sliced_experts:
        return 0.0, 0.0
    whole = element_bytes(scenario) * scenario.model.expert_width * copies
    return 3.0 * whole, 6.0 * scenario.model.num_experts / pricing.block.expert_parallel * whole
