"""Coefficients with their meaning, unit and prior.

The priors are what the field reports for large dense training on current accelerators: matrix products at 70 to 80 %
of the dense peak in 16 bit, fp8 at a lower share of its doubled peak, flash attention at half to two thirds,
elementwise kernels at three quarters of the memory bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCoefficients:
    """What tensors do not explain of the device figure."""

    context_bytes: float = 0.6 * GIB
    """Device context, kernels and library workspaces on one device, bytes."""
    communicator_bytes: float = 0.8 * GIB
    """Buffers of the collective library per process group with more than one member, bytes."""
    user_buffers_per_gathered_tensor: float = 8.0
    """Overlap buffers of tensor-parallel collectives, in gathered activations (`2 T h` bytes) per device."""
    pipeline_buffers_per_chunk: float = 2.0
    """Pipeline send and receive buffers per model chunk of a rank, in boundary activations (`2 T h` over the sequence
    split)."""
    fragmentation_expandable: float = 0.002
    """Unusable share of the allocated bytes with expandable segments."""
    fragmentation: float = 0.06
    """Unusable share of the allocated bytes with the default caching allocator."""
    starved_from: float = 0.98
    """Share of the usable memory above which a run is expected to be starved: measured runs at 97 % were not."""
    starved_to: float = 1.03
    """Share of the usable memory up to which a starved run may still start: a measured one needed about 1.026."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCoefficients:
    """Rates as shares of the device's peaks, and what is not hidden."""

    gemm_efficiency: float = 0.70
    """Share of the dense 16-bit peak that large matrix products reach."""
    gemm_efficiency_fp8: float = 0.60
    """Share of the dense fp8 peak, casts apart."""
    attention_efficiency: float = 0.35
    """Share of the dense 16-bit peak that flash attention reaches on the causal half of the scores."""
    memory_efficiency: float = 0.65
    """Share of the memory bandwidth that elementwise kernels reach."""
    link_efficiency: float = 0.75
    """Share of a link's nominal bandwidth that large collectives reach."""
    layer_overhead_seconds: float = 600e-6
    """Time per layer and micro batch, both passes together, that no rate explains (launches, small kernels)."""
    tensor_exposed: float = 0.35
    """Share of tensor-parallel collectives not hidden when they overlap with matrix products."""
    context_exposed: float = 1.0
    """Share of the context-parallel exchange not hidden behind attention."""
    expert_exposed: float = 0.8
    """Share of the expert-parallel exchange not hidden."""
    point_to_point_exposed: float = 0.2
    """Share of pipeline sends not hidden in the interleaved schedule."""
    data_exposed: float = 0.3
    """Share of gradient reduction and parameter gathering not hidden when they overlap."""
    micro_batch_overhead_seconds: float = 4.0e-3
    """Time per micro batch and pipeline rank outside the layers (schedule, data, host), seconds."""
    step_overhead_seconds: float = 0.05
    """Time per optimizer step outside all of it (gradient norm, logging), seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """One set: what a calibration writes and a scenario takes."""

    name: str = "priors"
    """Shown in every estimate's provenance."""
    memory: MemoryCoefficients = field(default_factory=MemoryCoefficients)
    time: TimeCoefficients = field(default_factory=TimeCoefficients)
