"""Many layouts at once: a block of layouts that share the shape of the pipeline, one array per other choice.

Every formula of `memory` and `timing` takes a block. A single layout is a block of one, so there is one copy of each
formula. Values are float64: bytes, tokens and counts stay exact up to 2**53.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.question.arrays import Mask
from simulator.question.scenario.layout import BY_NAME, COLUMNS, PER_BLOCK, Layout, pipeline_shape
from simulator.question.scenario.typed import Array, Columns
from simulator.question.vocabulary import RECOMPUTE_MODES, Offload, RecomputeMethod, RecomputeMode, RecomputeModule

__all__ = ["Alike", "Array", "KindArray", "LayoutBlock", "Mask", "StageArray", "block_of", "blocks_of"]

KindArray = NDArray[np.float64]
"""One number per kind of pipeline rank and layout, shape (kinds, n)."""
StageArray = NDArray[np.float64]
"""One number per pipeline rank and layout, shape (pipeline_parallel, n)."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Layouts of a block that differ in what the work of a layer does not depend on: each kind of them once."""

    block: LayoutBlock
    """One layout of each kind."""
    index: NDArray[np.intp]
    """Kind of every layout of the whole block, shape (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBlock(Columns):
    """Layouts with the same pipeline cut. Columns have shape (n,)."""

    alike: Alike | None = None
    """Layouts whose layers work alike, where that is known; None looks at each by itself."""
    work: Alike | None = None
    """Kinds of work that a whole search has, whatever pipeline and data parallel sizes; None where that is not known.

    Their data parallel sizes are no numbers, so that no figure of them can depend on one.
    """
    worked_out: dict[int, tuple[object, dict[Any, Any]]] = dataclasses.field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    """Figures of the block that many formulas ask for, by identity of the question they belong to, with it."""

    def known(self, question: object) -> dict[Any, Any]:
        """What has been worked out of the block for a question so far; who works out more adds it."""
        return self.worked_out.setdefault(id(question), (question, {}))[1]

    @property
    def expert_ranks(self) -> Array:
        """Ranks over which routed experts are divided: expert parallel x expert tensor parallel."""
        return self.expert_parallel * self.expert_tensor_parallel

    @property
    def copies(self) -> int:
        """How often the pipeline holds every layer: DualPipe twice."""
        shape = pipeline_shape(self.schedule, self.pipeline_parallel, self.virtual_stages)
        return 2 if shape == "both_ends" else 1

    @property
    def chunks(self) -> int:
        """Model chunks that a pipeline rank holds."""
        return self.virtual_stages * self.copies

    @property
    def replicas(self) -> Array:
        """Ranks that hold the same dense parameters: data x context parallel, and the pipeline's own copies."""
        return self.data_parallel * self.context_parallel * self.copies

    @property
    def expert_replicas(self) -> Array:
        """Ranks that hold the same experts: tensor x context x data / expert ranks."""
        return np.maximum(self.tensor_parallel * self.replicas / self.expert_ranks, 1.0)

    def __len__(self) -> int:
        return len(self.tensor_parallel)

    def recomputes(self, *modes: RecomputeMode) -> Mask:
        """Where one of these is recomputed."""
        return self._any("recompute", modes)

    def recomputed_inside(self) -> Iterator[tuple[RecomputeMode, tuple[RecomputeModule, ...], Mask]]:
        """Each mode and set of modules of recompute inside layers that occurs, and where."""
        known = self.known(LayoutBlock)
        if "inside" not in known:
            known["inside"] = tuple(self._recomputed_inside())
        return iter(known["inside"])

    def _recomputed_inside(self) -> Iterator[tuple[RecomputeMode, tuple[RecomputeModule, ...], Mask]]:
        modules = BY_NAME["recompute_modules"]
        for mode in RECOMPUTE_MODES:
            chosen = self.recomputes(mode)
            if mode in ("none", "full") or not chosen.any():
                continue
            for number in np.flatnonzero(np.bincount(self.recompute_modules[chosen].astype(np.intp))):
                yield mode, modules.decoded(float(number)), chosen & (self.recompute_modules == number)

    def recomputes_by(self, *methods: RecomputeMethod) -> Mask:
        """Where full recompute would cover layers in one of these ways."""
        return self._any("recompute_method", methods)

    def offloads(self, *kinds: Offload) -> Mask:
        """Where one of these is kept in host memory."""
        return self._any("offload", kinds)

    def _any(self, name: str, words: Sequence[str]) -> Mask:
        """Where a column of words holds one of them: the only place that compares with an index."""
        known = self.known(LayoutBlock)
        if (name, words) not in known:
            codes, column = [BY_NAME[name].encoded(word) for word in words], getattr(self, name)
            found = column == codes[0]
            for code in codes[1:]:
                found = found | (column == code)
            known[name, words] = np.asarray(found, dtype=np.bool_)
            known[name, words].setflags(write=False)
        mask: Mask = known[name, words]
        return mask

    def layout(self, index: int) -> Layout:
        """The layout at `index` as a value."""
        shared = {field.name: getattr(self, field.name) for field in PER_BLOCK}
        own = {field.name: field.decoded(getattr(self, field.name)[index]) for field in COLUMNS}
        return Layout(**shared | own)

    def take(self, where: NDArray[np.intp] | Mask) -> LayoutBlock:
        """The layouts selected by an index or mask array."""
        chosen: dict[str, Any] = {field.name: getattr(self, field.name)[where] for field in COLUMNS}
        work = self.work and Alike(self.work.block, self.work.index[where])
        return replace(self, **chosen, alike=self.alike and _taken(self.alike, where), work=work)

    def once(self, figure: Callable[[LayoutBlock], Array]) -> Array:
        """A figure that depends on the fields of work only, shape (n,) or (…, n): computed once for all alike."""
        return figure(self) if self.alike is None else self.spread(figure(self.alike.block))

    def apart(self) -> LayoutBlock:
        """The same layouts, no two of them taken as alike: each may have coefficients of its own."""
        return replace(self, alike=None, work=None)

    @property
    def kinds_of_work(self) -> LayoutBlock:
        """The layouts to price the work of a micro batch for: each kind of it once, of the search or of the block."""
        shared = self.work or self.alike
        return self if shared is None else shared.block

    def worked(self, question: object, name: object, figure: Callable[[LayoutBlock], Array]) -> Array:
        """A figure of the work of a micro batch, shape (n,): worked out once for all of a search, under its name."""
        each = self.kinds_of_work
        known = each.known(question)
        if name not in known:
            known[name] = figure(each)
        return self.spread_work(known[name])

    def spread_work(self, figure: Array) -> Array:
        """A figure of `kinds_of_work` for every layout, shape (n,) or (…, n)."""
        return self.spread(figure) if self.work is None else figure.take(self.work.index, axis=-1)

    def spread(self, figure: Array) -> Array:
        """A figure of the layouts once each, spread over all alike: shape (alike,) or (…, alike) to (n,) or (…, n)."""
        return figure if self.alike is None else figure.take(self.alike.index, axis=-1)


