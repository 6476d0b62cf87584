"""Search for the fastest layouts that fit: rules first, then memory, then the time of layouts that may enter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Literal

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.memory.peak import lasting_bytes
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced, Sized, price, size, timed
from simulator.cost.timing.step import ROUNDING, least_step_seconds, min_step_seconds
from simulator.question.arrays import Index, Mask, numbered
from simulator.question.scenario.block import Array, LayoutBlock, block_of
from simulator.question.scenario.layout import BY_NAME, SPLIT, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.records import NamedTuple, names_taken, replace
from simulator.search.rules import ACROSS_NODES, RULES, Rule
from simulator.search.space import CHUNK, MIN_FIT_PROBABILITY, PricedLayout, Query, Space, blocks, candidates

Progress = Callable[[int, int], None]
"""Callback with the candidates done and in total."""
_SHARE = 1000  # units in which one share of the work is counted
_OFFERED_AT_ONCE, _JUDGED_AT_ONCE = 32, 96  # layouts that enter together, and are first judged together
MOST_RISKY = 3
"""Number of risky layouts in a result."""
LESS_LIKELY = (MIN_FIT_PROBABILITY, 0.8, 0.5)
"""Probabilities to fit that are tried in turn where no layout has the requested one."""
_FEW = 512  # largest block that is timed whole rather than in part


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


def search(
    query: Query, *, top: int = 10, variants: bool = False, progress: Progress | None = None, counted: bool = True
) -> SearchResult:
    """Visit every candidate once, for each alternative of the question, and keep the best few that fit.

    `starved`, `nearest` and `examples` are those of the question as it stands. Unless candidates are `counted`, those
    that could be in no list are passed over.
    """
    alternatives, results, below = query.alternatives(), list[SearchResult](), np.inf
    # The last is seldom slower: what it found leaves less to time in the question as it stands, which goes first.
    for n, alternative in enumerate(reversed(alternatives)):
        part = progress_part(progress, n, len(alternatives))
        result = _search(alternative, top, below, part, variants=variants, counted=counted)
        results.insert(0, result)
        if len(result.fastest) == top and len(result.risky) == MOST_RISKY:
            below = np.nextafter(max(_seconds(result.fastest[-1]), _seconds(result.risky[-1])), np.inf)
    fastest: dict[object, PricedLayout] = {}
    for priced in sorted((priced for each in results for priced in each.fastest), key=_seconds):
        fastest.setdefault((priced.layout, tuple(priced.query.chosen)) if variants else priced.layout.split, priced)
    rejected = sum((Counter(each.rejected) for each in results), Counter[str]())
    return results[0]._replace(
        evaluated=sum(each.evaluated for each in results),
        feasible=sum(each.feasible for each in results),
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        fastest=tuple(fastest.values())[:top],
        risky=tuple(sorted((priced for each in results for priced in each.risky), key=_seconds)[:MOST_RISKY]),
    )


def progress_part(progress: Progress | None, position: int, shares: int) -> Progress:
    """Return a progress callback for one of `shares` equal shares of the work."""
    if progress is not None and shares == 1:
        return progress

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(_SHARE * position + _SHARE * done // max(total, 1), _SHARE * shares)

    return report


_seconds = attrgetter("step_seconds")


def _search(  # noqa: PLR0913  passed on
    query: Query, top: int, below: float, progress: Progress, *, variants: bool, counted: bool
) -> SearchResult:
    """Search one alternative of a question for layouts that take less than `below` seconds."""
    counts: Counter[str] = Counter()
    examples: dict[str, Layout] = {}
    fastest, risky = Shortlist(query, top, variants, below=below), Shortlist(query, MOST_RISKY, variants)
    others = -np.inf if query.chosen else np.inf  # looked for in the question as it stands alone
    starved, nearest = Shortlist(query, 1, below=others), Shortlist(query, 1, by="device_bytes", below=others)
    raisable: list[Raisable] = []
    done = evaluated = feasible = 0
    total = candidates(query.scenario, query.space)
    room = min(kind.usable_memory_bytes for kind in query.scenario.kinds_of_device)

    def may_be_shown(pricing: Pricing) -> Mask:
        return _may_fit(pricing, max(query.scenario.coefficients.memory.starved_to, nearest.bar / room))

    for judged in walk(query.scenario, query.space, None if counted else may_be_shown):
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
            if np.isfinite(bars).any():
                bars = np.where(min_step_seconds(sized.pricing) < bars, bars, -np.inf)
            priced = _timed(sized, bars)
            if priced is not None:
                unlikely = _offer(fastest, priced, priced.verdict == FITS)
                risky.offer(priced, unlikely)
                raisable += _raisable(query, priced, unlikely)
                starved.offer(priced, np.flatnonzero(priced.verdict == STARVED))
        progress(done, total)
    _offer_raised(fastest, raisable)
    lists = (fastest.layouts, risky.layouts, starved.layouts, nearest.layouts)
    return SearchResult(evaluated, feasible, +counts, *lists, examples)


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

    Only entering layouts are offered, the best first and some at a time, as each entry leaves less to offer. Those of
    several lots are judged together: many take little longer than a few.
    """
    refused = [np.empty(0, dtype=np.intp)]
    left, judged, likely = np.flatnonzero(where), np.zeros(len(where), dtype=np.bool_), where.copy()
    ahead = _JUDGED_AT_ONCE if shortlist.limit > 1 else _OFFERED_AT_ONCE
    while len(left := shortlist.entering(priced, left)):
        lot, left = left[:_OFFERED_AT_ONCE], left[_OFFERED_AT_ONCE:]
        if not judged[lot].all():
            unknown = np.concatenate((lot, left))[:ahead]
            likely[unknown], judged[unknown] = likely_to_fit(shortlist.query, priced, unknown), True
            ahead = ahead if shortlist.limit > 1 else min(3 * ahead, _SIZED_AT_ONCE)
        refused.append(lot[~likely[lot]])
        shortlist.offer(priced, lot[likely[lot]])
    return np.concatenate(refused)


