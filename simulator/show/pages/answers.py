"""Pages of a plan, a comparison, verdicts on recipes, and predictions beside measured runs.

    simulate plan --model llama3.1-70b --train-tokens 300B --offer h100-sxm-80g:8,16@2.50 --format html

Each takes the answer and its presentation, and raises UnsupportedError where plotly is not installed. `pages.layouts`
has estimates and rankings, `pages.figures` the figures, `pages.page` the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, takewhile

from simulator.answers.compare import Comparison, PartDifference
from simulator.answers.plan import Plan
from simulator.errors import one_line
from simulator.evidence.calibration.own import JudgedRun, OwnError
from simulator.question.coefficients import CoefficientKind
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.units import GIB
from simulator.recipes.check.verdict import Checked, Checks
from simulator.show.pages.figures import (
    Measured,
    PlotlyFigure,
    change_figure,
    error_figure,
    memory_figure,
    plan_figure,
    verdict_figure,
)
from simulator.show.pages.layouts import MEMORY_ABOUT, sources, spec_sources
from simulator.show.pages.page import PageSection, Table, columns_table, page_html
from simulator.show.report.calibration import TITLES, by_kind, class_sections, own_sections, row_sections
from simulator.show.report.check import HEADERS, TEXTS, changed_line, detail_lines, summary_rows, tally, verdict_line
from simulator.show.report.compare import (
    FIGURES,
    INPUTS,
    PARTS,
    compare_notes,
    comparison_unit,
    figure_rows,
    headline,
    idle_lines,
    input_rows,
    part_rows,
    priced_text,
    refused_rules,
)
from simulator.show.report.estimate import defaults_line, status_line
from simulator.show.report.listing import SpecListing, listing_columns
from simulator.show.report.plan import (
    availability_lines,
    foundation_lines,
    left_out_lines,
    plan_answer,
    plan_columns,
)
from simulator.show.report.presentation import Presentation
from simulator.show.report.tables import Section
from simulator.show.report.text import count_text, gib

_MOST_FIGURES = 24
"""Most recipes whose memory a page shows by stage and part, failed ones first."""
_LONG = 20
"""Most rows of a table that is not folded away."""


def plan_page(plan: Plan, shown: Presentation) -> str:
    """Return the page of a plan."""
    figures: dict[str, PlotlyFigure] = {}
    lead, *others = plan_answer(plan)
    sections = [PageSection("What to know of it", lines=others)] if others else []
    if plan.priced:
        figures["offers"] = plan_figure(plan.priced, plan.deadline_days, plan.budget)
        text = "Bars are 90 % intervals, numbers are nodes, lines are the limits; nothing beats a diamond in both."
        about = "Scatter of choices by offer: days against cost with 90 % intervals; lines at the limits."
        table = columns_table(plan_columns(plan), first=("offer", "nodes", "days", "cost", "in time", "in budget"))
        sections.append(PageSection("Days and cost", text=[text], figure="offers", about=about, table=table))
    if out := list(left_out_lines(plan)):
        sections.append(PageSection("Left out", lines=out))
    notes = [*availability_lines(plan.availability), *defaults_line(shown.defaults), *foundation_lines(plan)]
    notes += sources("model", load_model(plan.model))
    for hardware in dict.fromkeys(offer.hardware for offer in plan.offers):
        notes += sources("hardware", load_hardware(hardware))
    title = f"{plan.model}: where to train {count_text(plan.train_tokens)} tokens"
    return page_html(shown, title, lead, sections, figures, notes=notes)


def compare_page(comparison: Comparison, shown: Presentation) -> str:
    """Return the page of a comparison, with its scenarios' sources."""
    unit, per_second = comparison_unit(comparison)
    figures = {
        "memory": change_figure(comparison.memory, 1.0 / GIB, "GiB"),
        "step": change_figure(comparison.step, per_second, unit),
    }
    both = zip("AB", comparison.names, (comparison.first, comparison.second), strict=True)
    inputs = Table(INPUTS, input_rows(comparison), frozenset({0, 1, 2}))
    idle = list(idle_lines(comparison)) if comparison.inputs else ["None: both ask the same."]
    title = "Inputs that differ, and what each does to A alone"
    seconds = part_rows(comparison.step, lambda value: f"{value * per_second:.3f}")
    sections = [
        PageSection("Figures", table=Table(FIGURES, figure_rows(comparison, colour=False))),
        PageSection("A and B", lines=[f"{letter}: {name} - {priced_text(priced)}" for letter, name, priced in both]),
    ]
    notes = (*compare_notes(comparison, shown), *spec_sources(shown.scenarios))
    if broken := refused_rules(comparison):
        rules = [f"{each.rule}: {each.message}; {each.fix}" for each in broken]
        sections.append(PageSection("Rules broken", lines=rules))
        return page_html(shown, "A against B", headline(comparison), sections, {}, notes=notes)
    sections += [
        PageSection(title, text=idle, table=inputs if inputs.rows else None),
        _parts(
            "Memory of the fullest device, from A to B", "memory", comparison.memory, part_rows(comparison.memory, gib)
        ),
        _parts(f"Time of one step, {unit}, from A to B", "step", comparison.step, seconds),
    ]
    return page_html(shown, "A against B", headline(comparison), sections, figures, notes=notes)


