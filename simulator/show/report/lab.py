"""Answers of the lab as tables, measured beside predicted: launches, probes, traced stages.

    #  layout          predicted  90 % interval  measured  error %      simulate validate
    rate               value                                            simulate calibrate --probe
    part               traced     predicted                             simulate trace

Each writer takes the answer and its `Presentation`, and returns text; `simulator.lab` makes the answers.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from simulator.lab.probe.rates import Rates
from simulator.lab.probe.run import Prepared, Probed, ProbeDesign, rates_command
from simulator.lab.runner import campaign as runs
from simulator.lab.runner.engine import Launcher, shell_line
from simulator.lab.trace.tracing import TraceComparison
from simulator.question.units import GIGA, MEGA, to_mib
from simulator.records import Record
from simulator.show.report import text as say
from simulator.show.report.presentation import Presentation, joined

_LONGEST_OUTCOME = 48
_WIDE = 0.2  # smallest distance of the quartiles over the median with which a step time is called uncertain
_TAIL_LINES = 8  # lines of a failed rank's log that are shown without `-v`
_FEW_PINS = 3  # most coefficients named beside a launch


class Validation(Record, kw_only=True):
    """Result of a campaign, and what was learned from it."""

    campaign: runs.Campaign
    rows_file: Path
    """File of the measured rows."""
    learned: runs.Learned | None = None
    """Changes of the calibration; None where nothing was to be learned."""


def validate_table(validation: Validation, shown: Presentation) -> str:
    """Return one row for each layout, the failures, and the new calibration's effects."""
    campaign, verbosity = validation.campaign, shown.verbosity
    comparisons = campaign.comparisons
    first = comparisons[0].estimate
    title = (
        f"{first.model} on {say.counted(first.devices, 'device')} of {first.hardware}: {first.precision}, sequence "
        f"{first.seq_length}, global batch {first.global_batch_size}, {first.framework}"
    )
    headers = ["#", "layout", "", "predicted", "90 % interval", "measured", "error %", "inside", "runs", "outcome"]
    rows: list[list[str]] = []
    for number, compared in enumerate(comparisons, start=1):
        memory, step = compared.predicted_memory, compared.estimate.throughput
        layout = say.sharded_layout_text(compared.estimate.layout)
        need = [_mib(memory[0]), say.span_text(memory[1], _mib), *_measured(compared.memory, _mib)]
        outcome = [str(len(compared.ran)), _outcome(compared, colour=shown.colour)]
        rows.append([str(number), layout, "memory MiB", *need, *outcome])
        seconds = [say.milliseconds(step.step_seconds), say.span_text(step.interval_seconds, say.milliseconds)]
        rows.append(["", "", "step ms", *seconds, *_measured(compared.step, say.milliseconds), "", ""])
    blocks = [title, shown.grid(headers, rows, (1, 2, 9))]
    if verbosity > 0:
        blocks += [text for compared in comparisons if (text := _ranks(compared, shown))]
    if verbosity >= 0:
        lines = [line for compared in comparisons for line in _failed(compared, full=verbosity > 0)]
        lines += [
            f"{compared.title}: its steps scatter, quartiles {say.percent(compared.scatter)} % of the median apart: "
            "other work ran on the machine, or the launch was short"
            for compared in comparisons
            if compared.scatter > _WIDE
        ]
        lines += _refused(campaign.plan.refused)
        if verbosity > 0:
            notes = [note for compared in comparisons for note in compared.estimate.provenance.notes]
            lines += [f"Assumed: {note}" for note in dict.fromkeys(notes)]
        blocks.append(shown.sentences([*lines, *_validation_notes(validation)]))
    if validation.learned is not None:
        blocks += _learned(validation.learned, shown)
    return "\n\n".join(blocks) + "\n"


def dry_run_text(plan: runs.LaunchPlan, launcher: Launcher) -> str:
    """Return the scripts and the command of each planned launch, as a shell takes them."""
    blocks = []
    for launch in plan.launches:
        scripts = [path for path in launch.command.files if path.suffix == ".sh"]
        texts = [f"cat > {shlex.quote(str(path))} <<'END'\n{path.read_text(encoding='utf-8')}END\n" for path in scripts]
        blocks.append("".join([f"# launch {launch.folder.name}\n", *texts, launcher.command_text(launch)]))
    known = [f"# measured already: {title}" for title, rows in plan.known.items() if rows]
    return "\n".join([*blocks, *known, *(f"# {line}" for line in _refused(plan.refused))]).rstrip("\n") + "\n"


