"""Types of the arrays that formulas take and return, by their shapes. No values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""Numbers, shape (n,)."""
Matrix = NDArray[np.float64]
"""Numbers, shape (n, m)."""
Mask = NDArray[np.bool_]
"""Which, shape (n,)."""
Index = NDArray[np.intp]
"""Positions, shape (n,)."""


def largest(figures: Iterable[Any]) -> Any:
    """The largest of several figures, element by element; of a single one that figure."""
    return reduce(np.maximum, figures)


def selected(figures: Any, where: Index, count: int) -> Any:
    """Figures of `count` layouts at some: of arrays the last axis, where it is theirs; of records every field."""
    if isinstance(figures, np.ndarray):
        return figures.take(where, axis=-1) if figures.shape[-1:] == (count,) else figures
    if isinstance(figures, tuple):
        chosen = [selected(each, where, count) for each in figures]
        return type(figures)(*chosen) if hasattr(figures, "_fields") else tuple(chosen)
    if dataclasses.is_dataclass(figures) and not isinstance(figures, type):
        fields = (field.name for field in dataclasses.fields(figures) if field.init)
        return dataclasses.replace(figures, **{name: selected(getattr(figures, name), where, count) for name in fields})
    return figures
