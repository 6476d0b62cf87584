"""Many layouts at once: a block of layouts that share the shape of the pipeline, one array per other choice.

Every formula of `memory` and `timing` takes a block. A single layout is a block of one, so there is one copy of each
formula. Values are float64: bytes, tokens and counts stay exact up to 2**53.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.question.scenario.layout import OFFLOADS, RECOMPUTE_METHODS, RECOMPUTE_MODES, Layout

Array = NDArray[np.float64]
"""One number per layout, shape (n,)."""
KindArray = NDArray[np.float64]
"""One number per kind of pipeline rank and layout, shape (kinds, n)."""
StageArray = NDArray[np.float64]
"""One number per pipeline rank and layout, shape (pipeline_parallel, n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBlock:
    """Layouts with the same pipeline cut. Columns have shape (n,)."""

    pipeline_parallel: int
    virtual_stages: int
    stage_layers: tuple[int, ...]
    """Layers on each pipeline rank; its length is `pipeline_parallel`."""
    recompute_layer_list: tuple[int, ...]
    tensor_parallel: Array
    context_parallel: Array
    expert_parallel: Array
    expert_tensor_parallel: Array
    data_parallel: Array
    micro_batch_size: Array
    sequence_parallel: Array
    """1 where the sequence dimension is split over the tensor-parallel group, else 0."""
    zero_stage: Array
    recompute: Array
    """Index into RECOMPUTE_MODES."""
    recompute_method: Array
    """Index into RECOMPUTE_METHODS."""
    recompute_layers: Array
    offload: Array
    """Index into OFFLOADS."""

    @property
    def expert_ranks(self) -> Array:
        """Ranks over which routed experts are divided: expert parallel x expert tensor parallel."""
        return self.expert_parallel * self.expert_tensor_parallel

    @property
    def replicas(self) -> Array:
        """Ranks that hold the same dense parameters: data x context parallel."""
        return self.data_parallel * self.context_parallel

    @property
    def expert_replicas(self) -> Array:
        """Ranks that hold the same experts: tensor x context x data / expert ranks."""
        return np.maximum(self.tensor_parallel * self.replicas / self.expert_ranks, 1.0)

    def __len__(self) -> int:
        return len(self.tensor_parallel)

    def layout(self, index: int) -> Layout:
        """The layout at `index` as a value."""
        return Layout(
            tensor_parallel=int(self.tensor_parallel[index]),
            pipeline_parallel=self.pipeline_parallel,
            context_parallel=int(self.context_parallel[index]),
            expert_parallel=int(self.expert_parallel[index]),
            expert_tensor_parallel=int(self.expert_tensor_parallel[index]),
            data_parallel=int(self.data_parallel[index]),
            virtual_stages=self.virtual_stages,
            micro_batch_size=int(self.micro_batch_size[index]),
            sequence_parallel=bool(self.sequence_parallel[index]),
            zero_stage=int(self.zero_stage[index]),
            recompute=RECOMPUTE_MODES[int(self.recompute[index])],
            recompute_method=RECOMPUTE_METHODS[int(self.recompute_method[index])],
            recompute_layers=int(self.recompute_layers[index]),
            recompute_layer_list=self.recompute_layer_list,
            offload=OFFLOADS[int(self.offload[index])],
            stage_layers=self.stage_layers,
        )

    def take(self, where: NDArray[np.intp] | NDArray[np.bool_]) -> LayoutBlock:
        """The layouts selected by an index or mask array."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen: dict[str, Any] = {name: value[where] for name, value in values.items() if isinstance(value, np.ndarray)}
        return replace(self, **chosen)


def block_of(layouts: Sequence[Layout]) -> LayoutBlock:
    """A block from layouts that share pipeline size, virtual stages, cut and recompute list."""
    first = layouts[0]

    def column(values: Iterable[float]) -> Array:
        return np.array(list(values), dtype=np.float64)

    return LayoutBlock(
        pipeline_parallel=first.pipeline_parallel,
        virtual_stages=first.virtual_stages,
        stage_layers=first.stage_layers,
        recompute_layer_list=first.recompute_layer_list,
        tensor_parallel=column(x.tensor_parallel for x in layouts),
        context_parallel=column(x.context_parallel for x in layouts),
        expert_parallel=column(x.expert_parallel for x in layouts),
        expert_tensor_parallel=column(x.expert_tensor_parallel for x in layouts),
        data_parallel=column(x.data_parallel for x in layouts),
        micro_batch_size=column(x.micro_batch_size for x in layouts),
        sequence_parallel=column(x.sequence_parallel for x in layouts),
        zero_stage=column(x.zero_stage for x in layouts),
        recompute=column(RECOMPUTE_MODES.index(x.recompute) for x in layouts),
        recompute_method=column(RECOMPUTE_METHODS.index(x.recompute_method) for x in layouts),
        recompute_layers=column(x.recompute_layers for x in layouts),
        offload=column(OFFLOADS.index(x.offload) for x in layouts),
    )


def blocks_of(layouts: Iterable[Layout]) -> Iterator[tuple[list[int], LayoutBlock]]:
    """Group any layouts into blocks; yields the positions of a block's layouts beside it."""
    groups: dict[tuple[object, ...], list[tuple[int, Layout]]] = {}
    for position, layout in enumerate(layouts):
        shape = (
            layout.pipeline_parallel,
            layout.virtual_stages,
            layout.stage_layers,
            layout.recompute_layer_list,
        )
        groups.setdefault(shape, []).append((position, layout))
    for members in groups.values():
        yield [position for position, _ in members], block_of([layout for _, layout in members])
