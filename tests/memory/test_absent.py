"""Figures of what is absent are exactly nothing, and edges of a formula's cases, worked by hand to the byte."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory.activations import (
    activations_in_flight,
    repeated_working_set,
    returning_bytes,
    stage_activations,
)
from simulator.cost.memory.state import largest_matrix, step_bytes, training_state
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import conditions_of
from simulator.cost.schedule.orders import schedule_of
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from tests.memory.test_state_terms import ENGINE
from tests.memory.test_state_terms import scenario_with as engine
from tests.pricing.test_memory_arithmetic import DENSE, MOE, T
from tests.pricing.test_memory_arithmetic import question as plain
from tests.scenario.cases import layout_of, only, scenario_of, small_compressed, small_dense, small_moe

D = 64 * 160


def priced(scenario: Scenario, **fields: Any) -> Pricing:
    return pricing_of(scenario, layout_of(scenario, **fields))


def test_nothing_comes_back_where_nothing_was_sent_or_is_made_again() -> None:
    pricing = priced(plain(small_moe(vocab_size=8)), micro_batch_size=2)
    for kind in pricing.contents.layer_kinds:
        assert only(returning_bytes(pricing, kind)) == 0
        assert only(repeated_working_set(pricing, kind)) == 0
    found = stage_activations(pricing)
    assert (only(found.recompute_working_set), only(found.offload_traffic)) == (0, 0)


@pytest.mark.parametrize("both", ["offloaded_modules", "swapped_attention"])
def test_what_comes_back_is_what_was_sent(both: str) -> None:
    """Of attention's core q, k, v and the output travel; swapped attention brings back all of the layer's attention."""
    option = {"offloaded_modules": "core_attn"} if both == "offloaded_modules" else {"swapped_attention": "true"}
    pricing = priced(plain(small_dense(vocab_size=8), options=option), micro_batch_size=2)
    without = priced(plain(small_dense(vocab_size=8)), micro_batch_size=2)
    (kind,) = pricing.contents.layer_kinds
    back = only(returning_bytes(pricing, kind))
    assert back > 0
    gone = only(stage_activations(without).one_micro_batch) - only(stage_activations(pricing).one_micro_batch)
    assert gone == pytest.approx(4 * back)


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"num_hidden_layers": 8}, {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "zb_v"}),
    ({"num_hidden_layers": 8}, {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "dualpipev"}),
    ({"num_hidden_layers": 8}, {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "zb_h1"}),
    ({"num_hidden_layers": 6}, {"pipeline_parallel": 2, "chunk_layers": (1, 2, 2, 1), "virtual_stages": 2}),
    ({"num_hidden_layers": 8}, {"pipeline_parallel": 4, "virtual_stages": 2}),
]


@pytest.mark.parametrize(("model", "fields"), CASES)
def test_layers_in_flight_are_those_of_the_passes_in_their_order(model: dict[str, Any], fields: dict[str, Any]) -> None:
    """Dense first layer, experts behind: each pass holds its chunk's layers until its last gradient is done."""
    ranks = fields["pipeline_parallel"]
    scenario = plain(small_moe(vocab_size=8, **model), devices=ranks, global_batch_size=16 * ranks)
    if "chunk_layers" in fields:
        fields = fields | {"stage_layers": (3, 3)}
    pricing = priced(scenario, micro_batch_size=2, **fields)
    schedule, found = schedule_of(pricing), activations_in_flight(pricing)
    parts = fields.get("chunk_layers") or (model["num_hidden_layers"] // (2 * ranks),) * (2 * ranks)
    starts = np.concatenate(([0], np.cumsum(parts)))
    places = schedule.places(ranks, 2)
    for rank in range(ranks):
        sizes = []
        for place in places[rank]:
            first, last = int(starts[place]), int(starts[place + 1])
            dense = int(first == 0 and last > 0)
            sizes.append(T * (dense * DENSE + (last - first - dense) * MOE))
        alive = most = 0.0
        for one in schedule.order(rank, ranks, 2, 8):
            alive += sizes[one.chunk] * {"forward": 1, "input_gradient": 0}.get(one.kind, -1)
            most = max(most, alive)
        assert found[rank, 0] == most, (rank, sizes)


def scenario_with(**options: str) -> Scenario:
    return scenario_of(small_moe(), profile="torch", devices=1, options=options, seq_length=32)


def step(scenario: Scenario, **fields: Any) -> float:
    return only(training_state(priced(scenario, **fields)).step_temporary)


TABLE = 1000 * 64
"""Parameters of the largest tensor: an embedding."""


def test_numbers_of_a_step_have_their_type_and_their_number() -> None:
    """Moments' type where Adam makes them; none without; of one tensor no more than a rank has."""
    off = {"foreach_optimizer": "false", "largest_tensor_step": "false"}
    assert step(scenario_with(**off)) == 0
    one = off | {"largest_tensor_step": "true", "parameter_dtype": "bf16", "step_temporaries": "1"}
    assert step(scenario_with(**one, optimizer_dtype="fp32"), zero_stage=0) == 4 * max(TABLE, 8 * 2 * 48 * 64)
    assert step(scenario_with(**one, optimizer_dtype="bf16"), zero_stage=0) == 2 * max(TABLE, 8 * 2 * 48 * 64)
    assert step(scenario_with(**one, optimizer="lion"), zero_stage=0) == 0
    # torch 2.13, optim/sgd.py: weights are added to in place.
    assert step(scenario_with(**one, optimizer="sgd", optimizer_dtype="bf16"), zero_stage=0) == 0


def test_one_tensor_of_a_step_is_no_larger_than_what_is_trained() -> None:
    options = {"foreach_optimizer": "false", "largest_tensor_step": "true", "step_temporaries": "1"}
    pricing = priced(scenario_with(**options), zero_stage=0)
    few, many = np.array([[10.0]]), np.array([[1e9]])
    assert only(step_bytes(pricing, few, lambda: np.array([100.0]))) == 4 * 10
    assert only(step_bytes(pricing, many, lambda: np.array([100.0]))) == 4 * 100
    at_once = priced(scenario_with(foreach_optimizer="true", step_temporaries="1"), zero_stage=0)
    assert only(step_bytes(at_once, many, lambda: np.array([100.0]))) == 4e9


def test_the_largest_matrix_of_either_class() -> None:
    """A dense layer's 64 x 160, or gate and up together; of experts one matrix of 64 x 48."""
    found = largest_matrix(priced(scenario_with(optimizer="muon"), zero_stage=0))
    assert (only(found.dense) % D, only(found.routed) % (64 * 48)) == (0, 0)
    assert only(found.dense) >= D > only(found.routed) > 0


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_streams_are_collapsed_and_expanded_from_two_on(streams: int) -> None:
    scenario = scenario_of(small_compressed("window_shared", residual_streams=streams))
    names = [one.name for one in layer_operations(conditions_of(scenario), scenario.model.layer_kinds[0])]
    assert [name for name in names if "streams" in name] == ["attention_streams", "ffn_streams"] * (streams > 1)


def test_a_gradient_in_fp32_is_not_cast_again() -> None:
    """DeepSpeed's flat step: fp32 gradients are copied, 4 bytes each; 16-bit ones also cast, 2 + 4."""
    sizes = []
    for word in ("fp32", "bf16"):
        options = ENGINE | {"gradient_dtype": word, "step_temporaries": "0", "step_parameters": "1000"}
        sizes.append(step(engine(**options), expert_parallel=4, zero_stage=3))
    assert sizes == [4 * 1000, 6 * 1000]


def test_a_block_prices_each_layout_as_alone() -> None:
    scenario = plain(small_moe(vocab_size=8), devices=2)
    layouts = [
        layout_of(scenario, micro_batch_size=size, recompute=mode) for size in (1, 2) for mode in ("none", "full")
    ]
    together = activations_in_flight(Pricing(scenario, block_of(layouts)))
    alone = [activations_in_flight(pricing_of(scenario, layout))[:, 0] for layout in layouts]
    assert together.T.tolist() == np.array(alone).tolist()
