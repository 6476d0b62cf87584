"""Work and exchanges of a layer's operations, or of its recomputed ones, summed once. Knows no rate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.layer import layer_operations, shared_repeats
from simulator.cost.operations.recompute import Modules, repeated
from simulator.cost.operations.record import Collective, Operation, Split, Spread, Window, summed
from simulator.cost.operations.sums import (
    WeightTotals,
    adapters_of,
    chosen_parameters,
    core_width,
    weight_totals,
)
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode


class Product(NamedTuple):
    """A matrix product of tokens with one weight, or with several side by side, unsharded."""

    inputs: int
    """Number of input features."""
    outputs: int
    """Number of output features."""
    split: Split
    """Axis that tensor parallelism splits."""


class Work(NamedTuple):
    """Sums over operations, per token."""

    products: WeightTotals
    """Parameters of the matrix products, with all routed experts."""
    chosen: WeightTotals
    """The same with only the chosen routed experts."""
    shapes: tuple[Product, ...]
    """Products without routed experts."""
    grouped: tuple[Product, ...]
    """Products of one routed expert."""
    adapters: WeightTotals
    """LoRA parameters on those products; 0 without adapters."""
    core_width: float
    """Width of attention's two products over all scores."""
    windows: tuple[tuple[Window, float], ...]
    """Bounds and widths of bounded attention."""
    core_flops: float
    """Forward FLOP of mixers whose work does not grow with the sequence."""
    moved: Mapping[Spread, float]
    """Bytes of memory-bound kernels in a forward pass."""
    moved_backward: Mapping[Spread, float]
    """Further bytes of such kernels in a backward pass, beside twice `moved`."""
    collectives: tuple[Collective, ...]
    paired: tuple[tuple[Collective, tuple[Product, ...]], ...]
    """Tensor-parallel collectives with the products of their own operation."""
    calls: float
    """Share of a layer's launches and small kernels."""
    captured: float
    """Part of `calls` inside CUDA graphs."""


@lru_cache(maxsize=512)
def layer_work(conditions: Conditions, kind: LayerKind) -> Work:
    """Return the work of a whole layer."""
    return _work(conditions, layer_operations(conditions, kind))


@lru_cache(maxsize=512)
def repeated_work(conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Work:
    """Return the work that a recompute policy repeats in a layer: `full` the layer, `none` nothing."""
    return _work(conditions, repeated(conditions, kind, mode, modules))


@lru_cache(maxsize=512)
def partly_repeated(conditions: Conditions, kind: LayerKind) -> tuple[tuple[float, Work], ...]:
    """Return the work repeated in a share of the layers, with that share."""
    return tuple((share, _work(conditions, again)) for share, again in shared_repeats(conditions, kind))


def _work(conditions: Conditions, operations: tuple[Operation, ...]) -> Work:
    products = weight_totals(operations, matmul_only=True)
    return Work(
        products=products,
        chosen=chosen_parameters(conditions.model, products),
        shapes=_shapes(conditions, operations, routed=False),
        grouped=_shapes(conditions, operations, routed=True),
        adapters=adapters_of(conditions, operations),
        core_width=core_width(operations),
        windows=tuple(
            (operation.core_window, operation.core_width)
            for operation in operations
            if operation.core_window is not None
        ),
        core_flops=sum(operation.core_flops for operation in operations),
        moved=summed(amount for operation in operations for amount in operation.moved),
        moved_backward=summed(amount for operation in operations for amount in operation.moved_backward),
        collectives=tuple(collective for operation in operations for collective in operation.collectives),
        paired=tuple(
            (collective, _shapes(conditions, (operation,), routed=False))
            for operation in operations
            for collective in operation.collectives
            if collective.beside == "products"
        ),
        calls=sum(operation.calls for operation in operations),
        captured=sum(operation.captured for operation in operations),
    )


def _shapes(conditions: Conditions, operations: tuple[Operation, ...], *, routed: bool) -> tuple[Product, ...]:
    """Return the products of operations; weights with the same inputs and split are one product if fused."""
    products: list[Product] = []
    for operation in operations:
        fused: dict[tuple[int, Split], int] = {}
        for weight in operation.weights:
            if not weight.matmul or weight.routed != routed:
                continue
            if conditions.framework.fused_projections:
                fused[weight.inputs, weight.split] = fused.get((weight.inputs, weight.split), 0) + weight.outputs
            else:
                products.append(Product(weight.inputs, weight.outputs, weight.split))
        products += [Product(inputs, outputs, split) for (inputs, split), outputs in fused.items()]
    return tuple(products)
