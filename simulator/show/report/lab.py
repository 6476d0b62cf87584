"""What the lab measured beside what was predicted, as tables: launches, probes, traced stages.

#  layout          predicted  90 % interval  measured  error %      simulate validate
rate               value                                            simulate calibrate --probe
part               traced     predicted                             simulate trace
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.cost.pricing.estimate import Interval
from simulator.lab.probe.launches import Compared, Probed
from simulator.lab.probe.measure import rates_command
from simulator.lab.probe.plan import ProbeDesign
from simulator.lab.probe.prepare import Prepared
from simulator.lab.probe.summary import Rates
from simulator.lab.runner.campaign import Campaign, LaunchPlan, Refused
from simulator.lab.runner.compare import ComparedFigure, LayoutComparison, RankFigure
from simulator.lab.runner.launch import Launch, Launcher, shell_line
from simulator.lab.runner.learn import Learned, Moved
from simulator.lab.trace.result import TraceComparison
from simulator.question.units import GIGA, MEGA, to_mib
from simulator.show.report.presentation import Presentation
from simulator.show.report.tables import Style, grid, paragraph, titled
from simulator.show.report.text import amount, devices_text, gib, in_colour, milliseconds, percent, sharded_layout_text

Shown = Callable[[float], str]
_LONGEST_OUTCOME = 48
_WIDE = 0.2
"""Smallest distance of the quartiles over the median with which a step time is called uncertain."""
_TAIL_LINES = 8
"""Lines of a failed rank's log that are shown without `-v`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Result of a campaign, and what was learned from it."""

    campaign: Campaign
    rows_file: Path
    """File of the measured rows."""
    learned: Learned | None = None
    """Changes of the calibration; None where nothing was to be learned."""


def validate_table(validation: Validation, presentation: Presentation, style: Style) -> str:
    """Return one row for each layout, the failures, and the new calibration's effects."""
    campaign, verbosity = validation.campaign, presentation.verbosity
    blocks = [_title(campaign), _summary(campaign.comparisons, style, colour=presentation.colour)]
    if verbosity > 0:
        blocks += [text for compared in campaign.comparisons if (text := _ranks(compared, style))]
    if verbosity >= 0:
        lines = [line for compared in campaign.comparisons for line in _failed(compared, full=verbosity > 0)]
        lines += [line for compared in campaign.comparisons for line in _doubts(compared)]
        lines += list(_refused(campaign.plan.refused))
        if verbosity > 0:
            lines += _notes(campaign.comparisons)
        lines += _closing(validation)
        blocks.append(paragraph(lines, style))
    if validation.learned is not None:
        blocks += _learned(validation.learned, style)
    return "\n\n".join(blocks) + "\n"


def dry_run_text(plan: LaunchPlan, launcher: Launcher) -> str:
    """Return the scripts and the command of each planned launch, as a shell takes them."""
    blocks = [
        "".join([f"# launch {launch.folder.name}\n", *_scripts(launch), launcher.command_text(launch)])
        for launch in plan.launches
    ]
    lines = [f"# {line}" for line in _refused(plan.refused)]
    known = [f"# measured already: {title}" for title, rows in plan.known.items() if rows]
    return "\n".join([*blocks, *known, *lines]).rstrip("\n") + "\n"


def _scripts(launch: Launch) -> Iterator[str]:
    """Yield the scripts that were written for a launch, each as the command that writes it again."""
    for path in launch.command.files:
        if path.suffix == ".sh":
            yield f"cat > {shlex.quote(str(path))} <<'END'\n{path.read_text(encoding='utf-8')}END\n"


def _title(campaign: Campaign) -> str:
    first = campaign.comparisons[0].estimate
    return (
        f"{first.model} on {devices_text(first.devices)} of {first.hardware}: {first.precision}, sequence "
        f"{first.seq_length}, global batch {first.global_batch_size}, {first.framework}"
    )


