"""What each schedule says of itself where few micro batches or copies of the model are, and that it is priced by it."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import price
from simulator.cost.schedule.orders import (
    DualPipe,
    DualPipeV,
    OneForwardOneBackward,
    ZeroBubbleH1,
    ZeroBubbleV,
)
from simulator.cost.schedule.schedule import PipelineWork, Schedule, run
from simulator.question.scenario.block import block_of
from simulator.search.build import bare_estimate
from tests.scenario.cases import complete_layout, only, priced, scenario_of, small_dense

ROUND_TRIP: list[list[int]] = [[0, 7], [1, 6], [2, 5], [3, 4]]
TURNS: list[list[int]] = [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("schedule", "chunks", "least", "sends", "places"),
    [
        (OneForwardOneBackward(), 1, 1, 2, [[0], [1], [2], [3]]),
        (OneForwardOneBackward(), 2, 1, 4, TURNS),
        (ZeroBubbleH1(), 2, 1, 4, TURNS),
        (ZeroBubbleV(), 2, 1, 4, ROUND_TRIP),
        # Both ends are busy with twice as many micro batches as ranks.
        (DualPipeV(), 2, 8, 4, ROUND_TRIP),
        # A micro batch passes through one of a rank's chunks.
        (DualPipe(), 2, 8, 2, [[0, 3], [1, 2], [1, 2], [0, 3]]),
    ],
)
def test_four_ranks(schedule: Schedule, chunks: int, least: int, sends: float, places: list[list[int]]) -> None:
    assert schedule.min_micro_batches(4) == least
    assert schedule.sends(4, chunks) == sends
    assert schedule.places(4, chunks).tolist() == places
    # A pipeline of one rank sends nothing.
    assert schedule.sends(1, chunks) == 0


@pytest.mark.parametrize("schedule", [DualPipeV(), DualPipe()])
def test_fewer_micro_batches_than_a_schedule_runs_are_held_as_its_least(schedule: Schedule) -> None:
    counts = np.array([1.0, 7.0, 8.0])
    held = schedule.in_flight(4, 2, counts)
    assert (held[:, 0] == held[:, 2]).all()
    assert (held[:, 1] == held[:, 2]).all()


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 6])
def test_zb_v_of_few_micro_batches_leaves_the_others_out(ranks: int, micro_batches: int) -> None:
    """It is listed for `2 p - 1` micro batches; what it does for the first of them does not change with fewer."""
    listed = max(2 * ranks - 1, micro_batches)
    for rank in range(ranks):
        whole = ZeroBubbleV().order(rank, ranks, 2, listed)
        few = ZeroBubbleV().order(rank, ranks, 2, micro_batches)
        assert few == tuple(one for one in whole if one.micro_batch < micro_batches)
        # Of each chunk a forward pass, an input's and a weight's gradient of every micro batch.
        assert len(few) == 3 * 2 * micro_batches
        assert len(set(few)) == len(few)


def spelled(schedule: Schedule, rank: int, ranks: int, micro_batches: int) -> str:
    """Passes as letters: forward, input and weight gradient, whole backward; chunk and micro batch behind."""
    letters = {"forward": "F", "input_gradient": "I", "weight_gradient": "W", "backward": "B"}
    listed = schedule.order(rank, ranks, 2, micro_batches)
    return " ".join(f"{letters[one.kind]}{one.chunk}{one.micro_batch}" for one in listed)


@pytest.mark.parametrize(
    ("rank", "micro_batches", "expected"),
    [
        # Three forward passes ahead; twice one of the second chunk and its whole backward pass; in turn both chunks'.
        (0, 3, "F00 F01 F02 F10 I10 W10 F11 I11 W11 I00 W00 F12 I12 W12 I01 W01 I02 W02"),
        (0, 4, "F00 F01 F02 F10 I10 W10 F11 I11 W11 F03 I00 W00 F12 I12 W12 I01 W01 F13 I13 W13 I02 W02 I03 W03"),
        # The turning rank: at the end input gradients of both chunks, and their weights' when nothing else is left.
        (1, 3, "F00 F10 F01 F11 I10 W10 F02 I00 W00 F12 I11 W11 I01 I12 I02 W01 W12 W02"),
        (1, 4, "F00 F10 F01 F11 I10 W10 F02 I00 W00 F12 I11 W11 F03 I01 W01 F13 I12 W12 I02 I13 I03 W02 W13 W03"),
    ],
)
def test_zb_v_of_two_ranks_pass_by_pass(rank: int, micro_batches: int, expected: str) -> None:
    """Followed by hand (Qi et al. 2024, arXiv:2405.15362, and torch's ScheduleZBVZeroBubble)."""
    assert spelled(ZeroBubbleV(), rank, 2, micro_batches) == expected


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0, "F00 F01 F02 F10 I10 W10 F11 F03 B11 F12 B00 B12 F13 B01 B13 I02 W02 I03 W03"),
        (1, "F00 F10 F01 F11 F02 B10 F12 B00 F03 B11 F13 B01 B12 B02 I13 I03 W13 W03"),
    ],
)
def test_dual_pipe_v_of_two_ranks_pass_by_pass(rank: int, expected: str) -> None:
    """The eight steps of dualpipev.py, followed by hand for four micro batches."""
    assert spelled(DualPipeV(), rank, 2, 4) == expected
    # Forward and backward passes that meet: all backward passes between the first whole one and the last forward one.
    together = DualPipeV(combined=True).together(rank, 2, 2, 4)
    assert together is not None
    words = expected.split()
    last = max(at for at, word in enumerate(words) if word.startswith("F"))
    meet = [word for at, word in enumerate(words) if word.startswith("B") and at <= last + 1]
    # The turning rank's first has just come from its own forward pass; the fifth step's first runs alone.
    alone = {0: "B12", 1: "B10"}[rank]
    assert [word for word, one in zip(words, together, strict=True) if one] == [one for one in meet if one != alone]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_zb_v_ends_with_the_weight_gradients_of_its_second_chunk_and_then_of_its_first(rank: int) -> None:
    """Of rank i as many of the second chunk as its last turns left behind, i; and as many of the first."""
    listed = ZeroBubbleV().order(rank, 4, 2, 9)
    last = max(at for at, one in enumerate(listed) if one.kind == "input_gradient")
    behind = [one.chunk for one in listed[last + 1 :]]
    # The first of these belongs to the last input gradient's turn.
    assert behind == [0] + [1] * rank + [0] * rank


