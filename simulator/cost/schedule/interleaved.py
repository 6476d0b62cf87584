"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2): every rank has several model chunks, which take turns."""

from __future__ import annotations

import numpy as np

from simulator.cost.schedule.schedule import Schedule, Turns, one_of_each_in_turn
from simulator.question.scenario.block import Array, StageArray


class Interleaved(Schedule):
    """Chunks take turns, each for as many micro batches as there are ranks."""

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """`2 (p - i - 1) + (v - 1) p` forward passes ahead, all of them where m equals p; then one of each in turn."""
        total = micro_batches * chunks
        ahead = total if micro_batches == ranks else min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)
        kind, index = one_of_each_in_turn(ahead, total)
        cycle, rest = np.divmod(index, ranks * chunks)
        chunk = rest // ranks  # backward passes take the chunks from the last to the first
        return np.column_stack((kind, cycle * ranks + rest % ranks, np.where(kind == 1, chunks - 1 - chunk, chunk)))

    def in_flight(self, ranks: int, chunks: int, micro_batches: Array) -> StageArray:
        """`2 (p - i - 1) + (v - 1) p + 1` chunk passes, all `m v` of them when m equals p."""
        rank = np.arange(ranks, dtype=np.float64)[:, None]
        every = micro_batches * chunks
        some = np.minimum(2.0 * (ranks - rank - 1.0) + (chunks - 1.0) * ranks + 1.0, every)
        return np.where(micro_batches == ranks, every, some)

    def fill_seconds(self, others_seconds: Array, chunks: int) -> Array:
        """The others' work passes by in chunks of 1/v of a rank."""
        return others_seconds / chunks
