"""Typed dictionaries of the inputs of a question, for type checkers and completion in Python.

Written from the fields of `Layout` and from `INPUTS` by `python -m tools.regenerate types`, never by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

from simulator.question import vocabulary as words


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
    schedule: words.ScheduleName | None
    micro_batch_size: int | None
    zero_stage: int | None
    sequence_parallel: bool | None
    recompute: words.RecomputeMode | None
    recompute_modules: tuple[words.RecomputeModule, ...] | None
    recompute_method: words.RecomputeMethod | None
    recompute_layers: int | None
    recompute_layer_list: tuple[int, ...] | None
    offload: words.Offload | None
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
    schedule: words.ScheduleName | Sequence[words.ScheduleName] | None
    micro_batch_size: int | Sequence[int] | None
    zero_stage: int | Sequence[int] | None
    sequence_parallel: bool | Sequence[bool] | None
    recompute: words.RecomputeMode | Sequence[words.RecomputeMode] | None
    recompute_modules: tuple[words.RecomputeModule, ...] | None
    recompute_method: words.RecomputeMethod | Sequence[words.RecomputeMethod] | None
    recompute_layers: int | Sequence[int] | None
    recompute_layer_list: tuple[int, ...] | None
    offload: words.Offload | Sequence[words.Offload] | None
    stage_layers: tuple[int, ...] | None
    chunk_layers: tuple[int, ...] | None


class WorkloadFields(TypedDict, total=False):
    """Workload of one optimizer step, the same in all layouts of a question."""

    seq_length: int
    global_batch_size: int
    precision: words.Precision
    lora_rank: int | None


class SharedFields(TypedDict, total=False):
    """Inputs of a question that all offers of a plan share."""

    seq_length: int | str
    global_batch_size: int | str
    lora_rank: int | str | None
    lengths: words.FileName | Mapping[int, float] | Sequence[int] | None
    batching: words.Batching
    cutoff: int | str | None
    survive: float | str
    images: str | None
    method: words.TuningMethod | None
    num_layers: int | str | None
    framework: words.FrameworkName
    stack: words.StackName | None
    optimizer: words.OptimizerName | None
    options: Mapping[str, str] | None
    calibration: words.FileName | None


class QuestionFields(SharedFields, total=False):
    """Inputs of a question; see `simulator.estimate`."""

    model: Required[words.FileName | Mapping[str, Any]]
    hardware: words.FileName
    nodes: int | str | None
    devices: int | str | None
    precision: words.Precision


class EstimateFields(QuestionFields, LayoutFields, total=False):
    """Inputs of a question, and its layout."""


class OpenFields(SharedFields, LayoutFields, total=False):
    """Inputs and layout that replace those of an estimate or a recipe; all optional."""

    model: words.FileName | Mapping[str, Any]
    hardware: words.FileName
    nodes: int | str | None
    devices: int | str | None
    precision: words.Precision


class RankFields(QuestionFields, SearchedFields, total=False):
    """Inputs of a question, and the values that its layouts may have."""
