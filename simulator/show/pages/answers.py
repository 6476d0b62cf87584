"""Pages of a plan, a comparison, verdicts on recipes, and predictions beside measured runs.

simulate plan --model llama3.1-70b --train-tokens 300B --offer h100-sxm-80g:8,16@2.50 --format html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile

from simulator.errors import one_line
from simulator.evidence.calibration.judged import JudgedRun
from simulator.evidence.calibration.own import OwnError
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.units import GIB
from simulator.recipes.check.verdict import Checked
from simulator.show.answers.compare import Comparison, PartDifference
from simulator.show.answers.plan import Choice, Plan
from simulator.show.answers.program import Checks
from simulator.show.pages.figures import (
    Measured,
    PlotlyFigure,
    change_figure,
    error_figure,
    memory_figure,
    plan_figure,
    verdict_figure,
)
from simulator.show.pages.layouts import sources, spec_sources
from simulator.show.pages.page import Cell, PageSection, Table, page_html, sortable
from simulator.show.report.calibration import by_kind, class_sections, own_sections, row_sections
from simulator.show.report.check import HEADERS, TEXTS, changed_line, detail_lines, summary_rows, tally, verdict_line
from simulator.show.report.compare import (
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
from simulator.show.report.estimate import defaults_line, status_line
from simulator.show.report.plan import (
    availability_lines,
    foundation_lines,
    left_out_lines,
    limit_text,
    plan_answer,
)
from simulator.show.report.presentation import Presentation, cost_text, days_text
from simulator.show.report.tables import Section
from simulator.show.report.text import amount, count_text, gib, layout_text, percent, probability_text, step_unit


def plan_page(plan: Plan, presentation: Presentation) -> str:
    """Return the page of a plan. Raises UnsupportedError without plotly."""
    figures: dict[str, PlotlyFigure] = {}
    lead, *others = plan_answer(plan)
    sections = [PageSection(title="What to know of it", lines=others)] if others else []
    if plan.priced:
        figures["offers"] = plan_figure(plan.priced, plan.deadline_days, plan.budget)
        sections.append(
            PageSection(
                title="Days and cost",
                text=[
                    "Bars are 90 % intervals, numbers are nodes, lines are the limits; nothing beats a diamond in both."
                ],
                figure="offers",
                about="Scatter of choices by offer: days against cost with 90 % intervals; lines at the limits.",
                table=_plan_table(plan),
            )
        )
    out = list(left_out_lines(plan))
    if out:
        sections.append(PageSection(title="Left out", lines=out))
    notes = [
        *availability_lines(plan.availability),
        *defaults_line(dict(presentation.defaults)),
        *foundation_lines(plan, 1),
        *sources("model", load_model(plan.model)),
    ]
    for hardware in dict.fromkeys(offer.hardware for offer in plan.offers):
        notes += sources("hardware", load_hardware(hardware))
    title = f"{plan.model}: where to train {count_text(plan.train_tokens)} tokens"
    return page_html(
        title=title, lead=lead, sections=sections, figures=figures, command=presentation.command, notes=notes
    )


def _plan_table(plan: Plan) -> Table:
    """Return the table of all choices, without empty columns."""
    rows = [_plan_row(choice) for choice in plan.priced]
    several = len({choice.precision for choice in plan.priced}) > 1
    shown = [name for name in rows[0] if name != "precision" or several]
    shown = [name for name in shown if any(row[name][0] not in ("-", "") for row in rows)]
    return sortable(rows, shown, _WORDS)


_WORDS = ("offer", "precision", "known", "layout", "in time", "in budget", "Pareto")


def _plan_row(choice: Choice) -> dict[str, Cell]:
    """Return cells by column, each with its sort key."""
    estimate, run = choice.estimate, choice.run
    if estimate is None or run is None:
        raise ValueError("a choice without a layout has no row")
    probability, seconds = estimate.memory.fit_probability, estimate.throughput.step_seconds
    share = None if choice.goodput is None else choice.goodput.training
    words = {"in time": limit_text(choice.in_time), "in budget": limit_text(choice.in_budget)}
    layout = layout_text(estimate.layout)
    return {
        "offer": (choice.hardware, choice.hardware),
        "nodes": (str(choice.nodes), choice.nodes),
        "precision": (choice.precision, choice.precision),
        "known": (estimate.provenance.status,) * 2,
        "days": (days_text(run), run.days),
        "cost": (cost_text(run), -1.0 if run.cost is None else run.cost),
        **{name: (text, text) for name, text in words.items()},
        "Pareto": ("yes" if choice.pareto else "",) * 2,
        "step s": (amount(seconds), seconds),
        "fit %": ("-", -1.0) if probability is None else (probability_text(probability), probability),
        "goodput %": ("-", -1.0) if share is None else (percent(share), share),
        "layout": (layout, layout),
    }


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
