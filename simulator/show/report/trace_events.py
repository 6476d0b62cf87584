"""Timeline as Chrome trace events, for Perfetto and chrome://tracing. Computes no time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from simulator.answers.timeline import Timeline
from simulator.show.report.as_json import significant
from simulator.show.report.text import layout_text, words

_MICROSECONDS = 1e6
_RANKS, _SENDS = 0, 1
"""Processes of the trace: computations of ranks, and their sends."""


def trace_text(timeline: Timeline) -> str:
    """Return the trace as JSON text: a track for each pipeline rank, one for its sends, and its bytes alive."""
    estimate = timeline.estimate
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "layout": layout_text(estimate.layout),
            "model": estimate.model,
            "hardware": estimate.hardware,
            "step_time_s": significant(estimate.throughput.step_seconds),
            "timeline_s": significant(timeline.seconds),
            "difference": significant(timeline.difference),
        },
        "traceEvents": [*_names(timeline), *_passes(timeline), *_after(timeline), *_bytes(timeline)],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for process, name in ((_RANKS, "pipeline ranks"), (_SENDS, "sends")):
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
        for rank in range(len(timeline.passes.events)):
            named = {"name": f"rank {rank}"}
            yield {"ph": "M", "pid": process, "tid": rank, "name": "thread_name", "args": named}


def _passes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for events in timeline.passes.events:
        for event in events:
            seconds = event.end_seconds - event.start_seconds
            pass_of = {"args": {"micro_batch": event.ran.micro_batch, "chunk": event.ran.chunk}}
            yield {**_slice((_RANKS, event.rank), words(event.ran.kind), event.start_seconds, seconds), **pass_of}
            if timeline.send_seconds > 0 and event.sent:
                sent = _slice(
                    (_SENDS, event.rank), f"send {words(event.ran.kind)}", event.end_seconds, timeline.send_seconds
                )
                yield {**sent, **pass_of}


def _slice(track: tuple[int, int], name: str, start: float, seconds: float) -> dict[str, Any]:
    """Return an event with a duration on a track: a process and a rank."""
    times = {"ts": round(start * _MICROSECONDS, 3), "dur": round(seconds * _MICROSECONDS, 3)}
    return {"ph": "X", "pid": track[0], "tid": track[1], "name": name, **times}


def _after(timeline: Timeline) -> Iterator[dict[str, Any]]:
    start = timeline.passes.makespan_seconds
    for pass_ in timeline.after:
        for rank in range(len(timeline.passes.events)):
            yield _slice((_RANKS, rank), words(pass_.name), start, pass_.seconds)
        start += pass_.seconds


def _bytes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield the bytes alive on every rank, at every change."""
    for rank in range(len(timeline.passes.events)):
        yield from (_counter(rank, at, alive) for at, alive in timeline.bytes_alive(rank))


def _counter(rank: int, at: float, alive: float) -> dict[str, Any]:
    about = {"name": f"bytes alive, rank {rank}", "args": {"bytes": round(alive)}}
    return {"ph": "C", "pid": _RANKS, "ts": round(at * _MICROSECONDS, 3), **about}
