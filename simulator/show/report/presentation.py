"""Settings of how an answer is shown (`Presentation`), with tables and sentences laid out by them.

    shown = Presentation(verbosity=1, width=100)
    shown.titled("Speed", shown.grid(["figure", "value"], [["MFU %", "41.2"]]))
    shown.prose(["A sentence that is broken into lines of 100 characters."])

Tables are ready-made text for a terminal, a page of Markdown and a notebook: `fitting` leaves out columns for which a
line has no room, `Presentation.sections` writes sentences and tables under titles. Writers return blocks of text made
so; `joined` puts them under each other. `report.text` writes numbers.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from simulator.answers.run import TrainingRun, run_of
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import one_line
from simulator.late import late_pattern
from simulator.question.question import Question
from simulator.records import Bare, NamedTuple, field
from simulator.show.report.text import amount, money, ranged

Style = Literal["table", "markdown", "html"]
"""``table`` for a terminal, ``markdown`` for a page, ``html`` for a notebook."""

PROSE_WIDTH = 48
"""Characters per line of a column that is broken into lines."""


def _aligned(headers: Sequence[str], cells: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Return a table for a terminal as tabulate writes it, whose import takes longer than all tables of an answer."""
    rows = [[text.split("\n") for text in headers], *([text.strip().split("\n") for text in row] for row in cells)]
    widths = [max(len(_COLOUR.sub("", line)) for text in column for line in text) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        for parts in zip_longest(*row, fillvalue=""):
            room = [width - len(_COLOUR.sub("", part)) for width, part in zip(widths, parts, strict=True)]
            padded = [
                part + " " * blanks if column in left else " " * blanks + part
                for column, (part, blanks) in enumerate(zip(parts, room, strict=True))
            ]
            lines.append((" " * BETWEEN).join(padded).rstrip())
        if row is rows[0]:
            lines.append((" " * BETWEEN).join("-" * width for width in widths).rstrip())
    return "\n".join(lines)


def _markdown(headers: Sequence[str], cells: Sequence[Sequence[str]], left: Collection[int]) -> str:
    import tabulate  # noqa: PLC0415  start-up time

    padding, tabulate.MIN_PADDING = tabulate.MIN_PADDING, 0  # a column may be as narrow as its header
    try:
        return tabulate.tabulate(
            cells,
            headers=[_on_one_line(header) for header in headers],
            tablefmt="github",
            disable_numparse=True,
            colalign=["left" if column in left else "right" for column in range(len(headers))] if cells else None,
        )
    finally:
        tabulate.MIN_PADDING = padding


def _on_one_line(header: str) -> str:
    return header.replace("-\n", "").replace("\n/", "/").replace("\n", " ")


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
_WHOLE: Final = 40  # characters of a cell that stays on one line of a notebook


def _bar(fraction: float) -> str:
    """Return the style of a cell with a bar behind it, light enough for text in either theme; red beyond the whole."""
    end, colour = f"{100.0 * min(max(fraction, 0.0), 1.0):.0f}%", "#56b4e955" if fraction <= 1.0 else "#d55e0055"
    return f";background:linear-gradient(90deg,{colour} {end},transparent {end})"


def filled(text: str, width: int | None) -> str:
    """Return a sentence broken into lines of a width, those after the first indented; None is no limit."""
    if width is None or len(text) <= width:
        return text
    joined = _FIGURE.sub("\0", text)  # a figure and its unit stay together
    lines = textwrap.fill(
        joined, max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return lines.replace("\0", " ")


def command(text: str, width: int | None) -> str:
    """Return a command within a width, on lines that a shell joins."""
    if width is None or len(text) <= width:
        return text
    whole = _OPTION.sub("\\1\0", text)  # an option and its value stay together
    lines = textwrap.wrap(whole, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines).replace("\0", " ")


_OPTION: Final = late_pattern(r"(?<!\S)(--[\w-]+) (?!--)")
_FIGURE: Final = late_pattern(r"(?<=[\d.±>]) (?=[%\d]|GiB|M\b|s\b|ms\b|tokens)")  # blank inside a figure with its unit


def _cell(text: str, style: Style) -> str:
    """Return a cell's text, which may be from outside, escaped so that it makes no cell, element, image or link."""
    if style == "html":
        from html import escape  # noqa: PLC0415  start-up time

        return escape(text).replace("\n", "<br>")
    return _MARKUP.sub(r"\\\g<0>", one_line(text)) if style == "markdown" else text


_MARKUP: Final = late_pattern(r"\||<(?=[A-Za-z/!?])|!(?=\[)|(?<=\])\(")


_COLOUR = late_pattern(r"\x1b\[[0-9;]*m")
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
        plain = (_COLOUR.sub("", cell) if "\x1b" in cell else cell for cell in self.cells)
        return max(map(len, (*self.header.split("\n"), *plain)))

    @property
    def name(self) -> str:
        """Header on one line."""
        return _on_one_line(self.header)


def fitting(columns: Sequence[Column], width: int | None) -> tuple[list[Column], list[Column]]:
    """Return the columns that fit side by side into the width, in order, and those that were left out."""
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


def joined_columns(columns: Sequence[Column]) -> Column:
    """Return columns of numbers as one, a space between them in place of two."""
    widths = [column.width for column in columns]

    def line(cells: Sequence[str]) -> str:
        return " ".join(map(str.rjust, cells, widths))

    rows = zip(*(column.cells for column in columns), strict=True)
    return Column(header=line([column.header for column in columns]), cells=tuple(map(line, rows)))


def narrow_line(left_out: Sequence[Column]) -> Iterator[str]:
    """Yield the line on columns that the terminal is too narrow for, with the cell that is the same in all rows."""
    if left_out:
        yield f"Too narrow for: {', '.join(map(_left_out, left_out))}."


def _left_out(column: Column) -> str:
    cells = {_COLOUR.sub("", cell) for cell in column.cells}
    same = cells.pop() if len(cells) == 1 and len(column.cells) > 1 else ""
    return f"{column.name} ({same} in all)" if same else column.name


class Section(Bare):
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
    spare: Mapping[str, int] = field(default_factory=dict)
    """Order of leaving out columns of numbers by header, the highest first; by default the last ones first."""


_NARROWEST = 16  # fewest characters of a column that is broken into lines


if TYPE_CHECKING:
    from simulator.answers.explain import Explanation
    from simulator.question.scenario.scenario import Scenario
    from simulator.search.rank import Progress
    from simulator.search.space import Space


class Presentation(Bare, kw_only=True):
    """Settings of a presentation: how much to show, and the whole training run."""

    style: Style = "table"
    """What the text is for."""
    verbosity: int = 0
    """Below 0: the table alone. 0: with the main assumptions. Above 0: everything."""
    colour: bool = False
    """Whether the text may hold terminal colour codes."""
    train_tokens: int | None = None
    """Tokens of the whole training run; None leaves out its duration and cost."""
    price_per_device_hour: float | None = None
    """Price of one device for one hour, in any currency; None leaves out the cost."""
    width: int | None = None
    """Characters in a line of a terminal; None is no limit."""
    variants: bool = False
    """Whether a ranking has every layout, not only the best of each split."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Inputs of a single estimate that were left to their default, by option name."""
    default_hardware: str = ""
    """Default hardware of a question without any; empty where the question names it."""
    explanation: Explanation | None = None
    """Explanation of an estimate that does not fit; None where it was not asked for."""
    command: str = ""
    """Command as it was typed, for pages to name."""
    question: Question = field(default_factory=Question)
    """Question behind an answer, for pages that price other values."""
    space: Space | None = None
    """Space of a ranking's search, for the same pages."""
    progress: Progress | None = None
    """Callback with the number of answered questions of a page, and of all."""
    scenarios: tuple[Scenario, ...] = ()
    """Scenarios of a comparison, whose sources a page names."""

    @property
    def line(self) -> int | None:
        """Characters in a line of the text; None is no limit."""
        return self.width if self.style == "table" else None

    @property
    def full(self) -> bool:
        """Whether every row is shown: with more verbosity, and in a notebook, which has room."""
        return self.verbosity > 0 or self.style == "html"

    def prose(self, lines: Iterable[str]) -> str:
        """Return sentences, each broken into lines of the text."""
        return self.sentences(filled(line, self.line) for line in lines)

    def sentences(self, lines: Iterable[str]) -> str:
        """Return sentences, each on a line however long it is; on a page, a list."""
        if self.style == "html":
            return "".join(f"<p>{_cell(line, self.style)}</p>" for line in lines)
        return "\n".join(line if self.style == "table" else f"- {_cell(line, self.style)}" for line in lines)

    def grid(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        text_columns: Iterable[int] = (0,),
        wrapped: Collection[str] | Mapping[str, int] = (),
        bars: Mapping[int, Sequence[float]] = MappingProxyType({}),
    ) -> str:
        """Return rows under their headers; columns are aligned right but for ``text_columns``, by default the first.

        A line break in a header makes it two lines high on a terminal and a space elsewhere. The columns whose headers
        are ``wrapped`` are broken into lines on a terminal, of the characters that a mapping says, else of 48. In a
        notebook the cells of columns with ``bars`` have a bar behind them, each of a fraction of their width.
        """
        left = set(text_columns)
        if self.style == "html":
            return _html(headers, rows, left, bars)
        cells = [[_cell(text, self.style) for text in row] for row in rows]
        if self.style == "markdown":
            return _markdown(headers, cells, left)
        lengths = wrapped if isinstance(wrapped, Mapping) else dict.fromkeys(wrapped, PROSE_WIDTH)
        for column, header in enumerate(headers):
            if header in lengths:
                for row in cells:  # an option stays whole where it can
                    lines = (
                        textwrap.fill(line, lengths[header], break_on_hyphens=False) for line in row[column].split("\n")
                    )
                    row[column] = "\n".join(lines)
        return _aligned(headers, cells, left)

    def columns(self, columns: Sequence[Column], wrapped: Mapping[str, int] = MappingProxyType({})) -> str:
        """Return columns as a table; those with a `wrapped` header are broken into lines, as in `grid`."""
        rows = list(zip(*(column.cells for column in columns), strict=True))
        text_columns = [position for position, column in enumerate(columns) if column.is_text]
        bars = {position: column.bars for position, column in enumerate(columns) if column.bars}
        return self.grid([column.header for column in columns], rows, text_columns, wrapped, bars).rstrip("\n")

    def heading(self, text: str) -> str:
        """Return the title of a table."""
        if self.style == "html":
            return f"<h4>{_cell(text, self.style)}</h4>"
        return text if self.style == "table" else f"**{_cell(text, self.style)}**\n"

    def titled(self, title: str, text: str) -> str:
        """Return a table or sentences under their title."""
        return f"{self.heading(title)}\n{text}"

    def sections(self, sections: Iterable[Section]) -> str:
        """Return the sections one below the other; on a page, titles are headings."""
        return "\n\n".join(map(self._section, sections)) + "\n"

    def _section(self, section: Section) -> str:
        on_terminal = self.style == "table"
        blocks = [section.title if on_terminal else f"## {section.title}"]
        if section.lines:
            lines = (filled(line, self.line) if on_terminal else line.replace("|", "\\|") for line in section.lines)
            blocks.append(("\n" if on_terminal else "\n\n").join(lines))
        if section.headers and section.rows:
            blocks.append(self._section_table(section))
        return "\n\n".join(blocks)

    def _section_table(self, section: Section) -> str:
        """Return the table of a section, without the columns for which the width has no room."""
        columns = [
            Column(
                header, tuple(cells), words := at in section.text_columns, 0 if words else section.spare.get(header, at)
            )
            for at, (header, *cells) in enumerate(zip(section.headers, *section.rows, strict=True))
        ]
        prose = [column for column in columns if column.header in section.wrapped]
        room = None if self.line is None else self.line - len(prose) * (_NARROWEST + BETWEEN)
        plain, left_out = fitting([column for column in columns if column not in prose], room)
        length = PROSE_WIDTH
        if self.line is not None and prose:
            rest = self.line - sum(column.width + BETWEEN for column in plain)
            length = min(max(rest // len(prose) - BETWEEN, _NARROWEST), PROSE_WIDTH)
        shown = [column for column in columns if column not in left_out]
        table = self.columns(shown, dict.fromkeys(section.wrapped, length))
        return "\n".join([table, *(filled(line, self.line) for line in narrow_line(left_out))])

    def question_block(self, question: str) -> str:
        """Return the question as a title, with the default hardware below where it names none."""
        title = self.heading(filled(question, self.line))
        hardware = self.default_hardware
        return f"{title}\n{filled(hardware, self.line)}" if hardware else title

    def run_of(self, estimate: Estimate) -> TrainingRun | None:
        """Return the whole run at the estimate's speed, or None if no number of tokens was given."""
        if self.train_tokens is None or estimate.throughput.tokens_per_second_per_device <= 0:
            return None
        return run_of(estimate, self.train_tokens, self.price_per_device_hour)


def joined(blocks: Iterable[str]) -> str:
    """Return the parts of an answer that are not empty, a blank line between them."""
    return "\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n"


def days_text(run: TrainingRun) -> str:
    """Return the days of a run with their interval."""
    return ranged(run.days, run.days_interval, amount)


def cost_text(run: TrainingRun) -> str:
    """Return the cost of a run with its interval; a dash without a price."""
    return "-" if run.cost is None else ranged(run.cost, run.cost_interval, money)
