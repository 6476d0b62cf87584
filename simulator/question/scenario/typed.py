"""Typed dictionaries of the inputs of a question, for type checkers and completion in Python.

Written from the fields of `Layout` and from `INPUTS` by `python -m tools.regenerate types`, never by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

import numpy as np

from simulator.question.arrays import NDArray
from simulator.question.vocabulary import (
    Batching,
    FileName,
    FrameworkName,
    Offload,
    OptimizerName,
    Precision,
    RecomputeMethod,
    RecomputeMode,
    RecomputeModule,
    ScheduleName,
    StackName,
    TuningMethod,
)
from simulator.records import Bare, Record

Array = NDArray[np.float64]
"""One number per layout, shape (n,)."""


class Columns(Bare, kw_only=True):
    """Layouts with the same pipeline cut. Columns have shape (n,)."""

    pipeline_parallel: int
    schedule: ScheduleName
    """Index into 1f1b, zb_h1, zb_v, dualpipe, dualpipev."""
    recompute_layer_list: tuple[int, ...]
    stage_layers: tuple[int, ...]
    chunk_layers: tuple[int, ...]
    tensor_parallel: Array
    context_parallel: Array
    expert_parallel: Array
    expert_tensor_parallel: Array
    data_parallel: Array
    virtual_stages: Array
    micro_batch_size: Array
    zero_stage: Array
    sequence_parallel: Array
    """1 where it is on, else 0."""
    recompute: Array
    """Index into none, selective, full, attention, operations."""
    recompute_modules: Array
    """Sum of 2 to the index into core_attn, layernorm, moe_act, mla_up_proj, mlp, moe, shared_experts, moe_gate_up."""
    recompute_method: Array
    """Index into uniform, block, list."""
    recompute_layers: Array
    offload: Array
    """Index into none, optimizer, optimizer_tensorwise, activations."""


class Axes(Record, kw_only=True):
    """Allowed values per axis; None, or no layers, is the default described at each field."""

    tensor_parallel: tuple[int, ...] | None = None
    """Default: every divisor of the devices up to 64."""
    pipeline_parallel: tuple[int, ...] | None = None
    """Default: every divisor of the devices up to the layers."""
    context_parallel: tuple[int, ...] | None = None
    """Default: every divisor of the devices up to 64."""
    expert_parallel: tuple[int, ...] | None = None
    """Default: every divisor of the experts up to the devices."""
    expert_tensor_parallel: tuple[int, ...] | None = None
    """Default: 1 and the tensor-parallel size."""
    data_parallel: tuple[int, ...] | None = None
    """Default: what is left of the devices."""
    virtual_stages: tuple[int, ...] | None = None
    """Default: every number that divides the layers of a rank."""
    layers_per_virtual_stage: tuple[int, ...] | None = None
    """Default: the same, given as layers per chunk."""
    schedule: tuple[ScheduleName, ...] | None = None
    """Default: 1f1b."""
    micro_batch_size: tuple[int, ...] | None = None
    """Default: 1, 2, 4, 8."""
    zero_stage: tuple[int, ...] | None = None
    """Default: what the framework uses, 1 or (torch) 3."""
    sequence_parallel: tuple[bool, ...] | None = None
    """Default: on where tensor parallel is above 1."""
    recompute: tuple[RecomputeMode, ...] | None = None
    """Default: none, selective (torch: operations), full."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """Default: core_attn; with experts or latent attention two or three sets more."""
    recompute_method: tuple[RecomputeMethod, ...] | None = None
    """Default: uniform; Megatron: block too, where not all layers have to be."""
    recompute_layers: tuple[int, ...] | None = None
    """Default: uniform: 1; block: the fewest that fit."""
    recompute_layer_list: tuple[int, ...] = ()
    """Default: none; explicit layers replace the two above."""
    offload: tuple[Offload, ...] | None = None
    """Default: none."""
    stage_layers: tuple[int, ...] = ()
    """Default: an even cut; an explicit one fixes the pipeline size."""
    chunk_layers: tuple[int, ...] = ()
    """Default: equal chunks; where layers do not divide, embedding and loss counted as layers."""


class LayoutFields(TypedDict, total=False):
    """Fields of a layout by name or by key; None counts as left out."""

    tensor_parallel: int | None
    tp: int | None
    pipeline_parallel: int | None
    pp: int | None
    context_parallel: int | None
    cp: int | None
    expert_parallel: int | None
    ep: int | None
    expert_tensor_parallel: int | None
    etp: int | None
    data_parallel: int | None
    dp: int | None
    virtual_stages: int | None
    vpp: int | None
    layers_per_virtual_stage: int | None
    schedule: ScheduleName | None
    micro_batch_size: int | None
    zero_stage: int | None
    sequence_parallel: bool | None
    recompute: RecomputeMode | None
    recompute_modules: tuple[RecomputeModule, ...] | None
    recompute_method: RecomputeMethod | None
    recompute_layers: int | None
    recompute_layer_list: tuple[int, ...] | None
    offload: Offload | None
    stage_layers: tuple[int, ...] | None
    chunk_layers: tuple[int, ...] | None


class SearchedFields(TypedDict, total=False):
    """Fields of a layout by name or by key, each a value or some to choose from; None leaves it open."""

    tensor_parallel: int | Sequence[int] | None
    tp: int | Sequence[int] | None
    pipeline_parallel: int | Sequence[int] | None
    pp: int | Sequence[int] | None
    context_parallel: int | Sequence[int] | None
    cp: int | Sequence[int] | None
    expert_parallel: int | Sequence[int] | None
    ep: int | Sequence[int] | None
    expert_tensor_parallel: int | Sequence[int] | None
    etp: int | Sequence[int] | None
    data_parallel: int | Sequence[int] | None
    dp: int | Sequence[int] | None
    virtual_stages: int | Sequence[int] | None
    vpp: int | Sequence[int] | None
    layers_per_virtual_stage: int | Sequence[int] | None
    schedule: ScheduleName | Sequence[ScheduleName] | None
    micro_batch_size: int | Sequence[int] | None
    zero_stage: int | Sequence[int] | None
    sequence_parallel: bool | Sequence[bool] | None
    recompute: RecomputeMode | Sequence[RecomputeMode] | None
    recompute_modules: tuple[RecomputeModule, ...] | None
    recompute_method: RecomputeMethod | Sequence[RecomputeMethod] | None
    recompute_layers: int | Sequence[int] | None
    recompute_layer_list: tuple[int, ...] | None
    offload: Offload | Sequence[Offload] | None
    stage_layers: tuple[int, ...] | None
    chunk_layers: tuple[int, ...] | None


class WorkloadFields(TypedDict, total=False):
    """Workload of one optimizer step, the same in all layouts of a question."""

    seq_length: int
    global_batch_size: int
    precision: Precision
    lora_rank: int | None


class SharedFields(TypedDict, total=False):
    """Inputs of a question that all offers of a plan share."""

    seq_length: int | str
    global_batch_size: int | str
    lora_rank: int | str | None
    lengths: FileName | Mapping[int, float] | Sequence[int] | None
    batching: Batching
    cutoff: int | str | None
    survive: float | str
    images: str | None
    method: TuningMethod | None
    num_layers: int | str | None
    framework: FrameworkName
    stack: StackName | None
    optimizer: OptimizerName | None
    options: Mapping[str, str] | None
    calibration: FileName | None


class QuestionFields(SharedFields, total=False):
    """Inputs of a question; see `simulator.estimate`."""

    model: Required[FileName | Mapping[str, Any]]
    hardware: FileName
    nodes: int | str | None
    devices: int | str | None
    precision: Precision


class EstimateFields(QuestionFields, LayoutFields, total=False):
    """Inputs of a question, and its layout."""


class OpenFields(SharedFields, LayoutFields, total=False):
    """Inputs and layout that replace those of an estimate or a recipe; all optional."""

    model: FileName | Mapping[str, Any]
    hardware: FileName
    nodes: int | str | None
    devices: int | str | None
    precision: Precision


class RankFields(QuestionFields, SearchedFields, total=False):
    """Inputs of a question, and the values that its layouts may have."""
