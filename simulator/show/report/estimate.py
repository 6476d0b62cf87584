"""Estimate, explanation and timeline as text for people, and the lines that all answers about layouts share.

    llama3.1-70b on 64 devices of z2000: bf16, ...       the question
    TP4 PP8 CP2 DP1: fits: needs 83.6 of 95.6 GiB ...    the answer in words
    stage  parameters  optimizer  activations            tables, as many as `-v` asks for
    Known: device measured, stack between ...            what the numbers rest on

`report.ranking` has many layouts, `report.as_json` the JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.cost.pricing.estimate import Estimate, Interval, StageMemory, Violation
from simulator.question.frameworks.stacks import DEFAULT, PROFILES, profile_of
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.units import GIB, to_gib
from simulator.search.alternatives import MIN_CHANGE
from simulator.show.report import presentation as tables
from simulator.show.report import text as say
from simulator.show.report.presentation import Column, Presentation

if TYPE_CHECKING:
    from simulator.answers.explain import Explanation
    from simulator.answers.timeline import Timeline

_MOST_STAGES = 6  # most stages of a first screen
_SMALL = 0.005  # share of a step below which a part is shown with -v only
_NEXT_OF_ESTIMATE = "-v: all stages, defaults, assumptions. Next: simulate explain, emit, compare."
_NEXT_OF_EXPLANATION = "-v: all ranks and changes, why the ranges. Next: simulate compare, emit."


def estimate_table(estimate: Estimate, shown: Presentation) -> str:
    """Return the estimate for people."""
    refused, verbose = estimate.verdict == "refused", shown.verbosity > 0
    sentences = [*say.about_lines(estimate, colour=shown.colour, full=shown.full)]
    if not refused:
        sentences.append(f"speed: {speed_sentence(estimate, shown)}")
    blocks = [f"{shown.question_block(estimate_question(estimate))}\n{shown.prose(sentences)}"]
    if estimate.violations:
        blocks.append(shown.titled("Rules broken", rules_block(estimate.violations, "what is wrong", shown)))
    explained = shown.explanation is not None and shown.verbosity == 0
    if not refused and not explained:
        # Figures of a layout that no run can have would mean nothing.
        blocks += _memory(estimate, shown)
        blocks += [*_outside(estimate, shown), *_time(estimate, shown)] if verbose else _time_sentence(estimate, shown)
        if verbose:
            blocks.append(shown.titled("Speed", shown.grid(["figure", "value"], speed_rows(estimate, shown))))
    if shown.verbosity >= 0:
        lines = [*estimate_footer(estimate, shown)] if verbose else [basis_line(estimate), _NEXT_OF_ESTIMATE]
        blocks += [*([] if explained else [launch_block(switch_rows(estimate), shown)]), shown.prose(lines)]
    if shown.explanation is not None:
        blocks += explanation_blocks(shown.explanation, shown)
    return tables.joined(blocks)


def _memory(estimate: Estimate, shown: Presentation) -> Iterator[str]:
    every, verbose = estimate.memory.stages, shown.verbosity > 0
    if not every:
        return
    stages = every if shown.full else fullest_stages(estimate, _MOST_STAGES)
    fits, left_out = tables.fitting(memory_columns(estimate, stages, after_step=verbose), shown.line)
    narrow = [shown.prose(tables.narrow_line(left_out))] if verbose and left_out else []
    title = "Memory by stage, GiB" + (f" ({len(stages)} of {len(every)})" if len(stages) < len(every) else "")
    yield shown.titled(title, "\n".join([shown.columns(fits), *narrow]))


def memory_columns(estimate: Estimate, stages: Sequence[StageMemory], *, after_step: bool) -> list[Column]:
    """Return a column for each part of the memory of stages, in GiB."""

    def column(header: str, cell: Callable[[StageMemory], str], spare: int = 0, *, is_text: bool = False) -> Column:
        return Column(header, tuple(map(cell, stages)), is_text, spare)

    columns = [column("stage", lambda s: str(s.stage)), column("layers", lambda s: str(s.layers), 20)]
    largest = {name: max(stage.parts_bytes[name] for stage in stages) for name in stages[0].parts_bytes}
    for name, size in largest.items():
        if size:
            cells = tuple(say.gib(stage.parts_bytes[name]) for stage in stages)
            spare = 6 + sum(other > size for other in largest.values())
            columns.append(Column(name.replace("_", "\n"), cells, spare=spare))
    if after_step:
        columns.append(column("after\nstep", lambda s: say.gib(s.state_bytes), 50))
    shares = tuple(stage.device_bytes / estimate.memory.capacity_bytes for stage in stages)
    return [
        *columns,
        column("allocated", lambda s: say.gib(s.allocated_bytes), 30),
        column("reserved", lambda s: say.gib(s.reserved_bytes), 40),
        column("device", lambda s: say.gib(s.device_bytes))._replace(bars=shares),
        column("peak at", lambda s: s.moment, 5, is_text=True),
    ]


def _outside(estimate: Estimate, shown: Presentation) -> Iterator[str]:
    rows = [[say.words(name), say.gib(size)] for name, size in estimate.memory.outside_parts_bytes.items() if size]
    if rows:
        title = f"Outside the allocator on stage {estimate.memory.binding_stage}, GiB"
        yield shown.titled(title, shown.grid(["part", "GiB"], rows))


def _time(estimate: Estimate, shown: Presentation) -> Iterator[str]:
    total = estimate.throughput.step_seconds
    parts = {name: seconds for name, seconds in estimate.throughput.parts_seconds.items() if seconds}
    if not parts or total <= 0:
        return
    unit, per_second = say.step_unit(total)

    def row(name: str, seconds: float) -> list[str]:
        text = say.milliseconds(seconds) if unit == "ms" else f"{seconds * per_second:.3f}"
        return [say.words(name), text, say.percent(seconds / total)]

    rows = [*(row(name, seconds) for name, seconds in parts.items()), row("step", total)]
    yield shown.titled("Time of one step", shown.grid(["part", unit, "share %"], rows))


def _time_sentence(estimate: Estimate, shown: Presentation) -> Iterator[str]:
    """Yield the parts of a step, the longest first."""
    total = estimate.throughput.step_seconds
    parts = sorted(estimate.throughput.parts_seconds.items(), key=lambda part: -part[1])
    shares = [
        f"{say.words(name)} {say.percent(seconds / total)} %" for name, seconds in parts if seconds >= _SMALL * total
    ]
    if shares:
        yield shown.prose([f"Time of a step: {', '.join(shares)}."])


def speed_rows(estimate: Estimate, shown: Presentation) -> list[list[str]]:
    """Return name and value of each figure of the speed."""
    speed = estimate.throughput
    unit, per_second = say.step_unit(speed.step_seconds)
    rows = [
        ["TFLOPS/device", say.teraflops(speed.flops_per_second_per_device)],
        ["TFLOPS/device with recomputation", say.teraflops(speed.hardware_flops_per_second_per_device)],
        ["MFU %", say.mfu_text(speed.mfu)],
        ["MFU %, causal attention", say.mfu_text(speed.causal_mfu)],
        ["tokens/s/device", say.amount(speed.tokens_per_second_per_device)],
        ["tokens/s", say.grouped(say.cluster_speed(estimate))],
        [f"step {unit}", say.amount(speed.step_seconds * per_second)],
        ["pipeline bubble %", say.percent(speed.bubble_fraction)],
    ]
    if (interval := speed.interval_seconds) is not None:
        low, high = say.amount(interval.low * per_second), say.amount(interval.high * per_second)
        rows.insert(-1, [f"step {unit}, 90 % interval", f"{low} to {high}"])
    if (run := shown.run_of(estimate)) is not None:
        rows.append([f"days for {say.count_text(run.tokens)} tokens", tables.days_text(run)])
        rows.append(["device hours", say.grouped(run.device_hours)])
        rows += [["cost", tables.cost_text(run)]] if run.cost is not None else []
    return rows


def estimate_footer(estimate: Estimate, shown: Presentation) -> Iterator[str]:
    """Yield the sources of the numbers."""
    yield from defaults_line(dict(shown.defaults))
    yield from assumed_lines(estimate)
    yield from provenance_lines(estimate, shown)


_BAR = 40  # characters of a bar for the usable memory; fewer where a line has no room for twice as many
_SHORTEST_BAR = 10
_BESIDE_BARS = 32  # characters of the columns beside the bars
_BESIDE_CHANGES = 40  # characters of the columns beside the changes
_NARROWEST_CHANGE = 30
_WIDE = 160  # characters of a line where nothing limits it
_MOST_RANKS, _CAUSES_AND_CHANGES, _FEWEST_CHANGES = 3, 6, 3
"""Most stages of a first screen of an explanation; causes and changes together, and changes beside many causes."""


def explain_table(explanation: Explanation, shown: Presentation) -> str:
    """Return an explanation for people."""
    estimate = explanation.estimate
    outcome, full = explanation.outcome or "", shown.full
    about = shown.prose(say.about_lines(estimate, colour=shown.colour, full=full, outcome=outcome))
    about += f"\n{shown.sentences(explanation.bounds)}" if explanation.bounds else ""
    blocks = [f"{shown.question_block(estimate_question(estimate))}\n{about}", *explanation_blocks(explanation, shown)]
    if shown.verbosity >= 0:
        rests_on = [*provenance_lines(estimate, shown)] if shown.full else [basis_line(estimate), _NEXT_OF_EXPLANATION]
        blocks[-1] += "\n" + shown.prose([*_contributions(estimate, full=shown.full), *rests_on])
    return tables.joined(blocks)


def explanation_blocks(explanation: Explanation, shown: Presentation) -> Iterator[str]:
    """Yield the parts of an explanation beside its estimate."""
    full, stages = shown.full, len(explanation.estimate.memory.stages)
    which = "" if full or stages <= _MOST_RANKS else f" ({_MOST_RANKS} of {stages}: -v)"
    yield shown.titled(f"Need of each pipeline rank against what is usable{which}", _bars(explanation.estimate, shown))
    if explanation.causes:
        yield shown.titled("Why", shown.prose(f"{cause}." for cause in explanation.causes))
    if explanation.changes:
        headers, rows = changes_cells(explanation)
        room = max((shown.width or _WIDE) - _BESIDE_CHANGES, _NARROWEST_CHANGE)
        short = [row for row in rows if row is rows[0] or len(row[0]) <= 2 * room]
        most = max(_CAUSES_AND_CHANGES - len(explanation.causes), _FEWEST_CHANGES)
        short = [*short[: most - 1], *short[most - 1 :][-1:]]  # more devices are the last
        short = rows if full else short
        which = "" if len(short) == len(rows) else f" ({len(short)} of {len(rows)}: -v)"
        table = shown.grid(headers, short, wrapped={headers[0]: room})
        yield shown.titled(changes_title(explanation) + which, table)
    elif not explanation.passes:
        yield shown.sentences([f"{changes_title(explanation)}: nothing that was tried."])
    yield shown.prose([longest_text(explanation)])


_MOST_CONTRIBUTIONS = 3  # contributions to a range that a first screen names


def _contributions(estimate: Estimate, *, full: bool) -> Iterator[str]:
    """Yield the contributions to each range, the largest first, and what to measure next; `full` adds reasons."""
    known = estimate.provenance
    for figure, name in (("time", "step time"), ("memory", "memory")):
        parts = [part for part in known.contributions if part.figure == figure]
        if parts:
            whole = 100 * math.hypot(*(part.half_width for part in parts))
            shown = parts if full else parts[:_MOST_CONTRIBUTIONS]
            shares = ", ".join(f"{part.name} {100 * part.half_width:.1f}" for part in shown)
            because = f": {shares}; most: {parts[0].because}" if full else f" ({shares})" * (figure == "time")
            yield f"Range of the {name}, ± {whole:.1f} %{because}."
            if parts[0].name == "unsaid" and figure == "time":
                is_open = estimate.stack == "default"
                words = "the stack (--stack NAME), which ends what is unsaid" if is_open else "its switches (--option)"
                yield f"Next to say: {words}."
    if (best := known.next_measurement) is not None:
        yield f"Next to measure: {best.run}; it would leave ± {100 * best.half_width:.1f} % of the step time."


def fullest_stages(estimate: Estimate, most: int) -> tuple[StageMemory, ...]:
    """Return the first, the last and the fullest stages, in their order; all of no more than `most`."""
    stages = estimate.memory.stages
    if len(stages) <= most:
        return stages
    fullest = sorted(stages[1:-1], key=lambda stage: -stage.device_bytes)[: most - 2]
    return tuple(stage for stage in stages if stage in (stages[0], stages[-1], *fullest))


def _bars(estimate: Estimate, shown: Presentation) -> str:
    width = shown.width
    whole = _BAR if width is None else min(max((width - _BESIDE_BARS) // 2, _SHORTEST_BAR), _BAR)
    stages = estimate.memory.stages if shown.full else fullest_stages(estimate, _MOST_RANKS)
    fractions = [stage.device_bytes / (stage.capacity_bytes or estimate.memory.capacity_bytes) for stage in stages]
    rows = [
        [str(stage.stage), say.gib(stage.device_bytes), say.percent(fraction)]
        for stage, fraction in zip(stages, fractions, strict=True)
    ]
    if shown.style == "html":
        return shown.grid(["rank", "GiB", "% of usable"], rows, (), bars={2: fractions})
    for row, fraction in zip(rows, fractions, strict=True):
        inside = min(round(whole * fraction), whole)
        beyond = max(round(whole * min(fraction, 2.0)) - whole, 0)
        row.insert(1, "#" * inside + "." * (whole - inside) + "|" + "!" * beyond)
    return shown.grid(["rank", "", "GiB", "% of usable"], rows, (1,))


def changes_title(explanation: Explanation) -> str:
    """Return the heading over the changes, with the probability to fit."""
    probability = explanation.min_fit_probability
    sure = "" if probability is None else f" with at least {100.0 * probability:g} %"
    return f"What would make it fit{sure}"


def changes_cells(explanation: Explanation) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the changes that help."""
    rows = [
        [
            say.short_lists(change.text),
            say.gib(change.estimate.memory.device_bytes),
            say.fit_text(change.estimate),
            f"{100 * (change.speed_ratio - 1):+.1f}",
            say.grouped(say.cluster_speed(change.estimate)),
        ]
        for change in explanation.changes
    ]
    return ["options to add", "GiB", "fit\n%", "speed of a\ndevice, %", "tokens/s"], rows


