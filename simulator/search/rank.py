"""Search: drop what a rule forbids, price the rest, keep the fastest that fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced, price
from simulator.rules.layout import ACROSS_NODES, RULES, Rule
from simulator.scenario.block import LayoutBlock
from simulator.scenario.layout import Layout
from simulator.scenario.scenario import Scenario
from simulator.search.space import CHUNK, Space, blocks, candidates

Progress = Callable[[int, int], None]
"""Called with candidates done and in total."""


@dataclass(slots=True)
class Shortlist:
    """The best few layouts by a key, lowest first; ties keep the order of the search."""

    limit: int
    keys: list[float] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)

    def offer(self, block: LayoutBlock, keys: NDArray[np.float64], where: NDArray[np.bool_]) -> None:
        """Consider the layouts of `block` selected by `where`."""
        index = np.flatnonzero(where)
        if len(self.keys) == self.limit and self.keys:
            index = index[keys[index] < self.keys[-1]]
        best = index[np.argsort(keys[index], kind="stable")[: self.limit]]
        if not len(best):
            return
        merged = [*zip(self.keys, self.layouts, strict=True), *((float(keys[i]), block.layout(i)) for i in best)]
        merged.sort(key=lambda pair: pair[0])
        self.keys = [key for key, _ in merged[: self.limit]]
        self.layouts = [layout for _, layout in merged[: self.limit]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search leaves: counts and shortlists."""

    evaluated: int
    feasible: int
    rejected: dict[str, int]
    fastest: list[Layout]
    starved: list[Layout]
    nearest: list[Layout]
    """The layouts that need least of those that do not fit."""


def search(scenario: Scenario, space: Space, *, top: int = 10, progress: Progress | None = None) -> Found:
    """Look at every candidate of the space once.

    Memory stays bounded: candidates are generated, judged and forgotten a chunk at a time.
    """
    rules = RULES if space.tensor_parallel_across_nodes else (*RULES, ACROSS_NODES)
    counts: Counter[str] = Counter()
    fastest, starved, nearest = Shortlist(top), Shortlist(3), Shortlist(1)
    done = feasible = 0
    total = candidates(scenario, space) if progress else 0
    for block in blocks(scenario, space, chunk=CHUNK):
        done += len(block)
        kept = _valid(scenario, block, rules, counts)
        if kept is not None:
            priced = price(scenario, kept)
            feasible += _count(priced, counts)
            fastest.offer(kept, priced.step.total, priced.verdict == FITS)
            starved.offer(kept, priced.step.total, priced.verdict == STARVED)
            nearest.offer(kept, priced.device_bytes, priced.verdict == DOES_NOT_FIT)
        if progress:
            progress(done, total)
    rejected = {name: count for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count}
    return Found(done, feasible, rejected, fastest.layouts, starved.layouts, nearest.layouts)


def _count(priced: Priced, counts: Counter[str]) -> int:
    counts["memory"] += int(np.count_nonzero(priced.verdict == DOES_NOT_FIT))
    counts["near_capacity"] += int(np.count_nonzero(priced.verdict == STARVED))
    return int(np.count_nonzero(priced.verdict == FITS))


def _valid(
    scenario: Scenario, block: LayoutBlock, rules: tuple[Rule, ...], counts: Counter[str]
) -> LayoutBlock | None:
    """The layouts that break no rule, or None; the others are counted under the first rule they break."""
    alive = np.ones(len(block), dtype=np.bool_)
    for rule in rules:
        hit = alive & rule.broken(scenario, block)
        if hit.any():
            counts[rule.id] += int(np.count_nonzero(hit))
            alive &= ~hit
    if not alive.any():
        return None
    return block if alive.all() else block.take(alive)
