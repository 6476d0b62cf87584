"""Two estimates side by side: figures, the inputs that differ and what each does, parts that differ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.show.answers.compare import Comparison, Input, PartDifference
from simulator.show.report.estimate import brief_layout, provenance_lines, wrapped
from simulator.show.report.presentation import Presentation
from simulator.show.report.tables import Style, grid, paragraph, titled
from simulator.show.report.text import (
    amount,
    cluster_speed,
    devices_text,
    fit_text,
    gib,
    grouped,
    mfu_text,
    percent,
    ranged,
    sharded_layout_text,
    step_unit,
    verdict_text,
    words,
)

FIGURES, INPUTS, PARTS = ("figure", "A", "B"), ("input", "A", "B", "GiB", "s"), ("part", "A", "B", "B less A")
"""Headers of the tables."""


def compare_table(comparison: Comparison, presentation: Presentation, style: Style) -> str:
    """Return a comparison for people."""
    answer = paragraph(wrapped([headline(comparison)], presentation, style), style)
    full = presentation.verbosity > 0 or style == "html"
    blocks = [paragraph(wrapped(list(_sides(comparison, full=full)), presentation, style), style), answer]
    blocks += [
        grid(FIGURES, figure_rows(comparison, colour=presentation.colour, full=full), style, text_columns=[0]),
        titled("Inputs that differ, and what each does to A alone", _inputs(comparison, style, full=full), style),
    ]
    blocks += _all_parts(comparison, style) if full else _first_parts(comparison, style)
    if presentation.verbosity >= 0:
        lines = list(compare_notes(comparison, presentation))
        blocks.append(paragraph(wrapped(lines if full else _first_notes(lines), presentation, style), style))
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


def headline(comparison: Comparison) -> str:
    """Return the difference of B from A in words."""
    a, b = comparison.first, comparison.second
    speeds = cluster_speed(a), cluster_speed(b)
    ratio = speeds[1] / speeds[0] - 1.0 if speeds[0] > 0 else 0.0
    faster = f"{percent(abs(ratio))} % {'faster' if ratio > 0 else 'slower'}"
    memory = b.memory.device_bytes - a.memory.device_bytes
    needs = f"{gib(abs(memory))} GiB {'more' if memory > 0 else 'less'}" if memory else "as much memory"
    verdicts = [verdict_text(priced.verdict, colour=False) for priced in (a, b)]
    ends = f"both: {verdicts[0]}" if verdicts[0] == verdicts[1] else f"A: {verdicts[0]}, B: {verdicts[1]}"
    verb = "may be" if comparison.differ is False else "is"
    return f"B {verb} {faster if ratio else 'as fast'}{_range(comparison, ratio)} and needs {needs}; {ends}."


def _range(comparison: Comparison, ratio: float) -> str:
    """Return the 90 % range of B's speed over A's, in brackets; empty where it is not known."""
    if (width := comparison.step_half_width) is None:
        return ""
    low, high = (100.0 * ((1.0 + ratio) * math.exp(sign * width) - 1.0) for sign in (-1, 1))
    return f" ({low:+.1f} to {high:+.1f} %)"


_MOST_INPUTS, _MOST_PARTS = 4, 2
"""Rows of a first screen: inputs, and parts of memory and of the step each."""


def _first_notes(lines: Sequence[str]) -> list[str]:
    """Return the notes of a first screen: how well both are known."""
    shown = [line for line in lines if re.match(r"([AB]: )?(Known|Assumed \w+ peak): ", line)]
    return [*shown, "-v: every part, assumptions. Next: simulate explain, emit; --format html."]


def _sides(comparison: Comparison, *, full: bool) -> Iterator[str]:
    for letter, name, priced in zip("AB", comparison.names, (comparison.first, comparison.second), strict=True):
        if full:
            yield f"{letter}: {name}"
            yield f"   {side_text(priced)}"
        else:
            file = "" if name.startswith("-") else f"{Path(name).name}: "
            yield f"{letter}: {file}{_where(priced)}: {brief_layout(priced.layout, priced.framework)}"


def _where(priced: Estimate) -> str:
    where = f"{priced.model} on {devices_text(priced.devices)} of {priced.hardware}"
    return f"{where}, {priced.precision}, {priced.framework}"


def side_text(priced: Estimate) -> str:
    """Return what was priced on one line."""
    return f"{_where(priced)}: {sharded_layout_text(priced.layout)}"


def figure_rows(comparison: Comparison, *, colour: bool, full: bool = True) -> list[list[str]]:
    """Return the figures of A and B: name and both values; those of a first screen have intervals beside them."""
    pair = (comparison.first, comparison.second)
    unit, per_second = step_unit(max(e.throughput.step_seconds for e in pair))

    def interval(range_: Interval | None, scale: Callable[[float], str]) -> str:
        return "-" if range_ is None else f"{scale(range_.low)} to {scale(range_.high)}"

    def seconds(value: float) -> str:
        return f"{value * per_second:.3f}"

    ends = [
        ["tokens/s", *(grouped(cluster_speed(e)) for e in pair)],
        ["MFU %", *(mfu_text(e.throughput.mfu) for e in pair)],
    ]
    verdicts = ["verdict", *(verdict_text(e.verdict, colour=colour) for e in pair)]
    if not full:
        need = (ranged(e.memory.device_bytes, e.memory.interval_bytes, gib) for e in pair)
        shown = [(e.throughput.step_seconds, e.throughput.interval_seconds) for e in pair]
        step = (ranged(value, known, lambda value: amount(value * per_second)) for value, known in shown)
        fit = ["fit %", *(fit_text(e) for e in pair)]
        return [verdicts, ["GiB (90 %)", *need], fit, [f"step {unit} (90 %)", *step], *ends]
    return [
        verdicts,
        ["memory GiB", *(gib(e.memory.device_bytes) for e in pair)],
        ["90 % interval GiB", *(interval(e.memory.interval_bytes, gib) for e in pair)],
        ["usable GiB", *(gib(e.memory.capacity_bytes) for e in pair)],
        ["probability to fit %", *(fit_text(e) for e in pair)],
        [f"step {unit}", *(seconds(e.throughput.step_seconds) for e in pair)],
        [f"90 % interval {unit}", *(interval(e.throughput.interval_seconds, seconds) for e in pair)],
        *ends,
    ]


def _inputs(comparison: Comparison, style: Style, *, full: bool) -> str:
    if not comparison.inputs:
        return "None: both ask the same."
    rows = input_rows(comparison)
    if not full and len(rows) > _MOST_INPUTS:
        rows = [*rows[: _MOST_INPUTS - 1], [f"{len(rows) - _MOST_INPUTS + 1} more: -v", "", "", "", ""]]
    table = grid(INPUTS, rows, style, text_columns=[0, 1, 2]).rstrip("\n") if rows else ""
    idle = paragraph(list(idle_lines(comparison)) if full or not rows else [], style)
    return "\n\n".join(block for block in (table, idle) if block.strip())


def input_rows(comparison: Comparison) -> list[list[str]]:
    """Return the inputs that differ: name, both values, and the effect of B's alone on A."""
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
    """Yield the inputs that differ and have no effect on A alone."""
    idle = [
        f"{words(differing.name)} ({_short(differing.first)}, {_short(differing.second)})"
        for differing in comparison.inputs
        if _idle(differing)
    ]
    if idle:
        yield f"Without effect on A alone: {', '.join(idle)}."


