"""Figures of answers as Plotly takes them, `{"data": traces, "layout": ...}`, and answers in a notebook.

    memory_figure(estimate)["data"][0]["name"] == "parameters"

    estimate                   # in a notebook: the terminal's table with bars behind its cells
    estimate.plot("step")      # a figure of plotly

Every number in a figure is computed here; `pages.answers` shows them too. The package hands
`show.forms` and this module to `Tabular`; `show.report` has the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Final

from simulator.answers.compare import Comparison, PartDifference
from simulator.answers.explain import Explanation
from simulator.answers.plan import Choice, Plan
from simulator.answers.run import TrainingRun
from simulator.answers.timeline import Timeline, timeline
from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.errors import InputError, UnsupportedError
from simulator.question.units import to_gib
from simulator.recipes.check.verdict import Checks
from simulator.records import Record
from simulator.search.space import Ranking
from simulator.show.report.text import cluster_speed, layout_text, words
from simulator.tabular import Tabular

MOST_PARTS = 12
"""Most parts that a comparison draws; further ones, and those below a thousandth of the whole, are joined."""
MOST_RANKS = 8
"""Most pipeline ranks whose memory over a step is drawn, the first ones: they hold most passes."""
_MOST_SHAPES = 2000  # most dots drawn as shapes; more are drawn on one canvas
LONGEST_LABEL = 28
"""Most characters of a recipe's name on an axis."""
_COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9"),
    *("#d55e00", "#b8a800", "#8c8c8c", "#7a4fb5", "#3b7d4f"),
)  # colours that colour-blind readers (Okabe and Ito), and brightness on paper, tell apart
_OPEN = "#8c8c8c"  # colour of what no verdict holds for
PRODUCTS = ("gemm", "attention", "vocabulary", "ring_attention")
"""Parts of a step whose FLOPs the model FLOPs count."""

PlotlyFigure = dict[str, Any]
_AUTOMATIC: PlotlyFigure = {"tickmode": "auto", "nticks": 6}


def memory_figure(estimate: Estimate) -> PlotlyFigure:
    """Draw the memory of every pipeline rank by part, against what a framework can use."""
    stages = estimate.memory.stages
    ranks, width = [str(stage.stage) for stage in stages], min(0.8, 0.2 * len(stages) + 0.1)
    data: list[PlotlyFigure] = []
    for position, name in enumerate(stages[0].parts_bytes):
        if any(stage.parts_bytes[name] for stage in stages):
            sizes, marker = [_gib(stage.parts_bytes[name]) for stage in stages], _colour(position)
            hover = f"rank %{{x}}: %{{y:.2f}} GiB<extra>{words(name)}</extra>"
            bars = {"width": [width] * len(stages), "marker": marker}
            data.append(_trace("bar", ranks, sizes, hover, name=words(name), **bars))
    interval = estimate.memory.interval_bytes
    if interval is not None:
        binding = stages[estimate.memory.binding_stage]
        ends = Interval(to_gib(interval.low), to_gib(interval.high))
        marks = {
            "marker": {"color": _OPEN, "symbol": "line-ew-open", "size": 12},
            "error_y": {**_errors([(to_gib(binding.device_bytes), ends)]), "thickness": 2, "width": 8},
        }
        hover = f"{_gib(interval.low)} to {_gib(interval.high)} GiB<extra>90 % interval</extra>"
        at = [str(binding.stage)], [_gib(binding.device_bytes)]
        data.append(_trace("scatter", *at, hover, mode="markers", name="90 % interval", **marks))
    return _drawn(
        data,
        barmode="stack",
        xaxis=_axis("pipeline rank", type="category"),
        yaxis=_axis("GiB"),
        shapes=[_level(_gib(estimate.memory.capacity_bytes))],
    )


def step_figure(estimate: Estimate) -> PlotlyFigure:
    """Draw the waterfall of a step from the peak of the device down to the MFU, in per cent of the step."""
    levels = peak_to_mfu(estimate)
    labels = [f"{value:+.{1 if abs(value) >= 0.05 else 2}f}" for _, value in levels]
    rows = [(name, round(value, 3), label) for (name, value), label in zip(levels, labels, strict=True)]
    ends = f"{levels[0][1]:.1f}", f"{levels[-1][1]:.1f}"
    hover, xaxis = "%{y}: %{x:.2f} %<extra></extra>", _axis("% of the peak", range=[0, 112])
    return _waterfall(rows, ends, ("decreasing", "increasing"), hover, xaxis)


