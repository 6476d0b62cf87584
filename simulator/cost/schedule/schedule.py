"""Interface `Schedule` of a pipeline schedule, and its run pass by pass: begins, ends and what a rank holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Final, Literal

import numpy as np

from simulator.question.arrays import NDArray
from simulator.question.scenario.block import Array, StageArray
from simulator.records import NamedTuple

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
    first_holds_most: ClassVar[bool] = False
    """Whether of two ranks the first holds at any time at least what the other holds at its most."""
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

    def of_chunk(
        self, in_flight: StageArray, chunk: int, ranks: int, chunks: Array | int, several: int = 1
    ) -> StageArray:
        """Return how many of the first `in_flight` forward passes are of `several` chunks from one on, (ranks, n).

        Chunks take turns, each for a group of as many micro batches as ranks.
        """
        cycles, rest = np.divmod(in_flight, ranks * np.asarray(chunks, dtype=np.float64))
        here: StageArray = cycles * (several * ranks) + np.clip(rest - chunk * ranks, 0.0, several * ranks)
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


class Event(NamedTuple):
    """One executed pass."""

    rank: int
    ran: Pass
    start_seconds: float
    end_seconds: float
    sent: bool
    """Whether another rank waits for its result."""


class PipelineWork(NamedTuple):
    """Seconds of every chunk's passes, by rank and then by chunk."""

    forward_seconds: Sequence[Sequence[float]]
    backward_seconds: Sequence[Sequence[float]]
    micro_batches: int
    weight_seconds: Sequence[Sequence[float]] | None = None
    """Seconds of separate weight gradients in the backward passes; None where the schedule splits none."""
    send_seconds: float = 0.0
    """Seconds from the end of a pass to the start of the next on another rank."""

    @property
    def ranks(self) -> int:
        """Return the number of pipeline ranks."""
        return len(self.forward_seconds)

    @property
    def chunks(self) -> int:
        """Return the number of model chunks of a rank."""
        return len(self.forward_seconds[0])


class EventRun(NamedTuple):
    """All passes of a step, by rank in order of execution."""

    events: tuple[tuple[Event, ...], ...]

    @property
    def makespan_seconds(self) -> float:
        """Return the seconds from the first pass to the end of the last."""
        return max(events[-1].end_seconds for events in self.events)

    def most_alive(self, rank: int) -> int:
        """Return the peak of chunk passes whose forward has begun and whose backward has not ended."""
        return int(alive(np.array([PASSES.index(event.ran.kind) for event in self.events[rank]])).max())


def run(schedule: Schedule, pipeline: PipelineWork) -> EventRun:
    """Run a step: a pass starts when its rank is free and what it needs has come; overlapped pairs go together."""
    passes = _fronts(schedule, pipeline.ranks, pipeline.chunks, pipeline.micro_batches)
    weights = np.array(pipeline.weight_seconds or 0.0 * np.array(pipeline.backward_seconds))
    durations = kinds_of_pass(np.array(pipeline.forward_seconds), np.array(pipeline.backward_seconds), weights)
    seconds = durations[passes.kind, passes.rank, passes.chunk, None]
    ends = _ends(passes, seconds, pipeline.send_seconds)[:-1, 0]
    starts = ends - seconds[:, 0]
    if passes.under is not None:
        first, second = passes.under
        starts[first] -= seconds[second, 0]
        ends[first] = starts[second]
    sent = np.zeros(len(ends) + 1, dtype=np.bool_)
    sent[passes.needed] = passes.elsewhere(passes.needed)
    events: list[list[Event]] = [[] for _ in range(pipeline.ranks)]
    columns = (passes.rank, passes.kind, passes.micro_batch, passes.chunk, starts, ends, sent[:-1])
    for rank, kind, micro_batch, chunk, start, end, leaves in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        events[rank].append(Event(rank, Pass(PASSES[kind], micro_batch, chunk), start, end, leaves))
    return EventRun(tuple(map(tuple, events)))


def kinds_of_pass(forward: Array, backward: Array, weights: Array) -> Array:
    """Return the seconds by kind of pass, in the order of PASSES; a backward pass takes as long if it is split."""
    return np.stack((forward, backward, backward - weights, weights))


