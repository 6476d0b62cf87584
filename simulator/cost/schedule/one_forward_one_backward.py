"""The schedule 1F1B (Narayanan et al. 2021, section 2.2; Megatron's default): forward and backward passes in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.schedule.schedule import Schedule, Turns, one_of_each_in_turn, pairs_after
from simulator.question.scenario.block import Array, StageArray


@dataclass(frozen=True)
class OneForwardOneBackward(Schedule):
    """1F1B on ranks with a single chunk."""

    combined: bool = False
    """Whether passes overlap, with one more ahead (Megatron-LM core_v0.14, pipeline_parallel/combined_1f1b.py)."""

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """Return `p - i - 1` forward passes, then one of each in turn, then the backward passes left."""
        del chunks
        kind, micro_batch = one_of_each_in_turn(self._ahead(rank, ranks, micro_batches), micro_batches)
        return np.column_stack((kind, micro_batch, np.zeros_like(kind)))

    def _ahead(self, rank: int, ranks: int, micro_batches: int) -> int:
        return min(ranks - rank - 1 + self.combined, micro_batches)

    def together(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> NDArray[np.bool_] | None:
        """Return every pair of the steady state."""
        del chunks
        return pairs_after(self._ahead(rank, ranks, micro_batches), micro_batches) if self.combined else None

    def in_flight(self, ranks: int, chunks: Array | int, micro_batches: Array) -> StageArray:
        """Return `min(p - i, m)`; of overlapped passes one frees what the other saves."""
        del chunks
        return np.minimum(ranks - np.arange(ranks, dtype=np.float64)[:, None], micro_batches)