def _parts(title: str, figure: str, parts: Sequence[PartDifference], rows: Sequence[Sequence[str]]) -> PageSection:
    changed = sum(part.first != part.second for part in parts)
    about = f"Waterfall from A over {changed} parts that differ to B, as in the table."
    return PageSection(title, figure=figure, about=about, table=Table(PARTS, rows), folded=True)


_MOST_DRAWN = 12
"""Most recipes of a page with figures: the library that draws them takes 5 MB of it."""


def check_page(checks: Checks, shown: Presentation) -> str:
    """Return the page of verdicts: what failed first, what trains nothing last."""
    figures: dict[str, PlotlyFigure] = {}
    results = sorted(checks.results, key=lambda result: (result.passed, result.estimate is None))
    sections = [PageSection("Verdicts", table=Table(HEADERS, summary_rows(results), frozenset(TEXTS)))]
    priced = [(r, r.estimate) for r in results if r.estimate is not None and r.outcome != "refused"]
    if priced and len(results) <= _MOST_DRAWN:
        figures["recipes"] = verdict_figure([(one_line(r.name), r.outcome, estimate) for r, estimate in priced])
        about = (
            "Bars: memory of each recipe's fullest device in per cent of what is usable, and intervals; grey where the "
            "verdict is open."
        )
        sections.append(PageSection("Need against what is usable", figure="recipes", about=about))
    needs = {id(result): memory_figure(estimate) for result, estimate in priced[: _MOST_FIGURES * bool(figures)]}
    for number, result in enumerate(results):
        name = f"recipe-{number}" if id(result) in needs else ""
        if name:
            figures[name] = needs[id(result)]
        sections.append(_recipe(result, name))
    if checks.changed is not None:
        lines = [one_line(changed_line(change)) for change in checks.changed] or ["nothing changed"]
        sections.append(PageSection("Since the baseline", lines=lines))
    hardware = dict.fromkeys(result.estimate.hardware for result in results if result.estimate is not None)
    known = dict.fromkeys(f"{estimate.hardware}: {status_line(estimate)}" for _, estimate in priced)
    notes = [*known, *spec_sources(result.case.scenario for result, _ in priced if result.case is not None)]
    title = f"Recipes on {', '.join(hardware) or 'no hardware'}"
    return page_html(shown, title, f"{tally(checks.results)}.", sections, figures, notes=notes)