def makespan_seconds(schedule: Schedule, seconds: Array, kind: NDArray[np.intp], micro_batches: int) -> Array:
    """Return the seconds from the first pass to the end of the last, of many steps at once without sends, shape (n,).

    `seconds` are those of passes by kind, chunk and kind of rank, shape (PASSES, chunks, kinds, n); `kind` is the kind
    of every rank.
    """
    passes = _fronts(schedule, len(kind), seconds.shape[1], micro_batches)
    row = passes.kind, passes.chunk, kind[passes.rank]
    last: Array = np.empty(seconds.shape[-1])
    at_once = max(_AT_ONCE // len(passes.rank), 1)
    for start in range(0, len(last), at_once):
        part = slice(start, start + at_once)
        last[part] = np.max(_ends(passes, seconds[..., part][row], 0.0), axis=0)
    return last


_AT_ONCE = 2**20  # ends of passes held at once, to bound memory


class _Fronts(NamedTuple):
    """The passes of a step in fronts: each pass needs only passes of earlier fronts. Arrays of shape (passes,)."""

    bounds: tuple[int, ...]
    """Start of every front, and the end of the last."""
    rank: NDArray[np.int16]
    kind: NDArray[np.int8]
    """Index of PASSES."""
    micro_batch: NDArray[np.int32]
    chunk: NDArray[np.int16]
    needed: NDArray[np.int32]
    """Index of the pass whose result it needs; the number of passes where there is none."""
    previous: NDArray[np.int32]
    """Index of the pass before it on its rank; the number of passes for the first."""
    also: NDArray[np.int32] | None
    """Index of the pass that its overlapped pass needs; None where no passes overlap."""
    under: tuple[NDArray[np.int32], NDArray[np.int32]] | None
    """First and second of every overlapped pair; both end with the second."""

    def elsewhere(self, needed: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether the needed passes are on another rank, shape (passes,)."""
        own = np.append(self.rank, 0)[needed] == self.rank
        return np.asarray((needed != len(self.rank)) & ~own, dtype=np.bool_)


def _ends(passes: _Fronts, seconds: Array, send_seconds: float) -> Array:
    """Return the end of every pass, shape (passes + 1, n) with a last row of 0; `seconds` has shape (passes, n)."""
    ends = np.zeros((len(seconds) + 1, seconds.shape[1]))
    if passes.under is not None:
        first_of, second_of = passes.under
        seconds = seconds.copy()
        seconds[first_of] += seconds[second_of]
        seconds[second_of] = 0.0
    inputs = [
        (needs, send_seconds * passes.elsewhere(needs)[:, None])
        for needs in (passes.needed, passes.also)
        if needs is not None
    ]
    for first, last in pairwise(passes.bounds):
        now = ends[passes.previous[first:last]]
        for needed, sent in inputs:
            ready = ends[needed[first:last]]
            if send_seconds:
                ready += sent[first:last]
            np.maximum(now, ready, out=now)
        np.add(now, seconds[first:last], out=ends[first:last])
    return ends


@lru_cache(maxsize=64)  # a search repeats its shapes; the longest run takes 4 MB
def _fronts(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> _Fronts:
    """Return all passes of a step in fronts. Raises ValueError where a pass waits for itself."""
    turns = [schedule.turns(rank, ranks, chunks, micro_batches) for rank in range(ranks)]
    length = np.array([len(turn) for turn in turns])
    count = int(length.sum())
    kind, micro_batch, chunk = np.ascontiguousarray(np.concatenate(turns).T)
    at = np.arange(count)
    rank = np.repeat(np.arange(ranks), length)
    # A forward pass needs the part before it, a backward pass the part after it; the last part turns round.
    places = schedule.places(ranks, chunks)
    place, last = places[rank, chunk], int(places.max())
    back = (kind == BACKWARD) | (kind == INPUT_GRADIENT)
    turned = back & (place == last)
    before = np.where(turned, place, place + 2 * back - 1)
    waits = back | (kind == FORWARD)
    position = np.full((last + 1, 2, micro_batches), count, dtype=np.intp)
    position[place[waits], 1 * back[waits], micro_batch[waits]] = at[waits]
    needed = np.where(
        (before < 0) | ~waits, count, position[np.minimum(before, last), np.where(turned, 0, 1 * back), micro_batch]
    )
    begins = np.cumsum(length) - length
    previous = np.where(at == begins[rank], count, at - 1)
    pairs = [schedule.together(each_rank, ranks, chunks, micro_batches) for each_rank in range(ranks)]
    under = np.concatenate(
        [np.zeros(len(turn), dtype=np.bool_) if two is None else two for turn, two in zip(turns, pairs, strict=True)]
    )
    second = np.flatnonzero(under)
    also = np.full(count, count)
    also[second - 1] = needed[second]
    front = np.array(_front_numbers(needed.tolist(), also.tolist(), [*begins.tolist(), count]))
    order = np.argsort(front, kind="stable")
    moved = np.empty(count + 1, dtype=np.intp)
    moved[order], moved[count] = at, count
    return _Fronts(
        also=moved[also[order]].astype(np.int32) if len(second) else None,
        under=(moved[second - 1].astype(np.int32), moved[second].astype(np.int32)) if len(second) else None,
        bounds=(0, *np.cumsum(np.bincount(front)[1:]).tolist()),
        rank=rank[order].astype(np.int16),
        kind=kind[order].astype(np.int8),
        micro_batch=micro_batch[order].astype(np.int32),
        chunk=chunk[order].astype(np.int16),
        needed=moved[needed[order]].astype(np.int32),
        previous=moved[previous[order]].astype(np.int32),
    )


def _front_numbers(needed: list[int], also: list[int], bounds: list[int]) -> list[int]:
    """Return the front of every pass, from 1: one more than the latest front of the passes it waits for.

    `bounds` are the starts of each rank's passes, and the end of the last's.
    """
    numbers = [0] * len(needed) + [-1]  # a pass without needs refers to the last entry; 0 is not known yet
    ranks = len(bounds) - 1
    reached, last = bounds[:-1], [0] * ranks
    left = len(needed)
    while left:
        known = left
        for rank in range(ranks):
            at, number, end = reached[rank], last[rank], bounds[rank + 1]
            while at < end and (there := numbers[needed[at]]) and (with_it := numbers[also[at]]):
                if with_it > there:  # noqa: PLR1730  a call of max takes as long as the rest
                    there = with_it
                if there > number:  # noqa: PLR1730  likewise
                    number = there
                number += 1
                numbers[at] = number
                at += 1
            left -= at - reached[rank]
            reached[rank], last[rank] = at, number
        if left == known:
            raise ValueError("the schedule's order waits for itself")
    return numbers[:-1]
