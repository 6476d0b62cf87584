"""Schedules that split backward passes or run two passes under each other: bubbles, what they hold, what is priced."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from simulator.answers.timeline import timeline
from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.pricing.price import price
from simulator.cost.schedule.orders import (
    DualPipe,
    DualPipeV,
    OneForwardOneBackward,
    ZeroBubbleH1,
    ZeroBubbleV,
)
from simulator.cost.schedule.schedule import EventRun, Pass, PipelineWork, Schedule, run
from simulator.cost.stages import stage_contents
from simulator.errors import InputError
from simulator.question.frameworks.stacks import framework
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import bare_estimate
from tests.scenario.cases import complete_layout, scenario_of, small_dense, small_moe

SCHEDULES: list[tuple[Schedule, int]] = [
    (OneForwardOneBackward(combined=True), 1),
    (OneForwardOneBackward(combined=True), 2),
    (ZeroBubbleH1(), 1),
    (ZeroBubbleH1(), 2),
    (ZeroBubbleV(), 2),
    (DualPipeV(), 2),
    (DualPipeV(combined=True), 2),
    (DualPipeV(combined=True, splits_at_end=False), 2),
    (DualPipe(), 2),
]
SECONDS = [(1.0, 2.0, 1.0), (1.0, 2.2, 0.9), (1.0, 2.5, 0.8)]
"""Forward, whole backward, and weight gradient."""


def equal(schedule: Schedule, chunks: int, ranks: int, count: int, seconds: tuple[float, float, float]) -> EventRun:
    """The run of equal chunks."""
    forward, backward, weights = ([[one] * chunks] * ranks for one in seconds)
    return run(schedule, PipelineWork(forward, backward, count, weights))


def groups_of(schedule: Schedule, rank: int, work: PipelineWork) -> list[list[Pass]]:
    """The passes of a rank, those that run under each other together."""
    order = schedule.order(rank, work.ranks, work.chunks, work.micro_batches)
    under = schedule.together(rank, work.ranks, work.chunks, work.micro_batches)
    groups: list[list[Pass]] = []
    for index, one in enumerate(order):
        if under is not None and under[index]:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def replayed(schedule: Schedule, work: PipelineWork) -> tuple[float, dict[tuple[str, int, int], float]]:
    """The end of a step, and of its passes by kind, micro batch and stage: by time, without fronts or arrays."""
    assert work.weight_seconds is not None
    places = schedule.places(work.ranks, work.chunks).tolist()
    last = max(map(max, places))
    queues = [groups_of(schedule, rank, work) for rank in range(work.ranks)]
    clock = [0.0] * work.ranks
    ended: dict[tuple[str, int, int], float] = {}
    while any(queues):
        before = sum(map(len, queues))
        for rank, queue in enumerate(queues):
            while queue:
                needs, taken = [], 0.0
                for kind, micro_batch, chunk in queue[0]:
                    stage = places[rank][chunk]
                    whole, weights = work.backward_seconds[rank][chunk], work.weight_seconds[rank][chunk]
                    if kind == "forward":
                        needs += [("forward", micro_batch, stage - 1)] if stage else []
                        taken += work.forward_seconds[rank][chunk]
                    elif kind == "weight_gradient":
                        needs.append(("backward", micro_batch, stage))
                        taken += weights
                    else:
                        turns = stage == last
                        needs.append(("forward" if turns else "backward", micro_batch, stage if turns else stage + 1))
                        taken += whole if kind == "backward" else whole - weights
                if any(one not in ended for one in needs):
                    break
                clock[rank] = max([clock[rank], *(ended[one] for one in needs)]) + taken
                for kind, micro_batch, chunk in queue.pop(0):
                    name = "backward" if kind == "input_gradient" else kind
                    ended[name, micro_batch, places[rank][chunk]] = clock[rank]
        assert sum(map(len, queues)) < before, "the schedule hangs"
    return max(clock), ended


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@pytest.mark.parametrize(("ranks", "cycles"), [(2, 2), (4, 2), (4, 5), (8, 3)])
def test_the_event_run_is_that_of_the_independent_run(schedule: Schedule, chunks: int, ranks: int, cycles: int) -> None:
    random = np.random.default_rng(ranks * 10 + cycles)
    forward, backward = (random.uniform(0.5, 2.0, (ranks, chunks)) for _ in range(2))
    backward += 1.0
    weights = backward * random.uniform(0.2, 0.6, (ranks, chunks))
    work = PipelineWork(forward.tolist(), backward.tolist(), cycles * ranks, weights.tolist())
    found = run(schedule, work)
    makespan, ended = replayed(schedule, work)
    assert found.makespan_seconds == pytest.approx(makespan, rel=1e-12)
    # Every pass of every micro batch through every stage is there once.
    stages = int(schedule.places(ranks, chunks).max()) + 1
    assert len([one for one in ended if one[0] != "weight_gradient"]) == 2 * stages * cycles * ranks
    for rank, of_rank in enumerate(found.events):
        split = sum(one.ran.kind == "input_gradient" for one in of_rank)
        assert split == sum(one.ran.kind == "weight_gradient" for one in of_rank)
        busy = sum(one.end_seconds - one.start_seconds for one in of_rank)
        passes = [(one.ran.kind, one.ran.chunk) for one in of_rank]
        each = {
            "forward": forward,
            "backward": backward,
            "input_gradient": backward - weights,
            "weight_gradient": weights,
        }
        assert busy == pytest.approx(sum(each[kind][rank, chunk] for kind, chunk in passes), rel=1e-12)
        assert [b.start_seconds - a.end_seconds >= -1e-9 for a, b in itertools.pairwise(of_rank)].count(False) == 0


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_published_bubbles_of_equal_stages(ranks: int, seconds: tuple[float, float, float]) -> None:
    forward, backward, weights = seconds
    count = 4 * ranks

    def bubble(schedule: Schedule, chunks: int, passes: float) -> float:
        return equal(schedule, chunks, ranks, count, seconds).makespan_seconds - passes * (forward + backward)

    # Qi et al. 2023, table 1, and the same for chunks of a rank.
    expected = (ranks - 1) * (forward + backward - 2 * weights)
    assert bubble(ZeroBubbleH1(), 1, count) == pytest.approx(expected, rel=1e-9)
    assert bubble(ZeroBubbleH1(), 2, 2 * count) == pytest.approx(expected, rel=1e-9)
    # One forward pass more ahead costs combined passes nothing: that of Narayanan et al. 2021.
    plain = (ranks - 1) * (forward + backward)
    assert bubble(OneForwardOneBackward(combined=True), 2, 2 * count) == pytest.approx(plain, rel=1e-9)
    assert bubble(OneForwardOneBackward(combined=True), 1, count) >= plain
    # deepseek-ai/DualPipe's table: exact where F = B - W = W, else the run stays below it by 2 % of a step at most.
    whole = forward + 2 * backward - 3 * weights
    exact = backward == 2.0 * weights
    for schedule, depth, passes in (
        (DualPipe(), ranks / 2 - 1, count),
        (DualPipeV(combined=True), ranks - 1, 2 * count),
    ):
        short = depth * whole - bubble(schedule, 2, passes)
        assert -1e-9 <= short <= (1e-9 if exact else 0.02 * passes * (forward + backward))
    # MindSpeed's documentation of dualpipev without --dualpipev-dw-detach, to one forward pass.
    whole = (ranks - 1) * (forward + backward + backward - weights) - forward
    attached = bubble(DualPipeV(combined=True, splits_at_end=False), 2, 2 * count)
    assert attached == pytest.approx(whole, abs=forward + 1e-9)


def test_a_zero_bubble_has_none_between_a_ranks_first_and_last_pass() -> None:
    found = equal(ZeroBubbleV(), 2, 4, 16, (1.0, 2.0, 1.0))
    for events in found.events:
        busy = sum(one.end_seconds - one.start_seconds for one in events)
        assert events[-1].end_seconds - events[0].start_seconds == pytest.approx(busy)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("cycles", [2, 3, 6])
def test_what_is_held_is_that_of_the_run(ranks: int, cycles: int) -> None:
    held: list[tuple[Schedule, int, list[int]]] = [
        (OneForwardOneBackward(combined=True), 1, [ranks - rank for rank in range(ranks)]),
        (OneForwardOneBackward(combined=True), 2, [2 * (ranks - rank - 1) + ranks + 1 for rank in range(ranks)]),
        (ZeroBubbleH1(), 1, [ranks] * ranks),
        (ZeroBubbleV(), 2, [2 * ranks] * ranks),
        (DualPipeV(), 2, [min(2 * ranks + 1, 2 * cycles * ranks)] * ranks),
        (DualPipe(), 2, [ranks + 1] * ranks),
    ]
    for schedule, chunks, expected in held:
        found = equal(schedule, chunks, ranks, cycles * ranks, (1.0, 2.0, 1.0))
        counted = schedule.in_flight(ranks, chunks, np.array([float(cycles * ranks)]))[:, 0]
        # Of two passes under each other, of which the run counts both, one frees what the other keeps.
        both = isinstance(schedule, OneForwardOneBackward)
        assert list(counted) == [found.most_alive(rank) - both for rank in range(ranks)] == expected


def test_dual_pipe_is_its_half_on_half_of_the_ranks() -> None:
    ranks, count = 8, 40
    random = np.random.default_rng(5)
    forward, backward, weights = (random.uniform(low, low + 1.0, ranks) for low in (0.5, 1.5, 0.3))
    stages = [sorted((rank, ranks - 1 - rank)) for rank in range(ranks)]
    both = [[[float(of[stage]) for stage in pair] for pair in stages] for of in (forward, backward, weights)]
    whole = run(DualPipe(), PipelineWork(both[0], both[1], count, both[2]))
    halves = [of[: ranks // 2] for of in both]
    half = run(DualPipeV(combined=True), PipelineWork(halves[0], halves[1], count // 2, halves[2]))
    assert whole.makespan_seconds == pytest.approx(half.makespan_seconds, rel=1e-12)


def scenario_with(**changes: Any) -> Scenario:
    """A small mixture of experts, first layers dense, whose stages are not alike."""
    model = small_moe(num_hidden_layers=16, first_k_dense_replace=3)
    profile = dataclasses.replace(framework("megatron", stack="hai-llm"), **changes)
    limits = dataclasses.replace(profile.limits, schedules=("1f1b", "zb_h1", "zb_v", "dualpipe", "dualpipev"))
    profile = dataclasses.replace(profile, limits=limits)
    return dataclasses.replace(scenario_of(model, devices=16), framework=profile, global_batch_size=96)


LAYOUTS = [
    {"schedule": "zb_h1", "virtual_stages": 2},
    {"schedule": "zb_v"},
    {"schedule": "dualpipev"},
    {"schedule": "dualpipe"},
    {"schedule": "1f1b", "virtual_stages": 2},
]


@pytest.mark.parametrize("given", LAYOUTS, ids=lambda given: given["schedule"])
def test_a_step_is_that_of_its_passes(given: dict[str, Any]) -> None:
    scenario = scenario_with()
    layout = complete_layout(scenario, pipeline_parallel=4, expert_parallel=2, **given)
    found = bare_estimate(scenario, layout)
    assert found.violations == ()
    speed = found.throughput
    apart = dataclasses.replace(speed, parts_seconds={**speed.parts_seconds, "pipeline_sends": 0.0})
    passes = timeline(dataclasses.replace(found, throughput=apart)).passes
    pace = max(stage.forward_seconds + stage.backward_seconds for stage in speed.stages)
    count = scenario.global_batch_size // layout.data_parallel
    assert count * pace + speed.parts_seconds["bubble"] == pytest.approx(passes.makespan_seconds, rel=0.01)
    assert sum(speed.parts_seconds.values()) == pytest.approx(speed.step_seconds, rel=1e-12)


@pytest.mark.parametrize("given", LAYOUTS, ids=lambda given: given["schedule"])
def test_a_block_is_priced_as_each_of_its_layouts(given: dict[str, Any]) -> None:
    scenario = scenario_with()
    layouts = [
        complete_layout(
            scenario, pipeline_parallel=4, expert_parallel=ep, micro_batch_size=size, recompute=mode, **given
        )
        for ep, size, mode in itertools.product((1, 2, 4), (1, 2), ("none", "selective"))
    ]
    together = price(Pricing(scenario, block_of(layouts)))
    for index, layout in enumerate(layouts):
        alone = price(pricing_of(scenario, layout))
        assert together.step.total[index] == alone.step.total[0]
        assert together.device_bytes[index] == alone.device_bytes[0]


def test_dual_pipe_holds_weights_twice_and_shares_their_optimizer() -> None:
    scenario = scenario_with()
    once, twice = (
        bare_estimate(scenario, complete_layout(scenario, pipeline_parallel=4, schedule=name)).memory.stages
        for name in ("1f1b", "dualpipe")
    )
    for rank in range(4):
        pair = once[rank], once[3 - rank]
        # A prediction layer or a shared table aside: here there is neither.
        for part, share in (("parameters", 1.0), ("gradients", 1.0), ("optimizer", 0.5)):
            expected = share * sum(stage.parts_bytes[part] for stage in pair)
            assert twice[rank].parts_bytes[part] == pytest.approx(expected, rel=1e-9)


def test_the_last_stage_is_on_the_first_rank_where_the_pipeline_comes_back() -> None:
    scenario = scenario_with()
    has = stage_contents(scenario, block_of([complete_layout(scenario, pipeline_parallel=4, schedule="zb_v")]))
    assert list(has.heads[has.kind]) == list(has.embeddings[has.kind]) == [1, 0, 0, 0]
    assert list(has.num_layers[has.kind]) == [4, 4, 4, 4]


def test_weight_gradients_are_part_of_the_backward_pass() -> None:
    scenario = scenario_of("llama3.1-8b", "h100-sxm-80g", devices=8, profile="torch")
    layout = complete_layout(scenario, pipeline_parallel=4, schedule="zb_h1")
    for stage in bare_estimate(scenario, layout).throughput.stages:
        (chunk,) = stage.chunk_seconds
        assert 0.2 < chunk.weight_seconds / chunk.backward_seconds < 0.6


def test_combined_passes_hold_one_more_layer() -> None:
    plain, combined = (scenario_with(overlap_expert_exchange=overlaps) for overlaps in (False, True))
    held = [
        bare_estimate(one, complete_layout(one, pipeline_parallel=4, expert_parallel=2, virtual_stages=2)).memory
        for one in (plain, combined)
    ]
    # The last rank's peak is at the loss, with five chunk passes of half of its layers: there the other pass has ended.
    last = held[0].stages[3]
    layer = last.parts_bytes["activations"] / (5 / 2 * last.layers)
    before, after = ([stage.parts_bytes["activations"] for stage in memory.stages] for memory in held)
    assert np.subtract(after, before) == pytest.approx([layer, layer, layer, 0.0], rel=0.12)  # embeddings are no layers


def test_what_a_framework_has_not_is_refused_by_name() -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=8), devices=8)
    (broken,) = bare_estimate(scenario, complete_layout(scenario, pipeline_parallel=2, schedule="dualpipe")).violations
    assert broken.message == "schedule dualpipe: megatron (z2000) has 1f1b"
    with pytest.raises(InputError, match=r"schedule 'gpipe', did you mean 'dualpipe'\?; allowed are 1f1b, zb_h1"):
        complete_layout(scenario, pipeline_parallel=2, schedule="gpipe")
