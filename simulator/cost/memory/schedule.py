"""How many micro batches a pipeline rank holds at once, and what its layers keep for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.memory.activations import attention_working_set, layer_bytes, layer_input_bytes
from simulator.cost.memory.parameters import StageContents
from simulator.question.scenario.block import Array, KindArray, LayoutBlock, StageArray
from simulator.question.scenario.layout import OFFLOADS, RECOMPUTE_METHODS, RECOMPUTE_MODES
from simulator.question.scenario.scenario import Scenario


def micro_batches(scenario: Scenario, block: LayoutBlock) -> Array:
    """Micro batches per step on one replica: `B / (b d)`."""
    return scenario.global_batch_size / (block.micro_batch_size * block.data_parallel)


def in_flight(scenario: Scenario, block: LayoutBlock) -> StageArray:
    """Micro batches whose activations a rank holds at its peak, shape (pipeline_parallel, n).

    1F1B: `min(p - i, m)`. Interleaved with v chunks (Narayanan et al. 2021, section 2.2): chunks in flight are
    `2 (p - i - 1) + (v - 1) p + 1`, all `m v` of them when m equals p, each of 1/v of the rank's layers.
    """
    p, v = block.pipeline_parallel, block.virtual_stages
    rank = np.arange(p, dtype=np.float64)[:, None]
    m = micro_batches(scenario, block)
    if v == 1:
        return np.minimum(p - rank, m)
    chunks = np.minimum(2.0 * (p - rank - 1.0) + (v - 1.0) * p + 1.0, m * v)
    return np.where(m == p, m * v, chunks) / v


@dataclass(frozen=True, slots=True)
class RecomputePlan:
    """Layers of each rank that are recomputed in full; arrays of shape (kinds, n) unless said."""

    dense: KindArray
    """Dense layers recomputed."""
    moe: KindArray
    """Mixture-of-experts layers recomputed."""
    unit: Array
    """Layers between two kept inputs, shape (n,); the backward pass holds one unit in full."""
    inputs: KindArray
    """Layer inputs kept."""


def recompute_plan(block: LayoutBlock, has: StageContents) -> RecomputePlan:
    """Which layers are recomputed.

    `uniform` recomputes all, keeping the input of every `recompute_layers`-th layer; `block` the first
    `recompute_layers` layers of every chunk; `list` the layers named (Megatron's and Paddle's three ways).
    """
    full = block.recompute == RECOMPUTE_MODES.index("full")
    uniform = full & (block.recompute_method == RECOMPUTE_METHODS.index("uniform"))
    leading = full & (block.recompute_method == RECOMPUTE_METHODS.index("block"))
    listed = full & (block.recompute_method == RECOMPUTE_METHODS.index("list"))
    dense, moe = has.dense_layers[:, None], has.moe_layers[:, None]
    chunk = (dense + moe) / block.virtual_stages
    of_chunks = np.minimum(block.recompute_layers, chunk) * block.virtual_stages
    leading_dense = np.zeros_like(of_chunks)
    for column in has.dense_by_chunk.T:
        if column.any():
            leading_dense = leading_dense + np.minimum(column[:, None], block.recompute_layers)
    dense_count = (
        np.where(uniform, dense, 0.0)
        + np.where(leading, leading_dense, 0.0)
        + np.where(listed, has.listed_dense[:, None], 0.0)
    )
    moe_count = (
        np.where(uniform, moe, 0.0)
        + np.where(leading, of_chunks - leading_dense, 0.0)
        + np.where(listed, has.listed_moe[:, None], 0.0)
    )
    unit = np.where(uniform, block.recompute_layers, 1.0)
    stored = np.ceil(chunk / unit) * block.virtual_stages
    return RecomputePlan(dense_count, moe_count, unit, np.where(uniform, stored, dense_count + moe_count))


@dataclass(frozen=True, slots=True)
class StageActivations:
    """Bytes of activations by kind of pipeline rank, shape (kinds, n)."""

    one_micro_batch: KindArray
    """What one micro batch keeps on the device."""
    offloaded: NDArray[np.bool_]
    """Layouts that move activations to the host, shape (n,): what stays does not grow with micro batches in flight."""
    recompute_working_set: KindArray
    """One recomputed unit in full, or what an attention block adds, alive during its backward pass."""
    offload_traffic: KindArray
    """Bytes to the host per micro batch; as many come back."""


def stage_activations(
    scenario: Scenario, block: LayoutBlock, has: StageContents, plan: RecomputePlan
) -> StageActivations:
    """Price the layers and apply full recompute and offload.

    Offloaded activations leave two layers on the device: the one computed and the one copied.
    """
    model = scenario.model
    zero = np.zeros(len(block))
    dense = layer_bytes(scenario, block, moe=False) if model.num_dense_layers else zero
    moe = layer_bytes(scenario, block, moe=True) if model.is_moe else zero
    kept = (
        (has.dense_layers[:, None] - plan.dense) * dense
        + (has.moe_layers[:, None] - plan.moe) * moe
        + plan.inputs * layer_input_bytes(scenario, block)
        + has.mtp_layers[:, None] * (moe if model.is_moe else dense)
    )
    largest = np.maximum(dense, moe)
    offloaded = block.offload == OFFLOADS.index("activations")
    recomputed = (plan.dense + plan.moe) > 0.0
    working_set = np.where(recomputed, plan.unit * largest, 0.0)
    attention = block.recompute == RECOMPUTE_MODES.index("attention")
    if attention.any():
        working_set = np.where(attention, attention_working_set(scenario, block), working_set)
    return StageActivations(
        one_micro_batch=np.where(offloaded, np.minimum(2.0 * largest, kept), kept),
        offloaded=offloaded,
        recompute_working_set=working_set,
        offload_traffic=np.where(offloaded, kept, 0.0),
    )


def activations_in_flight(
    scenario: Scenario, block: LayoutBlock, has: StageContents, activations: StageActivations
) -> StageArray:
    """What all micro batches in flight keep on every rank, shape (pipeline_parallel, n)."""
    flight = np.where(activations.offloaded, 1.0, in_flight(scenario, block))
    return activations.one_micro_batch[has.kind] * flight
