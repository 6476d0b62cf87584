"""Pages of answers: an estimate with its curves, a ranking with a panel for each layout or with sliders, and others.

Each takes the answer and its presentation, and raises UnsupportedError where plotly is not installed. Other questions
that a page answers (another sequence length, a slider's position) are priced here; the browser computes no figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from itertools import chain, product, takewhile
from math import prod
from typing import Any, NamedTuple

from simulator.answers.cases import case_of, priceable, question_model
from simulator.answers.compare import Comparison, PartDifference
from simulator.answers.explain import Explanation
from simulator.answers.plan import Plan
from simulator.answers.ranking import estimate_of, fastest, feasible, query_of, recommended_among
from simulator.answers.run import estimate_command
from simulator.answers.timeline import timeline
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import SimulateError, one_line
from simulator.evidence.calibration.own import JudgedRun, OwnError
from simulator.question.origin import ARGUMENT
from simulator.question.question import Question
from simulator.question.scenario.inputs import MOST_DEVICES, MOST_TOKENS
from simulator.question.scenario.layout import MICRO_BATCH_SIZES
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.units import GIB
from simulator.recipes.check.verdict import Checked, Checks
from simulator.records import Record, replace
from simulator.search.rank import fitting
from simulator.search.space import MIN_FIT_PROBABILITY, Ranking, Space
from simulator.show.pages import figures as draw
from simulator.show.pages.figures import Dot, PlotlyFigure
from simulator.show.pages.page import PageSection, Table, columns_table, figure_box, page_html
from simulator.show.report import compare
from simulator.show.report import estimate as single
from simulator.show.report import ranking as ranks
from simulator.show.report import text as say
from simulator.show.report.calibration import class_sections, own_sections, row_sections
from simulator.show.report.check import HEADERS, TEXTS, changed_line, detail_lines, summary_row, tally, verdict_line
from simulator.show.report.listing import SpecListing, listing_columns
from simulator.show.report.plan import availability_lines, foundation_lines, left_out_lines, plan_answer, plan_columns
from simulator.show.report.presentation import Presentation, Section

MOST_DOTS = 1000
"""Most layouts that a page shows as dots with their panels, beside those of the ranking's table."""
_SEQUENCES = (2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
STEP_ABOUT = "Waterfall from the peak of the device to the MFU: what each part of the step takes."
MEMORY_ABOUT = "Stacked bars: memory of every pipeline rank by part, with a line at what a framework can use."

Points = list[tuple[float, Estimate | None]]


class Curve(NamedTuple):
    """A question over the values of one input."""

    axis: str
    """Title of the axis: the input in words."""
    values: Sequence[int]
    price: Callable[[int], Estimate | None]
    """Estimates a value; gives None or raises SimulateError where there is no estimate."""


def estimate_page(estimate: Estimate, shown: Presentation) -> str:
    """Return the page of one layout, explained if it does not fit. Raises UnsupportedError without plotly."""
    layout, explained = estimate.layout, shown.explanation
    question = shown.question.with_layout(layout)
    figures = {"memory": draw.memory_figure(estimate), "step": draw.step_figure(estimate)}

    def of_batch(size: int) -> Estimate | None:
        priced = _estimated(question.with_layout(replace(layout, micro_batch_size=size)))
        return None if priced.violations else priced

    lengths = sorted({*_SEQUENCES, estimate.seq_length})
    sizes = sorted({*MICRO_BATCH_SIZES, layout.micro_batch_size})
    curves = {
        "sequence": Curve("sequence length", lengths, lambda size: _estimated(question.changed(seq_length=size))),
        "micro-batch": Curve("micro batch size", sizes, of_batch),
    }
    points = _priced(curves, shown)
    usable = estimate.memory.capacity_bytes
    figures |= {name: draw.curve_figure(points[name], curve.axis, usable) for name, curve in curves.items()}
    memory = columns_table(single.memory_columns(estimate, estimate.memory.stages, after_step=True))
    step = Table(["part", "% of the peak"], [[name, f"{percent:.2f}"] for name, percent in draw.peak_to_mfu(estimate)])
    title = "Where the step goes, from peak to MFU"
    sections = [
        PageSection("Memory by stage", (), "memory", MEMORY_ABOUT, memory, folded=True),
        PageSection(title, [f"{say.both_mfu_text(estimate.throughput)}."], "step", STEP_ABOUT, step, folded=True),
        *(_explanation_sections(explained) if explained is not None else ()),
        *_timeline_sections(estimate, figures),
        *_curve_sections(curves, points, "the same layout; what breaks a rule leaves a gap"),
        PageSection("Speed", table=Table(["figure", "value"], single.speed_rows(estimate, shown))),
    ]
    answer = say.verdict_sentence(estimate, colour=False)
    speed = [] if estimate.verdict == "refused" else [f"{single.speed_sentence(estimate, shown)}"]
    lead = " ".join(f"{line}." for line in (answer, *speed, say.sharded_layout_text(layout), *say.need_lines(estimate)))
    lead = " ".join([lead, *say.caution_lines(estimate)])
    notes = [*single.estimate_footer(estimate, replace(shown, verbosity=1)), *answer_sources(estimate, shown)]
    return page_html(shown, single.estimate_question(estimate), lead, sections, figures, notes=notes)


def ranking_page(ranking: Ranking, shown: Presentation) -> str:
    """Return the page of a ranking. Raises UnsupportedError without plotly."""
    title, whole = ranks.ranking_question(ranking), replace(shown, verbosity=1, colour=False)
    estimates = ranking.estimates or ranking.risky or ranking.starved or tuple(filter(None, [ranking.nearest]))
    if not estimates:
        lead, *notes = [*ranks.miss_lines(ranking, whole), *ranks.ranking_footer(ranking, whole)]
        return page_html(shown, title, lead, (), {}, notes=notes)
    layouts = fitting(query_of(shown.question, shown.space, MIN_FIT_PROBABILITY))
    dots, panels = _dots(ranking, estimates, shown, feasible(layouts, MOST_DOTS))
    curves = dict(_ranking_curves(ranking, estimates[0], shown, partial(recommended_among, layouts)))
    points = _priced(curves, shown)
    usable = estimates[0].memory.capacity_bytes
    figures: dict[str, PlotlyFigure] = {"pareto": draw.pareto_figure(dots, usable)}
    curves = {name: curve for name, curve in curves.items() if any(e for _, e in points[name])}
    figures |= {name: draw.curve_figure(points[name], curve.axis, usable) for name, curve in curves.items()}
    how = "Press a number to see its panels; press a heading to sort."
    about = "Scatter of layouts: memory of the fullest device against tokens per second; a line at the capacity."
    choose = (
        f'<p><label>Layout <input id="choose" type="number" min="1" max="{len(panels)}" value="1"></label> of '
        f"{say.grouped(len(panels))}: those of the table first, then from the fastest.</p>{panel_boxes()}"
    )
    remedies = Table(*ranks.remedies_cells(ranking))
    table = columns_table(
        ranks.ranking_columns(estimates, whole), range(len(estimates)), ("#", "tokens/s", "GiB", "fit %")
    )
    sections = [
        PageSection("Layouts", [how], table=table),
        PageSection("Speed against memory", [_drawn(len(panels), ranking)], "pareto", about),
        PageSection("One layout", html=choose),
        *([PageSection("What would help", table=remedies)] if ranking.remedies else []),
        *_curve_sections(curves, points, "the best layout of each; where none is likely enough to fit there is a gap"),
    ]
    best = [ranks.fastest_line(estimates[0], shown), *say.caution_lines(estimates[0]), *ranks.equal_lines(ranking)]
    lead = " ".join(best) if ranking.estimates else "; ".join(ranks.miss_lines(ranking, whole))
    notes = [*ranks.ranking_footer(ranking, whole), *answer_sources(estimates[0], shown)]
    return page_html(shown, title, lead, sections, figures, layouts=panels, notes=notes)


def _explanation_sections(explanation: Explanation) -> Iterator[PageSection]:
    """Yield the causes, the changes that help, the longest sequence."""
    yield PageSection("Why", lines=[f"{cause}." for cause in explanation.causes])
    if explanation.changes:
        yield PageSection(single.changes_title(explanation), table=Table(*single.changes_cells(explanation)))
    yield PageSection("How much this layout takes", [single.longest_text(explanation)])


def _drawn(dots: int, ranking: Ranking) -> str:
    """Return a sentence on how many of the layouts that fit are drawn, and which."""
    feasible = ranking.counts.feasible
    which = f"All {say.grouped(feasible)} layouts that fit"
    if not feasible:
        which = "Nothing fits: what is drawn comes nearest"
    elif dots < feasible:
        drawn = "all that no other beats in both, the fastest of each split, and of the others an even share by speed"
        which = f"{say.grouped(dots)} of {say.grouped(feasible)} layouts that fit: {drawn}"
    return f"{which}; press a dot to see its panels."


def _dots(
    ranking: Ranking, estimates: Sequence[Estimate], shown: Presentation, layouts: Sequence[Estimate]
) -> tuple[dict[str, list[Dot]], list[dict[str, Any]]]:
    """Return dots by group (table, fitting, risky) and their panels."""
    risky = [estimate for estimate in ranking.risky if estimate not in estimates]
    known = {(estimate.layout, tuple(estimate.options)) for estimate in (*estimates, *risky)}
    panel_of = partial(_panel, has_experts=question_model(shown.question).is_moe)
    first = "recommended" if ranking.estimates else "nearest"
    others = [priced for priced in layouts if (priced.layout, tuple(priced.options)) not in known]
    groups: dict[str, list[Dot]] = {}
    panels: list[dict[str, Any]] = []
    for name, priced in ((first, estimates), ("fits", others), ("risky", risky)):
        groups[name] = []
        for estimate in priced:
            groups[name].append(Dot(len(panels), estimate.memory.device_bytes, say.cluster_speed(estimate)))
            panels.append(panel_of(estimate, say.verdict_sentence(estimate, colour=False)))
    return groups, panels


def _panel(estimate: Estimate, verdict: str, *, has_experts: bool) -> dict[str, Any]:
    """Return the panel of one layout: texts, and the figures of its memory and of its step."""
    title, command = say.sharded_layout_text(estimate.layout), estimate_command(estimate, has_experts=has_experts)
    drawn = {"memory": draw.memory_figure(estimate), "step": draw.step_figure(estimate)}
    return {"title": title, "verdict": verdict, "command": command, **drawn}


def _estimated(question: Question) -> Estimate:
    return estimate_of(priceable(case_of(question)))


def _priced(curves: Mapping[str, Curve], shown: Presentation) -> dict[str, Points]:
    """Return the points of every curve; the estimate is None for a question without an answer."""
    points: dict[str, Points] = {name: [] for name in curves}
    questions = [(name, curve, value) for name, curve in curves.items() for value in curve.values]
    for number, (name, curve, value) in enumerate(questions, start=1):
        estimate = None
        with suppress(SimulateError):
            estimate = curve.price(value)
        points[name].append((value, estimate))
        if shown.progress is not None:
            shown.progress(number, len(questions))
    return points


def _ranking_curves(
    ranking: Ranking, first: Estimate, shown: Presentation, of_batch: Callable[[int], Estimate | None]
) -> Iterator[tuple[str, Curve]]:
    """Yield curves of the best layout over sequence length, nodes and micro batch size."""
    question, space = shown.question, shown.space or Space()
    known = ranking.fewest is None and ranking.query["min_fit_probability"] == MIN_FIT_PROBABILITY
    best = ranking.estimates[0] if ranking.estimates and known else None

    def curve(axis: str, values: Sequence[int], answered: int | None, price: Callable[[int], Estimate | None]) -> Curve:
        return Curve(axis, values, lambda value: best if best is not None and value == answered else price(value))

    def of(**turned: Any) -> Estimate | None:
        return fastest(question.changed(**turned), space=space).recommended

    lengths, length = sorted({*_SEQUENCES, first.seq_length}), first.seq_length
    yield "sequence", curve("sequence length", lengths, length, lambda value: of(seq_length=value))
    nodes = ranking.query.get("nodes")
    if isinstance(nodes, int) and ":" not in str(ranking.query["hardware"]):
        sizes = sorted({max(1, nodes // 4), max(1, nodes // 2), nodes, 2 * nodes, 4 * nodes})
        yield "nodes", curve("nodes", sizes, nodes, lambda size: of(nodes=size))
    batches = space.micro_batch_size or MICRO_BATCH_SIZES
    yield "micro-batch", curve("micro batch size", batches, first.layout.micro_batch_size, of_batch)


def _figure_cells(estimate: Estimate | None) -> list[str]:
    """Return speed, memory and layout; dashes where there is no estimate."""
    if estimate is None:
        return ["-", "-", "-"]
    return [
        say.grouped(say.cluster_speed(estimate)),
        say.gib(estimate.memory.device_bytes),
        say.layout_text(estimate.layout),
    ]


def _curve_sections(curves: Mapping[str, Curve], points: Mapping[str, Points], whose: str) -> Iterator[PageSection]:
    text = f"Speed and memory of {whose}. The line is what a framework can use."
    for name, curve in curves.items():
        rows = [[f"{value:,.0f}", *_figure_cells(estimate)] for value, estimate in points[name]]
        table = Table([curve.axis, "tokens/s", "GiB", "layout"], rows, frozenset({3}))
        about = f"Curves of tokens per second and memory over {curve.axis}."
        yield PageSection(f"Over {curve.axis}", [text], name, about, table, folded=True)


def _timeline_sections(estimate: Estimate, figures: dict[str, PlotlyFigure]) -> Iterator[PageSection]:
    """Yield the schedule, of enough micro batches to see the pipeline fill, run and drain."""
    if estimate.violations:
        return
    ranks = estimate.layout.pipeline_parallel
    passes = timeline(estimate, 3 * ranks)
    figures |= {"timeline": draw.timeline_figure(passes), "memory-over-step": draw.memory_over_step_figure(passes)}
    count = sum(event.ran.kind == "forward" and event.ran.chunk == 0 for event in passes.passes.events[0])
    every = estimate.global_batch_size // (estimate.layout.micro_batch_size * estimate.layout.data_parallel)
    drawn = "all" if count == every else f"the first {count}"
    text = f"Forward and backward passes of {drawn} of {say.grouped(every)} micro batches, then the pipeline drains."
    about = "Bars by pipeline rank: when each forward and backward pass starts and ends."
    yield PageSection("Pipeline timeline", [text], "timeline", about)
    which = f" of the first {draw.MOST_RANKS} ranks" if ranks > draw.MOST_RANKS else ""
    text = f"What devices{which} need while these passes run; the line is what a framework can use."
    about = "Lines by pipeline rank: GiB that a device needs over the seconds of a step."
    yield PageSection("Memory over the step", [text], "memory-over-step", about)


def panel_boxes() -> str:
    """Return the elements in which the script shows one layout."""
    return (
        '<p id="chosen" class="lead" aria-live="polite"></p><p id="chosen-verdict"></p><div class="panels" id="panels">'
        f"{figure_box('memory', MEMORY_ABOUT, drawn=False)}{figure_box('step', STEP_ABOUT, drawn=False)}</div>"
        '<pre id="chosen-command"></pre>'
    )


def answer_sources(estimate: Estimate, shown: Presentation) -> Iterator[str]:
    """Yield the sources of the model and the hardware of a page."""
    yield from sources("model", question_model(shown.question))
    hardware = str(shown.question.stated("hardware") or estimate.hardware)
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


class Knob(Record):
    """An input with the values of its slider, which begins at index `start`."""

    name: str
    label: str
    values: tuple[Any, ...]
    start: int

    def text(self, value: Any) -> str:
        """Return the text of a value beside the slider."""
        return say.grouped(value) if isinstance(value, int) else str(value)


Cells = dict[tuple[Any, ...], Estimate | None]
"""Estimate of the best layout by the values of all knobs; None where none is likely enough to fit."""


def sliders_page(ranking: Ranking, shown: Presentation) -> str:
    """Return the page of sliders: the best layout of every combination. Raises UnsupportedError without plotly."""
    knobs = tuple(knobs_of(ranking))
    cells = _priced_cells(knobs, shown)
    panels = [_cell(values, estimate, knobs, shown) for values, estimate in cells.items()]
    detailed = replace(shown, verbosity=1, colour=False)
    best = ranking.estimates[0] if ranking.estimates else None
    headers = [*(knob.label for knob in knobs), "tokens/s", "GiB", "layout"]
    rows = [
        [*(knob.text(value) for knob, value in zip(knobs, values, strict=True)), *_figure_cells(estimate)]
        for values, estimate in cells.items()
    ]
    table = Table(headers, rows, frozenset({len(headers) - 1}))
    every = "The fastest layout that is likely enough to fit; a dash where there is none."
    sections = [
        PageSection("Knobs", html=f'<div class="knobs">{"".join(_sliders(knobs))}</div>{panel_boxes()}'),
        PageSection("Every position", [every], table=table, folded=True),
    ]
    lead = "Nothing fits as it was asked: turn the knobs." if best is None else ranks.fastest_line(best, detailed)
    notes = [*ranks.ranking_footer(ranking, detailed), *(answer_sources(best, shown) if best is not None else ())]
    return page_html(shown, ranks.ranking_question(ranking), lead, sections, {}, layouts=panels, notes=notes)


def knobs_of(ranking: Ranking) -> Iterator[Knob]:
    """Yield the inputs of a ranking's question that have a slider, with values around the question's."""
    query = ranking.query
    nodes, hardware = query.get("nodes"), str(query["hardware"])
    if isinstance(nodes, int) and ":" not in hardware:
        yield _knob("nodes", "nodes", nodes, _NODES, MOST_DEVICES // load_hardware(hardware).devices_per_node)
    yield _knob("seq_length", "sequence length", query["seq_length"], _LENGTHS, MOST_TOKENS)
    yield _knob("global_batch_size", "sequences a step", query["global_batch_size"], _BATCHES, MOST_TOKENS)
    precision = str(query["precision"])
    names = tuple(dict.fromkeys((precision, "fp8"))) if ranking.fp8 is not None else (precision,)
    yield Knob("precision", "precision", names, 0)


def _knob(name: str, label: str, value: object, factors: Sequence[float], most: int) -> Knob:
    middle = value if isinstance(value, int) else 1
    values = sorted({min(max(int(middle * factor), 1), most) for factor in factors})
    return Knob(name, label, tuple(values), values.index(middle))


def _priced_cells(knobs: Sequence[Knob], shown: Presentation) -> Cells:
    """Price all combinations of values, the last knob varying fastest."""
    cells: Cells = {}
    total = prod(len(knob.values) for knob in knobs)
    for values in product(*(knob.values for knob in knobs)):
        turned = {knob.name: value for knob, value in zip(knobs, values, strict=True)}
        question = shown.question.changed(ARGUMENT, **turned)
        cells[values] = None
        with suppress(SimulateError):
            cells[values] = fastest(question, space=shown.space).recommended
        if shown.progress is not None:
            shown.progress(len(cells), total)
    return cells


def _cell(
    values: Sequence[Any], estimate: Estimate | None, knobs: Sequence[Knob], shown: Presentation
) -> Mapping[str, Any]:
    """Return the panel of one combination of values."""
    if estimate is None:
        position = ", ".join(f"{knob.label} {knob.text(value)}" for knob, value in zip(knobs, values, strict=True))
        return {"title": "Nothing is likely enough to fit.", "verdict": position, "command": ""}
    verdict = f"{single.speed_sentence(estimate, shown)}; {say.verdict_sentence(estimate, colour=False)}"
    return _panel(estimate, verdict, has_experts=question_model(shown.question).is_moe)


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


_MOST_FIGURES = 24  # most recipes whose memory a page shows by stage and part, failed ones first
_LONG = 20  # most rows of a table that is not folded away


def plan_page(plan: Plan, shown: Presentation) -> str:
    """Return the page of a plan."""
    figures: dict[str, PlotlyFigure] = {}
    lead, *others = plan_answer(plan)
    sections = [PageSection("What to know of it", lines=others)] if others else []
    if plan.priced:
        figures["offers"] = draw.plan_figure(plan.priced, plan.deadline_days, plan.budget)
        text = "Bars are 90 % intervals, numbers are nodes, lines are the limits; nothing beats a diamond in both."
        about = "Scatter of choices by offer: days against cost with 90 % intervals; lines at the limits."
        table = columns_table(plan_columns(plan), first=("offer", "nodes", "days", "cost", "in time", "in budget"))
        sections.append(PageSection("Days and cost", text=[text], figure="offers", about=about, table=table))
    if out := list(left_out_lines(plan)):
        sections.append(PageSection("Left out", lines=out))
    notes = [*availability_lines(plan.availability), *single.defaults_line(shown.defaults), *foundation_lines(plan)]
    notes += sources("model", load_model(plan.model))
    for hardware in dict.fromkeys(offer.hardware for offer in plan.offers):
        notes += sources("hardware", load_hardware(hardware))
    title = f"{plan.model}: where to train {say.count_text(plan.train_tokens)} tokens"
    return page_html(shown, title, lead, sections, figures, notes=notes)


def compare_page(comparison: Comparison, shown: Presentation) -> str:
    """Return the page of a comparison, with its scenarios' sources."""
    unit, per_second = compare.comparison_unit(comparison)
    figures = {
        "memory": draw.change_figure(comparison.memory, 1.0 / GIB, "GiB"),
        "step": draw.change_figure(comparison.step, per_second, unit),
    }
    both = zip("AB", comparison.names, (comparison.first, comparison.second), strict=True)
    inputs = Table(compare.INPUTS, compare.input_rows(comparison), frozenset({0, 1, 2}))
    idle = list(compare.idle_lines(comparison)) if comparison.inputs else ["None: both ask the same."]
    title = "Inputs that differ, and what each does to A alone"
    seconds = compare.part_rows(comparison.step, lambda value: f"{value * per_second:.3f}")
    size = compare.part_rows(comparison.memory, say.gib)
    sections = [
        PageSection("Figures", table=Table(compare.FIGURES, compare.figure_rows(comparison, colour=False))),
        PageSection(
            "A and B", lines=[f"{letter}: {name} - {compare.priced_text(priced)}" for letter, name, priced in both]
        ),
    ]
    notes = (*compare.compare_notes(comparison, shown), *spec_sources(shown.scenarios))
    if broken := compare.refused_rules(comparison):
        rules = [f"{each.rule}: {each.message}; {each.fix}" for each in broken]
        sections.append(PageSection("Rules broken", lines=rules))
        return page_html(shown, "A against B", compare.headline(comparison), sections, {}, notes=notes)
    sections += [
        PageSection(title, text=idle, table=inputs if inputs.rows else None),
        _parts("Memory of the fullest device, from A to B", "memory", comparison.memory, size),
        _parts(f"Time of one step, {unit}, from A to B", "step", comparison.step, seconds),
    ]
    return page_html(shown, "A against B", compare.headline(comparison), sections, figures, notes=notes)


def _parts(title: str, figure: str, parts: Sequence[PartDifference], rows: Sequence[Sequence[str]]) -> PageSection:
    changed = sum(part.first != part.second for part in parts)
    about = f"Waterfall from A over {changed} parts that differ to B, as in the table."
    return PageSection(title, figure=figure, about=about, table=Table(compare.PARTS, rows), folded=True)


_MOST_DRAWN = 12  # most recipes of a page with figures: the library that draws them takes 5 MB of it


def check_page(checks: Checks, shown: Presentation) -> str:
    """Return the page of verdicts: what failed first, what trains nothing last."""
    figures: dict[str, PlotlyFigure] = {}
    results = sorted(checks.results, key=lambda result: (result.passed, result.estimate is None))
    sections = [PageSection("Verdicts", table=Table(HEADERS, [*map(summary_row, results)], frozenset(TEXTS)))]
    priced = [(r, r.estimate) for r in results if r.estimate is not None and r.outcome != "refused"]
    if priced and len(results) <= _MOST_DRAWN:
        figures["recipes"] = draw.verdict_figure([(one_line(r.name), r.outcome, estimate) for r, estimate in priced])
        about = (
            "Bars: memory of each recipe's fullest device in per cent of what is usable, and intervals; grey where the "
            "verdict is open."
        )
        sections.append(PageSection("Need against what is usable", figure="recipes", about=about))
    needs = {id(result): draw.memory_figure(estimate) for result, estimate in priced[: _MOST_FIGURES * bool(figures)]}
    for number, result in enumerate(results):
        name = f"recipe-{number}" if id(result) in needs else ""
        if name:
            figures[name] = needs[id(result)]
        sections.append(_recipe(result, name))
    if checks.changed is not None:
        lines = [one_line(changed_line(change)) for change in checks.changed] or ["nothing changed"]
        sections.append(PageSection("Since the baseline", lines=lines))
    hardware = dict.fromkeys(result.estimate.hardware for result in results if result.estimate is not None)
    known = dict.fromkeys(f"{estimate.hardware}: {single.status_line(estimate)}" for _, estimate in priced)
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


def listing_page(listing: SpecListing, shown: Presentation) -> str:
    """Return the page of records."""
    lead, *notes = listing.notes or [f"{len(listing.records)} records."]
    sections = [PageSection("All", table=columns_table(listing_columns(listing).values()))] if listing.records else []
    return page_html(shown, listing.title or "What is shipped", lead, sections, {}, notes=notes)


def accuracy_page(judged: Sequence[JudgedRun], shown: Presentation) -> str:
    """Return the page of shipped rows."""
    sections = map(_section, chain(class_sections(judged), row_sections(judged)))
    by_source: dict[str, list[str]] = {}
    for row in judged:
        by_source.setdefault(row.source, []).append(row.row.source)
    notes = [f"rows {name}, source {_beginning(texts)}" for name, texts in by_source.items()]
    lead = f"{len(judged)} figures of measured runs."
    return page_html(shown, "Predictions against measured runs", lead, [*sections], {}, notes=notes)


def _beginning(texts: Sequence[str]) -> str:
    """Return the shared beginning of all texts in whole words, else the first text."""
    columns = zip(*(text.split(" ") for text in texts), strict=False)
    shared = " ".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, columns))
    return shared.rstrip(",;:(") or texts[0]


def own_page(errors: Sequence[OwnError], shown: Presentation) -> str:
    """Return the page of own rows before and after their calibration."""
    lead = f"{len({error.key for error in errors})} rows of your own."
    return page_html(shown, "Own rows against predictions", lead, [*map(_section, own_sections(errors))], {})


def _section(part: Section) -> PageSection:
    """Return a part of the report as a section; long tables are folded away."""
    is_table = part.headers and part.rows
    return PageSection(
        part.title,
        text=part.lines,
        table=Table(part.headers, part.rows, frozenset(part.text_columns)) if is_table else None,
        folded=len(part.rows) > _LONG,
        wide=frozenset(position for position, header in enumerate(part.headers) if header in part.wrapped),
    )