Raisable = tuple[Pricing, Array]
"""Layouts that may reach the requested probability with more recomputed layers, and their step seconds without."""


def _raisable(query: Query, priced: Priced, unlikely: Index) -> list[Raisable]:
    """Return the unlikely layouts without recompute, or with it in the first layers of each chunk, as 0 or 1 block.

    They are raised when the search is over: by then few are faster than the likely ones.
    """
    if not len(unlikely) or not searches_partial(query.scenario, query.space):
        return []
    pricing = priced.pricing
    some = pricing.recomputes("none") | (pricing.recomputes("full") & pricing.recomputes_by("block"))
    chosen = unlikely[some[unlikely]]
    # Without the kinds, whose figures of the whole block would be held until then.
    alone = replace(pricing.take(chosen), sizes=None, passes=None)
    return [(alone, priced.step.total[chosen])] if len(chosen) else []


def _offer_raised(shortlist: Shortlist, raisable: Iterable[Raisable]) -> None:
    """Enter layouts with as many more recomputed layers as the requested probability needs, the fastest first."""
    query = shortlist.query

    def passes(sized: Sized) -> Mask:
        return np.asarray(likely_to_fit(query, sized, np.arange(len(sized.pricing))) & (sized.verdict == FITS))

    for pricing, seconds in sorted(raisable, key=lambda block: float(np.min(block[1]))):
        left, ends = shortlist.below_bar(pricing.block, seconds, np.arange(len(seconds))), _largest_chunk(pricing.block)
        if len(left) > (_OFFERED_AT_ONCE if shortlist.limit > 1 else 0):  # the bar of several leaves out fewer
            ends[left] = _ends_below(pricing.take(left), shortlist.bar)
            left = left[ends[left] > 1.0]
        if _OFFERED_AT_ONCE < len(left) <= _SIZED_AT_ONCE:  # most fail with as many as leave them under the bar
            left = left[passes(size(_with_layers(pricing.take(left), ends[left] - 1.0)))]
        while len(lot := shortlist.below_bar(pricing.block, seconds, left)[:_OFFERED_AT_ONCE]):
            left = left[~np.isin(left, lot)]
            more = raised(pricing.take(lot), passes, ends[lot])
            allowed = None if more is None else lawful(query.space, more.pricing)[0]
            if more is not None and allowed is not None and len(allowed):
                priced = timed(more) if allowed is more.pricing else price(allowed)
                shortlist.offer(priced, np.arange(len(allowed)))


