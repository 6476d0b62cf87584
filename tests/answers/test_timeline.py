"""Timelines: they last as long as the step, hold as much as the peak, and are trace events."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import UnsupportedError
from simulator.answers.timeline import Timeline, timeline
from simulator.show.report.estimate import trace_text
from tests.cli.running import refusal, run

QUESTIONS: list[dict[str, Any]] = [
    {"model": "llama3.1-8b", "nodes": 1, "global_batch_size": 128},
    {"model": "llama3.1-70b", "nodes": 8, "global_batch_size": 256},
    {"model": "mixtral-8x7b-v0.1", "hardware": "h100-sxm-80g", "nodes": 4, "global_batch_size": 256},
]
STATED = 0.03
"""Largest relative difference to the step that docs/answers.md states."""


@cache
def ranked() -> tuple[Timeline, ...]:
    return tuple(timeline(estimate) for question in QUESTIONS for estimate in simulator.rank(**question).estimates)


def test_a_timeline_lasts_as_long_as_the_step() -> None:
    found = ranked()
    assert len(found) > 20
    assert max(abs(one.difference) for one in found) < STATED


def test_the_most_that_is_alive_is_the_peak() -> None:
    for found in ranked()[::2]:
        events = json.loads(trace_text(found))["traceEvents"]
        for stage in found.estimate.memory.stages:
            name = f"bytes alive, rank {stage.stage}"
            alive = [event["args"]["bytes"] for event in events if event["name"] == name]
            assert max(alive) == pytest.approx(stage.allocated_bytes, rel=1e-6)
            assert alive[0] == pytest.approx(alive[-1], abs=1e3)


def test_tracks_and_slices_are_those_of_the_schedule(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    options = ("--model", "llama3.1-8b", "--nodes", "1", "--tp", "2", "--pp", "4", "--vpp", "2")
    result = run("estimate", *options, "--global-batch-size", "16", "--timeline", str(file))
    assert result.exit_code == 0, result.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    events = found["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    for rank in range(4):
        mine = [event for event in slices if event["pid"] == 0 and event["tid"] == rank]
        assert sum(event["name"] == "forward" for event in mine) == 16 * 2
        assert sum(event["name"] == "backward" for event in mine) == 16 * 2
        mine.sort(key=lambda event: event["ts"])
        ends = [event["ts"] + event["dur"] for event in mine]
        assert all(end <= after["ts"] + 0.01 for end, after in zip(ends, mine[1:], strict=False))
        assert mine[-1]["name"] in ("optimizer", "offload", "overhead", "data parallel")
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"pipeline ranks", "sends"}
    sent = [event for event in slices if event["pid"] == 1]
    assert len(sent) == 16 * (2 * 4 * 2 - 2)
    last = max(event["ts"] + event["dur"] for event in slices)
    assert last / 1e6 == pytest.approx(found["otherData"]["timeline_s"], rel=1e-6)


def test_without_a_pipeline_there_is_one_track() -> None:
    estimate = simulator.estimate(model="llama3.2-1b", hardware="h20", global_batch_size=16)
    found = timeline(estimate)
    assert len(found.passes.events) == 1
    assert found.difference == pytest.approx(0.0, abs=1e-9)


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    refused = simulator.estimate(model="llama3.1-8b", tensor_parallel=3, devices=3)
    with pytest.raises(UnsupportedError, match="refused"):
        timeline(refused)
    options = ("--model", "llama3.1-70b", "--nodes", "8", "--tp", "4", "--pp", "16", "--vpp", "5")
    file = str(tmp_path / "t.json")
    said = refusal("estimate", *options, "--global-batch-size", "65536", "--timeline", file, code=3)
    assert "--global-batch-size" in said
    missing = str(tmp_path / "no" / "t.json")
    small = ("--model", "llama3.2-1b", "--hardware", "h20", "--global-batch-size", "8")
    assert "--timeline" in refusal("estimate", *small, "--timeline", missing)
