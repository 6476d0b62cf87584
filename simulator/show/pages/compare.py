"""The page of a comparison of two estimates. It shows one; nothing is compared here."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.answers.compare import Comparison, PartDifference
from simulator.question.units import GIB
from simulator.show.pages.answers import spec_sources
from simulator.show.pages.figures import PlotlyFigure, change_figure
from simulator.show.pages.page import PageSection, Table, page_html
from simulator.show.report.compare_table import (
    FIGURES,
    INPUTS,
    PARTS,
    compare_notes,
    figure_rows,
    headline,
    idle_lines,
    input_rows,
    part_rows,
    side_text,
)
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import gib, step_unit

_FIRST = frozenset({0})


def compare_page(comparison: Comparison, presentation: Presentation) -> str:
    """Return the page of a comparison, with its scenarios' sources. Raises UnsupportedError without plotly."""
    unit, per_second = step_unit(max(e.throughput.step_seconds for e in (comparison.first, comparison.second)))
    gibibytes = 1.0 / GIB
    figures: dict[str, PlotlyFigure] = {
        "memory": change_figure(comparison.memory, gibibytes, "GiB"),
        "step": change_figure(comparison.step, per_second, unit),
    }
    sides = [
        f"{letter}: {name} - {side_text(priced)}"
        for letter, name, priced in zip("AB", comparison.names, (comparison.first, comparison.second), strict=True)
    ]
    inputs = Table(headers=INPUTS, rows=input_rows(comparison), text_columns=frozenset({0, 1, 2}))
    sections = [
        PageSection(title="A and B", lines=sides),
        PageSection(
            title="Figures",
            table=Table(headers=FIGURES, rows=figure_rows(comparison, colour=False), text_columns=_FIRST),
        ),
        PageSection(
            title="Inputs that differ, and what each does to A alone",
            text=list(idle_lines(comparison)) if comparison.inputs else ["None: both ask the same."],
            table=inputs if inputs.rows else None,
        ),
        _parts(
            "Memory of the fullest device, from A to B", "memory", comparison.memory, part_rows(comparison.memory, gib)
        ),
        _parts(
            f"Time of one step, {unit}, from A to B",
            "step",
            comparison.step,
            part_rows(comparison.step, lambda value: f"{value * per_second:.3f}"),
        ),
    ]
    return page_html(
        title="A against B",
        lead=headline(comparison),
        sections=sections,
        figures=figures,
        command=presentation.command,
        notes=(*compare_notes(comparison, presentation), *spec_sources(presentation.scenarios)),
    )


def _parts(title: str, figure: str, parts: Sequence[PartDifference], rows: Sequence[Sequence[str]]) -> PageSection:
    changed = sum(part.first != part.second for part in parts)
    return PageSection(
        title=title,
        figure=figure,
        about=f"Waterfall from A over {changed} parts that differ to B, as in the table.",
        table=Table(headers=PARTS, rows=rows, text_columns=_FIRST),
        folded=True,
    )
