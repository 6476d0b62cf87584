"""Seconds of matrix products: compute at the rate of their shape, and memory traffic, by roofline.

A product of T tokens with a weight of n inputs and m outputs is three: forward, the gradient of its inputs and that of
its weights, `2 T n m` FLOP each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.dtypes import element_bytes, gradient_bytes, narrow_element_bytes
from simulator.cost.operations.extents import extent, sequence_split
from simulator.cost.operations.sums import WeightTotals
from simulator.cost.operations.work import Product, Work
from simulator.cost.timing.rates import gemm_rate, memory_rate
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario

Side: TypeAlias = "Array | float"
"""A side of a matrix product on a device, shape (n,) or equal for all layouts."""


class Products(NamedTuple):
    """Seconds of matrix products with weights by pass, shape (n,)."""

    forward: Array
    inputs: Array
    """Gradient of the inputs."""
    weights: Array | float = 0.0
    """Gradient of the weights; 0 if they are frozen."""

    @property
    def passes(self) -> tuple[Array, Array]:
        """Return the seconds of the forward and the whole backward pass."""
        return self.forward, self.inputs + self.weights


class ProductShape(NamedTuple):
    """A forward product on a device."""

    rows: Array
    """Tokens, shape (n,)."""
    outputs: Side
    depth: Side
    """Inputs."""
    at_once: Side = 1.0
    """Number of equal products that run together."""


def product_seconds(scenario: Scenario, rate: float, shape: ProductShape, entering: float, weight: float) -> Products:
    """Return the seconds of a product and its gradients, by roofline; `entering` and `weight` are bytes per number.

    Outputs are 16-bit. The weight gradient reads and writes the accumulated gradients, in its own kernel or a following
    one. Frozen weights have no weight gradient.
    """
    compute, element, memory = shaped_seconds(scenario, rate, shape), element_bytes(scenario), memory_rate(scenario)
    held = shape.at_once * shape.outputs * shape.depth
    inputs, outputs = shape.at_once * shape.rows * shape.depth, shape.at_once * shape.rows * shape.outputs
    forward = roofline(scenario, compute.forward, (weight * held + entering * inputs + element * outputs) / memory)
    backward = roofline(scenario, compute.inputs, (weight * held + entering * outputs + element * inputs) / memory)
    if scenario.lora_rank is not None:
        return Products(forward, backward)
    fused = scenario.framework.fused_gradient_accumulation
    written = 2.0 * gradient_bytes(scenario) if fused else element
    moves = (entering * (inputs + outputs) + written * held) / memory
    weights = roofline(scenario, compute.weights, moves)
    return Products(forward, backward, weights if fused else weights + accumulation_seconds(scenario, held))


def roofline(scenario: Scenario, compute: Array | float, moves: Array | float) -> Array:
    """Return the seconds of kernels that compute and move data at once, `(c^a + m^a)^(1/a)` (T11).

    A product fetches its next tiles while it computes, so the roofline (Williams et al. 2009) is a maximum; its first
    and last tiles hide nothing, and small products have little else. With a = 1 both add up.
    """
    sharpness = np.maximum(scenario.coefficients.time.roofline_sharpness, 1.0)
    longer = np.maximum(np.maximum(compute, moves), _NO_TIME)
    seconds: Array = longer * (1.0 + (np.minimum(compute, moves) / longer) ** sharpness) ** (1.0 / sharpness)
    return seconds


_NO_TIME = 1e-30
"""Divisor in place of 0 seconds."""


def shaped_seconds(scenario: Scenario, rate: float, shape: ProductShape) -> Products:
    """Return the compute seconds of a weight's three products."""
    rows, outputs, depth, at_once = shape
    seconds, factor = 2.0 * at_once * rows * outputs * depth / rate, shape_factor(scenario, rate)
    return Products(
        forward=seconds * factor(rows * outputs * at_once, depth),
        inputs=seconds * factor(rows * depth * at_once, outputs),
        weights=seconds * factor(depth * outputs * at_once, rows),
    )


def shape_factor(scenario: Scenario, rate: float) -> Callable[[Side, Side], Array | float]:
    """Return the time of a product relative to a large one of equal FLOP, `(1 + K j / k) (1 + A / (m n j))` (T3).

    A device works on tiles of `a` outputs, one per processor: waves that are not full waste `A = w S a` outputs. A
    product with few outputs is split into `j` pieces along its depth `k`, as many as balance both factors, and each
    piece costs `t` seconds: `K = t rate / (2 S a)`. The outputs `m n` are those of all products that run at once.
    Devices without stated processors have factor 1.
    """
    hardware, values = scenario.hardware, scenario.coefficients.time
    if hardware.processors is None or hardware.product_tile is None:
        return lambda _made, _depth: 1.0
    at_once = float(hardware.processors.value * hardware.product_tile.value)
    started = np.maximum(values.product_waves, 0.0) * at_once
    piece = np.maximum(values.product_split_seconds, 0.0) * rate / (2.0 * at_once)
    split = np.maximum(piece, 1e-9)

    def factor(outputs: Side, depth: Side) -> Array | float:
        with np.errstate(divide="ignore", invalid="ignore"):
            pieces = np.maximum(1.0, np.sqrt(started * depth / (split * outputs)))
        seconds: Array = (1.0 + piece * pieces / depth) * (1.0 + started / (outputs * pieces))
        return seconds

    return factor


