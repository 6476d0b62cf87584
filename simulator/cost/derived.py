"""Pricing: a block of layouts of one question, with a cache of every figure that formulas derive from it.

Many layouts share a figure; four decorators say which:

- `of_work`: layouts whose devices do equal work on a micro batch. `layer_input_bytes` depends on tensor and context
  parallel sizes and the micro batch: a search of 600,000 layouts computes it once for each of some 200 such choices.
- `of_sizes`: layouts that differ in recompute alone: `micro_batches` and `training_state` do not depend on it.
- `of_passes`: layouts that differ in what shards or offloads state alone: `recompute_plan` does not depend on it.
- `derived`: nothing is shared; the figure is cached.

Under `of_work` the data parallel size is not a number, so a formula that depends on it cannot stand there unnoticed.

Of a block that is `watched` each figure comes with the switches that it read, and `switched` takes over the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from simulator.cost.stages import StageContents, chunks_alike, cuts_alike, stage_contents
from simulator.question.arrays import Index, Mask, NDArray, selected, taken
from simulator.question.frameworks.profile import Watched, note, noted
from simulator.question.scenario.block import Array, LayoutBlock, block_of
from simulator.question.scenario.layout import BY_NAME, PER_BLOCK, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import RECOMPUTE_MODES, Offload, RecomputeMethod, RecomputeMode, RecomputeModule
from simulator.records import Bare, field, replace

P = ParamSpec("P")
T = TypeVar("T")


def remembered(figure: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of `Conditions`: what it returned is remembered, with what it read of a watched profile."""
    known: Any = lru_cache(maxsize=2048)(partial(noted, figure))

    @wraps(figure)
    def cached(*args: P.args, **kwargs: P.kwargs) -> T:
        value, names = known(*args, **kwargs)
        note(names)
        return value  # type: ignore[no-any-return]  # of a partial function

    return cached


class _NotedFigures(dict[Any, Any]):
    """Figures of a watched block, with what each read."""

    def __init__(self, scenario: Scenario) -> None:
        self.reads: dict[Any, set[str]] = {}
        self.scenario = scenario
        """The scenario as nobody watches it."""

    def get(self, key: Any, default: Any = None) -> Any:
        note(self.reads.get(key, ()))
        return super().get(key, default)


