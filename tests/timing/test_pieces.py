"""Pieces that are easily left out of the time: prediction layers, unfused scores, the level an exchange crosses."""

from __future__ import annotations

import numpy as np
import pytest

import simulator
from simulator.cost.timing.collectives import RankGroup, all_to_all_seconds
from simulator.cost.timing.step import pieces_of
from simulator.question.scenario.layout import Layout
from simulator.question.specs.catalogue import load_model
from tests.scenario.cases import ROUND, only, priced, pricing, scenario_of, small_dense


def test_an_exchange_pays_each_level_for_the_peers_it_reaches() -> None:
    scenario = scenario_of(small_dense(), "ascend-910b-64g", devices=1, coefficients=ROUND)
    found = all_to_all_seconds(scenario, RankGroup(np.array([32.0]), np.array([1.0])), np.array([2.7e9]))
    # 16 of 32 peers are across the network, 25 GB/s at three quarters.
    assert only(found) == pytest.approx(16 / 32 * 2.7e9 / 18.75e9 + 18e-6)


def test_recomputed_flops_leave_prediction_layers_out() -> None:
    layout = Layout(pipeline_parallel=4, data_parallel=16, expert_parallel=8, recompute="full")
    extra = []
    for mtp in ("false", "true"):
        found = simulator.estimate(
            model="deepseek-v3", hardware="h800-sxm-80g", nodes=8, layout=layout, options={"mtp": mtp}
        ).throughput
        added = found.hardware_flops_per_second_per_device - found.flops_per_second_per_device
        extra.append(added / found.tokens_per_second_per_device)
    assert extra[0] == pytest.approx(extra[1])


def test_a_prediction_layer_has_its_projection() -> None:
    scenario = scenario_of("deepseek-v3", "h800-sxm-80g", devices=64, options={"mtp": "true"})
    answer = priced(scenario, pipeline_parallel=4, expert_parallel=8)
    work, last = answer.step.work, answer.memory.contents.kind[-1]

    def seconds(piece: int) -> float:
        both = pieces_of(answer.pricing, 0)[piece]
        return sum(only(x) for one in (both.forward, both.backward) for x in one.values())

    # Layers, output layers of the model and of the module, the module; the table is on the first rank.
    expected = 16 * seconds(1) + 2 * seconds(2) + seconds(4)
    assert only((work.forward + work.backward)[last]) == pytest.approx(expected)
    assert seconds(3) > 0
    assert seconds(4) > 0


def test_prediction_layers_of_a_cut_model_are_one_kind_in_memory_and_time() -> None:
    scenario = scenario_of(load_model("deepseek-v3").with_layers(2), "h800-sxm-80g", options={"mtp": "true"})
    answer = priced(scenario, expert_parallel=8)
    assert only(answer.step.parts(answer.pricing)["expert_parallel"]) > 0


def test_selective_recompute_of_unfused_attention_moves_the_scores_again() -> None:
    scenario = scenario_of("llama3.1-8b", options={"flash_attention": "false"}, coefficients=ROUND)
    none, selective = (priced(scenario, recompute=mode).step for mode in ("none", "selective"))
    core = 4 * 8192 * 8192 * 4096 / 247.25e12 + 4.5 * 2 * 8192 * 8192 * 32 / 1675e9
    assert only(selective.total) - only(none.total) == pytest.approx(128 * 32 * core)


def test_adapters_do_not_change_the_ring_cost_of_attention() -> None:
    found = []
    for rank in (None, 8):
        answer = priced(scenario_of("llama3.1-8b", lora_rank=rank, coefficients=ROUND), context_parallel=2)
        found.append(only(answer.step.parts(answer.pricing)["ring_attention"]))
    assert found[0] == pytest.approx(found[1])


def test_products_are_bound_by_memory_where_few_tokens_meet_many_weights() -> None:
    """64 tokens a micro batch: moving weights, tokens and fp32 gradients takes longer than the products."""
    scenario = scenario_of("llama3.1-8b", devices=1, seq_length=64, global_batch_size=8, coefficients=ROUND)
    found = only(pieces_of(pricing(scenario), 0)[0].backward["gemm"])
    parameters = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336
    # Inputs and outputs of q, k and v, of o, of gate and up, of down: read and written for either gradient.
    sides = (4096 + 6144) + (4096 + 4096) + (4096 + 2 * 14_336) + (14_336 + 4096)
    assert found == pytest.approx(((2 + 8) * parameters + 2 * 2 * 64 * sides) / 1675e9)


def test_traffic_that_outlasts_compute_is_exposed() -> None:
    """One short sequence under ZeRO 3 over a slow network: no step is faster than its traffic."""
    scenario = scenario_of(
        "llama-13b", "bi150-64g", devices=64, seq_length=512, global_batch_size=64, profile="torch", coefficients=ROUND
    )
    answer = priced(scenario, zero_stage=3)
    # Gathers of 2 bytes in both passes and a scatter of 4 over 64 devices at the node's 0.4875 GB/s a device, measured.
    traffic = 13_015_864_320 * (2 + 2 + 4) * (3 / 4) / (16 * 0.4875e9)
    assert only(answer.step.total) > traffic
    assert only(answer.step.data_parallel) + only(answer.step.pipeline.pace_seconds) > traffic


def test_routed_experts_have_no_tensor_parallel_collectives() -> None:
    scenario = scenario_of("mixtral-8x7b-v0.1", coefficients=ROUND)
    experts = priced(scenario, tensor_parallel=2, sequence_parallel=True, expert_parallel=8)
    layer = pieces_of(experts.pricing, 0)[0]
    dense = scenario_of("llama3.1-8b", coefficients=ROUND)
    plain = pieces_of(pricing(dense, tensor_parallel=2, sequence_parallel=True), 0)[0]
    # The same hidden size: two collectives around attention for the four of a dense layer.
    assert only(layer.forward["tensor_parallel"]) == pytest.approx(only(plain.forward["tensor_parallel"]) / 2)


def test_adapters_of_a_high_rank_take_time() -> None:
    low, high = (priced(scenario_of("llama3.1-8b", lora_rank=rank)).step.total for rank in (8, 1024))
    assert only(high) > 1.2 * only(low)


def test_fp32_work_runs_at_the_fp32_peak_and_moves_twice_the_bytes() -> None:
    found = {}
    for precision in ("bf16", "fp32"):
        scenario = scenario_of("llama3.1-8b", "h100-sxm-80g", precision=precision, coefficients=ROUND)
        answer = priced(scenario, tensor_parallel=2, sequence_parallel=True, zero_stage=1)
        found[precision] = {k: only(v) for k, v in answer.step.parts(answer.pricing).items()}
    wide, narrow = found["fp32"], found["bf16"]
    assert wide["attention"] == pytest.approx(narrow["attention"] * 989 / 67)
    assert wide["gemm"] == pytest.approx(narrow["gemm"] * 989 / 67)
    # Gradients of queries add up in fp32 anyway: 8 bytes a feature, 2048 on a rank, 256 micro batches of 32 layers.
    summed = 256 * 32 * 8192 * 2048 * 8 / 1675e9
    assert wide["memory_bound"] == pytest.approx(narrow["memory_bound"] * 2 - summed)
    # State per parameter and step: 2 x 8 of two moments, gradient 4, weight 4; in bf16 2 x 12 and 4 and 2.
    assert wide["optimizer"] == pytest.approx(narrow["optimizer"] * (16 + 8) / (24 + 6))