def _recipe(result: Checked, figure: str) -> PageSection:
    patches = [f"{change.text}:\n{change.patch.rstrip()}" for change in result.changes if change.patch]
    return PageSection(
        one_line(result.name),
        text=[f"{one_line(verdict_line(result))}."],
        lines=[one_line(line) for line in detail_lines(result, sources=True)],
        figure=figure,
        about=MEMORY_ABOUT,
        code="\n\n".join(patches),
    )


_ERROR_UNITS: Mapping[CoefficientKind, str] = {"memory": "GiB", "time": "TFLOPS of a device"}


def _error_title(kind: CoefficientKind) -> str:
    return f"{TITLES[kind]}: error of every row"


def listing_page(listing: SpecListing, shown: Presentation) -> str:
    """Return the page of records."""
    lead, *notes = listing.notes or [f"{len(listing.records)} records."]
    sections = [PageSection("All", table=columns_table(listing_columns(listing).values()))] if listing.records else []
    return page_html(shown, listing.title or "What is shipped", lead, sections, {}, notes=notes)


def accuracy_page(judged: Sequence[JudgedRun], shown: Presentation) -> str:
    """Return the page of shipped rows."""
    figures: dict[str, PlotlyFigure] = {}
    sections: list[PageSection] = []
    text = "Predicted over measured, less one; each row predicted with its source left out of the fit."
    about = "Scatter of rows: measured figure against error in per cent, by class of device."
    for kind, rows in by_kind(judged):
        if rows:
            unit = GIB if kind == "memory" else 1.0
            measured = [
                Measured(row.platform, row.row.key, row.measured / unit, row.errors["source_left_out"]) for row in rows
            ]
            figures[kind] = error_figure(measured, _ERROR_UNITS[kind])
            sections.append(PageSection(_error_title(kind), text=[text], figure=kind, about=about))
    sections += map(_section, chain(class_sections(judged), row_sections(judged)))
    by_source: dict[str, list[str]] = {}
    for row in judged:
        by_source.setdefault(row.source, []).append(row.row.source)
    notes = [f"rows {name}, source {_beginning(texts)}" for name, texts in by_source.items()]
    lead = f"{len(judged)} figures of measured runs."
    return page_html(shown, "Predictions against measured runs", lead, sections, figures, notes=notes)


def _beginning(texts: Sequence[str]) -> str:
    """Return the shared beginning of all texts in whole words, else the first text."""
    columns = zip(*(text.split(" ") for text in texts), strict=False)
    shared = " ".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, columns))
    return shared.rstrip(",;:(") or texts[0]


def own_page(errors: Sequence[OwnError], shown: Presentation) -> str:
    """Return the page of own rows before and after their calibration."""
    figures: dict[str, PlotlyFigure] = {}
    sections = []
    for kind in TITLES:
        of_kind = [error for error in errors if error.kind == kind]
        rows = [
            Measured(group=when, key=error.key, measured=float(number), error=relative)
            for when in ("before", "after", "left out")
            for number, error in enumerate(of_kind, 1)
            if (relative := getattr(error, when.replace(" ", "_"))) is not None
        ]
        if rows:
            figures[kind] = error_figure(rows, "row", linear=True)
            about = "Scatter: error of each row in per cent."
            sections.append(PageSection(_error_title(kind), figure=kind, about=about))
    sections += map(_section, own_sections(errors))
    lead = f"{len({error.key for error in errors})} rows of your own."
    return page_html(shown, "Own rows against predictions", lead, sections, figures)


def _section(part: Section) -> PageSection:
    """Return a part of the report as a section; long tables are folded away."""
    table = None
    if part.headers and part.rows:
        headers = [header.replace("\n", " ") for header in part.headers]
        table = Table(headers, part.rows, frozenset(part.text_columns))
    return PageSection(
        part.title,
        text=part.lines,
        table=table,
        folded=len(part.rows) > _LONG,
        wide=frozenset(position for position, header in enumerate(part.headers) if header in part.wrapped),
    )
