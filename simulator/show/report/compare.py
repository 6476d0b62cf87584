"""Comparison of two estimates as text: figures, the inputs that differ and what each does, parts that differ.

    B is 12.4 % faster (+8.1 to +16.9 %) and needs 3.20 GiB more; both: fits.
    input            A  B  GiB     s
    tensor parallel  2  4  -8.12  +0.41

An explanation, with the causes of one memory, is in `report.estimate`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simulator.answers.compare import Comparison, InputDifference, PartDifference
from simulator.cost.pricing.estimate import Estimate, Violation
from simulator.records import replace
from simulator.show.report import text as say
from simulator.show.report.estimate import brief_layout, provenance_lines, rules_block
from simulator.show.report.presentation import Presentation, joined

FIGURES, INPUTS, PARTS = ("figure", "A", "B"), ("input", "A", "B", "GiB", "s"), ("part", "A", "B", "B less A")
"""Headers of the tables."""
_MOST_INPUTS, _MOST_PARTS, _MOST_CAUSES = 4, 2, 2
"""Rows of a first screen: inputs, parts of memory and of the step each, and causes of what grew."""
_MATTERS = 0.25  # growth of parts over what others shrink by, from which a first screen has its causes


def compare_table(comparison: Comparison, shown: Presentation) -> str:
    """Return a comparison for people."""
    full = shown.full
    blocks = [
        shown.prose(_sides(comparison, full=full)),
        shown.prose([headline(comparison), *_not_said(comparison, full=full)]),
        shown.grid(FIGURES, figure_rows(comparison, colour=shown.colour, full=full)),
    ]
    if broken := refused_rules(comparison):
        return joined([*blocks, rules_block(broken, "what is wrong", shown)])
    blocks.append(shown.titled("Inputs that differ, and what each does to A alone", _inputs(comparison, shown)))
    grown, shrunk = (sum(max(sign * part.difference, 0.0) for part in comparison.memory) for sign in (1, -1))
    if comparison.causes and (full or grown >= _MATTERS * shrunk):
        causes = comparison.causes if full else comparison.causes[:_MOST_CAUSES]
        blocks.append(shown.titled("What B needs more, and why", shown.prose(f"{cause}." for cause in causes)))
    unit, per_second = comparison_unit(comparison)
    memory, step = part_rows(comparison.memory, say.gib), part_rows(comparison.step, _seconds)
    if full:
        rows = part_rows(comparison.step, lambda value: _seconds(value * per_second))
        blocks.append(shown.titled("Memory of the fullest device, GiB", shown.grid(PARTS, memory)))
        blocks.append(shown.titled(f"Time of one step, {unit}", shown.grid(PARTS, rows)))
    else:
        rows = []
        for name, (*parts, total) in (("GiB", memory), ("s", step)):
            most = [row for row in parts if row[-1].strip("0.")][:_MOST_PARTS]
            rows += [[f"{part}, {name}", *cells] for part, *cells in [*most, total]]
        blocks.append(shown.titled("Parts that differ most", shown.grid(PARTS, rows)))
    if shown.verbosity >= 0:
        lines = list(compare_notes(comparison, shown))
        if not full:
            known = [line for line in lines if re.match(r"([AB]: )?(Known|Assumed \w+ peak): ", line)]
            lines = [*known, "-v: every part, assumptions. Next: simulate explain, emit; --format html."]
        blocks.append(shown.prose(lines))
    return joined(blocks)


def comparison_unit(comparison: Comparison) -> tuple[str, float]:
    """Return the unit of both steps, and how many of it a second has."""
    return say.step_unit(max(e.throughput.step_seconds for e in (comparison.first, comparison.second)))


def refused_rules(comparison: Comparison) -> list[Violation]:
    """Return the rules that a refused side breaks, under its letter: what is refused has no figures to compare."""
    sides = zip("AB", (comparison.first, comparison.second), strict=True)
    return [
        replace(violation, rule=f"{letter}: {violation.rule}")
        for letter, priced in sides
        for violation in priced.violations
        if priced.verdict == "refused"
    ]


def headline(comparison: Comparison) -> str:
    """Return the difference of B from A in words."""
    a, b = comparison.first, comparison.second
    first, second = (say.verdict_text(priced.verdict, colour=False) for priced in (a, b))
    ends = f"both: {first}" if first == second else f"A: {first}, B: {second}"
    if broken := refused_rules(comparison):
        return f"{ends[0].upper()}{ends[1:]}: {broken[0].message}."
    speeds = say.cluster_speed(a), say.cluster_speed(b)
    ratio = speeds[1] / speeds[0] - 1.0 if speeds[0] > 0 else 0.0
    faster = f"{say.percent(abs(ratio))} % {'faster' if ratio > 0 else 'slower'}" if ratio else "as fast"
    if width := comparison.step_half_width:
        low, high = (100.0 * ((1.0 + ratio) * math.exp(sign * width) - 1.0) for sign in (-1, 1))
        faster += f" ({low:+.1f} to {high:+.1f} %)"
    memory = b.memory.device_bytes - a.memory.device_bytes
    needs = f"{say.gib(abs(memory))} GiB {'more' if memory > 0 else 'less'}" if memory else "as much memory"
    verb = "may be" if comparison.step_half_width and comparison.differ is False else "is"
    return f"B {verb} {faster} and needs {needs}; {ends}."


def _not_said(comparison: Comparison, *, full: bool) -> Iterator[str]:
    """Yield what nobody said of each side, once where it is the same; in brief where it decides nothing."""
    first, second = (
        tuple(lines if full or priced.verdict == "depends" else (line.partition("; most:")[0] for line in lines))
        for priced in (comparison.first, comparison.second)
        for unsaid in (priced.provenance.cautions[: bool(priced.other_memory)],)
        for lines in ([*unsaid, *priced.provenance.without_effect, *say.open_lines(priced, full=full)],)
    )
    for name, lines in (("A and B", first),) if first == second else (("A", first), ("B", second)):
        yield from (f"{name}, {line}" for line in lines)


def _sides(comparison: Comparison, *, full: bool) -> Iterator[str]:
    for letter, name, priced in zip("AB", comparison.names, (comparison.first, comparison.second), strict=True):
        if full:
            yield f"{letter}: {name}"
            yield f"   {priced_text(priced)}"
        else:
            file = "" if name.startswith("-") else f"{Path(name).name}: "
            yield f"{letter}: {file}{_where(priced)}: {brief_layout(priced.layout, priced.framework)}"


def _where(priced: Estimate) -> str:
    where = f"{priced.model} on {say.counted(priced.devices, 'device')} of {priced.hardware}"
    return f"{where}, {priced.precision}, {priced.framework}"


def priced_text(priced: Estimate) -> str:
    """Return what was priced on one line."""
    return f"{_where(priced)}: {say.sharded_layout_text(priced.layout)}"


def figure_rows(comparison: Comparison, *, colour: bool, full: bool = True) -> list[list[str]]:
    """Return the figures of A and B: name and both values; those of a first screen have intervals beside them."""
    pair = (comparison.first, comparison.second)
    unit, per_second = comparison_unit(comparison)

    def row(name: str, cell: Callable[[Estimate], str]) -> list[str]:
        return [name, *("-" if e.verdict == "refused" and name != "verdict" else cell(e) for e in pair)]

    def in_unit(value: float) -> str:
        return _seconds(value * per_second)

    rows = [row("verdict", lambda e: say.verdict_text(e.verdict, colour=colour))]
    if full:
        rows += [
            row("memory GiB", lambda e: say.gib(e.memory.device_bytes)),
            row("90 % interval GiB", lambda e: say.span_text(e.memory.interval_bytes, say.gib, "-")),
            row("usable GiB", lambda e: say.gib(e.memory.capacity_bytes)),
            row("probability to fit %", say.fit_text),
            row(f"step {unit}", lambda e: in_unit(e.throughput.step_seconds)),
            row(f"90 % interval {unit}", lambda e: say.span_text(e.throughput.interval_seconds, in_unit, "-")),
        ]
    else:

        def step(priced: Estimate) -> str:
            speed = priced.throughput
            return say.ranged(speed.step_seconds, speed.interval_seconds, lambda value: say.amount(value * per_second))

        rows += [
            row("GiB (90 %)", lambda e: say.ranged(e.memory.device_bytes, e.memory.interval_bytes, say.gib)),
            row("fit %", say.fit_text),
            row(f"step {unit} (90 %)", step),
        ]
    tokens = row("tokens/s", lambda e: say.grouped(say.cluster_speed(e)))
    mfu = row("MFU % (causal)", lambda e: f"{say.mfu_text(e.throughput.mfu)} ({say.mfu_text(e.throughput.causal_mfu)})")
    return [*rows, tokens, mfu]


def _inputs(comparison: Comparison, shown: Presentation) -> str:
    if not comparison.inputs:
        return "None: both ask the same."
    rows = input_rows(comparison)
    if not shown.full and len(rows) > _MOST_INPUTS:
        rows = [*rows[: _MOST_INPUTS - 1], [f"{len(rows) - _MOST_INPUTS + 1} more: -v", "", "", "", ""]]
    table = shown.grid(INPUTS, rows, (0, 1, 2)) if rows else ""
    idle = shown.sentences(idle_lines(comparison)) if shown.full or not rows else ""
    return "\n\n".join(block for block in (table, idle) if block.strip())


def input_rows(comparison: Comparison) -> list[list[str]]:
    """Return the inputs that differ: name, both values, and the effect of B's alone on A."""
    return [
        [
            say.words(differing.name),
            _short(differing.first),
            _short(differing.second),
            "only with others" if differing.memory_bytes is None else _signed(differing.memory_bytes, say.gib),
            "" if differing.step_seconds is None else _signed(differing.step_seconds, _seconds),
        ]
        for differing in comparison.inputs
        if not _is_idle(differing)
    ]


