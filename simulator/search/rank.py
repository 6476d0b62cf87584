"""Search for the fastest layouts that fit: rules first, then memory, then the time of layouts that may enter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

import numpy as np

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory.peak import lasting_bytes
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced, Sized, price, size, timed
from simulator.cost.timing.step import min_step_seconds
from simulator.errors import InputError
from simulator.question.arrays import Index, Mask
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import BY_NAME, SPLIT, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.rules import ACROSS_NODES, RULES, Rule
from simulator.search.space import CHUNK, MOST_CANDIDATES, PricedLayout, Query, Space, blocks, candidates
from simulator.tabular import NamedTuple, replace

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


def progress_part(progress: Progress | None, position: int, shares: int) -> Progress | None:
    """Return a progress callback for one of `shares` equal shares of the work."""
    if progress is None or shares == 1:
        return progress

    def report(done: int, total: int) -> None:
        progress(_SHARE * position + _SHARE * done // max(total, 1), _SHARE * shares)

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
        likely = likely_to_fit(query, priced, lot)
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
    # Without the sizes, whose figures of the whole block would be held until then.
    alone = replace(pricing.take(chosen), sizes=None)
    return [Raisable(alone, priced.step.total[chosen])] if len(chosen) else []


def _offer_raised(shortlist: Shortlist, raisable: Iterable[Raisable]) -> None:
    """Enter layouts with as many more recomputed layers as the requested probability needs, the fastest first."""
    query = shortlist.query

    def passes(sized: Sized) -> Mask:
        every = np.arange(len(sized.pricing))
        return np.asarray(likely_to_fit(query, sized, every) & (sized.verdict == FITS))

    for pricing, seconds in sorted(raisable, key=lambda block: float(np.min(block.seconds))):
        left = np.arange(len(pricing))
        while len(lot := shortlist.below_bar(pricing.block, seconds, left)[:_JUDGED_AT_ONCE]):
            left = left[~np.isin(left, lot)]
            more = raised(pricing.take(lot), passes)
            allowed = None if more is None else lawful(query.space, more.pricing)[0]
            if more is not None and allowed is not None and len(allowed):
                priced = timed(more) if allowed is more.pricing else price(allowed)
                shortlist.offer(priced, np.arange(len(allowed)))


def likely_to_fit(query: Query, sized: Sized, index: Index) -> Mask:
    """Return which layouts fit with the requested probability; all without a calibration."""
    scenario, probability = query.scenario, query.min_fit_probability
    if scenario.calibration is None or probability <= 0.0:
        return np.ones(len(index), dtype=np.bool_)
    likely: Mask = scenario.calibration.likely_to_fit(scenario, sized, index, probability)
    return likely


def best_of(query: Query, below: float = np.inf) -> PricedLayout | None:
    """Return the first layout of `search`, without its counts; `below` as in `fastest_of`."""
    best: PricedLayout | None = None
    for alternative in query.alternatives():
        fastest = fastest_of(alternative, below if best is None else min(best.step_seconds, below))
        if fastest is not None and (best is None or fastest.step_seconds < best.step_seconds):
            best = fastest
    return best


def fastest_of(query: Query, below: float = np.inf, *, first: bool = False) -> PricedLayout | None:
    """Return the fastest layout for one alternative, or the `first` found; slower ones are not priced in full.

    The search skips layouts whose step takes `below` seconds or more.
    """
    _counted(query)
    shortlist, raisable = Shortlist(query, 1, keeps=True), list[Raisable]()
    for priced, where in layouts_below(query, lambda: min(shortlist.bar, below)):
        raisable += _raisable(query, priced, _offer(shortlist, priced, where))
        if first and shortlist.entries:
            return shortlist.entries[0]
    _offer_raised(shortlist, raisable)
    return shortlist.entries[0] if shortlist.entries else None


def fits_somewhere(query: Query) -> bool:
    """Return whether `fastest_of` finds a layout for one alternative."""
    return query.scenario.devices >= least_devices(query) and fastest_of(query, first=True) is not None


def least_devices(query: Query) -> float:
    """Return a number of devices below which nothing fits: even with all that lives between steps stored only once."""
    scenario, space = query.scenario, query.space
    if scenario.groups:
        return 0.0
    # One replica shards nothing, whatever is asked for: stage 0, in which LoRA's frozen weights stay as they are (M2).
    stages = (0, *(space.zero_stage or (scenario.framework.limits.default_zero_stage,)))
    offloads = space.offload or ("none",)
    cut = (scenario.model.num_hidden_layers,)
    alone = [Layout(zero_stage=stage, offload=each, stage_layers=cut) for stage in stages for each in offloads]
    lasting = lasting_bytes(pricing_of(replace(scenario, devices=1), *alone))
    room = scenario.hardware.usable_memory_bytes * scenario.coefficients.memory.starved_from
    return _ROUNDING * float(np.min(lasting)) / room


def layouts_below(query: Query, bar: Callable[[], float]) -> Iterator[tuple[Priced, Mask]]:
    """Yield priced blocks with masks of layouts that fit and take less than `bar` seconds, which may fall meanwhile."""
    possible = _experts_possible if query.scenario.model.is_moe else None
    for pricing in blocks(query.scenario, query.space, chunk=CHUNK, possible=possible):
        allowed, _ = lawful(query.space, pricing)
        if not len(allowed):
            continue
        # Until a layout is known no bound spares one.
        bounds = _ROUNDING * min_step_seconds(allowed) if bar() < np.inf else np.zeros(len(allowed))
        below = (bounds < bar()) & _may_fit(allowed)
        if not below.any():
            continue
        allowed, bounds = (allowed, bounds) if below.all() else (allowed.take(below), bounds[below])
        sized = size(allowed)
        yield from _timed_below(sized, bar)
        if searches_partial(query.scenario, query.space):
            below = bounds < bar()
            partial = solved(sized if below.all() else sized.take(np.flatnonzero(below)))
            yield from _timed_below(partial, bar) if partial is not None else ()


def _may_fit(pricing: Pricing) -> Mask:
    """Return which layouts have room for what lives between steps, with any recompute."""
    kinds, group = pricing.scenario.kinds_of_device, pricing.contents.group
    room = np.array([kind.usable_memory_bytes for kind in kinds]) * pricing.scenario.coefficients.memory.starved_from
    return np.asarray((_ROUNDING * lasting_bytes(pricing) <= room[group][:, None]).all(axis=0))


def _experts_possible(pricing: Pricing) -> Mask:
    """Return which layouts may fit with sizes that experts and widths divide by: of as many experts, most do not."""
    divide = ~np.any([rule.broken(pricing) for rule in RULES if rule.id in _OF_SIZES], axis=0)
    divide[divide] = _may_fit(pricing.take(divide))
    return np.asarray(divide)


_OF_SIZES = frozenset({"heads", "kv_heads", "ffn", "experts"})
"""Rules of a split and the experts' sizes alone."""