def _summary(comparisons: Sequence[LayoutComparison], style: Style, *, colour: bool) -> str:
    """Return two lines for each layout: memory of its fullest rank, and time of a step."""
    headers = ["#", "layout", "", "predicted", "90 % interval", "measured", "error %", "inside", "runs", "outcome"]
    rows: list[list[str]] = []
    for number, compared in enumerate(comparisons, start=1):
        outcome = [str(len(compared.ran)), _outcome(compared, colour=colour)]
        memory, step = compared.predicted_memory, compared.estimate.throughput
        about = [str(number), sharded_layout_text(compared.estimate.layout), "memory MiB"]
        rows.append([*about, _mib(memory[0]), _span(memory[1], _mib), *_measured(compared.memory, _mib), *outcome])
        predicted = [milliseconds(step.step_seconds), _span(step.interval_seconds, milliseconds)]
        rows.append(["", "", "step ms", *predicted, *_measured(compared.step, milliseconds), "", ""])
    return grid(headers, rows, style, text_columns=(1, 2, 9))


def _measured(figure: ComparedFigure | None, shown: Shown) -> list[str]:
    if figure is None:
        return ["", "", ""]
    inside = "" if figure.inside is None else "yes" if figure.inside else "no"
    return [shown(figure.measured), _signed(figure.error), inside]


def _outcome(compared: LayoutComparison, *, colour: bool) -> str:
    words = next(iter((*filter(None, [compared.contradiction]), *compared.failures)), _ran(compared))
    words = words if len(words) <= _LONGEST_OUTCOME else f"{words[: _LONGEST_OUTCOME - 3]}..."
    return in_colour(words, "ran" if words == _ran(compared) and compared.ran else "failed", colour=colour)


def _ran(compared: LayoutComparison) -> str:
    """Return the successful launches in words, those of an earlier campaign apart."""
    if not compared.ran:
        return "not launched"
    if not compared.earlier:
        return "ran"
    return (
        "ran earlier"
        if compared.earlier == len(compared.rows)
        else f"ran, {compared.earlier} of {len(compared.rows)} earlier"
    )


def _doubts(compared: LayoutComparison) -> Iterator[str]:
    """Yield reasons to doubt a measured figure."""
    if compared.scatter > _WIDE:
        yield (
            f"{compared.title}: its steps scatter, quartiles {percent(compared.scatter)} % of the median apart: other "
            "work ran on the machine, or the launch was short"
        )


def _ranks(compared: LayoutComparison, style: Style) -> str:
    """Return every rank, and the spread of the steps of each launch."""
    blocks = [f"{sharded_layout_text(compared.estimate.layout)}: peak of every rank, and its passes in a step"]
    if compared.ranks:
        memory = ["rank", "stage", "MiB\npredicted", "\nmeasured", "\nerror %"]
        times = ["forward ms\npredicted", "\nmeasured", "backward ms\npredicted", "\nmeasured"]
        # A processor's ranks have no tool that shows a device.
        device = any(rank.device_bytes is not None for rank in compared.ranks)
        whole = ["device MiB\npredicted", "\nmeasured"] if device else []
        rows = [[*_rank(rank), *(_device(rank) if device else [])] for rank in compared.ranks]
        blocks.append(grid([*memory, *times, *whole], rows, style))
    blocks += [
        f"{row.key}: {spread.samples} steps, median {milliseconds(row.step_seconds or 0.0)} ms, "
        f"{milliseconds(spread.minimum)} to {milliseconds(spread.maximum)}, "
        f"quartiles {milliseconds(spread.interquartile)} apart"
        for row in compared.ran
        if (spread := row.step_time_spread) is not None
    ]
    return "\n".join(blocks) if len(blocks) > 1 else ""


def _device(rank: RankFigure) -> list[str]:
    return [_mib(rank.predicted_device_bytes), "" if rank.device_bytes is None else _mib(rank.device_bytes)]


def _rank(rank: RankFigure) -> list[str]:
    return [
        str(rank.rank),
        str(rank.stage),
        _mib(rank.predicted),
        _mib(rank.measured),
        _signed(rank.error),
        milliseconds(rank.predicted_forward_seconds),
        "" if rank.forward_seconds is None else milliseconds(rank.forward_seconds),
        milliseconds(rank.predicted_backward_seconds),
        "" if rank.backward_seconds is None else milliseconds(rank.backward_seconds),
    ]


