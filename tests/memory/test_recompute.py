"""Which layers are recomputed, what they keep, and what offloading takes away, rank by rank."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import pricing_of
from simulator.cost.memory.activations import StageActivations, recompute_plan, stage_activations
from simulator.cost.timing.step import pieces_of
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import (
    by_stage,
    layout_of,
    only,
    priced,
    pricing,
    recomputed_layers,
    scenario_of,
    small_dense,
    small_moe,
)

T = 8192
LAYER, INPUT = T * 2072, T * 128


def eight_layers(**model: Any) -> Scenario:
    return scenario_of(small_dense(num_hidden_layers=8, **model))


def recomputed(scenario: Scenario, **fields: Any) -> tuple[list[float], list[float], list[float]]:
    here = pricing(scenario, recompute="full", **fields)
    plan = recompute_plan(here)
    inputs = np.sum([times * chunk for times, chunk in zip(here.chunk_repeats, plan.inputs, strict=True)], axis=0)
    return (
        recomputed_layers(plan, here.contents),
        recomputed_layers(plan, here.contents, moe=True),
        by_stage(inputs, here.contents),
    )


def activations(scenario: Scenario, **fields: Any) -> tuple[StageActivations, list[float]]:
    here = pricing(scenario, **fields)
    found = stage_activations(here)
    return found, by_stage(found.one_micro_batch, here.contents)


def test_nothing_is_recomputed_unless_asked() -> None:
    for mode in ("none", "selective"):
        here = pricing(eight_layers(), recompute=mode, pipeline_parallel=2)
        plan = recompute_plan(here)
        assert not plan.layers.any()
        assert not plan.inputs.any()
        assert activations(eight_layers(), recompute=mode, pipeline_parallel=2)[1] == [4 * LAYER, 4 * LAYER]


@pytest.mark.parametrize(("unit", "inputs"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_uniform_recomputes_all_and_keeps_the_input_of_each_unit(unit: int, inputs: int) -> None:
    fields = {"pipeline_parallel": 2, "recompute_layers": unit}
    assert recomputed(eight_layers(), **fields) == ([4, 4], [0, 0], [inputs, inputs])
    found, kept = activations(eight_layers(), recompute="full", **fields)
    assert kept == [inputs * INPUT] * 2
    # The backward pass holds one unit in full.
    assert np.ravel(found.recompute_working_set).tolist() == [unit * LAYER] * 2


def test_layouts_of_a_block_recompute_each_in_its_own_way() -> None:
    """None, all by units, the first of every chunk, those of a list: each as it does alone."""
    scenario = eight_layers()
    ways: list[dict[str, Any]] = [
        {"recompute": "none"},
        {"recompute": "full", "recompute_layers": 2},
        {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
        {"recompute": "full", "recompute_method": "list"},
        {"recompute": "selective"},
    ]
    layouts = [layout_of(scenario, pipeline_parallel=2, recompute_layer_list=(1, 2, 5), **way) for way in ways]
    plan = recompute_plan(pricing_of(scenario, *layouts))
    assert plan.on_rank[0].T.tolist() == [[0, 0], [4, 4], [3, 3], [2, 1], [0, 0]]
    assert plan.inputs[0].T.tolist() == [[0, 0], [2, 2], [3, 3], [2, 1], [0, 0]]
    assert plan.unit.tolist() == [1, 2, 1, 1, 1]


def test_uniform_keeps_an_input_in_every_chunk() -> None:
    fields = {"pipeline_parallel": 2, "virtual_stages": 2, "recompute_layers": 2}
    assert recomputed(eight_layers(), **fields) == ([4, 4], [0, 0], [2, 2])


def test_block_recomputes_the_first_layers_of_each_chunk() -> None:
    fields = {"recompute_method": "block", "pipeline_parallel": 2}
    assert recomputed(eight_layers(), recompute_layers=3, **fields) == ([3, 3], [0, 0], [3, 3])
    assert recomputed(eight_layers(), recompute_layers=1, virtual_stages=2, **fields) == ([2, 2], [0, 0], [2, 2])
    _, kept = activations(eight_layers(), recompute="full", recompute_layers=3, **fields)
    assert kept == [LAYER + 3 * INPUT] * 2


def test_block_starts_with_the_dense_layers() -> None:
    scenario = scenario_of(small_moe(num_hidden_layers=8, first_k_dense_replace=2))
    fields = {"recompute_method": "block", "pipeline_parallel": 2}
    assert recomputed(scenario, recompute_layers=1, **fields)[:2] == ([1, 0], [0, 1])
    assert recomputed(scenario, recompute_layers=3, **fields)[:2] == ([2, 0], [1, 3])


def test_a_list_names_layers_of_the_model() -> None:
    fields = {"recompute_method": "list", "recompute_layer_list": (0, 3, 4, 5, 7)}
    assert recomputed(eight_layers(), pipeline_parallel=2, **fields)[0] == [2, 3]
    assert recomputed(eight_layers(), pipeline_parallel=4, **fields)[0] == [1, 1, 2, 1]
    assert recomputed(eight_layers(), pipeline_parallel=2, stage_layers=(3, 5), **fields)[0] == [1, 4]
    _, kept = activations(eight_layers(), recompute="full", pipeline_parallel=2, **fields)
    assert kept == [2 * LAYER + 2 * INPUT, LAYER + 3 * INPUT]
    moe = scenario_of(small_moe(num_hidden_layers=8, first_k_dense_replace=2))
    found = recomputed(moe, pipeline_parallel=2, recompute_method="list", recompute_layer_list=(1, 2, 6))
    assert found[:2] == ([1, 0], [1, 1])


def test_explicit_cuts_move_layers() -> None:
    scenario = eight_layers()
    assert activations(scenario, pipeline_parallel=4, stage_layers=(1, 3, 3, 1))[1] == [n * LAYER for n in (1, 3, 3, 1)]


def test_recomputation_costs_a_forward_pass() -> None:
    scenario = scenario_of("llama3.1-8b")
    steps = {
        mode: priced(scenario, recompute=mode, recompute_method=method, recompute_layers=n).step
        for mode, method, n in (("none", "uniform", 1), ("full", "uniform", 1))
    }
    half = priced(scenario, recompute="full", recompute_method="block", recompute_layers=16).step
    layer = sum(only(x) for x in pieces_of(pricing(scenario), 0)[0].forward.values())
    extra = only(steps["full"].total) - only(steps["none"].total)
    assert extra == pytest.approx(128 * 32 * layer)
    assert only(half.total) - only(steps["none"].total) == pytest.approx(extra / 2)


def test_selective_recompute_costs_the_attention_core() -> None:
    scenario = scenario_of("llama3.1-8b")
    none, selective = (priced(scenario, recompute=mode) for mode in ("none", "selective"))
    core = only(pieces_of(none.pricing, 0)[0].forward["attention"])
    assert only(selective.step.total) - only(none.step.total) == pytest.approx(128 * 32 * core)
    # With a flash kernel it frees nothing.
    assert (selective.memory.allocated == none.memory.allocated).all()


def test_offloaded_activations_leave_two_layers_however_many_are_in_flight() -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=8), profile="torch", options={"fully_shard": "false"})
    kept = activations(scenario, pipeline_parallel=2)[1]
    layer = kept[0] / 4
    found, one = activations(scenario, pipeline_parallel=2, offload="activations")
    assert one == [2 * layer] * 2
    assert np.ravel(found.offload_traffic).tolist() == [4 * layer] * 2
    memory = priced(scenario, pipeline_parallel=2, offload="activations").memory
    assert memory.moments[0].activations.tolist() == [[2 * layer], [2 * layer]]  # type: ignore[union-attr]
    # A rank with a single layer has no second one to keep.
    assert activations(scenario, pipeline_parallel=8, offload="activations")[1] == [layer] * 8