def _timed_below(sized: Sized, bar: Callable[[], float]) -> Iterator[tuple[Priced, Mask]]:
    """Yield a timed block with its layouts that fit and take less than `bar`; nothing if none can."""
    priced = _timed(sized, np.where(sized.verdict == FITS, bar(), -np.inf))
    if priced is not None:
        yield priced, np.asarray((priced.verdict == FITS) & (priced.step.total < bar()))


_BASE = 8192.0
"""Upper bound on every size in a split."""
_SIZES = tuple(size.name for size in SPLIT if not size.per_block)
_SHARED = tuple(size.name for size in SPLIT if size.per_block)


@dataclass(slots=True)
class Shortlist:
    """The best few layouts by a figure, lowest first; ties keep the order of the search."""

    query: Query
    limit: int
    variants: bool = False
    """Whether to keep every layout, not only the best of each split."""
    by: Literal["step_seconds", "device_bytes"] = "step_seconds"
    keeps: bool = False
    """Whether entries come with their prices."""
    entries: list[PricedLayout] = field(default_factory=list)

    @property
    def bar(self) -> float:
        """Return the figure from which on no layout enters."""
        return self._figure(self.entries[-1]) if len(self.entries) == self.limit else np.inf

    def _figure(self, entry: PricedLayout) -> float:
        return entry.step_seconds if self.by == "step_seconds" else entry.device_bytes

    def _figures(self, sized: Sized) -> Array:
        return sized.step.total if isinstance(sized, Priced) and self.by == "step_seconds" else sized.device_bytes

    def entering(self, sized: Sized, index: Index) -> Index:
        """Return the positions of layouts at an index that would enter, best first."""
        return self.below_bar(sized.block, self._figures(sized), index)

    def below_bar(self, block: LayoutBlock, figures: Array, index: Index) -> Index:
        """Return `entering` for layouts with `figures`, shape (n,)."""
        index = index[figures[index] < self.bar]
        index = index[np.argsort(figures[index], kind="stable")]
        if self.variants or not len(index):
            return index
        of_block = (entry for entry in self.entries if _in_block(entry.layout, block))
        known = {_split_code(entry.layout): self._figure(entry) for entry in of_block}
        codes = _split_codes(block)[index]
        beaten = [known.get(code, np.inf) <= key for code, key in zip(codes, figures[index], strict=True)]
        return index[~np.array(beaten, dtype=np.bool_)]

    def offer(self, sized: Sized, index: Index) -> None:
        """Enter the layouts at an index that beat the present entries."""
        index = self.entering(sized, index)
        if not self.variants:
            index = index[np.sort(np.unique(_split_codes(sized.block)[index], return_index=True)[1])]
        entering = (priced_layout(self.query, sized, int(at), keeps=self.keeps) for at in index[: self.limit])
        merged = [*self.entries, *entering]
        merged.sort(key=self._figure)
        best: dict[object, PricedLayout] = {}
        for entry in merged:
            best.setdefault(entry.layout if self.variants else entry.layout.split, entry)
        self.entries = list(best.values())[: self.limit]


