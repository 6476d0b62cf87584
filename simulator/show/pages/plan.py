"""The page of a plan."""

from __future__ import annotations

from dataclasses import replace

from simulator.question.specs.catalogue import load_hardware
from simulator.show.answers.plan import Choice, Plan
from simulator.show.pages.answers import sources
from simulator.show.pages.figures import PlotlyFigure, plan_figure
from simulator.show.pages.page import Page, PageSection, Table, page_html
from simulator.show.report.footer import defaults_line, provenance_lines
from simulator.show.report.plan_table import availability_lines, choice_text, kept_text, plan_answer
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import amount, count_text, layout_text, money, probability_text, ranged


def plan_page(plan: Plan, presentation: Presentation, command: str) -> str:
    """The page of a plan. Raises UnsupportedError without the plotting library."""
    figures: dict[str, PlotlyFigure] = {}
    lead, *others = plan_answer(plan)
    sections = [PageSection(title="Least nodes in time", lines=others)] if others else []
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
    out = [f"{choice_text(choice)}: {choice.reason}." for choice in plan.choices if choice.run is None]
    if out:
        sections.append(PageSection(title="Left out", lines=out))
    best = plan.best
    notes = [*availability_lines(plan.availability)]
    if best is not None and best.estimate is not None:
        notes += [
            *defaults_line(dict(presentation.defaults)),
            *provenance_lines(best.estimate, replace(presentation, verbosity=1)),
        ]
    for hardware in dict.fromkeys(offer.hardware for offer in plan.offers):
        notes += sources("hardware", load_hardware(hardware))
    title = f"{plan.model}: where to train {count_text(plan.train_tokens)} tokens"
    return page_html(Page(title=title, lead=lead, sections=sections, figures=figures, command=command, notes=notes))


def _plan_table(plan: Plan) -> Table:
    headers = [
        "offer",
        "nodes",
        "precision",
        "layout",
        "step s",
        "fit %",
        "goodput %",
        "days",
        "cost",
        "in time",
        "in budget",
        "Pareto",
    ]
    rows, keys = [], []
    for choice in plan.priced:
        row, key = _plan_row(choice)
        rows.append(row)
        keys.append(key)
    return Table(headers=headers, rows=rows, keys=keys, text_columns=frozenset({0, 2, 3, 9, 10, 11}))


def _plan_row(choice: Choice) -> tuple[list[str], list[float | str]]:
    estimate, run = choice.estimate, choice.run
    if estimate is None or run is None:
        raise ValueError("a choice without a layout has no row")
    probability, seconds = estimate.memory.fit_probability, estimate.throughput.step_seconds
    share = None if choice.goodput is None else choice.goodput.training
    row = [
        choice.hardware,
        str(choice.nodes),
        choice.precision,
        layout_text(estimate.layout),
        amount(seconds),
        "-" if probability is None else probability_text(probability),
        "-" if share is None else f"{100 * share:.1f}",
        ranged(run.days, run.days_interval, amount),
        "-" if run.cost is None else ranged(run.cost, run.cost_interval, money),
        kept_text(choice.in_time),
        kept_text(choice.in_budget),
        "yes" if choice.pareto else "",
    ]
    key: list[float | str] = [
        choice.hardware,
        choice.nodes,
        choice.precision,
        row[3],
        seconds,
        -1.0 if probability is None else probability,
        -1.0 if share is None else share,
        run.days,
        -1.0 if run.cost is None else run.cost,
        row[9],
        row[10],
        row[11],
    ]
    return row, key
