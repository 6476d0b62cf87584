"""An explanation of a layout's memory as tables: a bar per stage, causes, changes that help. Computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simulator.cost.pricing.estimate import Estimate
from simulator.show.report.first_screen import basis_line, wrapped
from simulator.show.report.footer import provenance_lines
from simulator.show.report.grid import Style, grid, paragraph, titled
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import (
    about_lines,
    cluster_speed,
    fit_text,
    gib,
    grouped,
    percent,
)

if TYPE_CHECKING:
    from simulator.show.answers.explain import Explanation

_BAR = 40
"""Characters of a bar as long as what is usable; fewer where a line has no room for twice as many."""
_SHORTEST_BAR = 10
_BESIDE_BARS = 32
"""Characters of the columns beside the bars."""
_MOST_BARS = 16
_BESIDE_CHANGES = 40
"""Characters of the columns beside the changes."""
_NARROWEST = 30
_WIDE = 160
"""Characters of a line where nothing limits it."""


def explain_table(explanation: Explanation, presentation: Presentation, style: Style) -> str:
    """Return an explanation for people."""
    estimate = explanation.estimate
    about = wrapped(about_lines(estimate, colour=presentation.colour), presentation, style)
    blocks = [titled("Layout", paragraph(about, style), style), *explanation_blocks(explanation, presentation, style)]
    if presentation.verbosity >= 0:
        full = presentation.verbosity > 0
        lines = list(provenance_lines(estimate, presentation)) if full else [basis_line(estimate)]
        lines = [*contribution_lines(estimate), *lines]
        blocks.append(paragraph(wrapped(lines, presentation, style), style))
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


def explanation_blocks(explanation: Explanation, presentation: Presentation, style: Style) -> Iterator[str]:
    """Yield what an explanation adds to an estimate."""
    bars = _bars(explanation.estimate, presentation.width, style)
    yield titled("Need of each pipeline rank against what is usable", bars, style)
    if explanation.causes:
        causes = wrapped([f"{cause}." for cause in explanation.causes], presentation, style)
        yield titled("Why", paragraph(causes, style), style)
    if explanation.changes:
        headers, rows = changes_cells(explanation)
        room = max((presentation.width or _WIDE) - _BESIDE_CHANGES, _NARROWEST)
        table = grid(headers, rows, style, text_columns=[0], wrapped={headers[0]: room})
        yield titled(changes_title(explanation), table, style)
    yield paragraph([longest_text(explanation)], style)


def contribution_lines(estimate: Estimate) -> Iterator[str]:
    """Yield what each range is made of, the largest part first with what is not known, and what to measure next."""
    known = estimate.provenance
    for figure, name in (("time", "step time"), ("memory", "memory")):
        parts = [one for one in known.contributions if one.figure == figure]
        if parts:
            whole = 100 * math.hypot(*(one.half_width for one in parts))
            shares = ", ".join(f"{one.name} {100 * one.half_width:.1f}" for one in parts)
            yield f"Range of the {name}, ± {whole:.1f} %: {shares}; most: {parts[0].because}."
    if (best := known.next_measurement) is not None:
        yield f"Next to measure: {best.run}; it would leave ± {100 * best.half_width:.1f} % of the step time."


def _bars(estimate: Estimate, width: int | None, style: Style) -> str:
    stages = estimate.memory.stages
    whole = _BAR if width is None else min(max((width - _BESIDE_BARS) // 2, _SHORTEST_BAR), _BAR)
    shown = stages
    if len(stages) > _MOST_BARS:
        kept = sorted(stages, key=lambda stage: -stage.device_bytes)[:_MOST_BARS]
        shown = tuple(stage for stage in stages if stage in kept)
    rows = []
    for stage in shown:
        usable = stage.capacity_bytes or estimate.memory.capacity_bytes
        share = stage.device_bytes / usable
        inside = min(round(whole * share), whole)
        beyond = max(round(whole * min(share, 2.0)) - whole, 0)
        bar = "#" * inside + "." * (whole - inside) + "|" + "!" * beyond
        rows.append([str(stage.stage), bar, gib(stage.device_bytes), f"{percent(share)}"])
    table = grid(["rank", "", "GiB", "% of usable"], rows, style, text_columns=[1])
    left = len(stages) - len(shown)
    return f"{table}\n{left} ranks that need less are left out." if left else table


def changes_title(explanation: Explanation) -> str:
    """Return the heading over the changes: how sure they make it."""
    least = explanation.min_fit_probability
    sure = "" if least is None else f" with at least {100.0 * least:g} %"
    return f"What would make it fit{sure}"


def changes_cells(explanation: Explanation) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the changes that help."""
    rows = [
        [
            change.text,
            gib(change.estimate.memory.device_bytes),
            fit_text(change.estimate),
            f"{100 * (change.speed_ratio - 1):+.1f}",
            grouped(cluster_speed(change.estimate)),
        ]
        for change in explanation.changes
    ]
    return ["options to add", "GiB", "fit\n%", "speed of a\ndevice, %", "tokens/s"], rows


def longest_text(explanation: Explanation) -> str:
    """Return how long a sequence may be."""
    longest = "none" if explanation.longest_sequence is None else f"{grouped(explanation.longest_sequence)} tokens"
    return f"Longest sequence that fits with this layout: {longest}."
