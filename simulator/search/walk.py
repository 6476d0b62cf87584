"""A walk over the layouts of a space in blocks of bounded memory: rules, then memory. Ranks nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import Sized, size
from simulator.question.arrays import Mask
from simulator.question.scenario.scenario import Scenario
from simulator.search.partial import searches_partial, solved
from simulator.search.rules import ACROSS_NODES, RULES, Rule
from simulator.search.space import CHUNK, Space, blocks


class JudgedBlock(NamedTuple):
    """A block of candidates, judged by the rules."""

    pricing: Pricing
    broken: tuple[tuple[Rule, Mask], ...]
    """Rules that drop any layout, each with the mask of layouts that break it and none before it."""
    sized: Sized | None
    """Layouts that break no rule, in their order in the block; None where all do."""
    candidates: int
    """Number of the space's candidates in the block; 0 for layouts solved from candidates."""


def walk(scenario: Scenario, space: Space) -> Iterator[JudgedBlock]:
    """Yield every candidate of the space once, in a fixed order, each block followed by those solved from it."""
    for pricing in blocks(scenario, space, chunk=CHUNK):
        allowed, broken = lawful(space, pricing)
        several = [*sizes(space, allowed)]
        yield JudgedBlock(pricing, broken, several[0] if several else None, len(pricing))
        yield from (JudgedBlock(partial.pricing, (), partial, 0) for partial in several[1:])


def sizes(space: Space, pricing: Pricing) -> Iterator[Sized]:
    """Yield the memory of lawful layouts, if any, and of those with the least recompute that fits."""
    if not len(pricing):
        return
    sized = size(pricing)
    yield sized
    partial = solved(sized) if searches_partial(pricing.scenario, space) else None
    if partial is not None:
        yield partial


def lawful(space: Space, pricing: Pricing) -> tuple[Pricing, tuple[tuple[Rule, Mask], ...]]:
    """Return the layouts of a block that break no rule, and the broken rules as in `JudgedBlock`."""
    broken: list[tuple[Rule, Mask]] = []
    alive = np.ones(len(pricing), dtype=np.bool_)
    for rule in RULES if space.tensor_parallel_across_nodes else (*RULES, ACROSS_NODES):
        hit = alive & rule.broken(pricing)
        if hit.any():
            broken.append((rule, hit))
            alive &= ~hit
    return pricing if alive.all() else pricing.take(alive), tuple(broken)
