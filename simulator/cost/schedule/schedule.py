"""What a pipeline schedule says of itself; memory, time and the event run read nothing else of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.question.scenario.block import Array, StageArray

PASSES: Final = ("forward", "backward")
"""Kinds of passes, by the number that stands for each in `Turns`."""
Turns = NDArray[np.intp]
"""Passes of one rank, first to last: kind (an index of PASSES), micro batch, chunk; shape (passes, 3)."""


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
    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """The passes of one rank, first to last: what the event run replays."""

    def order(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
        """`turns`, each as a value."""
        turns = self.turns(rank, ranks, chunks, micro_batches).tolist()
        return tuple(Pass(PASSES[kind], micro_batch, chunk) for kind, micro_batch, chunk in turns)

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


def one_of_each_in_turn(ahead: int, total: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Kinds of `total` forward and as many backward passes, and which of its kind each is; shape (2 total,).

    `ahead` forward passes, then one of each in turn, then the backward passes left.
    """
    kind = np.ones(2 * total, dtype=np.intp)
    kind[:ahead] = 0
    kind[ahead : 2 * total - ahead : 2] = 0
    backward = np.cumsum(kind)
    return kind, np.where(kind == 1, backward, np.arange(1, 2 * total + 1) - backward) - 1
