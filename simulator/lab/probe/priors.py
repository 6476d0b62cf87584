"""Measured rates as coefficients: the priors from which the fit of a probed machine starts.

Counts of calls here are starting points of a fit, not formulas; a prediction never reads them.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.lab.probe.summary import AttentionRate, Figure, Link, Rates
from simulator.lab.trainer.limits import TRAINED_PRECISIONS
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, Prior, TimeCoefficients, priors
from simulator.question.specs.hardware import HardwareSpec

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


def from_rates(rates: Rates, precision: str, base: Coefficients) -> Coefficients:
    """Return `base` with every time coefficient that follows from the rates."""
    values = base.time
    attention = rates.attention[precision]
    call, latency = rates.dispatch_seconds[precision], rates.link.latency_seconds if rates.link is not None else 0.0
    memory_efficiency = rates.memory_efficiency[precision].value
    stated = {
        "gemm_efficiency": rates.gemm_efficiency[precision].value,
        "attention_efficiency": attention.efficiency,
        "attention_score_width": attention.score_width,
        "attention_tile_tokens": attention.tile_tokens,
        "attention_backward_slowdown": attention.backward_slowdown,
        "memory_efficiency": memory_efficiency,
        "optimizer_slowdown": _update_slowdown(rates, memory_efficiency),
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
    return replace(base, name=f"rates of {precision}", time=replace(values, **_bounded("time", stated)))


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


def _update_slowdown(rates: Rates, memory_efficiency: float) -> float:
    """Return the time of an update over one pass through state, gradient and weight."""
    once = UPDATE_BYTES / (rates.memory_bandwidth * memory_efficiency)
    return rates.optimizer_seconds_per_parameter.value / once


def _bounded(kind: CoefficientKind, values: dict[str, float]) -> dict[str, float]:
    """Return values well inside the bounds of their coefficients, so that a fit can move them to either side."""
    known = priors(kind)
    return {name: _inside(float(value), known[name]) for name, value in values.items()}


def _inside(value: float, prior: Prior) -> float:
    margin = 0.02 * (prior.high - prior.low)
    return min(max(value, prior.low + (margin if prior.low > 0.0 else 0.0)), prior.high - margin)
