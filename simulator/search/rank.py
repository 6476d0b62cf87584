"""Search: drop what a rule forbids, price the rest, keep the fastest that fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced, Sized, price, timed
from simulator.cost.timing.step import least_step_seconds
from simulator.errors import InputError
from simulator.question.arrays import Index
from simulator.question.scenario.block import Array, LayoutBlock, Mask, blocks_of
from simulator.question.scenario.layout import SPLIT, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.partial import raised, searches_partial
from simulator.search.space import CHUNK, MOST_CANDIDATES, Space, blocks, candidates
from simulator.search.walk import lawful, sizes, walk

Progress = Callable[[int, int], None]
"""Called with candidates done and in total."""
_JUDGED_AT_ONCE = 32
MIN_FIT_PROBABILITY = 0.95
"""Least probability to fit of a layout that is recommended, unless told otherwise."""
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

    @property
    def bar(self) -> float:
        """The key from which on nothing is kept any more."""
        return self.entries[-1][0] if len(self.entries) == self.limit else np.inf

    def offer(self, block: LayoutBlock, keys: Array, where: NDArray[np.bool_]) -> None:
        """Consider the layouts of `block` selected by `where`."""
        self._keep(block, keys, self._worth(block, keys, np.flatnonzero(where)))

    def offer_likely(self, priced: Priced, where: NDArray[np.bool_], least: float) -> Index:
        """Consider by speed the layouts that fit with at least a probability; returns others that would be kept.

        Only what would be kept is judged, the best first and some at a time: what is kept of one lot leaves less to
        judge of the next.
        """
        refused = [np.empty(0, dtype=np.intp)]
        block, keys, left = priced.block, priced.step.total, np.flatnonzero(where)
        left = left[np.argsort(keys[left], kind="stable")]
        while True:
            lot = self._worth(block, keys, left, distinct=False)[:_JUDGED_AT_ONCE]
            if not len(lot):
                return np.concatenate(refused)
            passed = _likely(priced, lot, least)
            refused.append(lot[~passed])
            self._keep(block, keys, self._worth(block, keys, lot[passed]))
            left = left[int(np.flatnonzero(left == lot[-1])[0]) + 1 :]

    def offer_raised(self, space: Space, priced: Priced, refused: Index, least: float) -> None:
        """Consider layouts that are not likely enough to fit with as many more recomputed layers as make them so.

        Those that recompute nothing, or the first layers of each chunk; with more of them none is faster.
        """
        pricing = priced.pricing
        some = pricing.recomputes("none") | (pricing.recomputes("full") & pricing.recomputes_by("block"))

        def passes(sized: Sized) -> Mask:
            every = np.arange(len(sized.block))
            return np.asarray(_likely(sized, every, least) & (sized.verdict == FITS))

        left = refused[some[refused]]
        while len(lot := self._worth(pricing.block, priced.step.total, left, distinct=False)[:_JUDGED_AT_ONCE]):
            left = left[~(left[:, None] == lot).any(axis=1)]
            more = raised(pricing.take(lot), passes)
            if more is not None and len(kept := lawful(space, more.pricing)[0]):
                self.offer(kept.block, price(kept).step.total, np.ones(len(kept), dtype=np.bool_))

    def _worth(self, block: LayoutBlock, keys: Array, index: Index, *, distinct: bool = True) -> Index:
        """The positions that could still be kept, best first; with `distinct` one of each split."""
        index = index[keys[index] < self.bar]
        index = index[np.argsort(keys[index], kind="stable")]
        if self.variants or not len(index):
            return index
        codes = _split_codes(block)[index]
        if distinct:
            return index[np.sort(np.unique(codes, return_index=True)[1])]
        known = {_split_code(layout): key for key, _, layout in self.entries if _same_block(layout, block)}
        beaten = [known.get(code, np.inf) <= key for code, key in zip(codes, keys[index], strict=True)]
        return index[~np.array(beaten, dtype=np.bool_)]

    def _keep(self, block: LayoutBlock, keys: Array, index: Index) -> None:
        best = [(float(keys[i]), block.layout(int(i))) for i in index[: self.limit]]
        merged = [*self.entries, *((key, layout.split, layout) for key, layout in best)]
        merged.sort(key=lambda entry: entry[0])
        kept: dict[object, tuple[float, tuple[int, ...], Layout]] = {}
        for entry in merged:
            kept.setdefault(entry[2] if self.variants else entry[1], entry)
        self.entries = list(kept.values())[: self.limit]


def _likely(sized: Sized, index: Index, least: float) -> Mask:
    """Which layouts fit with at least a probability; without a calibration nothing tells, and all pass."""
    scenario = sized.pricing.scenario
    if scenario.calibration is None or least <= 0.0:
        return np.ones(len(index), dtype=np.bool_)
    likely: Mask = scenario.calibration.likely_to_fit(scenario, sized, index, least)
    return likely


def _same_block(layout: Layout, block: LayoutBlock) -> bool:
    """Whether a layout has the sizes of a split that a block's layouts share."""
    return all(getattr(layout, size.name) == getattr(block, size.name) for size in SPLIT if size.per_block)


