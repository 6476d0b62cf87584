"""Operations of a dense feed-forward network, gated (SwiGLU, GeGLU) or plain (GELU, ReLU, squared ReLU)."""

from __future__ import annotations

from simulator.cost.operations.blocks import cast, network, tensor_collective
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Operation, Weight


def dense(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition of a dense layer."""
    first, *others = network(conditions, "ffn", conditions.model.intermediate_size, "feed_forward")
    return (first._replace(moved=cast(conditions, float(conditions.model.hidden_size), "sequence"), calls=0.5), *others)


def linear(conditions: Conditions) -> tuple[Operation, ...]:
    """Return a product of the hidden size in place of a mixer or feed-forward network (Megatron's `heterogeneous`)."""
    hidden = conditions.model.hidden_size
    return (
        Operation(
            name="linear",
            group="feed_forward",
            weights=(Weight("linear", hidden, hidden, "column"),),
            moved=cast(conditions, float(hidden), "sequence"),
            collectives=(tensor_collective(conditions, "gather"), tensor_collective(conditions, "reduce")),
            calls=0.5,
        ),
    )