def _measured(figure: runs.ComparedFigure | None, text: Callable[[float], str]) -> list[str]:
    if figure is None:
        return ["", "", ""]
    inside = "" if figure.inside is None else "yes" if figure.inside else "no"
    return [text(figure.measured), _signed(figure.error), inside]


def _outcome(compared: runs.LayoutComparison, *, colour: bool) -> str:
    """Return how the launches ended; successful ones of an earlier campaign stand apart."""
    words = "not launched"
    if compared.ran:
        words = "ran" if not compared.earlier else f"ran, {compared.earlier} of {len(compared.rows)} earlier"
        words = "ran earlier" if compared.earlier == len(compared.rows) else words
    failed = next(iter((*filter(None, [compared.contradiction]), *compared.failures)), "")
    if len(failed) > _LONGEST_OUTCOME:
        failed = f"{failed[: _LONGEST_OUTCOME - 3]}..."
    return say.in_colour(failed or words, "ran" if compared.ran and not failed else "failed", colour=colour)


def _ranks(compared: runs.LayoutComparison, shown: Presentation) -> str:
    """Return every rank, and the spread of the steps of each launch; empty where nothing was measured."""
    blocks = []
    if compared.ranks:
        headers = ["rank", "stage", "MiB\npredicted", "\nmeasured", "\nerror %"]
        headers += ["forward ms\npredicted", "\nmeasured", "backward ms\npredicted", "\nmeasured"]
        # A processor's ranks have no tool that shows a device.
        device = any(rank.device_bytes is not None for rank in compared.ranks)
        rows = []
        for rank in compared.ranks:
            memory = [str(rank.rank), str(rank.stage), _mib(rank.predicted), _mib(rank.measured), _signed(rank.error)]
            times = [rank.predicted_forward_seconds, rank.forward_seconds]
            times += [rank.predicted_backward_seconds, rank.backward_seconds]
            whole = [rank.predicted_device_bytes, rank.device_bytes] if device else []
            cells = [_or_empty(seconds, say.milliseconds) for seconds in times]
            rows.append([*memory, *cells, *(_or_empty(size, _mib) for size in whole)])
        blocks.append(shown.grid([*headers, *(["device MiB\npredicted", "\nmeasured"] if device else [])], rows, ()))
    blocks += [
        f"{row.key}: {spread.samples} steps, median {say.milliseconds(row.step_seconds or 0.0)} ms, "
        f"{say.milliseconds(spread.minimum)} to {say.milliseconds(spread.maximum)}, "
        f"quartiles {say.milliseconds(spread.interquartile)} apart"
        for row in compared.ran
        if (spread := row.step_time_spread) is not None
    ]
    title = f"{say.sharded_layout_text(compared.estimate.layout)}: peak of every rank, and its passes in a step"
    return "\n".join([title, *blocks]) if blocks else ""


def _failed(compared: runs.LayoutComparison, *, full: bool) -> Iterator[str]:
    """Yield lines on failed launches."""
    for launched in compared.launched:
        outcome = launched.outcome
        if outcome.kind != "ok":
            failure = ": ".join(filter(None, (compared.title, outcome.kind, outcome.error)))
            yield f"{failure}; its log: {launched.launch.log}"
            yield from (f"    {line}" for line in (outcome.tail if full else outcome.tail[-_TAIL_LINES:]))
    if compared.contradiction:
        yield f"{compared.title}: {compared.contradiction}"


def _refused(refused: Sequence[runs.Refused]) -> Iterator[str]:
    """Yield the refused layouts that are faster than a launched one, each reason once."""
    by_reason: dict[str, list[runs.Refused]] = {}
    for refusal in refused:
        by_reason.setdefault(refusal.reason, []).append(refusal)
    for reason, same in by_reason.items():
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        yield f"Not launched: {say.sharded_layout_text(same[0].layout)}{more}: {reason}"


def _validation_notes(validation: Validation) -> Iterator[str]:
    campaign, rows_file = validation.campaign, validation.rows_file
    ran = any(compared.ran for compared in campaign.comparisons)
    if ran:
        yield "Memory is the tensors' peak on the fullest rank. Error is predicted over measured, less one."
    if campaign.interrupted_by:
        yield "Interrupted: what had been measured by then is kept."
    if validation.learned is None and ran:
        yield f"Rows: {rows_file}; `simulate calibrate {rows_file}` fits coefficients to them."


