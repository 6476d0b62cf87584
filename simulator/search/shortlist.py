"""The best few layouts of a search.

A shortlist holds at most `limit` layouts, best first, and one of each split (tensor, pipeline, context, expert and
expert tensor parallel sizes) unless variants are requested. A layout enters only if it beats the last entry and the
entry of its own split, so no other layout needs judging.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

import numpy as np

from simulator.cost.pricing.price import Priced, Sized
from simulator.question.arrays import Index
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import SPLIT, Layout
from simulator.search.query import PricedLayout, Query

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
        merged = [*self.entries, *(priced_layout(self.query, sized, int(at)) for at in index[: self.limit])]
        merged.sort(key=self._figure)
        best: dict[object, PricedLayout] = {}
        for entry in merged:
            best.setdefault(entry.layout if self.variants else entry.layout.split, entry)
        self.entries = list(best.values())[: self.limit]


def priced_layout(query: Query, sized: Sized, index: int) -> PricedLayout:
    """Return one layout of a priced block."""
    seconds = float(sized.step.total[index]) if isinstance(sized, Priced) else np.nan
    return PricedLayout(query, sized.block.layout(index), seconds, float(sized.device_bytes[index]))


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