def _failed(compared: LayoutComparison, *, full: bool) -> Iterator[str]:
    """Yield lines on failed launches."""
    for launched in compared.launched:
        outcome = launched.outcome
        if outcome.kind == "ok":
            continue
        failure = ": ".join(filter(None, (compared.title, outcome.kind, outcome.error)))
        yield f"{failure}; its log: {launched.launch.log}"
        tail = outcome.tail if full else outcome.tail[-_TAIL_LINES:]
        yield from (f"    {line}" for line in tail)
    if compared.contradiction:
        yield f"{compared.title}: {compared.contradiction}"


def _refused(refused: Sequence[Refused]) -> Iterator[str]:
    """Yield the refused layouts that are faster than a launched one, each reason once."""
    by_reason: dict[str, list[Refused]] = {}
    for refusal in refused:
        by_reason.setdefault(refusal.reason, []).append(refusal)
    for reason, same in by_reason.items():
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        yield f"Not launched: {sharded_layout_text(same[0].layout)}{more}: {reason}"


def _notes(comparisons: Sequence[LayoutComparison]) -> list[str]:
    notes = [note for compared in comparisons for note in compared.estimate.provenance.notes]
    return [f"Assumed: {note}" for note in dict.fromkeys(notes)]


def _learned(learned: Learned, style: Style) -> Iterator[str]:
    """Yield the ranking before and after, with the measured steps."""
    lines = list(learned.reasons)
    if learned.stored:
        headers = ["now", "before", "layout", "step ms\nbefore", "\nnow", "90 % interval\nbefore", "\nnow", "measured"]
        rows = [[_place(moved.after), _place(moved.before), *_change(moved)] for moved in learned.moved]
        yield f"Ranking with what {learned.rows} rows say\n\n{grid(headers, rows, style, text_columns=(2,))}"
        lines.append(f"Calibration: {learned.path}; `--calibration {learned.path}` ranks and estimates by it.")
    else:
        lines.append("Nothing of these rows could be stored; the ranking stays as it was.")
    yield paragraph(lines, style)


def _place(place: int | None) -> str:
    return "-" if place is None else str(place)


def _change(moved: Moved) -> list[str]:
    both = (moved.estimate_before, moved.estimate_after)
    steps = ["" if estimate is None else milliseconds(estimate.throughput.step_seconds) for estimate in both]
    spans = ["" if estimate is None else _span(estimate.throughput.interval_seconds, milliseconds) for estimate in both]
    measured = "" if moved.measured_seconds is None else milliseconds(moved.measured_seconds)
    return [sharded_layout_text(moved.layout), *steps, *spans, measured]


def _closing(validation: Validation) -> Iterator[str]:
    campaign, rows_file = validation.campaign, validation.rows_file
    if any(compared.ran for compared in campaign.comparisons):
        yield "Memory is the tensors' peak on the fullest rank. Error is predicted over measured, less one."
    if campaign.interrupted_by:
        yield "Interrupted: what had been measured by then is kept."
    if validation.learned is None and any(compared.ran for compared in campaign.comparisons):
        yield f"Rows: {rows_file}; `simulate calibrate {rows_file}` fits coefficients to them."


def _span(interval: Interval | None, shown: Shown) -> str:
    return "" if interval is None else f"{shown(interval.low)} to {shown(interval.high)}"


def _mib(size: float) -> str:
    return amount(to_mib(size))


def _signed(share: float) -> str:
    text = percent(share)
    return text if text.startswith("-") or text == "0.0" else f"+{text}"


_FEW_PINS = 3
"""Most coefficients named beside a launch."""


def probe_table(probed: Probed, presentation: Presentation, style: Style) -> str:
    """Return the rates, the launches with their errors before and after the fit, and how to use the result."""
    ready = probed.prepared
    blocks = [_rates(ready.rates, style), _comparison(probed.compared, style)]
    if presentation.verbosity >= 0:
        blocks.append(paragraph(_probe_notes(probed), style))
    return "\n\n".join(blocks) + "\n"


