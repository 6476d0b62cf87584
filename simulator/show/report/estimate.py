"""An estimate and its explanation for people, and the lines that all answers about layouts share.

    llama3.1-70b on 64 devices of z2000: bf16, ...       the question
    TP4 PP8 CP2 DP1: fits: needs 83.6 of 95.6 GiB ...    the answer in words
    stage  parameters  optimizer  activations            tables, as many as `-v` asks for
    Known: device measured, stack between ...            what the numbers rest on

A timeline as trace events stands here too.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.cost.pricing.estimate import Estimate, Interval, StageMemory, ThroughputEstimate
from simulator.cost.pricing.violation import Violation
from simulator.question.frameworks.profiles import PROFILES, profile_of
from simulator.question.frameworks.stacks import DEFAULT
from simulator.question.scenario.layout import BY_NAME, MICRO_BATCH_SIZES, Layout
from simulator.question.units import GIB, to_gib
from simulator.question.vocabulary import NARROW
from simulator.search.assumed import MIN_CHANGE
from simulator.search.result import Ranking
from simulator.show.answers.timeline import Timeline
from simulator.show.report.presentation import Presentation, cost_text, days_text, question_block, training_run
from simulator.show.report.tables import (
    BETWEEN,
    PROSE_WIDTH,
    Column,
    Style,
    columns_grid,
    filled,
    fitting,
    grid,
    narrow_line,
    paragraph,
    titled,
)
from simulator.show.report.text import (
    about_lines,
    amount,
    batch_text,
    cluster_speed,
    count_text,
    cut_text,
    devices_text,
    fit_text,
    gib,
    grouped,
    is_even,
    layout_text,
    mfu_text,
    milliseconds,
    percent,
    recompute_text,
    settings_text,
    short_lists,
    significant,
    step_unit,
    teraflops,
    words,
)

if TYPE_CHECKING:
    from simulator.show.answers.explain import Explanation


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


_BAR = 40
"""Characters of a bar for the usable memory; fewer where a line has no room for twice as many."""
_SHORTEST_BAR = 10
_BESIDE_BARS = 32
"""Characters of the columns beside the bars."""
_BESIDE_CHANGES = 40
"""Characters of the columns beside the changes."""
_NARROWEST_CHANGE = 30
_WIDE = 160
"""Characters of a line where nothing limits it."""


def explain_table(explanation: Explanation, presentation: Presentation, style: Style) -> str:
    """Return an explanation for people."""
    estimate = explanation.estimate
    about = paragraph(wrapped(about_lines(estimate, colour=presentation.colour), presentation, style), style)
    question = question_block(estimate_question(estimate), presentation, style)
    blocks = [f"{question}\n{about}", *explanation_blocks(explanation, presentation, style)]
    if presentation.verbosity >= 0:
        full = _full(presentation, style)
        lines = [*provenance_lines(estimate, presentation)] if full else [basis_line(estimate), NEXT_OF_EXPLANATION]
        lines = [*contribution_lines(estimate, full=full), *lines]
        blocks[-1] += "\n" + paragraph(wrapped(lines, presentation, style), style)
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


def explanation_blocks(explanation: Explanation, presentation: Presentation, style: Style) -> Iterator[str]:
    """Yield the parts of an explanation beside its estimate."""
    full, stages = _full(presentation, style), len(explanation.estimate.memory.stages)
    bars = _bars(explanation.estimate, presentation.width, style, full=full)
    some = "" if full or stages <= _MOST_RANKS else f" ({_MOST_RANKS} of {stages}: -v)"
    yield titled(f"Need of each pipeline rank against what is usable{some}", bars, style)
    if explanation.causes:
        causes = wrapped([f"{cause}." for cause in explanation.causes], presentation, style)
        yield titled("Why", paragraph(causes, style), style)
    if explanation.changes:
        headers, rows = changes_cells(explanation)
        room = max((presentation.width or _WIDE) - _BESIDE_CHANGES, _NARROWEST_CHANGE)
        shown = rows if full else [row for row in rows if row is rows[0] or len(row[0]) <= 2 * room][:_MOST_CHANGES]
        table = grid(headers, shown, style, text_columns=[0], wrapped={headers[0]: room})
        yield titled(changes_title(explanation), table, style)
    yield paragraph([longest_text(explanation)], style)


def _full(presentation: Presentation, style: Style) -> bool:
    """Tell whether every row is shown: with more verbosity, and in a notebook, which has room."""
    return presentation.verbosity > 0 or style == "html"


def contribution_lines(estimate: Estimate, *, full: bool) -> Iterator[str]:
    """Yield the contributions to each range, the largest first, and what to measure next; `full` adds reasons."""
    known = estimate.provenance
    for figure, name in (("time", "step time"), ("memory", "memory")):
        parts = [part for part in known.contributions if part.figure == figure]
        if parts:
            whole = 100 * math.hypot(*(part.half_width for part in parts))
            shares = ", ".join(f"{part.name} {100 * part.half_width:.1f}" for part in parts)
            because = f": {shares}; most: {parts[0].because}" if full else f" ({shares})" * (figure == "time")
            yield f"Range of the {name}, ± {whole:.1f} %{because}."
    if (best := known.next_measurement) is not None:
        yield f"Next to measure: {best.run}; it would leave ± {100 * best.half_width:.1f} % of the step time."


def fullest_stages(estimate: Estimate, most: int) -> tuple[StageMemory, ...]:
    """Return the first, the last and the fullest stages, in their order; all of no more than `most`."""
    stages = estimate.memory.stages
    if len(stages) <= most:
        return stages
    fullest = sorted(stages[1:-1], key=lambda stage: -stage.device_bytes)[: most - 2]
    return tuple(stage for stage in stages if stage in (stages[0], stages[-1], *fullest))


_MOST_RANKS, _MOST_CHANGES = 4, 2
"""Most stages and changes of a first screen."""


def _bars(estimate: Estimate, width: int | None, style: Style, *, full: bool) -> str:
    stages = estimate.memory.stages
    whole = _BAR if width is None else min(max((width - _BESIDE_BARS) // 2, _SHORTEST_BAR), _BAR)
    shown = stages if full else fullest_stages(estimate, _MOST_RANKS)
    shares = [stage.device_bytes / (stage.capacity_bytes or estimate.memory.capacity_bytes) for stage in shown]
    rows = []
    for stage, share in zip(shown, shares, strict=True):
        inside = min(round(whole * share), whole)
        beyond = max(round(whole * min(share, 2.0)) - whole, 0)
        bar = "#" * inside + "." * (whole - inside) + "|" + "!" * beyond
        rows.append([str(stage.stage), *([] if style == "html" else [bar]), gib(stage.device_bytes), percent(share)])
    if style == "html":
        return grid(["rank", "GiB", "% of usable"], rows, style, bars={2: shares})
    return grid(["rank", "", "GiB", "% of usable"], rows, style, text_columns=[1])


def changes_title(explanation: Explanation) -> str:
    """Return the heading over the changes, with the probability to fit."""
    probability = explanation.min_fit_probability
    sure = "" if probability is None else f" with at least {100.0 * probability:g} %"
    return f"What would make it fit{sure}"


def changes_cells(explanation: Explanation) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the changes that help."""
    rows = [
        [
            short_lists(change.text),
            gib(change.estimate.memory.device_bytes),
            fit_text(change.estimate),
            f"{100 * (change.speed_ratio - 1):+.1f}",
            grouped(cluster_speed(change.estimate)),
        ]
        for change in explanation.changes
    ]
    return ["options to add", "GiB", "fit\n%", "speed of a\ndevice, %", "tokens/s"], rows