class Pricing(Bare):
    """A block of layouts of one question, with the figures derived from it so far."""

    scenario: Scenario
    block: LayoutBlock
    sizes: Alike | None = None
    """Layouts that differ in recompute alone; None computes each layout by itself."""
    work: Alike | None = None
    """Layouts of a whole search with equal work per micro batch; None if unknown.

    Their pipeline and data parallel sizes are not numbers, so no figure of work can depend on one.
    """
    fullest: bool = False
    """Whether memory is that of the first rank of each kind alone, where no other can need more."""
    passes: Alike | None = None
    """Layouts that differ in what shards or offloads state alone; None computes each layout by itself."""
    figures: dict[Any, Any] = field(init=False, default_factory=dict, repr=False)
    """Derived figures by formula and arguments."""

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def contents(self) -> StageContents:
        """Contents of the layouts' pipeline ranks."""
        return stage_contents(self.scenario, self.block, fullest=self.fullest)

    @cached_property
    def chunks_alike(self) -> bool:
        """Whether chunks are equal parts of their rank, so that layouts may differ in their number."""
        return chunks_alike(self.scenario, self.block)

    @cached_property
    def chunk_layers(self) -> NDArray[np.float64]:
        """Layers by kind in every distinct chunk, shape (distinct, layer kinds, rank kinds, 1 or n)."""
        chunks = self.contents.chunks
        return chunks / self.block.virtual_stages if self.chunks_alike else chunks

    @cached_property
    def chunk_repeats(self) -> Array | tuple[Array]:
        """Copies of each distinct chunk on a rank, a number or of shape (n,)."""
        return (self.block.virtual_stages,) if self.chunks_alike else self.contents.repeats

    @cached_property
    def by_mean(self) -> Pricing:
        """The layouts with their mean micro batch in place of the fullest; the same object where lengths are equal."""
        lengths = self.scenario.lengths
        if lengths is None or lengths.averaged:
            return self
        scenario = replace(self.scenario, lengths=replace(lengths, averaged=True))
        shared = self.sizes, self.work, self.passes
        sizes, work, passes = (each and Alike(each.pricing.by_mean, each.index) for each in shared)
        mean = Pricing(scenario, self.block, sizes, work, self.fullest, passes)
        if isinstance(self.figures, _NotedFigures):
            vars(mean)["figures"] = _NotedFigures(scenario)
        return mean

    @cached_property
    def watched(self) -> Pricing:
        """The layouts by themselves, whose figures come with what they read of the profile."""
        profile = object.__new__(Watched)
        vars(profile).update(vars(self.scenario.framework))
        watched = Pricing(replace(self.scenario, framework=profile), self.block, fullest=self.fullest)
        vars(watched)["figures"] = _NotedFigures(self.scenario)
        return self._of_cut(watched)

    def switched(self, values: Mapping[str, Any]) -> Pricing:
        """Return the layouts with other values of switches; of a watched block with the figures that read none."""
        key, scenario = ("switched", frozenset(values.items())), getattr(self.figures, "scenario", self.scenario)
        if key not in self.figures:
            other = replace(scenario, framework=replace(scenario.framework, **values))
            alike = {**vars(other), "framework": scenario.framework} == vars(scenario) and not other.groups
            alike = alike and scenario.prediction_modules == other.prediction_modules
            self.figures[key] = replace(self, scenario=other), alike
        switched, alike = self.figures[key]
        if alike:
            before, after = vars(scenario.framework), vars(switched.scenario.framework)
            self.share(switched, {name for name in after if after[name] != before[name]} - {"hashed"})
        return switched  # type: ignore[no-any-return]  # as it was remembered

    def share(self, other: Pricing, changed: set[str]) -> None:
        """Give the same layouts under another profile what reads none of the values that are changed there."""
        self._of_cut(other)
        reads = self.figures.reads.copy() if isinstance(self.figures, _NotedFigures) else {}  # others may add to it
        same = [key for key, names in reads.items() if changed.isdisjoint(names) and key in self.figures]
        other.figures.update((key, self.figures[key]) for key in same)
        if (mean := vars(self).get("by_mean", self)) is not self:
            mean.share(other.by_mean, changed)

    @cached_property
    def members(self) -> tuple[Pricing, ...]:
        """The layouts priced as if all devices belonged to one node group, for each group."""
        scenario = self.scenario
        return tuple(replace(self, scenario=each) for each in scenario.members) if scenario.groups else (self,)

    @property
    def kinds_of_work(self) -> Pricing:
        """One layout of each kind of work."""
        alike = self.work or self.sizes
        return self if alike is None else alike.pricing

    def spread_work(self, figure: Array) -> Array:
        """Return a figure of `kinds_of_work` for every layout: shape (..., kinds) to (..., n)."""
        alike = self.work or self.sizes
        return figure if alike is None else alike.spread(figure)

    def recomputes(self, *modes: RecomputeMode) -> Mask:
        """Return where the recompute mode is one of `modes`, shape (n,)."""
        return _where(self, "recompute", *modes)

    def recomputes_by(self, *methods: RecomputeMethod) -> Mask:
        """Return where the recompute method is one of `methods`, shape (n,), under any mode."""
        return _where(self, "recompute_method", *methods)

    def offloads(self, *kinds: Offload) -> Mask:
        """Return where offload is one of `kinds`, shape (n,)."""
        return _where(self, "offload", *kinds)

    def take(self, where: Index | Mask) -> Pricing:
        """Return the layouts selected by an index or mask array, with an empty cache."""
        index: Any = np.flatnonzero(where) if where.dtype == np.bool_ else where
        shared = self.sizes, self.work, self.passes
        sizes, work, passes = (each and Alike(each.pricing, each.index.take(index)) for each in shared)
        return self._of_cut(Pricing(self.scenario, self.block.take(index), sizes, work, self.fullest, passes))

    def _of_cut(self, pricing: Pricing) -> Pricing:
        """Return layouts of the same cut with what is known of it."""
        vars(pricing).update((name, vars(self)[name]) for name in ("contents", "chunks_alike") if name in vars(self))
        return pricing

    def copies(self, each: Index, scenario: Scenario, *kept: Callable[[Pricing], Any]) -> Pricing:
        """Return the layouts at an index under other coefficients of memory.

        Figures of sizes, of work and of the `kept` formulas come from these layouts: none reads such a coefficient.
        """
        copies = self._of_cut(Pricing(scenario, self.block.take(each), Alike(self, each), fullest=self.fullest))
        for formula in kept:
            copies.figures[formula] = selected(formula(self), each, len(self))
        return copies

    def changed(self, **columns: Any) -> Pricing:
        """Return the layouts with other recompute, by column."""
        return self._of_cut(replace(self, block=replace(self.block, **columns), passes=None))


class Alike(Bare):
    """Layouts that share figures."""

    pricing: Pricing
    """One layout of each kind."""
    index: Index
    """Kind of every layout, shape (n,)."""

    def spread(self, figure: Any) -> Any:
        """Return a figure of each kind for every layout, shape (..., kinds) to (..., n); a record's fields each."""
        if isinstance(figure, np.ndarray):
            return taken(figure, self.index)
        return selected(figure, self.index, len(self.pricing))


