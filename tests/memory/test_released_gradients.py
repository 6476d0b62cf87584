"""`release_grads`: gradients that come back during the first backward pass."""

from typing import Any

import pytest

from simulator.cost.memory.peak import memory_by_stage
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import only, pricing, scenario_of, small_dense

T = 64
ACTIVATIONS = T * 2072 * 4
GRADIENTS = 4 * (4 * 43_136 + 2 * 64_000 + 64)


def released(batch: int, **fields: Any) -> Scenario:
    options = {"release_grads": "true"}
    return scenario_of(small_dense(), seq_length=32, global_batch_size=batch, options=options, **fields)


def totals(scenario: Scenario, **fields: Any) -> list[float]:
    here = pricing(scenario, micro_batch_size=2, **fields)
    memory = memory_by_stage(here)
    return [float(moment.total(here.contents)[0, 0]) for moment in memory.moments]


def test_one_micro_batch_never_meets_its_own_gradients_whole() -> None:
    kept = totals(scenario_of(small_dense(), seq_length=32, global_batch_size=16))
    freed = totals(released(16))
    assert ACTIVATIONS < GRADIENTS
    # The backward pass ends with the gradients and without the activations.
    assert kept[0] - freed[0] == ACTIVATIONS
    assert kept[1] - freed[1] == GRADIENTS
    assert kept[2:] == freed[2:]


def test_a_second_micro_batch_meets_the_gradients_of_the_first() -> None:
    assert totals(released(32)) == totals(scenario_of(small_dense(), seq_length=32, global_batch_size=32))


@pytest.mark.parametrize(("batch", "saved"), [(8, True), (16, True), (24, False)])
def test_in_a_pipeline_a_rank_that_never_refills_saves(batch: int, saved: bool) -> None:
    # Two ranks, four replicas, micro batches of two sequences: 1, 2 and 3 micro batches; the first rank holds two.
    fields = {"pipeline_parallel": 2}
    kept = totals(scenario_of(small_dense(), seq_length=32, global_batch_size=batch), **fields)
    freed = totals(released(batch), **fields)
    assert (freed[0] < kept[0]) is saved


def test_parts_still_add_up_to_the_device() -> None:
    scenario = released(16)
    here = pricing(scenario, micro_batch_size=2)
    memory = memory_by_stage(here)
    parts = memory.parts()
    assert sum(only(part) for part in parts.values()) == pytest.approx(only(memory.device))
