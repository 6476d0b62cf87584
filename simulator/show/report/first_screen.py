"""Lines around the table of a first screen: the answer in words, another launch, sources of the numbers.

Lines that `-v` adds stand in `footer`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.cost.pricing.violation import Violation
from simulator.question.frameworks.profiles import PROFILES
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.units import to_gib
from simulator.search.assumed import MIN_CHANGE
from simulator.search.result import Ranking
from simulator.show.report.columns import BETWEEN
from simulator.show.report.footer import LEAST_SHOWN_BYTES, VERDICTS, peak_line, stack_name, status_line
from simulator.show.report.grid import PROSE_WIDTH, Style, filled, grid
from simulator.show.report.presentation import Presentation, cost_text, days_text, training_run
from simulator.show.report.text import (
    amount,
    batch_text,
    cluster_speed,
    count_text,
    cut_text,
    devices_text,
    fit_text,
    grouped,
    is_even,
    mfu_text,
    recompute_text,
    step_unit,
)

_SIZES = (
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel"),
    *("data_parallel", "virtual_stages"),
)
_ALWAYS = ("tensor_parallel", "pipeline_parallel", "data_parallel")


def brief_layout(layout: Layout, framework: str) -> str:
    """Return a layout in words: sizes beyond 1, and the rest where it is other than usual."""
    sizes = [
        f"{BY_NAME[name].label}{getattr(layout, name)}"
        for name in _SIZES
        if name in _ALWAYS or getattr(layout, name) > 1
    ]
    parts = [" ".join(sizes), f"micro batch {layout.micro_batch_size}"]
    parts.append("no recompute" if layout.recompute == "none" else f"recompute {recompute_text(layout)}")
    if layout.zero_stage != PROFILES[framework].limits.default_zero_stage:
        parts.append(f"ZeRO {layout.zero_stage}")
    if layout.sequence_parallel != (layout.tensor_parallel > 1):
        parts.append(f"{'' if layout.sequence_parallel else 'no '}sequence parallelism")
    if layout.schedule != BY_NAME["schedule"].default:
        parts.append(f"schedule {layout.schedule}")
    if layout.offload != "none":
        parts.append(f"offload {layout.offload}")
    if not is_even(layout.stage_layers):
        parts.append(f"layers {cut_text(layout)}")
    return ", ".join(parts)


def half_width_text(value: float, interval: Interval | None) -> str:
    """Return half of a 90 % interval in per cent of its figure; a dash without one."""
    return "-" if interval is None or value <= 0 else f"{50.0 * (interval.high - interval.low) / value:.0f}"


def speed_sentence(estimate: Estimate, presentation: Presentation) -> str:
    """Return the speed of an estimate, and for given tokens the duration."""
    speed = estimate.throughput
    unit, per_second = step_unit(speed.step_seconds)
    known = half_width_text(speed.step_seconds, speed.interval_seconds)
    parts = [
        f"{grouped(cluster_speed(estimate))} tokens/s" + (f" (± {known} %)" if known != "-" else ""),
        f"{mfu_text(speed.mfu)} % MFU",
        f"{amount(speed.step_seconds * per_second)} {unit} a step",
    ]
    run = training_run(estimate, presentation)
    if run is not None:
        parts.append(f"{days_text(run)} days for {count_text(run.tokens)} tokens")
        if run.cost is not None:
            parts.append(f"cost {cost_text(run)}")
    return ", ".join(parts)


def fastest_line(estimate: Estimate, presentation: Presentation) -> str:
    """Return the first of a ranking in words."""
    memory = estimate.memory
    need = f"{to_gib(memory.device_bytes):.1f} of {to_gib(memory.capacity_bytes):.1f} GiB"
    fit = fit_text(estimate)
    need += f" (fits {fit} %)" if fit != "-" else ""
    layout = brief_layout(estimate.layout, estimate.framework)
    if dispatch := estimate.options.get("expert_dispatch"):
        layout += f", {dispatch} overlapped"
    return f"Fastest: {layout}: {speed_sentence(estimate, presentation)}, {need}."


def launch_block(estimate: Estimate, style: Style, ranking: Ranking | None = None) -> str:
    """Return the effects of another switch, precision or stack in the reader's launch; empty without any.

    Signs are those of the reader's change.
    """
    rows = [row for row in _switch_rows(estimate) if row[1:] != ["-", "-", ""]]
    rows += _other_rows(ranking, estimate) if ranking else ()
    if not rows:
        return ""
    head = ["if your launch has", "tokens/s", "GiB", ""]
    return grid(head, rows, style, text_columns=(0, 3), wrapped={"": _NOTE_WIDTH}).rstrip("\n")


def _switch_rows(estimate: Estimate) -> Iterator[list[str]]:
    need = estimate.memory.device_bytes
    most = sorted(estimate.assumed, key=lambda tried: -abs(tried.speed_change) - abs(tried.memory_bytes) / need)
    for tried in filter(most[:_MOST_SWITCHES].__contains__, estimate.assumed):
        speed = tried.other_speed_change
        runs = tried.verdict != "does_not_fit"
        note = VERDICTS[tried.verdict] if tried.verdict != estimate.verdict else ""
        yield [
            f"--option {tried.switch}={tried.other}",
            f"{100.0 * speed:+.1f} %" if runs and abs(tried.speed_change) >= MIN_CHANGE else "-",
            f"{-to_gib(tried.memory_bytes):+.2f}" if abs(tried.memory_bytes) >= LEAST_SHOWN_BYTES else "-",
            note,
        ]


def _other_rows(ranking: Ranking, best: Estimate) -> Iterator[list[str]]:
    """Yield the gains of fp8 and of another stack; only faster ones, or the framework's defaults."""
    others = [] if ranking.fp8 is None else [("--precision fp8", ranking.fp8, True)]
    others += [
        (f"--stack {stack.stack}", stack.estimate, False) for stack in ranking.stacks if stack.estimate is not None
    ]
    for name, other, gains in others:
        base = best.throughput.tokens_per_second_per_device
        change = other.throughput.tokens_per_second_per_device / base - 1.0 if base > 0 else 0.0
        if gains and change < MIN_CHANGE:
            continue
        note = "" if other.layout.split == best.layout.split else "another layout"
        if other.precision != best.precision and other.provenance.assumed_peak:
            note = f"{note}{', ' if note else ''}its peak is assumed"
        grown = other.memory.device_bytes - best.memory.device_bytes
        yield [name, f"{100.0 * change:+.1f} %", f"{to_gib(grown):+.2f}", note]


