"""A comparison as a table: two estimates side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.show.answers.compare import Comparison, Input, PartDifference
from simulator.show.report.first_screen import wrapped
from simulator.show.report.footer import provenance_lines
from simulator.show.report.grid import Style, grid, paragraph, titled
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import (
    cluster_speed,
    devices_text,
    fit_text,
    gib,
    grouped,
    mfu_text,
    sharded_layout_text,
    step_unit,
    verdict_text,
    words,
)

FIGURES, INPUTS, PARTS = ("figure", "A", "B"), ("input", "A", "B", "GiB", "s"), ("part", "A", "B", "B less A")
"""Headers of the tables."""


def compare_table(comparison: Comparison, presentation: Presentation, style: Style) -> str:
    """Return a comparison for people."""
    full = presentation.verbosity > 0
    figures = [row for row in figure_rows(comparison, colour=presentation.colour) if full or row[0].startswith(_FIRST)]
    blocks = [
        paragraph(wrapped(list(_sides(comparison)), presentation, style), style),
        grid(FIGURES, figures, style, text_columns=[0]),
        titled("Inputs that differ, and what each does to A alone", _inputs(comparison, style), style),
        titled("Memory of the fullest device, GiB", _parts(comparison.memory, gib, style, full=full), style),
        titled(*_step(comparison, style, full=full), style),
    ]
    if presentation.verbosity >= 0:
        lines = list(compare_notes(comparison, presentation))
        blocks.append(paragraph(wrapped(lines if full else _first_notes(lines), presentation, style), style))
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


_FIRST = ("verdict", "memory", "90 %", "probability", "step", "tokens/s", "MFU")
"""Begin the figures of a first screen."""
_MOST_PARTS = 2
"""Parts of a first screen."""


def _first_notes(lines: list[str]) -> list[str]:
    """The notes of a first screen: what cannot stand alone, and how well both are known."""
    told = [line for line in lines if re.match(r"Only|([AB]: )?(Known|Assumed \w+ peak): ", line)]
    return [*told, "-v: every part, assumptions."]


def _sides(comparison: Comparison) -> Iterator[str]:
    for letter, name, priced in zip("AB", comparison.names, (comparison.first, comparison.second), strict=True):
        yield f"{letter}: {name}"
        yield f"   {side_text(priced)}"


def side_text(priced: Estimate) -> str:
    """Return what was priced on one line."""
    where = f"{priced.model} on {devices_text(priced.devices)} of {priced.hardware}, {priced.precision}"
    return f"{where}, {priced.framework}: {sharded_layout_text(priced.layout)}"


def figure_rows(comparison: Comparison, *, colour: bool) -> list[list[str]]:
    """Return the figures of A and B: name and both values."""
    pair = (comparison.first, comparison.second)
    unit, per_second = step_unit(max(e.throughput.step_seconds for e in pair))

    def interval(range_: Interval | None, scale: Callable[[float], str]) -> str:
        return "-" if range_ is None else f"{scale(range_.low)} to {scale(range_.high)}"

    def seconds(value: float) -> str:
        return f"{value * per_second:.3f}"

    return [
        ["verdict", *(verdict_text(e.verdict, colour=colour) for e in pair)],
        ["memory GiB", *(gib(e.memory.device_bytes) for e in pair)],
        ["90 % interval GiB", *(interval(e.memory.interval_bytes, gib) for e in pair)],
        ["usable GiB", *(gib(e.memory.capacity_bytes) for e in pair)],
        ["probability to fit %", *(fit_text(e) for e in pair)],
        [f"step {unit}", *(seconds(e.throughput.step_seconds) for e in pair)],
        [f"90 % interval {unit}", *(interval(e.throughput.interval_seconds, seconds) for e in pair)],
        ["tokens/s", *(grouped(cluster_speed(e)) for e in pair)],
        ["MFU %", *(mfu_text(e.throughput.mfu) for e in pair)],
    ]


def _inputs(comparison: Comparison, style: Style) -> str:
    if not comparison.inputs:
        return "None: both ask the same."
    rows = input_rows(comparison)
    table = grid(INPUTS, rows, style, text_columns=[0, 1, 2]).rstrip("\n") if rows else ""
    return "\n\n".join(block for block in (table, paragraph(list(idle_lines(comparison)), style)) if block.strip())


def input_rows(comparison: Comparison) -> list[list[str]]:
    """Return the inputs that differ: name, both values, and what B's alone does to A."""
    return [
        [
            words(differing.name),
            _short(differing.first),
            _short(differing.second),
            "only with others" if differing.memory_bytes is None else f"{_signed(differing.memory_bytes, gib)}",
            "" if differing.step_seconds is None else _signed(differing.step_seconds, _seconds),
        ]
        for differing in comparison.inputs
        if not _idle(differing)
    ]


def idle_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the inputs that differ and do nothing to A alone."""
    idle = [
        f"{words(differing.name)} ({_short(differing.first)}, {_short(differing.second)})"
        for differing in comparison.inputs
        if _idle(differing)
    ]
    if idle:
        yield f"Without effect on A alone: {', '.join(idle)}."


def _idle(differing: Input) -> bool:
    """Whether an input moves nothing that would be shown."""
    if differing.memory_bytes is None or differing.step_seconds is None:
        return False
    return not (gib(abs(differing.memory_bytes)) + _seconds(abs(differing.step_seconds))).strip("0.")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _parts(parts: Sequence[PartDifference], shown: Callable[[float], str], style: Style, *, full: bool) -> str:
    *rows, total = part_rows(parts, shown)
    if not full:
        rows = [row for row in rows if row[-1].strip("0.")][:_MOST_PARTS]
    return grid(PARTS, [*rows, total], style, text_columns=[0])


def part_rows(parts: Sequence[PartDifference], shown: Callable[[float], str]) -> list[list[str]]:
    """Return parts in both and their difference, the largest difference first, and the total."""
    ordered = sorted(parts, key=lambda part: -abs(part.second - part.first))
    rows = [[words(p.name), shown(p.first), shown(p.second), _signed(p.second - p.first, shown)] for p in ordered]
    totals = sum(p.first for p in parts), sum(p.second for p in parts)
    return [*rows, ["total", shown(totals[0]), shown(totals[1]), _signed(totals[1] - totals[0], shown)]]


def _step(comparison: Comparison, style: Style, *, full: bool) -> tuple[str, str]:
    unit, per_second = step_unit(
        max(comparison.first.throughput.step_seconds, comparison.second.throughput.step_seconds)
    )
    return f"Time of one step, {unit}", _parts(
        comparison.step, lambda value: f"{value * per_second:.3f}", style, full=full
    )


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _signed(value: float, shown: Callable[[float], str]) -> str:
    text = shown(abs(value))
    if not text.strip("0."):
        return text
    return f"{'+' if value > 0 else '-'}{text}"


def compare_notes(comparison: Comparison, presentation: Presentation) -> Iterator[str]:
    """Yield what both rest on."""
    if any(differing.memory_bytes is None for differing in comparison.inputs):
        yield "Only with others: A with this input of B alone breaks a rule, though DP and the cut follow the rest."
    both = [list(provenance_lines(priced, presentation)) for priced in (comparison.first, comparison.second)]
    yield from (line for line in both[0] if line in both[1])
    for letter, mine, other in zip("AB", both, reversed(both), strict=True):
        yield from (f"{letter}: {line}" for line in mine if line not in other)
