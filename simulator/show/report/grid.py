"""Tables of ready-made text for a terminal, a page of Markdown and a notebook. Shortens and computes nothing."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from types import MappingProxyType
from typing import Final, Literal

import tabulate

from simulator.errors import one_line

Style = Literal["table", "markdown", "html"]
"""``table`` for a terminal, ``markdown`` for a page, ``html`` for a notebook."""

_TABULATE_FORMATS: Final = {"table": "simple", "markdown": "github"}
PROSE_WIDTH = 48
"""Characters per line of a column that is broken into lines."""


def grid(  # noqa: PLR0913  what a table is made of
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    style: Style,
    *,
    text_columns: Iterable[int] = (),
    wrapped: Collection[str] | Mapping[str, int] = (),
    bars: Mapping[int, Sequence[float]] = MappingProxyType({}),
) -> str:
    """Return rows under their headers; columns are aligned right but for ``text_columns``.

    A line break in a header makes it two lines high on a terminal and a space elsewhere. The columns whose
    headers are ``wrapped`` are broken into lines on a terminal, of the characters that a mapping says, else of 48. In a
    notebook the cells of columns with ``bars`` have a bar behind them, each of a share of their width.
    """
    left = set(text_columns)
    if style == "html":
        return _html(headers, rows, left, bars)
    on_terminal = style == "table"
    cells = [[_cell(text, style) for text in row] for row in rows]
    aligned = ["left" if column in left else "right" for column in range(len(headers))]
    lengths = _lengths(wrapped)
    for column, header in enumerate(headers):
        if on_terminal and header in lengths:
            cells = [[*row[:column], _broken(row[column], lengths[header]), *row[column + 1 :]] for row in cells]
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
        )


def _html(
    headers: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int], bars: Mapping[int, Sequence[float]]
) -> str:
    sides = [_LEFT if column in left else _RIGHT for column in range(len(headers))]
    shown = (_cell(header.replace("-\n", ""), "html") for header in headers)
    heads = "".join(f'<th style="{side}">{text}</th>' for side, text in zip(sides, shown, strict=True))
    body = ""
    for number, row in enumerate(rows):
        drawn = [_bar(bars[column][number]) if column in bars else "" for column in range(len(headers))]
        drawn = [
            f"{bar};white-space:nowrap" if len(text) <= _WHOLE else bar for bar, text in zip(drawn, row, strict=True)
        ]
        cells = zip(sides, drawn, row, strict=True)
        body += "".join(f'<td style="{side}{bar}">{_cell(text, "html")}</td>' for side, bar, text in cells)
        body = f"{body}</tr><tr>"
    return f"<table><thead><tr>{heads}</tr></thead><tbody><tr>{body.removesuffix('<tr>')}</tbody></table>"


_LEFT: Final = "text-align:left;padding:2px 8px"
_RIGHT: Final = "text-align:right;padding:2px 8px"
_WHOLE: Final = 40
"""Characters of a cell that stays on one line of a notebook."""


def _bar(share: float) -> str:
    """Return the style of a cell with a bar behind it, light enough for text in either theme; red beyond the whole."""
    end, colour = f"{100.0 * min(max(share, 0.0), 1.0):.0f}%", "#56b4e955" if share <= 1.0 else "#d55e0055"
    return f";background:linear-gradient(90deg,{colour} {end},transparent {end})"


def _broken(text: str, width: int) -> str:
    """Return text in lines of a width; an option stays whole where it can."""
    return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.split("\n"))


def _lengths(wrapped: Collection[str] | Mapping[str, int]) -> Mapping[str, int]:
    return wrapped if isinstance(wrapped, Mapping) else dict.fromkeys(wrapped, PROSE_WIDTH)


def heading(text: str, style: Style) -> str:
    """Return the title of a table."""
    if style == "html":
        return f"<h4>{_cell(text, style)}</h4>"
    return text if style == "table" else f"**{_cell(text, style)}**\n"


def titled(title: str, text: str, style: Style) -> str:
    """Return a table or sentences under their title."""
    return f"{heading(title, style)}\n{text}"


def paragraph(lines: Iterable[str], style: Style) -> str:
    """Return sentences, one a line; on a page, a list."""
    if style == "html":
        return "".join(f"<p>{_cell(line, style)}</p>" for line in lines)
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
"""Blank inside a figure with its unit."""


def _cell(text: str, style: Style) -> str:
    """Return a cell's text, which may be from outside, escaped so that it makes no cell, element, image or link."""
    if style == "html":
        return escape(text).replace("\n", "<br>")
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
