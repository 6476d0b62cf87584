"""A dense layer's feed-forward network, gated (SwiGLU, GeGLU) or plain (GELU, ReLU, squared ReLU)."""

from __future__ import annotations

from simulator.cost.operations.blocks import cast, network
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Operation


def dense(conditions: Conditions) -> tuple[Operation, ...]:
    """The operations between the norm and the residual addition of a dense layer."""
    first, *others = network(conditions, "ffn", conditions.model.intermediate_size, "feed_forward")
    return (first._replace(moved=cast(conditions, float(conditions.model.hidden_size), "sequence"), calls=0.5), *others)