def _learned(learned: runs.Learned, shown: Presentation) -> Iterator[str]:
    """Yield the ranking before and after, with the measured steps."""
    lines = list(learned.reasons)
    if learned.stored:
        headers = ["now", "before", "layout", "step ms\nbefore", "\nnow", "90 % interval\nbefore", "\nnow", "measured"]
        table = shown.grid(headers, map(_moved, learned.moved), (2,))
        yield f"Ranking with what {learned.rows} rows say\n\n{table}"
        lines.append(f"Calibration: {learned.path}; `--calibration {learned.path}` ranks and estimates by it.")
    else:
        lines.append("Nothing of these rows could be stored; the ranking stays as it was.")
    yield shown.sentences(lines)


def _moved(moved: runs.Moved) -> list[str]:
    places = ("-" if place is None else str(place) for place in (moved.after, moved.before))
    both = (moved.estimate_before, moved.estimate_after)
    steps = ("" if e is None else say.milliseconds(e.throughput.step_seconds) for e in both)
    spans = ("" if e is None else say.span_text(e.throughput.interval_seconds, say.milliseconds) for e in both)
    return [
        *places,
        say.sharded_layout_text(moved.layout),
        *steps,
        *spans,
        _or_empty(moved.measured_seconds, say.milliseconds),
    ]


