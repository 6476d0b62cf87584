"""A ranking for people: the fastest layout in words, a row for each layout, what the numbers rest on.

A line that is too short for all columns loses those that others tell (`Column.spare`), the highest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simulator.cost.pricing.estimate import Estimate
from simulator.question.frameworks.profiles import PROFILES
from simulator.question.scenario.layout import FIELDS, Layout
from simulator.question.units import to_gib
from simulator.search.result import Ranking
from simulator.show.answers.run import TrainingRun
from simulator.show.report.estimate import (
    MORE_OF_NOTHING,
    NEXT_OF_RANKING,
    assumed_lines,
    basis_line,
    brief_layout,
    defaults_line,
    fastest_line,
    fp8_line,
    half_width_text,
    launch_block,
    more_line,
    provenance_lines,
    rules_block,
    space_lines,
    stack_lines,
    switches_text,
    wrapped,
)
from simulator.show.report.presentation import Presentation, cost_text, days_text, question_block, training_run
from simulator.show.report.tables import (
    Column,
    Style,
    coded,
    columns_grid,
    fitting,
    grid,
    joined,
    narrow_line,
    paragraph,
)
from simulator.show.report.text import (
    amount,
    batch_text,
    cluster_speed,
    counts_text,
    cut_text,
    devices_text,
    elapsed_text,
    fit_text,
    gib,
    grouped,
    in_colour,
    largest_parts,
    layout_text,
    margin_text,
    mfu_text,
    percent,
    recompute_text,
    step_unit,
    teraflops,
    verdict_sentence,
    words,
)

_STARVED_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Choice:
    """Part of the layout that has a column only where it differs from the default."""

    header: str
    cell: Callable[[Layout], str]
    plain: Callable[[Estimate], str]
    """Text of the cell for the default."""
    spare: int = 0
    """Order of leaving out its column, the highest first."""


_CHOICES = (
    _Choice("schedule", lambda layout: layout.schedule, lambda _: "1f1b"),
    _Choice(
        "ZeRO", lambda layout: str(layout.zero_stage), lambda e: str(PROFILES[e.framework].limits.default_zero_stage)
    ),
    _Choice(
        "seq.\nparallel",
        lambda layout: "yes" if layout.sequence_parallel else "no",
        lambda e: "yes" if e.layout.tensor_parallel > 1 else "no",
    ),
    _Choice("offload", lambda layout: layout.offload, lambda _: "none"),
    _Choice("layers by\nstage", cut_text, lambda _: "even", spare=55),
)


def _exchange(estimate: Estimate) -> str:
    dispatch = estimate.options.get("expert_dispatch")
    return f"{dispatch} overlapped" if dispatch else "-"


def ranking_table(ranking: Ranking, presentation: Presentation, style: Style) -> str:
    """Return the ranking for people: question, table, and what to know about it."""
    blocks = []
    if presentation.verbosity >= 0:
        blocks.append(question_block(ranking_question(ranking), presentation, style))
    if not ranking.estimates:
        blocks.append(_nothing_fits(ranking, presentation, style))
        if presentation.verbosity >= 0:
            lines = [*_counts_line(ranking), *map(basis_line, _priced(ranking)[:1]), MORE_OF_NOTHING]
            if presentation.verbosity > 0:
                lines = list(ranking_footer(ranking, presentation))
            blocks.append(paragraph(wrapped(lines, presentation, style), style))
        return "\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n"
    best = ranking.estimates[0]
    columns, legend = _fitted(ranking.estimates, presentation, style)
    if presentation.verbosity >= 0:
        answer = [*fewest_lines(ranking, presentation), fastest_line(best, presentation)]
        answer += [*equal_lines(ranking), *list(_risky_lines(ranking))[:1]]
        blocks.append(paragraph(wrapped(answer, presentation, style), style))
    blocks.append("\n".join([columns_grid(columns, style).rstrip("\n"), *wrapped(legend, presentation, style)]))
    if presentation.verbosity >= 0:
        blocks.append(launch_block(best, style, ranking))
        lines = [basis_line(best), more_line(ranking), NEXT_OF_RANKING]
        if presentation.verbosity > 0:
            lines = list(ranking_footer(ranking, presentation))
        blocks.append(paragraph(wrapped(lines, presentation, style), style))
    return "\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n"


def ranking_question(ranking: Ranking) -> str:
    """Return the question, on one line."""
    query = ranking.query
    text = f"{query.get('model')} on {_cluster(ranking)}: {query.get('precision')}"
    if query.get("lora_rank"):
        text += f", LoRA of rank {query['lora_rank']}"
    batch = batch_text(query.get("global_batch_size"), query.get("seq_length"))
    framework = str(query.get("framework"))
    if query.get("stack"):
        release = next((estimate.provenance.release for estimate in _priced(ranking)), "")
        framework = switches_text(str(query["stack"]), framework, release)
    return f"{text}, {batch}, {framework}"


def _cluster(ranking: Ranking) -> str:
    query = ranking.query
    priced = _priced(ranking)
    devices = query.get("devices") or (priced[0].devices if priced else None)
    nodes = query.get("nodes")
    text = str(query.get("hardware"))
    if isinstance(nodes, int) and nodes:
        text = f"{grouped(nodes)} node{'' if nodes == 1 else 's'} of {text}"
    return f"{text} ({devices_text(devices)})" if isinstance(devices, int) and devices else text


def _priced(ranking: Ranking) -> tuple[Estimate, ...]:
    return (*ranking.estimates, *ranking.risky, *ranking.starved, *filter(None, [ranking.nearest]))


def _width(presentation: Presentation, style: Style) -> int | None:
    return presentation.width if style == "table" else None


def _fitted(estimates: Sequence[Estimate], presentation: Presentation, style: Style) -> tuple[list[Column], list[str]]:
    """Return the columns that fit, and the meaning of codes.

    Before figures are left out, columns of sizes are joined and long texts become codes.
    """
    width = _width(presentation, style)
    sizes, others = (
        list(_size_columns(estimates)),
        [*_text_columns(estimates), *_figure_columns(estimates, presentation)],
    )
    shown, left_out = fitting([*sizes, *others], width)
    legend: list[str] = []
    for longest, close in _NARROWER:
        short = [coded(c, c.name[0].upper(), longest) if c.is_text else (c, []) for c in others]
        narrow, gone = fitting([*([joined(sizes)] if close else sizes), *(column for column, _ in short)], width)
        if _needed(gone) < _needed(left_out):
            shown, left_out, headers = narrow, gone, {column.header for column in narrow}
            legend = [line for column, lines in short if column.header in headers for line in lines]
    return shown, [*legend, *(narrow_line(left_out) if presentation.verbosity > 0 else ())]


def _needed(columns: Sequence[Column]) -> int:
    return sum(0 < column.spare < _NEEDED for column in columns)


_NARROWER = ((10, False), (5, False), (10, True), (5, True))
"""Ways to leave room for figures, the first that does: characters of a text beyond which it is a code, sizes close."""
_NEEDED = 50
"""Order of leaving out a column that every ranking should show."""


_ALWAYS = frozenset({"tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size"})
"""Sizes whose column is never left out."""


def _size_columns(estimates: Sequence[Estimate]) -> Iterator[Column]:
    yield Column(header="#", cells=tuple(str(rank) for rank in range(1, len(estimates) + 1)))
    for field in FIELDS:
        cells = tuple(str(getattr(e.layout, field.name)) for e in estimates)
        if field.group == "size" and (field.name in _ALWAYS or set(cells) != {"1"}):
            yield Column(header=field.label, cells=cells)


def _text_columns(estimates: Sequence[Estimate]) -> Iterator[Column]:
    policies = tuple(recompute_text(e.layout) for e in estimates)
    yield Column(header="re-\ncomp.", cells=policies, is_text=True, spare=_PLAIN if set(policies) == {"none"} else 0)
    for choice in _CHOICES:
        if any(choice.cell(e.layout) != choice.plain(e) for e in estimates):
            cells = tuple(choice.cell(e.layout) for e in estimates)
            yield Column(header=choice.header, cells=cells, is_text=True, spare=choice.spare)
    if any(estimate.options for estimate in estimates):
        ways = tuple(map(_exchange, estimates))
        yield Column(header="ex-\nch.", cells=ways, is_text=True, spare=_PLAIN if len(set(ways)) == 1 else 0)


_PLAIN = 75
"""Order of leaving out a column with one value for all layouts: after figures that follow from others."""


def _figure_columns(estimates: Sequence[Estimate], presentation: Presentation) -> Iterator[Column]:
    def column(header: str, cell: Callable[[Estimate], str], spare: int, *, is_text: bool = False) -> Column:
        return Column(header=header, cells=tuple(map(cell, estimates)), is_text=is_text, spare=spare)

    unit, per_second = step_unit(max(e.throughput.step_seconds for e in estimates))
    # Days, if asked for, stand for the speed.
    spare = 0 if presentation.train_tokens is None else 8
    fastest = max(map(cluster_speed, estimates)) or 1.0
    speed = column("tokens/s", lambda e: grouped(cluster_speed(e)), spare)
    yield speed._replace(bars=tuple(cluster_speed(e) / fastest for e in estimates))
    if any(estimate.throughput.interval_seconds is not None for estimate in estimates):
        yield column("±\n%", lambda e: half_width_text(e.throughput.step_seconds, e.throughput.interval_seconds), 40)
    yield column("tokens/s\n/device", lambda e: amount(e.throughput.tokens_per_second_per_device), 85)
    yield column("TFLOPS\n/device", lambda e: teraflops(e.throughput.flops_per_second_per_device), 80)
    yield column("MFU\n%", lambda e: mfu_text(e.throughput.mfu), 20)
    yield column(f"step\n{unit}", lambda e: amount(e.throughput.step_seconds * per_second), 60)
    need = column("GiB", lambda e: f"{to_gib(e.memory.device_bytes):.1f}", 15)
    yield need._replace(bars=tuple(e.memory.device_bytes / e.memory.capacity_bytes for e in estimates))
    yield column("spare\nGiB", lambda e: f"{to_gib(e.memory.headroom_bytes):.1f}", 45)
    if any(estimate.memory.fit_probability is not None for estimate in estimates):
        yield column("fit\n%", lambda e: in_colour(_fit(e), e.verdict, colour=presentation.colour), 10)
    if presentation.train_tokens is not None:
        yield column("train\ndays", lambda e: _run_text(e, presentation, days_text), 2)
        if presentation.price_per_device_hour is not None:
            yield column("train\ncost", lambda e: _run_text(e, presentation, cost_text), 4)


def _fit(estimate: Estimate) -> str:
    return fit_text(estimate).replace("> ", ">")


def _run_text(estimate: Estimate, presentation: Presentation, shown: Callable[[TrainingRun], str]) -> str:
    run = training_run(estimate, presentation)
    return "-" if run is None else shown(run)


def _nothing_fits(ranking: Ranking, presentation: Presentation, style: Style) -> str:
    blocks = [paragraph(wrapped(miss_lines(ranking, presentation), presentation, style), style)]
    if ranking.reasons:
        blocks.append(rules_block(ranking.reasons, "of a layout it dropped", presentation, style))
    if ranking.remedies:
        headers, cells = remedies_cells(ranking)
        blocks.append(grid(headers, cells, style, text_columns=[0]))
    else:
        blocks[-1] += "\n" * (1 + bool(ranking.reasons)) + "No single change that was tried makes it fit."
    return "\n\n".join(blocks)


def miss_lines(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield the margin of the nearest layout, or why there is none."""
    nearest, fewest = ranking.nearest, ranking.fewest
    searched = "" if fewest is None else f" on up to {grouped(fewest.most_nodes)} nodes"
    if ranking.risky:
        asked = percent(float(str(ranking.query.get("min_fit_probability"))))
        likeliest = max(ranking.risky, key=lambda estimate: estimate.memory.fit_probability or 0.0)
        yield (
            f"Nothing is likely enough to fit{searched}: {asked} % is asked for (--min-fit-probability). "
            f"Of the fastest that may fit, the likeliest: {layout_text(likeliest.layout)}, fits with "
            f"{fit_text(likeliest)} %"
        )
        return
    if nearest is None:
        some = "every layout that keeps the rules is too near capacity"
        yield f"Nothing fits{searched}: {some if ranking.starved else 'no layout keeps the rules'}."
        return
    parts = ", ".join(f"{words(name)} {gib(size)}" for name, size in largest_parts(nearest.memory.parts_bytes))
    where = "" if fewest is None else f", on {grouped(fewest.ranked_nodes)}"
    yield f"Nothing fits{searched}. Nearest miss{where}: {layout_text(nearest.layout)}"
    yield verdict_sentence(nearest, colour=presentation.colour)
    yield f"largest parts (GiB): {parts}"


