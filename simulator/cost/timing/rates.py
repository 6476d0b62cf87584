"""Rates of a device under a stack: matrix products, attention kernels, elementwise kernels. Counts no work."""

from __future__ import annotations

from typing import cast

import numpy as np

from simulator.cost.dtypes import element_bytes
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import NARROW, AttentionKernel

_WIDEST_HEAD = 256
"""Widest head for which TransformerEngine takes cuDNN or FlashAttention 3 (utils.py at d0067d0)."""
_LOADED_BYTES = 16
"""Alignment of the operand rows that tensor cores load."""


def attention_kernel(scenario: Scenario) -> AttentionKernel:
    """Return the attention kernel: the stack's, or the device's own where heads are not too wide for it."""
    profile = scenario.framework
    if not profile.flash_attention:
        return "unfused"
    if profile.attention_kernel == "device":
        own = scenario.hardware.attention_kernel or "flash_2"
        return "flash_2" if own == "flash_3" and scenario.model.head_dim > _WIDEST_HEAD else own
    return cast("AttentionKernel", profile.attention_kernel)


def attention_rate(scenario: Scenario) -> float:
    """Return the FLOP/s of attention; 16 bit also under fp8 (T4).

    FlashAttention 1 and 2 and PyTorch's kernel use the instructions of Ampere, which do not reach a later device's
    peak.
    """
    values, earlier = scenario.coefficients.time, scenario.hardware.earlier_kernels
    reach = 1.0 if earlier is None else earlier.value
    match attention_kernel(scenario):
        case "unfused":
            if not loaded_by_tensor_cores(scenario):
                peaks = scenario.hardware.peak_flops_per_second
                # A sixteenth where a data sheet omits it, as on A100 (19.5 of 312) and H100 (67 of 989 TFLOP/s).
                return peaks.get("fp32", peaks[wide_precision(scenario)] / 16.0) * values.attention_unaligned
            share = values.attention_efficiency_unfused
        case "flash_1":
            share = reach * values.attention_efficiency_flash_1
        case "sdpa":
            share = reach * values.attention_efficiency_sdpa
        case "flash_2":
            share = reach * values.attention_efficiency
        case "flash_3":
            share = values.attention_efficiency_flash_3
        case "ck":
            share = values.attention_efficiency_ck
        case "npu":
            share = values.attention_efficiency_npu
    return usual_rate(scenario, wide_precision(scenario)) * share


def counted_head_width(scenario: Scenario, width: float) -> Array | float:
    """Return the head width that attention's products are timed with.

    Assumption for fused attention on NPUs: the vector work per score (maximum, exponent and sum) is no less in a
    narrower head. Models with heads of 64 on the page of MindSpeed-LLM v1.0.RC3.0 run as if theirs were 128 wide; no
    table of measured rows has such heads, and no document of CANN gives the width from which the products decide.
    """
    on_npu = scenario.framework.flash_attention and scenario.hardware.attention_kernel == "npu"
    return np.maximum(width, scenario.coefficients.time.attention_npu_head_width) if on_npu else width


def loaded_by_tensor_cores(scenario: Scenario) -> bool:
    """Return whether products of single heads run on tensor cores, which load rows of multiples of 16 bytes.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to use Tensor Cores". Other products
    run at the rate of fp32 units, as PyTorch accumulates 16-bit products in fp32. Fused kernels pad a head.
    """
    return element_bytes(scenario) * scenario.model.head_dim % _LOADED_BYTES == 0.0


def wide_precision(scenario: Scenario) -> str:
    """Return the 16-bit type of attention and output layer, which fp8 leaves alone."""
    return "bf16" if scenario.precision in NARROW else scenario.precision


def usual_rate(scenario: Scenario, precision: str) -> float:
    """Return the FLOP/s to which efficiencies apply: the peak, scaled by the measured reach of large products.

    Devices lower their clock under matrix products, as far as their power allows: large ones reach 0.84 of an A100's
    peak, 0.65 of a B200's and 0.54 of an MI300X's.
    """
    return scenario.hardware.peak(precision) * scenario.hardware.reach(precision)


def gemm_rate(scenario: Scenario) -> float:
    """Return the FLOP/s of the layers' matrix products (T2)."""
    if scenario.precision in NARROW:
        return usual_rate(scenario, scenario.precision) * scenario.coefficients.time.gemm_efficiency_fp8
    return wide_gemm_rate(scenario)


def wide_gemm_rate(scenario: Scenario) -> float:
    """Return the FLOP/s of products that stay in 16 bits under fp8."""
    return usual_rate(scenario, wide_precision(scenario)) * scenario.coefficients.time.gemm_efficiency


def memory_rate(scenario: Scenario) -> float:
    """Return the bytes per second of elementwise kernels (T6)."""
    return scenario.hardware.memory_bandwidth_bytes_per_second * scenario.coefficients.time.memory_efficiency
