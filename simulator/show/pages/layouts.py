"""Pages of layouts: an estimate with its curves, a ranking with a panel for each layout, a ranking with sliders.

    simulate rank --model llama3.1-8b --nodes 2 --format html --output rank.html

Other questions that a page answers (another sequence length, each position of a slider) are priced here beforehand; the
browser computes no figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from itertools import product
from math import prod
from typing import Any, NamedTuple

from simulator import api
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import SimulateError
from simulator.question.scenario.inputs import MOST_DEVICES, MOST_TOKENS
from simulator.question.scenario.layout import MICRO_BATCH_SIZES
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.search.result import Ranking
from simulator.search.space import Space
from simulator.show.answers.command import estimate_command
from simulator.show.answers.explain import Explanation
from simulator.show.answers.run import TrainingRun
from simulator.show.answers.timeline import timeline
from simulator.show.pages.figures import (
    MOST_RANKS,
    Dot,
    PlotlyFigure,
    curve_figure,
    memory_figure,
    memory_over_step_figure,
    pareto_figure,
    peak_to_mfu,
    step_figure,
    timeline_figure,
)
from simulator.show.pages.page import Cell, PageSection, Table, figure_box, page_html, sortable
from simulator.show.report.estimate import (
    changes_cells,
    changes_title,
    estimate_footer,
    estimate_question,
    fastest_line,
    half_width_text,
    longest_text,
    speed_sentence,
)
from simulator.show.report.presentation import Presentation, cost_text, days_text, training_run
from simulator.show.report.ranking import (
    equal_lines,
    miss_lines,
    ranking_footer,
    ranking_question,
    remedies_cells,
)
from simulator.show.report.text import (
    SIZE_FIELDS,
    amount,
    cluster_speed,
    fit_text,
    gib,
    grouped,
    layout_text,
    mfu_text,
    need_lines,
    probability_text,
    ranged,
    recompute_text,
    sharded_layout_text,
    step_unit,
    verdict_sentence,
    words,
)

MOST_PANELS = 10_000
"""Most layouts with panels on a page, beside those of the ranking's table."""
MOST_DOTS = 100_000
"""Most layouts that a page shows as dots."""
_SEQUENCES = (2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
_STEP_ABOUT = "Waterfall from the peak of the device to the MFU: what each part of the step takes."
_MEMORY_ABOUT = "Stacked bars: memory of every pipeline rank by part, with a line at what a framework can use."


def estimate_page(estimate: Estimate, presentation: Presentation) -> str:
    """Return the page of one layout, explained if it does not fit. Raises UnsupportedError without plotly."""
    layout, shown = estimate.layout, replace(presentation, verbosity=1)
    question, explained = {**presentation.question, "layout": layout}, presentation.explanation
    figures = {"memory": memory_figure(estimate), "step": step_figure(estimate)}
    sizes = sorted({*MICRO_BATCH_SIZES, layout.micro_batch_size})
    curves = {
        "sequence": Curve(
            "sequence length",
            _around(estimate.seq_length),
            lambda length: api.estimate(**{**question, "seq_length": length}),
        ),
        "micro-batch": Curve(
            "micro batch size",
            sizes,
            lambda size: _allowed(api.estimate(**{**question, "layout": replace(layout, micro_batch_size=size)})),
        ),
    }
    points = _priced(curves, presentation)
    usable = estimate.memory.capacity_bytes
    figures |= {name: curve_figure(points[name], curve.axis, usable) for name, curve in curves.items()}
    sections = [
        PageSection(
            title="Memory by stage", figure="memory", about=_MEMORY_ABOUT, table=_memory_table(estimate), folded=True
        ),
        PageSection(
            title="Where the step goes, from peak to MFU",
            figure="step",
            about=_STEP_ABOUT,
            table=_step_table(estimate),
            folded=True,
        ),
        *(_explanation_sections(explained) if explained is not None else ()),
        *_timeline_section(estimate, figures),
        *_curve_sections(curves, points, "the same layout; what breaks a rule leaves a gap"),
        _speed_section(estimate, presentation),
    ]
    lead = f"{sharded_layout_text(layout)}: {verdict_sentence(estimate, colour=False)}."
    return page_html(
        title=estimate_question(estimate),
        lead=" ".join([lead, *(f"{line}." for line in need_lines(estimate))]),
        sections=sections,
        figures=figures,
        command=presentation.command,
        notes=[*estimate_footer(estimate, shown), *answer_sources(estimate, presentation)],
    )


def ranking_page(ranking: Ranking, presentation: Presentation) -> str:
    """Return the page of a ranking. Raises UnsupportedError without plotly."""
    title, whole = ranking_question(ranking), replace(presentation, verbosity=1, colour=False)
    shown = ranking.estimates or tuple(filter(None, [ranking.nearest])) or ranking.risky or ranking.starved
    if not shown:
        lines = [*miss_lines(ranking, whole), *ranking_footer(ranking, whole)]
        return page_html(
            title=title, lead=lines[0], sections=(), figures={}, command=presentation.command, notes=lines[1:]
        )
    dots, panels = _dots(ranking, shown, presentation)
    curves = dict(_ranking_curves(ranking, shown[0], presentation))
    points = _priced(curves, presentation)
    usable = shown[0].memory.capacity_bytes
    figures: dict[str, PlotlyFigure] = {"pareto": pareto_figure(dots, usable)}
    drawn = {name: curve for name, curve in curves.items() if any(e for _, e in points[name])}
    figures |= {name: curve_figure(points[name], curve.axis, usable) for name, curve in drawn.items()}
    remedies = _cells_table(*remedies_cells(ranking))
    lead = [fastest_line(shown[0], presentation), *equal_lines(ranking)] if ranking.estimates else None
    sections = [
        PageSection(
            title="Layouts",
            text=["Press a number to see its panels; press a heading to sort."],
            table=_ranking_table(shown, presentation),
        ),
        PageSection(
            title="Speed against memory",
            text=[_drawn(len(panels), ranking)],
            figure="pareto",
            about="Scatter of layouts: memory of the fullest device against tokens per second; a line at the capacity.",
        ),
        PageSection(title="One layout", html=_panels(len(panels))),
        *([PageSection(title="What would help", table=remedies)] if ranking.remedies else []),
        *_curve_sections(drawn, points, "the best layout of each; where none is likely enough to fit there is a gap"),
    ]
    return page_html(
        title=title,
        lead="; ".join(miss_lines(ranking, whole)) if lead is None else " ".join(lead),
        sections=sections,
        figures=figures,
        layouts=panels,
        command=presentation.command,
        notes=[*ranking_footer(ranking, whole), *answer_sources(shown[0], presentation)],
    )


def _explanation_sections(explanation: Explanation) -> Iterator[PageSection]:
    """Yield the causes, the changes that help, the longest sequence."""
    yield PageSection(title="Why", lines=[f"{cause}." for cause in explanation.causes])
    if explanation.changes:
        yield PageSection(title=changes_title(explanation), table=_cells_table(*changes_cells(explanation)))
    yield PageSection(title="How long a sequence may be", text=[longest_text(explanation)])


def _cells_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a terminal's table, whose first column is text, for a page."""
    return Table(headers=[header.replace("\n", " ") for header in headers], rows=rows, text_columns=frozenset({0}))


def _drawn(dots: int, ranking: Ranking) -> str:
    """Return a sentence on how many of the layouts that fit are drawn, and which."""
    feasible = ranking.counts.feasible
    how = "press a dot to see its panels"
    if not feasible:
        return f"Nothing fits: what is drawn comes nearest; {how}."
    if dots >= feasible:
        return f"All {grouped(feasible)} layouts that fit; {how}."
    return (
        f"{grouped(dots)} of {grouped(feasible)} layouts that fit: all that no other beats in both, the fastest of "
        f"each split, and of the others an even share by speed; {how}."
    )


def _dots(
    ranking: Ranking, shown: Sequence[Estimate], presentation: Presentation
) -> tuple[dict[str, list[Dot]], list[dict[str, Any]]]:
    """Return dots by group (in the table, fitting, risky), and the panel of each dot.

    Beyond `MOST_PANELS` a panel has text and command alone.
    """
    risky = [estimate for estimate in ranking.risky if estimate not in shown]
    known = {(estimate.layout, tuple(estimate.options)) for estimate in (*shown, *risky)}
    feasible = api.feasible(space=presentation.space, most=MOST_PANELS, drawn=MOST_DOTS, **presentation.question)
    texts_of = partial(_words, presentation=presentation, has_experts=has_experts(presentation))
    first = "recommended" if ranking.estimates else "nearest"
    others = [priced for priced in feasible.estimates if (priced.layout, tuple(priced.options)) not in known]
    groups: dict[str, list[Dot]] = {}
    panels: list[dict[str, Any]] = []
    for name, estimates in ((first, shown), ("fits", others), ("risky", risky)):
        groups[name] = []
        for estimate in estimates:
            groups[name].append(Dot(len(panels), estimate.memory.device_bytes, cluster_speed(estimate)))
            panels.append(panel(estimate, texts_of(estimate, verdict_sentence(estimate, colour=False))))
    tokens = shown[0].global_batch_size * shown[0].seq_length
    for drawn in feasible.others:
        if (drawn.layout, tuple(drawn.query.chosen)) not in known:
            groups["fits"].append(Dot(len(panels), drawn.device_bytes, tokens / drawn.step_seconds))
            outline = replace(shown[0], layout=drawn.layout, options=drawn.query.chosen)
            panels.append(texts_of(outline, "fits; --format html of this command shows its panels"))
    return groups, panels


def panel(estimate: Estimate, texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the panel of one layout: texts, and the figures of its memory and of its step."""
    return {**texts, "memory": memory_figure(estimate), "step": step_figure(estimate)}


def _words(estimate: Estimate, verdict: str, *, presentation: Presentation, has_experts: bool) -> dict[str, Any]:
    command = estimate_command(estimate, presentation.question, has_experts=has_experts)
    return {"title": sharded_layout_text(estimate.layout), "verdict": verdict, "command": command}


Points = list[tuple[float, Estimate | None]]


class Curve(NamedTuple):
    """A question over the values of one input."""

    axis: str
    """Title of the axis: the input in words."""
    values: Sequence[int]
    price: Callable[[int], Estimate | None]
    """Estimates a value; gives None or raises SimulateError where there is no estimate."""


def _priced(curves: Mapping[str, Curve], presentation: Presentation) -> dict[str, Points]:
    """Return the points of every curve; the estimate is None for a question without an answer."""
    points: dict[str, Points] = {name: [] for name in curves}
    asked = [(name, curve, value) for name, curve in curves.items() for value in curve.values]
    for number, (name, curve, value) in enumerate(asked, start=1):
        estimate = None
        with suppress(SimulateError):
            estimate = curve.price(value)
        points[name].append((value, estimate))
        if presentation.progress is not None:
            presentation.progress(number, len(asked))
    return points


def _ranking_curves(ranking: Ranking, first: Estimate, presentation: Presentation) -> Iterator[tuple[str, Curve]]:
    """Yield curves of the best layout over sequence length, nodes and micro batch size."""
    question, space = presentation.question, presentation.space or Space()

    def best(**changed: Any) -> Estimate | None:
        return api.fastest(**{"space": space, **question, **changed}).recommended

    yield "sequence", Curve("sequence length", _around(first.seq_length), lambda length: best(seq_length=length))
    nodes = ranking.query.get("nodes")
    if isinstance(nodes, int) and ":" not in str(ranking.query["hardware"]):
        sizes = sorted({max(1, nodes // 4), max(1, nodes // 2), nodes, 2 * nodes, 4 * nodes})
        yield "nodes", Curve("nodes", sizes, lambda size: best(nodes=size, devices=None))
    batches = space.micro_batch_size or MICRO_BATCH_SIZES
    yield (
        "micro-batch",
        Curve("micro batch size", batches, lambda size: best(space=replace(space, micro_batch_size=(size,)))),
    )


def _around(length: int) -> tuple[int, ...]:
    return tuple(sorted({*_SEQUENCES, length}))


def _allowed(priced: Estimate) -> Estimate | None:
    return None if priced.violations else priced


def _curve_sections(curves: Mapping[str, Curve], points: Mapping[str, Points], whose: str) -> Iterator[PageSection]:
    for name, curve in curves.items():
        rows = [
            [
                f"{value:,.0f}",
                *(
                    ["-", "-", "-"]
                    if e is None
                    else [grouped(cluster_speed(e)), gib(e.memory.device_bytes), layout_text(e.layout)]
                ),
            ]
            for value, e in points[name]
        ]
        table = Table(headers=[curve.axis, "tokens/s", "GiB", "layout"], rows=rows, text_columns=frozenset({3}))
        yield PageSection(
            title=f"Over {curve.axis}",
            text=[f"Speed and memory of {whose}. The line is what a framework can use."],
            figure=name,
            about=f"Curves of tokens per second and memory over {curve.axis}.",
            table=table,
            folded=True,
        )


def _ranking_table(estimates: Sequence[Estimate], presentation: Presentation) -> Table:
    unit = step_unit(max(e.throughput.step_seconds for e in estimates))
    rows = [_ranking_row(number, e, training_run(e, presentation), unit) for number, e in enumerate(estimates, 1)]
    return replace(sortable(rows, list(rows[0]), {"recompute"}), layouts=range(len(rows)))


def _ranking_row(number: int, e: Estimate, run: TrainingRun | None, unit: tuple[str, float]) -> dict[str, Cell]:
    probability, recomputed, speed = e.memory.fit_probability, recompute_text(e.layout), e.throughput
    sizes = {field.label: getattr(e.layout, field.name) for field in SIZE_FIELDS}
    half = half_width_text(speed.step_seconds, speed.interval_seconds)
    row: dict[str, Cell] = {
        "#": (str(number), number),
        **{name: (str(size), size) for name, size in sizes.items()},
        "recompute": (recomputed, recomputed),
        "tokens/s": (grouped(cluster_speed(e)), cluster_speed(e)),
        "± %": (half, float("0" + half.strip("-"))),
        "MFU %": (mfu_text(speed.mfu), speed.mfu),
        f"step {unit[0]}": (amount(speed.step_seconds * unit[1]), speed.step_seconds),
        "memory GiB": (gib(e.memory.device_bytes), e.memory.device_bytes),
        "spare GiB": (gib(e.memory.headroom_bytes), e.memory.headroom_bytes),
        "fit %": (fit_text(e).replace(" ", ""), -1.0 if probability is None else probability),
    }
    if run is not None:
        row["days"] = days_text(run), run.days
        if run.cost is not None:
            row["cost"] = cost_text(run), run.cost
    return row


def _memory_table(estimate: Estimate) -> Table:
    stages = estimate.memory.stages
    names = [name for name in stages[0].parts_bytes if any(stage.parts_bytes[name] for stage in stages)]
    rows = [
        [str(s.stage), str(s.layers), *(gib(s.parts_bytes[name]) for name in names), gib(s.device_bytes), s.moment]
        for s in stages
    ]
    headers = ["rank", "layers", *(f"{words(name)} GiB" for name in names), "device GiB", "peak at"]
    return Table(headers=headers, rows=rows, text_columns=frozenset({len(headers) - 1}))


def _step_table(estimate: Estimate) -> Table:
    rows = [[name, f"{share:.2f}"] for name, share in peak_to_mfu(estimate)]
    return Table(headers=["part", "% of the peak"], rows=rows, text_columns=frozenset({0}))


def _timeline_section(estimate: Estimate, figures: dict[str, PlotlyFigure]) -> Iterator[PageSection]:
    """Yield the schedule, of enough micro batches to see the pipeline fill, run and drain."""
    if estimate.violations:
        return
    ranks = estimate.layout.pipeline_parallel
    shown = timeline(estimate, 3 * ranks)
    count = sum(event.ran.kind == "forward" and event.ran.chunk == 0 for event in shown.passes.events[0])
    every = estimate.global_batch_size // (estimate.layout.micro_batch_size * estimate.layout.data_parallel)
    figures["timeline"] = timeline_figure(shown)
    drawn = "all" if count == every else f"the first {count}"
    yield PageSection(
        title="Pipeline timeline",
        text=[f"Forward and backward passes of {drawn} of {grouped(every)} micro batches, then the pipeline drains."],
        figure="timeline",
        about="Bars by pipeline rank: when each forward and backward pass starts and ends.",
    )
    figures["memory-over-step"] = memory_over_step_figure(shown)
    some = f" of the first {MOST_RANKS} ranks" if ranks > MOST_RANKS else ""
    yield PageSection(
        title="Memory over the step",
        text=[f"What devices{some} need while these passes run; the line is what a framework can use."],
        figure="memory-over-step",
        about="Lines by pipeline rank: GiB that a device needs over the seconds of a step.",
    )


def _speed_section(estimate: Estimate, presentation: Presentation) -> PageSection:
    speed = estimate.throughput
    unit, per_second = step_unit(speed.step_seconds)
    interval = speed.interval_seconds
    step = ranged(speed.step_seconds * per_second, None, amount)
    if interval is not None:
        step += f" ({amount(interval.low * per_second)}-{amount(interval.high * per_second)})"
    rows = [[f"step {unit}", step], ["tokens/s", grouped(cluster_speed(estimate))], ["MFU %", mfu_text(speed.mfu)]]
    probability = estimate.memory.fit_probability
    if probability is not None:
        rows.append(["probability to fit %", probability_text(probability)])
    run = training_run(estimate, presentation)
    if run is not None:
        rows.append(["days", days_text(run)])
        if run.cost is not None:
            rows.append(["cost", cost_text(run)])
    return PageSection(title="Speed", table=Table(headers=["figure", "value"], rows=rows, text_columns=frozenset({0})))


def _panels(layouts: int) -> str:
    return (
        f'<p><label>Layout <input id="choose" type="number" min="1" max="{layouts}" value="1"></label> of '
        f"{grouped(layouts)}: those of the table first, then from the fastest.</p>{panel_boxes()}"
    )


def panel_boxes() -> str:
    """Return the elements in which the script shows one layout."""
    return (
        '<p id="chosen" class="lead" aria-live="polite"></p><p id="chosen-verdict"></p><div class="panels" id="panels">'
        f"{figure_box('memory', _MEMORY_ABOUT, drawn=False)}{figure_box('step', _STEP_ABOUT, drawn=False)}</div>"
        '<pre id="chosen-command"></pre>'
    )


def has_experts(presentation: Presentation) -> bool:
    """Return whether the model of a page's question has experts."""
    return load_model(str(presentation.question["model"])).is_moe


def answer_sources(estimate: Estimate, presentation: Presentation) -> Iterator[str]:
    """Yield the sources of the model and the hardware of a page."""
    yield from sources("model", load_model(str(presentation.question["model"])))
    hardware = str(presentation.question.get("hardware", estimate.hardware))
    if ":" not in hardware:
        yield from sources("hardware", load_hardware(hardware))


def spec_sources(scenarios: Iterable[Scenario]) -> list[str]:
    """Return the sources of all specs of the scenarios, each once."""
    lines: dict[str, None] = {}
    for scenario in scenarios:
        lines |= dict.fromkeys(sources("model", scenario.model))
        for hardware in scenario.kinds_of_device:
            lines |= dict.fromkeys(sources("hardware", hardware))
    return list(lines)


def sources(kind: str, spec: Any) -> Iterator[str]:
    """Yield the sources of a spec's numbers."""
    if spec.note:
        yield f"{kind} {spec.name}: {spec.note}"
    for key, source in dict(spec.sources).items():
        yield f"{kind} {spec.name}, source {key}: {source}"


_NODES, _LENGTHS, _BATCHES = (0.5, 1, 2, 4), (0.5, 1, 2, 4), (0.5, 1, 2)
"""Factors of an input, by position of its slider."""


@dataclass(frozen=True, slots=True)
class Knob:
    """An input with the values of its slider, which begins at index `start`."""

    name: str
    label: str
    values: tuple[Any, ...]
    start: int

    def text(self, value: Any) -> str:
        """Return the text of a value beside the slider."""
        return grouped(value) if isinstance(value, int) else str(value)


Cells = dict[tuple[Any, ...], Estimate | None]
"""Estimate of the best layout by the values of all knobs; None where none is likely enough to fit."""


def sliders_page(ranking: Ranking, presentation: Presentation) -> str:
    """Return the page of sliders. Raises UnsupportedError without plotly."""
    knobs = tuple(knobs_of(ranking))
    cells = _priced_cells(knobs, presentation)
    layouts = [_cell(values, estimate, knobs, presentation) for values, estimate in cells.items()]
    detailed = replace(presentation, verbosity=1, colour=False)
    best = ranking.estimates[:1]
    sections = [
        PageSection(title="Knobs", html=f'<div class="knobs">{"".join(_sliders(knobs))}</div>{panel_boxes()}'),
        PageSection(
            title="Every position",
            text=["The fastest layout that is likely enough to fit; a dash where there is none."],
            table=_table(knobs, cells),
            folded=True,
        ),
    ]
    return page_html(
        title=ranking_question(ranking),
        lead=fastest_line(best[0], detailed) if best else "Nothing fits as it was asked: turn the knobs.",
        sections=sections,
        figures={},
        layouts=layouts,
        command=presentation.command,
        notes=[*ranking_footer(ranking, detailed), *(answer_sources(best[0], presentation) if best else ())],
    )


def knobs_of(ranking: Ranking) -> Iterator[Knob]:
    """Yield the inputs of a ranking's question that have a slider, with values around the question's."""
    query = ranking.query
    nodes, hardware = query.get("nodes"), str(query["hardware"])
    if isinstance(nodes, int) and ":" not in hardware:
        yield _knob("nodes", "nodes", nodes, _NODES, MOST_DEVICES // load_hardware(hardware).devices_per_node)
    yield _knob("seq_length", "sequence length", _count(query["seq_length"]), _LENGTHS, MOST_TOKENS)
    yield _knob("global_batch_size", "sequences a step", _count(query["global_batch_size"]), _BATCHES, MOST_TOKENS)
    precision = str(query["precision"])
    words = tuple(dict.fromkeys((precision, "fp8"))) if ranking.fp8 is not None else (precision,)
    yield Knob("precision", "precision", words, 0)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 1


def _knob(name: str, label: str, asked: int, factors: Sequence[float], most: int) -> Knob:
    values = sorted({min(max(int(asked * factor), 1), most) for factor in factors})
    return Knob(name, label, tuple(values), values.index(asked))


def _priced_cells(knobs: Sequence[Knob], presentation: Presentation) -> Cells:
    """Price all combinations of values, the last knob varying fastest."""
    cells: Cells = {}
    total = prod(len(knob.values) for knob in knobs)
    for values in product(*(knob.values for knob in knobs)):
        question = {**presentation.question, **{knob.name: value for knob, value in zip(knobs, values, strict=True)}}
        cells[values] = None
        with suppress(SimulateError):
            cells[values] = api.fastest(space=presentation.space, **question).recommended
        if presentation.progress is not None:
            presentation.progress(len(cells), total)
    return cells


def _cell(
    values: Sequence[Any], estimate: Estimate | None, knobs: Sequence[Knob], presentation: Presentation
) -> Mapping[str, Any]:
    """Return the panel of one combination of values."""
    if estimate is None:
        asked = ", ".join(f"{knob.label} {knob.text(value)}" for knob, value in zip(knobs, values, strict=True))
        return {"title": "Nothing is likely enough to fit.", "verdict": asked, "command": ""}
    verdict = f"{speed_sentence(estimate, presentation)}; {verdict_sentence(estimate, colour=False)}"
    command = estimate_command(estimate, presentation.question, has_experts=has_experts(presentation))
    return panel(estimate, {"title": sharded_layout_text(estimate.layout), "verdict": verdict, "command": command})


def _sliders(knobs: Sequence[Knob]) -> Iterator[str]:
    """Yield a slider for each knob with several values; its stride counts the cells between two positions."""
    for number, knob in enumerate(knobs):
        texts = [knob.text(value) for value in knob.values]
        stride = prod(len(other.values) for other in knobs[number + 1 :])
        if len(texts) > 1:
            yield (
                f'<label>{escape(knob.label)} <output>{escape(texts[knob.start])}</output><input type="range" min="0" '
                f'max="{len(texts) - 1}" value="{knob.start}" data-stride="{stride}" '
                f'data-values="{escape(json.dumps(texts))}"></label>'
            )
        else:
            yield f"<span>{escape(knob.label)} <output>{escape(texts[0])}</output></span>"


def _table(knobs: Sequence[Knob], cells: Cells) -> Table:
    rows = []
    for values, estimate in cells.items():
        asked = [knob.text(value) for knob, value in zip(knobs, values, strict=True)]
        if estimate is None:
            rows.append([*asked, "-", "-", "-"])
        else:
            figures = grouped(cluster_speed(estimate)), gib(estimate.memory.device_bytes)
            rows.append([*asked, *figures, layout_text(estimate.layout)])
    headers = [*(knob.label for knob in knobs), "tokens/s", "GiB", "layout"]
    return Table(headers=headers, rows=rows, text_columns=frozenset({len(headers) - 1}))
