"""The page of a plan. It shows one; nothing is ranked here."""

from __future__ import annotations

from simulator.answers.plan import Choice, Plan
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.show.pages.answers import sources
from simulator.show.pages.figures import PlotlyFigure, plan_figure
from simulator.show.pages.page import Cell, PageSection, Table, page_html, sortable
from simulator.show.report.footer import defaults_line
from simulator.show.report.plan_table import (
    availability_lines,
    foundation_lines,
    left_out_lines,
    limit_text,
    plan_answer,
)
from simulator.show.report.presentation import Presentation, cost_text, days_text
from simulator.show.report.text import amount, count_text, layout_text, percent, probability_text


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