def _idle(differing: Input) -> bool:
    """Tell whether an input changes no figure that is shown."""
    if differing.memory_bytes is None or differing.step_seconds is None:
        return False
    return not (gib(abs(differing.memory_bytes)) + _seconds(abs(differing.step_seconds))).strip("0.")


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:21]}..."


def _all_parts(comparison: Comparison, style: Style) -> list[str]:
    unit, per_second = step_unit(max(e.throughput.step_seconds for e in (comparison.first, comparison.second)))
    memory = part_rows(comparison.memory, gib)
    step = part_rows(comparison.step, lambda value: f"{value * per_second:.3f}")
    return [
        titled("Memory of the fullest device, GiB", grid(PARTS, memory, style, text_columns=[0]), style),
        titled(f"Time of one step, {unit}", grid(PARTS, step, style, text_columns=[0]), style),
    ]


def _first_parts(comparison: Comparison, style: Style) -> list[str]:
    """Return the parts that differ most and both totals, as one table."""
    rows = []
    for unit, parts in (("GiB", part_rows(comparison.memory, gib)), ("s", part_rows(comparison.step, _seconds))):
        *ordered, total = parts
        most = [row for row in ordered if row[-1].strip("0.")][:_MOST_PARTS]
        rows += [[f"{name}, {unit}", *cells] for name, *cells in [*most, total]]
    return [titled("Parts that differ most", grid(PARTS, rows, style, text_columns=[0]), style)]


def part_rows(parts: Sequence[PartDifference], shown: Callable[[float], str]) -> list[list[str]]:
    """Return parts in both and their difference, the largest difference first, and the total."""
    ordered = sorted(parts, key=lambda part: -abs(part.second - part.first))
    rows = [[words(p.name), shown(p.first), shown(p.second), _signed(p.second - p.first, shown)] for p in ordered]
    totals = sum(p.first for p in parts), sum(p.second for p in parts)
    return [*rows, ["total", shown(totals[0]), shown(totals[1]), _signed(totals[1] - totals[0], shown)]]


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _signed(value: float, shown: Callable[[float], str]) -> str:
    text = shown(abs(value))
    if not text.strip("0."):
        return text
    return f"{'+' if value > 0 else '-'}{text}"


def compare_notes(comparison: Comparison, presentation: Presentation) -> Iterator[str]:
    """Yield the sources of both estimates."""
    if any(differing.memory_bytes is None for differing in comparison.inputs):
        yield "Only with others: A with this input of B alone breaks a rule."
    both = [list(provenance_lines(priced, presentation)) for priced in (comparison.first, comparison.second)]
    yield from (line for line in both[0] if line in both[1])
    for letter, mine, other in zip("AB", both, reversed(both), strict=True):
        yield from (f"{letter}: {line}" for line in mine if line not in other)