def longest_text(explanation: Explanation) -> str:
    """Return a sentence on the longest sequence and the largest micro batch."""
    length, batch = explanation.longest_sequence, explanation.largest_micro_batch
    most = "none" if length is None else f"{say.grouped(length)} tokens"
    return f"Longest sequence that fits this layout: {most}{f'; largest micro batch: {batch}' if batch else ''}."


_ALWAYS = ("tensor_parallel", "pipeline_parallel", "data_parallel")
_SIZES = (
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel"),
    *("data_parallel", "virtual_stages"),
)


def brief_layout(layout: Layout, framework: str) -> str:
    """Return a layout in words: sizes beyond 1, and the rest where it is other than usual."""
    sizes = {name: getattr(layout, name) for name in _SIZES}
    labels = (f"{BY_NAME[name].label}{size}" for name, size in sizes.items() if name in _ALWAYS or size > 1)
    parts = [" ".join(labels), f"micro batch {layout.micro_batch_size}"]
    parts.append("no recompute" if layout.recompute == "none" else f"recompute {say.recompute_text(layout)}")
    if layout.zero_stage != PROFILES[framework].zero_stage_on(layout.devices):
        parts.append(f"ZeRO {layout.zero_stage}")
    if layout.sequence_parallel != (layout.tensor_parallel > 1):
        parts.append(f"{'' if layout.sequence_parallel else 'no '}sequence parallelism")
    if layout.schedule != BY_NAME["schedule"].default:
        parts.append(f"schedule {layout.schedule}")
    if layout.offload != "none":
        parts.append(f"offload {layout.offload}")
    if not say.is_even(layout.stage_layers):
        parts.append(f"layers {say.cut_text(layout)}")
    return ", ".join(parts)