def likely_to_fit(query: Query, sized: Sized, index: Index) -> Mask:
    """Return which layouts fit with the requested probability, as they stand and over what is open.

    All without a calibration.
    """
    scenario, probability = query.scenario, query.min_fit_probability
    if scenario.calibration is None or probability <= 0.0:
        return np.ones(len(index), dtype=np.bool_)
    likely: Mask = scenario.calibration.likely_to_fit(scenario, sized, index, probability)
    # Of what is unlikely as it stands, what is open takes long to price.
    over_open = query.over_open.likely(query, sized, index[likely]) if query.over_open and likely.any() else None
    if over_open is not None:
        likely[likely] = over_open
    return likely


def best_of(query: Query, below: float = np.inf) -> PricedLayout | None:
    """Return the first layout of `search`, without its counts; `below` as in `fastest_of`."""
    best: PricedLayout | None = None
    enough = query.scenario.devices >= least_devices(query)
    # Of equal layouts that of the question as it stands.
    for alternative in reversed(query.alternatives() if candidates(query.scenario, query.space) and enough else ()):
        fastest = fastest_of(alternative, below)
        if fastest is not None:
            best, below = fastest, float(np.nextafter(fastest.step_seconds, np.inf))
    return best


def fastest_of(
    query: Query, below: float = np.inf, *, among: Iterable[tuple[Priced, Mask]] | None = None
) -> PricedLayout | None:
    """Return the fastest layout for one alternative; slower ones are not priced in full.

    The search skips layouts whose step takes `below` seconds or more; those `among` which it looks are priced already.
    """
    *_, shortlist = _improving(query, below, among)
    return next(iter(shortlist.layouts), None)


def _improving(query: Query, below: float, among: Iterable[tuple[Priced, Mask]] | None) -> Iterator[Shortlist]:
    """Yield the shortlist of `fastest_of` whenever it has a layout, and in the end."""
    candidates(query.scenario, query.space)  # refuses a space that is too large
    shortlist, raisable = Shortlist(query, 1, keeps=among is None, below=below), list[Raisable]()
    for priced, where in layouts_below(query, lambda: shortlist.bar) if among is None else among:
        unlikely = _offer(shortlist, priced, where)
        raisable += _raisable(query, priced, unlikely)
        if shortlist.entries:
            yield shortlist
    _offer_raised(shortlist, raisable)
    yield shortlist


