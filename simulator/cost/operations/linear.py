"""Operations shared by linear mixers: input projection, context exchange, and FLOP of chunked scans."""

from __future__ import annotations

from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.blocks import cast, tensor_collective
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Collective, Operation, Saved, Weight


def input_projection(conditions: Conditions, name: str, weights: tuple[Weight, ...], width: int) -> Operation:
    """Return the product before the scan; its output stays alive as the scan's or convolution's input."""
    return Operation(
        name=name,
        group="attention_projection",
        weights=weights,
        saved=(Saved(f"{name}_output", element_bytes(conditions) * width, "tensor"),),
        moved=cast(conditions, float(conditions.model.hidden_size), "sequence"),
        collectives=(tensor_collective(conditions, "gather"),),
        calls=0.5,
    )


def scan_exchange(conditions: Conditions, entering: int, leaving: int) -> Operation:
    """Return the context-parallel all-to-all from sequence to head splits before the scan, and back after it."""
    amount = element_bytes(conditions) * (entering + leaving)
    exchange = Collective("context", "all_to_all", amount, "tensor", "core_attention")
    return Operation(name="context_exchange", group="context_exchange", collectives=(exchange,))


def linear_attention_flops(chunk: int, key: int, value: int) -> float:
    """Return the forward FLOP per token and head of linear attention in chunks of C tokens.

    Inside a chunk scores and values, `2 C (k + v)`; between chunks the state is read and written, `4 k v`.
    """
    return 2.0 * chunk * (key + value) + 4.0 * key * value