def _waterfall(
    rows: Sequence[tuple[str, float, str]],
    ends: tuple[str, str],
    sides: tuple[str, str],
    hover: str,
    xaxis: PlotlyFigure,
) -> PlotlyFigure:
    """Draw a start, parts and an end with their labels; `sides` names the worse direction first."""
    names, values, labels = (list(column) for column in zip(*rows, strict=True))
    labels = [ends[0], *labels[1:-1], ends[1]]
    look = {
        "measure": ["absolute", *["relative"] * (len(rows) - 2), "total"],
        **{side: {"marker": _colour(number)} for side, number in zip(sides, (5, 2), strict=True)},
        "totals": {"marker": _colour(0)},
        "connector": {"line": {"color": _OPEN, "width": 1}},
    }
    texts = {"text": labels, "textposition": "outside", "cliponaxis": False}
    trace = _trace("waterfall", values, names, hover, orientation="h", **look, **texts)
    height, yaxis = 130 + 28 * len(rows), {"autorange": "reversed"}
    return _drawn([trace], showlegend=False, xaxis=xaxis, yaxis=yaxis, height=height)


def peak_to_mfu(estimate: Estimate) -> list[tuple[str, float]]:
    """Return names and per cent of the step: the peak, each loss between it and the MFU, the MFU."""
    speed = estimate.throughput
    parts = {name: 100.0 * seconds / speed.step_seconds for name, seconds in speed.parts_seconds.items()}
    below = sum(share for name, share in parts.items() if name in PRODUCTS) - 100.0 * speed.mfu
    losses = [(words(name), -share) for name, share in parts.items() if name not in PRODUCTS and share >= 0.05]
    small = -sum(share for name, share in parts.items() if name not in PRODUCTS and share < 0.05)
    if small < -0.005:
        losses.append(("other", small))
    return [("peak", 100.0), ("products below peak", -below), *losses, ("MFU", 100.0 * speed.mfu)]


class Dot(Record):
    """A layout as a dot."""

    number: int
    """Index of its panel, from which the browser takes its text."""
    memory_bytes: float
    tokens_per_second: float


_DOTS = (
    ("fits", "circle", 6, _COLOURS[0]),
    ("risky", "x", 7, _COLOURS[7]),
    ("recommended", "star", 12, _COLOURS[5]),
    ("nearest", "circle", 6, None),
)  # symbol, size and colour of each group of dots, the topmost last


def pareto_figure(groups: Mapping[str, Sequence[Dot]], capacity_bytes: float) -> PlotlyFigure:
    """Draw speed against memory: a dot for each layout, by group."""
    kind = "scattergl" if len(groups["fits"]) > _MOST_SHAPES else "scatter"
    data = []
    for name, symbol, size, colour in _DOTS:
        if dots := groups.get(name):
            at = [_gib(dot.memory_bytes) for dot in dots], [round(dot.tokens_per_second) for dot in dots]
            look = {
                "customdata": [dot.number for dot in dots],
                "marker": {"symbol": symbol, "size": size, "color": colour},
            }
            hover = "%{text}<br>%{x:.2f} GiB, %{y:,} tokens/s<extra></extra>"
            data.append(_trace(kind, *at, hover, mode="markers", name=name, **look))
    return _drawn(
        data,
        hovermode="closest",
        xaxis=_axis("memory of the fullest device, GiB"),
        yaxis=_axis("tokens/s", tickformat="~s"),
        shapes=[_level(_gib(capacity_bytes), upright=True)],
    )


def curve_figure(points: Iterable[tuple[float, Estimate | None]], axis: str, usable_bytes: float) -> PlotlyFigure:
    """Draw tokens/s and memory over one input; a point without an estimate is a gap."""
    inputs, estimates = (list(column) for column in zip(*points, strict=True))
    speeds = [None if estimate is None else round(cluster_speed(estimate)) for estimate in estimates]
    needs = [None if estimate is None else _gib(estimate.memory.device_bytes) for estimate in estimates]
    line = {"type": "scatter", "mode": "lines+markers", "x": inputs}
    return _drawn(
        [
            {**line, "name": "tokens/s", "y": speeds, "line": {"color": _COLOURS[0]}},
            {**line, "name": "GiB", "y": needs, "yaxis": "y2", "line": {"color": _COLOURS[1], "dash": "dot"}},
        ],
        xaxis=_axis(axis, type="log", tickvals=inputs, ticktext=[f"{value:,.0f}" for value in inputs]),
        yaxis=_axis("tokens/s", tickformat="~s", rangemode="tozero"),
        yaxis2=_axis("GiB", overlaying="y", side="right", rangemode="tozero", showgrid=False, **_AUTOMATIC),
        shapes=[{**_level(_gib(usable_bytes)), "yref": "y2"}],
    )