class OpenSearch:
    """A search of one alternative that stops at its first layout, and goes on when the fastest is asked for."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self._found = _improving(query, np.inf, None)

    @cached_property
    def _shortlist(self) -> Shortlist:
        return next(self._found)

    @cached_property
    def fits(self) -> bool:
        """Whether any layout fits."""
        return self.query.scenario.devices >= least_devices(self.query) and bool(self._shortlist.entries)

    @cached_property
    def fastest(self) -> PricedLayout | None:
        """The layout of `fastest_of`."""
        *_, shortlist = self._shortlist, *self._found
        return next(iter(shortlist.layouts), None)


def less_likely(query: Query) -> PricedLayout | None:
    """Return the fastest layout of the highest of `LESS_LIKELY` that any reaches; None where none does."""
    levels = (level for level in LESS_LIKELY if level < query.min_fit_probability)
    return next(filter(None, (best_of(replace(query, min_fit_probability=level)) for level in levels)), None)


def nearest_of(query: Query) -> PricedLayout | None:
    """Return the layout to show where none is likely enough: the likeliest that may fit, or that needs least.

    None where every layout breaks a rule.
    """
    if (best := less_likely(query)) is not None:
        return best
    searched = search(query, top=1, counted=not query.scenario.model.is_moe)
    return next(iter((*searched.risky, *searched.starved, *searched.nearest)), None)


def least_devices(query: Query) -> float:
    """Return devices below which nothing fits, with all that lives between steps stored once."""
    scenario, space, values = query.scenario, query.space, query.scenario.coefficients.memory
    if scenario.groups:
        return 0.0
    # One replica shards nothing, whatever is asked for: stage 0, in which LoRA's frozen weights stay as they are (M2).
    stages = (0, *(space.zero_stage or (scenario.framework.limits.default_zero_stage,)))
    offloads = space.offload or ("none",)
    cut = (scenario.model.num_hidden_layers,)
    alone = [Layout(zero_stage=stage, offload=each, stage_layers=cut) for stage in stages for each in offloads]
    lasting = lasting_bytes(Pricing(replace(scenario, devices=1), block_of(alone)))
    room = scenario.hardware.usable_memory_bytes * values.starved_from
    return ROUNDING * float(np.min(lasting)) / room


def layouts_below(query: Query, bar: Callable[[], float]) -> Iterator[tuple[Priced, Mask]]:
    """Yield blocks with masks of layouts that fit and take less than `bar` seconds, which may fall meanwhile."""
    bound = np.inf

    def possible(pricing: Pricing) -> Mask:
        nonlocal bound
        may, bound = _divides(pricing) & _may_fit(pricing), bar()
        return may & (min_step_seconds(pricing) < bound) if bound < np.inf else may

    early = possible if query.scenario.model.is_moe else None  # of as many experts it leaves out most
    for pricing in blocks(query.scenario, query.space, chunk=CHUNK, possible=early):
        # Until a layout is known no bound spares one.
        below = min_step_seconds(pricing) < bar() if bar() < bound else np.ones(len(pricing), dtype=np.bool_)
        if not below.any():
            continue
        allowed = lawful(query.space, pricing if below.all() else pricing.take(below))[0]
        # The sizes of few layouts cost less than a bound on them.
        if early is None and (len(allowed) > _FEW or (len(allowed) and bar() == np.inf)):
            may = _may_fit(allowed)
            allowed = allowed if may.all() else allowed.take(may)
        if not len(allowed):
            continue
        sized = size(allowed)
        yield from _timed_below(sized, bar)
        if searches_partial(query.scenario, query.space) and (more := solved(sized, bar())) is not None:
            yield from _timed_below(more, bar)


def _may_fit(pricing: Pricing, most: float | None = None) -> Mask:
    """Return where what lives between steps takes at most a share of every rank's room, by default a sound one's."""
    most = pricing.scenario.coefficients.memory.starved_from if most is None else most
    kinds = pricing.scenario.kinds_of_device
    room = np.array([kind.usable_memory_bytes for kind in kinds])[pricing.contents.group][:, None]
    shares = ROUNDING * np.max(lasting_bytes(pricing) / room, axis=0)
    return np.asarray(shares <= most)


def _divides(pricing: Pricing) -> Mask:
    return np.asarray(~np.any([rule.broken(pricing) for rule in RULES if rule.id in _OF_SIZES], axis=0))


_OF_SIZES = frozenset({"heads", "kv_heads", "ffn", "experts"})  # rules of a split and the experts' sizes alone


def _timed_below(sized: Sized, bar: Callable[[], float]) -> Iterator[tuple[Priced, Mask]]:
    """Yield a timed block with its layouts that fit and take less than `bar`; nothing if none can."""
    priced = _timed(sized, np.where(sized.verdict == FITS, bar(), -np.inf))
    if priced is not None:
        yield priced, np.asarray((priced.verdict == FITS) & (priced.step.total < bar()))


class Entry(NamedTuple):
    """A layout of a shortlist; it is put together when the search is over."""

    split: tuple[float, ...]
    """Sizes of its split, or block and position where every layout counts."""
    block: LayoutBlock
    position: int
    step_seconds: float
    device_bytes: float
    priced: Priced | None
    """The block with its prices, if it is kept."""


@dataclass(slots=True)
class Shortlist:
    """The best few layouts by a figure, lowest first; ties keep the order of the search."""

    query: Query
    limit: int
    variants: bool = False
    """Whether to keep every layout, not only the best of each split."""
    by: Literal["step_seconds", "device_bytes"] = "step_seconds"
    keeps: bool = False
    """Whether layouts come with their prices."""
    below: float = np.inf
    """Figure from which on none enters, however few there are."""
    entries: list[Entry] = field(default_factory=list)

    @property
    def bar(self) -> float:
        """Return the figure from which on no layout enters."""
        return min(self._figure(self.entries[-1]), self.below) if len(self.entries) == self.limit else self.below

    @property
    def layouts(self) -> tuple[PricedLayout, ...]:
        """Return the layouts, best first."""
        return tuple(
            PricedLayout(self.query, block.layout(at), seconds, device, priced and priced.take(np.array([at])))
            for _, block, at, seconds, device, priced in self.entries
        )

    def _figure(self, entry: Entry) -> float:
        return entry.step_seconds if self.by == "step_seconds" else entry.device_bytes

    def entering(self, sized: Sized, index: Index) -> Index:
        """Return the positions of layouts at an index that would enter, best first."""
        figures = sized.step.total if isinstance(sized, Priced) and self.by == "step_seconds" else sized.device_bytes
        return self.below_bar(sized.block, figures, index)

    def below_bar(self, block: LayoutBlock, figures: Array, index: Index) -> Index:
        """Return `entering` for layouts with `figures`, shape (n,)."""
        index = index[figures[index] < self.bar]
        index = index[figures[index].argsort(kind="stable")]
        known = {entry.split: self._figure(entry) for entry in self.entries}
        if self.variants or self.limit == 1 or not known or not len(index):
            return index
        of_index = zip(map(tuple, _splits(block, index).tolist()), figures[index].tolist(), strict=True)
        entering: Index = index[np.array([figure < known.get(split, np.inf) for split, figure in of_index])]
        return entering

    def offer(self, sized: Sized, index: Index) -> None:
        """Enter the layouts at an index that beat the present entries."""
        index, block = self.entering(sized, index)[: 1 if self.limit == 1 else None], sized.block
        if not len(index):
            return
        first: dict[tuple[float, ...], int] = {}
        for at, split in zip(index.tolist(), _splits(block, index).tolist(), strict=True):
            first.setdefault((id(block), at) if self.variants else tuple(split), at)
        priced, device = sized if isinstance(sized, Priced) else None, sized.device_bytes
        block_prices = priced if self.keeps else None
        entering = (
            Entry(split, block, at, float(priced.step.total[at]) if priced else np.nan, float(device[at]), block_prices)
            for split, at in [*first.items()][: self.limit]
        )
        best: dict[object, Entry] = {}
        for entry in sorted((*self.entries, *entering), key=self._figure):
            best.setdefault(entry.split, entry)
        self.entries = list(best.values())[: self.limit]


def priced_layout(query: Query, priced: Priced, index: int) -> PricedLayout:
    """Return one layout of a priced block."""
    seconds, device = float(priced.step.total[index]), float(priced.device_bytes[index])
    return PricedLayout(query, priced.block.layout(index), seconds, device)


class JudgedBlock(NamedTuple):
    """A block of candidates, judged by the rules."""

    pricing: Pricing
    broken: tuple[tuple[Rule, Mask], ...]
    """Rules that drop any layout, each with the mask of layouts that break it and none before it."""
    sized: Sized | None
    """Layouts that break no rule, in their order in the block; None where all do."""
    candidates: int
    """Number of the space's candidates in the block; 0 for layouts solved from candidates."""