def priced_layout(query: Query, sized: Sized, index: int, *, keeps: bool = False) -> PricedLayout:
    """Return one layout of a priced block; one that `keeps` it is estimated without pricing it again."""
    layout, device_bytes = sized.block.layout(index), float(sized.device_bytes[index])
    if not isinstance(sized, Priced):
        return PricedLayout(query, layout, np.nan, device_bytes)
    alone = sized.take(np.array([index])) if keeps else None
    return PricedLayout(query, layout, float(sized.step.total[index]), device_bytes, alone)


def _in_block(layout: Layout, block: LayoutBlock) -> bool:
    """Return whether a layout has the split sizes that a block's layouts share."""
    return all(getattr(layout, name) == getattr(block, name) for name in _SHARED)


def _split_code(layout: Layout) -> float:
    """Return the code of one layout's split, as in `_split_codes`."""
    return reduce(lambda code, name: code * _BASE + getattr(layout, name), _SIZES, 0.0)


def _split_codes(block: LayoutBlock) -> Array:
    """Return a number per layout that is equal where the split is."""
    code = np.zeros(len(block))
    for name in _SIZES:
        code = code * _BASE + getattr(block, name)
    return code


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
    left, at, alive = pricing, np.arange(len(pricing)), np.ones(len(pricing), dtype=np.bool_)
    for rule in RULES if space.tensor_parallel_across_nodes else (*RULES, ACROSS_NODES):
        hit = alive & rule.broken(left)
        if hit.any():
            whole = np.zeros(len(pricing), dtype=np.bool_)
            whole[at[hit]] = True
            broken.append((rule, whole))
            alive &= ~hit
            if 2 * np.count_nonzero(alive) < len(left):  # further rules take less time for those left
                left, at, alive = left.take(alive), at[alive], np.ones(np.count_nonzero(alive), dtype=np.bool_)
    return left if alive.all() else left.take(alive), tuple(broken)


_PRICED_AT_ONCE = 256
"""Largest block that takes about as long to price as one layout."""
_SIZED_AT_ONCE = 1024
"""Largest block whose memory takes about twice as long as that of one layout."""
PassesLimit = Callable[[Sized], Mask]
"""Predicate of a block: which layouts have enough memory. True for more recomputed layers if true for fewer."""


def searches_partial(scenario: Scenario, space: Space) -> bool:
    """Return whether a search solves for recomputed layers: the framework counts them, and recompute is left open."""
    recompute = (
        space.recompute,
        space.recompute_modules,
        space.recompute_method,
        space.recompute_layers,
        space.recompute_layer_list,
    )
    return scenario.framework.limits.recomputes_leading_layers and not any(recompute)


