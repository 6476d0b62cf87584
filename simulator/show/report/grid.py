"""Tables of ready-made text, in the two shapes that people read."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import tabulate

from simulator.errors import one_line

Style = Literal["table", "markdown"]
"""``table`` for a terminal, ``markdown`` for a page."""

_TABULATE_FORMATS = {"table": "simple", "markdown": "github"}
PROSE_WIDTH = 48
"""Characters in a line of a column that is broken into lines."""


def grid(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    style: Style,
    *,
    text_columns: Iterable[int] = (),
    wrapped: Collection[str] | Mapping[str, int] = (),
) -> str:
    """Return rows under their headers; columns are aligned right but for ``text_columns``.

    A line break in a header makes it two lines high on a terminal and a space elsewhere. The columns whose
    headers are ``wrapped`` are broken into lines on a terminal, of the characters that a mapping says, else of 48.
    """
    left = set(text_columns)
    on_terminal = style == "table"
    cells = [[_cell(text, style) for text in row] for row in rows]
    aligned = ["left" if column in left else "right" for column in range(len(headers))]
    widths = [_lengths(wrapped).get(header) for header in headers]
    with _narrow_columns():
        return tabulate.tabulate(
            cells,
            headers=[
                header if on_terminal else header.replace("-\n", "").replace("\n/", "/").replace("\n", " ")
                for header in headers
            ],
            tablefmt=_TABULATE_FORMATS[style],
            disable_numparse=True,
            colalign=aligned if cells else None,
            maxcolwidths=widths if on_terminal and wrapped and cells else None,
        )


def _lengths(wrapped: Collection[str] | Mapping[str, int]) -> Mapping[str, int]:
    return wrapped if isinstance(wrapped, Mapping) else dict.fromkeys(wrapped, PROSE_WIDTH)


def heading(text: str, style: Style) -> str:
    """Return the title of a table."""
    return text if style == "table" else f"**{_cell(text, style)}**\n"


def titled(title: str, text: str, style: Style) -> str:
    """Return a table or sentences under their title."""
    return f"{heading(title, style)}\n{text}"


def paragraph(lines: Iterable[str], style: Style) -> str:
    """Return sentences, one a line; on a page, a list."""
    return "\n".join(line if style == "table" else f"- {_cell(line, style)}" for line in lines)


def filled(text: str, width: int | None) -> str:
    """Return a sentence broken into lines of a width, those after the first indented; None is no limit."""
    if width is None or len(text) <= width:
        return text
    joined = _FIGURE.sub("\0", text)  # a figure and its unit stay together
    lines = textwrap.fill(
        joined, max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return lines.replace("\0", " ")


_FIGURE: Final = re.compile(r"(?<=[\d.±>]) (?=[%\d]|GiB|M\b|s\b|ms\b|tokens)")
"""The blank inside a figure with its unit."""


def _cell(text: str, style: Style) -> str:
    """Return text that may be from outside; on a page it makes no cell, element, image or link of its own."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text)) if style == "markdown" else text


_MARKUP: Final = re.compile(r"\||<(?=[A-Za-z/!?])|!(?=\[)|(?<=\])\(")


@contextmanager
def _narrow_columns() -> Iterator[None]:
    """Let a column be as narrow as its header; by itself tabulate adds two characters."""
    usual = tabulate.MIN_PADDING
    tabulate.MIN_PADDING = 0
    try:
        yield
    finally:
        tabulate.MIN_PADDING = usual