def outlook_table(ready: Prepared, _presentation: Presentation, style: Style) -> str:
    """Return the planned measurements and launches."""
    rests_on = "the rates in the folder" if ready.measured else "the numbers of the spec"
    lines = [f"Plan from {rests_on}: about {ready.design.seconds:.0f} s of launches."]
    if ready.measured is None:
        lines.append("The rates are measured first, and may change the choice of launches:")
        command = rates_command(ready.request)
        lines.append("    " + shell_line(command.arguments, command.environment))
    return "\n\n".join([_plan(ready.design, style), paragraph(lines, style)]) + "\n"


def _rates(rates: Rates, style: Style) -> str:
    """Return one line for each rate; a share is of the peak above it."""
    rows: list[list[str]] = []
    for precision, peak in rates.peak_flops.items():
        rows.append([f"{precision} matrix products, best", f"{amount(peak / GIGA)} GFLOP/s"])
        gemm, attention = rates.gemm_efficiency[precision], rates.attention[precision]
        rows.append([f"{precision} matrix products, median over sizes", f"{percent(gemm.value)} %"])
        rows.append([f"{precision} attention, wide heads and long sequences", f"{percent(attention.efficiency)} %"])
    rows.append(["memory, best", f"{amount(rates.memory_bandwidth / GIGA)} GB/s"])
    for precision, share in rates.memory_efficiency.items():
        rows.append([f"{precision} elementwise kernels", f"{percent(share.value)} %"])
    per_parameter = rates.optimizer_seconds_per_parameter.value
    rows.append(["optimizer update", f"{amount(per_parameter * GIGA)} ns per parameter"])
    if rates.host_bandwidth is not None:
        rows.append(["copies from the host", f"{amount(rates.host_bandwidth / GIGA)} GB/s"])
    if rates.link is not None:
        rows.append(["link between ranks", f"{amount(rates.link.bandwidth_bytes_per_second / GIGA)} GB/s"])
        rows.append(["its latency", f"{amount(rates.link.latency_seconds * MEGA)} us"])
    return titled("Rates", grid(["rate", "value"], rows, style, text_columns=(0,)), style)


def _plan(design: ProbeDesign, style: Style) -> str:
    rows = [
        [
            str(number),
            launch.candidate.title,
            milliseconds(launch.step_seconds),
            f"{launch.launch_seconds:.0f}",
            _pins(launch.pins),
        ]
        for number, launch in enumerate(design.launches, start=1)
    ]
    headers = ["#", "launch", "step ms", "launch s", "pins down"]
    return titled("Plan", grid(headers, rows, style, text_columns=(1, 4)), style)


def _pins(names: Sequence[str]) -> str:
    more = len(names) - _FEW_PINS
    return ", ".join(names[:_FEW_PINS]) + (f" and {more} more" if more > 0 else "")


def _comparison(compared: Sequence[Compared], style: Style) -> str:
    headers = ["#", "launch", "measured ms", "before ms", "error %", "fitted ms", "error %", "pins down"]
    rows = [
        [
            str(number),
            launch.planned.candidate.title,
            "" if launch.measured_seconds is None else milliseconds(launch.measured_seconds),
            milliseconds(launch.before_seconds),
            _error(launch.before_seconds, launch.measured_seconds),
            "" if launch.after_seconds is None else milliseconds(launch.after_seconds),
            _error(launch.after_seconds, launch.measured_seconds),
            _pins(launch.planned.pins),
        ]
        for number, launch in enumerate(compared, start=1)
    ]
    table = grid(headers, rows, style, text_columns=(1, 7))
    return titled("Step time predicted from the rates, measured, and after the fit", table, style)


def _error(predicted: float | None, measured: float | None) -> str:
    return "" if predicted is None or measured is None else f"{100.0 * (predicted / measured - 1.0):+.1f}"


