"""Schedules: their order against one written apart, their event run against another, what chunks hold of it."""

import itertools

import numpy as np
import pytest

from simulator.cost.schedule import schedule as of_schedule
from simulator.cost.schedule.orders import OneForwardOneBackward
from simulator.cost.schedule.schedule import PipelineWork, kinds_of_pass, makespan_seconds, run
from simulator.question.scenario.block import Array
from tests.timing import pipeline_run

SHAPES = [
    (ranks, chunks, micro_batches)
    for ranks, chunks, micro_batches in itertools.product((1, 2, 3, 4, 8), (1, 2, 3), (1, 2, 3, 4, 8, 12))
    if chunks == 1 or (ranks > 1 and micro_batches % ranks == 0)
]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), SHAPES)
def test_the_order_is_that_of_the_independent_run(ranks: int, chunks: int, micro_batches: int, *, whole: bool) -> None:
    for rank in range(ranks):
        found = OneForwardOneBackward(whole_warm_up=whole).order(rank, ranks, chunks, micro_batches)
        words = [(one.kind[0].upper(), one.micro_batch, one.chunk) for one in found]
        assert words == pipeline_run.order(rank, ranks, micro_batches, chunks, whole=whole)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), SHAPES)
def test_the_event_run_is_that_of_the_independent_run(
    ranks: int, chunks: int, micro_batches: int, *, whole: bool
) -> None:
    random = np.random.default_rng(ranks * 100 + chunks * 10 + micro_batches)
    forward, backward = random.uniform(0.5, 2.0, ranks), random.uniform(0.5, 4.0, ranks)
    forward_by_chunk, backward_by_chunk = ([[x / chunks] * chunks for x in one] for one in (forward, backward))
    found = run(
        OneForwardOneBackward(whole_warm_up=whole), PipelineWork(forward_by_chunk, backward_by_chunk, micro_batches)
    )
    expected = pipeline_run.run(list(forward), list(backward), micro_batches, chunks, whole=whole)
    assert found.makespan_seconds == pytest.approx(expected.makespan, rel=1e-12)
    assert [found.most_alive(rank) for rank in range(ranks)] == expected.live
    busy = [sum(event.end_seconds - event.start_seconds for event in events) for events in found.events]
    idle = [found.makespan_seconds - seconds for seconds in busy]
    assert idle == pytest.approx(expected.idle, abs=1e-9)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), SHAPES)
def test_each_chunk_in_flight_is_that_of_the_run(ranks: int, chunks: int, micro_batches: int, *, whole: bool) -> None:
    chosen = OneForwardOneBackward(whole_warm_up=whole)
    flight = chosen.in_flight(ranks, chunks, np.array([float(micro_batches)]))
    for rank in range(ranks):
        alive = [0] * chunks
        forwards = 0
        for one in chosen.order(rank, ranks, chunks, micro_batches):
            if forwards == flight[rank, 0]:
                break
            forwards += one.kind == "forward"
            alive[one.chunk] += 1 if one.kind == "forward" else -1
        found = [chosen.of_chunk(flight, chunk, ranks, chunks)[rank, 0] for chunk in range(chunks)]
        assert found == alive
        for chunk in range(chunks):
            behind = chosen.of_chunk(flight, chunk, ranks, chunks, several=chunks - chunk)[rank, 0]
            assert behind == sum(alive[chunk:])


def test_sends_delay_the_run() -> None:
    # One micro batch through two ranks: forward there and gradient back, each sent once.
    equal = [[1.0], [1.0]], [[2.0], [2.0]]
    assert run(OneForwardOneBackward(), PipelineWork(*equal, 1)).makespan_seconds == 6.0
    assert run(OneForwardOneBackward(), PipelineWork(*equal, 1, send_seconds=0.5)).makespan_seconds == 7.0


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 1), (2, 4), (4, 3), (4, 9)])
def test_a_whole_warm_up_of_one_chunk_is_the_plain_schedule(ranks: int, micro_batches: int, *, together: bool) -> None:
    """A block may have layouts of one and of several chunks, and has one schedule."""
    plain, several = OneForwardOneBackward(together), OneForwardOneBackward(together, whole_warm_up=True)
    count = np.array([float(micro_batches)])
    assert several.in_flight(ranks, 1, count).tolist() == plain.in_flight(ranks, 1, count).tolist()
    for rank in range(ranks):
        shape = rank, ranks, 1, micro_batches
        assert several.order(*shape) == plain.order(*shape)
        pairs = [one.together(*shape) for one in (several, plain)]
        assert (pairs[0] is None) == (pairs[1] is None) == (not together)
        assert pairs[0] is None or pairs[0].tolist() == pairs[1].tolist()  # type: ignore[union-attr]


def test_many_steps_at_once_hold_eight_mebibytes_of_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks, eight micro batches: 64 passes of 8 bytes, so that 16,384 steps are worked out at once."""
    steps, ranks = 2**14 + 1, np.arange(4)
    forward = np.random.default_rng(7).uniform(0.5, 2.0, (1, 4, steps))
    seconds = kinds_of_pass(forward, 2.0 * forward, 0.0 * forward)
    ends, shapes = of_schedule._ends, []

    def noted(passes: of_schedule._Fronts, seconds: Array, send_seconds: float) -> Array:
        shapes.append(seconds.shape)
        return ends(passes, seconds, send_seconds)

    monkeypatch.setattr(of_schedule, "_ends", noted)
    found = makespan_seconds(OneForwardOneBackward(), seconds, ranks, 8)
    assert shapes == [(64, 2**23 // 8 // 64), (64, 1)]
    monkeypatch.setattr(of_schedule, "_AT_ONCE", 1)
    few = np.array([0, 1, steps - 2, steps - 1])
    assert found[few].tolist() == makespan_seconds(OneForwardOneBackward(), seconds[..., few], ranks, 8).tolist()
    assert shapes[2:] == [(64, 1)] * 4