def walk(scenario: Scenario, space: Space, possible: Callable[[Pricing], Mask] | None = None) -> Iterator[JudgedBlock]:
    """Yield the candidates of `blocks` once, in a fixed order, each block followed by those solved from it."""
    for pricing in blocks(scenario, space, chunk=CHUNK, fullest=True, possible=possible):
        allowed, broken = lawful(space, pricing)
        sized = size(allowed) if len(allowed) else None
        yield JudgedBlock(pricing, broken, sized, len(pricing))
        more = solved(sized) if sized is not None and searches_partial(scenario, space) else None
        if more is not None:
            yield JudgedBlock(more.pricing, (), more, 0)


def lawful(space: Space, pricing: Pricing) -> tuple[Pricing, tuple[tuple[Rule, Mask], ...]]:
    """Return the layouts of a block that break no rule, and the broken rules as in `JudgedBlock`."""
    broken: list[tuple[Rule, Mask]] = []
    left, at, alive = pricing, np.arange(len(pricing)), np.ones(len(pricing), dtype=np.bool_)
    for rule in RULES if space.tensor_parallel_across_nodes else (*RULES, ACROSS_NODES):
        hit = rule.broken(left)
        if np.count_nonzero(hit) and (hit := alive & hit).any():
            whole = np.zeros(len(pricing), dtype=np.bool_)
            whole[at[hit]] = True
            broken.append((rule, whole))
            alive &= ~hit
            if 2 * np.count_nonzero(alive) < len(left):  # further rules take less time for those left
                left, at, alive = left.take(alive), at[alive], np.ones(np.count_nonzero(alive), dtype=np.bool_)
    return left if alive.all() else left.take(alive), tuple(broken)


