"""Activations of a pipeline rank: its layers' for every micro batch in flight, less what is recomputed or offloaded.

Rank 0 of four under 1F1B holds four micro batches at its peak, rank 3 one (Narayanan et al. 2021, section 2.2); with
full recompute each is the input of every layer. Weights, gradients and states stand in `state`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cost.derived import Pricing, derived, of_sizes
from simulator.cost.memory.activations import (
    delayed_bytes,
    embedded_bytes,
    kept_bytes,
    layer_bytes,
    layer_input_bytes,
    repeated_working_set,
    returning_bytes,
)
from simulator.cost.operations.extents import micro_batches
from simulator.cost.schedule.registry import schedule_of
from simulator.cost.schedule.schedule import BACKWARD, FORWARD, HELD, INPUT_GRADIENT, STEADY, Schedule
from simulator.question.arrays import largest
from simulator.question.scenario.block import Array, KindArray, StageArray


@of_sizes
def in_flight(pricing: Pricing) -> StageArray:
    """Micro batches whose activations a rank holds at its peak, chunks as parts of one; (pipeline_parallel, n) (M8)."""
    ranks, chunks = pricing.block.pipeline_parallel, pricing.block.chunks
    return schedule_of(pricing).in_flight(ranks, chunks, micro_batches(pricing)) / chunks


@dataclass(frozen=True, slots=True)
class RecomputePlan:
    """Layers that are recomputed in full, by distinct chunk."""

    layers: NDArray[np.float64]
    """Layers recomputed, shape (distinct chunks, layer kinds, rank kinds, n or 1)."""
    unit: Array
    """Layers between two kept inputs, shape (n,); the backward pass holds one unit in full."""
    inputs: NDArray[np.float64]
    """Layer inputs kept, shape (distinct chunks, rank kinds, n or 1)."""
    on_rank: NDArray[np.float64]
    """Layers recomputed on every rank kind, shape (layer kinds, rank kinds, n or 1)."""


@derived
def recompute_plan(pricing: Pricing) -> RecomputePlan:
    """Which layers are recomputed (M6).

    `uniform` recomputes all, keeping the input of every `recompute_layers`-th layer; `block` the first
    `recompute_layers` layers of every chunk; `list` the layers named (Megatron's and Paddle's three ways).
    """
    block, contents, chunks = pricing.block, pricing.contents, pricing.chunk_layers
    full = pricing.recomputes("full")
    if not full.any():
        none = np.zeros_like(chunks)
        return RecomputePlan(none, np.ones(len(pricing)), none[:, 0], none[0])
    uniform = full & pricing.recomputes_by("uniform")
    leading = full & pricing.recomputes_by("block")
    listed = full & pricing.recomputes_by("list")
    unit = np.where(uniform, block.recompute_layers, 1.0)
    if pricing.chunks_alike:
        again = np.where(leading, np.minimum(block.recompute_layers, chunks), uniform * chunks)
        inputs = np.where(uniform, np.ceil(chunks[:, 0] / unit), again[:, 0])
        return RecomputePlan(again, unit, inputs, block.virtual_stages * again[0])
    # Each choice there is once, and which one every layout takes: the first so many, of which all, or the list.
    every = contents.leading.shape[-1] - 1
    first = np.minimum(block.recompute_layers, every).astype(np.intp)
    way = np.where(leading, first, every * uniform + (every + 1) * listed)
    again = contents.ways_in_chunk.take(way, axis=-1)
    return RecomputePlan(
        layers=contents.ways.take(way, axis=-1),
        unit=unit,
        inputs=np.where(uniform, np.ceil(chunks.sum(axis=1) / unit), again),
        on_rank=contents.ways_on_rank.take(way, axis=-1),
    )


@dataclass(frozen=True, slots=True)
class StageActivations:
    """Bytes of activations by kind of pipeline rank, shape (kinds, n)."""

    by_chunk: tuple[KindArray, ...]
    """What one micro batch keeps of each distinct chunk on the device."""
    one_micro_batch: KindArray
    """What one micro batch keeps of all chunks."""
    embedded: KindArray
    """What one micro batch keeps before the first layer, on the rank that looks tokens up."""
    offloaded: NDArray[np.bool_]
    """Layouts that move activations to the host, shape (n,): what stays does not grow with micro batches in flight."""
    recompute_working_set: KindArray
    """One recomputed unit in full, or what operations done again add, alive during its backward pass."""
    offload_traffic: KindArray
    """Bytes to the host per micro batch; as many come back."""

    def first_chunk(self, pricing: Pricing) -> KindArray:
        """What one micro batch keeps of a rank's first chunk, the last that its backward pass frees."""
        share = self.one_micro_batch / sum(pricing.chunk_repeats)
        return self.embedded + np.where(self.offloaded, share, self.by_chunk[pricing.contents.chunk[0]])


