"""A dense layer's feed-forward network, gated (SwiGLU, GeGLU) or plain (GELU, ReLU, squared ReLU)."""

from __future__ import annotations

from simulator.cost.operations.blocks import cast, network
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Operation


def dense(given: Conditions) -> tuple[Operation, ...]:
    """The operations between the norm and the residual addition of a dense layer."""
    first, *others = network(given, "ffn", given.model.intermediate_size, "feed_forward")
    return (first._replace(moved=cast(given, float(given.model.hidden_size), "sequence"), calls=0.5), *others)