def pricing_of(scenario: Scenario, *layouts: Layout) -> Pricing:
    """Return a block of layouts with one pipeline shape, to be priced; the latest ones come with their figures."""
    if len(layouts) > _FEW:
        return Pricing(scenario, block_of(layouts))
    calibration: Any = scenario.calibration
    return _few(scenario, calibration, *layouts)


_FEW: Final = 16  # most layouts of a block whose figures are remembered


@lru_cache(maxsize=32)
def _few(scenario: Scenario, _: object, *layouts: Layout) -> Pricing:
    """Return their block; equal scenarios may have different calibrations."""
    return Pricing(scenario, block_of(layouts))


def pricings_of(scenario: Scenario, layouts: Iterable[Layout]) -> Iterator[tuple[list[int], Pricing]]:
    """Yield blocks of any layouts to be priced, each with the positions of its layouts."""
    groups: dict[tuple[object, ...], list[tuple[int, Layout]]] = {}
    for position, layout in enumerate(layouts):
        shape = (*(getattr(layout, field.name) for field in PER_BLOCK), _common_virtual_stages(scenario, layout))
        groups.setdefault(shape, []).append((position, layout))
    for members in groups.values():
        yield [position for position, _ in members], pricing_of(scenario, *(layout for _, layout in members))


def _common_virtual_stages(scenario: Scenario, layout: Layout) -> int:
    """Return the virtual stages that a layout shares with all of its block; 0 where those of a block may differ."""
    listed = layout.chunk_layers or layout.recompute_layer_list
    chunks = np.array([layout.virtual_stages])
    alike = not listed and cuts_alike(scenario, layout.schedule, layout.stage_layers, chunks)
    return 0 if alike else layout.virtual_stages


_UNKNOWN: Any = object()  # marker of a figure not yet computed


def derived(figure: Callable[Concatenate[Pricing, P], T]) -> Callable[Concatenate[Pricing, P], T]:
    """Decorate a formula to cache its figure by `Pricing` and arguments."""

    @wraps(figure)
    def cached(pricing: Pricing, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (cached, *args, *kwargs.items()) if args or kwargs else cached
        known: T = pricing.figures.get(key, _UNKNOWN)
        if known is _UNKNOWN:
            if isinstance(figures := pricing.figures, _NotedFigures):
                known, figures.reads[key] = noted(figure, pricing, *args, **kwargs)
            else:
                known = figure(pricing, *args, **kwargs)
            figures[key] = known
        return known

    return cached


def of_sizes(figure: Callable[Concatenate[Pricing, P], T]) -> Callable[Concatenate[Pricing, P], T]:
    """Decorate a formula without recompute: computed once for layouts that differ in it alone, then spread over all."""
    return _of_kinds(figure, lambda pricing: pricing.sizes)


def of_passes(figure: Callable[Concatenate[Pricing, P], T]) -> Callable[Concatenate[Pricing, P], T]:
    """Decorate a formula that no sharding and no offload but that of activations changes, likewise."""
    return _of_kinds(figure, lambda pricing: pricing.passes)


def of_work(figure: Callable[Concatenate[Pricing, P], T]) -> Callable[Concatenate[Pricing, P], T]:
    """Decorate a formula of a micro batch's work: computed once for layouts with equal work, then spread over all."""
    return _of_kinds(figure, lambda pricing: pricing.work or pricing.sizes)


def _of_kinds(
    figure: Callable[Concatenate[Pricing, P], T], kinds: Callable[[Pricing], Alike | None]
) -> Callable[Concatenate[Pricing, P], T]:
    @derived
    @wraps(figure)
    def spread(pricing: Pricing, /, *args: P.args, **kwargs: P.kwargs) -> T:
        shared = kinds(pricing)
        if shared is None:
            return figure(pricing, *args, **kwargs)
        result: T = shared.spread(spread(shared.pricing, *args, **kwargs))
        return result

    return spread


@derived
def _where(pricing: Pricing, name: str, *words: str) -> Mask:
    mask = pricing.block.where(name, *words)
    mask.setflags(write=False)
    return mask


@derived
def recomputed_inside(pricing: Pricing) -> tuple[tuple[RecomputeMode, tuple[RecomputeModule, ...], Mask], ...]:
    """Return each mode and set of modules of selective recompute in the block, and where they occur."""
    modules, column = BY_NAME["recompute_modules"], pricing.block.recompute_modules
    modes: list[tuple[RecomputeMode, tuple[RecomputeModule, ...], Mask]] = []
    for mode in RECOMPUTE_MODES:
        chosen = pricing.recomputes(mode)
        if mode in ("none", "full") or not chosen.any():
            continue
        numbers = np.flatnonzero(np.bincount(column[chosen].astype(np.intp)))
        modes += [(mode, modules.decoded(float(each)), chosen & (column == each)) for each in numbers]
    return tuple(modes)
