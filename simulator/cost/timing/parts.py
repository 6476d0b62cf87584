"""Seconds by part, as records that add up to a pass of a layer and to a rank's share of a step. Derives nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.question.scenario.block import Array

PARTS = (
    "gemm",
    "attention",
    "memory_bound",
    "vocabulary",
    "tensor_parallel",
    "context_parallel",
    "ring_attention",
    "expert_parallel",
    "overlap",
    "overhead",
)
"""Parts of a pipeline rank's work per micro batch."""

Parts = dict[str, Array]
"""Seconds by part, shape (n,)."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds by part of a forward and a backward pass, recomputation apart."""

    forward: Parts
    backward: Parts
    weight_seconds: Array | float = 0.0
    """Of the backward pass, what gradients of weights take: a pass of their own where a schedule splits it."""
    forward_seconds: Array = field(init=False)
    """All parts together, shape (n,)."""
    backward_seconds: Array = field(init=False)

    def __post_init__(self) -> None:
        """Add the parts up once."""
        object.__setattr__(self, "forward_seconds", sum_parts(self.forward))
        object.__setattr__(self, "backward_seconds", sum_parts(self.backward))


def sum_parts(parts: Parts) -> Array:
    """Sum in the dictionary's fixed order."""
    values = iter(parts.values())
    result = next(values)
    for value in values:
        result = result + value
    return result
