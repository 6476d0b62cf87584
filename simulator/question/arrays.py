"""Array types of the formulas, named by their shape, and two helpers over records of arrays."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.records import Bare, names_taken, replace

if TYPE_CHECKING:
    from numpy.typing import NDArray as NDArray  # noqa: PLC0414  other modules import it from here: start-up time
else:
    NDArray = np.ndarray

Vector = NDArray[np.float64]
"""Numbers, shape (n,)."""
Matrix = NDArray[np.float64]
"""Numbers, shape (n, m)."""
Mask = NDArray[np.bool_]
"""Booleans, shape (n,)."""
Index = NDArray[np.intp]
"""Positions, shape (n,)."""


def numbered(codes: Index) -> tuple[Index, Index, Index]:
    """Return np.unique's values, first positions and inverse of whole numbers close together, without a sort."""
    if not len(codes):
        return codes, codes, codes
    low, every = codes.min(), np.arange(len(codes))
    first = np.full(codes.max() - low + 1, -1)
    first[codes[::-1] - low] = every[::-1]
    kinds = np.flatnonzero(first >= 0)
    place = np.empty_like(first)
    place[kinds] = every[: len(kinds)]
    return kinds + low, first[kinds], place[codes - low]


def equal_columns(figures: Matrix) -> tuple[Index, Index]:
    """Return the first of every set of equal columns and the set of each; all alone where some only seem equal."""
    codes = np.sqrt(np.arange(1.0, len(figures) + 1.0)) @ figures
    _, first, alike = np.unique(codes, return_index=True, return_inverse=True)
    every = np.arange(len(codes))
    return (first, alike) if np.array_equal(figures.take(first[alike], axis=1), figures) else (every, every)


def largest(figures: Iterable[Any]) -> Any:
    """Return the element-wise maximum of one or more figures."""
    return reduce(np.maximum, figures)


def taken(figure: Matrix, where: Index) -> Matrix:
    """Return an array at `where` of its last axis; one number for many stays one."""
    if figure.strides[-1] or len(where) < 4096:  # few are copied in less time than numpy takes to make a view
        return figure.take(where, axis=-1)
    return np.broadcast_to(figure[..., :1], (*figure.shape[:-1], len(where)))


def selected(figures: Any, where: Index, count: int) -> Any:
    """Return the figures of the layouts at `where`: arrays along a last axis of length `count`, records by field.

    An array that several fields share stays one array.
    """
    known: dict[int, Any] = {}

    def chosen(figure: Any) -> Any:
        if isinstance(figure, np.ndarray):
            if figure.shape[-1:] == (count,) and id(figure) not in known:
                known[id(figure)] = taken(figure, where)
            return known.get(id(figure), figure)
        if isinstance(figure, tuple):
            return getattr(type(figure), "_make", tuple)(map(chosen, figure))
        if isinstance(figure, Bare):
            return replace(figure, **{name: chosen(getattr(figure, name)) for name in names_taken(figure)})
        return figure

    return chosen(figures)
