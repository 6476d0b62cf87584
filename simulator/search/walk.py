"""The layouts of a space in turn: what rules forbid is marked, of the rest memory is priced; time of those asked for.

Memory stays bounded: candidates are generated, judged and forgotten a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simulator.cost.pricing.price import Sized, size
from simulator.question.scenario.block import LayoutBlock, Mask
from simulator.question.scenario.scenario import Scenario
from simulator.search.partial import searches_partial, solved
from simulator.search.rules import ACROSS_NODES, RULES, Rule
from simulator.search.space import CHUNK, Space, blocks


class Judged(NamedTuple):
    """A block of candidates."""

    block: LayoutBlock
    broken: tuple[tuple[Rule, Mask], ...]
    """Rules that drop any, each with the layouts of the block that break it and none before it."""
    sized: Sized | None
    """Those that break no rule, in their order in the block; None where all do."""
    candidates: int
    """How many of the space's candidates these are; what is solved from candidates is none."""


def walk(scenario: Scenario, space: Space) -> Iterator[Judged]:
    """Look at every candidate of the space once, in a fixed order, each block followed by what is solved from it."""
    for block in blocks(scenario, space, chunk=CHUNK):
        kept, broken = lawful(scenario, space, block)
        found = [*sizes(scenario, space, kept)]
        yield Judged(block, broken, found[0] if found else None, len(block))
        yield from (Judged(one.block, (), one, 0) for one in found[1:])


def sizes(scenario: Scenario, space: Space, block: LayoutBlock) -> Iterator[Sized]:
    """The memory of layouts that break no rule, if any, and of those with as few recomputed layers as fit."""
    if not len(block):
        return
    sized = size(scenario, block)
    yield sized
    partial = solved(scenario, sized) if searches_partial(scenario, space) else None
    if partial is not None:
        yield partial


def lawful(scenario: Scenario, space: Space, block: LayoutBlock) -> tuple[LayoutBlock, tuple[tuple[Rule, Mask], ...]]:
    """The layouts of a block that break no rule, and the rules broken as in `Judged`."""
    broken: list[tuple[Rule, Mask]] = []
    alive = np.ones(len(block), dtype=np.bool_)
    for rule in RULES if space.tensor_parallel_across_nodes else (*RULES, ACROSS_NODES):
        hit = alive & rule.broken(scenario, block)
        if hit.any():
            broken.append((rule, hit))
            alive &= ~hit
    return block if alive.all() else block.take(alive), tuple(broken)
