"""Contents of pipeline ranks: chunks of layers, input table, output layer, prediction modules, as counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import assert_never

import numpy as np

from simulator.question.arrays import Index, NDArray
from simulator.question.scenario.block import Array, KindArray, LayoutBlock, StageArray
from simulator.question.scenario.layout import PipelineShape, model_chunks
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind, ModelSpec
from simulator.question.vocabulary import ScheduleName
from simulator.records import Bare

LayerCounts = NDArray[np.float64]
"""Layers of every layer kind, shape (layer kinds, rank kinds, 1)."""


class StageContents(Bare):
    """Contents of the pipeline ranks. Ranks with equal contents are one kind, priced once.

    A 70B model's 80 equal layers on 8 ranks make three kinds: the first rank with the input table, the last with the
    output layer, and the six between. Arrays have shape (rank kinds, 1) unless noted, to broadcast with figures of
    shape (n,). Equal cuts share one object and the figures derived from it.
    """

    layer_kinds: tuple[LayerKind, ...]
    """Kinds of layers in the model, in the order of the axis of layer kinds."""
    kind: Index
    """Kind of every pipeline rank, shape (pipeline_parallel,)."""
    held: Index
    """Ranks whose memory is priced: all, or the first of each kind, which `Pricing.fullest` asks for."""
    ranks: Array
    """Number of pipeline ranks of each kind."""
    group: Index
    """Node group of each kind's devices, shape (rank kinds,); all 0 in a uniform cluster."""
    chunk: Index
    """Index of the distinct chunk that each model chunk equals, shape (virtual stages,)."""
    leading: NDArray[np.float64]
    """Layers by kind among a chunk's first 0 to `most`, shape (distinct chunks, layer kinds, rank kinds, most + 1)."""
    listed: NDArray[np.float64]
    """Layers on the explicit recompute list in every distinct chunk, shape (distinct, layer kinds, rank kinds, 1)."""
    prediction_index: int
    """Index of the layer kind inside a prediction module."""
    embeddings: Array
    """1 where tokens are looked up in the input table."""
    heads: Array
    """1 where the output layer is: on the last rank, or the first where the pipeline comes back."""
    prediction_layers: Array
    """Multi-token prediction modules trained on the rank."""

    def on_ranks(self, by_kind: KindArray) -> StageArray:
        """Return a figure of each kind for every rank that is `held`: shape (rank kinds, n) to (held, n)."""
        spread: StageArray = by_kind if len(self.held) == len(self.ranks) else by_kind[self.held_kind]
        return spread

    @cached_property
    def held_kind(self) -> Index:
        """Kind of every rank that is `held`."""
        return self.kind[self.held]

    @cached_property
    def chunks(self) -> NDArray[np.float64]:
        """Layers by kind in every distinct chunk, shape (distinct, layer kinds, rank kinds, 1)."""
        return self.leading[..., -1:]

    @cached_property
    def repeats(self) -> Array:
        """Number of copies of each distinct chunk on a rank, shape (distinct,)."""
        return np.bincount(self.chunk).astype(np.float64)

    @cached_property
    def unequal(self) -> bool:
        """Whether ranks have several chunks, with unequal numbers of layers."""
        return len(self.chunk) > 1 and bool(np.ptp(self.chunks.sum(axis=1)))

    @cached_property
    def layers(self) -> LayerCounts:
        """Layers by kind on every rank kind."""
        return np.asarray(sum(times * chunk for times, chunk in zip(self.repeats, self.chunks, strict=True)))

    @cached_property
    def num_layers(self) -> Array:
        """Layers of every rank kind, without prediction modules."""
        total: Array = self.layers.sum(axis=0)
        return total

    @cached_property
    def recompute_choices(self) -> NDArray[np.float64]:
        """Layers recomputed under each choice (last axis): the first 0, 1, ... of a chunk, or the list."""
        return np.concatenate((self.leading, self.listed), axis=-1)

    @cached_property
    def listed_shares(self) -> Array:
        """Share of each kind of layer on the explicit recompute list, over all ranks, shape (layer kinds,)."""
        listed = np.asarray(sum(times * chunk for times, chunk in zip(self.repeats, self.listed, strict=True)))
        shares: Array = self.over_ranks(listed) / np.maximum(self.over_ranks(self.layers), 1.0)
        return shares

    def over_ranks(self, counts: LayerCounts) -> Array:
        """Return layers by kind summed over all pipeline ranks, shape (layer kinds,)."""
        total: Array = counts[:, :, 0] @ self.ranks[:, 0]
        return total

    @cached_property
    def with_prediction(self) -> LayerCounts:
        """Layers by kind, with the layer inside every prediction module."""
        counts = self.layers.copy()
        counts[self.prediction_index] += self.prediction_layers
        return counts


def over_layers(counts: LayerCounts, figures: Sequence[Array]) -> KindArray:
    """Return the figures of one layer of each kind, shape (n,) each, summed over the layers of every rank kind.

    The order is fixed and without a matrix product, so a grid and a single layout round alike.
    """
    result: KindArray = counts[0] * figures[0]
    for count, figure in zip(counts[1:], figures[1:], strict=True):
        result = result + count * figure
    return result