def half_width_text(value: float, interval: Interval | None) -> str:
    """Return half of a 90 % interval in per cent of its figure; a dash without one."""
    return "-" if interval is None or value <= 0 else f"{50.0 * (interval.high - interval.low) / value:.0f}"


def surer_text(first: Estimate, surer: Estimate, name: str) -> str:
    """Return the clause on what is surer than the first: in its speed, or alone in that it fits."""
    known, other = (
        math.inf if (ends := each.throughput.interval_seconds) is None else ends.high / each.throughput.step_seconds
        for each in (first, surer)
    )
    width = half_width_text(surer.throughput.step_seconds, surer.throughput.interval_seconds)
    word = "surer" if other <= known else "likelier to fit"
    return f"; {word}: {name} (± {width} %, fits {say.fit_text(surer)} %)"


def speed_sentence(estimate: Estimate, shown: Presentation) -> str:
    """Return the speed of an estimate, and for given tokens the duration."""
    speed = estimate.throughput
    unit, per_second = say.step_unit(speed.step_seconds)
    known, reach = half_width_text(speed.step_seconds, speed.interval_seconds), ""
    of_speed = f" (± {known} %)" if known != "-" else ""
    if (ends := speed.interval_seconds) and estimate.lengths and estimate.lengths.shortest_step_seconds is not None:
        of_speed = " of full samples"
        low, high = say.amount(ends.low * per_second), say.amount(ends.high * per_second)
        reach = f" ({low} to {high}, from samples of one token to full ones)"
    parts = [
        f"{say.grouped(say.cluster_speed(estimate))} tokens/s{of_speed}",
        say.both_mfu_text(speed),
        f"{say.amount(speed.step_seconds * per_second)} {unit} a step{reach}",
    ]
    if (run := shown.run_of(estimate)) is not None:
        parts.append(f"{tables.days_text(run)} days for {say.count_text(run.tokens)} tokens")
        parts += [f"cost {tables.cost_text(run)}"] if run.cost is not None else []
    return ", ".join(parts)


