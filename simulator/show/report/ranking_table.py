"""A ranking as a table with what a reader needs around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from simulator.cost.pricing.estimate import Estimate
from simulator.question.frameworks.profile import PROFILES
from simulator.question.scenario.layout import FIELDS, Layout
from simulator.question.scenario.settings import LayoutSetting
from simulator.search.result import Ranking
from simulator.show.report.footer import defaults_line, fp8_line, provenance_lines, space_lines
from simulator.show.report.grid import Style, grid, heading, paragraph
from simulator.show.report.presentation import Presentation, training_run
from simulator.show.report.text import (
    amount,
    counts_text,
    cut_text,
    devices_text,
    elapsed_text,
    gib,
    grouped,
    largest_parts,
    layout_text,
    margin_text,
    mfu_text,
    probability_text,
    recompute_text,
    teraflops,
    verdict_sentence,
    verdict_text,
    words,
)

_STARVED_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    cell: Callable[[Estimate], str]
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class _Choice:
    """A part of the layout that gets a column only when it says something."""

    header: str
    cell: Callable[[Layout], str]
    plain: Callable[[Estimate], str]
    """What the cell holds when the user chose nothing."""


_CHOICES = (
    _Choice("ETP", lambda layout: str(layout.expert_tensor_parallel), lambda _: "1"),
    _Choice(
        "ZeRO", lambda layout: str(layout.zero_stage), lambda e: str(PROFILES[e.framework].limits.default_zero_stage)
    ),
    _Choice(
        "seq.\nparallel",
        lambda layout: "yes" if layout.sequence_parallel else "no",
        lambda e: "yes" if e.layout.tensor_parallel > 1 else "no",
    ),
    _Choice("offload", lambda layout: layout.offload, lambda _: "none"),
    _Choice("layers by\nstage", cut_text, lambda _: "even"),
)


def ranking_table(ranking: Ranking, presentation: Presentation, style: Style) -> str:
    """Return the ranking for people: question, table, and what to know about it."""
    blocks = [heading(_question(ranking), style)] if presentation.verbosity >= 0 else []
    if ranking.estimates:
        blocks.append(_table(ranking.estimates, presentation, style))
    else:
        blocks.append(_nothing_fits(ranking, presentation, style))
    if presentation.verbosity >= 0:
        blocks.append(paragraph(_footer(ranking, presentation), style))
    return "\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n"


def _question(ranking: Ranking) -> str:
    query = ranking.query
    text = f"{query.get('model')} on {_cluster(ranking)}: {query.get('precision')}"
    if query.get("lora_rank"):
        text += f", LoRA of rank {query['lora_rank']}"
    text += f", sequence {query.get('seq_length')}, global batch {query.get('global_batch_size')}"
    return f"{text}, {query.get('framework')}"


def _cluster(ranking: Ranking) -> str:
    query = ranking.query
    priced = (*ranking.estimates, *ranking.starved, *([ranking.nearest] if ranking.nearest else []))
    devices = query.get("devices") or (priced[0].devices if priced else None)
    nodes = query.get("nodes")
    text = str(query.get("hardware"))
    if isinstance(nodes, int) and nodes:
        text = f"{grouped(nodes)} node{'' if nodes == 1 else 's'} of {text}"
    return f"{text} ({devices_text(devices)})" if isinstance(devices, int) and devices else text


def _table(estimates: tuple[Estimate, ...], presentation: Presentation, style: Style) -> str:
    columns = [*_layout_columns(estimates), *_figure_columns(estimates, presentation)]
    rows = [
        [str(rank), *(column.cell(estimate) for column in columns)] for rank, estimate in enumerate(estimates, start=1)
    ]
    text_columns = [position for position, column in enumerate(columns, start=1) if column.is_text]
    return grid(["#", *(column.header for column in columns)], rows, style, text_columns=text_columns)


def _layout_columns(estimates: tuple[Estimate, ...]) -> list[_Column]:
    columns = [_size_column(field) for field in FIELDS if field.group == "size" and field.name not in _TOLD_ELSEWHERE]
    columns.append(_Column("recompute", lambda e: recompute_text(e.layout), is_text=True))
    told = [choice for choice in _CHOICES if any(choice.cell(e.layout) != choice.plain(e) for e in estimates)]
    return columns + [_column(choice) for choice in told]


_TOLD_ELSEWHERE = frozenset({"expert_tensor_parallel"})
"""Sizes that get a column only when they say something."""


def _size_column(field: LayoutSetting) -> _Column:
    return _Column(field.label, lambda estimate: str(getattr(estimate.layout, field.name)))


def _column(choice: _Choice) -> _Column:
    return _Column(choice.header, lambda estimate: choice.cell(estimate.layout), is_text=True)


def _figure_columns(estimates: tuple[Estimate, ...], presentation: Presentation) -> Iterator[_Column]:
    yield _Column("TFLOPS\n/device", lambda e: teraflops(e.throughput.flops_per_second_per_device))
    yield _Column("MFU\n%", lambda e: mfu_text(e.throughput.mfu))
    yield _Column("tokens/s\n/device", lambda e: amount(e.throughput.tokens_per_second_per_device))
    yield _Column("step\nms", lambda e: amount(e.throughput.step_seconds * 1e3))
    yield _Column("max memory\nGiB", lambda e: gib(e.memory.device_bytes))
    yield _Column("headroom\nGiB", lambda e: gib(e.memory.headroom_bytes))
    if any(estimate.memory.fit_probability is not None for estimate in estimates):
        yield _Column("fit\n%", _fit_text)
    yield _Column("verdict", lambda e: verdict_text(e.verdict, colour=presentation.colour), is_text=True)
    if presentation.train_tokens is not None:
        yield _Column("train\ndays", lambda e: _run_text(e, presentation, "days"))
        if presentation.price_per_device_hour is not None:
            yield _Column("train\ncost", lambda e: _run_text(e, presentation, "cost"))


def _fit_text(estimate: Estimate) -> str:
    probability = estimate.memory.fit_probability
    return "-" if probability is None else probability_text(probability)


def _run_text(estimate: Estimate, presentation: Presentation, field: str) -> str:
    run = training_run(estimate, presentation)
    if run is None:
        return "-"
    return amount(run.days) if field == "days" else grouped(run.cost or 0.0)


def _nothing_fits(ranking: Ranking, presentation: Presentation, style: Style) -> str:
    blocks = ["\n".join(_miss(ranking, presentation))]
    if ranking.reasons:
        rows = [[reason.rule, reason.message, reason.fix] for reason in ranking.reasons]
        headers = ["rule", "what it says of a layout it dropped", "fix"]
        blocks.append(grid(headers, rows, style, text_columns=range(3), wrapped=headers[1:]))
    if ranking.remedies:
        blocks.append(_remedies(ranking, style))
    else:
        blocks[-1] += "\n" * (1 + bool(ranking.reasons)) + "No single change that was tried makes it fit."
    return "\n\n".join(blocks)


def _miss(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield how near the nearest layout comes, or why there is none."""
    nearest = ranking.nearest
    if nearest is None:
        some = "every layout that keeps the rules is too near capacity"
        yield f"Nothing fits: {some if ranking.starved else 'no layout keeps the rules'}."
        return
    parts = ", ".join(f"{words(name)} {gib(size)}" for name, size in largest_parts(nearest.memory.parts_bytes))
    yield f"Nothing fits. Nearest miss: {layout_text(nearest.layout)}"
    yield verdict_sentence(nearest, colour=presentation.colour)
    yield f"largest parts (GiB): {parts}"


