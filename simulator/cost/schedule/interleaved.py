"""The schedule interleaved 1F1B (Narayanan et al. 2021, section 2.2): the chunks of a rank take turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.schedule.schedule import Schedule, Turns, one_of_each_in_turn, pairs_after
from simulator.question.scenario.block import Array, StageArray


@dataclass(frozen=True)
class Interleaved(Schedule):
    """Chunks take turns, each for as many micro batches as ranks; with one chunk it is 1F1B."""

    combined: bool = False
    """As for `OneForwardOneBackward`."""
    whole_warm_up: bool = False
    """Whether all forward passes come first if there are as many micro batches as ranks."""

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """Return `2 (p - i - 1) + (v - 1) p` forward passes (or all), then one of each in turn."""
        total = micro_batches * chunks
        kind, index = one_of_each_in_turn(self._ahead(rank, ranks, chunks, micro_batches), total)
        cycle, rest = np.divmod(index, ranks * chunks)
        chunk = rest // ranks  # backward passes take the chunks from the last to the first
        return np.column_stack((kind, cycle * ranks + rest % ranks, np.where(kind == 1, chunks - 1 - chunk, chunk)))

    def _ahead(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> int:
        total = micro_batches * chunks
        some = (2 if chunks > 1 else 1) * (ranks - rank - 1) + (chunks - 1) * ranks + self.combined
        return total if self.whole_warm_up and chunks > 1 and micro_batches == ranks else min(some, total)

    def together(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> NDArray[np.bool_] | None:
        """Return every pair of the steady state."""
        ahead = self._ahead(rank, ranks, chunks, micro_batches)
        return pairs_after(ahead, micro_batches * chunks) if self.combined else None

    def in_flight(self, ranks: int, chunks: Array | int, micro_batches: Array) -> StageArray:
        """Return `2 (p - i - 1) + (v - 1) p + 1` chunk passes, or in a whole warm-up all `m v`."""
        rank, several = np.arange(ranks, dtype=np.float64)[:, None], np.greater(chunks, 1)
        every = micro_batches * chunks
        behind = np.where(several, 2.0, 1.0) * (ranks - rank - 1.0)
        some = np.minimum(behind + (chunks - 1.0) * ranks + 1.0, every)
        return np.where(several & (micro_batches == ranks), every, some) if self.whole_warm_up else some