def launch_block(rows: Sequence[Sequence[str]], shown: Presentation) -> str:
    """Return the effects of other switches in the reader's launch, signed as that change; empty without any."""
    head = ["if your launch has", "tokens/s", "GiB", ""]
    return shown.grid(head, rows, (0, 3), {"": _NOTE_WIDTH}) if rows else ""


def switch_rows(estimate: Estimate) -> list[list[str]]:
    """Return the rows of the assumed switches that change speed or memory most."""
    need = estimate.memory.device_bytes
    turns = estimate.open is None and not estimate.other_memory  # else no switch alone turns the verdict
    most = sorted(estimate.assumed, key=lambda tried: -abs(tried.speed_change) - abs(tried.memory_bytes) / need)
    rows = []
    for tried in filter(most[:_MOST_SWITCHES].__contains__, estimate.assumed):
        faster = tried.verdict != "does_not_fit" and abs(tried.speed_change) >= MIN_CHANGE
        cells = [
            f"{100.0 * tried.other_speed_change:+.1f} %" if faster else "-",
            f"{-to_gib(tried.memory_bytes):+.2f}" if abs(tried.memory_bytes) >= _LEAST_SHOWN_BYTES else "-",
            _VERDICTS[tried.verdict] if turns and tried.verdict != estimate.verdict else "",
        ]
        if cells != ["-", "-", ""]:
            rows.append([f"--option {tried.switch}={tried.other}", *cells])
    return rows


