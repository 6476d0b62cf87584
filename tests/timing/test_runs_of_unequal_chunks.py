"""What a run of unequal chunks is taken from: cycles, steps that are alike, and what need not be run."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import activations_in_flight
from simulator.cost.pricing.price import price, size, timed
from simulator.cost.schedule.orders import OneForwardOneBackward, ZeroBubbleV
from simulator.cost.schedule.schedule import PipelineWork, Schedule
from simulator.cost.stages import stage_contents
from simulator.cost.timing.step import ChunkSeconds, StageWork, run_fill_seconds
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import complete_layout, scenario_of, small_dense
from tests.timing.test_split_schedules import replayed

RANKS = 3


def steps(*each: list[list[float]]) -> StageWork:
    """Forward seconds of both chunks by rank, of several steps; a backward pass takes twice as long."""
    forward = np.array(each).transpose(2, 1, 0)  # chunks, ranks, steps
    whole = forward.sum(axis=0)
    chunks = tuple(ChunkSeconds(one, 2.0 * one, 0.5 * one) for one in forward)
    return StageWork(whole, 2.0 * whole, chunks)


def waits(schedule: Schedule, work: StageWork, *micro_batches: float) -> list[float]:
    count = np.array(micro_batches)
    # Each rank is of a kind of its own.
    return run_fill_seconds(schedule, np.arange(RANKS), work, count, np.arange(len(count))).tolist()


def by_events(schedule: Schedule, step: list[list[float]], micro_batches: int) -> float:
    """Idle seconds of the slowest rank in a run of all passes."""
    backward, weights = ([[times * one for one in rank] for rank in step] for times in (2.0, 0.5))
    end, _ = replayed(schedule, PipelineWork(step, backward, micro_batches, weights))
    return end - micro_batches * 3.0 * max(map(sum, step))


LIGHT = [[1.0, 1.0], [1.0, 2.0], [2.0, 1.0]]
HEAVY = [[2.0, 1.0], [2.0, 1.0], [1.0, 1.0]]
"""Of the same pace, and of another course."""
GROWING = [[1.0, 2.0], [3.0, 1.0], [3.0, 1.0]]
"""Interleaved, every cycle waits three seconds more than the one before."""


@pytest.mark.parametrize("schedule", [OneForwardOneBackward(), ZeroBubbleV()])
@pytest.mark.parametrize("step", [LIGHT, HEAVY])
@pytest.mark.parametrize("cycles", [1, 2, 3])
def test_a_few_cycles_are_run_as_they_are(schedule: Schedule, step: list[list[float]], cycles: int) -> None:
    [found] = waits(schedule, steps(step), cycles * RANKS)
    assert found == pytest.approx(by_events(schedule, step, cycles * RANKS), abs=1e-9)


@pytest.mark.parametrize("schedule", [OneForwardOneBackward(), ZeroBubbleV()])
@pytest.mark.parametrize("step", [LIGHT, HEAVY, GROWING])
def test_further_cycles_take_what_the_third_took(schedule: Schedule, step: list[list[float]]) -> None:
    """Each adds the growth of idle time from the second to the third, and never takes any away."""
    second, third = (by_events(schedule, step, cycles * RANKS) for cycles in (2, 3))
    for cycles in (4, 7, 20):
        expected = third + (cycles - 3) * max(third - second, 0.0)
        assert waits(schedule, steps(step), cycles * RANKS) == pytest.approx([expected], abs=1e-9)


def test_some_steps_wait_in_every_cycle() -> None:
    growing = [by_events(OneForwardOneBackward(), GROWING, cycles * RANKS) for cycles in (2, 3, 4, 5)]
    assert growing == [16.0, 19.0, 22.0, 25.0]


def test_micro_batches_that_fill_no_cycle_are_counted_up() -> None:
    """Seven micro batches are three cycles of three; fewer than the schedule runs are as many as it runs."""
    work = steps(LIGHT, LIGHT, LIGHT)
    found = waits(ZeroBubbleV(), work, 7, 8, 9)
    assert found[0] == found[1] == found[2] == waits(ZeroBubbleV(), steps(LIGHT), 9)[0]
    least = ZeroBubbleV().min_micro_batches(RANKS)
    assert waits(ZeroBubbleV(), steps(LIGHT), 1) == waits(ZeroBubbleV(), steps(LIGHT), least)


def test_steps_of_one_pace_are_told_apart() -> None:
    """Equal in what the slowest rank works, in the number of micro batches, or in all: each as by itself."""
    orders = [(LIGHT, 6), (HEAVY, 6), (LIGHT, 12), (LIGHT, 6), (HEAVY, 3), (LIGHT, 3)]
    together = waits(OneForwardOneBackward(), steps(*(step for step, _ in orders)), *(count for _, count in orders))
    assert together == [waits(OneForwardOneBackward(), steps(step), count)[0] for step, count in orders]
    assert together[0] != together[1]


def uneven() -> Scenario:
    return scenario_of(small_dense(num_hidden_layers=21), devices=4, global_batch_size=32)


def test_what_is_known_to_take_too_long_is_not_run() -> None:
    """A step is run pass by pass where what is known of it without its waiting is below what is asked."""
    scenario = uneven()
    block = block_of([complete_layout(scenario, pipeline_parallel=4, chunk_layers=(*[2] * 9, *[1] * 3))])
    sized = size(Pricing(scenario, block))
    whole = price(Pricing(scenario, block)).step
    waiting = whole.pipeline.fill[0]
    assert waiting > 0.0
    known = whole.total[0] - waiting
    for below, run in ((known * 0.999, False), (known * 1.001, True), (np.inf, True)):
        found = timed(sized, np.array([below])).step
        assert found.pipeline.fill[0] == (waiting if run else 0.0)
        # Otherwise the total is what is known already, or less, and at least what was asked.
        assert found.total[0] == pytest.approx(whole.total[0], rel=1e-12) if run else below <= found.total[0] <= known


@pytest.mark.parametrize(
    ("fields", "unequal"),
    [
        ({"pipeline_parallel": 4}, False),
        # Ranks of one chunk wait as the closed form says, whatever their layers.
        ({"pipeline_parallel": 4, "stage_layers": (6, 5, 5, 5)}, False),
        ({"pipeline_parallel": 3, "virtual_stages": 7}, False),
        ({"pipeline_parallel": 3, "chunk_layers": (3, 4, 3, 4, 3, 4)}, True),
        # As many on every rank, and not in every chunk.
        ({"pipeline_parallel": 3, "chunk_layers": (3, 3, 3, 4, 4, 4)}, True),
    ],
)
def test_chunks_are_run_where_they_are_unequal(fields: dict[str, Any], unequal: bool) -> None:
    ranks = fields["pipeline_parallel"]
    scenario = scenario_of(small_dense(num_hidden_layers=21), devices=ranks, global_batch_size=12)
    block = block_of([complete_layout(scenario, **fields)])
    assert stage_contents(scenario, block).unequal is unequal
    chunks = price(Pricing(scenario, block)).step.work.by_chunk
    assert bool(chunks) is unequal
    # Such schedules do not split the backward pass.
    assert all((one.forward > 0.0).any() and (one.weights == 0.0).all() for one in chunks)


@pytest.mark.parametrize("micro_batches", [4, 5, 6, 7, 8])
def test_chunks_of_any_number_of_micro_batches_are_held_as_of_whole_cycles(micro_batches: int) -> None:
    """ZB-V on three ranks, 4 to 8 micro batches: what a run of the next multiple of three holds at most."""
    scenario = replace(scenario_of(small_dense(num_hidden_layers=9), devices=3), global_batch_size=micro_batches)
    layout = complete_layout(
        scenario, pipeline_parallel=3, schedule="zb_v", virtual_stages=2, chunk_layers=(1, 2, 1, 1, 2, 2)
    )
    block = block_of([layout])
    memory = price(Pricing(scenario, block)).memory
    found = activations_in_flight(Pricing(scenario, block))[:, 0]
    for rank in range(3):
        now = most = 0.0
        for one in ZeroBubbleV().order(rank, 3, 2, -(-micro_batches // 3) * 3):
            kept = memory.activations.by_chunk[memory.contents.chunk[one.chunk]][memory.contents.kind[rank], 0]
            now += {"forward": kept, "weight_gradient": -kept}.get(one.kind, 0.0)
            most = max(most, now)
        assert found[rank] == pytest.approx(most, rel=1e-12)