def _remedies(ranking: Ranking, style: Style) -> str:
    rows = [
        [
            remedy.change,
            gib(remedy.estimate.memory.device_bytes),
            gib(remedy.estimate.memory.headroom_bytes),
            teraflops(remedy.estimate.throughput.flops_per_second_per_device),
        ]
        for remedy in ranking.remedies
    ]
    headers = ["what would make it fit", "memory\nGiB", "headroom\nGiB", "TFLOPS\n/device"]
    return grid(headers, rows, style, text_columns=[0])


def _footer(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    counts = ranking.counts
    looked_at = f"{grouped(counts.evaluated)} layouts in {elapsed_text(counts.elapsed_seconds)}"
    text = f"{looked_at}: {grouped(counts.feasible)} fit"
    rejected = counts_text(counts.rejected)
    yield f"{text}; rejected: {rejected}." if rejected else f"{text}."
    yield from _starved_lines(ranking, presentation)
    yield from fp8_line(ranking, presentation)
    yield from defaults_line({name: ranking.query.get(name) for name in ranking.defaults})
    yield from space_lines(ranking, presentation)
    priced = (*ranking.estimates, *ranking.starved, *([ranking.nearest] if ranking.nearest else []))
    if priced:
        yield from provenance_lines(priced[0], presentation)


def _starved_lines(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    limit = len(ranking.starved) if presentation.verbosity > 0 else _STARVED_SHOWN
    for estimate in ranking.starved[:limit]:
        speed = teraflops(estimate.throughput.flops_per_second_per_device)
        margin = margin_text(estimate.memory.headroom_bytes)
        yield (
            f"Too near capacity, not recommended: {layout_text(estimate.layout)}: {margin}, "
            f"{speed} TFLOPS/device if it keeps pace."
        )
