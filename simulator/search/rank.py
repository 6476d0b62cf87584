"""Search: drop what a rule forbids, price the rest, keep the fastest that fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced, price
from simulator.errors import InputError
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.rules import ACROSS_NODES, RULES, Rule
from simulator.search.space import CHUNK, MOST_CANDIDATES, Space, blocks, candidates

Progress = Callable[[int, int], None]
"""Called with candidates done and in total."""
Judge = Callable[[Priced, NDArray[np.intp]], NDArray[np.bool_]]
"""Tells which layouts of a priced block, given by position, may be recommended."""
_JUDGED_AT_ONCE = 32
MOST_RISKY = 3
"""Risky layouts that a search remembers."""


_BASE = 8192.0
"""Above every size in a split."""


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
        self._keep(block, keys, self._worth(block, keys, np.flatnonzero(where)))

    def offer_judged(self, priced: Priced, keys: Array, where: NDArray[np.bool_], judge: Judge) -> NDArray[np.intp]:
        """Consider the layouts that `judge` lets pass, asking it only of those that would be kept; return the others.

        The best first, some at a time: what is kept of one lot leaves less to judge of the next.
        """
        refused: list[NDArray[np.intp]] = []
        block, left = priced.block, np.flatnonzero(where)
        left = left[np.argsort(keys[left], kind="stable")]
        while True:
            lot = self._worth(block, keys, left, distinct=False)[:_JUDGED_AT_ONCE]
            if not len(lot):
                return np.concatenate([np.empty(0, dtype=np.intp), *refused])
            passed = judge(priced, lot)
            refused.append(lot[~passed])
            self._keep(block, keys, self._worth(block, keys, lot[passed]))
            left = left[int(np.flatnonzero(left == lot[-1])[0]) + 1 :]

    def _worth(
        self, block: LayoutBlock, keys: Array, index: NDArray[np.intp], *, distinct: bool = True
    ) -> NDArray[np.intp]:
        """The positions that could still be kept, best first; with `distinct` one of each split."""
        if len(self.entries) == self.limit:
            index = index[keys[index] < self.entries[-1][0]]
        index = index[np.argsort(keys[index], kind="stable")]
        if self.variants or not len(index):
            return index
        codes = _split_codes(block)[index]
        if distinct:
            return index[np.sort(np.unique(codes, return_index=True)[1])]
        known = {_code(split): key for key, split, _ in self.entries if split[1] == block.pipeline_parallel}
        beaten = [known.get(code, np.inf) <= key for code, key in zip(codes, keys[index], strict=True)]
        return index[~np.array(beaten, dtype=np.bool_)]

    def _keep(self, block: LayoutBlock, keys: Array, index: NDArray[np.intp]) -> None:
        best = [(float(keys[i]), block.layout(int(i))) for i in index[: self.limit]]
        merged = [*self.entries, *((key, _split(layout), layout) for key, layout in best)]
        merged.sort(key=lambda entry: entry[0])
        kept: dict[object, tuple[float, tuple[int, ...], Layout]] = {}
        for entry in merged:
            kept.setdefault(entry[2] if self.variants else entry[1], entry)
        self.entries = list(kept.values())[: self.limit]


def _split(layout: Layout) -> tuple[int, ...]:
    return (
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.context_parallel,
        layout.expert_parallel,
        layout.expert_tensor_parallel,
    )


def _split_codes(block: LayoutBlock) -> Array:
    """A number per layout, equal where the split is (a block has one pipeline size)."""
    columns = (block.tensor_parallel, block.context_parallel, block.expert_parallel, block.expert_tensor_parallel)
    return np.asarray(reduce(lambda code, column: code * _BASE + column, columns))


def _code(split: tuple[int, ...]) -> float:
    """`_split_codes` of one split."""
    tensor, _, *rest = split
    return reduce(lambda code, size: code * _BASE + size, rest, float(tensor))


@dataclass(frozen=True, slots=True)
class Found:
    """What a search leaves: counts and shortlists."""

    evaluated: int
    feasible: int
    rejected: dict[str, int]
    fastest: list[Layout]
    risky: list[Layout]
    """The fastest layouts that fit, but were not let pass."""
    starved: list[Layout]
    nearest: list[Layout]
    """The layouts that need least of those that do not fit."""
    examples: dict[str, Layout]
    """One layout for each rule that dropped any."""


def search(  # noqa: PLR0913  a question, and how much of the answer to keep
    scenario: Scenario,
    space: Space,
    *,
    top: int = 10,
    variants: bool = False,
    progress: Progress | None = None,
    judge: Judge | None = None,
) -> Found:
    """Look at every candidate of the space once; of those that fit, only what `judge` lets pass is among the fastest.

    Memory stays bounded: candidates are generated, judged and forgotten a chunk at a time.
    """
    rules = RULES if space.tensor_parallel_across_nodes else (*RULES, ACROSS_NODES)
    counts: Counter[str] = Counter()
    examples: dict[str, Layout] = {}
    fastest, starved, nearest = Shortlist(top, variants), Shortlist(1, variants), Shortlist(1, variants)
    risky = Shortlist(MOST_RISKY, variants)
    done = feasible = 0
    total = candidates(scenario, space)
    if total > MOST_CANDIDATES:
        raise InputError(
            f"the options span {total:,} layouts; at most {MOST_CANDIDATES:,} are searched: narrow a range"
        )
    for block in blocks(scenario, space, chunk=CHUNK):
        done += len(block)
        kept = _valid(scenario, block, rules, counts, examples)
        if kept is not None:
            priced = price(scenario, kept)
            feasible += _count(priced, counts)
            _recommend(fastest, risky, priced, judge)
            starved.offer(kept, priced.step.total, priced.verdict == STARVED)
            nearest.offer(kept, priced.device_bytes, priced.verdict == DOES_NOT_FIT)
        if progress:
            progress(done, total)
    rejected = {name: count for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count}
    return Found(done, feasible, rejected, fastest.layouts, risky.layouts, starved.layouts, nearest.layouts, examples)


def _recommend(fastest: Shortlist, risky: Shortlist, priced: Priced, judge: Judge | None) -> None:
    """Put the layouts that fit into one shortlist or the other."""
    fits, seconds = priced.verdict == FITS, priced.step.total
    if judge is None:
        fastest.offer(priced.block, seconds, fits)
        return
    refused = np.zeros(len(fits), dtype=np.bool_)
    refused[fastest.offer_judged(priced, seconds, fits, judge)] = True
    risky.offer(priced.block, seconds, refused)


def _count(priced: Priced, counts: Counter[str]) -> int:
    counts["memory"] += int(np.count_nonzero(priced.verdict == DOES_NOT_FIT))
    counts["near_capacity"] += int(np.count_nonzero(priced.verdict == STARVED))
    return int(np.count_nonzero(priced.verdict == FITS))


def _valid(
    scenario: Scenario,
    block: LayoutBlock,
    rules: tuple[Rule, ...],
    counts: Counter[str],
    examples: dict[str, Layout],
) -> LayoutBlock | None:
    """The layouts that break no rule, or None; the others are counted under the first rule they break."""
    alive = np.ones(len(block), dtype=np.bool_)
    for rule in rules:
        hit = alive & rule.broken(scenario, block)
        if hit.any():
            counts[rule.id] += int(np.count_nonzero(hit))
            if rule.id not in examples:
                examples[rule.id] = block.layout(int(np.argmax(hit)))
            alive &= ~hit
    if not alive.any():
        return None
    return block if alive.all() else block.take(alive)
