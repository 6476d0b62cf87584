"""Verdicts as tables for people: on a terminal, and as Markdown. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.answers.cases import HARDWARE_ASSUMED, NODES_ASSUMED
from simulator.answers.gates import OUTCOMES
from simulator.errors import one_line
from simulator.recipes.check.verdict import Checked, Checks
from simulator.show.report.check_printable import printable
from simulator.show.report.check_text import (
    changed_line,
    detail_lines,
    range_line,
    reason,
    room_line,
    speed_text,
    tally,
    verdict_line,
    where_text,
)
from simulator.show.report.columns import Column, columns_grid, fitting, narrow_line
from simulator.show.report.first_screen import speed_sentence
from simulator.show.report.grid import Style, filled, heading, paragraph, titled
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import amount, gib, in_colour, margin_text, words


def check_table(checks: Checks, presentation: Presentation, style: Style) -> str:
    """Return the verdicts for people: the count of each, a row per recipe, and details of those to look at.

    Of more than `MANY`, only reasons and failing recipes; all with more verbosity.
    """
    checks, verbosity = printable(checks), presentation.verbosity
    many = len(checks.results) > MANY and verbosity < 1
    failing = tuple(result for result in checks.results if not result.passed and not result.known)
    results = failing if many else checks.results
    blocks = [tally(checks.results)]
    width = presentation.width if style == "table" else None
    if many:
        blocks.append(_reasons(checks.results, style, width))
    alone = len(checks.results) == 1 and style == "table" and verbosity == 0
    if results and not alone:
        colour = presentation.colour and style == "table"
        columns, left_out = fitting(_with_short_names(_columns(results, colour=colour), width), width)
        blocks.append("\n".join([columns_grid(columns, style), *narrow_line(left_out)]))
    if verbosity >= 0:
        for result in results:
            lines = list(_alone(result, presentation) if alone and result.passed else _shown(result, verbosity))
            if lines:
                sentences = (filled(one_line(line), width) for line in lines)
                blocks.append(titled(one_line(result.name), paragraph(sentences, style), style))
    if checks.patches:
        blocks += [_patches(result, style) for result in checks.results if result.changes]
    if checks.changed is not None:
        lines = [one_line(changed_line(change)) for change in checks.changed] or ["nothing changed"]
        blocks.append(titled("Since the baseline", paragraph(lines, style), style))
    return "\n\n".join(blocks) + "\n"


MANY = 12
"""Most recipes of a table with all rows; a longer one has reasons, and rows of failing recipes only."""
MOST_REASONS = 20
"""Most reasons shown, those of most files first."""
_SHORTEST, _READABLE = 24, 44
"""Fewest characters of a file's name, and of a reason."""


def _reasons(results: Sequence[Checked], style: Style, width: int | None) -> str:
    """Return the number of files by verdict and reason, with one file of each."""
    groups: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        groups.setdefault((result.outcome, reason(result)), []).append(result)
    ranked = sorted(groups.items(), key=lambda group: (OUTCOMES.index(group[1][0].outcome), -len(group[1])))
    shown = sorted(ranked, key=lambda group: -len(group[1]))[:MOST_REASONS]
    rows = [group for group in ranked if group in shown]
    rest = (width or 160) - _FIXED
    room = max(rest // 2, min(rest - _SHORTEST, _READABLE))
    named = room >= _READABLE
    reasons = tuple(_cut(one_line(why), room if named else max(rest, _SHORTEST)) for (_, why), _ in rows)
    columns = [
        Column("recipes", tuple(str(len(group)) for _, group in rows)),
        Column("verdict", tuple(words(outcome) for (outcome, _), _ in rows), is_text=True),
        Column("reason", reasons, is_text=True),
    ]
    if named:
        files = tuple(_tail(one_line(group[0].file), rest - room) for _, group in rows)
        columns.append(Column("such as", files, is_text=True))
    hidden = len(groups) - len(rows)
    more = [f"and {hidden} more reason{'' if hidden == 1 else 's'}; all with -v"] if hidden else []
    return "\n".join([columns_grid(columns, style), *more])


_FIXED = 30
"""Characters of the other columns, and between columns."""


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3].rstrip()}..."