def _or_empty(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


def _mib(size: float) -> str:
    return say.amount(to_mib(size))


def _signed(fraction: float) -> str:
    text = say.percent(fraction)
    return text if text.startswith("-") or text == "0.0" else f"+{text}"


def probe_table(probed: Probed, shown: Presentation) -> str:
    """Return the rates, the launches with their errors before and after the fit, and how to use the result."""
    headers = ["#", "launch", "measured ms", "before ms", "error %", "fitted ms", "error %", "pins down"]
    rows = []
    for number, launch in enumerate(probed.compared, start=1):
        measured, before, after = launch.measured_seconds, launch.planned.step_seconds, launch.after_seconds
        cells = [_or_empty(measured, say.milliseconds), say.milliseconds(before), _error(before, measured)]
        cells += [_or_empty(after, say.milliseconds), _error(after, measured), _pins(launch.planned.pins)]
        rows.append([str(number), launch.planned.candidate.title, *cells])
    title = "Step time predicted from the rates, measured, and after the fit"
    blocks = [_rates(probed.rates, shown), shown.titled(title, shown.grid(headers, rows, (1, 7)))]
    if shown.verbosity >= 0:
        blocks.append(shown.sentences(_probe_notes(probed)))
    return joined(blocks)


def outlook_table(ready: Prepared, shown: Presentation) -> str:
    """Return the planned measurements and launches."""
    rests_on = "the rates in the folder" if ready.measured else "the numbers of the spec"
    lines = [f"Plan from {rests_on}: about {ready.design.seconds:.0f} s of launches."]
    if ready.measured is None:
        lines.append("The rates are measured first, and may change the choice of launches:")
        command = rates_command(ready.request)
        lines.append("    " + shell_line(command.arguments, command.environment))
    return joined([_plan(ready.design, shown), shown.sentences(lines)])


def _rates(rates: Rates, shown: Presentation) -> str:
    """Return one line for each rate; a share is of the peak above it."""
    rows: list[list[str]] = []
    for precision, peak in rates.peak_flops.items():
        rows.append([f"{precision} matrix products, best", f"{say.amount(peak / GIGA)} GFLOP/s"])
        gemm, attention = rates.gemm_efficiency[precision], rates.attention[precision]
        rows.append([f"{precision} matrix products, median over sizes", f"{say.percent(gemm.value)} %"])
        rows.append([f"{precision} attention, wide heads and long sequences", f"{say.percent(attention.efficiency)} %"])
    rows.append(["memory, best", f"{say.amount(rates.memory_bandwidth / GIGA)} GB/s"])
    for precision, share in rates.memory_efficiency.items():
        rows.append([f"{precision} elementwise kernels", f"{say.percent(share.value)} %"])
    per_parameter = rates.optimizer_seconds_per_parameter.value
    rows.append(["optimizer update", f"{say.amount(per_parameter * GIGA)} ns per parameter"])
    if rates.host_bandwidth is not None:
        rows.append(["copies from the host", f"{say.amount(rates.host_bandwidth / GIGA)} GB/s"])
    if rates.link is not None:
        rows.append(["link between ranks", f"{say.amount(rates.link.bandwidth_bytes_per_second / GIGA)} GB/s"])
        rows.append(["its latency", f"{say.amount(rates.link.latency_seconds * MEGA)} us"])
    return shown.titled("Rates", shown.grid(["rate", "value"], rows))


def _plan(design: ProbeDesign, shown: Presentation) -> str:
    rows = []
    for number, launch in enumerate(design.launches, start=1):
        seconds = [say.milliseconds(launch.step_seconds), f"{launch.launch_seconds:.0f}"]
        rows.append([str(number), launch.candidate.title, *seconds, _pins(launch.pins)])
    return shown.titled("Plan", shown.grid(["#", "launch", "step ms", "launch s", "pins down"], rows, (1, 4)))


def _pins(names: Sequence[str]) -> str:
    more = len(names) - _FEW_PINS
    return ", ".join(names[:_FEW_PINS]) + (f" and {more} more" if more > 0 else "")


def _error(predicted: float | None, measured: float | None) -> str:
    return "" if predicted is None or measured is None else f"{100.0 * (predicted / measured - 1.0):+.1f}"


def _probe_notes(probed: Probed) -> Iterator[str]:
    for compared in probed.campaign.comparisons:
        yield from (f"{compared.title}: {failure}" for failure in compared.failures)
    if probed.campaign.interrupted_by:
        yield "Interrupted: what had been measured by then is kept; --resume continues."
    for when, seconds in (("before", attrgetter("planned.step_seconds")), ("after", attrgetter("after_seconds"))):
        pairs = [(seconds(each), each.measured_seconds) for each in probed.compared]
        errors = [abs(predicted / measured - 1.0) for predicted, measured in pairs if None not in (predicted, measured)]
        if errors:
            median, worst = say.percent(statistics.median(errors)), say.percent(max(errors))
            yield f"Step time {when} the fit: median error {median} %, worst {worst} %."
    if probed.undetermined:
        yield f"At their priors, as no launch decides them: {', '.join(probed.undetermined)}."
    yield f"Rows: {probed.request.rows_file}"
    if probed.calibration_file is None:
        reasons = [probed.fitted.not_stored("time")] if probed.fitted is not None else ["no launch ended well"]
        yield f"No calibration is written: {'; '.join(reasons)}."
        return
    hardware, calibration = (shlex.quote(str(path)) for path in (probed.spec_file, probed.calibration_file))
    yield f"Use it: simulate --framework torch --hardware {hardware} --calibration {calibration} --model ..."


def trace_table(comparison: TraceComparison, shown: Presentation) -> str:
    """Return the comparison of a traced stage for people."""
    estimate, traced, predicted = comparison.estimate, comparison.traced, comparison.predicted
    question = (
        f"{estimate.model} on {say.counted(estimate.devices, 'device')}: {estimate.precision}, sequence "
        f"{estimate.seq_length}, global batch {estimate.global_batch_size}, torch"
    )
    answer = (
        f"stage {traced.stage} of {estimate.layout.pipeline_parallel} ({predicted.layers} layers): "
        f"{say.gib(traced.peak_bytes)} GiB traced at {traced.moment}, {say.gib(predicted.allocated_bytes)} predicted "
        f"at {predicted.moment} ({'+' if comparison.difference >= 0.0 else ''}{say.percent(comparison.difference)} %)"
    )
    sizes = [*comparison.rows, ("peak", traced.peak_bytes, predicted.allocated_bytes)]
    rows = [[name, say.gib(alive), say.gib(need)] for name, alive, need in sizes]
    parts = [[name, say.gib(size)] for name, size in sorted(traced.parts_bytes.items(), key=lambda part: -part[1])]
    blocks = [
        shown.titled(question, shown.sentences([say.sharded_layout_text(estimate.layout), answer])),
        shown.titled("Bytes alive at the peak, GiB", shown.grid(["part", "traced", "predicted"], rows)),
        shown.titled("Traced by category, GiB", shown.grid(["category", "GiB"], parts)),
    ]
    if shown.verbosity >= 0:
        blocks.append(shown.sentences(_trace_notes(comparison)))
    return "\n\n".join(blocks) + "\n"


def _trace_notes(comparison: TraceComparison) -> list[str]:
    traced = comparison.traced
    batches = f"{traced.micro_batches} micro batch{'' if traced.micro_batches == 1 else 'es'}"
    trainer = f"This is the reference trainer on torch at ZeRO {comparison.estimate.layout.zero_stage}"
    taken = f"{say.amount(traced.seconds)} s and {to_mib(traced.resident_bytes):.0f} MiB of memory"
    return [
        f"{say.gib(traced.base_bytes)} GiB are alive between steps.",
        f"Traced {batches} in {taken}, torch {traced.torch_version}.",
        f"{trainer}; `simulate estimate` prices Megatron at ZeRO 1 unless told otherwise, which needs another amount.",
        "Tensors only: no workspaces of libraries, no device context, no fragmentation.",
    ]