def stage_contents(scenario: Scenario, block: LayoutBlock, *, fullest: bool = False) -> StageContents:
    """Return the contents of every pipeline rank of a block's layouts; `fullest` as in `Pricing`."""
    virtual_stages = 1 if chunks_alike(scenario, block) else block.first_virtual_stages
    width = scenario.devices // block.pipeline_parallel
    return _contents(
        model=scenario.model,
        stage_layers=block.stage_layers,
        chunk_layers=block.chunk_layers,
        virtual_stages=virtual_stages,
        schedule=block.schedule,
        shape=block.shape,
        recompute_list=block.recompute_layer_list,
        prediction=scenario.prediction_modules,
        groups=tuple(scenario.group_of(rank * width) for rank in range(block.pipeline_parallel))
        if scenario.groups
        else (0,) * block.pipeline_parallel,
        fullest=fullest,
    )


def chunks_alike(scenario: Scenario, block: LayoutBlock) -> bool:
    """Return whether all chunks of the pipeline have equally many layers of one kind, whatever their number.

    Layouts of one block may then differ in virtual stages: `StageContents` has one chunk, all layers of a rank, and
    `Pricing.chunk_layers` divides it.
    """
    apart = block.chunk_layers or block.recompute_layer_list
    return not apart and cuts_alike(scenario, block.schedule, block.stage_layers, block.virtual_stages)


def cuts_alike(
    scenario: Scenario, schedule: ScheduleName, stage_layers: tuple[int, ...], virtual_stages: Array
) -> bool:
    """Return `chunks_alike` for a cut into `virtual_stages` without explicit chunk layers."""
    if schedule != "1f1b" or len(scenario.model.layer_kinds) > 1 or scenario.prediction_modules:
        return False
    if len(set(stage_layers)) != 1:
        return bool((virtual_stages == 1).all())
    return not (stage_layers[0] % virtual_stages).any()


def _ends(shape: PipelineShape, last: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks with the first and with the last part of the model, the latter always as their last chunk."""
    match shape:
        case "round":
            return (0,), (last,)
        case "there_and_back":
            return (0,), (0,)
        case "both_ends":
            return (0, last), (0, last)
        case _:
            assert_never(shape)


@lru_cache(maxsize=256)
def _layer_codes(model: ModelSpec) -> tuple[int, ...]:
    codes = {kind: code for code, kind in enumerate(model.layer_kinds)}
    return tuple(codes[kind] for kind in model.layers)


@lru_cache(maxsize=256)
def _contents(  # noqa: PLR0913  everything that decides the contents of a pipeline
    *,
    model: ModelSpec,
    stage_layers: tuple[int, ...],
    chunk_layers: tuple[int, ...],
    virtual_stages: int,
    schedule: ScheduleName,
    shape: PipelineShape,
    recompute_list: tuple[int, ...],
    prediction: int,
    groups: tuple[int, ...],
    fullest: bool,
) -> StageContents:
    kinds = model.layer_kinds
    codes = _layer_codes(model)
    chunks = model_chunks(stage_layers, virtual_stages, chunk_layers, schedule)
    first_ranks, last_ranks = _ends(shape, len(chunks) - 1)
    ranks = []
    for rank, of_rank in enumerate(chunks):
        held = tuple(
            (
                codes[start : start + count],
                # The rules refuse a cut with layers beyond the model's.
                tuple(sorted(codes[x] for x in recompute_list if start <= x < min(start + count, len(codes)))),
            )
            for start, count in of_rank
        )
        ranks.append((held, rank in first_ranks, rank in last_ranks, groups[rank]))
    distinct = list(dict.fromkeys(ranks))
    kind = np.array([distinct.index(rank) for rank in ranks], dtype=np.intp)
    # Prediction modules follow the last layers: their chunk equals no other.
    contents = [*enumerate(zip(*(held for held, *_ in distinct), strict=True))]
    identities = [(chunk, bool(prediction) and index == len(contents) - 1) for index, chunk in contents]
    distinct_chunks = list(dict.fromkeys(identities))
    longest = max((len(sequence) for chunk, _ in distinct_chunks for sequence, _ in chunk), default=0)
    leading = np.zeros((len(distinct_chunks), len(kinds), len(distinct), longest + 1))
    listed = np.zeros((*leading.shape[:-1], 1))
    for number, (chunk, _) in enumerate(distinct_chunks):
        for index, (sequence, chosen) in enumerate(chunk):
            leading[number, list(sequence), index, np.arange(1, len(sequence) + 1)] = 1.0
            for code in chosen:
                listed[number, code, index] += 1.0
    leading.cumsum(axis=-1, out=leading)
    heads = np.array([[float(head)] for _, _, head, _ in distinct])
    return StageContents(
        layer_kinds=kinds,
        kind=kind,
        held=np.unique(kind, return_index=True)[1] if fullest else np.arange(len(ranks)),
        ranks=np.bincount(kind).astype(np.float64)[:, None],
        group=np.array([group for *_, group in distinct], dtype=np.intp),
        chunk=np.array([distinct_chunks.index(identity) for identity in identities], dtype=np.intp),
        leading=leading,
        listed=listed,
        prediction_index=kinds.index(model.prediction_kind),
        embeddings=np.array([[float(first)] for _, first, _, _ in distinct]),
        heads=heads,
        prediction_layers=heads * prediction,
    )


def usable_bytes(scenario: Scenario, contents: StageContents) -> Array:
    """Return the memory that a framework can use of the device of every rank that is `held`, shape (held, 1)."""
    by_group = np.array([hardware.usable_memory_bytes for hardware in scenario.kinds_of_device])
    return np.asarray(by_group[contents.group[contents.held_kind]])[:, None]
