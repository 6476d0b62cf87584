"""Tables within a line's width: columns are left out in the order of their `spare`. Words no cell."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.show.report.grid import Style, grid

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
BETWEEN = 2
"""Spaces between columns."""


class Column(NamedTuple):
    """Column, ready to be written."""

    header: str
    """Header; a line break makes it two lines high on a terminal."""
    cells: tuple[str, ...]
    is_text: bool = False
    """Whether it holds text, which is aligned left; numbers are aligned right."""
    spare: int = 0
    """Order of leaving it out, the highest first; 0 is never left out."""
    bars: tuple[float, ...] = ()
    """Shares that a notebook draws behind the cells; none without."""

    @property
    def width(self) -> int:
        """Characters of the widest line."""
        lines = [*self.header.split("\n"), *(_COLOUR.sub("", cell) for cell in self.cells)]
        return max(map(len, lines))

    @property
    def name(self) -> str:
        """Header on one line."""
        return self.header.replace("-\n", "").replace("\n/", "/").replace("\n", " ")


def fitting(columns: Sequence[Column], width: int | None) -> tuple[list[Column], list[Column]]:
    """Return the columns that fit side by side into the width, in order, and those that were left out.

    A column left out early returns where a wider one that was left out after it makes room.
    """
    room = math.inf if width is None else width + BETWEEN
    by_need = sorted(range(len(columns)), key=lambda position: columns[position].spare)
    shown = {position for position in by_need if not columns[position].spare}
    taken = sum(columns[position].width + BETWEEN for position in shown)
    for position in by_need:
        wide = columns[position].width + BETWEEN
        if position not in shown and taken + wide <= room:
            shown.add(position)
            taken += wide
    return [columns[p] for p in sorted(shown)], [column for p, column in enumerate(columns) if p not in shown]


def coded(column: Column, letter: str, longest: int) -> tuple[Column, list[str]]:
    """Return a column whose cells of more than `longest` characters are codes, with a line on what each stands for."""
    codes: dict[str, str] = {}
    for cell in column.cells:
        if len(cell) > longest:
            codes.setdefault(cell, f"{letter}{len(codes) + 1}")
    short = column._replace(cells=tuple(codes.get(cell, cell) for cell in column.cells))
    texts = [f"{code}: {cell}" for cell, code in codes.items()]
    return short, [f"{column.name} {'; '.join(texts)}"] if texts else []


def joined(columns: Sequence[Column]) -> Column:
    """Return columns of numbers as one, a space between them in place of two."""

    def line(cells: Sequence[str]) -> str:
        return " ".join(cell.rjust(column.width) for column, cell in zip(columns, cells, strict=True))

    rows = zip(*(column.cells for column in columns), strict=True)
    return Column(header=line([column.header for column in columns]), cells=tuple(map(line, rows)))


def narrow_line(left_out: Sequence[Column]) -> Iterator[str]:
    """Yield the line on columns that the terminal is too narrow for, with the cell that all rows share."""
    if left_out:
        yield f"Too narrow for: {', '.join(map(_left_out, left_out))}."


def _left_out(column: Column) -> str:
    cells = {_COLOUR.sub("", cell) for cell in column.cells}
    same = cells.pop() if len(cells) == 1 and len(column.cells) > 1 else ""
    return f"{column.name} ({same} in all)" if same else column.name


def columns_grid(columns: Sequence[Column], style: Style, wrapped: Collection[str] | Mapping[str, int] = ()) -> str:
    """Return the columns as a table; those with a `wrapped` header are broken into lines, as in `grid`."""
    rows = list(zip(*(column.cells for column in columns), strict=True))
    text_columns = [position for position, column in enumerate(columns) if column.is_text]
    headers = [column.header for column in columns]
    bars = {position: column.bars for position, column in enumerate(columns) if column.bars}
    return grid(headers, rows, style, text_columns=text_columns, wrapped=wrapped, bars=bars)