@pytest.mark.parametrize("micro_batches", [1, 3, 4, 6, 8])
def test_chunks_of_zb_h1_take_turns_by_rounds(micro_batches: int) -> None:
    """As many rounds as micro batches fill the ranks, one at least; the last chunk's backward passes come first."""
    rounds = max(micro_batches // 4, 1)
    each = micro_batches // rounds
    for rank in range(4):
        listed = ZeroBubbleH1().order(rank, 4, 2, micro_batches)
        there = [one.chunk for one in listed if one.kind == "forward"]
        back = [one.chunk for one in listed if one.kind == "input_gradient"]
        assert there == ([0] * each + [1] * each) * rounds
        assert back == ([1] * each + [0] * each) * rounds
        weights = [one for one in listed if one.kind == "weight_gradient"]
        assert len(set(weights)) == 2 * micro_batches


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_dual_pipe_v_splits_its_last_backward_passes_from_half_of_them_on(rank: int, splits: bool) -> None:
    """Of the rank's `i + 1` last turns of either chunk, from the middle one on: its second chunk's of odd ranks.

    (dualpipev.py, step 6: `enable_zb` is set at `i == step_6 // 2`, before the first of both passes on odd ranks.)
    """
    listed = DualPipeV(splits_at_end=splits).order(rank, 4, 2, 8)
    last_forward = max(at for at, one in enumerate(listed) if one.kind == "forward")
    behind = [one for one in listed[last_forward + 1 :] if one.kind != "weight_gradient"]
    expected, split, turns = [("backward", 0)], False, rank + 1  # the first beside the last forward pass
    for turn in range(turns):
        split = split or (turn == turns // 2 and rank % 2 == 1)
        expected.append(("input_gradient" if split and splits else "backward", 1))
        split = split or (turn == turns // 2 and rank % 2 == 0)
        expected.append(("input_gradient" if split and splits else "backward", 0))
    expected += [("input_gradient" if splits else "backward", 0)] * (3 - rank)
    assert [(one.kind, one.chunk) for one in behind] == expected


def found_for(schedule: str, recompute: str = "none") -> Estimate:
    scenario = scenario_of(
        small_dense(num_hidden_layers=16, vocab_size=8), devices=4, global_batch_size=12, seq_length=512
    )
    fields: dict[str, Any] = {"pipeline_parallel": 4, "schedule": schedule, "recompute": recompute}
    if schedule in ("zb_v", "dualpipev"):
        fields["virtual_stages"] = 2
    return bare_estimate(scenario, complete_layout(scenario, **fields))


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_v", "dualpipev", "dualpipe"])
def test_passes_that_are_split_are_priced_by_their_run(schedule: str) -> None:
    """Equal chunks too: what all ranks take for 12 micro batches, three cycles, pass by pass."""
    speed = found_for(schedule).throughput
    chunks = [stage.chunk_seconds for stage in speed.stages]
    work = PipelineWork(
        [[one.forward_seconds for one in of_rank] for of_rank in chunks],
        [[one.backward_seconds for one in of_rank] for of_rank in chunks],
        12,
        [[one.weight_seconds for one in of_rank] for of_rank in chunks],
    )
    pace = max(stage.forward_seconds + stage.backward_seconds for stage in speed.stages)
    assert 12 * pace + speed.parts_seconds["bubble"] == pytest.approx(run(speed.schedule, work).makespan_seconds)
    for stage in speed.stages:
        copies = 2 if schedule == "dualpipe" else 1
        assert sum(one.forward_seconds for one in stage.chunk_seconds) == pytest.approx(copies * stage.forward_seconds)
        assert all(0 < one.weight_seconds < one.backward_seconds for one in stage.chunk_seconds)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_v", "dualpipe"])
def test_a_micro_batch_is_done_again_in_the_chunks_that_it_passes(schedule: str) -> None:
    """The four layers of a rank; where the pipeline has every layer twice, those of one copy."""
    plain, again = found_for(schedule), found_for(schedule, "full")
    for rank in (1, 2):  # without the ends of the model
        before, after = plain.throughput.stages[rank], again.throughput.stages[rank]
        assert after.forward_seconds == before.forward_seconds
        assert after.backward_seconds - before.backward_seconds == pytest.approx(before.forward_seconds)
    added = again.throughput.parts_seconds["recompute"]
    assert added == pytest.approx(12 * plain.throughput.stages[1].forward_seconds)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_v", "dualpipe"])
def test_the_ranks_work_is_that_of_all_layers(schedule: str) -> None:
    """Sixteen layers and the output layer, however they lie."""
    found, alone = found_for(schedule), found_for("1f1b")
    forward = sum(one.forward_seconds for one in found.throughput.stages)
    assert forward == pytest.approx(sum(one.forward_seconds for one in alone.throughput.stages))


@pytest.mark.parametrize("pipeline", [1, 2])
def test_parts_are_sent_and_gathered_in_a_pipeline_alone(pipeline: int) -> None:
    scenario = scenario_of(small_dense(), devices=8, global_batch_size=16, options={"scattered_sends": "true"})
    found = priced(scenario, pipeline_parallel=pipeline, tensor_parallel=4, sequence_parallel=False).step.pipeline.sends
    assert (only(found) > 0) == (pipeline > 1)


def test_layouts_that_differ_in_recomputation_wait_each_for_itself() -> None:
    """A block prices each of its layouts as it is priced alone."""
    scenario = scenario_of(small_dense(num_hidden_layers=16), devices=4, global_batch_size=12)
    layouts = [
        complete_layout(scenario, pipeline_parallel=4, virtual_stages=2, schedule="zb_v", recompute=mode)
        for mode in ("none", "full", "none")
    ]
    together = price(Pricing(scenario, block_of(layouts))).step.total.tolist()
    assert together == [price(pricing_of(scenario, one)).step.total[0] for one in layouts]
    assert together[0] == together[2] < together[1]
