"""Recompute of the attention block: it keeps the norm and the block's input, and is computed again."""

from typing import Any

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import repeated_working_set
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.search.build import estimate_layout
from tests.scenario.cases import (
    ROUND,
    block,
    layer_bytes,
    layout_of,
    only,
    priced,
    scenario_of,
    small_dense,
    small_mla,
    small_moe,
)

T = 64


def small(model: ModelSpec, profile: str = "megatron", **options: str) -> Scenario:
    return scenario_of(model, profile=profile, options=options, seq_length=32, global_batch_size=16)


def saved_bytes(scenario: Scenario, *, moe: bool = False, **fields: Any) -> float:
    return layer_bytes(scenario, block(scenario, micro_batch_size=2, **fields), moe=moe)


def again(scenario: Scenario) -> float:
    here = block(scenario, micro_batch_size=2, recompute="attention")
    return only(repeated_working_set(Pricing(scenario, here), scenario.model.layer_kinds[0]))


def test_a_layer_keeps_its_norms_and_its_feed_forward_part() -> None:
    # Of 2072 per token: qkv output 256, rotated q and k 192, attention output 128, row sums 16.
    assert saved_bytes(small(small_dense()), recompute="attention") == T * (2072 - 256 - 192 - 128 - 16)
    # Paddle keeps v, 64, instead of the qkv output.
    assert saved_bytes(small(small_dense(), "paddle"), recompute="attention") == T * (1880 + 512 - 64 - 192 - 128 - 16)
    assert saved_bytes(small(small_moe()), moe=True, recompute="attention") == T * (2552 - 592)


def test_scores_and_latents_go_too() -> None:
    unfused = small(small_dense(), flash_attention="false")
    assert saved_bytes(unfused, recompute="attention") == T * (2056 - 256 - 192 - 128)
    # Two norms of 260, feed-forward 960.
    assert saved_bytes(small(small_mla()), recompute="attention") == T * (2 * 260 + 960)


def test_the_block_computed_again_is_alive_where_it_exceeds_what_the_backward_pass_has_freed() -> None:
    wide, narrow = small(small_dense()), small(small_dense(intermediate_size=16))
    assert again(wide) == 0
    # Freed: a norm of 260 and 6 x 16; again: 592.
    assert again(narrow) == T * (592 - 260 - 96)
    answer = priced(narrow, micro_batch_size=2, recompute="attention")
    assert only(answer.memory.activations.recompute_working_set) == T * 236


def test_the_block_is_computed_once_more() -> None:
    scenario = scenario_of("llama3.1-8b", coefficients=ROUND)
    answer = priced(scenario, recompute="attention")
    parts = answer.step.parts(answer.pricing)
    projections = 2 * 8192 * (2 * 4096 * 4096 + 2 * 4096 * 1024) / 494.5e12
    core = 2 * 8192 * 8192 * 4096 / 247.25e12
    rotary = 4 * 8192 * (4096 + 1024) / 1675e9
    assert only(parts["recompute"]) == pytest.approx(128 * 32 * (projections + core + rotary + 50e-6))
    none = priced(scenario)
    assert only(answer.step.total) - only(none.step.total) == pytest.approx(only(parts["recompute"]))


def test_its_cost_lies_between_the_core_and_the_layer() -> None:
    scenario = scenario_of("llama3.1-8b", devices=16, profile="paddle")
    found = {}
    for mode in ("none", "selective", "attention", "full"):
        layout = layout_of(scenario, recompute=mode, tensor_parallel=2, sequence_parallel=True, context_parallel=2)
        found[mode] = estimate_layout(scenario, layout)
    steps = [found[mode].throughput.step_seconds for mode in ("none", "selective", "attention", "full")]
    assert steps == sorted(steps)
    sizes = [found[mode].memory.device_bytes for mode in ("none", "attention", "full")]
    assert sizes == sorted(sizes, reverse=True)
    again = found["attention"].throughput
    per_token = 32 * (2 * (2 * 4096 * 4096 + 2 * 4096 * 1024) + 4 * 8192 * 4096)
    added = again.hardware_flops_per_second_per_device - again.flops_per_second_per_device
    assert added / again.tokens_per_second_per_device == pytest.approx(per_token)
