"""The longest sequence and the largest micro batch with which a recipe still fits. Searches no layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from simulator.answers.cases import Case
from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import FITS, size
from simulator.cost.stages import usable_bytes
from simulator.errors import SimulateError

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

    full = case.scenario.coefficients.memory.starved_from

    def share(count: int) -> float:
        """Return the memory needed over that which fits; infinite where the sequence is refused or the host full."""
        try:
            sized = size(pricing_of(replace(case.scenario, seq_length=count * unit), layout))
        except SimulateError:
            return math.inf
        usable = usable_bytes(case.scenario, sized.memory.contents)[sized.binding_stage[0], 0]
        needed = float(sized.need_bytes[0] / usable / full)
        return min(needed, 1.0) if sized.verdict[0] == FITS else needed if needed > 1.0 else math.inf

    longest = _last(share, max(case.scenario.seq_length // unit, 1), _LONGEST // unit)
    return longest * unit if longest else None


def _last(share: Callable[[int], float], start: int, most: int) -> int:
    """Return the last number with a share up to 1, of shares that grow with the number; 0 where there is none."""
    low, high, number, before = 0, most + 1, min(start, most), (0, math.inf)
    for tries in itertools.count(1):
        value = share(number)
        low, high = (number, high) if value <= 1.0 else (low, number)
        if high - low <= 1:
            break
        # Memory is nearly linear in the tokens: the line through two shares leads to the place, else halving does.
        slope = (value - before[1]) / (number - before[0])
        if 0.0 < slope < math.inf and tries % 4:
            aim = number + math.floor((1.0 - value) / slope)
        else:
            aim = (low + high) // 2 if high <= most else 2 * number
        number, before = min(max(aim, low + 1), high - 1), (number, value)
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
