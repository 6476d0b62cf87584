"""Records of seconds by part: of a pass through a layer, and of a rank's share of a step. Derives nothing."""

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
    """Seconds by part of a forward and a backward pass, without recompute."""

    forward: Parts
    backward: Parts
    weight_seconds: Array | float = 0.0
    """Seconds of weight gradients in the backward pass: a pass of their own where a schedule splits it."""
    forward_seconds: Array = field(init=False)
    """Sum of all parts, shape (n,)."""
    backward_seconds: Array = field(init=False)

    def __post_init__(self) -> None:
        """Add up the parts once."""
        object.__setattr__(self, "forward_seconds", sum_parts(self.forward))
        object.__setattr__(self, "backward_seconds", sum_parts(self.backward))


def sum_parts(parts: Parts) -> Array:
    """Return the sum of all parts, in the dictionary's fixed order."""
    values = iter(parts.values())
    result = next(values)
    for value in values:
        result = result + value
    return result
