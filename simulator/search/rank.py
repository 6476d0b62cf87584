"""Search for the fastest layouts that fit: rules, then memory, then the time of layouts that may enter the list.

It returns layouts with two figures each, of which `build` makes estimates. Contains no formula.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced, Sized, price, size, timed
from simulator.cost.timing.step import min_step_seconds
from simulator.errors import InputError
from simulator.question.arrays import Index, Mask
from simulator.question.scenario.block import Array
from simulator.question.scenario.layout import Layout
from simulator.search.partial import raised, searches_partial, solved
from simulator.search.query import PricedLayout, Query
from simulator.search.shortlist import Shortlist, priced_layout
from simulator.search.space import CHUNK, MOST_CANDIDATES, blocks, candidates
from simulator.search.walk import lawful, walk

Progress = Callable[[int, int], None]
"""Callback with the candidates done and in total."""
_SHARE = 1000
"""Units in which one share of the work is counted."""
_JUDGED_AT_ONCE = 32
MOST_RISKY = 3
"""Number of risky layouts in a result."""
_FEW = 512
"""Largest block that is timed whole rather than in part."""
_ROUNDING = 1.0 - 1e-9
"""Factor on a bound that absorbs rounding in another order."""


class SearchResult(NamedTuple):
    """Result of a search: counts, and the best layouts of each sort, best first."""

    evaluated: int
    feasible: int
    rejected: Mapping[str, int]
    fastest: tuple[PricedLayout, ...]
    risky: tuple[PricedLayout, ...]
    """Fastest layouts that fit, but with less than the requested probability."""
    starved: tuple[PricedLayout, ...]
    nearest: tuple[PricedLayout, ...]
    """Layouts that need least memory among those that do not fit."""
    examples: Mapping[str, Layout]
    """One dropped layout for each rule that dropped any."""


def search(query: Query, *, top: int = 10, variants: bool = False, progress: Progress | None = None) -> SearchResult:
    """Visit every candidate once, for each alternative of the question, and keep the best few that fit.

    `starved`, `nearest` and `examples` are those of the question as it stands.
    """
    alternatives = query.alternatives()
    results = [
        _search(alternative, top, variants, progress_part(progress, n, len(alternatives)))
        for n, alternative in enumerate(alternatives)
    ]
    fastest: dict[object, PricedLayout] = {}
    for priced in sorted((priced for each in results for priced in each.fastest), key=_seconds):
        fastest.setdefault((priced.layout, tuple(priced.query.chosen)) if variants else priced.layout.split, priced)
    rejected: Counter[str] = Counter()
    for each in results:
        rejected.update(each.rejected)
    return results[0]._replace(
        evaluated=sum(each.evaluated for each in results),
        feasible=sum(each.feasible for each in results),
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        fastest=tuple(fastest.values())[:top],
        risky=tuple(sorted((priced for each in results for priced in each.risky), key=_seconds)[:MOST_RISKY]),
    )


def progress_part(progress: Progress | None, position: int, of: int) -> Progress | None:
    """Return a progress callback for one of `of` equal shares of the work."""
    if progress is None or of == 1:
        return progress

    def report(done: int, total: int) -> None:
        progress(_SHARE * position + _SHARE * done // max(total, 1), _SHARE * of)

    return report


def _seconds(priced: PricedLayout) -> float:
    return priced.step_seconds


def _search(query: Query, top: int, variants: bool, progress: Progress | None) -> SearchResult:  # noqa: FBT001  passed on
    """Search one alternative of a question."""
    counts: Counter[str] = Counter()
    examples: dict[str, Layout] = {}
    fastest, risky = Shortlist(query, top, variants), Shortlist(query, MOST_RISKY, variants)
    starved, nearest = Shortlist(query, 1), Shortlist(query, 1, by="device_bytes")
    raisable: list[Raisable] = []
    done = evaluated = feasible = 0
    total = _counted(query)
    for judged in walk(query.scenario, query.space):
        done += judged.candidates
        evaluated += len(judged.pricing)
        for rule, hit in judged.broken:
            counts[rule.id] += int(np.count_nonzero(hit))
            if rule.id not in examples:
                examples[rule.id] = judged.pricing.block.layout(int(np.argmax(hit)))
        sized = judged.sized
        if sized is not None:
            fits, near = sized.verdict == FITS, sized.verdict == STARVED
            feasible += int(np.count_nonzero(fits))
            counts["memory"] += int(np.count_nonzero(sized.verdict == DOES_NOT_FIT))
            counts["near_capacity"] += int(np.count_nonzero(near))
            nearest.offer(sized, np.flatnonzero(sized.verdict == DOES_NOT_FIT))
            bars = np.where(fits, fastest.bar, np.where(near, starved.bar, -np.inf))
            if min(fastest.bar, starved.bar) < np.inf and (bars > -np.inf).any():
                bars = np.where(_ROUNDING * min_step_seconds(sized.pricing) < bars, bars, -np.inf)
            priced = _timed(sized, bars)
            if priced is not None:
                unlikely = _offer(fastest, priced, priced.verdict == FITS)
                risky.offer(priced, unlikely)
                raisable += _raisable(query, priced, unlikely)
                starved.offer(priced, np.flatnonzero(priced.verdict == STARVED))
        if progress:
            progress(done, total)
    _offer_raised(fastest, raisable)
    rejected = {name: count for name, count in counts.items() if count}
    lists = {"fastest": fastest, "risky": risky, "starved": starved, "nearest": nearest}
    entries = {name: tuple(listed.entries) for name, listed in lists.items()}
    return SearchResult(evaluated=evaluated, feasible=feasible, rejected=rejected, examples=examples, **entries)


def _counted(query: Query) -> int:
    """Return the number of layouts in a search. Raises InputError if they are too many."""
    total = candidates(query.scenario, query.space)
    if total > MOST_CANDIDATES:
        raise InputError(
            f"the options span {total:,} layouts; at most {MOST_CANDIDATES:,} are searched: narrow a range"
        )
    return total


def _timed(sized: Sized, bars: Array) -> Priced | None:
    """Return the layouts with a finite bar, timed if below it; None without any. `bars` has shape (n,)."""
    running = bars > -np.inf
    if not running.any():
        return None
    if len(running) > _FEW and 2 * np.count_nonzero(running) < len(running):
        chosen = np.flatnonzero(running)
        sized, bars = sized.take(chosen), bars[chosen]
    return timed(sized, bars)


def _offer(shortlist: Shortlist, priced: Priced, where: Mask) -> Index:
    """Enter the layouts that fit with the requested probability; return others that would have entered.

    Only entering layouts are judged, the best first and some at a time, as each entry leaves less to judge.
    """
    query = shortlist.query
    refused = [np.empty(0, dtype=np.intp)]
    left = np.flatnonzero(where)
    left = left[np.argsort(priced.step.total[left], kind="stable")]
    while len(lot := shortlist.entering(priced, left)[:_JUDGED_AT_ONCE]):
        likely = _likely(query, priced, lot)
        refused.append(lot[~likely])
        shortlist.offer(priced, lot[likely])
        left = left[int(np.flatnonzero(left == lot[-1])[0]) + 1 :]
    return np.concatenate(refused)


class Raisable(NamedTuple):
    """Layouts that may reach the requested probability with more recomputed layers."""

    pricing: Pricing
    seconds: Array
    """Step seconds with their present recompute, shape (n,): a lower bound with more."""


def _raisable(query: Query, priced: Priced, unlikely: Index) -> list[Raisable]:
    """Return the unlikely layouts without recompute, or with it in the first layers of each chunk, as 0 or 1 block.

    They are raised when the search is over: by then few are faster than the likely ones.
    """
    if not len(unlikely) or not searches_partial(query.scenario, query.space):
        return []
    pricing = priced.pricing
    some = pricing.recomputes("none") | (pricing.recomputes("full") & pricing.recomputes_by("block"))
    chosen = unlikely[some[unlikely]]
    return [Raisable(pricing.take(chosen), priced.step.total[chosen])] if len(chosen) else []


def _offer_raised(shortlist: Shortlist, raisable: Iterable[Raisable]) -> None:
    """Enter layouts with as many more recomputed layers as the requested probability needs, the fastest first."""
    query = shortlist.query

    def passes(sized: Sized) -> Mask:
        every = np.arange(len(sized.pricing))
        return np.asarray(_likely(query, sized, every) & (sized.verdict == FITS))

    for pricing, seconds in sorted(raisable, key=lambda block: float(np.min(block.seconds))):
        left = np.arange(len(pricing))
        while len(lot := shortlist.below_bar(pricing.block, seconds, left)[:_JUDGED_AT_ONCE]):
            left = left[~np.isin(left, lot)]
            more = raised(pricing.take(lot), passes)
            allowed = None if more is None else lawful(query.space, more.pricing)[0]
            if more is not None and allowed is not None and len(allowed):
                priced = timed(more) if allowed is more.pricing else price(allowed)
                shortlist.offer(priced, np.arange(len(allowed)))


def _likely(query: Query, sized: Sized, index: Index) -> Mask:
    """Return which layouts fit with the requested probability; all without a calibration."""
    scenario, probability = query.scenario, query.min_fit_probability
    if scenario.calibration is None or probability <= 0.0:
        return np.ones(len(index), dtype=np.bool_)
    likely: Mask = scenario.calibration.likely_to_fit(scenario, sized, index, probability)
    return likely


def best_of(query: Query, near: Collection[Layout] = (), below: float = np.inf) -> PricedLayout | None:
    """Return the first layout of `search`, without its counts; `near` and `below` as in `fastest_of`."""
    best: PricedLayout | None = None
    for alternative in query.alternatives():
        fastest = fastest_of(alternative, near if best is None else [*near, best.layout], below)
        if fastest is not None and (best is None or fastest.step_seconds < best.step_seconds):
            best = fastest
    return best


def fastest_of(query: Query, near: Collection[Layout] = (), below: float = np.inf) -> PricedLayout | None:
    """Return the fastest layout for one alternative; layouts slower than a known one are not priced in full.

    `near` are layouts that may be fast, best first: the search skips layouts slower than the first likely one of them,
    and those whose step takes `below` seconds or more.
    """
    _counted(query)
    known = next(_seconds_of_likely(query, near), np.inf) / _ROUNDING
    shortlist, raisable = Shortlist(query, 1), list[Raisable]()
    for priced, where in _below(query, lambda: min(shortlist.bar, known, below)):
        raisable += _raisable(query, priced, _offer(shortlist, priced, where))
    _offer_raised(shortlist, raisable)
    if known < np.inf and not shortlist.entries:  # `near` came from another space
        return fastest_of(query, below=below)
    return shortlist.entries[0] if shortlist.entries else None


def _below(query: Query, bar: Callable[[], float]) -> Iterator[tuple[Priced, Mask]]:
    """Yield priced blocks with masks of layouts that fit and take less than `bar` seconds, which may fall meanwhile."""
    for pricing in blocks(query.scenario, query.space, chunk=CHUNK):
        allowed, _ = lawful(query.space, pricing)
        if not len(allowed):
            continue
        bounds = _ROUNDING * min_step_seconds(allowed)
        allowed, bounds = allowed.take(bounds < bar()), bounds[bounds < bar()]
        if not len(allowed):
            continue
        sized = size(allowed)
        yield from _timed_below(sized, bar)
        if searches_partial(query.scenario, query.space):
            partial = solved(sized.take(np.flatnonzero(bounds < bar())))
            yield from _timed_below(partial, bar) if partial is not None else ()


def _timed_below(sized: Sized, bar: Callable[[], float]) -> Iterator[tuple[Priced, Mask]]:
    """Yield a timed block with its layouts that fit and take less than `bar`; nothing if none can."""
    priced = _timed(sized, np.where(sized.verdict == FITS, bar(), -np.inf))
    if priced is not None:
        yield priced, np.asarray((priced.verdict == FITS) & (priced.step.total < bar()))


def _seconds_of_likely(query: Query, layouts: Collection[Layout]) -> Iterator[float]:
    """Yield the step seconds of those layouts that keep the rules and are likely to fit, in their order."""
    for layout in layouts:
        allowed, _ = lawful(query.space, pricing_of(query.scenario, layout))
        if len(allowed):
            priced = price(allowed)
            fits = np.flatnonzero(priced.verdict == FITS)
            yield from priced.step.total[fits[_likely(query, priced, fits)]]


def faster_than(query: Query, layout: Layout) -> tuple[int, PricedLayout, PricedLayout]:
    """Return the number of fitting layouts faster than `layout`, the fastest of them (or `layout`), and `layout`."""
    own = priced_layout(query, price(pricing_of(query.scenario, layout)), 0)
    count, best = 0, own
    for priced, where in _below(query, lambda: own.step_seconds):
        before = np.flatnonzero(where)
        before = before[_likely(query, priced, before)] if len(before) else before
        count += len(before)
        if len(before):
            first = priced_layout(query, priced, int(before[np.argmin(priced.step.total[before])]))
            best = min(best, first, key=_seconds)
    return count, best, own
