"""Rates of a machine: the operations to time, what their timings say, the hardware spec and priors made of them.

    >>> rates = rates_of(from_json(MeasuredRates, text))  # what the ranks of `rates_job` timed
    >>> from_rates(rates, "bf16", Coefficients()).time.gemm_efficiency  # `rates.gemm_efficiency["bf16"].value`

Figures that a probe cannot see keep the source and status of the template, the nearest shipped spec.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import yaml

from simulator.errors import UnsupportedError
from simulator.lab.trainer.job import (
    COLLECTIVES,
    TRAINED_PRECISIONS,
    MeasuredRates,
    ProbedOperation,
    RatesJob,
    Timed,
    Timing,
)
from simulator.question.coefficients import Coefficients, Prior, TimeCoefficients, priors
from simulator.question.specs.documents import plain
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.units import GIGA, MEGA, MIB, TERA
from simulator.records import Record, replace

SOURCE = "probe"
_ADD_TENSORS = 3  # tensors that an addition reads and writes
_SWIGLU_BYTES = 10.0
"""Bytes per element of a 16-bit forward SwiGLU in two kernels, as the formulas count it; twice that backward."""
_MOST_ATTENTION = 0.8  # largest share of the matrix products' peak for attention on sizes that were not timed
_ATTENTION_SIZES = ("batch", "heads", "tokens", "head_dim")
_ELEMENT = {"bf16": 2.0, "fp32": 4.0}
LAYER_CALLS = 40
"""Operations of a decoder layer in both passes, each taking the host time of a small product."""
SPLIT_CALLS = 100
"""Operations that tensor parallelism adds to a layer: several small ones for each."""
SPLIT_EXCHANGES = 8
"""Collectives of a split layer in both passes."""
SPLIT_ENDS = 3
"""Split layers that a split output layer and its loss count for: many small reductions."""
EXCHANGE_CALLS = 10
"""Operations around one gather or scatter of a layer's parameters."""
MICRO_BATCH_CALLS = 40
"""Operations of a micro batch outside the layers."""
UPDATE_BYTES = 24.0
"""Bytes per parameter of an AdamW update in fp32, as the formulas count it: two moments read and written, the gradient
read and the weight written."""
STEP_CALLS = 80
"""Operations of a step outside its micro batches."""


class Sizes(Record, kw_only=True):
    """Sizes of the operations timed on one kind of machine; all are counts."""

    rows: tuple[int, ...]
    """Tokens of a matrix product."""
    widths: tuple[tuple[int, int], ...]
    """Inner and outer width of a matrix product."""
    tokens: tuple[int, ...]
    """Sequences of attention."""
    heads: int
    head_dims: tuple[int, ...]
    elements: tuple[int, ...]
    """Tensors of elementwise kernels."""
    parameters: tuple[int, ...]
    """Tensors that the optimizer updates."""
    copies: tuple[int, ...]
    """Bytes copied from the host."""
    messages: tuple[int, ...]
    """Bytes of a collective's whole tensor."""


PROCESSOR = Sizes(
    rows=(256, 1024),
    widths=((256, 768), (512, 1408), (1024, 2816)),
    tokens=(256, 512, 1024),
    heads=8,
    head_dims=(32, 64, 128),
    elements=(2**17, 2**19, 2**21),
    parameters=(2**18, 2**20, 2**22),
    copies=(),
    messages=(2**10, 2**14, 2**17, 2**19, 2**21, 2**23),
)
ACCELERATOR = Sizes(
    rows=(4096, 16384),
    widths=((2048, 5632), (4096, 14336), (8192, 28672)),
    tokens=(1024, 4096, 16384),
    heads=16,
    head_dims=(64, 128),
    elements=(2**24, 2**26, 2**28),
    parameters=(2**24, 2**26, 2**28),
    copies=(2**24, 2**28),
    messages=(2**14, 2**18, 2**21, 2**24, 2**26, 2**28),
)
DISPATCH = 8
"""Rows and widths of a product so small that its time is that of starting it."""


