"""Terms of a layer's and of the output layer's time where they decide it: few tokens, several modes, short passes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.pricing.price import price
from simulator.cost.schedule.zero_bubble import ZeroBubbleH1
from simulator.cost.timing.flops import (
    forward_flops_per_token,
    head_parameters,
    model_flops_per_token,
    prediction_projection,
)
from simulator.cost.timing.layers import head_seconds, projection_seconds
from simulator.cost.timing.parts import PassSeconds
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import ROUND, block, layout_of, only, scenario_of, small_dense, small_moe

GEMM, MEMORY, LINK = 494.5e12, 1675e9, 337.5e9
FP32_GEMM = 67e12 / 2
V, H = 1000, 64


def asked(**fields: Any) -> Scenario:
    given: dict[str, Any] = {"coefficients": ROUND, "seq_length": 64, "global_batch_size": 64}
    return scenario_of(fields.pop("model", small_dense()), **(given | fields))


def output(scenario: Scenario, **fields: Any) -> PassSeconds:
    return head_seconds(scenario, block(scenario, **fields))


@pytest.mark.parametrize("tokens", [8, 2**20])
@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize(
    ("precision", "options", "lora"),
    [
        ("bf16", {}, None),
        ("fp8", {}, None),
        ("fp32", {}, None),
        ("bf16", {"fused_gradient_accumulation": "false"}, None),
        ("bf16", {"fused_gradient_accumulation": "false"}, 8),
        ("bf16", {"fused_cross_entropy": "true"}, None),
        ("bf16", {}, 8),
    ],
)
def test_the_output_layer(tokens: int, tensor: int, precision: Any, options: dict[str, str], lora: int | None) -> None:
    """Products no faster than their weights are read; backward two of them, or with frozen weights one.

    Sixteen bytes a logit in either pass, eight in one kernel. Gradients that are added in a kernel of their own are
    read, and the sum read and written.
    """
    scenario = asked(precision=precision, options=options, lora_rank=lora, seq_length=tokens)
    found = output(scenario, tensor_parallel=tensor, sequence_parallel=tensor > 1)
    element, rate = (4, FP32_GEMM) if precision == "fp32" else (2, GEMM)
    product = max(2 * tokens * V * H / tensor / rate, element * V * H / tensor / MEMORY)
    logits = (8 if "fused_cross_entropy" in options else 16) * tokens * V / tensor / MEMORY
    added = 0.0
    if options.get("fused_gradient_accumulation") == "false" and lora is None:
        added = (element + 2 * 4) * V * H / tensor / MEMORY
    weights = product if lora is None else 0.0
    assert only(found.forward["vocabulary"]) == pytest.approx(product + logits)
    assert only(found.backward["vocabulary"]) == pytest.approx(product + weights + logits + added)
    assert only(found.weight_seconds) == pytest.approx(weights + added)
    assert "tensor_parallel" not in found.forward


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_loss_over_the_whole_vocabulary_gathers_it(tensor: int) -> None:
    """Forward alone; each rank then passes over all logits."""
    scenario = asked(options={"vocabulary_parallel_loss": "false"}, seq_length=4096)
    found = output(scenario, tensor_parallel=tensor, sequence_parallel=tensor > 1)
    whole = 2 * 4096 * V
    gathered = (tensor - 1) / tensor * whole / LINK + (tensor - 1) * 2e-6
    assert only(found.forward["tensor_parallel"]) == pytest.approx(gathered)
    assert only(found.backward["tensor_parallel"]) == 0
    product = max(2 * 4096 * V * H / tensor / GEMM, 2 * V * H / tensor / MEMORY)
    assert only(found.forward["vocabulary"]) == pytest.approx(product + 16 * 4096 * V / MEMORY)


def test_the_host_waits_at_the_ends_where_they_are_split() -> None:
    slow = replace(ROUND, time=replace(ROUND.time, tensor_ends_overhead_seconds=0.5))
    for tensor in (1, 2):
        plain, waiting = (
            output(asked(coefficients=one), tensor_parallel=tensor, sequence_parallel=tensor > 1)
            for one in (ROUND, slow)
        )
        for name in ("forward", "backward"):
            added = only(getattr(waiting, name)["vocabulary"] - getattr(plain, name)["vocabulary"])
            assert added == pytest.approx(0.25 * (tensor > 1), abs=1e-12)


@pytest.mark.parametrize("tokens", [8, 2**20])
@pytest.mark.parametrize("tensor", [1, 4])
def test_a_prediction_module_s_projection(tokens: int, tensor: int) -> None:
    """From twice the hidden size; its weight is read, its gradient read and written in 4 bytes."""
    model = small_dense(num_nextn_predict_layers=1)
    scenario = asked(model=model, seq_length=tokens, options={"mtp": "true"})
    found = projection_seconds(scenario, block(scenario, tensor_parallel=tensor, sequence_parallel=tensor > 1))
    parameters = 2 * H * H / tensor
    compute = 2 * tokens * parameters / GEMM
    forward, weights = max(compute, 2 * parameters / MEMORY), max(compute, 8 * parameters / MEMORY)
    assert only(found.forward["gemm"]) == pytest.approx(forward)
    assert only(found.backward["gemm"]) == pytest.approx(forward + weights)
    assert only(found.weight_seconds) == pytest.approx(weights)


def test_parameters_of_products_alone() -> None:
    """Norms stand beside them and are multiplied by nothing."""
    scenario = asked(model=small_dense(num_nextn_predict_layers=1))
    assert head_parameters(scenario) == V * H
    assert prediction_projection(scenario) == 2 * H * H
    score = asked(options={"score_head": "true"})
    assert head_parameters(score) == H


@pytest.mark.parametrize("share", ["1.0", "0.25"])
@pytest.mark.parametrize("modules", [0, 2])
def test_flops_of_the_output_layer_are_those_of_labelled_tokens(share: str, modules: int) -> None:
    """Of the model's and of every module's; a module has a layer and a projection besides."""
    options = {"labelled_token_fraction": share, "mtp": "true"}
    scenario = asked(model=small_dense(num_nextn_predict_layers=modules), options=options)
    layer = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160) + 4 * 64 * 64
    head = 2 * V * H * float(share)
    expected = (4 + modules) * layer + (1 + modules) * head + modules * 2 * 2 * H * H
    assert forward_flops_per_token(scenario) == pytest.approx(expected)
    assert model_flops_per_token(scenario) == pytest.approx(3 * expected)


def test_adapters_of_experts_are_those_of_the_chosen_ones() -> None:
    """Three times forward; frozen weights twice. Each of two chosen experts has a pair on each of its matrices.

    Products of one input share the pair's first half where the stack joins them: q, k and v, gate and up.
    """
    for shared, readers, inner in (("true", 1, 1), ("false", 3, 2)):
        model = small_moe(first_k_dense_replace=0, num_shared_experts=0)
        scenario = asked(model=model, lora_rank=8, options={"shared_adapters": shared})
        attention = (readers * 64 + 128) + (64 + 64) + (64 + 8)
        experts = 2 * ((inner * 64 + 2 * 48) + (48 + 64))
        adapters = 4 * 2 * 8 * (attention + experts)
        plain = forward_flops_per_token(scenario)
        assert model_flops_per_token(scenario) == pytest.approx(2 * plain + 3 * adapters)


def test_each_layout_of_a_block_is_done_again_by_its_own_mode() -> None:
    """Modes of recomputation side by side, in experts' layers and dense ones: as each by itself."""
    scenario = asked(model=small_moe(), options={"flash_attention": "false"}, devices=8)
    modes: list[dict[str, Any]] = [
        {"recompute": "none"},
        {"recompute": "selective", "recompute_modules": ("core_attn",)},
        {"recompute": "selective", "recompute_modules": ("moe_act", "layernorm")},
        {"recompute": "attention"},
        {"recompute": "full", "recompute_method": "block", "recompute_layers": 1},
        {"recompute": "full"},
    ]
    layouts = [layout_of(scenario, pipeline_parallel=2, **mode) for mode in modes]
    together = price(scenario, block_of(layouts))
    parts = together.step.parts(together.block, together.memory)
    for index, layout in enumerate(layouts):
        alone = price(scenario, block_of([layout]))
        of_one = alone.step.parts(alone.block, alone.memory)
        assert {name: value[index] for name, value in parts.items()} == {name: only(v) for name, v in of_one.items()}
        assert together.memory.device[:, index].tolist() == alone.memory.device[:, 0].tolist()
    again = parts["recompute"]
    assert again[0] == 0
    assert (again[1:] > 0).all()
    assert len(set(again.tolist())) == len(modes)


def test_weight_gradients_of_a_split_schedule_are_no_more_than_a_backward_pass() -> None:
    """Frozen weights have none, whatever the shape of the answer."""
    assert ZeroBubbleH1().splits
    scenario = asked(model=small_dense(num_hidden_layers=8), lora_rank=8, devices=4)
    layouts = [layout_of(scenario, pipeline_parallel=2, schedule="zb_h1", micro_batch_size=size) for size in (1, 2)]
    found = price(scenario, block_of(layouts)).step.work.by_chunk
    assert all((one.weights == 0.0).all() and one.weights.shape == one.backward.shape for one in found)
    trained = price(replace(scenario, lora_rank=None), block_of(layouts)).step.work.by_chunk
    assert found
    assert all(((one.weights > 0.0) & (one.weights < one.backward)).all() for one in trained)
    assert np.shape(trained[0].weights) == (2, 2)
