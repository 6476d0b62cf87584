"""Coefficients: each with a meaning, a unit, bounds, and a prior with its spread.

The priors are what the field reports for large dense training on current accelerators: matrix products at about 70 %
of the dense peak in 16 bit, fp8 a little less of its doubled peak, causal flash attention at a third to a half,
elementwise kernels at two thirds of the memory bandwidth. A calibration replaces values, never formulas. Rates of
products and attention are those of a device whose products reach the usual share of the peak (`HardwareSpec.reach`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.question.units import GIB


class Prior(NamedTuple):
    """Knowledge of a coefficient before any measurement."""

    unit: str
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    spread: float
    """Standard deviation of the prior, as a share of the prior value."""
    about: str


def coefficient(  # noqa: PLR0913, PLR0917 - one argument per column of the tables below
    value: float, unit: str, low: float, high: float, spread: float, about: str
) -> Any:
    """A coefficient's field: its prior value and what goes with it."""
    return field(default=value, metadata={"prior": Prior(unit, low, high, spread, about)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCoefficients:
    """Coefficients of memory that tensors do not explain."""

    workspace_bytes: float = coefficient(
        0.125 * GIB, "bytes", 0.0, 1.0 * GIB, 0.5, "library workspaces inside the allocator"
    )
    pipeline_buffers_per_chunk: float = coefficient(
        6.0,
        "boundary activations (2 T h over the sequence split) per model chunk",
        0.0,
        20.0,
        0.5,
        "what a pipeline rank sends and receives and has not freed, for each of its model chunks",
    )
    unfused_loss_bytes_per_logit: float = coefficient(
        2.0, "bytes per logit", 0.0, 4.0, 0.5, "blocks of passing copies of the logits that the allocator cannot use"
    )
    context_bytes: float = coefficient(
        0.8 * GIB,
        "bytes",
        0.3 * GIB,
        4.0 * GIB,
        0.4,
        "device context and loaded kernels",
    )
    communicator_bytes: float = coefficient(
        0.15 * GIB, "bytes", 0.0, 1.0 * GIB, 0.7, "buffers of one group of the collective library"
    )
    user_buffers_bytes: float = coefficient(
        1.0 * GIB,
        "bytes",
        0.0,
        6.0 * GIB,
        1.0,
        "what overlapped tensor-parallel collectives register once, whatever the shape",
    )
    user_buffers_per_gathered_tensor: float = coefficient(
        4.0,
        "gathered activations (2 T h)",
        0.0,
        40.0,
        1.0,
        "buffers of overlapped tensor-parallel collectives that grow with the activations",
    )
    ring_buffers_bytes: float = coefficient(
        2.5 * GIB, "bytes", 0.0, 8.0 * GIB, 0.5, "most that buffers of the context-parallel exchange take"
    )
    ring_buffers_per_activation: float = coefficient(
        40.0,
        "activations split by tensor parallel (2 T h / t)",
        0.0,
        200.0,
        1.0,
        "buffers of the context-parallel exchange and of its partial results",
    )
    fragmentation_expandable: float = coefficient(
        0.002, "share of allocated bytes", 0.0, 0.05, 1.0, "unusable space with expandable segments"
    )
    fragmentation: float = coefficient(
        0.02, "share of allocated bytes", 0.0, 0.4, 0.6, "unusable space with the default caching allocator"
    )
    fragmentation_early: float = coefficient(
        0.04, "share of allocated bytes", 0.0, 0.4, 0.8, "the same with the allocator of PyTorch 1 (`eager_modules`)"
    )
    fragmentation_growing: float = coefficient(
        0.02, "share of allocated bytes", 0.0, 0.4, 0.6, "unusable space with a pool that grows by what is asked for"
    )
    unexpandable_bytes: float = coefficient(
        5.0 * GIB,
        "bytes",
        0.0,
        16.0 * GIB,
        0.6,
        "what the default caching allocator holds beside the tensors at any size; none with expandable segments",
    )
    unexpandable_tensor_parallel_bytes: float = coefficient(
        1.8 * GIB, "bytes", 0.0, 8.0 * GIB, 0.6, "the same, further, with tensor parallelism: buffers of gathers"
    )
    starved_from: float = 0.98
    """Share of the usable memory above which a run is expected to be starved: measured runs at 97 % were not."""
    starved_to: float = 1.03
    """Share of the usable memory up to which a starved run may still start: a measured one needed about 1.026."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCoefficients:
    """Rates as shares of the device's peaks, and what is not hidden."""

    gemm_efficiency: float = coefficient(
        0.74, "share of the dense 16-bit peak", 0.2, 0.95, 0.15, "rate of the matrix products in 16 bit"
    )
    gemm_efficiency_fp8: float = coefficient(
        0.70, "share of the dense fp8 peak", 0.15, 1.0, 0.15, "rate of the matrix products in fp8, casts apart"
    )
    attention_efficiency: float = coefficient(
        0.46,
        "share of the dense 16-bit peak within reach of earlier instructions",
        0.05,
        0.95,
        0.15,
        "rate of attention on the causal half of the scores, by FlashAttention 2",
    )
    attention_efficiency_flash_1: float = coefficient(
        0.30, "share of the same", 0.03, 0.9, 0.2, "the same by FlashAttention 1 or Triton's kernel"
    )
    attention_efficiency_sdpa: float = coefficient(
        0.40, "share of the same", 0.03, 0.9, 0.08, "the same by PyTorch's own kernel"
    )
    attention_efficiency_flash_3: float = coefficient(
        0.58, "share of the dense 16-bit peak", 0.05, 0.95, 0.1, "the same by FlashAttention 3 or cuDNN 9"
    )
    attention_efficiency_ck: float = coefficient(
        0.35, "share of the dense 16-bit peak", 0.05, 0.95, 0.3, "the same by the kernels of AMD's Composable Kernel"
    )
    attention_efficiency_npu: float = coefficient(
        0.55, "share of the dense 16-bit peak", 0.05, 0.95, 0.3, "the same by the fused kernel of CANN"
    )
    attention_efficiency_unfused: float = coefficient(
        0.40,
        "share of the dense 16-bit peak",
        0.05,
        0.95,
        0.3,
        "rate of the products of attention without a fused kernel, on all of the scores",
    )
    attention_unaligned: float = coefficient(
        0.70,
        "share of the fp32 peak",
        0.05,
        1.0,
        0.3,
        "the same where a head's width is no multiple of 16 bytes, which tensor cores load: on the units for fp32",
    )
    product_waves: float = coefficient(
        0.2,
        "times the processors",
        0.0,
        5.0,
        0.8,
        "tiles of the outputs that a matrix product starts beside those it needs: waves that are not full",
    )
    product_split_seconds: float = coefficient(
        1.5e-6,
        "seconds",
        0.0,
        2e-5,
        0.4,
        "time of starting and adding up one piece of a matrix product that is split along its depth",
    )
    roofline_sharpness: float = coefficient(
        3.5,
        "exponent",
        1.0,
        20.0,
        0.3,
        "how well a product's computing hides what it reads and writes: 1 adds both up, a large one shows the longer",
    )
    memory_efficiency: float = coefficient(
        0.70, "share of the memory bandwidth", 0.1, 1.0, 0.1, "rate of elementwise kernels"
    )
    layer_overhead_seconds: float = coefficient(
        1.1e-3,
        "seconds per layer and micro batch",
        0.0,
        5e-3,
        0.6,
        "time of a layer, both passes together, that no rate explains: launches and small kernels",
    )
    # Llama-3-70B in NVFP4 on 64 GB200 is 7 % faster with graphs of all layers (Megatron-Bridge's pull request 4080): of
    # the 12.3 % that its unexplained time is worth under these priors, that takes a share of 0.6 away.
    captured_launch_share: float = coefficient(
        0.6,
        "share of a layer's unexplained time",
        0.0,
        1.0,
        0.4,
        "launches, which CUDA graphs do at once; the rest are small kernels, which they leave",
    )
    host_layer_seconds: float = coefficient(
        5e-3,
        "seconds per layer and micro batch",
        0.0,
        5e-2,
        0.4,
        "host time of a layer's operations, both passes together, where it shows: it is slow, or waits for kernels",
    )
    launch_seconds: float = coefficient(
        3e-5,
        "seconds per kernel",
        0.0,
        1e-4,
        0.4,
        "host time of one call between exchanges of experts, which wait for the host and leave it no work ahead",
    )
    launches_per_layer: float = coefficient(
        103.0,
        "kernels",
        10.0,
        1000.0,
        0.15,
        "kernels that the host starts for a layer of experts, both passes together",
    )
    launches_per_expert: float = coefficient(
        6.0, "kernels per expert of the device", 1.0, 60.0, 0.15, "the same beside, for each expert's products"
    )
    expert_wait_seconds: float = coefficient(
        1.8e-3,
        "seconds per layer and micro batch",
        0.0,
        0.1,
        0.5,
        "time that ranks wait for each other's counts of tokens before they exchange them, both passes together",
    )
    expert_wait_exposed: float = coefficient(
        0.22, "share", 0.0, 1.0, 0.5, "part of that waiting that is not hidden where exchanges are overlapped"
    )
    tensor_exposed: float = coefficient(
        0.4, "share", 0.0, 1.0, 0.4, "part of overlapped tensor-parallel collectives that is not hidden"
    )
    overlap_slowdown: float = coefficient(
        0.08,
        "share of the matrix products' time",
        0.0,
        0.5,
        0.7,
        "what matrix products lose when tensor-parallel collectives run under them: smaller pieces, shared units",
    )
    context_exposed: float = coefficient(
        0.7, "share", 0.0, 3.0, 0.25, "part of the context-parallel exchange that attention does not hide"
    )
    ring_bytes_per_query_element: float = coefficient(
        17.0,
        "bytes",
        0.0,
        60.0,
        0.2,
        "what a ring step reads and writes to merge partial results of attention, per element of the queries",
    )
    point_to_point_exposed: float = coefficient(
        0.3, "share", 0.0, 1.0, 0.6, "part of pipeline sends not hidden in the interleaved schedule"
    )
    data_exposed: float = coefficient(
        0.3,
        "share",
        0.0,
        1.0,
        0.35,
        "part of overlapped reduction and gathering not hidden, once a step: between its first and last bucket",
    )
    shard_exposed: float = coefficient(
        0.05,
        "share",
        0.0,
        1.0,
        0.7,
        "the same where every micro batch gathers or reduces: what products under collectives lose",
    )
    broadcast_seconds: float = coefficient(
        3.2e-3,
        "seconds per rank with a share",
        0.0,
        0.1,
        0.24,
        "start of one broadcast, where updated parameters are sent rank by rank (`zero_broadcasts`)",
    )
    node_doubling_wait: float = coefficient(
        0.006,
        "share of a step's passes",
        0.0,
        0.1,
        0.5,
        "waiting for the slowest of ever more ranks, for each doubling of the nodes",
    )
    functional_copies: float = coefficient(
        6.0,
        "passes over a gathered activation",
        0.0,
        30.0,
        0.7,
        "what a tensor-parallel collective of PyTorch in eager mode moves beside the copies that it documents",
    )
    micro_batch_overhead_seconds: float = coefficient(
        5e-3, "seconds per micro batch", 0.0, 3e-2, 0.35, "time of a pipeline rank outside its layers: schedule, host"
    )
    link_efficiency: float = coefficient(
        0.75, "share of a link's nominal bandwidth", 0.2, 1.0, 0.2, "rate of large collectives"
    )
    exchange_network_efficiency: float = coefficient(
        0.88,
        "share of the network's nominal bandwidth",
        0.2,
        1.0,
        0.1,
        "rate of exchanges between all ranks of a group",
    )
    exchange_link_efficiency: float = coefficient(
        0.78, "share of a link's nominal bandwidth", 0.2, 1.0, 0.1, "the same inside a node"
    )
    dispatch_latency_seconds: float = coefficient(
        4e-5, "seconds", 0.0, 1e-3, 0.3, "start of an exchange of DeepEP, and as much for every doubling of its nodes"
    )
    expert_exposed: float = coefficient(
        0.55, "share", 0.0, 2.0, 0.5, "part of an overlapped expert-parallel exchange that is not hidden"
    )
    step_overhead_seconds: float = coefficient(
        0.02, "seconds per step", 0.0, 2.0, 0.5, "time of an optimizer step outside all of it: gradient norm, logging"
    )
    attention_score_width: float = coefficient(
        0.0,
        "head width that costs as much",
        0.0,
        4096.0,
        0.3,
        "what attention does per score beside its products: maximum, exponent, conversions",
    )
    attention_tile_tokens: float = coefficient(
        0.0,
        "tokens of further sequence",
        0.0,
        8192.0,
        0.3,
        "what attention loses on short sequences: tiles that the causal mask cuts are computed whole",
    )
    attention_npu_head_width: float = coefficient(
        128.0, "features", 16.0, 512.0, 0.3, "width of a head below which an NPU's attention takes as long as with it"
    )
    attention_backward_slowdown: float = coefficient(
        1.0, "times", 0.2, 20.0, 0.2, "time of attention's backward pass over that of its products at the forward rate"
    )
    tensor_overhead_seconds: float = coefficient(
        0.0,
        "seconds per layer and micro batch",
        0.0,
        0.2,
        0.7,
        "time that tensor parallelism adds to a layer beside its bytes, both passes together: host work of its calls",
    )
    tensor_ends_overhead_seconds: float = coefficient(
        0.0,
        "seconds per micro batch",
        0.0,
        0.5,
        0.7,
        "the same for output layer and loss, whose logits are split over the vocabulary",
    )
    reduce_slowdown: float = coefficient(
        1.0, "times", 0.3, 20.0, 0.3, "time of reducing bytes over that of gathering as many"
    )
    collective_slowdown: float = coefficient(
        1.0, "times", 0.2, 20.0, 0.3, "time of collectives in a step over what the rates of the links alone say"
    )
    shard_overhead_seconds: float = coefficient(
        0.0,
        "seconds per layer and exchange",
        0.0,
        0.05,
        0.7,
        "time of one gather or scatter of a layer's parameters or gradients beside its bytes: copies, host work",
    )
    optimizer_slowdown: float = coefficient(
        1.0, "times", 0.1, 20.0, 0.3, "time of the optimizer's update over one pass through its state"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """One set: what a calibration writes and a scenario takes."""

    name: str = "priors"
    """Shown in every estimate's provenance."""
    memory: MemoryCoefficients = field(default_factory=MemoryCoefficients)
    time: TimeCoefficients = field(default_factory=TimeCoefficients)


CoefficientKind = Literal["memory", "time"]
"""The two kinds of coefficients; they are fitted apart."""


def priors(kind: CoefficientKind) -> dict[str, Prior]:
    """The coefficients of one kind that a calibration may fit, by name."""
    owner = MemoryCoefficients if kind == "memory" else TimeCoefficients
    return {f.name: f.metadata["prior"] for f in dataclasses.fields(owner) if "prior" in f.metadata}


def replaced(
    base: Coefficients, kind: CoefficientKind, names: Sequence[str], values: NDArray[np.float64]
) -> Coefficients:
    """`base` with the named coefficients set.

    `values` has one entry per name, or one row per name: the columns then go with the layouts of a block, which
    prices one layout under many coefficient sets at once.
    """
    rows = values.tolist() if values.ndim == 1 else values
    changes: dict[str, Any] = dict(zip(names, rows, strict=True))
    if kind == "memory":
        return dataclasses.replace(base, memory=dataclasses.replace(base.memory, **changes))
    return dataclasses.replace(base, time=dataclasses.replace(base.time, **changes))