def rates_job(devices: int, backend: str) -> RatesJob:
    """Return the job of all timings on `devices` ranks."""
    sizes = PROCESSOR if backend == "cpu" else ACCELERATOR
    timings = [timing for precision in TRAINED_PRECISIONS for timing in _computing(sizes, precision)]
    timings += [Timing(operation="optimizer", precision="fp32", sizes={"parameters": n}) for n in sizes.parameters]
    timings += [Timing(operation="host_copy", sizes={"bytes": copied}) for copied in sizes.copies]
    messages = product(COLLECTIVES, sizes.messages)
    timings += [Timing(operation=operation, sizes={"bytes": message}) for operation, message in messages]
    return RatesJob(timings=tuple(timings), devices=devices, backend=backend)


def _computing(sizes: Sizes, precision: str) -> Iterator[Timing]:
    dispatch = {"rows": DISPATCH, "inner": DISPATCH, "columns": DISPATCH}
    yield Timing(operation="gemm", precision=precision, sizes=dispatch)
    for rows, (inner, columns) in product(sizes.rows, sizes.widths):
        yield Timing(operation="gemm", precision=precision, sizes={"rows": rows, "inner": inner, "columns": columns})
    heads = {"batch": 1, "heads": sizes.heads, "kv_heads": sizes.heads // 2}
    for tokens, head_dim in product(sizes.tokens, sizes.head_dims):
        attention = heads | {"tokens": tokens, "head_dim": head_dim}
        yield Timing(operation="attention", precision=precision, sizes=attention)
    for elements in sizes.elements:
        yield Timing(operation="add", precision=precision, sizes={"elements": elements})
        yield Timing(operation="swiglu", precision=precision, sizes={"elements": elements})


class Figure(Record):
    """Quantity over several timings."""

    value: float
    """Median of the timings."""
    spread: float
    """Largest over smallest of the timings behind it, less one; 0 for a single one."""


class AttentionRate(Record):
    """Rate in `scores x (head + width) x (1 + tile / tokens) / rate`, and the slowdown of the backward pass."""

    efficiency: float
    """Share of the peak of the matrix products, for wide heads and long sequences."""
    score_width: float
    """Width with the cost of a score's softmax, in elements of a head."""
    tile_tokens: float
    """Tokens of a tile, whose masked part is computed too."""
    backward_slowdown: float
    """Time of the backward pass over that of its products."""


class Link(Record):
    """`latency + bytes / bandwidth` of a message to the next rank."""

    latency_seconds: float
    """Time of an empty message."""
    bandwidth_bytes_per_second: float
    """Bytes per second of a long one."""
    reduce_slowdown: float
    """Time of a reduction over that of a gather of as many bytes."""


class Rates(Record, kw_only=True):
    """Rates of a machine; efficiencies are shares of the peaks beside them."""

    peak_flops: Mapping[str, float]
    """Best measured peak, by precision."""
    gemm_efficiency: Mapping[str, Figure]
    """Efficiency of both passes together, by precision."""
    attention: Mapping[str, AttentionRate]
    """Attention by precision; without precisions that the device has no kernel for."""
    memory_bandwidth: float
    """Best measured bandwidth, bytes/s."""
    memory_efficiency: Mapping[str, Figure]
    """Share of the bandwidth that SwiGLU reaches, both passes together, by precision."""
    optimizer_seconds_per_parameter: Figure
    """Time of the update of one parameter, in seconds."""
    host_bandwidth: float | None
    """Bandwidth to the host, bytes/s; None where the device is the host."""
    link: Link | None
    """Link between ranks; None for a single rank."""
    dispatch_seconds: Mapping[str, float]
    """Time to start one small product and its two gradients, by precision."""


def rates_of(measured: MeasuredRates) -> Rates:
    """Return the rates of timings. Raises UnsupportedError naming an operation that was not timed."""
    timed = measured.timed
    precisions = tuple(dict.fromkeys(t.timing.precision for t in _required(timed, "gemm")))
    peaks = {p: max(_flops(t) / min(t.forward_seconds) for t in _sized(timed, p)) for p in precisions}
    added = _required(timed, "add")  # the largest tensors only: smaller ones come out of a cache
    moved = [_ADD_TENSORS * _ELEMENT[t.timing.precision] * t.timing.sizes["elements"] for t in added]
    largest = max(moved)
    bandwidth = max(size / min(t.forward_seconds) for t, size in zip(added, moved, strict=True) if size == largest)
    # The smallest product shows only the time to start one.
    dispatched = {p: min(_required(timed, "gemm", p), key=_flops) for p in precisions}
    return Rates(
        peak_flops=peaks,
        gemm_efficiency={
            p: _figure(3.0 * _flops(t) / (t.forward + t.backward) / peak for t in _sized(timed, p))
            for p, peak in peaks.items()
        },
        attention={
            p: _attention(tuple(timings), peaks[p])
            for p in precisions
            if (timings := _timings_of(timed, "attention", p))
        },
        memory_bandwidth=bandwidth,
        memory_efficiency={p: _memory_efficiency(timed, p, bandwidth) for p in precisions},
        optimizer_seconds_per_parameter=_figure(
            t.forward / t.timing.sizes["parameters"] for t in _required(timed, "optimizer")
        ),
        host_bandwidth=max(
            (t.timing.sizes["bytes"] / min(t.forward_seconds) for t in _timings_of(timed, "host_copy")), default=None
        ),
        link=_link(timed, measured.devices) if measured.devices > 1 else None,
        dispatch_seconds={p: smallest.forward + smallest.backward for p, smallest in dispatched.items()},
    )


def _timings_of(timed: Iterable[Timed], operation: ProbedOperation, precision: str | None = None) -> list[Timed]:
    return [t for t in timed if t.timing.operation == operation and precision in (None, t.timing.precision)]


def _required(timed: Iterable[Timed], operation: ProbedOperation, precision: str | None = None) -> list[Timed]:
    timings = _timings_of(timed, operation, precision)
    if not timings:
        raise UnsupportedError(f"rates: the machine timed no {operation}; the probe asks for it")
    return timings


def _figure(values: Iterable[float]) -> Figure:
    figures = list(values)
    return Figure(statistics.median(figures), max(figures) / min(figures) - 1.0)


def _flops(timed: Timed) -> float:
    sizes = timed.timing.sizes
    return 2.0 * sizes["rows"] * sizes["inner"] * sizes["columns"]


def _sized(timed: Iterable[Timed], precision: str) -> list[Timed]:
    """Return the matrix products without the smallest, which shows only the time to start one."""
    timings = _required(timed, "gemm", precision)
    smallest = min(timings, key=_flops)
    return [t for t in timings if t is not smallest] or timings


def _memory_efficiency(timed: Iterable[Timed], precision: str, bandwidth: float) -> Figure:
    wide = _ELEMENT[precision] / 2.0
    return _figure(
        3.0 * _SWIGLU_BYTES * wide * t.timing.sizes["elements"] / (t.forward + t.backward) / bandwidth
        for t in _required(timed, "swiglu", precision)
    )


def _attention(timed: Sequence[Timed], peak: float) -> AttentionRate:
    """Return the rate that fits all passes, by least squares on their logarithms."""
    from scipy.optimize import least_squares  # noqa: PLC0415  start-up time

    sizes = {name: np.array([t.timing.sizes[name] for t in timed], dtype=np.float64) for name in _ATTENTION_SIZES}
    # Causal: half of the scores. Two products forward, five backward.
    scores = sizes["batch"] * sizes["heads"] * sizes["tokens"] ** 2 / 2.0
    forward = np.log([t.forward for t in timed])
    backward = np.log([t.backward for t in timed])

    def residuals(logs: np.ndarray) -> np.ndarray:
        seconds, width, tile, slowdown = np.exp(logs)
        once = np.log(4.0 * scores * (sizes["head_dim"] + width) * (1.0 + tile / sizes["tokens"]) * seconds)
        return np.concatenate([once - forward, once + np.log(2.5 * slowdown) - backward])

    fastest = 1.0 / (_MOST_ATTENTION * peak)
    low, high = np.log([fastest, 0.1, 0.1, 0.25]), np.log([1e4 * fastest, 4000.0, 8000.0, 15.0])
    start = np.log([2.0 * fastest, 16.0, 16.0, 1.0])
    seconds, width, tile, slowdown = np.exp(least_squares(residuals, start, bounds=(low, high)).x)
    return AttentionRate(float(1.0 / seconds / peak), float(width), float(tile), float(slowdown))


def _link(timed: Sequence[Timed], devices: int) -> Link:
    """Return the link that fits gathers and sends, by least squares on relative errors."""
    from scipy.optimize import nnls  # noqa: PLC0415  start-up time

    gathers, sends = _required(timed, "all_gather"), _required(timed, "send")
    moved = (devices - 1.0) / devices
    cost = [(devices - 1.0, moved * t.timing.sizes["bytes"]) for t in gathers]
    cost += [(1.0, float(t.timing.sizes["bytes"])) for t in sends]
    matrix, seconds = np.array(cost), np.array([t.forward for t in (*gathers, *sends)])
    latency, per_byte = nnls(matrix / seconds[:, None], np.ones(len(seconds)))[0]
    # Nothing is instant: the quickest message bounds the latency, the quickest byte the rate.
    quickest = float((seconds / matrix[:, 1]).min())
    gathered = {t.timing.sizes["bytes"]: t.forward for t in gathers}
    scatters = {t.timing.sizes["bytes"]: t.forward for t in _required(timed, "reduce_scatter")}
    ratios = [scatters[size] / gathered[size] for size in sorted(scatters)]
    return Link(
        max(float(latency), 1e-3 * float(seconds.min())),
        1.0 / max(float(per_byte), 1e-3 * quickest),
        statistics.median(ratios[len(ratios) // 2 :]),  # over the larger half of the messages, where bytes decide
    )


def measured_spec(template: HardwareSpec, measured: MeasuredRates, rates: Rates, date: str) -> dict[str, Any]:
    """Return `template`'s document with measured figures; those that the probe cannot see keep values and sources."""
    document: dict[str, Any] = plain(template)
    versions = ", ".join(f"{name} {text}" for name, text in measured.versions.items())
    source = f"Probe of {measured.device_name}, {versions}, {date}"
    document["sources"] = dict(document["sources"]) | {SOURCE: source}
    document["note"] = (
        f"Measured by `simulate calibrate --probe` with {measured.devices} ranks at once; "
        "rates are the best seen, so coefficients are shares of them."
    )
    document["memory_capacity"] = _known(_mib(measured.memory_bytes))
    document["usable_memory"] = _known(_mib(min(measured.usable_bytes, measured.memory_bytes)))
    document["memory_bandwidth"] = _known(_rate(rates.memory_bandwidth))
    peaks = document["peak_flops"]
    for precision, flops in rates.peak_flops.items():
        peaks[precision] = _known(f"{flops / TERA:.4g} TFLOP/s")
    if rates.host_bandwidth is not None:
        document["host_bandwidth"] = _known(_rate(rates.host_bandwidth))
    elif template.family == "cpu":
        document["host_bandwidth"] = _known(_rate(rates.memory_bandwidth))
    if template.family == "cpu":
        # A device of a processor is a rank: the machine has as many as took part.
        document["devices_per_node"] = _known(measured.devices)
        document["device_links"] = [document["device_links"][-1] | {"devices": _known(measured.devices)}]
    if rates.link is not None:
        _measure_link(document, measured.devices, rates)
    return document


def spec_text(document: dict[str, Any]) -> str:
    """Return the text of the spec's file."""
    head = "# Written by `simulate calibrate --probe`: what one machine measured of itself.\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def _known(value: str | int) -> dict[str, Any]:
    return {"value": value, "source": [SOURCE], "status": "measured"}


def _mib(size: int) -> str:
    return f"{size // MIB} MiB"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / GIGA:.4g} GB/s"


def _measure_link(document: dict[str, Any], devices: int, rates: Rates) -> None:
    """Put the measured link on the innermost level that joins all ranks of the probe."""
    assert rates.link is not None  # noqa: S101  the caller looked
    rate = _known(_rate(rates.link.bandwidth_bytes_per_second))
    latency = _known(f"{rates.link.latency_seconds * MEGA:.4g} us")
    for level in document["device_links"]:
        if level["devices"]["value"] >= devices:
            level["bandwidth"], level["latency"] = rate, latency
            if level["topology"] == "mesh":
                pair = rates.link.bandwidth_bytes_per_second / max(devices - 1, 1)
                level["pair_bandwidth"] = _known(_rate(pair))
            return


def from_rates(rates: Rates, precision: str, base: Coefficients) -> Coefficients:
    """Return `base` with every time coefficient that follows from the rates."""
    values = base.time
    attention = rates.attention[precision]
    call, latency = rates.dispatch_seconds[precision], rates.link.latency_seconds if rates.link is not None else 0.0
    memory_efficiency = rates.memory_efficiency[precision].value
    once = UPDATE_BYTES / (rates.memory_bandwidth * memory_efficiency)  # one pass through state, gradient and weight
    stated = {
        "gemm_efficiency": rates.gemm_efficiency[precision].value,
        "attention_efficiency": attention.efficiency,
        "attention_score_width": attention.score_width,
        "attention_tile_tokens": attention.tile_tokens,
        "attention_backward_slowdown": attention.backward_slowdown,
        "memory_efficiency": memory_efficiency,
        "optimizer_slowdown": rates.optimizer_seconds_per_parameter.value / once,
        "layer_overhead_seconds": LAYER_CALLS * call,
        "micro_batch_overhead_seconds": MICRO_BATCH_CALLS * call,
        "step_overhead_seconds": STEP_CALLS * call,
        "shard_overhead_seconds": EXCHANGE_CALLS * call + latency,
    }
    if rates.link is not None:
        split = SPLIT_CALLS * call + SPLIT_EXCHANGES * latency
        stated |= {
            "tensor_overhead_seconds": split,
            "tensor_ends_overhead_seconds": SPLIT_ENDS * split,
            "reduce_slowdown": rates.link.reduce_slowdown,
        }
    # Well inside the bounds of their coefficients, so that a fit can move them to either side.
    inside = {name: _inside(float(value), priors("time")[name]) for name, value in stated.items()}
    return replace(base, name=f"rates of {precision}", time=replace(values, **inside))


def assumed_rates(hardware: HardwareSpec) -> Rates:
    """Return usual rates for the spec's own peaks, on which a plan rests before anything was measured."""
    peaks: dict[str, float] = {
        name: flops for name, flops in hardware.peak_flops_per_second.items() if name in TRAINED_PRECISIONS
    }
    usual = TimeCoefficients()
    attention = AttentionRate(usual.attention_efficiency, 32.0, 64.0, 1.0)
    bandwidth = hardware.memory_bandwidth_bytes_per_second
    inner = hardware.links[0]
    return Rates(
        peak_flops=peaks,
        gemm_efficiency=dict.fromkeys(peaks, Figure(usual.gemm_efficiency, 0.0)),
        attention=dict.fromkeys(peaks, attention),
        memory_bandwidth=bandwidth,
        memory_efficiency=dict.fromkeys(peaks, Figure(usual.memory_efficiency, 0.0)),
        optimizer_seconds_per_parameter=Figure(3.0 * UPDATE_BYTES / bandwidth, 0.0),
        host_bandwidth=hardware.host_bandwidth_bytes_per_second,
        link=Link(inner.latency_seconds, inner.bandwidth_bytes_per_second, 1.0),
        dispatch_seconds=dict.fromkeys(peaks, 5e-5),
    )


def _inside(value: float, prior: Prior) -> float:
    margin = 0.02 * (prior.high - prior.low)
    return min(max(value, prior.low + (margin if prior.low > 0.0 else 0.0)), prior.high - margin)
