"""Long reports as sections of sentences and a table, for a terminal or a page. Words no sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.show.report.grid import Style, grid


@dataclass(frozen=True, slots=True)
class Section:
    """Section of a report: title, sentences, and a table of ready-made text."""

    title: str
    lines: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    """Headers of the table; empty for no table."""
    rows: Sequence[Sequence[str]] = ()
    text_columns: tuple[int, ...] = (0,)
    """Columns that hold words, which are aligned left."""
    wrapped: tuple[str, ...] = ()
    """Headers of columns with sentences, which are broken into lines on a terminal."""
    listed: bool = False
    """Whether the lines are a list."""


def sections_text(sections: Iterable[Section], style: Style) -> str:
    """Return the sections one below the other; on a page, titles are headings."""
    return "\n\n".join(_text(section, style) for section in sections) + "\n"


def _text(section: Section, style: Style) -> str:
    blocks = [section.title if style == "table" else f"## {section.title}"]
    if section.lines:
        lines = [line if style == "table" else line.replace("|", "\\|") for line in section.lines]
        blocks.append(
            "\n".join(f"- {line}" if section.listed else line for line in lines)
            if section.listed or style == "table"
            else "\n\n".join(lines)
        )
    if section.headers and section.rows:
        table = grid(section.headers, section.rows, style, text_columns=section.text_columns, wrapped=section.wrapped)
        blocks.append(table)
    return "\n\n".join(blocks)
