"""Rates of a machine from its timings: peaks, the shares of them that training reaches, latency and bandwidth.

Reads timings only; starts nothing and knows no coefficient.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.errors import UnsupportedError
from simulator.lab.trainer.measured_rates import MeasuredRates, ProbedOperation, Timed

_ADD_TENSORS = 3
"""Tensors that an addition reads and writes."""
_SWIGLU_BYTES = 10.0
"""Bytes per element of a 16-bit forward SwiGLU in two kernels, as the formulas count it; twice that backward."""
_MOST_ATTENTION = 0.8
"""Largest share of the matrix products' peak for attention on sizes that were not timed."""
_ATTENTION_SIZES = ("batch", "heads", "tokens", "head_dim")
_ELEMENT = {"bf16": 2.0, "fp32": 4.0}


@dataclass(frozen=True, slots=True)
class Figure:
    """Quantity over several timings."""

    value: float
    """Median of the timings."""
    spread: float
    """Largest over smallest of the timings behind it, less one; 0 for a single one."""


@dataclass(frozen=True, slots=True)
class AttentionRate:
    """Rate in `scores x (head + width) x (1 + tile / tokens) / rate`, and the slowdown of the backward pass."""

    efficiency: float
    """Share of the peak of the matrix products, for wide heads and long sequences."""
    score_width: float
    """Width with the cost of a score's softmax, in elements of a head."""
    tile_tokens: float
    """Tokens of a tile, whose masked part is computed too."""
    backward_slowdown: float
    """Time of the backward pass over that of its products."""


@dataclass(frozen=True, slots=True)
class Link:
    """`latency + bytes / bandwidth` of a message to the next rank."""

    latency_seconds: float
    """Time of an empty message."""
    bandwidth_bytes_per_second: float
    """Bytes per second of a long one."""
    reduce_slowdown: float
    """Time of a reduction over that of a gather of as many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
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
    precisions = tuple(dict.fromkeys(t.timing.precision for t in _of(timed, "gemm")))
    peaks = {precision: _gemm_peak(timed, precision) for precision in precisions}
    bandwidth = _bandwidth(timed)
    return Rates(
        peak_flops=peaks,
        gemm_efficiency={p: _gemm_efficiency(timed, p, peak) for p, peak in peaks.items()},
        attention={
            p: _attention(tuple(timings), peaks[p]) for p in precisions if (timings := _all_of(timed, "attention", p))
        },
        memory_bandwidth=bandwidth,
        memory_efficiency={p: _memory_efficiency(timed, p, bandwidth) for p in precisions},
        optimizer_seconds_per_parameter=_figure(
            t.forward / t.timing.sizes["parameters"] for t in _of(timed, "optimizer")
        ),
        host_bandwidth=max(
            (t.timing.sizes["bytes"] / min(t.forward_seconds) for t in _all_of(timed, "host_copy")), default=None
        ),
        link=_link(timed, measured.devices) if measured.devices > 1 else None,
        dispatch_seconds={p: _dispatch(timed, p) for p in precisions},
    )


def _all_of(timed: Iterable[Timed], operation: ProbedOperation, precision: str | None = None) -> list[Timed]:
    return [t for t in timed if t.timing.operation == operation and precision in (None, t.timing.precision)]


def _of(timed: Iterable[Timed], operation: ProbedOperation, precision: str | None = None) -> list[Timed]:
    timings = _all_of(timed, operation, precision)
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
    timings = _of(timed, "gemm", precision)
    smallest = min(timings, key=_flops)
    return [t for t in timings if t is not smallest] or timings


def _gemm_peak(timed: Iterable[Timed], precision: str) -> float:
    return max(_flops(t) / min(t.forward_seconds) for t in _sized(timed, precision))


def _gemm_efficiency(timed: Iterable[Timed], precision: str, peak: float) -> Figure:
    return _figure(3.0 * _flops(t) / (t.forward + t.backward) / peak for t in _sized(timed, precision))


def _dispatch(timed: Iterable[Timed], precision: str) -> float:
    smallest = min(_of(timed, "gemm", precision), key=_flops)
    return smallest.forward + smallest.backward


def _bandwidth(timed: Iterable[Timed]) -> float:
    """Return the bandwidth of the largest tensors: smaller ones come out of a cache."""
    added = _of(timed, "add")
    moved = [_ADD_TENSORS * _ELEMENT[t.timing.precision] * t.timing.sizes["elements"] for t in added]
    largest = max(moved)
    return max(size / min(t.forward_seconds) for t, size in zip(added, moved, strict=True) if size == largest)


def _memory_efficiency(timed: Iterable[Timed], precision: str, bandwidth: float) -> Figure:
    wide = _ELEMENT[precision] / 2.0
    return _figure(
        3.0 * _SWIGLU_BYTES * wide * t.timing.sizes["elements"] / (t.forward + t.backward) / bandwidth
        for t in _of(timed, "swiglu", precision)
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

    gathers, sends = _of(timed, "all_gather"), _of(timed, "send")
    share = (devices - 1.0) / devices
    cost = [(devices - 1.0, share * t.timing.sizes["bytes"]) for t in gathers]
    cost += [(1.0, float(t.timing.sizes["bytes"])) for t in sends]
    matrix, seconds = np.array(cost), np.array([t.forward for t in (*gathers, *sends)])
    latency, per_byte = nnls(matrix / seconds[:, None], np.ones(len(seconds)))[0]
    # Nothing is instant: the quickest message bounds the latency, the quickest byte the rate.
    quickest = float((seconds / matrix[:, 1]).min())
    return Link(
        max(float(latency), 1e-3 * float(seconds.min())),
        1.0 / max(float(per_byte), 1e-3 * quickest),
        _reduce_slowdown(gathers, _of(timed, "reduce_scatter")),
    )


def _reduce_slowdown(gathers: Sequence[Timed], scatters: Sequence[Timed]) -> float:
    """Return the median slowdown over the larger half of the messages, where bytes decide."""
    gathered = {t.timing.sizes["bytes"]: t.forward for t in gathers}
    ratios = [(t.timing.sizes["bytes"], t.forward / gathered[t.timing.sizes["bytes"]]) for t in scatters]
    return statistics.median(ratio for _, ratio in sorted(ratios)[len(ratios) // 2 :])