def change_figure(parts: Sequence[PartDifference], scale: float, unit: str) -> PlotlyFigure:
    """Draw the waterfall from A to B: the total of A, each difference, the largest first, the total of B."""
    differ = sorted((p for p in parts if p.first != p.second), key=lambda p: -abs(p.second - p.first))
    totals = [scale * sum(part.first for part in parts), scale * sum(part.second for part in parts)]
    drawn = [part for part in differ if scale * abs(part.second - part.first) > max(totals) / 1000][:MOST_PARTS]
    others = differ[len(drawn) :]
    changes = [(words(part.name), scale * (part.second - part.first)) for part in drawn]
    if others:
        changes.append(("others", scale * sum(part.second - part.first for part in others)))
    levels = [("A", totals[0]), *changes, ("B", totals[1])]
    highest = max(*accumulate(value for _, value in levels[:-1]), totals[1]) or 1.0
    xaxis = _axis(unit, range=[0, 1.15 * highest], rangemode="tozero")
    rows = [(name, round(value, 4), f"{value:+.3g}") for name, value in levels]
    ends, hover = (f"{totals[0]:.4g}", f"{totals[1]:.4g}"), f"%{{y}}: %{{x:.4g}} {unit}<extra></extra>"
    return _waterfall(rows, ends, ("increasing", "decreasing"), hover, xaxis)


def verdict_figure(named: Sequence[tuple[str, str, Estimate]]) -> PlotlyFigure:
    """Draw the need of each recipe in per cent of usable memory, with 90 % intervals, in the colour of its outcome."""
    needs, names = [], [name for name, _, _ in named]
    for _, _, e in named:
        scale, interval = 100.0 / e.memory.capacity_bytes, e.memory.interval_bytes
        ends = None if interval is None else Interval(interval.low * scale, interval.high * scale)
        needs.append((100.0 * e.memory.device_bytes / e.memory.capacity_bytes, ends))
    colours = {"fits": _COLOURS[2], "starved": _COLOURS[1], "cannot_tell": _OPEN, "not_modelled": _OPEN}
    ticks = [str(number) for number in range(1, len(named) + 1)]
    look = {"marker": {"color": [colours.get(outcome, _COLOURS[5]) for _, outcome, _ in named]}, "hovertext": names}
    at, hover = [round(need, 2) for need, _ in needs], "%{hovertext}: %{x:.1f} %<extra></extra>"
    yaxis = {"autorange": "reversed", "type": "category", "tickvals": ticks, "ticktext": [*map(_tail, names)]}
    return _drawn(
        [_trace("bar", at, ticks, hover, orientation="h", error_x=_errors(needs), **look)],
        showlegend=False,
        xaxis=_axis("need, % of what is usable", rangemode="tozero"),
        yaxis=yaxis,
        shapes=[_level(100.0, upright=True)],
        height=130 + 26 * len(named),
    )


def _tail(name: str) -> str:
    """Return the end of a path that fits an axis, without its launch where both are too long."""
    last = name.rpartition("/")[2]
    last = last if len(last) <= LONGEST_LABEL else last.partition(" (")[0]
    return last if len(last) <= LONGEST_LABEL else f"...{last[-LONGEST_LABEL:]}"


def timeline_figure(timeline: Timeline) -> PlotlyFigure:
    """Draw the passes of a step by pipeline rank: bars from their start to their end."""
    names = [f"rank {rank}" for rank in range(len(timeline.passes.events))]
    every = [event for events in timeline.passes.events for event in events]
    data = []
    for kind, colour in _PASSES.items():
        if passes := [event for event in every if event.ran.kind == kind]:
            lasting = [round(event.end_seconds - event.start_seconds, 6) for event in passes]
            look = {
                "base": [round(event.start_seconds, 6) for event in passes],
                "text": [f"micro batch {event.ran.micro_batch}, chunk {event.ran.chunk}" for event in passes],
                "textposition": "none",
                "marker": {"color": colour, "line": {"width": 0.5, "color": "#ffffff"}},
            }
            at, hover = [names[event.rank] for event in passes], "%{y}, %{text}: %{x:.4f} s<extra></extra>"
            data.append(_trace("bar", lasting, at, hover, orientation="h", name=words(kind), **look))
    return _drawn(
        data,
        barmode="overlay",
        bargap=0.15,
        xaxis=_axis("seconds"),
        yaxis={"autorange": "reversed", "type": "category"},
        height=170 + 26 * min(len(names), 32),
    )


_PASSES = {
    "forward": _COLOURS[4],
    "backward": _COLOURS[0],
    "input_gradient": _COLOURS[1],
    "weight_gradient": _COLOURS[2],
}


