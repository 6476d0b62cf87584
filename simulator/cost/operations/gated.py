"""A gated feed-forward network (SwiGLU) that every token passes."""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.operations.blocks import cast, gated_activation, tensor_collective
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Group, Operation, Weight


def gated(given: Conditions) -> tuple[Operation, ...]:
    """The operations between the norm and the residual addition of a dense layer."""
    first, *others = gated_network(given, "ffn", given.model.intermediate_size, "feed_forward")
    return (replace(first, moved=cast(given, float(given.model.hidden_size), "sequence"), calls=0.5), *others)


def gated_network(given: Conditions, name: str, width: int, group: Group, prefix: str = "") -> tuple[Operation, ...]:
    """Gate and up, SwiGLU, down, of a width; `prefix` stands before the weights' names."""
    hidden = given.model.hidden_size
    gate_up = Operation(
        name=f"{name}_gate_up",
        group=group,
        weights=(Weight(f"{prefix}gate", hidden, width, "column"), Weight(f"{prefix}up", hidden, width, "column")),
        collectives=(tensor_collective(given, "gather"),),
    )
    down = Operation(
        name=f"{name}_down",
        group=group,
        weights=(Weight(f"{prefix}down", width, hidden, "row"),),
        collectives=(tensor_collective(given, "reduce"),),
    )
    return (gate_up, gated_activation(given, name, group, float(width), "tensor"), down)