def _taken(alike: Alike, where: NDArray[np.intp] | Mask) -> Alike | None:
    """The kinds of the layouts that an index or mask array selects."""
    kinds, index = np.unique(alike.index[where], return_inverse=True)
    return alike_of(alike.block, kinds, index)


def alike_of(block: LayoutBlock, first: NDArray[np.intp], index: NDArray[np.intp]) -> Alike | None:
    """Layouts alike to those of a block at `first`; None where they are so few that looking them up takes longer."""
    return Alike(block.take(first), index) if 2 * len(first) <= len(index) else None


def block_of(layouts: Sequence[Layout]) -> LayoutBlock:
    """A block from layouts that share pipeline size, virtual stages, cut and recompute list."""
    values: dict[str, Any] = {field.name: getattr(layouts[0], field.name) for field in PER_BLOCK}
    for field in COLUMNS:
        numbers = (field.encoded(getattr(layout, field.name)) for layout in layouts)
        values[field.name] = np.fromiter(numbers, dtype=np.float64, count=len(layouts))
    return LayoutBlock(**values)


def blocks_of(layouts: Iterable[Layout]) -> Iterator[tuple[list[int], LayoutBlock]]:
    """Group any layouts into blocks; yields the positions of a block's layouts beside it."""
    groups: dict[tuple[object, ...], list[tuple[int, Layout]]] = {}
    for position, layout in enumerate(layouts):
        shape = tuple(getattr(layout, field.name) for field in PER_BLOCK)
        groups.setdefault(shape, []).append((position, layout))
    for members in groups.values():
        yield [position for position, _ in members], block_of([layout for _, layout in members])