@derived
def stage_activations(pricing: Pricing) -> StageActivations:
    """Price the layers and apply full recompute and offload.

    Offloaded activations leave two layers on the device: the one computed and the one copied.
    """
    contents, plan = pricing.contents, recompute_plan(pricing)
    of_kind = [layer_bytes(pricing, kind) for kind in contents.layer_kinds]
    unlisted = _unlisted(pricing)
    boundary = layer_input_bytes(pricing)
    predicted = contents.prediction_layers * of_kind[contents.prediction_index]
    by_chunk: list[KindArray] = []
    for index, (chunk, again, inputs) in enumerate(zip(pricing.chunk_layers, plan.layers, plan.inputs, strict=True)):
        kept = inputs * boundary
        for kind, size in enumerate(of_kind):
            kept = kept + (chunk[kind] - again[kind]) * size
            if unlisted:
                kept = kept + (chunk - contents.listed[index])[kind] * unlisted[kind]
        # Prediction modules stand behind the last layers.
        by_chunk.append(kept + predicted if index == contents.chunk[-1] else kept)
    whole = np.asarray(sum(times * kept for times, kept in zip(pricing.chunk_repeats, by_chunk, strict=True)))
    layer = largest(of_kind)
    offloaded = pricing.offloads("activations")
    recomputed = plan.on_rank.sum(axis=0) > 0.0
    again_in_layers = [
        repeated_working_set(pricing, kind) + returning_bytes(pricing, kind) for kind in contents.layer_kinds
    ]
    return StageActivations(
        by_chunk=tuple(by_chunk),
        embedded=contents.embeddings * embedded_bytes(pricing),
        one_micro_batch=np.where(offloaded, np.minimum(2.0 * layer, whole), whole),
        offloaded=offloaded,
        recompute_working_set=np.where(recomputed, plan.unit * layer, largest(again_in_layers)),
        offload_traffic=np.where(offloaded, whole, 0.0),
    )


def _unlisted(pricing: Pricing) -> list[Array]:
    """Bytes that a layer of each kind keeps more where modules are done again in listed layers alone; empty if none."""
    some = pricing.recomputes("selective") & pricing.recomputes_by("list")
    if not some.any():
        return []
    freed = (kept_bytes(pricing, kind) - layer_bytes(pricing, kind) for kind in pricing.contents.layer_kinds)
    return [np.where(some, bytes_freed, 0.0) for bytes_freed in freed]


def activations_in_flight(pricing: Pricing) -> StageArray:
    """What all micro batches in flight keep on every rank, shape (pipeline_parallel, n) (M9)."""
    block, contents, activations = pricing.block, pricing.contents, stage_activations(pricing)
    kept_of_one = contents.on_ranks(activations.one_micro_batch)
    flight = in_flight(pricing)
    if len(activations.by_chunk) == 1:
        held = kept_of_one * np.where(activations.offloaded, 1.0, flight)
    else:
        held = np.where(activations.offloaded, kept_of_one, _uneven_in_flight(pricing, flight))
    if pricing.scenario.framework.overlap_expert_exchange and pricing.scenario.model.is_moe:
        # Forward and backward passes under each other hold a layer of both at once.
        held = held + kept_of_one / np.maximum(np.array(block.stage_layers, dtype=np.float64)[:, None], 1.0)
    if pricing.scenario.framework.delayed_weight_gradients and pricing.scenario.model.is_moe:
        held = held + np.max([delayed_bytes(pricing, kind) for kind in contents.layer_kinds], axis=0)
    if not activations.embedded.any():
        return held
    schedule, ranks, chunks = schedule_of(pricing), block.pipeline_parallel, block.chunks
    return held + contents.on_ranks(activations.embedded) * schedule.of_chunk(flight * chunks, 0, ranks, chunks)


