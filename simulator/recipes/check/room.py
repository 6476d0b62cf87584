"""Room of a recipe that fits: the longest sequence and the largest micro batch that would still fit, and its peaks.

`check.judge` asks for both; `answers.explain` has what would make a recipe fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simulator.answers.cases import Case
from simulator.cost.derived import pricing_of
from simulator.cost.memory.outside import outside_allocator
from simulator.cost.pricing.price import FITS, size
from simulator.cost.stages import usable_bytes
from simulator.errors import SimulateError
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario

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
            sized = size(pricing_of(case.scenario.of_length(count * unit), layout))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The need of the worst rank in one part of the step."""

    stage: int
    """Pipeline rank, from 0."""
    device_bytes: float
    """Device memory that it needs."""
    capacity_bytes: float
    """Device memory that a framework can use."""

    @property
    def fits(self) -> bool:
        """Whether the need is within the usable memory."""
        return self.device_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of the two parts of a step, each on its own worst rank."""

    passes: Peak
    """Forward, loss and backward."""
    optimizer_step: Peak


def peaks_of(scenario: Scenario, layout: Layout) -> Peaks:
    """Return both peaks of a layout."""
    pricing = pricing_of(scenario, layout)
    memory = size(pricing).memory
    usable = usable_bytes(scenario, memory.contents)[:, 0]

    def largest(*, step: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        totals = [
            moment.total(memory.contents) for moment in memory.moments if (moment.name == "optimizer step") == step
        ]
        return np.asarray(np.max(np.stack(totals), axis=0) + memory.retained)

    def worst(allocated: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Peak:
        device = (allocated + outside_allocator(pricing, allocated).total)[:, 0]
        stage = int(np.argmax(device / usable))
        return Peak(stage=stage, device_bytes=float(device[stage]), capacity_bytes=float(usable[stage]))

    return Peaks(passes=worst(largest(step=False)), optimizer_step=worst(largest(step=True)))
