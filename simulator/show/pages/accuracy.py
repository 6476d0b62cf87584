"""The page of predictions beside measured runs. Fits and judges nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, takewhile

from simulator.evidence.calibration.judged import JudgedRun
from simulator.evidence.calibration.own import OwnError
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.units import GIB
from simulator.show.pages.figures import Measured, PlotlyFigure, error_figure
from simulator.show.pages.page import PageSection, Table, page_html
from simulator.show.report.accuracy import by_kind, class_sections, own_sections, row_sections
from simulator.show.report.presentation import Presentation
from simulator.show.report.sections import Section

_UNITS: Mapping[CoefficientKind, str] = {"memory": "GiB", "time": "TFLOPS of a device"}
_TITLES: Mapping[CoefficientKind, str] = {"memory": "Memory: error of every row", "time": "Speed: error of every row"}


def accuracy_page(judged: Sequence[JudgedRun], presentation: Presentation) -> str:
    """Return the page of shipped rows. Raises UnsupportedError without the plotting library."""
    figures: dict[str, PlotlyFigure] = {}
    drawn: list[PageSection] = []
    for kind, rows in by_kind(judged):
        if not rows:
            continue
        unit = GIB if kind == "memory" else 1.0
        measured = [
            Measured(row.platform, row.row.key, row.measured / unit, row.errors["source_left_out"]) for row in rows
        ]
        figures[kind] = error_figure(measured, _UNITS[kind])
        drawn.append(
            PageSection(
                title=_TITLES[kind],
                text=["Predicted over measured, less one; each row predicted with its source left out of the fit."],
                figure=kind,
                about="Scatter of rows: measured figure against error in per cent, by class of device.",
            )
        )
    parts = chain(class_sections(judged), row_sections(judged))
    texts_of: dict[str, list[str]] = {}
    for row in judged:
        texts_of.setdefault(row.source, []).append(row.row.source)
    notes = [f"rows {name}, source {_beginning(texts)}" for name, texts in texts_of.items()]
    sections = [*drawn, *map(_section, parts)]
    lead = f"{len(judged)} figures of measured runs."
    title = "Predictions against measured runs"
    return page_html(
        title=title, lead=lead, sections=sections, figures=figures, command=presentation.command, notes=notes
    )


def _beginning(texts: Sequence[str]) -> str:
    """Return the shared beginning of all texts in whole words, else the first text."""
    shared = list(
        takewhile(lambda words: len(set(words)) == 1, zip(*(text.split(" ") for text in texts), strict=False))
    )
    return " ".join(words[0] for words in shared).rstrip(",;:(") or texts[0]


def own_page(errors: Sequence[OwnError], presentation: Presentation) -> str:
    """Return the page of own rows before and after their calibration. Raises UnsupportedError without plotly."""
    figures: dict[str, PlotlyFigure] = {}
    sections = []
    for kind, title in _TITLES.items():
        mine = [own for own in errors if own.kind == kind]
        rows = [
            Measured(group=when, key=own.key, measured=float(number), error=error)
            for when in ("before", "after", "left out")
            for number, own in enumerate(mine, 1)
            if (error := getattr(own, when.replace(" ", "_"))) is not None
        ]
        if rows:
            figures[kind] = error_figure(rows, "row", linear=True)
            sections.append(PageSection(title=title, figure=kind, about="Scatter: error of each row in per cent."))
    sections += map(_section, own_sections(errors))
    keys = len({own.key for own in errors})
    title, lead = "Own rows against predictions", f"{keys} rows of your own."
    return page_html(title=title, lead=lead, sections=sections, figures=figures, command=presentation.command)


def _section(part: Section) -> PageSection:
    """Return a part of the report as a section; long tables are folded away."""
    table = None
    if part.headers and part.rows:
        headers = [header.replace("\n", " ") for header in part.headers]
        table = Table(headers=headers, rows=part.rows, text_columns=frozenset(part.text_columns))
    listed = part.lines if part.listed else ()
    return PageSection(
        title=part.title,
        text=() if part.listed else part.lines,
        lines=listed,
        table=table,
        folded=len(part.rows) > 20,
        wide=frozenset(position for position, header in enumerate(part.headers) if header in part.wrapped),
    )