def _split_code(layout: Layout) -> float:
    """`_split_codes` of one layout."""
    sizes = (getattr(layout, size.name) for size in SPLIT if not size.per_block)
    return reduce(lambda code, size: code * _BASE + size, sizes, 0.0)


def _split_codes(block: LayoutBlock) -> Array:
    """A number per layout, equal where the split is (a block has one pipeline size)."""
    code = np.zeros(len(block))
    for one in SPLIT:
        if not one.per_block:
            code = code * _BASE + getattr(block, one.name)
    return code


class Found(NamedTuple):
    """What a search leaves: counts and shortlists."""

    evaluated: int
    feasible: int
    rejected: dict[str, int]
    fastest: list[Layout]
    risky: list[Layout]
    """The fastest layouts that fit, but less likely than asked for."""
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
    least: float = 0.0,
) -> Found:
    """Look at every candidate of the space once, and keep the best few that fit with at least probability `least`."""
    counts: Counter[str] = Counter()
    examples: dict[str, Layout] = {}
    fastest, starved, nearest = Shortlist(top, variants), Shortlist(1, variants), Shortlist(1, variants)
    risky = Shortlist(MOST_RISKY, variants)
    done = evaluated = feasible = 0
    total = _counted(scenario, space)
    for judged in walk(scenario, space):
        done += judged.candidates
        evaluated += len(judged.pricing)
        for rule, hit in judged.broken:
            counts[rule.id] += int(np.count_nonzero(hit))
            if rule.id not in examples:
                examples[rule.id] = judged.pricing.block.layout(int(np.argmax(hit)))
        sized = judged.sized
        if sized is not None:
            feasible += _count(sized, counts)
            nearest.offer(sized.block, sized.device_bytes, sized.verdict == DOES_NOT_FIT)
            running = sized.verdict != DOES_NOT_FIT
            if running.any() and min(fastest.bar, starved.bar) < np.inf:
                running &= _ROUNDING * least_step_seconds(sized.pricing) < _bars(sized, fastest, starved)
            if running.any():
                sized = _of_few(sized, running)
                priced = timed(sized, _bars(sized, fastest, starved))
                refused = np.zeros(len(priced.block), dtype=np.bool_)
                refused[_offer(fastest, space, priced, priced.verdict == FITS, least)] = True
                risky.offer(priced.block, priced.step.total, refused)
                starved.offer(priced.block, priced.step.total, priced.verdict == STARVED)
        if progress:
            progress(done, total)
    rejected = {name: count for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count}
    return Found(
        evaluated, feasible, rejected, fastest.layouts, risky.layouts, starved.layouts, nearest.layouts, examples
    )


def _counted(scenario: Scenario, space: Space) -> int:
    """How many layouts a search looks at. Raises InputError where they are too many."""
    total = candidates(scenario, space)
    if total > MOST_CANDIDATES:
        raise InputError(
            f"the options span {total:,} layouts; at most {MOST_CANDIDATES:,} are searched: narrow a range"
        )
    return total


_ROUNDING = 1.0 - 1e-9
"""Of a bound: what rounding in another order may add to it."""


