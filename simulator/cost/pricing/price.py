"""Prices of a block of layouts: memory and time by rank and by part, each with its verdict."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.memory.fully_shard import shards_by_unit
from simulator.cost.memory.host import beyond_host, host_capacity_bytes, uses_host
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.schedule.orders import schedule_of
from simulator.cost.stages import usable_bytes
from simulator.cost.timing.step import StepSeconds, step_seconds
from simulator.question.arrays import Index, selected
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.records import Bare

FITS, STARVED, DOES_NOT_FIT = range(3)
"""Codes of `Priced.verdict`."""


class Sized(Bare):
    """A block with its memory; arrays of shape (n,)."""

    pricing: Pricing
    memory: MemoryByStage
    binding_stage: Index
    """Rank that needs the most of its device, among those whose memory is priced."""
    device_bytes: Array
    """Memory in use on that rank."""
    need_bytes: Array
    """Memory that must fit on that rank."""
    verdict: Index
    """FITS, STARVED or DOES_NOT_FIT."""

    @property
    def block(self) -> LayoutBlock:
        """The layouts."""
        return self.pricing.block

    def take(self, where: Index) -> Sized:
        """Return the layouts at an index."""
        figures: tuple[Any, ...] = (self.binding_stage, self.device_bytes, self.need_bytes, self.verdict)
        return Sized(self.pricing.take(where), self.memory.take(where), *(figure[where] for figure in figures))


class Priced(Sized):
    """A block priced in full."""

    step: StepSeconds

    def take(self, where: Index) -> Priced:
        """Return the layouts at an index."""
        return priced_of(Sized.take(self, where), selected(self.step, where, len(self.pricing)))


def size(pricing: Pricing) -> Sized:
    """Return the memory of every layout of a block, with the verdict."""
    memory = memory_by_stage(pricing)
    share = memory.need / usable_bytes(pricing.scenario, memory.contents)
    binding = np.argmax(share, axis=0)
    device, need = (each[binding, np.arange(len(pricing))] for each in (memory.device, memory.need))
    verdict = verdicts(pricing.scenario, share.max(axis=0))
    verdict = np.where(beyond_host(pricing, memory), DOES_NOT_FIT, verdict)
    return Sized(pricing, memory, binding, device, need, verdict)


def first_needs_most(pricing: Pricing) -> bool:
    """Return whether the first of ranks with equal contents needs as much as any, as it has the most in flight.

    Not where gradients come back later on it than on others, nor where the memory of whole nodes is summed.
    """
    scenario = pricing.scenario
    summed = host_capacity_bytes(pricing) is not None and uses_host(pricing)
    later = scenario.framework.release_grads or shards_by_unit(scenario)
    return schedule_of(pricing).first_holds_most and not later and not summed


def price(pricing: Pricing) -> Priced:
    """Price every layout of a block."""
    return timed(size(pricing))


def timed(sized: Sized, below: Array | float = np.inf) -> Priced:
    """Add the time of every layout; `below` as in `step_seconds`."""
    return priced_of(sized, step_seconds(sized.pricing, sized.memory, below))


def priced_of(sized: Sized, step: StepSeconds) -> Priced:
    """Return a block with its memory and its time."""
    return Priced(
        sized.pricing, sized.memory, sized.binding_stage, sized.device_bytes, sized.need_bytes, sized.verdict, step
    )


def verdicts(scenario: Scenario, share: Array) -> Index:
    """Return the verdicts for `share`, need over usable memory on the worst rank (M23)."""
    values = scenario.coefficients.memory
    starved = np.where(share > values.starved_from, STARVED, FITS)
    return np.where(share > values.starved_to, DOES_NOT_FIT, starved)