def solved(sized: Sized) -> Sized | None:
    """Return layouts that fit only with recompute, with the fewest recomputed layers that fit; None if none.

    Layouts that need all layers of the largest chunk are left out.
    """
    full = sized.pricing.recomputes("full") & (sized.verdict == FITS)
    pricing = sized.pricing.take(full & (_largest_chunk(sized.block) > 1.0))
    if not len(pricing):
        return None

    def fits(tried: Sized) -> Mask:
        return np.asarray(tried.verdict == FITS)

    return _fewest(pricing, np.full(len(pricing), -1.0), fits, _SIZED_AT_ONCE)


def raised(pricing: Pricing, passes: PassesLimit) -> Sized | None:
    """Return failing layouts with the fewest recomputed layers that pass, or None.

    Layouts recompute nothing, or the first layers of every chunk. Those that fail with all layers are left out.
    """
    pricing = pricing.take(_largest_chunk(pricing.block) > 1.0)
    if not len(pricing):
        return None
    low, most = np.where(pricing.recomputes("full"), pricing.block.recompute_layers, 0.0), _largest_chunk(pricing.block)
    numbers = np.arange(1.0, np.max(most - low) + 1.0)[:, None]
    if numbers.size * len(pricing) > _PRICED_AT_ONCE:
        possible = passes(size(_with_layers(pricing, most)))
        return _fewest(pricing.take(possible), low[possible], passes, _PRICED_AT_ONCE)
    tried = np.minimum(low + numbers, most)  # every number, shape (numbers, n)
    each = np.tile(np.arange(len(pricing), dtype=np.intp), len(numbers))
    sized = size(_with_layers(pricing.take(each), tried.ravel()))
    enough = passes(sized).reshape(tried.shape)
    fewest = enough.argmax(axis=0)
    some = np.flatnonzero(enough[-1] & (tried[fewest, each[: len(pricing)]] < most))
    return sized.take(fewest[some] * len(pricing) + some) if len(some) else None