def memory_over_step_figure(timeline: Timeline) -> PlotlyFigure:
    """Draw the memory of the first pipeline ranks' devices over a step; its peak is that of the estimate."""
    data = []
    for rank, stage in enumerate(timeline.estimate.memory.stages[:MOST_RANKS]):
        points = list(timeline.bytes_alive(rank))
        outside = stage.device_bytes - stage.allocated_bytes
        at = [round(seconds, 4) for seconds, _ in points], [_gib(alive + outside) for _, alive in points]
        line, name = {"shape": "hv", **_colour(rank), "width": 1.5}, f"rank {rank}"
        hover = f"%{{x:.3f}} s: %{{y:.2f}} GiB<extra>{name}</extra>"
        data.append(_trace("scatter", *at, hover, mode="lines", name=name, line=line))
    shapes = [_level(_gib(timeline.estimate.memory.capacity_bytes))]
    return _drawn(data, xaxis=_axis("seconds"), yaxis=_axis("GiB", rangemode="tozero"), shapes=shapes)


def plan_figure(choices: Sequence[Choice], deadline: float | None, budget: float | None) -> PlotlyFigure:
    """Draw days against cost, or devices without prices, with 90 % intervals and a colour for each offer."""
    runs = [(choice, choice.run) for choice in choices if choice.run is not None]
    priced = any(run.cost is not None for _, run in runs)
    data = []
    for position, offer in enumerate(dict.fromkeys(choice.offer for choice in choices)):
        mine = [(choice, run) for choice, run in runs if choice.offer == offer and (run.cost is not None or not priced)]
        if mine:
            data.append(_offer_trace(mine, position, priced=priced))
    ends = [run.days_interval or Interval(run.days, run.days) for _, run in runs]
    days = [day for each in ends for day in (each.low, each.high)]
    shapes = [] if deadline is None else [_level(deadline, upright=True)]
    if budget is not None and priced:
        shapes.append(_level(budget))
    low, high = min(days), max(days)
    steps = [digit * 10.0**power for power in range(-3, 8) for digit in (1, 2, 5)]
    ticks = [step for step in steps if low / 2 <= step <= high * 2]
    return _drawn(
        data,
        hovermode="closest",
        xaxis=_axis("days", type="log", tickvals=ticks, ticktext=[f"{step:,.15g}" for step in ticks]),
        yaxis=_axis("cost" if priced else "devices", tickformat="~s", rangemode="tozero"),
        shapes=shapes,
    )


def _offer_trace(mine: Sequence[tuple[Choice, TrainingRun]], position: int, *, priced: bool) -> PlotlyFigure:
    choices, runs = (list(column) for column in zip(*mine, strict=True))
    heights = [round(run.cost or 0.0) if priced else choice.devices for choice, run in mine]
    return _trace(
        "scatter",
        [round(run.days, 3) for run in runs],
        heights,
        "%{hovertext}: %{x:.1f} days, %{y:,}<extra></extra>",
        mode="markers+text",
        name=choices[0].hardware,
        text=[str(choice.nodes) for choice in choices],
        textposition=("top right", "bottom right", "top left", "bottom left")[position % 4],
        hovertext=[f"{choice.nodes} nodes, {choice.precision}" for choice in choices],
        marker={
            **_colour(position),
            "size": 10,
            "symbol": ["diamond" if choice.pareto else "circle" for choice in choices],
        },
        error_x=_errors([(run.days, run.days_interval) for run in runs]),
        **({"error_y": _errors([(run.cost or 0.0, run.cost_interval) for run in runs])} if priced else {}),
    )


def _trace(kind: str, x: Any, y: Any, hover: Any, **more: Any) -> PlotlyFigure:
    return {"type": kind, "x": x, "y": y, "hovertemplate": hover, **more}


def _colour(position: int) -> PlotlyFigure:
    return {"color": _COLOURS[position % len(_COLOURS)]}


def _errors(figures: Sequence[tuple[float, Interval | None]]) -> PlotlyFigure:
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if interval is None else interval.high - value for value, interval in figures],
        "arrayminus": [0.0 if interval is None else value - interval.low for value, interval in figures],
        "thickness": 1,
    }


def _drawn(data: Sequence[PlotlyFigure], **layout: Any) -> PlotlyFigure:
    return {"data": data, "layout": layout}


def _axis(title: str, **more: Any) -> PlotlyFigure:
    return {"title": {"text": title}, **more}


def _level(value: float, *, upright: bool = False) -> PlotlyFigure:
    """Return a line across the whole figure at a value, vertical if `upright`."""
    at, over = "xy" if upright else "yx"
    return {"type": "line", f"{at}0": value, f"{at}1": value, f"{over}0": 0, f"{over}1": 1, f"{over}ref": "paper"}


def _gib(size_bytes: float) -> float:
    return round(to_gib(size_bytes), 3)


Figures = Mapping[str, Callable[[Any], PlotlyFigure]]
"""Figures of an answer by name, the default first."""


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
_HEIGHT = 420  # default height of a figure in pixels
_MICRO_BATCHES = 16  # most micro batches in a figure over time