def _tail(text: str, room: int) -> str:
    return text if len(text) <= room else f"...{text[3 - room :]}"


def _patches(result: Checked, style: Style) -> str:
    """Return every change that helps, the fastest first, as a patch of its own."""
    blocks = [heading(f"Patches of {result.name}", style)]
    for change in result.changes:
        patch = (
            change.patch.rstrip("\n")
            or "# no patch: the text gives no hold for it, or an option replaces it; give the options instead"
        )
        costs = f"# {change.text} ({speed_text(change.speed_ratio)})"
        blocks.append(f"```diff\n{costs}\n{patch}\n```" if style == "markdown" else f"{costs}\n{patch}")
    return "\n".join(blocks)


def _shown(result: Checked, verbosity: int) -> Iterator[str]:
    """Yield the lines on a recipe: all where it did not pass or with more verbosity, else the necessary ones."""
    lines = list(detail_lines(result, sources=verbosity > 0))
    full = not result.passed or verbosity > 0 or result.outcome == "starved" or result.without_offload is not None
    if full:
        yield verdict_line(result)
        yield from (line for line in lines if not line.startswith("why: "))
    else:
        yield from (where_text(estimate) for estimate in (result.estimate,) if estimate is not None)
        yield from range_line(result)
        yield from room_line(result)
        shown = ("warning: ", *(f"[{rule}]" for rule in (HARDWARE_ASSUMED, NODES_ASSUMED)))
        yield from (line for line in lines if any(part in line for part in shown))


def _alone(result: Checked, presentation: Presentation) -> Iterator[str]:
    """Yield the lines on a single recipe that passes."""
    yield verdict_line(result)
    if result.estimate is not None:
        yield f"speed: {speed_sentence(result.estimate, presentation)}"
    yield from (line for line in _shown(result, 0) if line != verdict_line(result))


HEADERS = ("recipe", "verdict", "on", "GiB", "usable", "margin", "stage", "step s", "rules")
TEXTS = (0, 1, 2, 8)
"""Columns that hold words."""
_SPARE = (0, 0, 30, 0, 20, 10, 60, 50, 40)
"""Order in which columns are left out where a line is too short, the highest first; 0 stays."""


def _columns(results: Sequence[Checked], *, colour: bool) -> list[Column]:
    cells = zip(*(_row(result, colour=colour) for result in results), strict=True)
    return [
        Column(header, tuple(column), is_text=number in TEXTS, spare=_SPARE[number])
        for number, (header, column) in enumerate(zip(HEADERS, cells, strict=True))
    ]


def _with_short_names(columns: Sequence[Column], width: int | None) -> list[Column]:
    """Return the columns with as much of the names as leaves room for the others: their ends tell files apart."""
    names, *figures = columns
    if width is None:
        return [names, *figures]
    room = max(width - sum(column.width + _BETWEEN for column in figures), width * 2 // 5, _SHORTEST)
    return [names._replace(cells=tuple(_tail(name, room) for name in names.cells)), *figures]


_BETWEEN = 2
"""Spaces between columns."""


def summary_rows(results: Sequence[Checked]) -> list[list[str]]:
    """Return a row for each recipe."""
    return [_row(result, colour=False) for result in results]


def _row(result: Checked, *, colour: bool) -> list[str]:
    verdict = words(result.outcome) + ("" if result.passed or result.outcome != "fits" else ", but fails")
    verdict = in_colour(verdict, result.outcome if result.passed else "refused", colour=colour)
    rules = ", ".join(dict.fromkeys(remark.rule for remark in result.remarks if remark.severity == "error"))
    name, estimate = one_line(result.name), result.estimate
    if estimate is None:
        return [name, verdict, "", "", "", "", "", "", rules]
    memory, on = estimate.memory, one_line(f"{estimate.devices} x {estimate.hardware}")
    if result.outcome == "refused":
        return [name, verdict, on, "", gib(memory.capacity_bytes), "", "", "", rules]
    return [
        name,
        verdict,
        on,
        gib(memory.device_bytes),
        gib(memory.capacity_bytes),
        margin_text(memory.headroom_bytes),
        str(memory.binding_stage),
        amount(estimate.throughput.step_seconds),
        rules,
    ]