def fastest_of(scenario: Scenario, space: Space, *, least: float = 0.0, near: Collection[Layout] = ()) -> list[Layout]:
    """The `fastest` of a search for one, without its counts: what must be slower than a known layout is not priced.

    `near` are layouts that may be fast: none that takes longer than the fastest of them is looked at.
    """
    _counted(scenario, space)
    known = min(_seconds_of_likely(scenario, space, near, least), default=np.inf) / _ROUNDING
    found = Shortlist(1, variants=False)
    for priced, where in _below(scenario, space, lambda: min(found.bar, known)):
        _offer(found, space, priced, where, least)
    if known < np.inf and not found.entries:  # those near are of another space
        return fastest_of(scenario, space, least=least)
    return found.layouts


def _below(scenario: Scenario, space: Space, bar: Callable[[], float]) -> Iterator[tuple[Priced, Mask]]:
    """Priced blocks, and which of their layouts fit and take less than `bar` seconds, which may fall between blocks."""
    for pricing in blocks(scenario, space, chunk=CHUNK):
        kept, _ = lawful(space, pricing)
        if len(kept) and bar() < np.inf:
            kept = kept.take(_ROUNDING * least_step_seconds(kept) < bar())
        for whole in sizes(space, kept):
            sized, now = _sized_where(whole, FITS), bar()
            if sized is not None:
                priced = timed(sized, np.where(sized.verdict == FITS, now, -np.inf))
                yield priced, np.asarray((priced.verdict == FITS) & (priced.step.total < now))


class Faster(NamedTuple):
    """What a search puts before a layout."""

    seconds: float
    """Of a step of the layout."""
    layouts: int
    """Layouts that fit and are predicted faster."""
    best: Layout
    """The fastest of them, or the layout itself."""
    best_seconds: float


def faster_than(scenario: Scenario, space: Space, layout: Layout, *, least: float = 0.0) -> Faster:
    """Count the layouts of a space that fit with at least a probability and are predicted faster than one."""
    own = float(price(pricing_of(scenario, layout)).step.total[0])
    count, best, shortest = 0, layout, own
    for priced, where in _below(scenario, space, lambda: own):
        before = np.flatnonzero(where)
        before = before[_likely(priced, before, least)] if len(before) else before
        count += len(before)
        if len(before) and (seconds := priced.step.total[before]).min() < shortest:
            shortest, best = float(seconds.min()), priced.block.layout(int(before[seconds.argmin()]))
    return Faster(own, count, best, shortest)


def _offer(found: Shortlist, space: Space, priced: Priced, where: Mask, least: float) -> Index:
    """Consider layouts that fit by speed, and those not likely enough to with more recomputed; returns the latter."""
    refused = found.offer_likely(priced, where, least)
    if len(refused) and searches_partial(priced.pricing.scenario, space):
        found.offer_raised(space, priced, refused, least)
    return refused


def _sized_where(sized: Sized, verdict: int) -> Sized | None:
    """What is to be timed of a block where layouts of a verdict count; None without any."""
    where = sized.verdict == verdict
    return _of_few(sized, where) if where.any() else None


_FEW = 512
"""Layouts up to which timing all takes no longer than choosing some of them."""


def _of_few(sized: Sized, where: Mask) -> Sized:
    """The block, or those of it that count where they are so few that choosing them is less than timing all."""
    if len(where) <= _FEW or 2 * np.count_nonzero(where) >= len(where):
        return sized
    return sized.take(np.flatnonzero(where))


def _seconds_of_likely(scenario: Scenario, space: Space, layouts: Collection[Layout], least: float) -> Iterator[float]:
    """Seconds of a step of those layouts that keep the rules and are likely to fit."""
    for _, block in blocks_of(layouts):
        kept, _ = lawful(space, Pricing(scenario, block))
        if len(kept):
            priced = price(kept)
            fits = np.flatnonzero(priced.verdict == FITS)
            yield from priced.step.total[fits[_likely(priced, fits, least)]]


def _bars(sized: Sized, fastest: Shortlist, starved: Shortlist) -> Array:
    """Seconds from which on a layout is kept in neither list, shape (n,)."""
    running = np.where(sized.verdict == STARVED, starved.bar, -np.inf)
    return np.where(sized.verdict == FITS, fastest.bar, running)


def _count(sized: Sized, counts: Counter[str]) -> int:
    counts["memory"] += int(np.count_nonzero(sized.verdict == DOES_NOT_FIT))
    counts["near_capacity"] += int(np.count_nonzero(sized.verdict == STARVED))
    return int(np.count_nonzero(sized.verdict == FITS))
