"""The page of verdicts on recipes. It shows verdicts; nothing is judged here."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.errors import one_line
from simulator.recipes.check.verdict import Checked, Checks
from simulator.show.pages.answers import spec_sources
from simulator.show.pages.figures import PlotlyFigure, memory_figure, verdict_figure
from simulator.show.pages.page import PageSection, Table, page_html
from simulator.show.report.check_table import HEADERS, TEXTS, summary_rows
from simulator.show.report.check_text import changed_line, detail_lines, tally, verdict_line
from simulator.show.report.footer import status_line
from simulator.show.report.presentation import Presentation

MOST_FIGURES = 24
"""Most recipes whose memory a page shows by stage and part, failed ones first."""


def check_page(checks: Checks, presentation: Presentation) -> str:
    """Return the page of verdicts. Raises UnsupportedError without plotly."""
    figures: dict[str, PlotlyFigure] = {}
    priced = [result for result in checks.results if result.estimate is not None and result.outcome != "refused"]
    table = Table(
        headers=HEADERS, rows=summary_rows(checks.results), text_columns=frozenset(TEXTS), keys=[*_keys(checks)]
    )
    sections = [PageSection(title="Verdicts", table=table)]
    if priced:
        figures["recipes"] = verdict_figure([(_name(r), r.outcome, r.estimate) for r in priced if r.estimate])
        sections.insert(
            0,
            PageSection(
                title="Need against what is usable",
                figure="recipes",
                about="Bars: memory of each recipe's fullest device in per cent of what is usable, and intervals; "
                "grey where the verdict is open.",
            ),
        )
    drawn = {id(result) for result in sorted(priced, key=lambda result: result.passed)[:MOST_FIGURES]}
    for number, result in enumerate(checks.results):
        name = f"recipe-{number}" if id(result) in drawn and result.estimate is not None else ""
        if name and result.estimate is not None:
            figures[name] = memory_figure(result.estimate)
        sections.append(_recipe(result, name))
    if checks.changed is not None:
        lines = [one_line(changed_line(change)) for change in checks.changed] or ["nothing changed"]
        sections.append(PageSection(title="Since the baseline", lines=lines))
    known = dict.fromkeys(f"{r.estimate.hardware}: {status_line(r.estimate)}" for r in priced if r.estimate)
    scenarios = [result.case.scenario for result in priced if result.case is not None]
    return page_html(
        title=f"Recipes on {', '.join(_hardware(checks)) or 'no hardware'}",
        lead=f"{tally(checks.results)}.",
        sections=sections,
        figures=figures,
        command=presentation.command,
        notes=[*known, *spec_sources(scenarios)],
    )


def _recipe(result: Checked, figure: str) -> PageSection:
    patches = [f"{change.text}:\n{change.patch.rstrip()}" for change in result.changes if change.patch]
    return PageSection(
        title=_name(result),
        text=[f"{one_line(verdict_line(result))}."],
        lines=[one_line(line) for line in detail_lines(result, sources=True)],
        figure=figure,
        about="Stacked bars: memory of every pipeline rank by part, with a line at what a framework can use.",
        code="\n\n".join(patches),
    )


def _name(result: Checked) -> str:
    return one_line(result.name)


def _hardware(checks: Checks) -> list[str]:
    return list(dict.fromkeys(r.estimate.hardware for r in checks.results if r.estimate is not None))


def _keys(checks: Checks) -> Iterator[list[float | str]]:
    """Yield the sort keys of each row's cells."""
    for result, row in zip(checks.results, summary_rows(checks.results), strict=True):
        keys: list[float | str] = list(row)
        if result.estimate is not None and result.outcome != "refused":
            memory = result.estimate.memory
            figures = (memory.device_bytes, memory.capacity_bytes, memory.headroom_bytes, memory.binding_stage)
            keys[3:8] = [*figures, result.estimate.throughput.step_seconds]
        yield keys
