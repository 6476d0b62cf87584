"""Matrix products as they are worked by hand: the longer of computing and moving, under the tests' round rates."""

from __future__ import annotations

from typing import NamedTuple

GEMM, MEMORY = 494.5e12, 1675e9
"""FLOP/s and bytes per second of `cases.ROUND` on `z2000`."""


class ByHand(NamedTuple):
    """Seconds of a product: forward, gradient of its inputs, gradient of its weights with adding it up."""

    forward: float
    inputs: float
    weights: float


def product(
    rows: float,
    outputs: float,
    depth: float,
    *,
    rate: float = GEMM,
    element: float = 2.0,
    narrow: float = 2.0,
    weight: float | None = None,
    fused: bool = True,
    at_once: float = 1.0,
) -> ByHand:
    """A product of `rows` tokens, or of so many at once. Gradients add up in fp32.

    A number that enters it has `narrow` bytes, one of its weights `weight`.
    Fused, they are read and written while they are computed; else written in `element` bytes, read, and added.
    """
    weight = element if weight is None else weight
    compute = 2 * at_once * rows * outputs * depth / rate
    weights, entered, left = at_once * outputs * depth, at_once * rows * depth, at_once * rows * outputs
    both = narrow * (entered + left) + (8 if fused else element) * weights
    return ByHand(
        forward=max(compute, (weight * weights + narrow * entered + element * left) / MEMORY),
        inputs=max(compute, (weight * weights + narrow * left + element * entered) / MEMORY),
        weights=max(compute, both / MEMORY) + (0.0 if fused else (element + 8) * weights / MEMORY),
    )