def idle_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the inputs that differ and have no effect on A alone."""
    idle = [
        f"{say.words(differing.name)} ({_short(differing.first)}, {_short(differing.second)})"
        for differing in filter(_is_idle, comparison.inputs)
    ]
    if idle:
        yield f"Without effect on A alone: {', '.join(idle)}."


def _is_idle(differing: InputDifference) -> bool:
    """Tell whether an input changes no figure that is shown."""
    if differing.memory_bytes is None or differing.step_seconds is None:
        return False
    return not (say.gib(abs(differing.memory_bytes)) + _seconds(abs(differing.step_seconds))).strip("0.")


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:21]}..."


def part_rows(parts: Sequence[PartDifference], text: Callable[[float], str]) -> list[list[str]]:
    """Return parts in both and their difference, the largest difference first, and the total."""
    ordered = [(say.words(p.name), p.first, p.second) for p in sorted(parts, key=lambda p: -abs(p.second - p.first))]
    total = ("total", sum(part.first for part in parts), sum(part.second for part in parts))
    return [[name, text(a), text(b), _signed(b - a, text)] for name, a, b in [*ordered, total]]


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _signed(value: float, text: Callable[[float], str]) -> str:
    size = text(abs(value))
    return f"{'+' if value > 0 else '-'}{size}" if size.strip("0.") else size


def compare_notes(comparison: Comparison, shown: Presentation) -> Iterator[str]:
    """Yield the sources of both estimates."""
    if any(differing.memory_bytes is None for differing in comparison.inputs):
        yield "Only with others: A with this input of B alone breaks a rule."
    both = [list(provenance_lines(priced, shown)) for priced in (comparison.first, comparison.second)]
    yield from (line for line in both[0] if line in both[1])
    for letter, mine, other in zip("AB", both, reversed(both), strict=True):
        yield from (f"{letter}: {line}" for line in mine if line not in other)
