"""Coefficients of the formulas: each with a meaning, a unit, bounds, and a prior with its spread.

The priors are what the field reports for large dense training on current accelerators: matrix products at about 70 % of
the dense peak in 16 bit, fp8 a little less of its doubled peak, causal flash attention at a third to a half,
elementwise kernels at two thirds of the memory bandwidth. A calibration (`evidence.calibration`) replaces values, never
formulas. Rates of products and attention are those of a device whose products reach the usual share of the peak
(`HardwareSpec.reach`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from simulator.question.arrays import NDArray
from simulator.question.specs.documents import TABLED, TableRow, fields_from, rows_of
from simulator.question.units import parse_bytes
from simulator.records import NamedTuple, Record, field, replace

CoefficientKind = Literal["memory", "time"]
"""Kinds of coefficients, which are fitted apart."""


class Prior(NamedTuple):
    """Unit, bounds and spread of a coefficient before any measurement."""

    unit: str
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    spread: float
    """Standard deviation of the prior, as a share of the prior value."""
    about: str
    fitted: bool = True
    """Whether shipped rows decide it apart from others."""


_TABLE = rows_of("coefficients")


def _amount(cell: str) -> float:
    """Return the number in a cell, in bytes where it has a unit."""
    return parse_bytes(cell) if " " in cell else float(cell)


def _coefficient(row: TableRow, _type: str) -> Any:
    """Return the dataclass field of a coefficient: its prior value, with unit, bounds and spread as metadata."""
    low, high, spread = (_amount(row[column]) for column in ("low", "high", "spread"))
    prior = Prior(row["unit"], low, high, spread, row["about"], row["fitted"] != "no")
    return field(default=_amount(row["value"]), metadata={"prior": prior})


def _of_kind(kind: CoefficientKind) -> dict[str, dict[str, str]]:
    return {name: row for name, row in _TABLE.items() if row["kind"] == kind}


@fields_from(_of_kind("memory"), _coefficient)
class MemoryCoefficients(Record, kw_only=True):
    """Coefficients of memory that tensors do not explain."""

    workspace_bytes: float = TABLED
    pipeline_buffers: float = TABLED
    unfused_loss_bytes_per_logit: float = TABLED
    context_bytes: float = TABLED
    communicator_bytes: float = TABLED
    user_buffers_bytes: float = TABLED
    user_buffers_per_gathered_tensor: float = TABLED
    ring_buffers_bytes: float = TABLED
    ring_buffers_per_activation: float = TABLED
    fragmentation_expandable: float = TABLED
    fragmentation: float = TABLED
    fragmentation_early: float = TABLED
    fragmentation_growing: float = TABLED
    unexpandable_bytes: float = TABLED
    unexpandable_tensor_parallel_bytes: float = TABLED
    starved_from: float = 0.98
    """Share of the usable memory above which a run is expected to be starved: measured runs at 97 % were not."""
    starved_to: float = 1.03
    """Share of the usable memory up to which a starved run may still start: a measured one needed about 1.026."""


@fields_from(_of_kind("time"), _coefficient)
class TimeCoefficients(Record, kw_only=True):
    """Coefficients of time: shares of the device's peak rates, exposed shares of communication, overheads."""

    gemm_efficiency: float = TABLED
    gemm_efficiency_fp8: float = TABLED
    attention_efficiency: float = TABLED
    attention_efficiency_flash_1: float = TABLED
    attention_efficiency_sdpa: float = TABLED
    attention_efficiency_flash_3: float = TABLED
    attention_efficiency_ck: float = TABLED
    attention_efficiency_npu: float = TABLED
    attention_efficiency_unfused: float = TABLED
    attention_unaligned: float = TABLED
    product_waves: float = TABLED
    product_split_seconds: float = TABLED
    roofline_sharpness: float = TABLED
    memory_efficiency: float = TABLED
    layer_overhead_seconds: float = TABLED
    # Llama-3-70B in NVFP4 on 64 GB200 is 7 % faster with graphs of all layers (Megatron-Bridge's pull request 4080): of
    # the 12.3 % that its unexplained time is worth under these priors, that takes a share of 0.6 away.
    captured_launch_share: float = TABLED
    host_layer_seconds: float = TABLED
    launch_seconds: float = TABLED
    launches_per_layer: float = TABLED
    launches_per_expert: float = TABLED
    expert_wait_seconds: float = TABLED
    expert_wait_exposed: float = TABLED
    tensor_exposed: float = TABLED
    overlap_slowdown: float = TABLED
    context_exposed: float = TABLED
    ring_bytes_per_query_element: float = TABLED
    point_to_point_exposed: float = TABLED
    data_exposed: float = TABLED
    shard_exposed: float = TABLED
    broadcast_seconds: float = TABLED
    node_doubling_wait: float = TABLED
    functional_copies: float = TABLED
    micro_batch_overhead_seconds: float = TABLED
    link_efficiency: float = TABLED
    exchange_network_efficiency: float = TABLED
    exchange_link_efficiency: float = TABLED
    dispatch_latency_seconds: float = TABLED
    expert_exposed: float = TABLED
    step_overhead_seconds: float = TABLED
    attention_score_width: float = TABLED
    attention_tile_tokens: float = TABLED
    attention_tile_tokens_flash_3: float = TABLED
    attention_npu_head_width: float = TABLED
    attention_backward_slowdown: float = TABLED
    tensor_overhead_seconds: float = TABLED
    tensor_ends_overhead_seconds: float = TABLED
    reduce_slowdown: float = TABLED
    collective_slowdown: float = TABLED
    shard_overhead_seconds: float = TABLED
    optimizer_slowdown: float = TABLED


class Coefficients(Record, kw_only=True):
    """Set of coefficients that a calibration writes and a scenario takes."""

    name: str = "priors"
    """Name in every estimate's provenance."""
    memory: MemoryCoefficients = field(default_factory=MemoryCoefficients)
    time: TimeCoefficients = field(default_factory=TimeCoefficients)


@cache
def priors(kind: CoefficientKind) -> Mapping[str, Prior]:
    """Return the priors of one kind's coefficients that a calibration may fit, by name."""
    owner = MemoryCoefficients if kind == "memory" else TimeCoefficients
    return MappingProxyType({f.name: f.metadata["prior"] for f in dataclasses.fields(owner) if "prior" in f.metadata})


def replaced(
    base: Coefficients, kind: CoefficientKind, names: Sequence[str], values: NDArray[np.float64]
) -> Coefficients:
    """Return `base` with the named coefficients replaced.

    `values` has one entry per name, or one row per name: the columns then go with the layouts of a block, which
    prices one layout under many coefficient sets at once.
    """
    rows = values.tolist() if values.ndim == 1 else values
    changes: dict[str, Any] = dict(zip(names, rows, strict=True))
    if kind == "memory":
        return replace(base, memory=replace(base.memory, **changes))
    return replace(base, time=replace(base.time, **changes))
