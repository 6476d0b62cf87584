"""Answers in a notebook: the terminal's table with bars behind its cells, and figures.

    estimate                   # its table
    estimate.plot("step")      # a figure of plotly

The package hands these to `Tabular.drawing`. `show.report` has the tables, `pages.figures` the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from importlib.util import find_spec
from typing import Any, Final

from simulator.answers.compare import Comparison
from simulator.answers.explain import Explanation
from simulator.answers.plan import Plan
from simulator.answers.timeline import timeline
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError, UnsupportedError
from simulator.question.units import to_gib
from simulator.recipes.check.verdict import Checks
from simulator.search.space import Ranking
from simulator.show.pages.figures import (
    Dot,
    PlotlyFigure,
    change_figure,
    memory_figure,
    memory_over_step_figure,
    pareto_figure,
    plan_figure,
    step_figure,
    timeline_figure,
    verdict_figure,
)
from simulator.show.report.check import check_table
from simulator.show.report.compare import compare_table
from simulator.show.report.estimate import estimate_table, explain_table
from simulator.show.report.plan import plan_table
from simulator.show.report.presentation import Presentation
from simulator.show.report.ranking import ranking_table
from simulator.show.report.text import cluster_speed, layout_text
from simulator.tabular import Tabular

Figures = Mapping[str, Callable[[Any], PlotlyFigure]]
"""Figures of an answer by name, the default first."""
_TABLES: Final[Mapping[type, Callable[[Any, Presentation], str]]] = {
    Ranking: ranking_table,
    Estimate: estimate_table,
    Plan: plan_table,
    Comparison: compare_table,
    Explanation: explain_table,
    Checks: check_table,
}


def answer_html(answer: Tabular) -> str:
    """Return an answer as a line and the terminal's table, or its plain rows if it has no table."""
    table, summary = _TABLES.get(type(answer)), f"<p>{escape(repr(answer))}</p>"
    if table is not None:
        shown = Presentation(style="html", verbosity=0 if isinstance(answer, Checks) else -1)
        return summary + table(answer, shown)
    rows = answer.rows()
    heads = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(cell))}</td>' for cell in row.values())}</tr>" for row in rows)
    return summary + (f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>" if rows else "")


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)


def answer_figure(answer: Tabular, name: str = "") -> Any:
    """Return the figure of this name, or the first, as a `plotly.graph_objects.Figure`.

    Raises UnsupportedError without plotly, and InputError for an unknown name.
    """
    figures = _FIGURES.get(type(answer), {})
    if not figures:
        raise InputError(f"{type(answer).__name__}: has no figure; to_frame() has its rows")
    if name not in ("", *figures):
        raise InputError(f"figure '{name}': {type(answer).__name__} has {', '.join(figures)}")
    if find_spec("plotly") is None:
        raise UnsupportedError("plot: plotly is not installed: pip install plotly")
    from plotly.graph_objects import Figure  # noqa: PLC0415  only who draws needs it

    spec = figures[name or next(iter(figures))](answer)
    return Figure({**spec, "layout": {"height": _HEIGHT, **spec["layout"]}})


def _ranking(ranking: Ranking) -> PlotlyFigure:
    shown = ranking.estimates or tuple(filter(None, [ranking.nearest]))
    if not shown:
        raise InputError("nothing fits, and nothing comes near: there is nothing to draw")
    dots = [Dot(rank, e.memory.device_bytes, cluster_speed(e)) for rank, e in enumerate(shown, start=1)]
    group = "recommended" if ranking.estimates else "nearest"
    figure = pareto_figure({"fits": (), group: dots}, shown[0].memory.capacity_bytes)
    figure["data"][0]["text"] = [f"{rank}: {layout_text(e.layout)}" for rank, e in enumerate(shown, start=1)]
    return figure


def _verdicts(checks: Checks) -> PlotlyFigure:
    return verdict_figure([(each.name, each.outcome, each.estimate) for each in checks.results if each.estimate])


_FIGURES: Final[Mapping[type, Figures]] = {
    Ranking: {"layouts": _ranking},
    Estimate: {
        "memory": memory_figure,
        "step": step_figure,
        "timeline": lambda estimate: timeline_figure(timeline(estimate, _MICRO_BATCHES)),
        "memory over the step": lambda estimate: memory_over_step_figure(timeline(estimate, _MICRO_BATCHES)),
    },
    Plan: {"offers": lambda plan: plan_figure(plan.choices, plan.deadline_days, plan.budget)},
    Comparison: {
        "memory": lambda comparison: change_figure(comparison.memory, to_gib(1.0), "GiB"),
        "step": lambda comparison: change_figure(comparison.step, 1.0, "s"),
    },
    Explanation: {"memory": lambda explanation: memory_figure(explanation.estimate)},
    Checks: {"verdicts": _verdicts},
}
_HEIGHT = 420
"""Default height of a figure in pixels."""
_MICRO_BATCHES = 16
"""Most micro batches in a figure over time."""
