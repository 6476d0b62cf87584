"""Layouts by column, and the values that a search tries, as types.

Written from the fields of `Layout` by `python -m tools.regenerate types`, never by hand.
"""

from __future__ import annotations

import numpy as np

from simulator.question.arrays import NDArray
from simulator.question.vocabulary import Offload, RecomputeMethod, RecomputeMode, RecomputeModule, ScheduleName
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