_PRICED_AT_ONCE = 256  # largest block that takes about as long to price as one layout
_BOUNDED_AT_ONCE = 4096  # largest block whose shortest steps take about twice as long as that of one layout
_SIZED_AT_ONCE = 1024  # largest block whose memory takes about twice as long as that of one layout
PassesLimit = Callable[[Sized], Mask]
"""Predicate of a block: which layouts have enough memory. True for more recomputed layers if true for fewer."""


def searches_partial(scenario: Scenario, space: Space) -> bool:
    """Return whether a search solves for recomputed layers: the framework counts them, and recompute is left open."""
    names = (name for name in names_taken(space) if name.startswith("recompute"))
    return scenario.framework.limits.recomputes_leading_layers and not any(getattr(space, name) for name in names)


def solved(sized: Sized, below: float = np.inf) -> Sized | None:
    """Return layouts that fit only with recompute, with the fewest recomputed layers that fit; None if none.

    Layouts that need all layers of the largest chunk, or take `below` seconds, are left out.
    """
    pricing, fitting = sized.pricing, sized.verdict == FITS
    if not (wanted := pricing.recomputes("full") & fitting & (_largest_chunk(sized.block) > 1.0)).any():
        return None
    if pricing.sizes is not None:  # the same layouts without recompute are often in the block
        kind, bare = pricing.sizes.index, fitting & pricing.recomputes("none")
        wanted &= np.bincount(kind[bare], minlength=kind.max() + 1)[kind] == 0
    pricing = pricing.take(wanted)
    low, ends = np.full(len(pricing), -1.0), _ends_below(pricing, below)
    return _fewest(pricing, low, ends, lambda tried: np.asarray(tried.verdict == FITS), _SIZED_AT_ONCE)


