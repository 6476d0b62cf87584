"""Model chunks of the interleaved schedule: which layers a rank holds, recomputes and has freed."""

from __future__ import annotations

import numpy as np

from simulator.cost.memory.activations import recompute_plan
from tests.scenario.cases import held_layers, priced, pricing, recomputed_layers, scenario_of, small_dense, small_moe


def test_chunks_take_turns() -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=8))
    here = pricing(
        scenario,
        pipeline_parallel=2,
        virtual_stages=2,
        recompute="full",
        recompute_method="list",
        recompute_layer_list=(0, 1, 2, 3),
    )
    assert recomputed_layers(recompute_plan(here), here.contents) == [2, 2]


def test_first_dense_layers_follow_the_chunks() -> None:
    here = pricing(scenario_of("ernie-4.5-300b-a47b", devices=8), pipeline_parallel=2, virtual_stages=27)
    assert held_layers(here.contents) == [2, 1]


def test_block_recompute_takes_the_first_layers_of_every_chunk() -> None:
    scenario = scenario_of(small_moe(num_hidden_layers=16, first_k_dense_replace=3))
    here = pricing(
        scenario,
        pipeline_parallel=2,
        virtual_stages=2,
        recompute="full",
        recompute_method="block",
        recompute_layers=2,
    )
    plan = recompute_plan(here)
    assert (recomputed_layers(plan, here.contents)[0], recomputed_layers(plan, here.contents, moe=True)[0]) == (2, 2)


def test_the_embedding_gradient_comes_when_one_chunk_is_freed() -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=8))
    memory = priced(scenario, pipeline_parallel=2, virtual_stages=2).memory
    released = memory.moments[2].released
    assert isinstance(released, np.ndarray)
    assert released[0, 0] == memory.activations.one_micro_batch[0, 0] / 2
