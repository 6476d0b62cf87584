"""The longest sequence and the largest micro batch with which a recipe still fits. Searches no layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import FITS, size
from simulator.errors import SimulateError
from simulator.recipes.check.case import Case

_TOKENS = 1024
"""Sequence lengths are tried in multiples of this, and of the parts that the layout splits them into."""
_LONGEST = 2**21


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The largest value of each setting with all others unchanged; None where not even the smallest fits."""

    seq_length: int | None
    """Tokens per sequence, a multiple of 1024."""
    micro_batch_size: int | None
    """Sequences per micro batch, a divisor of a replica's sequences per step."""


def room_of(case: Case) -> Room:
    """Return the largest sequence length and micro batch of a case."""
    return Room(seq_length=_longest(case), micro_batch_size=_largest(case))


def _longest(case: Case) -> int | None:
    layout = case.layout
    pieces = 2 * layout.context_parallel * layout.tensor_parallel if layout.context_parallel > 1 else 1
    unit = math.lcm(_TOKENS, pieces)

    def fits(count: int) -> bool:
        try:
            scenario = replace(case.scenario, seq_length=count * unit)
            return bool(size(pricing_of(scenario, layout)).verdict[0] == FITS)
        except SimulateError:
            return False

    longest = _last(fits, max(case.scenario.seq_length // unit, 1), _LONGEST // unit)
    return longest * unit if longest else None


def _last(fits: Callable[[int], bool], start: int, most: int) -> int:
    """Return the last number for which `fits`, which holds up to some number; 0 where it never does."""
    low, high = 0, min(start, most)
    while fits(high):
        low = high
        if high == most:
            return most
        high = min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _largest(case: Case) -> int | None:
    layout, scenario = case.layout, case.scenario
    sequences = scenario.global_batch_size // layout.data_parallel
    stages = layout.pipeline_parallel if layout.virtual_stages > 1 else 1
    sizes = [
        size
        for size in range(1, min(sequences, 512) + 1)
        if scenario.global_batch_size % (size * layout.data_parallel) == 0 and sequences // size % stages == 0
    ]
    if not sizes:
        return None
    verdict = size(pricing_of(scenario, *(replace(layout, micro_batch_size=size) for size in sizes))).verdict
    return max((size for size, code in zip(sizes, verdict, strict=True) if code == FITS), default=None)
