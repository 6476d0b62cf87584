"""Interface `Schedule` of a pipeline schedule: all that memory, time and the run of passes use of one.

`schedule.orders` has the schedules, `schedule.events` the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.question.scenario.block import Array, StageArray

PassKind = Literal["forward", "backward", "input_gradient", "weight_gradient"]
"""Kinds of passes; the last two are a split backward pass: the previous stage waits for the first only."""
PASSES: Final[tuple[PassKind, ...]] = ("forward", "backward", "input_gradient", "weight_gradient")
"""Kinds of passes, indexed by their number in `Turns`."""
FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(4)
Turns = NDArray[np.intp]
"""Passes of one rank, first to last: kind (an index of PASSES), micro batch, chunk; shape (passes, 3)."""


class Pass(NamedTuple):
    """One pass of one micro batch through one model chunk of a rank."""

    kind: PassKind
    micro_batch: int
    """From 0."""
    chunk: int
    """From 0, in the order of the model's layers."""


STEADY: Final = 4
"""Cycles, of as many micro batches as ranks, after which passes in flight repeat: two fill, the others are steady."""


class Schedule(ABC):
    """Order of a step's passes on `ranks` pipeline ranks with `chunks` model chunks each."""

    by_run: ClassVar[bool] = False
    """Whether time and memory come from a run of the passes even for equal stages, not from closed forms."""
    splits: ClassVar[bool] = False
    """Whether backward passes are split into input and weight gradients."""

    @abstractmethod
    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """Return the passes of one rank, first to last."""

    def order(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
        """Return `turns` as a tuple of passes."""
        turns = self.turns(rank, ranks, chunks, micro_batches).tolist()
        return tuple(Pass(PASSES[kind], micro_batch, chunk) for kind, micro_batch, chunk in turns)

    def together(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> NDArray[np.bool_] | None:
        """Return which passes overlap with the pass before them, shape (passes,); None where none does."""
        del rank, ranks, chunks, micro_batches
        return None

    def places(self, ranks: int, chunks: int) -> NDArray[np.intp]:
        """Return which part of the model each chunk of a rank is, in layer order, shape (ranks, chunks)."""
        return np.arange(ranks)[:, None] + ranks * np.arange(chunks)

    def min_micro_batches(self, ranks: int) -> int:
        """Return the fewest micro batches that the schedule can run."""
        del ranks
        return 1

    def in_flight(self, ranks: int, chunks: Array | int, micro_batches: Array) -> StageArray:
        """Return the chunk passes whose activations a rank holds at its peak, shape (ranks, n).

        `micro_batches` has shape (n,). This default assumes equally many chunks in all layouts.
        """
        fewest = self.min_micro_batches(ranks)
        counts = np.clip(np.ceil(micro_batches), fewest, max(STEADY * ranks, fewest))
        held = np.empty((ranks, len(counts)))
        for count in np.unique(counts):
            held[:, counts == count] = np.array(_most_alive(self, ranks, int(np.max(chunks)), int(count)))[:, None]
        return held

    def fill_seconds(self, others_seconds: Array, chunks: Array | int) -> Array:
        """Return the idle time of the pacing rank while the pipeline fills and drains, shape (n,).

        `others_seconds` is the work of all other ranks on one micro batch, both passes. It passes by in chunks;
        schedules that split backward passes stay below it.
        """
        return others_seconds / chunks

    def of_chunk(self, in_flight: StageArray, chunk: int, ranks: int, chunks: Array | int) -> StageArray:
        """Return how many of the first `in_flight` forward passes are of one chunk, shape (ranks, n).

        Chunks take turns, each for a group of as many micro batches as ranks.
        """
        cycles, rest = np.divmod(in_flight, ranks * np.asarray(chunks, dtype=np.float64))
        here: StageArray = cycles * ranks + np.clip(rest - chunk * ranks, 0.0, ranks)
        return here

    def sends(self, ranks: int, chunks: Array | int) -> Array | float:
        """Return the activations and gradients that a rank sends or receives per micro batch, one after another."""
        return 2.0 * chunks if ranks > 1 else 0.0


HELD: Final = np.array((1, -1, 0, -1))
"""Change in held chunk passes by kind of pass: a chunk pass is held until its weight gradient is done."""


def alive(kind: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the chunk passes held after each of a rank's passes."""
    return np.cumsum(HELD[kind])


@lru_cache(maxsize=256)
def _most_alive(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """Return the most chunk passes that each rank holds."""
    turns = (schedule.turns(rank, ranks, chunks, micro_batches) for rank in range(ranks))
    return tuple(int(alive(turn[:, 0]).max()) for turn in turns)


def one_of_each_in_turn(ahead: int, total: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the kind of each of `total` forward and `total` backward passes and its number within its kind.

    Order: `ahead` forward passes, one of each in turn, the backward passes left. Shapes (2 total,).
    """
    kind = np.ones(2 * total, dtype=np.intp)
    kind[:ahead] = 0
    kind[ahead : 2 * total - ahead : 2] = 0
    backward = np.cumsum(kind)
    return kind, np.where(kind == 1, backward, np.arange(1, 2 * total + 1) - backward) - 1


def pairs_after(ahead: int, total: int) -> NDArray[np.bool_]:
    """Return which passes are the backward pass of a pair in the order of `one_of_each_in_turn`."""
    pairs = np.zeros(2 * total, dtype=np.bool_)
    pairs[ahead + 1 : 2 * total - ahead : 2] = True
    return pairs
