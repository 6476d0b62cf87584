"""1F1B (Narayanan et al. 2021, section 2.2; Megatron's default): one forward, then one backward pass, in turn."""

from __future__ import annotations

import numpy as np

from simulator.cost.schedule.schedule import Schedule, Turns, one_of_each_in_turn
from simulator.question.scenario.block import Array, StageArray


class OneForwardOneBackward(Schedule):
    """Ranks without model chunks of their own."""

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """`p - i - 1` forward passes ahead, then one of each in turn, then the backward passes left."""
        del chunks
        kind, micro_batch = one_of_each_in_turn(min(ranks - rank - 1, micro_batches), micro_batches)
        return np.column_stack((kind, micro_batch, np.zeros_like(kind)))

    def in_flight(self, ranks: int, chunks: int, micro_batches: Array) -> StageArray:
        """`min(p - i, m)`."""
        del chunks
        return np.minimum(ranks - np.arange(ranks, dtype=np.float64)[:, None], micro_batches)

    def fill_seconds(self, others_seconds: Array, chunks: int) -> Array:
        """The others' work passes by once."""
        del chunks
        return others_seconds
