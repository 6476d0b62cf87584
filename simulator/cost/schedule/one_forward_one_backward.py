"""1F1B (Narayanan et al. 2021, section 2.2; Megatron's default): one forward, then one backward pass, in turn."""

from __future__ import annotations

import numpy as np

from simulator.cost.schedule.schedule import Pass, Schedule
from simulator.question.scenario.block import Array, StageArray


class OneForwardOneBackward(Schedule):
    """Ranks without model chunks of their own."""

    def order(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
        """`p - i - 1` forward passes ahead, then one of each in turn, then the backward passes left."""
        del chunks
        ahead = min(ranks - rank - 1, micro_batches)
        passes = [Pass("forward", index, 0) for index in range(ahead)]
        for index in range(micro_batches - ahead):
            passes += [Pass("forward", ahead + index, 0), Pass("backward", index, 0)]
        passes += [Pass("backward", index, 0) for index in range(micro_batches - ahead, micro_batches)]
        return tuple(passes)

    def in_flight(self, ranks: int, chunks: int, micro_batches: Array) -> StageArray:
        """`min(p - i, m)`."""
        del chunks
        return np.minimum(ranks - np.arange(ranks, dtype=np.float64)[:, None], micro_batches)

    def fill_seconds(self, others_seconds: Array, chunks: int) -> Array:
        """The others' work passes by once."""
        del chunks
        return others_seconds
