"""Explanation of a layout's memory as tables: a bar per stage, causes, changes that help. Computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simulator.cost.pricing.estimate import Estimate, StageMemory
from simulator.show.report.first_screen import NEXT_OF_EXPLANATION, basis_line, estimate_question, wrapped
from simulator.show.report.footer import provenance_lines
from simulator.show.report.grid import Style, grid, paragraph, titled
from simulator.show.report.presentation import Presentation, question_block
from simulator.show.report.text import (
    about_lines,
    cluster_speed,
    fit_text,
    gib,
    grouped,
    percent,
    short_lists,
)

if TYPE_CHECKING:
    from simulator.answers.explain import Explanation

_BAR = 40
"""Characters of a bar for the usable memory; fewer where a line has no room for twice as many."""
_SHORTEST_BAR = 10
_BESIDE_BARS = 32
"""Characters of the columns beside the bars."""
_BESIDE_CHANGES = 40
"""Characters of the columns beside the changes."""
_NARROWEST = 30
_WIDE = 160
"""Characters of a line where nothing limits it."""


def explain_table(explanation: Explanation, presentation: Presentation, style: Style) -> str:
    """Return an explanation for people."""
    estimate = explanation.estimate
    about = paragraph(wrapped(about_lines(estimate, colour=presentation.colour), presentation, style), style)
    question = question_block(estimate_question(estimate), presentation, style)
    blocks = [f"{question}\n{about}", *explanation_blocks(explanation, presentation, style)]
    if presentation.verbosity >= 0:
        full = _full(presentation, style)
        lines = [*provenance_lines(estimate, presentation)] if full else [basis_line(estimate), NEXT_OF_EXPLANATION]
        lines = [*contribution_lines(estimate, full=full), *lines]
        blocks[-1] += "\n" + paragraph(wrapped(lines, presentation, style), style)
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


def explanation_blocks(explanation: Explanation, presentation: Presentation, style: Style) -> Iterator[str]:
    """Yield the parts of an explanation beside its estimate."""
    full, stages = _full(presentation, style), len(explanation.estimate.memory.stages)
    bars = _bars(explanation.estimate, presentation.width, style, full=full)
    some = "" if full or stages <= _MOST_STAGES else f" ({_MOST_STAGES} of {stages}: -v)"
    yield titled(f"Need of each pipeline rank against what is usable{some}", bars, style)
    if explanation.causes:
        causes = wrapped([f"{cause}." for cause in explanation.causes], presentation, style)
        yield titled("Why", paragraph(causes, style), style)
    if explanation.changes:
        headers, rows = changes_cells(explanation)
        room = max((presentation.width or _WIDE) - _BESIDE_CHANGES, _NARROWEST)
        shown = rows if full else [row for row in rows if row is rows[0] or len(row[0]) <= 2 * room][:_MOST_CHANGES]
        table = grid(headers, shown, style, text_columns=[0], wrapped={headers[0]: room})
        yield titled(changes_title(explanation), table, style)
    yield paragraph([longest_text(explanation)], style)


def _full(presentation: Presentation, style: Style) -> bool:
    """Tell whether every row is shown: with more verbosity, and in a notebook, which has room."""
    return presentation.verbosity > 0 or style == "html"


def contribution_lines(estimate: Estimate, *, full: bool) -> Iterator[str]:
    """Yield the contributions to each range, the largest first, and what to measure next; `full` adds reasons."""
    known = estimate.provenance
    for figure, name in (("time", "step time"), ("memory", "memory")):
        parts = [part for part in known.contributions if part.figure == figure]
        if parts:
            whole = 100 * math.hypot(*(part.half_width for part in parts))
            shares = ", ".join(f"{part.name} {100 * part.half_width:.1f}" for part in parts)
            because = f": {shares}; most: {parts[0].because}" if full else f" ({shares})" * (figure == "time")
            yield f"Range of the {name}, ± {whole:.1f} %{because}."
    if (best := known.next_measurement) is not None:
        yield f"Next to measure: {best.run}; it would leave ± {100 * best.half_width:.1f} % of the step time."


def fullest_stages(estimate: Estimate, most: int) -> tuple[StageMemory, ...]:
    """Return the first, the last and the fullest stages, in their order; all of no more than `most`."""
    stages = estimate.memory.stages
    if len(stages) <= most:
        return stages
    fullest = sorted(stages[1:-1], key=lambda stage: -stage.device_bytes)[: most - 2]
    return tuple(stage for stage in stages if stage in (stages[0], stages[-1], *fullest))


_MOST_STAGES, _MOST_CHANGES = 4, 2
"""Most stages and changes of a first screen."""


def _bars(estimate: Estimate, width: int | None, style: Style, *, full: bool) -> str:
    stages = estimate.memory.stages
    whole = _BAR if width is None else min(max((width - _BESIDE_BARS) // 2, _SHORTEST_BAR), _BAR)
    shown = stages if full else fullest_stages(estimate, _MOST_STAGES)
    shares = [stage.device_bytes / (stage.capacity_bytes or estimate.memory.capacity_bytes) for stage in shown]
    rows = []
    for stage, share in zip(shown, shares, strict=True):
        inside = min(round(whole * share), whole)
        beyond = max(round(whole * min(share, 2.0)) - whole, 0)
        bar = "#" * inside + "." * (whole - inside) + "|" + "!" * beyond
        rows.append([str(stage.stage), *([] if style == "html" else [bar]), gib(stage.device_bytes), percent(share)])
    if style == "html":
        return grid(["rank", "GiB", "% of usable"], rows, style, bars={2: shares})
    return grid(["rank", "", "GiB", "% of usable"], rows, style, text_columns=[1])


def changes_title(explanation: Explanation) -> str:
    """Return the heading over the changes, with the probability to fit."""
    probability = explanation.min_fit_probability
    sure = "" if probability is None else f" with at least {100.0 * probability:g} %"
    return f"What would make it fit{sure}"


def changes_cells(explanation: Explanation) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the changes that help."""
    rows = [
        [
            short_lists(change.text),
            gib(change.estimate.memory.device_bytes),
            fit_text(change.estimate),
            f"{100 * (change.speed_ratio - 1):+.1f}",
            grouped(cluster_speed(change.estimate)),
        ]
        for change in explanation.changes
    ]
    return ["options to add", "GiB", "fit\n%", "speed of a\ndevice, %", "tokens/s"], rows


def longest_text(explanation: Explanation) -> str:
    """Return a sentence on the longest sequence."""
    longest = "none" if explanation.longest_sequence is None else f"{grouped(explanation.longest_sequence)} tokens"
    return f"Longest sequence that fits with this layout: {longest}."
