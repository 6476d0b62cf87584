"""Search: drop what a rule forbids, price the rest, keep the fastest that fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced
from simulator.errors import InputError
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import SPLIT, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.space import MOST_CANDIDATES, Space, candidates
from simulator.search.walk import walk

Progress = Callable[[int, int], None]
"""Called with candidates done and in total."""


@dataclass(slots=True)
class Shortlist:
    """The best few layouts by a key, lowest first; ties keep the order of the search."""

    limit: int
    variants: bool
    """Keep every layout; otherwise the best of each split (tensor, pipeline, context, expert parallel sizes)."""
    entries: list[tuple[float, tuple[int, ...], Layout]] = field(default_factory=list)
    """(key, split, layout)."""

    @property
    def layouts(self) -> list[Layout]:
        """The layouts kept."""
        return [layout for _, _, layout in self.entries]

    def offer(self, block: LayoutBlock, keys: Array, where: NDArray[np.bool_]) -> None:
        """Consider the layouts of `block` selected by `where`."""
        index = np.flatnonzero(where)
        if len(self.entries) == self.limit:
            index = index[keys[index] < self.entries[-1][0]]
        index = index[np.argsort(keys[index], kind="stable")]
        if not self.variants:
            index = index[np.sort(np.unique(_split_codes(block)[index], return_index=True)[1])]
        best = [(float(keys[i]), block.layout(i)) for i in index[: self.limit]]
        merged = [*self.entries, *((key, layout.split, layout) for key, layout in best)]
        merged.sort(key=lambda entry: entry[0])
        kept: dict[object, tuple[float, tuple[int, ...], Layout]] = {}
        for entry in merged:
            kept.setdefault(entry[2] if self.variants else entry[1], entry)
        self.entries = list(kept.values())[: self.limit]


def _split_codes(block: LayoutBlock) -> Array:
    """A number per layout, equal where the split is (a block has one pipeline size)."""
    code = np.zeros(len(block))
    for size in SPLIT:
        if not size.per_block:
            code = code * 8192.0 + getattr(block, size.name)
    return code


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
    examples: dict[str, Layout]
    """One layout for each rule that dropped any."""


def search(
    scenario: Scenario, space: Space, *, top: int = 10, variants: bool = False, progress: Progress | None = None
) -> Found:
    """Look at every candidate of the space once, and keep the best few."""
    counts: Counter[str] = Counter()
    examples: dict[str, Layout] = {}
    fastest, starved, nearest = Shortlist(top, variants), Shortlist(1, variants), Shortlist(1, variants)
    done = feasible = 0
    total = candidates(scenario, space)
    if total > MOST_CANDIDATES:
        raise InputError(
            f"the options span {total:,} layouts; at most {MOST_CANDIDATES:,} are searched: narrow a range"
        )
    for judged in walk(scenario, space):
        done += len(judged.block)
        for rule, hit in judged.broken:
            counts[rule.id] += int(np.count_nonzero(hit))
            if rule.id not in examples:
                examples[rule.id] = judged.block.layout(int(np.argmax(hit)))
        priced = judged.priced
        if priced is not None:
            feasible += _count(priced, counts)
            fastest.offer(priced.block, priced.step.total, priced.verdict == FITS)
            starved.offer(priced.block, priced.step.total, priced.verdict == STARVED)
            nearest.offer(priced.block, priced.device_bytes, priced.verdict == DOES_NOT_FIT)
        if progress:
            progress(done, total)
    rejected = {name: count for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count}
    return Found(done, feasible, rejected, fastest.layouts, starved.layouts, nearest.layouts, examples)


def _count(priced: Priced, counts: Counter[str]) -> int:
    counts["memory"] += int(np.count_nonzero(priced.verdict == DOES_NOT_FIT))
    counts["near_capacity"] += int(np.count_nonzero(priced.verdict == STARVED))
    return int(np.count_nonzero(priced.verdict == FITS))
