"""A pipeline run pass by pass, in a schedule's order: what closed forms are held to, and what timelines show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.cost.schedule.schedule import PASSES, Pass, Schedule
from simulator.question.scenario.block import Array


@dataclass(frozen=True, slots=True)
class Event:
    """One pass as it ran."""

    rank: int
    ran: Pass
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class PipelineWork:
    """What is run: seconds of every chunk's passes, by rank and then by chunk."""

    forward_seconds: Sequence[Sequence[float]]
    backward_seconds: Sequence[Sequence[float]]
    micro_batches: int
    send_seconds: float = 0.0
    """From the end of a pass to the start of the next one's on another rank."""

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.forward_seconds)

    @property
    def chunks(self) -> int:
        """Model chunks of a rank."""
        return len(self.forward_seconds[0])


@dataclass(frozen=True, slots=True)
class EventRun:
    """All passes of a step, by rank in the order they ran."""

    events: tuple[tuple[Event, ...], ...]

    @property
    def makespan_seconds(self) -> float:
        """From the first pass to the end of the last."""
        return max(events[-1].end_seconds for events in self.events)

    def idle_seconds(self, rank: int) -> float:
        """Time in which a rank had nothing to do."""
        return self.makespan_seconds - sum(one.end_seconds - one.start_seconds for one in self.events[rank])

    def most_alive(self, rank: int) -> int:
        """Most chunk passes whose forward pass has begun and whose backward pass has not ended."""
        alive = most = 0
        for one in self.events[rank]:
            alive += 1 if one.ran.kind == "forward" else -1
            most = max(most, alive)
        return most


def run(schedule: Schedule, pipeline: PipelineWork) -> EventRun:
    """Run a step: a pass starts when its rank is free and the pass it needs has ended (and its result was sent)."""
    passes = _fronts(schedule, pipeline.ranks, pipeline.chunks, pipeline.micro_batches)
    taken = np.array((pipeline.forward_seconds, pipeline.backward_seconds))
    ends = _ends(passes, taken[passes.kind, passes.rank, passes.chunk, None], pipeline.send_seconds)
    starts = np.maximum(ends[passes.previous], ends[passes.needed] + passes.sent(pipeline.send_seconds))
    events: list[list[Event]] = [[] for _ in range(pipeline.ranks)]
    columns = (passes.rank, passes.kind, passes.micro_batch, passes.chunk, starts[:, 0], ends[:-1, 0])
    for rank, kind, micro_batch, chunk, start, end in zip(*(column.tolist() for column in columns), strict=True):
        events[rank].append(Event(rank, Pass(PASSES[kind], micro_batch, chunk), start, end))
    return EventRun(tuple(map(tuple, events)))


