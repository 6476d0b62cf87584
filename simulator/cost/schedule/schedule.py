"""The interface of a pipeline schedule: all that memory, time and the event run may know of one. Prices no pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.question.scenario.block import Array, StageArray

PassKind = Literal["forward", "backward", "input_gradient", "weight_gradient"]
"""The last two are a backward pass in two: what the stage before waits for, and what nobody waits for."""
PASSES: Final[tuple[PassKind, ...]] = ("forward", "backward", "input_gradient", "weight_gradient")
"""Kinds of passes, by the number that stands for each in `Turns`."""
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
"""Cycles of as many micro batches as ranks after which what is in flight repeats: two fill, the others are steady."""


class Schedule(ABC):
    """How the passes of a step take turns on `ranks` pipeline ranks with `chunks` model chunks each."""

    by_run: ClassVar[bool] = False
    """Whether time and memory follow from a run of the passes, whatever the stages; else from closed forms if equal."""
    splits: ClassVar[bool] = False
    """Whether backward passes are split into input and weight gradients."""

    @abstractmethod
    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """The passes of one rank, first to last: what the event run replays."""

    def order(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
        """`turns`, each as a value."""
        turns = self.turns(rank, ranks, chunks, micro_batches).tolist()
        return tuple(Pass(PASSES[kind], micro_batch, chunk) for kind, micro_batch, chunk in turns)

    def together(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> NDArray[np.bool_] | None:
        """Passes that run under each other with the one before them, shape (passes,); None where none does."""
        del rank, ranks, chunks, micro_batches
        return None

    def places(self, ranks: int, chunks: int) -> NDArray[np.intp]:
        """Which part of the model each chunk of a rank is, from the first layers on, shape (ranks, chunks)."""
        return np.arange(ranks)[:, None] + ranks * np.arange(chunks)

    def least_micro_batches(self, ranks: int) -> int:
        """Fewest micro batches it can run."""
        del ranks
        return 1

    def in_flight(self, ranks: int, chunks: Array | int, micro_batches: Array) -> StageArray:
        """Chunk passes whose activations a rank holds at its peak, shape (ranks, n); micro batches have shape (n,).

        Here all layouts have as many chunks.
        """
        fewest = self.least_micro_batches(ranks)
        counts = np.clip(np.ceil(micro_batches), fewest, max(STEADY * ranks, fewest))
        held = np.empty((ranks, len(counts)))
        for count in np.unique(counts):
            held[:, counts == count] = np.array(_most_alive(self, ranks, int(np.max(chunks)), int(count)))[:, None]
        return held

    def fill_seconds(self, others_seconds: Array, chunks: Array | int) -> Array:
        """Idle time of the pacing rank while the pipeline fills and drains, shape (n,).

        `others_seconds` is the work of all other ranks on one micro batch, both passes. It passes by in chunks, which
        those that split backward passes stay below.
        """
        return others_seconds / chunks

    def of_chunk(self, in_flight: StageArray, chunk: int, ranks: int, chunks: Array | int) -> StageArray:
        """Of the first so many forward passes, those of one chunk, shape (ranks, n).

        Chunks take turns, each for a group of as many micro batches as there are ranks.
        """
        cycles, rest = np.divmod(in_flight, ranks * np.asarray(chunks, dtype=np.float64))
        here: StageArray = cycles * ranks + np.clip(rest - chunk * ranks, 0.0, ranks)
        return here

    def sends(self, ranks: int, chunks: Array | int) -> Array | float:
        """Activations and gradients that a rank sends or receives per micro batch, one after the other."""
        return 2.0 * chunks if ranks > 1 else 0.0


HELD: Final = np.array((1, -1, 0, -1))
"""Chunk passes that a pass of each kind adds to those held: they are until the weight gradient is done."""


def alive(kind: NDArray[np.intp]) -> NDArray[np.intp]:
    """Chunk passes that are held after each of a rank's passes."""
    return np.cumsum(HELD[kind])


@lru_cache(maxsize=256)
def _most_alive(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """The most that each rank holds."""
    turns = (schedule.turns(rank, ranks, chunks, micro_batches) for rank in range(ranks))
    return tuple(int(alive(turn[:, 0]).max()) for turn in turns)


def one_of_each_in_turn(ahead: int, total: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Kinds of `total` forward and as many backward passes, and which of its kind each is; shape (2 total,).

    `ahead` forward passes, then one of each in turn, then the backward passes left.
    """
    kind = np.ones(2 * total, dtype=np.intp)
    kind[:ahead] = 0
    kind[ahead : 2 * total - ahead : 2] = 0
    backward = np.cumsum(kind)
    return kind, np.where(kind == 1, backward, np.arange(1, 2 * total + 1) - backward) - 1


def pairs_after(ahead: int, total: int) -> NDArray[np.bool_]:
    """The backward pass of every pair that `one_of_each_in_turn` makes."""
    pairs = np.zeros(2 * total, dtype=np.bool_)
    pairs[ahead + 1 : 2 * total - ahead : 2] = True
    return pairs