def _ends_below(pricing: Pricing, below: float) -> Array:
    """Return the recomputed layers from which on a step takes `below`, at most the largest chunk's, shape (n,)."""
    ends = _largest_chunk(pricing.block)
    if below == np.inf or not len(ends):
        return ends
    rows = max(min(_BOUNDED_AT_ONCE // len(pricing), int(ends.max()) - 1), 1)
    tried = np.ceil(np.outer(np.arange(1, rows + 1), ends - 1.0) / rows)  # shape (rows, n)
    each = np.tile(np.arange(len(pricing), dtype=np.intp), rows)
    seconds = least_step_seconds(_with_layers(pricing.take(each), tried.ravel())).reshape(tried.shape)
    return np.asarray(np.min(np.where(seconds < below, ends, tried), axis=0))


def raised(pricing: Pricing, passes: PassesLimit, ends: Array | None = None) -> Sized | None:
    """Return failing layouts with the fewest recomputed layers below `ends`, shape (n,), that pass, or None.

    Layouts recompute nothing, or the first layers of every chunk. Those that fail with all layers are left out.
    """
    low = np.where(pricing.recomputes("full"), pricing.block.recompute_layers, 0.0)
    return _fewest(pricing, low, _largest_chunk(pricing.block) if ends is None else ends, passes, _PRICED_AT_ONCE)


def _largest_chunk(block: LayoutBlock) -> Array:
    """Return the layers of each layout's largest chunk, shape (n,)."""
    if block.chunk_layers:
        return np.full(len(block), float(max(block.chunk_layers)))
    return np.array(max(block.stage_layers) // block.virtual_stages)


def _fewest(pricing: Pricing, low: Array, most: Array, passes: PassesLimit, at_once: int) -> Sized | None:
    """Return layouts with the fewest layers above `low` and below `most`, shape (n,), that pass, where those are some.

    A round tries as many numbers as a block of `at_once` layouts holds.
    """
    between = most > np.maximum(low, 0.0) + 1.0
    if not between.all():
        pricing, low, most = pricing.take(between), low[between], most[between]
    high, sized, tried = most, None, np.empty((0, len(pricing)))
    while len(pricing) and np.any(high - low > 1.0):
        widest, most_parts = int(np.max(high - low)), max(at_once // len(pricing), 1)
        parts = min(most_parts + 1, widest)
        # The last of several rounds has the upper ends too, so that it sizes all that is returned.
        rows = parts if sized is not None and parts == widest <= most_parts else parts - 1
        steps = np.floor(np.outer(np.arange(1, rows + 1), high - low) / parts)
        tried = low + np.maximum(steps, 1.0)  # shape (rows, n)
        each = np.tile(np.arange(len(pricing), dtype=np.intp), rows)
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
    words = {"recompute": ("full", "none"), "recompute_method": ("block", "uniform")}
    columns = {name: np.where(layers > 0.0, *map(BY_NAME[name].encoded, both)) for name, both in words.items()}
    modules = BY_NAME["recompute_modules"]
    columns["recompute_modules"] = np.full(len(pricing), modules.encoded(modules.default))
    return pricing.changed(**columns, recompute_layers=np.maximum(layers, 1.0))


_SURE = 0.99  # probability to fit above which more room makes no layout surer


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
    estimates: Sequence[Estimate], equal: Sequence[int], upper_end: Callable[[int], float] | None = None
) -> int | None:
    """Return the position, among those equal to the first, of the surer one; None where the first is.

    Surer is the smallest `upper_end`, by default of the step time, or, where the first may not fit, the largest
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

    def slowest(position: int) -> float:
        speed = estimates[position].throughput
        return speed.step_seconds if speed.interval_seconds is None else speed.interval_seconds.high

    end = upper_end or slowest
    best = min(equal, key=end)
    return best if end(best) < end(0) else None


Fitting = Sequence[tuple[Query, Sequence[Priced]]]
"""Layouts that fit with their time, by block, for each alternative of a question."""


def fitting(query: Query) -> Fitting:
    """Return the layouts that `search` counts as feasible."""
    return [(each, [*_fitting(each)]) for each in query.alternatives()]


def _fitting(query: Query) -> Iterator[Priced]:
    for judged in walk(query.scenario, query.space):
        if judged.sized is not None and len(fits := np.flatnonzero(judged.sized.verdict == FITS)):
            yield timed(judged.sized.take(fits))


def spread(query: Query, blocks: Sequence[Priced], most: int) -> list[PricedLayout]:
    """Return at most `most` of the `fitting` layouts, fastest first.

    If there are more, the layouts that no other beats in both speed and memory and the fastest of each split come
    first; others fill the room, evenly spread by rank of speed.
    """
    if not blocks:
        return []
    seconds = np.concatenate([each.step.total for each in blocks])
    memory = np.concatenate([each.device_bytes for each in blocks])
    splits = np.concatenate([_splits(each.block, np.arange(len(each.pricing))) for each in blocks]).T
    order = np.argsort(seconds, kind="stable")
    order = order[_chosen(memory[order], splits[:, order], most)]
    starts = np.cumsum([0, *(len(each.pricing) for each in blocks)])
    numbers = np.searchsorted(starts, order, side="right") - 1
    at = zip(numbers.tolist(), (order - starts[numbers]).tolist(), strict=True)
    return [priced_layout(query, blocks[number], index) for number, index in at]


def _splits(block: LayoutBlock, index: Index) -> Array:
    """Return the split sizes of the layouts at an index, shape (layouts, sizes)."""
    sizes = (getattr(block, size.name) if size.per_block else getattr(block, size.name)[index] for size in SPLIT)
    return np.array([size * np.ones(len(index)) for size in sizes]).T


def _chosen(memory: Array, splits: Array, most: int) -> Index:
    """Return positions among layouts sorted by speed: all, or the front, the best of each split, and others evenly."""
    if len(memory) <= most:
        return np.arange(len(memory))
    smallest_before = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]]))
    chosen, split = memory < smallest_before, np.zeros(len(memory), dtype=np.intp)
    for sizes in splits.astype(np.intp):
        kinds, _, kind = numbered(sizes)
        split = numbered(split * len(kinds) + kind)[2]
    chosen[numbered(split)[1]] = True
    others = np.flatnonzero(~chosen)
    room = max(most - int(np.count_nonzero(chosen)), 0)
    chosen[others[np.linspace(0, len(others) - 1, room).astype(np.intp)]] = True
    positions: Index = np.flatnonzero(chosen)
    return positions
