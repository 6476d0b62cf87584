"""Estimate as tables for a terminal: verdict, memory by stage, time by part, speed. Computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.cost.pricing.estimate import Estimate, StageMemory, ThroughputEstimate
from simulator.show.report.columns import Column, columns_grid, fitting, narrow_line
from simulator.show.report.explain_table import explanation_blocks, fullest_stages
from simulator.show.report.first_screen import (
    NEXT_OF_ESTIMATE,
    basis_line,
    estimate_question,
    launch_block,
    rules_block,
    speed_sentence,
    wrapped,
)
from simulator.show.report.footer import assumed_lines, defaults_line, provenance_lines
from simulator.show.report.grid import Style, grid, paragraph, titled
from simulator.show.report.presentation import Presentation, cost_text, days_text, question_block, training_run
from simulator.show.report.text import (
    about_lines,
    amount,
    cluster_speed,
    count_text,
    gib,
    grouped,
    mfu_text,
    milliseconds,
    percent,
    step_unit,
    teraflops,
    words,
)


def estimate_table(estimate: Estimate, presentation: Presentation, style: Style) -> str:
    """Return the estimate for people."""
    sentences = [*about_lines(estimate, colour=presentation.colour)]
    if estimate.verdict != "refused":
        sentences.append(f"speed: {speed_sentence(estimate, presentation)}")
    about = paragraph(wrapped(sentences, presentation, style), style)
    blocks = [
        f"{question_block(estimate_question(estimate), presentation, style)}\n{about}",
        *_violations(estimate, presentation, style),
    ]
    explained = presentation.explanation is not None and presentation.verbosity == 0
    if estimate.verdict != "refused" and not explained:
        # Figures of a layout that no run can have would mean nothing.
        blocks += [
            *_memory(estimate, presentation, style),
            *(_outside(estimate, style) if presentation.verbosity > 0 else ()),
            *(_time(estimate, style) if presentation.verbosity > 0 else _time_sentence(estimate, presentation, style)),
            *([_speed(estimate, presentation, style)] if presentation.verbosity > 0 else ()),
        ]
    if presentation.verbosity >= 0:
        lines = [basis_line(estimate), NEXT_OF_ESTIMATE]
        if presentation.verbosity > 0:
            lines = list(estimate_footer(estimate, presentation))
        blocks += [
            *([] if explained else [launch_block(estimate, style)]),
            paragraph(wrapped(lines, presentation, style), style),
        ]
    if presentation.explanation is not None:
        blocks += explanation_blocks(presentation.explanation, presentation, style)
    return "\n\n".join(block for block in blocks if block) + "\n"


def _violations(estimate: Estimate, presentation: Presentation, style: Style) -> Iterator[str]:
    if estimate.violations:
        yield titled("Rules broken", rules_block(estimate.violations, "what is wrong", presentation, style), style)


def _memory(estimate: Estimate, presentation: Presentation, style: Style) -> Iterator[str]:
    every = estimate.memory.stages
    if not every:
        return
    stages = every if presentation.verbosity > 0 or style == "html" else fullest_stages(estimate, _MOST_STAGES)

    def column(header: str, cell: Callable[[StageMemory], str], spare: int = 0, *, is_text: bool = False) -> Column:
        return Column(header=header, cells=tuple(map(cell, stages)), is_text=is_text, spare=spare)

    columns = [column("stage", lambda s: str(s.stage)), column("layers", lambda s: str(s.layers), 20)]
    largest = {name: max(stage.parts_bytes[name] for stage in stages) for name in stages[0].parts_bytes}
    columns += [
        Column(
            header=_wrapped(name),
            cells=tuple(gib(stage.parts_bytes[name]) for stage in stages),
            spare=6 + sum(other > size for other in largest.values()),
        )
        for name, size in largest.items()
        if size
    ]
    if presentation.verbosity > 0:
        columns.append(column("after\nstep", lambda s: gib(s.state_bytes), 50))
    columns += [
        column("allocated", lambda s: gib(s.allocated_bytes), 30),
        column("reserved", lambda s: gib(s.reserved_bytes), 40),
        column("device", lambda s: gib(s.device_bytes))._replace(
            bars=tuple(stage.device_bytes / estimate.memory.capacity_bytes for stage in stages)
        ),
        column("peak at", lambda s: s.moment, 5, is_text=True),
    ]
    shown, left_out = fitting(columns, presentation.width if style == "table" else None)
    table = columns_grid(shown, style)
    narrow = wrapped(list(narrow_line(left_out)), presentation, style) if presentation.verbosity > 0 else ()
    title = "Memory by stage, GiB" + (f" ({len(stages)} of {len(every)})" if len(stages) < len(every) else "")
    yield titled(title, "\n".join([table.rstrip("\n"), *narrow]), style)


_MOST_STAGES = 6
"""Most stages of a first screen."""


def _outside(estimate: Estimate, style: Style) -> Iterator[str]:
    parts = {name: size for name, size in estimate.memory.outside_parts_bytes.items() if size}
    if parts:
        title = f"Outside the allocator on stage {estimate.memory.binding_stage}, GiB"
        rows = [[words(name), gib(size)] for name, size in parts.items()]
        yield titled(title, grid(["part", "GiB"], rows, style, text_columns=[0]), style)


def _time(estimate: Estimate, style: Style) -> Iterator[str]:
    total = estimate.throughput.step_seconds
    parts = {name: seconds for name, seconds in estimate.throughput.parts_seconds.items() if seconds}
    if not parts or total <= 0:
        return
    unit, per_second = step_unit(total)

    def shown(seconds: float) -> str:
        return milliseconds(seconds) if unit == "ms" else f"{seconds * per_second:.3f}"

    rows = [[words(name), shown(seconds), percent(seconds / total)] for name, seconds in parts.items()]
    rows.append(["step", shown(total), percent(1.0)])
    yield titled("Time of one step", grid(["part", unit, "share %"], rows, style, text_columns=[0]), style)


def _time_sentence(estimate: Estimate, presentation: Presentation, style: Style) -> Iterator[str]:
    """Yield the parts of a step, the longest first."""
    total = estimate.throughput.step_seconds
    parts = sorted(estimate.throughput.parts_seconds.items(), key=lambda part: -part[1])
    shares = [f"{words(name)} {percent(seconds / total)} %" for name, seconds in parts if seconds >= _SMALL * total]
    if shares:
        yield paragraph(wrapped([f"Time of a step: {', '.join(shares)}."], presentation, style), style)


_SMALL = 0.005
"""Share of a step below which a part is shown with -v only."""


def _speed(estimate: Estimate, presentation: Presentation, style: Style) -> str:
    speed = estimate.throughput
    unit, per_second = step_unit(speed.step_seconds)
    rows = [
        ["TFLOPS/device", teraflops(speed.flops_per_second_per_device)],
        ["TFLOPS/device with recomputation", teraflops(speed.hardware_flops_per_second_per_device)],
        ["MFU %", mfu_text(speed.mfu)],
        ["tokens/s/device", amount(speed.tokens_per_second_per_device)],
        ["tokens/s", grouped(cluster_speed(estimate))],
        [f"step {unit}", amount(speed.step_seconds * per_second)],
        *_step_interval(speed),
        ["pipeline bubble %", percent(speed.bubble_fraction)],
    ]
    run = training_run(estimate, presentation)
    if run is not None:
        rows.append([f"days for {count_text(run.tokens)} tokens", days_text(run)])
        rows.append(["device hours", grouped(run.device_hours)])
        if run.cost is not None:
            rows.append(["cost", cost_text(run)])
    return titled("Speed", grid(["figure", "value"], rows, style, text_columns=[0]), style)


def _step_interval(speed: ThroughputEstimate) -> Iterator[list[str]]:
    interval = speed.interval_seconds
    if interval is not None:
        unit, per_second = step_unit(speed.step_seconds)
        low, high = amount(interval.low * per_second), amount(interval.high * per_second)
        yield [f"step {unit}, 90 % interval", f"{low} to {high}"]


def estimate_footer(estimate: Estimate, presentation: Presentation) -> Iterator[str]:
    """Yield the sources of the numbers."""
    yield from defaults_line(dict(presentation.defaults))
    yield from assumed_lines(estimate)
    yield from provenance_lines(estimate, presentation)


def _wrapped(name: str) -> str:
    return name.replace("_", "\n")
