"""Seconds of a ring's merges and of collectives at the edges of their cases, by hand."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import pricing_of
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Collective, conditions_of
from simulator.cost.operations.sums import total_parameters
from simulator.cost.schedule.orders import DualPipeV, OneForwardOneBackward
from simulator.cost.timing.collectives import RankGroup, neighbour_seconds
from simulator.cost.timing.layers import collective_seconds, ring_seconds
from simulator.question.scenario.scenario import Scenario
from tests.pricing.test_time_arithmetic import BARE, parts
from tests.scenario.cases import layout_of, only, scenario_of, small_dense, small_moe
from tests.timing.by_hand import MEMORY


def scenario_with(**fields: Any) -> Scenario:
    return scenario_of(fields.pop("model", small_dense()), coefficients=BARE, global_batch_size=64, **fields)


@pytest.mark.parametrize(("tensor", "context"), [(1, 2), (2, 2), (1, 4), (2, 4), (4, 2), (1, 1)])
def test_a_ring_merges_what_each_later_step_adds(tensor: int, context: int) -> None:
    """16 bytes for each element of the rank's queries (4 heads of 16), `c - 1` times (`cases.ROUND`)."""
    scenario = scenario_with(seq_length=64)
    layout = layout_of(
        scenario, tensor_parallel=tensor, sequence_parallel=tensor > 1, context_parallel=context, micro_batch_size=2
    )
    pricing = pricing_of(scenario, layout)
    operations = layer_operations(conditions_of(scenario), scenario.model.layer_kinds[0])
    collectives = tuple(one for operation in operations for one in operation.collectives)
    work: Any = type("Work", (), {"collectives": collectives})
    tokens = 2 * 64 / context
    found = only(ring_seconds(pricing, work))
    assert found == pytest.approx((context - 1) * 16 * tokens * 64 / tensor / MEMORY) if context > 1 else found == 0


@pytest.mark.parametrize("pattern", ["gather", "reduce", "once", "all_to_all", "ring", "gather_each", "reduce_each"])
def test_a_collective_takes_time_for_a_single_number_and_none_for_nothing(pattern: Any) -> None:
    """Half a number a token still takes its latency; of tokens that are not there (ETP 1) nothing is exchanged."""
    scenario = scenario_with(model=small_moe(), seq_length=2)
    layout = layout_of(scenario, tensor_parallel=4, sequence_parallel=True, expert_parallel=1)
    pricing = pricing_of(scenario, layout)
    assert only(collective_seconds(pricing, Collective("tensor", pattern, 2.0, "sequence", "products"))) >= 1e-6
    assert only(collective_seconds(pricing, Collective("tensor", pattern, 2.0, "copies_exchanged", "products"))) == 0


def test_a_ring_of_two_sends_once_and_one_of_four_three_times() -> None:
    """Each step takes as long, of a rank's own part: T / c tokens."""
    seconds = {}
    for context in (2, 4):
        scenario = scenario_with(seq_length=32 * context)
        pricing = pricing_of(scenario, layout_of(scenario, context_parallel=context))
        ring = Collective("context", "ring", 128.0, "whole", "products")
        seconds[context] = only(collective_seconds(pricing, ring))
    assert seconds[4] == pytest.approx(3 * seconds[2])


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 4), (3, 3), (2, 5)])
@pytest.mark.parametrize("combined", [False, True])
def test_a_whole_warm_up_needs_several_chunks(ranks: int, micro_batches: int, combined: bool) -> None:
    """As many micro batches as ranks run all forward passes first only where a rank has several chunks."""
    for rank in range(ranks):
        one = OneForwardOneBackward(combined, whole_warm_up=True).order(rank, ranks, 1, micro_batches)
        assert one == OneForwardOneBackward(combined).order(rank, ranks, 1, micro_batches)
    if micro_batches % ranks == 0:
        several = OneForwardOneBackward(combined, whole_warm_up=True).order(0, ranks, 2, micro_batches)
        assert [step.kind for step in several] == ["forward"] * 2 * micro_batches + ["backward"] * 2 * micro_batches


@pytest.mark.parametrize(("rank", "apart"), [(0, 0), (1, 0), (2, 1)])
@pytest.mark.parametrize("micro_batches", [6, 7, 9])
def test_passes_that_meet_in_dual_pipe_v(rank: int, apart: int, micro_batches: int) -> None:
    """DeepSeek's dualpipev.py, steps 4 and 5, on three ranks: rounds of two overlapped pairs, then of one.

    `m - 2 p + i + 1` of the first, where the turning rank runs its first two passes apart; `p - i - 1` of the second.
    """
    ranks, rounds = 3, micro_batches - 2 * 3 + rank + 1
    together = DualPipeV(combined=True).together(rank, ranks, 2, micro_batches)
    assert together is not None
    assert int(together.sum()) == 2 * rounds - apart + (ranks - rank - 1)
    order = DualPipeV(combined=True).order(rank, ranks, 2, micro_batches)
    meeting = [order[at - 1 : at + 1] for at in range(len(order)) if together[at]]
    assert all((before.kind, after.kind) == ("forward", "backward") for before, after in meeting)
    assert all(before.chunk != after.chunk for before, after in meeting)
    assert DualPipeV().together(rank, ranks, 2, micro_batches) is None


@pytest.mark.parametrize(("stage", "times"), [(0, 0), (1, 1), (2, 1), (3, 32)])
def test_16_bit_parameters_are_gathered_as_often_as_they_are_freed(stage: int, times: int) -> None:
    """Without overlap all of it shows: once a step, under ZeRO 3 in both passes of 16 micro batches, else never.

    2 bytes of a parameter, at what a GiB takes over eight ranks. Reductions move what they do with one.
    """
    off = {"overlap_param_gather": "false", "overlap_grad_reduce": "false"}
    model = small_dense(num_hidden_layers=4)
    scenario = scenario_of(model, coefficients=BARE, seq_length=64, global_batch_size=128, options=off)
    per_byte = 7 / 8 / 337.5e9 + 7 * 2e-6 / 2**30
    sums = {0: 2, 1: 1, 2: 16, 3: 16}[stage]
    gathered = times * 2 * total_parameters(model) * per_byte
    found = parts(scenario, zero_stage=stage)["data_parallel"]
    assert found == pytest.approx(gathered + sums * 4 * total_parameters(model) * per_byte, rel=1e-6)


def test_a_rank_alone_sends_to_no_neighbour_and_one_beside_it_over_one_link() -> None:
    """NVLink at 75 % of 450 GB/s (`cases.ROUND`), and 2 us."""
    scenario = scenario_with(devices=8)
    alone, pair = (RankGroup(np.array([size]), np.array([1.0])) for size in (1.0, 2.0))
    assert only(neighbour_seconds(scenario, alone, np.array([1e9]))) == 0
    assert only(neighbour_seconds(scenario, pair, np.array([337.5e9]))) == pytest.approx(1.0 + 2e-6)
