"""A machine made of formulas: its ranks answer a rates job as if they had timed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.lab.probe.rates import rates_job
from simulator.lab.probe.run import ProbeRequest
from simulator.lab.trainer.job import COLLECTIVES, RATES_NAME, MeasuredRates, RatesJob, Timed, Timing, to_json

PEAK = {"bf16": 1.2e12, "fp32": 2e11}
GEMM = {"bf16": 0.6, "fp32": 0.8}
BANDWIDTH = 24e9
SWIGLU = {"bf16": 0.25, "fp32": 0.5}
ATTENTION = {"efficiency": 0.4, "width": 48.0, "tile": 300.0, "slowdown": 1.5}
UPDATE_SECONDS = 4e-9
LATENCY, LINK, HOST = 1e-4, 1.5e9, 1e10
REDUCE = 2.0
DISPATCH = 5e-5
REPEATS = 5

PRICED: dict[object, Any] = {}
"""What plans have priced, by all that it depends on."""
_BYTES = {"bf16": 2, "fp32": 4}


def _gemm(size: Mapping[str, int], precision: str) -> tuple[float, float]:
    if size["rows"] == 8:
        return DISPATCH / 4, 3 * DISPATCH / 4
    once = 2.0 * size["rows"] * size["inner"] * size["columns"] / PEAK[precision]
    # The best forward pass is the peak; both passes together reach their share of it.
    return once, 3.0 * once / GEMM[precision] - once


def _attention(size: Mapping[str, int], precision: str) -> tuple[float, float]:
    scores = size["batch"] * size["heads"] * size["tokens"] ** 2 / 2.0
    width = size["head_dim"] + ATTENTION["width"]
    tiles = 1.0 + ATTENTION["tile"] / size["tokens"]
    once = 4.0 * scores * width * tiles / (PEAK[precision] * ATTENTION["efficiency"])
    return once, 2.5 * ATTENTION["slowdown"] * once


def _add(size: Mapping[str, int], precision: str) -> tuple[float, float]:
    return 3.0 * _BYTES[precision] * size["elements"] / BANDWIDTH, 0.0


def _swiglu(size: Mapping[str, int], precision: str) -> tuple[float, float]:
    once = 5.0 * _BYTES[precision] * size["elements"] / (BANDWIDTH * SWIGLU[precision])
    return once, 2.0 * once


_COMPUTED = {"gemm": _gemm, "attention": _attention, "add": _add, "swiglu": _swiglu}
_GATHERS = {"all_gather": 1.0, "reduce_scatter": REDUCE, "all_reduce": 1.0 + REDUCE}


def seconds(timing: Timing, devices: int) -> tuple[float, float]:
    """Of a forward and a backward pass."""
    size = timing.sizes
    if timing.operation in _COMPUTED:
        return _COMPUTED[timing.operation](size, timing.precision)
    if timing.operation in _GATHERS:
        gather = (devices - 1) * LATENCY + (devices - 1) / devices * size["bytes"] / LINK
        return _GATHERS[timing.operation] * gather, 0.0
    if timing.operation == "send":
        return LATENCY + size["bytes"] / LINK, 0.0
    if timing.operation == "host_copy":
        return size["bytes"] / HOST, 0.0
    return UPDATE_SECONDS * size["parameters"], 0.0


def answered(job: RatesJob) -> MeasuredRates:
    def timed(timing: Timing) -> Timed:
        forward, backward = seconds(timing, job.devices)
        # Repeats differ to either side; the middle one is the machine's.
        off = [1.0 + 0.01 * (repeat - REPEATS // 2) for repeat in range(REPEATS)]
        return Timed(
            timing=timing,
            forward_seconds=tuple(forward * factor for factor in off),
            backward_seconds=tuple(backward * factor for factor in off) if backward else (),
        )

    return MeasuredRates(
        device_name="Processor of formulas",
        versions={"torch": "2.13.0"},
        devices=job.devices,
        memory_bytes=8 * 2**30,
        usable_bytes=7 * 2**30,
        timed=tuple(timed(timing) for timing in job.timings if job.devices > 1 or timing.operation not in COLLECTIVES),
    )


def request_in(folder: Path, **changes: object) -> ProbeRequest:
    plain = ProbeRequest(hardware="local-cpu", devices=2, folder=folder, launches=4, resume=True)
    return replace(plain, **changes)  # type: ignore[arg-type]


def leave_rates(question: ProbeRequest) -> None:
    """Put the machine's rates where a resumed probe takes them from."""
    question.rates_folder.mkdir(parents=True)
    text = to_json(answered(rates_job(question.devices, question.backend)))
    (question.rates_folder / RATES_NAME).write_text(text, encoding="utf-8")