_MOST_SWITCHES = 3  # most switches of a first screen: those that change speed and memory most
_NOTE_WIDTH = 20  # characters of the note beside a switch
_NARROWEST = 12  # fewest characters of a column of sentences
_VERDICTS = {"fits": "fits", "starved": "is starved", "does_not_fit": "does not fit", "refused": "is refused"}
_LEAST_SHOWN_BYTES = 0.005 * GIB  # smallest memory that does not round to 0, in bytes
_SWITCHED = {"true": "on", "false": "off"}


def rules_block(broken: Sequence[Violation], header: str, shown: Presentation) -> str:
    """Return what rules say, under a header, with a fix each."""
    rows = [[violation.rule, violation.message, violation.fix] for violation in broken]
    beside = max(len(row[0]) for row in rows) + 2 * tables.BETWEEN
    room = 2 * tables.PROSE_WIDTH if shown.width is None else max(shown.width - beside, 2 * _NARROWEST)
    whole = sum(max(len(row[column]) for row in rows) for column in (1, 2))
    fix = max(2 * room // 5, *(len(word) for row in rows for word in row[2].split()))  # an option stays whole
    lengths = {} if whole <= room else {header: max(room - fix, _NARROWEST), "fix": fix}
    return shown.grid(["rule", header, "fix"], rows, range(3), lengths)


def adapters_text(rank: object, options: Mapping[str, str]) -> str:
    """Return what is trained instead of all weights."""
    bits = f" over {options.get('quantised_bits', '4')} bits" if options.get("quantised_base") == "true" else ""
    return f"LoRA of rank {rank}{bits}"


def estimate_question(estimate: Estimate) -> str:
    """Return the question, on one line."""
    text = f"{estimate.model} on {say.counted(estimate.devices, 'device')} of {estimate.hardware}: {estimate.precision}"
    if estimate.lora_rank:
        text += f", {adapters_text(estimate.lora_rank, estimate.question.options)}"
    batch = say.batch_text(estimate.global_batch_size, estimate.seq_length, estimate.lengths)
    return f"{text}, {batch}, {switches_text(estimate.stack, estimate.framework, estimate.provenance.release)}"


def switches_text(stack: str, framework: str, release: str = "") -> str:
    """Return the framework of a question with the source of its switches."""
    return f"{framework} with {release or stack_name(stack, framework)}"


def stack_name(stack: str, framework: str) -> str:
    """Return the source of a stack's switches, in words."""
    return f"the defaults of {profile_of(framework).version}" if stack == DEFAULT else f"stack {stack}"


def defaults_line(settings: Mapping[str, object]) -> Iterator[str]:
    """Yield the line on options that were left to their default."""
    text = say.settings_text(settings)
    if text:
        yield f"Defaults used: {text}."


def basis_line(estimate: Estimate) -> str:
    """Return the sources of the numbers."""
    return " ".join([status_line(estimate), *peak_line(estimate)])


def status_line(estimate: Estimate) -> str:
    """Return the question's place beside the measured runs, and the source of its coefficients."""
    return f"Known: {known_text(estimate)} ({estimate.provenance.calibration})."


def known_text(estimate: Estimate) -> str:
    """Return how well device, stack and layout are known."""
    known = estimate.provenance
    return f"device {known.device}, stack {known.stack}, layout {known.layout}"


def peak_line(estimate: Estimate) -> Iterator[str]:
    """Yield the line on a peak that no document states."""
    if peak := estimate.provenance.assumed_peak:
        yield f"Assumed {estimate.precision} peak: {peak.rstrip('.')}."


def provenance_lines(estimate: Estimate, shown: Presentation) -> Iterator[str]:
    """Yield the sources of the numbers."""
    notes = estimate.provenance.notes
    yield status_line(estimate)
    yield (
        "TFLOPS counts model FLOPs with full (non-causal) attention; "
        f"MFU divides it by the dense {estimate.precision} peak."
    )
    yield from peak_line(estimate)
    if shown.verbosity > 0:
        yield from (f"Assumed: {note}" for note in notes)
    elif notes:
        yield f"{len(notes)} assumption{'s' if len(notes) > 1 else ''} behind these numbers: -v lists them."


def assumed_lines(estimate: Estimate) -> Iterator[str]:
    """Yield the source of the switches, and the effect of the assumed ones that matter."""
    whose = stack_name(estimate.stack, estimate.framework)
    yield f"Switches: {whose} (--stack, --option; `simulate frameworks {estimate.framework}`)."
    for switch in estimate.assumed if estimate.open is None else ():
        worth = []
        if abs(switch.speed_change) >= MIN_CHANGE:
            worth.append(f"{100.0 * switch.other_speed_change:+.1f} % tokens/s")
        if abs(switch.memory_bytes) >= _LEAST_SHOWN_BYTES:
            worth.append(f"{-to_gib(switch.memory_bytes):+.2f} GiB")
        if switch.verdict != estimate.verdict and not estimate.other_memory:
            worth.append(_VERDICTS[switch.verdict])
        assumed = f"Assumed {switch.switch} {_SWITCHED.get(switch.value, switch.value)}"
        yield f"{assumed}; with --option {switch.switch}={switch.other}: {', '.join(worth)}."


_MICROSECONDS = 1e6
_RANKS, _SENDS = 0, 1  # processes of the trace: computations of ranks, and their sends


def trace_text(timeline: Timeline) -> str:
    """Return a timeline as trace events in JSON for Perfetto: a track per pipeline rank, its sends, its bytes."""
    estimate = timeline.estimate
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "layout": say.layout_text(estimate.layout),
            "model": estimate.model,
            "hardware": estimate.hardware,
            "step_time_s": say.significant(estimate.throughput.step_seconds),
            "timeline_s": say.significant(timeline.seconds),
            "difference": say.significant(timeline.difference),
        },
        "traceEvents": [*_names(timeline), *_passes(timeline), *_after(timeline)],
    }
    import json  # noqa: PLC0415  start-up time

    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for process, name in ((_RANKS, "pipeline ranks"), (_SENDS, "sends")):
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
        for rank in range(len(timeline.passes.events)):
            named = {"name": f"rank {rank}"}
            yield {"ph": "M", "pid": process, "tid": rank, "name": "thread_name", "args": named}