def _probe_notes(probed: Probed) -> Iterator[str]:
    ready = probed.prepared
    for compared in probed.campaign.comparisons:
        yield from (f"{compared.title}: {failure}" for failure in compared.failures)
    if probed.campaign.interrupted_by:
        yield "Interrupted: what had been measured by then is kept; --resume continues."
    for sides, when in ((_sides(probed, "before_seconds"), "before"), (_sides(probed, "after_seconds"), "after")):
        if sides:
            yield (
                f"Step time {when} the fit: median error {percent(statistics.median(sides))} %, "
                f"worst {percent(max(sides))} %."
            )
    if probed.undetermined:
        yield f"At their priors, as no launch decides them: {', '.join(probed.undetermined)}."
    yield f"Rows: {ready.request.rows_file}"
    if probed.calibration_file is None:
        reasons = [probed.fitted.not_stored("time")] if probed.fitted is not None else ["no launch ended well"]
        yield f"No calibration is written: {'; '.join(reasons)}."
        return
    paths: Mapping[str, str] = {
        "--hardware": shlex.quote(str(ready.spec_file)),
        "--calibration": shlex.quote(str(probed.calibration_file)),
    }
    yield f"Use it: simulate --framework torch {' '.join(f'{name} {path}' for name, path in paths.items())} --model ..."


def _sides(probed: Probed, name: str) -> list[float]:
    return [
        abs(getattr(compared, name) / compared.measured_seconds - 1.0)
        for compared in probed.compared
        if compared.measured_seconds is not None and getattr(compared, name) is not None
    ]


def trace_table(comparison: TraceComparison, presentation: Presentation, style: Style) -> str:
    """Return the comparison for people."""
    traced = comparison.traced
    rows = [[name, gib(counted), gib(predicted)] for name, counted, predicted in comparison.rows]
    rows.append(["peak", gib(traced.peak_bytes), gib(comparison.predicted.allocated_bytes)])
    parts = [[name, gib(size)] for name, size in sorted(traced.parts_bytes.items(), key=lambda part: -part[1])]
    tables = [
        titled(_question(comparison), paragraph(_answer(comparison), style), style),
        titled(
            "Bytes alive at the peak, GiB", grid(["part", "traced", "predicted"], rows, style, text_columns=[0]), style
        ),
        titled("Traced by category, GiB", grid(["category", "GiB"], parts, style, text_columns=[0]), style),
    ]
    if presentation.verbosity >= 0:
        tables.append(paragraph(_footer(comparison), style))
    return "\n\n".join(tables) + "\n"


def _question(comparison: TraceComparison) -> str:
    asked = comparison.estimate
    subject = f"{asked.model} on {devices_text(asked.devices)}: {asked.precision}"
    return f"{subject}, sequence {asked.seq_length}, global batch {asked.global_batch_size}, torch"


def _answer(comparison: TraceComparison) -> list[str]:
    layout, traced, predicted = comparison.estimate.layout, comparison.traced, comparison.predicted
    where = f"stage {traced.stage} of {layout.pipeline_parallel} ({predicted.layers} layers)"
    sign = "+" if comparison.difference >= 0.0 else ""
    counted = f"{gib(traced.peak_bytes)} GiB traced at {traced.moment}"
    priced = (
        f"{gib(predicted.allocated_bytes)} predicted at {predicted.moment} ({sign}{percent(comparison.difference)} %)"
    )
    return [sharded_layout_text(layout), f"{where}: {counted}, {priced}"]


def _footer(comparison: TraceComparison) -> list[str]:
    traced = comparison.traced
    batches = f"{traced.micro_batches} micro batch{'' if traced.micro_batches == 1 else 'es'}"
    trainer = f"This is the reference trainer on torch at ZeRO {comparison.estimate.layout.zero_stage}"
    taken = f"{amount(traced.seconds)} s and {to_mib(traced.resident_bytes):.0f} MiB of memory"
    return [
        f"{gib(traced.base_bytes)} GiB are alive between steps.",
        f"Traced {batches} in {taken}, torch {traced.torch_version}.",
        f"{trainer}; `simulate estimate` prices Megatron at ZeRO 1 unless told otherwise, which needs another amount.",
        "Tensors only: no workspaces of libraries, no device context, no fragmentation.",
    ]
