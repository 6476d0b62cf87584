"""The two memory peaks of a step on a pipeline rank, of passes and of the optimizer. Prices nothing anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.cost.derived import pricing_of
from simulator.cost.memory.outside import outside_allocator
from simulator.cost.pricing.price import size
from simulator.cost.stages import usable_bytes
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario


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
