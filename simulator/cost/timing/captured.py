"""What CUDA graphs of whole layers or steps leave out, and what fp8 computes beside the layers' products."""

from __future__ import annotations

from typing import Final

from simulator.cost.timing.rates import gemm_rate, wide_gemm_rate, wide_precision
from simulator.question.scenario.scenario import Scenario

_BEHIND_PEAK: Final = 2.0 * 740.0 / 1200.0


def passes_are_captured(scenario: Scenario) -> bool:
    """Whether all passes of a step are one graph: no schedule on the host, no counts of tokens that it waits for."""
    return scenario.framework.cuda_graphs == "full_iteration"


def layers_are_captured(scenario: Scenario) -> bool:
    """Whether the host starts no kernel of a layer on its own."""
    return scenario.framework.cuda_graphs in ("layers", "full_iteration")


def attention_share(scenario: Scenario) -> float:
    """Time of attention's products over that of 16 bits, where they run in 8 (T4).

    FlashAttention-3 reaches 740 TFLOP/s in 16 bits and 1.2 PFLOP/s in 8 on H100 (arXiv:2407.08608): 1.23 times what the
    peaks alone would give.
    """
    if scenario.precision != "fp8" or not scenario.framework.fp8_attention:
        return 1.0
    return _BEHIND_PEAK * scenario.hardware.peak(wide_precision(scenario)) / scenario.hardware.peak("fp8")


def output_rate(scenario: Scenario) -> float:
    """FLOP/s of the output layer's product (T15): that of 16 bits, unless fp8 computes it too."""
    if scenario.precision == "fp8" and scenario.framework.fp8_output_layer:
        return gemm_rate(scenario)
    return wide_gemm_rate(scenario)
