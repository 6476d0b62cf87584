"""Matrix products as they are worked by hand: the longer of computing and moving, under the tests' round rates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from simulator.question.scenario.scenario import Scenario

GEMM, MEMORY = 494.5e12, 1675e9
"""FLOP/s and bytes per second of `cases.ROUND` on `z2000`."""


class ByHand(NamedTuple):
    """Seconds of a product: forward, gradient of its inputs, gradient of its weights with adding it up."""

    forward: float
    inputs: float
    weights: float


def tiles(rows: float, outputs: float) -> float:
    """Outputs of whole tiles of 128 x 256, lying or standing."""
    return 128 * 256 * min(math.ceil(rows / a) * math.ceil(outputs / b) for a, b in ((128, 256), (256, 128)))


def untiled(scenario: Scenario) -> Scenario:
    """The scenario on a device of unknown tiles, whose products are of any shape."""
    return replace(scenario, hardware=replace(scenario.hardware, product_tile=None))


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
    flop = 2 * at_once / rate
    weights, entered, left = at_once * outputs * depth, at_once * rows * depth, at_once * rows * outputs
    forward, backward = narrow * entered + element * left, narrow * left + element * entered
    both = narrow * (entered + left) + (8 if fused else element) * weights
    added = 0.0 if fused else (element + 8) * weights / MEMORY
    return ByHand(
        forward=max(flop * tiles(rows, outputs) * depth, (weight * weights + forward) / MEMORY),
        inputs=max(flop * tiles(rows, depth) * outputs, (weight * weights + backward) / MEMORY),
        weights=max(flop * tiles(depth, outputs) * rows, both / MEMORY) + added,
    )
