"""CUDA graphs of layers or steps, and the rates of attention and the output layer in fp8."""

from __future__ import annotations

from typing import Final

from simulator.cost.timing.rates import gemm_rate, wide_gemm_rate, wide_precision
from simulator.question.scenario.scenario import Scenario

_BEHIND_PEAK: Final = 2.0 * 740.0 / 1200.0


def passes_are_captured(scenario: Scenario) -> bool:
    """Return whether one CUDA graph holds all passes of a step: no host schedule, no waits for token counts."""
    return scenario.framework.cuda_graphs == "full_iteration"


def layers_are_captured(scenario: Scenario) -> bool:
    """Return whether CUDA graphs start every kernel of a layer."""
    return scenario.framework.cuda_graphs in ("layers", "full_iteration")


def attention_share(scenario: Scenario) -> float:
    """Return the time of attention's products relative to 16 bits; below 1 where they run in 8 (T4).

    FlashAttention-3 reaches 740 TFLOP/s in 16 bits and 1.2 PFLOP/s in 8 on H100 (arXiv:2407.08608): 1.23 times what the
    peaks alone would give.
    """
    if scenario.precision != "fp8" or not scenario.framework.fp8_attention:
        return 1.0
    return _BEHIND_PEAK * scenario.hardware.peak(wide_precision(scenario)) / scenario.hardware.peak("fp8")


def output_rate(scenario: Scenario) -> float:
    """Return the FLOP/s of the output layer's product (T15): the 16-bit rate, unless fp8 computes it."""
    if scenario.precision == "fp8" and scenario.framework.fp8_output_layer:
        return gemm_rate(scenario)
    return wide_gemm_rate(scenario)
