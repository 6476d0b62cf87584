"""A pipeline run pass by pass, in a schedule's order: what closed forms are held to, and what timelines show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.cost.schedule.schedule import Pass, Schedule


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
    ranks, chunks = pipeline.ranks, pipeline.chunks
    orders = [schedule.order(rank, ranks, chunks, pipeline.micro_batches) for rank in range(ranks)]
    ended: dict[tuple[int, Pass], float] = {}
    events: list[list[Event]] = [[] for _ in range(ranks)]
    waiting = set(range(ranks))
    while waiting:
        ready = [rank for rank in waiting if _needed(orders[rank][len(events[rank])], rank, ranks, chunks, ended)]
        if not ready:
            raise ValueError("the schedule's order waits for itself")
        for rank in ready:
            _advance(pipeline, rank, orders[rank], events[rank], ended)
            if len(events[rank]) == len(orders[rank]):
                waiting.discard(rank)
    return EventRun(tuple(tuple(one) for one in events))


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


def _needed(one: Pass, rank: int, ranks: int, chunks: int, ended: dict[tuple[int, Pass], float]) -> bool:
    """Whether what a pass needs has ended."""
    before = _before(one, rank, ranks, chunks)
    return before is None or before in ended


def _advance(
    pipeline: Pipeline, rank: int, order: Sequence[Pass], events: list[Event], ended: dict[tuple[int, Pass], float]
) -> None:
    """Run a rank's passes until one has to wait for another rank."""
    while len(events) < len(order) and _needed(order[len(events)], rank, pipeline.ranks, pipeline.chunks, ended):
        one = order[len(events)]
        before = _before(one, rank, pipeline.ranks, pipeline.chunks)
        there = 0.0
        if before is not None:
            there = ended[before] + (pipeline.send_seconds if before[0] != rank else 0.0)
        start = max(events[-1].end_seconds if events else 0.0, there)
        seconds = pipeline.forward_seconds if one.kind == "forward" else pipeline.backward_seconds
        events.append(Event(rank, one, start, start + seconds[rank][one.chunk]))
        ended[rank, one] = events[-1].end_seconds