def _passes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    sending = timeline.send_seconds
    for event in (event for events in timeline.passes.events for event in events):
        kind, start, end = say.words(event.ran.kind), event.start_seconds, event.end_seconds
        pass_of = {"args": {"micro_batch": event.ran.micro_batch, "chunk": event.ran.chunk}}
        yield {**_slice((_RANKS, event.rank), kind, start, end - start), **pass_of}
        if sending > 0 and event.sent:
            yield {**_slice((_SENDS, event.rank), f"send {kind}", end, sending), **pass_of}


def _slice(track: tuple[int, int], name: str, start: float, seconds: float) -> dict[str, Any]:
    """Return an event with a duration on a track: a process and a rank."""
    times = {"ts": round(start * _MICROSECONDS, 3), "dur": round(seconds * _MICROSECONDS, 3)}
    return {"ph": "X", "pid": track[0], "tid": track[1], "name": name, **times}


def _after(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield what follows the passes on every rank, then the bytes alive there, at every change."""
    start, ranks = timeline.passes.makespan_seconds, range(len(timeline.passes.events))
    for name, seconds in timeline.after_seconds.items():
        yield from (_slice((_RANKS, rank), say.words(name), start, seconds) for rank in ranks)
        start += seconds
    for rank in ranks:
        for at, alive in timeline.bytes_alive(rank):
            about = {"name": f"bytes alive, rank {rank}", "args": {"bytes": round(alive)}}
            yield {"ph": "C", "pid": _RANKS, "ts": round(at * _MICROSECONDS, 3), **about}
