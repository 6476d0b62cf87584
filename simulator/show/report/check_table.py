"""Verdicts as tables for people: on a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.errors import one_line
from simulator.recipes.check.case import HARDWARE_ASSUMED, NODES_ASSUMED
from simulator.recipes.check.verdict import Checked
from simulator.show.report.check_answer import Answer
from simulator.show.report.check_text import (
    changed_line,
    detail_lines,
    room_line,
    speed_text,
    tally,
    verdict_line,
    where_text,
)
from simulator.show.report.grid import Style, grid, heading, paragraph, titled
from simulator.show.report.text import amount, gib, in_colour, margin_text, words


def check_table(answer: Answer, style: Style) -> str:
    """Return the verdicts: one row each, then what stands behind those that a reader must look at."""
    blocks = [grid(HEADERS, summary_rows(answer), style, text_columns=TEXTS)]
    if answer.verbosity >= 0:
        for result in answer.results:
            lines = list(_shown(result, answer.verbosity))
            if lines:
                blocks.append(titled(one_line(result.name), paragraph(map(one_line, lines), style), style))
    if answer.diff:
        blocks += [_patches(result, style) for result in answer.results if result.changes]
    if answer.changed is not None:
        lines = [one_line(changed_line(change)) for change in answer.changed] or ["nothing changed"]
        blocks.append(titled("Since the baseline", paragraph(lines, style), style))
    blocks.append(tally(answer.results))
    return "\n\n".join(blocks) + "\n"


def _patches(result: Checked, style: Style) -> str:
    """Every change that helps, the fastest first, as a patch of its own."""
    blocks = [heading(f"Patches of {result.name}", style)]
    for change in result.changes:
        said = (
            change.patch.rstrip("\n")
            or "# no patch: the text gives no hold for it, or an option replaces it; give the options instead"
        )
        costs = f"# {change.text} ({speed_text(change.speed_ratio)})"
        blocks.append(f"```diff\n{costs}\n{said}\n```" if style == "markdown" else f"{costs}\n{said}")
    return "\n".join(blocks)


def _shown(result: Checked, verbosity: int) -> Iterator[str]:
    """The lines on a recipe: all where it did not pass or more was asked for, else what must be known."""
    lines = list(detail_lines(result, sources=verbosity > 0))
    full = not result.passed or verbosity > 0 or result.outcome == "starved" or result.without_offload is not None
    if full:
        yield verdict_line(result)
        yield from (line for line in lines if not line.startswith("why: "))
    else:
        yield from (where_text(estimate) for estimate in (result.estimate,) if estimate is not None)
        yield from room_line(result)
        shown = ("warning: ", *(f"[{rule}]" for rule in (HARDWARE_ASSUMED, NODES_ASSUMED)))
        yield from (line for line in lines if any(part in line for part in shown))


HEADERS = ("recipe", "verdict", "on", "GiB", "usable", "margin", "stage", "step s", "rules")
TEXTS = (0, 1, 2, 8)
"""Columns that hold words."""


def summary_rows(answer: Answer) -> list[list[str]]:
    """Return a row for each recipe."""
    return [_row(result, colour=answer.colour) for result in answer.results]


def _row(result: Checked, *, colour: bool) -> list[str]:
    said = words(result.outcome) + ("" if result.passed or result.outcome != "fits" else ", but fails")
    said = in_colour(said, result.outcome if result.passed else "refused", colour=colour)
    rules = ", ".join(dict.fromkeys(remark.rule for remark in result.remarks if remark.severity == "error"))
    name, estimate = one_line(result.name), result.estimate
    if estimate is None:
        return [name, said, "", "", "", "", "", "", rules]
    memory, on = estimate.memory, one_line(f"{estimate.devices} x {estimate.hardware}")
    if result.outcome == "refused":
        return [name, said, on, "", gib(memory.capacity_bytes), "", "", "", rules]
    return [
        name,
        said,
        on,
        gib(memory.device_bytes),
        gib(memory.capacity_bytes),
        margin_text(memory.headroom_bytes),
        str(memory.binding_stage),
        amount(estimate.throughput.step_seconds),
        rules,
    ]
