"""The pipeline's closed forms against an event-by-event run of the schedule."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import activations_in_flight, in_flight
from simulator.cost.timing.step import PipelineSeconds, StageWork, pieces_of, pipeline_seconds, stage_work
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import ROUND, only, priced, pricing, scenario_of, small_dense
from tests.timing.pipeline_run import Run, order, run

SHAPES = [
    (ranks, chunks, micro_batches)
    for ranks, chunks, micro_batches in itertools.product((1, 2, 3, 4, 8), (1, 2, 3, 5), (1, 2, 3, 4, 8, 12, 24))
    if chunks == 1 or (ranks > 1 and micro_batches % ranks == 0)
]


def shaped(ranks: int, chunks: int, micro_batches: int, **switches: Any) -> Pricing:
    """A pipeline alone on its devices; every rank is a kind of its own, so that each can be given any work."""
    model = small_dense(num_hidden_layers=ranks * chunks)
    # A cluster of any size: the formulas do not ask whether it fills nodes.
    scenario = replace(scenario_of(model), global_batch_size=micro_batches)
    scenario = replace(scenario, framework=replace(scenario.framework, **switches))
    block = pricing(scenario, pipeline_parallel=ranks, data_parallel=1, virtual_stages=chunks).block
    here = Pricing(scenario, block)  # of its own: that of an equal question is shared
    vars(here)["contents"] = replace(here.contents, kind=np.arange(ranks), ranks=np.ones((ranks, 1)))
    return here


def closed(forward: list[float], backward: list[float], micro_batches: int, chunks: int) -> PipelineSeconds:
    work = StageWork(np.array(forward)[:, None], np.array(backward)[:, None])
    return pipeline_seconds(shaped(len(forward), chunks, micro_batches), work)


def seconds(pipeline: PipelineSeconds) -> float:
    return only(pipeline.micro_batches * pipeline.pace_seconds + pipeline.fill)


def test_the_order_is_megatron_s() -> None:
    # Two ranks, two chunks, four micro batches: rank 0 warms up 2 (2 - 0 - 1) + (2 - 1) 2 = 4 chunks.
    passes = order(0, 2, 4, 2)
    assert passes[:4] == [("F", 0, 0), ("F", 1, 0), ("F", 0, 1), ("F", 1, 1)]
    assert passes[4:8] == [("F", 2, 0), ("B", 0, 1), ("F", 3, 0), ("B", 1, 1)]
    assert sorted(passes) == sorted((k, m, c) for k in "FB" for m in range(4) for c in range(2))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), SHAPES)
def test_chunks_in_flight_are_exact(ranks: int, chunks: int, micro_batches: int, *, whole: bool) -> None:
    found = in_flight(shaped(ranks, chunks, micro_batches, warm_up_whole_batch=whole))[:, 0] * chunks
    expected = run([1.0] * ranks, [2.0] * ranks, micro_batches, chunks, whole=whole).live
    assert found == pytest.approx(expected, abs=1e-12)


def test_in_flight_by_hand() -> None:
    # 1F1B of four ranks holds 4, 3, 2, 1; with two micro batches never more than those.
    for micro_batches, expected in ((16, [4, 3, 2, 1]), (2, [2, 2, 2, 1])):
        assert list(in_flight(shaped(4, 1, micro_batches))[:, 0]) == expected
    # Two chunks: (2 (4 - i - 1) + 4 + 1) / 2; with as many micro batches as ranks all of them.
    assert list(in_flight(shaped(4, 2, 16))[:, 0]) == [5.5, 4.5, 3.5, 2.5]
    assert list(in_flight(shaped(4, 2, 4))[:, 0]) == [4, 4, 4, 4]


def test_a_rank_holds_its_layers_for_every_micro_batch_in_flight() -> None:
    scenario = replace(scenario_of(small_dense(num_hidden_layers=8)), global_batch_size=16)
    held = activations_in_flight(pricing(scenario, pipeline_parallel=4, data_parallel=1, virtual_stages=2))
    # Per token 2072 bytes and layer, 8192 tokens, two layers a rank.
    assert list(held[:, 0]) == [8192 * 2072 * 2 * flight for flight in (5.5, 4.5, 3.5, 2.5)]


@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), SHAPES)
def test_equal_stages_are_exact(ranks: int, chunks: int, micro_batches: int) -> None:
    forward, backward = [1.0] * ranks, [2.0] * ranks
    found = seconds(closed(forward, backward, micro_batches, chunks))
    assert found == pytest.approx(run(forward, backward, micro_batches, chunks).makespan, rel=1e-12)
    # (m + (p - 1) / v) (f + b)
    assert found == pytest.approx((micro_batches + (ranks - 1) / chunks) * 3.0, rel=1e-12)


works = st.lists(st.floats(0.25, 4.0), min_size=1, max_size=8)
Case = tuple[list[float], list[float], int, int]
"""Forward and backward seconds of every rank, micro batches, chunks."""


@st.composite
def uneven(draw: st.DrawFn, chunked: bool = True, alike: bool = True) -> Case:
    """Ranks of unequal work; `alike` ones take so many times their forward pass for the backward pass."""
    forward = draw(works)
    ranks = len(forward)
    chunks = draw(st.sampled_from((1, 1, 2, 3, 4))) if ranks > 1 and chunked else 1
    micro_batches = draw(st.integers(1, 12)) * (ranks if chunks > 1 else 1)
    ratio = draw(st.floats(0.5, 3.0))
    backward = [ratio * f for f in forward] if alike else [draw(st.floats(0.25, 4.0)) for _ in forward]
    return forward, backward, micro_batches, chunks


# Two slow ranks far apart: interleaved chunks wait for the far one's, more than the fill counts.
@example(([3.0, 0.5, 0.5, 0.5, 3.0], [9.0, 1.5, 1.5, 1.5, 9.0], 10, 2))
@example(([4.0, 1.0, 1.0, 1.0, 1.0, 4.0], [12.0, 3.0, 3.0, 3.0, 3.0, 12.0], 12, 2))
@example(([4.0, 0.25, 0.25, 0.25, 1.0, 2.0], [0.25, 4.0, 1.0, 1.0, 3.0, 0.5], 12, 2))
@given(uneven(alike=False))
def test_unequal_stages_lie_between_a_lone_slowest_rank_and_ranks_that_are_all_as_slow(case: Case) -> None:
    """Two bounds that hold of any schedule of a fixed order.

    A pass that takes longer lets none start earlier: a run is no slower than one whose ranks all take the longest
    forward and the longest backward pass. And the slowest rank works on all micro batches between the forward passes
    of the ranks before it and their last backward passes: what the formula adds at most is the work behind it, which
    warm-up forwards may hide.
    """
    forward, backward, micro_batches, chunks = case
    found, real = seconds(closed(*case)), run(*case).makespan
    work = [f + b for f, b in zip(forward, backward, strict=True)]
    behind = sum(work[int(np.argmax(work)) + 1 :]) / chunks
    as_slow = (micro_batches + (len(work) - 1) / chunks) * (max(forward) + max(backward))
    assert real <= as_slow * (1 + 1e-12)
    assert found <= (real + behind) * (1 + 1e-12)


@given(uneven(chunked=False))
def test_unequal_stages_of_one_chunk_are_never_too_fast(case: Case) -> None:
    """Plain 1F1B, where a rank's passes are as many times another's."""
    assert run(*case).makespan <= seconds(closed(*case)) * (1 + 1e-12)


@given(uneven(), st.floats(1.0, 2.0))
def test_a_slow_last_stage_is_exact(case: Case, head: float) -> None:
    # What language models have: the output layer makes the last rank the slowest.
    forward, backward, micro_batches, chunks = case
    forward[-1], backward[-1] = max(forward) * head, max(backward) * head
    found = seconds(closed(forward, backward, micro_batches, chunks))
    assert found == pytest.approx(run(forward, backward, micro_batches, chunks).makespan, rel=1e-12)


@pytest.mark.parametrize("pace", [0, 1, 2])
def test_a_slow_earlier_stage_is_within_four_percent_at_eight_micro_batches_a_rank(pace: int) -> None:
    forward = [1.0, 1.0, 1.0, 1.0]
    forward[pace] = 1.5
    backward = [2 * f for f in forward]
    found, real = seconds(closed(forward, backward, 32, 1)), run(forward, backward, 32, 1).makespan
    assert real <= found <= real * 1.04


def test_the_fill_is_the_idle_time_of_the_slowest_rank() -> None:
    forward = [1.0, 1.25, 1.0, 2.0]
    backward = [2 * f for f in forward]
    pipeline = closed(forward, backward, 16, 1)
    real: Run = run(forward, backward, 16)
    assert only(pipeline.pace) == 3
    assert only(pipeline.fill) == pytest.approx(real.idle[3]) == pytest.approx(9.75)


def sends(scenario: Scenario, **fields: Any) -> float:
    return only(priced(scenario, **fields).step.pipeline.sends)


def test_sends_are_exposed_unless_the_interleaved_schedule_hides_them() -> None:
    # One activation 2 x 8192 x 4096 = 67108864 bytes at 50 GB/s x 0.75 (stride 16 leaves the node) + 10 us.
    send = 67_108_864 / 37.5e9 + 10e-6
    scenario = scenario_of("llama3.1-8b", devices=32, coefficients=ROUND)
    # m = 64 and p = 2: (64 + 1) crossings of two sends each.
    assert sends(scenario, pipeline_parallel=2) == pytest.approx(65 * 2 * send)
    # Two chunks cross twice as often; a quarter of the steady ones shows.
    hidden = sends(scenario, pipeline_parallel=2, virtual_stages=2)
    assert hidden == pytest.approx((0.25 * 64 + 1) * 4 * send)
    waiting = scenario_of("llama3.1-8b", devices=32, coefficients=ROUND, options={"overlap_p2p": "false"})
    assert sends(waiting, pipeline_parallel=2, virtual_stages=2) == pytest.approx(65 * 4 * send)
    assert sends(scenario) == 0


def test_the_last_stage_works_on_the_output_layer() -> None:
    scenario = scenario_of("llama3.1-8b", devices=32, options={"fused_cross_entropy": "true"})
    here = pricing(scenario, pipeline_parallel=4)
    work = stage_work(here)
    by_rank = (work.forward + work.backward)[here.contents.kind, 0]
    assert by_rank[1] == by_rank[2]
    # The output layer's matrix product is that of 2.4 layers, with attention counted 1.8.
    ends = pieces_of(here, 0)[-2:]
    head, table = (sum(only(x) for x in (*one.forward.values(), *one.backward.values())) for one in ends)
    assert by_rank[3] - by_rank[2] == pytest.approx(head)
    assert by_rank[0] - by_rank[1] == pytest.approx(table)
    assert 0 < table < head / 4
    assert 1.2 < head / (by_rank[1] / 8) < 2.4
