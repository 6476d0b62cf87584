"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2): every rank has several model chunks, which take turns."""

from __future__ import annotations

import numpy as np

from simulator.cost.schedule.schedule import Pass, Schedule
from simulator.question.scenario.block import Array, StageArray


class Interleaved(Schedule):
    """Chunks take turns, each for as many micro batches as there are ranks."""

    def order(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
        """`2 (p - i - 1) + (v - 1) p` forward passes ahead, all of them where m equals p; then one of each in turn."""
        total = micro_batches * chunks
        ahead = total if micro_batches == ranks else min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)

        def turn(index: int) -> tuple[int, int]:
            """Micro batch, and chunk in the order of the passes, of a rank's pass."""
            cycle, rest = divmod(index, ranks * chunks)
            return cycle * ranks + rest % ranks, rest // ranks

        def forward(index: int) -> Pass:
            micro_batch, chunk = turn(index)
            return Pass("forward", micro_batch, chunk)

        def backward(index: int) -> Pass:
            micro_batch, chunk = turn(index)
            return Pass("backward", micro_batch, chunks - 1 - chunk)

        passes = [forward(index) for index in range(ahead)]
        for index in range(total - ahead):
            passes += [forward(ahead + index), backward(index)]
        passes += [backward(index) for index in range(total - ahead, total)]
        return tuple(passes)

    def in_flight(self, ranks: int, chunks: int, micro_batches: Array) -> StageArray:
        """`2 (p - i - 1) + (v - 1) p + 1` chunk passes, all `m v` of them when m equals p."""
        rank = np.arange(ranks, dtype=np.float64)[:, None]
        every = micro_batches * chunks
        some = np.minimum(2.0 * (ranks - rank - 1.0) + (chunks - 1.0) * ranks + 1.0, every)
        return np.where(micro_batches == ranks, every, some)

    def fill_seconds(self, others_seconds: Array, chunks: int) -> Array:
        """The others' work passes by in chunks of 1/v of a rank."""
        return others_seconds / chunks