def longest_text(explanation: Explanation) -> str:
    """Return a sentence on the longest sequence."""
    longest = "none" if explanation.longest_sequence is None else f"{grouped(explanation.longest_sequence)} tokens"
    return f"Longest sequence that fits with this layout: {longest}."


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


def defaults_line(settings: dict[str, object]) -> Iterator[str]:
    """Yield the line on options that were left to their default."""
    text = settings_text(settings)
    if text:
        yield f"Defaults used: {text}."


def space_lines(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield the axes of the search with default values, and the layouts that were therefore not tried."""
    asked = ranking.query.get("space")
    space: Mapping[str, object] = asked if isinstance(asked, Mapping) else {}
    limits = PROFILES[str(ranking.query.get("framework"))].limits
    searched: list[tuple[str, str, str]] = [
        ("zero_stage", f"--zero-stage {limits.default_zero_stage}", "other --zero-stage"),
        ("offload", "--offload none", "--offload"),
        ("micro_batch_size", f"--micro-batch-size {','.join(map(str, MICRO_BATCH_SIZES))}", "other --micro-batch-size"),
        ("sequence_parallel", "sequence parallelism where TP is above 1", "--no-sequence-parallel"),
    ]
    if ranking.query.get("nodes") != 1:
        searched.append(("tensor_parallel_across_nodes", "TP within a node", "--allow-tp-across-nodes"))
    plain = [(value, other) for axis, value, other in searched if axis not in space]
    lines = [", ".join(value for value, _ in plain)] if plain else []
    if not presentation.variants and ranking.estimates:
        lines.append("best of each TP/PP/CP/EP/ETP split (--variants lists all)")
    if lines:
        yield f"Search defaults: {'; '.join(lines)}."
    if plain:
        yield f"Not searched unless asked: {', '.join(other for _, other in plain)}."


def status_line(estimate: Estimate) -> str:
    """Return the question's place beside the measured runs, and the source of its coefficients."""
    return f"Known: {known_text(estimate)} ({estimate.provenance.calibration})."


def known_text(estimate: Estimate) -> str:
    """Return how well device, stack and layout are known."""
    known = estimate.provenance
    return f"device {known.device}, stack {known.stack}, layout {known.layout}"


def provenance_lines(estimate: Estimate, presentation: Presentation) -> Iterator[str]:
    """Yield the sources of the numbers."""
    provenance = estimate.provenance
    yield status_line(estimate)
    yield (
        "TFLOPS counts model FLOPs with full (non-causal) attention; "
        f"MFU divides it by the dense {estimate.precision} peak."
    )
    yield from peak_line(estimate)
    if presentation.verbosity > 0:
        yield from (f"Assumed: {note}" for note in provenance.notes)
    elif provenance.notes:
        yield assumptions_line(len(provenance.notes))


def peak_line(estimate: Estimate) -> Iterator[str]:
    """Yield the line on a peak that no document states."""
    peak = estimate.provenance.assumed_peak
    if peak:
        yield f"Assumed {estimate.precision} peak: {peak.rstrip('.')}."


def assumptions_line(count: int) -> str:
    """Return the line that stands for assumptions which are not listed."""
    return f"{count} assumption{'s' if count > 1 else ''} behind these numbers: -v lists them."


def stack_name(stack: str, framework: str) -> str:
    """Return the source of a stack's switches, in words."""
    return f"the defaults of {profile_of(framework).version}" if stack == DEFAULT else f"stack {stack}"


def assumed_lines(estimate: Estimate) -> Iterator[str]:
    """Yield the source of the switches, and the effect of the assumed ones that matter."""
    whose = stack_name(estimate.stack, estimate.framework)
    yield f"Switches: {whose} (--stack, --option; `simulate frameworks {estimate.framework}`)."
    for switch in estimate.assumed:
        worth = (
            [f"{100.0 * switch.other_speed_change:+.1f} % tokens/s"] if abs(switch.speed_change) >= MIN_CHANGE else []
        )
        if abs(switch.memory_bytes) >= LEAST_SHOWN_BYTES:
            worth.append(f"{-to_gib(switch.memory_bytes):+.2f} GiB")
        if switch.verdict != estimate.verdict:
            worth.append(VERDICTS[switch.verdict])
        assumed = f"Assumed {switch.switch} {_SWITCHED.get(switch.value, switch.value)}"
        yield f"{assumed}; with --option {switch.switch}={switch.other}: {', '.join(worth)}."


VERDICTS = {"fits": "fits", "starved": "is starved", "does_not_fit": "does not fit", "refused": "is refused"}
"""Words of each verdict."""
LEAST_SHOWN_BYTES = 0.005 * GIB
"""Smallest memory that does not round to 0, in bytes."""
_SWITCHED = {"true": "on", "false": "off"}


def stack_lines(ranking: Ranking) -> Iterator[str]:
    """Yield the best layout under other named stacks."""
    for stack in ranking.stacks:
        name = stack_name(stack.stack, str(ranking.query.get("framework")))
        if stack.estimate is None:
            yield f"With {name}: nothing is likely enough to fit."
            continue
        speed = stack.estimate.throughput
        text = f"{layout_text(stack.estimate.layout)}, {teraflops(speed.flops_per_second_per_device)} TFLOPS/device"
        if ranking.estimates:
            base = ranking.estimates[0].throughput.tokens_per_second_per_device
            text += f", {100.0 * (speed.tokens_per_second_per_device / base - 1.0):+.1f} %"
        yield f"With {name} (--stack {stack.stack}): best {text}."


def fp8_line(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield the gain of fp8, where the question has another precision."""
    precision = str(ranking.query.get("precision", ""))
    if precision in NARROW:
        return
    best = ranking.fp8
    if best is None:
        if presentation.device_has_fp8 is None or (presentation.device_has_fp8 and not ranking.estimates):
            return
        has_it = "no layout fits in fp8" if presentation.device_has_fp8 else "this device has no fp8"
        yield f"fp8: {has_it}."
        return
    speed = best.throughput
    text = f"fp8: best {layout_text(best.layout)}, {teraflops(speed.flops_per_second_per_device)} TFLOPS/device"
    if ranking.estimates:
        base = ranking.estimates[0].throughput.tokens_per_second_per_device
        gain = speed.tokens_per_second_per_device / base - 1 if base > 0 else 0.0
        text += f", {percent(abs(gain))} % {'faster' if gain >= 0 else 'slower'} than the best in {precision}"
    if best.provenance.assumed_peak:
        text += f"; its peak is assumed: {best.provenance.assumed_peak.rstrip('.')}"
    yield f"{text}."


_MICROSECONDS = 1e6
_RANKS, _SENDS = 0, 1
"""Processes of the trace: computations of ranks, and their sends."""


def trace_text(timeline: Timeline) -> str:
    """Return the trace as JSON text: a track for each pipeline rank, one for its sends, and its bytes alive."""
    estimate = timeline.estimate
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "layout": layout_text(estimate.layout),
            "model": estimate.model,
            "hardware": estimate.hardware,
            "step_time_s": significant(estimate.throughput.step_seconds),
            "timeline_s": significant(timeline.seconds),
            "difference": significant(timeline.difference),
        },
        "traceEvents": [*_names(timeline), *_passes(timeline), *_after(timeline), *_bytes(timeline)],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for process, name in ((_RANKS, "pipeline ranks"), (_SENDS, "sends")):
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
        for rank in range(len(timeline.passes.events)):
            named = {"name": f"rank {rank}"}
            yield {"ph": "M", "pid": process, "tid": rank, "name": "thread_name", "args": named}


def _passes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for events in timeline.passes.events:
        for event in events:
            seconds = event.end_seconds - event.start_seconds
            pass_of = {"args": {"micro_batch": event.ran.micro_batch, "chunk": event.ran.chunk}}
            yield {**_slice((_RANKS, event.rank), words(event.ran.kind), event.start_seconds, seconds), **pass_of}
            if timeline.send_seconds > 0 and event.sent:
                sent = _slice(
                    (_SENDS, event.rank), f"send {words(event.ran.kind)}", event.end_seconds, timeline.send_seconds
                )
                yield {**sent, **pass_of}


def _slice(track: tuple[int, int], name: str, start: float, seconds: float) -> dict[str, Any]:
    """Return an event with a duration on a track: a process and a rank."""
    times = {"ts": round(start * _MICROSECONDS, 3), "dur": round(seconds * _MICROSECONDS, 3)}
    return {"ph": "X", "pid": track[0], "tid": track[1], "name": name, **times}


def _after(timeline: Timeline) -> Iterator[dict[str, Any]]:
    start = timeline.passes.makespan_seconds
    for pass_ in timeline.after:
        for rank in range(len(timeline.passes.events)):
            yield _slice((_RANKS, rank), words(pass_.name), start, pass_.seconds)
        start += pass_.seconds


def _bytes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield the bytes alive on every rank, at every change."""
    for rank in range(len(timeline.passes.events)):
        yield from (_counter(rank, at, alive) for at, alive in timeline.bytes_alive(rank))


def _counter(rank: int, at: float, alive: float) -> dict[str, Any]:
    about = {"name": f"bytes alive, rank {rank}", "args": {"bytes": round(alive)}}
    return {"ph": "C", "pid": _RANKS, "ts": round(at * _MICROSECONDS, 3), **about}