def basis_line(estimate: Estimate) -> str:
    """Return the sources of the numbers."""
    return " ".join([status_line(estimate), *peak_line(estimate)])


def more_line(ranking: Ranking) -> str:
    """Return the number of fitting layouts, and the option that shows the rest."""
    counts = ranking.counts
    return f"{grouped(counts.feasible)} of {grouped(counts.evaluated)} layouts fit: --top N, --variants."


def rules_block(broken: Sequence[Violation], header: str, presentation: Presentation, style: Style) -> str:
    """Return what rules say, under the header `said`, with a fix each."""
    rows = [[violation.rule, violation.message, violation.fix] for violation in broken]
    beside = max(len(row[0]) for row in rows) + 2 * BETWEEN
    room = 2 * PROSE_WIDTH if presentation.width is None else max(presentation.width - beside, 2 * _NARROWEST)
    whole = sum(max(len(row[column]) for row in rows) for column in (1, 2))
    lengths = {} if whole <= room else {header: 3 * room // 5, "fix": 2 * room // 5}
    return grid(["rule", header, "fix"], rows, style, text_columns=range(3), wrapped=lengths)


_MOST_SWITCHES = 3
"""Most switches of a first screen: those that change speed and memory most."""
_NOTE_WIDTH = 20
"""Characters of the note beside a switch."""
_NARROWEST = 12
"""Fewest characters of a column of sentences."""
NEXT_OF_RANKING = "-v: defaults, search, assumptions. Next: simulate emit, explain; --format html."
NEXT_OF_ESTIMATE = "-v: all stages, defaults, assumptions. Next: simulate explain, emit, compare."
NEXT_OF_EXPLANATION = "-v: all ranks and changes, why the ranges. Next: simulate compare, emit."
MORE_OF_NOTHING = "-v: defaults, search, assumptions. Next: more --nodes, or simulate explain."


def wrapped(lines: Iterator[str] | list[str], presentation: Presentation, style: Style) -> list[str]:
    """Return sentences within the width of a terminal."""
    width = presentation.width if style == "table" else None
    return [filled(line, width) for line in lines]


def command_lines(text: str, width: int | None) -> str:
    """Return a command within a width, on lines that a shell joins."""
    if width is None or len(text) <= width:
        return text
    joined = re.sub(r"(?<!\S)(--[\w-]+) (?!--)", "\\1\0", text)  # an option and its value stay together
    lines = textwrap.wrap(joined, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines).replace("\0", " ")


def estimate_question(estimate: Estimate) -> str:
    """Return the question, on one line."""
    text = f"{estimate.model} on {devices_text(estimate.devices)} of {estimate.hardware}: {estimate.precision}"
    if estimate.lora_rank:
        text += f", LoRA of rank {estimate.lora_rank}"
    batch = batch_text(estimate.global_batch_size, estimate.seq_length)
    return f"{text}, {batch}, {switches_text(estimate.stack, estimate.framework, estimate.provenance.release)}"


def switches_text(stack: str, framework: str, release: str = "") -> str:
    """Return the framework of a question with the source of its switches."""
    return f"{framework} with {release or stack_name(stack, framework)}"