def _uneven_in_flight(pricing: Pricing, flight: StageArray) -> StageArray:
    """Bytes in flight where the chunks of a rank differ: of each, the passes that have begun.

    Chunks of unequal layers take each other's place as the step goes on: the most bytes of any moment.
    """
    block, contents = pricing.block, pricing.contents
    schedule, ranks, chunks = schedule_of(pricing), block.pipeline_parallel, block.chunks
    if contents.unequal or (schedule.by_run and np.all(chunks == len(contents.chunk))):
        return _most_in_flight(pricing)
    by_chunk = [contents.on_ranks(kept) for kept in stage_activations(pricing).by_chunk]
    passes = flight * chunks
    held = np.zeros_like(flight)
    for chunk, distinct in enumerate(contents.chunk):
        held = held + schedule.of_chunk(passes, chunk, ranks, chunks) * by_chunk[distinct]
    return held


def before_backward(pricing: Pricing, chunk: int) -> StageArray:
    """The most that a rank's layers keep when a backward pass of its first (0) or last (-1) chunk begins.

    Shape (pipeline_parallel, n), of chunks of unequal layers that stay on the device.
    """
    return _most_in_flight(pricing, chunk % len(pricing.contents.chunk))


def _most_in_flight(pricing: Pricing, chunk: int | None = None) -> StageArray:
    """The most bytes that passes in flight hold at once, shape (pipeline_parallel, n).

    Of all moments, or of those at which a backward pass of one chunk begins.
    """
    block, contents = pricing.block, pricing.contents
    schedule, ranks, chunks = schedule_of(pricing), block.pipeline_parallel, tuple(map(int, contents.chunk))
    run = np.maximum(micro_batches(pricing), schedule.least_micro_batches(ranks))
    cycles = np.minimum(np.ceil(run / ranks), STEADY)
    shape = len(contents.ranks), len(pricing)
    by_chunk = [np.broadcast_to(kept, shape) for kept in stage_activations(pricing).by_chunk]
    held = np.empty((ranks, len(pricing)))
    for count in np.unique(cycles):
        of_count = np.flatnonzero(cycles == count)
        for rank, kind in enumerate(contents.kind):
            kept = [chunk[kind, of_count] for chunk in by_chunk]
            alive = _alive(schedule, _Place(rank, ranks, int(count) * ranks), chunks, chunk)
            now = alive[:, 0, None] * kept[0]
            for number, size in zip(alive.T[1:], kept[1:], strict=True):
                now += number[:, None] * size
            held[rank, of_count] = np.max(now, axis=0)
    return held


class _Place(NamedTuple):
    """A rank in a pipeline of so many, and its micro batches."""

    rank: int
    ranks: int
    micro_batches: int


@lru_cache(maxsize=4096)
def _alive(schedule: Schedule, place: _Place, chunks: tuple[int, ...], before: int | None) -> NDArray[np.float64]:
    """Passes of each distinct chunk in flight on a rank, at every moment that no other holds as much of each.

    `chunks` is which of the distinct ones a model chunk is; shape (moments, distinct chunks). Of moments before a
    backward pass of the chunk `before`, where one is asked for.
    """
    rank, ranks, micro_batches = place
    kind, _, chunk = schedule.turns(rank, ranks, len(chunks), micro_batches).T
    begun = np.zeros((len(kind), max(chunks) + 1))
    begun[np.arange(len(kind)), np.array(chunks)[chunk]] = HELD[kind]
    if before is not None:
        begins = np.isin(kind, (BACKWARD, INPUT_GRADIENT)) & (chunk == before)
        return np.unique(np.cumsum(begun, axis=0)[np.append(begins[1:], False)], axis=0)
    backward = schedule.together(rank, ranks, len(chunks), micro_batches)
    # A forward pass under a backward one takes the place of what that frees.
    beside = np.zeros(len(kind), dtype=np.bool_) if backward is None else np.append(backward[1:], False)
    alone = (kind == FORWARD) & ~beside
    most = alone & ~np.append(alone[1:], False)
    moments = np.unique(np.cumsum(begun, axis=0)[most], axis=0)
    as_much = np.count_nonzero((moments[:, None] <= moments).all(axis=2), axis=1)
    return np.asarray(moments[as_much == 1])
