"""A pipeline run pass by pass, in a schedule's order: what closed forms are held to, and what timelines show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from simulator.cost.schedule.schedule import Pass, Schedule
from simulator.question.scenario.block import Array

Seconds = TypeVar("Seconds", float, Array)
"""Of one step, or of many at once, shape (n,)."""


@dataclass(frozen=True, slots=True)
class Event:
    """One pass as it ran."""

    rank: int
    ran: Pass
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class Pipeline:
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


def run(schedule: Schedule, pipeline: Pipeline) -> EventRun:
    """Run a step: a pass starts when its rank is free and the pass it needs has ended (and its result was sent)."""
    taken = pipeline.forward_seconds, pipeline.backward_seconds
    events: list[list[Event]] = [[] for _ in taken[0]]
    for rank, one, start, end in _passes(schedule, taken, pipeline.micro_batches, (0.0, pipeline.send_seconds), max):
        events[rank].append(Event(rank, one, start, end))
    return EventRun(tuple(map(tuple, events)))


def makespan_seconds(
    schedule: Schedule, forward: Sequence[Sequence[Array]], backward: Sequence[Sequence[Array]], micro_batches: int
) -> Array:
    """From the first pass to the end of the last, of many steps at once, shape (n,); sends apart.

    `forward` and `backward` are seconds of every chunk's passes by rank and then by chunk, shape (n,) each.
    """
    last = zero = np.zeros_like(forward[0][0])
    for *_, end in _passes(schedule, (forward, backward), micro_batches, (zero, zero), np.maximum):
        last = np.maximum(last, end)
    return last


def _passes(
    schedule: Schedule,
    taken: tuple[Sequence[Sequence[Seconds]], Sequence[Sequence[Seconds]]],
    micro_batches: int,
    begin_and_send: tuple[Seconds, Seconds],
    later: Callable[[Seconds, Seconds], Seconds],
) -> Iterator[tuple[int, Pass, Seconds, Seconds]]:
    """Rank, pass, start and end of every pass of one step, or of many; those of a rank in the order they run."""
    ranks, chunks = len(taken[0]), len(taken[0][0])
    begin, send = begin_and_send
    free = [begin] * ranks
    ended: dict[tuple[int, Pass], Seconds] = {}
    for at, before in _sequence(schedule, ranks, chunks, micro_batches):
        rank, one = at
        start = free[rank]
        if before is not None:
            # A pass is needed by one other: what has been waited for is dropped.
            there = ended.pop(before)
            start = later(start, there if before[0] == rank else there + send)
        free[rank] = ended[at] = start + taken[one.kind == "backward"][rank][one.chunk]
        yield rank, one, start, free[rank]


_At = tuple[int, Pass]
"""A pass of a rank."""


@lru_cache(maxsize=2)  # the blocks of one shape come one after the other, and a long pipeline has many passes
def _sequence(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> tuple[tuple[_At, _At | None], ...]:
    """All passes of a step, each behind the one it needs, with that one. Raises ValueError where there is no such."""
    left = [list(reversed(schedule.order(rank, ranks, chunks, micro_batches))) for rank in range(ranks)]
    done: set[_At] = set()
    result: list[tuple[_At, _At | None]] = []
    while any(left):
        known = len(result)
        for rank, passes in enumerate(left):
            while passes:
                before = _before(passes[-1], rank, ranks, chunks)
                if before is not None and before not in done:
                    break
                at = rank, passes.pop()
                done.add(at)
                result.append((at, before))
        if len(result) == known:
            raise ValueError("the schedule's order waits for itself")
    return tuple(result)


def _before(one: Pass, rank: int, ranks: int, chunks: int) -> tuple[int, Pass] | None:
    """Rank and pass whose result a pass needs; the first forward pass needs none."""
    place = one.chunk * ranks + rank
    if one.kind == "forward":
        if place == 0:
            return None
        chunk, before = divmod(place - 1, ranks)
        return before, Pass("forward", one.micro_batch, chunk)
    if place == ranks * chunks - 1:
        return rank, Pass("forward", one.micro_batch, one.chunk)
    chunk, behind = divmod(place + 1, ranks)
    return behind, Pass("backward", one.micro_batch, chunk)
