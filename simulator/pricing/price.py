"""Pricing a block of layouts in full: memory by rank, time by part, verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.memory.parameters import stage_contents
from simulator.memory.peak import MemoryByStage, memory_by_stage
from simulator.scenario.block import Array, LayoutBlock
from simulator.scenario.scenario import Scenario
from simulator.timing.step import StepSeconds, step_seconds

FITS, STARVED, DOES_NOT_FIT = 0, 1, 2
"""Codes of `Priced.verdict`."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A priced block; arrays of shape (n,)."""

    block: LayoutBlock
    memory: MemoryByStage
    step: StepSeconds
    binding_stage: NDArray[np.intp]
    """The rank that needs most."""
    device_bytes: Array
    """What that rank needs."""
    verdict: NDArray[np.intp]
    """FITS, STARVED or DOES_NOT_FIT."""


def price(scenario: Scenario, block: LayoutBlock) -> Priced:
    """Price every layout of `block`. The one entry to the formulas, for a grid and for a single layout."""
    memory = memory_by_stage(scenario, block, stage_contents(scenario, block))
    step = step_seconds(scenario, block, memory)
    binding = np.argmax(memory.device, axis=0)
    device = np.max(memory.device, axis=0)
    return Priced(block, memory, step, binding, device, verdicts(scenario, device))


def verdicts(scenario: Scenario, device_bytes: Array) -> NDArray[np.intp]:
    """Compare need with what a framework can use.

    Between the two starvation thresholds the allocator lives on freed blocks: the run may start, and is slow.
    """
    capacity = scenario.hardware.usable_memory_bytes
    values = scenario.coefficients.memory
    starved = device_bytes > values.starved_from * capacity
    beyond = device_bytes > values.starved_to * capacity
    return np.where(beyond, DOES_NOT_FIT, np.where(starved, STARVED, FITS))