def _largest_chunk(block: LayoutBlock) -> Array:
    """Return the layers of each layout's largest chunk, shape (n,)."""
    if block.chunk_layers:
        return np.full(len(block), float(max(block.chunk_layers)))
    return np.asarray(max(block.stage_layers) // block.virtual_stages)


def _fewest(pricing: Pricing, low: Array, passes: PassesLimit, at_once: int) -> Sized | None:
    """Return layouts with the fewest layers above `low`, shape (n,), that pass, where that is some but not all.

    A round tries as many numbers as a block of `at_once` layouts holds.
    """
    most = _largest_chunk(pricing.block)
    high = most
    sized, tried = None, np.empty((0, len(pricing)))
    while len(pricing) and np.any(high - low > 1.0):
        parts = min(max(at_once // len(pricing), 1), int(np.max(high - low)) - 1) + 1
        steps = np.floor(np.outer(np.arange(1, parts), high - low) / parts)
        tried = low + np.maximum(steps, 1.0)  # shape (parts - 1, n)
        each = np.tile(np.arange(len(pricing), dtype=np.intp), parts - 1)
        sized = size(_with_layers(pricing.take(each), tried.ravel()))
        enough = passes(sized).reshape(tried.shape)
        low = np.max(np.where(enough, low, tried), axis=0)
        high = np.min(np.where(enough, tried, high), axis=0)
    some = np.flatnonzero((high > 0.0) & (high < most))
    if not len(some):
        return None
    last = (tried == high)[:, some]
    if sized is not None and last.any(axis=0).all():  # the last trial priced them
        return sized.take(last.argmax(axis=0) * len(pricing) + some)
    return size(_with_layers(pricing.take(some), high[some]))


def _with_layers(pricing: Pricing, layers: Array) -> Pricing:
    """Return the layouts with that many layers of every chunk recomputed in full; 0 recomputes nothing."""
    some = layers > 0.0

    def column(name: str, word: object, other: object) -> Array:
        return np.where(some, BY_NAME[name].encoded(word), BY_NAME[name].encoded(other))

    return pricing.changed(
        recompute=column("recompute", "full", "none"),
        recompute_method=column("recompute_method", "block", "uniform"),
        recompute_modules=np.full(
            len(pricing), BY_NAME["recompute_modules"].encoded(BY_NAME["recompute_modules"].default)
        ),
        recompute_layers=np.where(some, layers, 1.0),
    )


_SURE = 0.99
"""Probability to fit above which more room makes no layout surer."""


def equal_to_first(layouts: Sequence[PricedLayout], beside: Sequence[PricedLayout] = ()) -> tuple[int, ...]:
    """Return the positions of layouts whose step time may equal the first's, within the interval of the difference.

    Empty without a calibration. What was estimated `beside` them is priced with them, as it was then.
    """
    if len(layouts) <= 1 or (calibration := layouts[0].query.scenario.calibration) is None:
        return ()
    widths = calibration.difference_half_widths(
        [(priced.query.scenario, priced.layout) for priced in (*layouts, *beside)]
    )
    first = layouts[0].step_seconds
    return tuple(
        position
        for position, (priced, width) in enumerate(zip(layouts, widths[: len(layouts)], strict=True))
        if position and math.log(priced.step_seconds / first) <= width
    )


def surer_than_first(
    estimates: Sequence[Estimate], equal: Sequence[int], upper_ends: Sequence[float] | None = None
) -> int | None:
    """Return the position, among those equal to the first, of the surer one; None where the first is.

    Surer is the smallest of `upper_ends`, by default of the step time, or, where the first may not fit, the largest
    probability to fit.
    """
    if not equal:
        return None
    first = estimates[0]
    room = first.memory.fit_probability
    if room is not None and room < _SURE:
        fits = {position: estimates[position].memory.fit_probability or 0.0 for position in equal}
        best = max(fits, key=lambda position: fits[position])
        if fits[best] > room:
            return best
    ends = [*map(_slowest, estimates)] if upper_ends is None else upper_ends
    best = min(equal, key=ends.__getitem__)
    return best if ends[best] < ends[0] else None


def _slowest(estimate: Estimate) -> float:
    """Return the upper end of the step time."""
    interval = estimate.throughput.interval_seconds
    return estimate.throughput.step_seconds if interval is None else interval.high


def spread(query: Query, most: int, drawn: int) -> tuple[list[PricedLayout], list[PricedLayout]]:
    """Return at most `most` fitting layouts to look at in detail, and others, together at most `drawn`.

    Fastest first. If there are more, the layouts that no other beats in both speed and memory and the fastest of each
    split come first; others fill the room, evenly spread by rank of speed.
    """
    fitting: list[Priced] = [
        timed(judged.sized.take(np.flatnonzero(judged.sized.verdict == FITS)))
        for judged in walk(query.scenario, query.space)
        if judged.sized is not None and (judged.sized.verdict == FITS).any()
    ]
    if not fitting:
        return [], []
    seconds = np.concatenate([each.step.total for each in fitting])
    memory = np.concatenate([each.device_bytes for each in fitting])
    splits = np.concatenate([_splits(each.block) for each in fitting], axis=1)
    order = np.argsort(seconds, kind="stable")
    order = order[_chosen(memory[order], splits[:, order], drawn)]
    detailed = np.zeros(len(order), bool)
    detailed[_chosen(memory[order], splits[:, order], most)] = True
    starts = np.cumsum([0, *(len(each.pricing) for each in fitting)])
    blocks = np.searchsorted(starts, order, side="right") - 1
    layouts = [
        priced_layout(query, fitting[number], index)
        for number, index in zip(blocks.tolist(), (order - starts[blocks]).tolist(), strict=True)
    ]
    return [layouts[at] for at in np.flatnonzero(detailed)], [layouts[at] for at in np.flatnonzero(~detailed)]


def _splits(block: LayoutBlock) -> Array:
    """Return the split sizes of every layout, shape (sizes, n)."""
    sizes = (np.asarray(getattr(block, size.name), float) for size in SPLIT)
    return np.array([np.broadcast_to(size, (len(block),)) for size in sizes])


def _chosen(memory: Array, splits: Array, most: int) -> Index:
    """Return positions among layouts sorted by speed: all, or the front, the best of each split, and others evenly."""
    if len(memory) <= most:
        return np.arange(len(memory))
    smallest_before = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]]))
    chosen = memory < smallest_before
    chosen[np.unique(splits, axis=1, return_index=True)[1]] = True
    others = np.flatnonzero(~chosen)
    room = max(most - int(np.count_nonzero(chosen)), 0)
    chosen[others[np.linspace(0, len(others) - 1, room).astype(np.intp)]] = True
    positions: Index = np.flatnonzero(chosen)
    return positions
