"""Blocks of layouts: many layouts with one cut of the pipeline, an array for each other choice.

A layout with tensor parallel 4 on two pipeline ranks and one with tensor parallel 8 on two are a block of two:
`block.tensor_parallel` is `[4.0, 8.0]`, `block.pipeline_parallel` is 2. A single layout is a block of one, so that each
formula has one copy. Values are float64: bytes, tokens and counts stay exact up to 2**53.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from simulator.question.arrays import Index, Mask, NDArray, taken
from simulator.question.scenario.layout import BY_NAME, COLUMNS, PER_BLOCK, ROUND, Layout, PipelineShape, pipeline_shape
from simulator.question.scenario.typed import Array, Columns

__all__ = ["Array", "KindArray", "LayoutBlock", "Mask", "StageArray", "block_of"]

KindArray = NDArray[np.float64]
"""One number per kind of pipeline rank and layout, shape (kinds, n)."""
StageArray = NDArray[np.float64]
"""One number per pipeline rank and layout, shape (pipeline_parallel, n)."""


class LayoutBlock(Columns, kw_only=True):
    """Layouts with the same pipeline cut. Columns have shape (n,)."""

    @property
    def expert_ranks(self) -> Array:
        """Ranks over which routed experts are divided: expert parallel x expert tensor parallel."""
        return self.expert_parallel * self.expert_tensor_parallel

    @property
    def first_virtual_stages(self) -> int:
        """Virtual stages of the first layout; blocks whose formulas tell chunks apart have one value."""
        return int(self.virtual_stages[0]) if len(self) else 1

    @property
    def shape(self) -> PipelineShape:
        """Shape of the pipeline: how the parts of the model lie on the ranks."""
        if self.schedule in ROUND:
            return "round"
        return pipeline_shape(self.schedule, self.pipeline_parallel, self.first_virtual_stages)

    @property
    def copies(self) -> int:
        """Copies of every layer in the pipeline: DualPipe has two."""
        return 2 if self.shape == "both_ends" else 1

    @property
    def chunks(self) -> Array:
        """Model chunks that a pipeline rank holds, shape (n,)."""
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

    def where(self, name: str, *words: str) -> Mask:
        """Return the mask of layouts whose column `name` holds one of `words`, shape (n,)."""
        codes, column = _codes(name, words), getattr(self, name)
        chosen: Mask = column == codes[0]
        for code in codes[1:]:
            chosen = chosen | (column == code)
        return chosen

    def layout(self, index: int) -> Layout:
        """Return the layout at `index`."""
        shared = {field.name: getattr(self, field.name) for field in PER_BLOCK}
        own = {field.name: field.decoded(getattr(self, field.name)[index]) for field in COLUMNS}
        return Layout(**shared | own)

    def take(self, where: Index | Mask) -> LayoutBlock:
        """Return the block of the layouts that an index or mask array selects."""
        index: Any = np.flatnonzero(where) if where.dtype == np.bool_ else where
        columns: dict[str, Any] = {name: taken(getattr(self, name), index) for name in _COLUMNS}
        return LayoutBlock(**{name: getattr(self, name) for name in _SHARED}, **columns)


_SHARED, _COLUMNS = ([field.name for field in of_block] for of_block in (PER_BLOCK, COLUMNS))


@lru_cache(maxsize=256)
def _codes(name: str, words: tuple[str, ...]) -> tuple[float, ...]:
    """Return the column values that encode words of a field."""
    return tuple(BY_NAME[name].encoded(word) for word in words)


def block_of(layouts: Sequence[Layout]) -> LayoutBlock:
    """Return a block of layouts that share pipeline size, schedule, cut and recompute list."""
    values: dict[str, Any] = {field.name: getattr(layouts[0], field.name) for field in PER_BLOCK}
    for field in COLUMNS:
        numbers = (field.encoded(getattr(layout, field.name)) for layout in layouts)
        values[field.name] = np.fromiter(numbers, dtype=np.float64, count=len(layouts))
    return LayoutBlock(**values)