def remedies_cells(ranking: Ranking) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of changes that would make a layout fit."""
    rows = [
        [
            remedy.change,
            gib(remedy.estimate.memory.device_bytes),
            gib(remedy.estimate.memory.headroom_bytes),
            teraflops(remedy.estimate.throughput.flops_per_second_per_device),
        ]
        for remedy in ranking.remedies
    ]
    return ["what would make it fit", "memory\nGiB", "headroom\nGiB", "TFLOPS\n/device"], rows


def ranking_footer(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield the extent of the search, and the sources of the numbers."""
    yield from _counts_line(ranking)
    yield from _risky_lines(ranking)
    yield from _starved_lines(ranking, presentation)
    yield from fp8_line(ranking, presentation)
    yield from stack_lines(ranking)
    yield from defaults_line({name: ranking.query.get(name) for name in ranking.defaults})
    yield from space_lines(ranking, presentation)
    if priced := _priced(ranking):
        yield from assumed_lines(priced[0])
        yield from provenance_lines(priced[0], presentation)


def fewest_lines(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield the fewest nodes that suffice, where they were searched."""
    fewest, run = ranking.fewest, training_run(ranking.estimates[0], presentation)
    if fewest is None:
        return
    few, first = (
        f"{grouped(nodes or 0)} node{'' if nodes == 1 else 's'}" for nodes in (fewest.nodes, fewest.fitting_nodes)
    )
    if fewest.deadline_days is None or run is None:
        yield f"Fewest that fit: {few}."
        return
    limit = f"{fewest.deadline_days:g} days"
    if fewest.nodes is None:
        near = f"{grouped(fewest.ranked_nodes)} take {days_text(run)} days"
        yield f"Nothing is in time ({limit}) on up to {grouped(fewest.most_nodes)} nodes: {near}. {first} would fit."
        return
    from simulator.show.answers.plan import limit_check  # noqa: PLC0415  start-up time
    from simulator.show.report.plan import limit_text  # noqa: PLC0415  start-up time

    sure = limit_text(limit_check(run.days, run.days_interval, fewest.deadline_days))
    yield f"Fewest in {limit}: {few}, {days_text(run)} days (in time: {sure}). {first} would fit."


def equal_lines(ranking: Ranking) -> Iterator[str]:
    """Yield the rows that may be as fast as the first, and the surer ones of them."""
    if not ranking.equal:
        return
    first, last = ranking.equal[0] + 1, ranking.equal[-1] + 1
    in_a_row = last - first == len(ranking.equal) - 1 > 1
    rows = f"{first} to {last}" if in_a_row else ", ".join(str(position + 1) for position in ranking.equal)
    text = f"As fast within what is known: row{'s' if len(ranking.equal) > 1 else ''} {rows}"
    if ranking.surer is not None:
        surer = ranking.estimates[ranking.surer]
        speed = surer.throughput
        known = f"± {half_width_text(speed.step_seconds, speed.interval_seconds)} %, fits {fit_text(surer)} %"
        text += f"; surer: row {ranking.surer + 1} ({known})"
    yield f"{text}."


def _counts_line(ranking: Ranking) -> Iterator[str]:
    counts = ranking.counts
    looked_at = f"{grouped(counts.evaluated)} layouts in {elapsed_text(counts.elapsed_seconds)}"
    text = f"{looked_at}: {grouped(counts.feasible)} fit"
    rejected = counts_text(counts.rejected)
    yield f"{text}; rejected: {rejected}." if rejected else f"{text}."


def _risky_lines(ranking: Ranking) -> Iterator[str]:
    """Yield layouts faster than the best recommended one, and why they are not recommended."""
    asked = ranking.query.get("min_fit_probability")
    best = ranking.estimates[0].throughput.step_seconds if ranking.estimates else math.inf
    for estimate in ranking.risky:
        if estimate.throughput.step_seconds * (1.0 + _LEAST_GAIN) < best:
            gain = percent(best / estimate.throughput.step_seconds - 1.0) if math.isfinite(best) else ""
            faster = f"{gain} % faster, " if gain else ""
            chance = f"fits with {fit_text(estimate)} %, {percent(float(str(asked)))} % is asked for"
            layout = brief_layout(estimate.layout, estimate.framework)
            yield f"Risky, not recommended: {layout}: {faster}{chance}."


_LEAST_GAIN = 0.01
"""Smallest relative gain of speed for which a layout that may not fit is named."""


def _starved_lines(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    limit = len(ranking.starved) if presentation.verbosity > 0 else _STARVED_SHOWN
    for estimate in ranking.starved[:limit]:
        speed = teraflops(estimate.throughput.flops_per_second_per_device)
        margin = margin_text(estimate.memory.headroom_bytes)
        yield (
            f"Too near capacity, not recommended: {layout_text(estimate.layout)}: {margin}, "
            f"{speed} TFLOPS/device if it keeps pace."
        )
