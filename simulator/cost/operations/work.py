"""What a set of a layer's operations works and exchanges, summed once: the whole layer, or what a policy does again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.recompute import Modules, repeated
from simulator.cost.operations.record import Collective, Operation, Spread
from simulator.cost.operations.sums import (
    WeightTotals,
    adapter_totals,
    chosen_parameters,
    core_width,
    moved_amounts,
    weight_totals,
)
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode


@dataclass(frozen=True, slots=True)
class Work:
    """Sums over operations, per token."""

    products: WeightTotals
    """Parameters of the matrix products; of all routed experts."""
    chosen: WeightTotals
    """The same, of the routed experts the chosen ones only."""
    adapters: WeightTotals
    """LoRA parameters on those products; nothing without."""
    core_width: float
    """Width of attention's two products."""
    moved: Mapping[Spread, float]
    """Bytes of kernels bound by memory in a forward pass."""
    collectives: tuple[Collective, ...]
    calls: float
    """Share of a layer's launches and small kernels."""


@lru_cache(maxsize=512)
def layer_work(given: Conditions, kind: LayerKind) -> Work:
    """The work of a whole layer."""
    return _work(given, layer_operations(given, kind))


@lru_cache(maxsize=512)
def repeated_work(given: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Work:
    """The work that a recompute policy does again in a layer; `full` is the whole layer, `none` nothing."""
    return layer_work(given, kind) if mode == "full" else _work(given, repeated(given, kind, mode, modules))


def _work(given: Conditions, operations: tuple[Operation, ...]) -> Work:
    products = weight_totals(operations, matmul_only=True)
    adapters = WeightTotals() if given.lora_rank is None else adapter_totals(operations, given.lora_rank)
    return Work(
        products=products,
        chosen=chosen_parameters(given.model, products),
        adapters=adapters,
        core_width=core_width(operations),
        moved=moved_amounts(operations),
        collectives=tuple(one for operation in operations for one in operation.collectives),
        calls=sum(operation.calls for operation in operations),
    )