def makespan_seconds(schedule: Schedule, seconds: Array, kind: NDArray[np.intp], micro_batches: int) -> Array:
    """From the first pass to the end of the last, of many steps at once, shape (n,); sends apart.

    `seconds` are those of forward and of backward passes, by chunk and kind of rank: shape (2, chunks, kinds, n);
    `kind` is that of every rank.
    """
    passes = _fronts(schedule, len(kind), seconds.shape[1], micro_batches)
    row = passes.kind, passes.chunk, kind[passes.rank]
    last: Array = np.empty(seconds.shape[-1])
    at_once = max(_AT_ONCE // len(passes.rank), 1)
    for start in range(0, len(last), at_once):
        part = slice(start, start + at_once)
        last[part] = np.max(_ends(passes, seconds[..., part][row], 0.0), axis=0)
    return last


_AT_ONCE = 2**20
"""Ends of passes held at once."""


@dataclass(frozen=True, slots=True)
class _Fronts:
    """The passes of a step, in fronts: those of one need only what ran in earlier ones. Arrays of shape (passes,)."""

    bounds: tuple[int, ...]
    """Where fronts begin, and where the last one ends."""
    rank: NDArray[np.int16]
    kind: NDArray[np.int8]
    """Index of PASSES."""
    micro_batch: NDArray[np.int32]
    chunk: NDArray[np.int16]
    needed: NDArray[np.int32]
    """The pass whose result it takes; the number of passes where there is none."""
    previous: NDArray[np.int32]
    """The pass of its rank before it; the number of passes for the first."""

    def sent(self, send_seconds: float) -> Array:
        """Seconds that a needed result takes from its rank to the one that waits, shape (passes, 1)."""
        on_own = (self.needed == len(self.rank)) | (np.append(self.rank, 0)[self.needed] == self.rank)
        return np.where(on_own, 0.0, send_seconds)[:, None]


def _ends(passes: _Fronts, seconds: Array, send_seconds: float) -> Array:
    """When every pass ends, shape (passes + 1, n) with a zero behind the last; `seconds` have shape (passes, n)."""
    ends = np.zeros((len(seconds) + 1, seconds.shape[1]))
    sent = passes.sent(send_seconds) if send_seconds else None
    for first, last in pairwise(passes.bounds):
        now = ends[passes.needed[first:last]]
        if sent is not None:
            now += sent[first:last]
        np.maximum(now, ends[passes.previous[first:last]], out=now)
        np.add(now, seconds[first:last], out=ends[first:last])
    return ends


@lru_cache(maxsize=64)  # a search comes back to its shapes; the longest run that is priced takes 4 MB
def _fronts(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> _Fronts:
    """All passes of a step in fronts. Raises ValueError where a pass waits for itself."""
    turns = np.stack([schedule.turns(rank, ranks, chunks, micro_batches) for rank in range(ranks)])
    each = turns.shape[1]
    count = ranks * each
    kind, micro_batch, chunk = np.ascontiguousarray(turns.reshape(count, 3).T)
    at = np.arange(count)
    rank = at // each
    # A forward pass needs that of the chunk before it, a backward pass that behind; the last chunk turns round.
    place, last = chunk * ranks + rank, ranks * chunks - 1
    turned = (kind == 1) & (place == last)
    before = np.where(turned, place, place + 2 * kind - 1)
    found = np.empty((last + 1, 2, micro_batches), dtype=np.intp)
    found[place, kind, micro_batch] = at
    needed = np.where(before < 0, count, found[before, np.where(turned, 0, kind), micro_batch])
    previous = np.where(at % each == 0, count, at - 1)
    front = np.array(_front_numbers(needed.tolist(), ranks, each))
    order = np.argsort(front, kind="stable")
    moved = np.empty(count + 1, dtype=np.intp)
    moved[order], moved[count] = at, count
    return _Fronts(
        bounds=(0, *np.cumsum(np.bincount(front)[1:]).tolist()),
        rank=rank[order].astype(np.int16),
        kind=kind[order].astype(np.int8),
        micro_batch=micro_batch[order].astype(np.int32),
        chunk=chunk[order].astype(np.int16),
        needed=moved[needed[order]].astype(np.int32),
        previous=moved[previous[order]].astype(np.int32),
    )


def _front_numbers(needed: list[int], ranks: int, each: int) -> list[int]:
    """The front of every pass, from 1: one behind the later of the pass it needs and the one of its rank before it."""
    numbers = [0] * len(needed) + [-1]  # what needs no pass needs the last entry; zero is not known yet
    reached, last = [rank * each for rank in range(ranks)], [0] * ranks
    left = len(needed)
    while left:
        known = left
        for rank in range(ranks):
            at, number, end = reached[rank], last[rank], (rank + 1) * each
            while at < end and (there := numbers[needed[at]]):
                number = max(there, number) + 1
                numbers[at] = number
                at += 1
            left -= at - reached[rank]
            reached[rank], last[rank] = at, number
        if left == known:
            raise ValueError("the schedule's order waits for itself")
    return numbers[:-1]