def accumulation_seconds(scenario: Scenario, parameters: Array | float) -> Array | float:
    """Return the seconds of a separate kernel that adds weight gradients to accumulated ones: two reads, one write."""
    each = element_bytes(scenario) + 2.0 * gradient_bytes(scenario)
    return each * parameters / memory_rate(scenario)


def product_flops(pricing: Pricing, totals: WeightTotals) -> tuple[Array, Array]:
    """Return the forward FLOP on one device of products with these weights, dense and routed experts', shape (n,)."""
    block, tokens = pricing.block, extent(pricing, "whole")
    dense = 2.0 * tokens * (totals.split / block.tensor_parallel + totals.replicated / sequence_split(block))
    if not totals.routed:
        return dense, np.zeros_like(tokens)
    return dense, 2.0 * extent(pricing, "copies_tensor") * totals.routed / pricing.scenario.model.num_experts


def dense_products(pricing: Pricing, work: Work) -> Products:
    """Return the seconds of all products but routed experts'."""
    nothing = np.zeros_like(extent(pricing, "whole"))
    return sum_products(nothing, (product_passes(pricing, product) for product in work.shapes))


def sum_products(nothing: Array, products: Iterable[Products]) -> Products:
    """Return the summed seconds of products; `nothing` is zeros of their shape."""
    forward, inputs, weights = nothing, nothing, nothing
    for product in products:
        forward, inputs, weights = forward + product.forward, inputs + product.inputs, weights + product.weights
    return Products(forward, inputs, weights)


@derived
def product_passes(pricing: Pricing, product: Product) -> Products:
    """Return the seconds of one product and its gradients. All products of a device's experts run at once.

    fp8 reads weights in 8 bits where their copies are kept, which a step's first micro batch makes (TransformerEngine
    v2.14, module/linear.py, `is_first_microbatch`); in 16 elsewhere.
    """
    scenario, narrow = pricing.scenario, narrow_element_bytes(pricing.scenario)
    stay = scenario.framework.fp8_weight_cache or scenario.framework.fp8_param_gather
    weight = narrow if stay or product.split in ("expert_column", "expert_row") else element_bytes(scenario)
    return product_seconds(scenario, gemm_rate(scenario), product_shape(pricing, product), narrow, weight)


def product_shape(pricing: Pricing, product: Product) -> ProductShape:
    """Return the shape of one product on a device, split as its weight is."""
    block, m = pricing.block, extent(pricing, "whole")
    n, k = float(product.outputs), float(product.inputs)
    match product.split:
        case "column" | "vocabulary":
            return ProductShape(m, n / block.tensor_parallel, k)
        case "row":
            return ProductShape(m, n, k / block.tensor_parallel)
        case "expert_column" | "expert_row":
            held = np.maximum(pricing.scenario.model.num_experts / block.expert_parallel, 1.0)
            rows, tensor = extent(pricing, "copies") / held, block.expert_tensor_parallel
            by_outputs = product.split == "expert_column"
            return ProductShape(rows, n / tensor if by_outputs else n, k if by_outputs else k / tensor, held)
        case _:
            return ProductShape(m / sequence_split(block), n, k)


def expert_products(pricing: Pricing, work: Work) -> Products:
    """Return the seconds of the routed experts' products."""
    products = sum_products(np.zeros(len(pricing)), (product_passes(pricing, product) for product in work.grouped))
    if not pricing.scenario.framework.sliced_experts:
        return products
    joined, parted = (moved / memory_rate(pricing.scenario) for moved in _sliced(pricing, extent(pricing, "copies")))
    return products._replace(forward=products.forward + joined, inputs=products.inputs + parted)


def _sliced(pricing: Pricing, copies: Array) -> tuple[Array, Array]:
    """Return the extra bytes where experts run in turn on slices of the tokens, forward and backward.

    Forward, outputs are zeroed and copied into slices. Backward, every expert copies the gradient of all outputs, and
    fills and adds one of all inputs: SequentialMLP of megatron-core up to 0.8.
    """
    scenario = pricing.scenario
    whole = element_bytes(scenario) * scenario.model.expert_width * copies
    return 3.0 * whole, 6.0 * scenario.model.num_experts / pricing.block.expert_parallel * whole
