"""What a pipeline schedule says of itself; memory, time and the event run read nothing else of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import numpy as np

from simulator.question.scenario.block import Array, StageArray


class Pass(NamedTuple):
    """One pass of one micro batch through one model chunk of a rank."""

    kind: Literal["forward", "backward"]
    micro_batch: int
    """From 0."""
    chunk: int
    """From 0, in the order of the model's layers."""


class Schedule(ABC):
    """How the passes of a step take turns on `ranks` pipeline ranks with `chunks` model chunks each."""

    @abstractmethod
    def order(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
        """The passes of one rank, first to last: what the event run replays."""

    @abstractmethod
    def in_flight(self, ranks: int, chunks: int, micro_batches: Array) -> StageArray:
        """Chunk passes whose activations a rank holds at its peak, shape (ranks, n); micro batches have shape (n,)."""

    @abstractmethod
    def fill_seconds(self, others_seconds: Array, chunks: int) -> Array:
        """Idle time of the pacing rank while the pipeline fills and drains, shape (n,).

        `others_seconds` is the work of all other ranks on one micro batch, both passes.
        """

    def of_chunk(self, in_flight: StageArray, chunk: int, ranks: int, chunks: int) -> StageArray:
        """Of the first so many forward passes, those of one chunk, shape (ranks, n).

        Chunks take turns, each for a group of as many micro batches as there are ranks.
        """
        cycles, rest = np.divmod(in_flight, float(ranks * chunks))
        here: StageArray = cycles * ranks + np.clip(rest - chunk * ranks, 0.0, ranks)
        return here

    def sends(self, ranks: int, chunks: int) -> float:
        """Activations and gradients that a rank sends or receives per micro batch, one after the other."""
        return 2.0 * chunks if ranks > 1 else 0.0
