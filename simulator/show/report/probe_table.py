"""Measured rates, launches and fit of a probe as tables for people. Measures and fits nothing."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence

from simulator.lab.probe.plan import ProbeDesign
from simulator.lab.probe.rates import Rates
from simulator.lab.probe.run import Compared, Prepared, Probed, rates_command
from simulator.lab.runner.engine import shell_line
from simulator.question.units import GIGA, MEGA
from simulator.show.report.grid import Style, grid, paragraph, titled
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import amount, milliseconds, percent

_FEW_PINS = 3
"""Most coefficients named beside a launch."""


def probe_table(probed: Probed, presentation: Presentation, style: Style) -> str:
    """Return the rates, the launches with their errors before and after the fit, and how to use the result."""
    ready = probed.prepared
    blocks = [_rates(ready.rates, style), _comparison(probed.compared, style)]
    if presentation.verbosity >= 0:
        blocks.append(paragraph(_closing(probed), style))
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


def _closing(probed: Probed) -> Iterator[str]:
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
