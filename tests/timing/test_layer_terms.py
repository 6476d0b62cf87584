"""Terms of a layer's and of the output layer's time where they decide it: few tokens, several modes, short passes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import layer_work
from simulator.cost.pricing.price import price
from simulator.cost.schedule.orders import ZeroBubbleH1
from simulator.cost.timing.layers import PassSeconds, head_seconds, host_seconds, layer_seconds, projection_seconds
from simulator.cost.timing.products import (
    ProductShape,
    attention_rate,
    forward_flops_per_token,
    head_parameters,
    model_flops_per_token,
    prediction_projection,
    product_seconds,
    shaped_seconds,
)
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import ROUND, block, layout_of, only, pricing, scenario_of, small_dense, small_moe
from tests.timing.by_hand import GEMM, MEMORY, product

LINK = 337.5e9
FP32_GEMM = 67e12 / 2
V, H = 1000, 64


def scenario_with(**fields: Any) -> Scenario:
    given: dict[str, Any] = {"coefficients": ROUND, "seq_length": 64, "global_batch_size": 64}
    return scenario_of(fields.pop("model", small_dense()), **(given | fields))


def output(scenario: Scenario, **fields: Any) -> PassSeconds:
    return head_seconds(pricing(scenario, **fields))


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
    """Products no faster than their operands are moved; backward two of them, or with frozen weights one.

    52 bytes a logit in both passes together, 16 in one kernel. Gradients that are added in a kernel of their own are
    read, and the sum read and written.
    """
    scenario = scenario_with(precision=precision, options=options, lora_rank=lora, seq_length=tokens)
    found = output(scenario, tensor_parallel=tensor, sequence_parallel=tensor > 1)
    element, rate = (4, FP32_GEMM) if precision == "fp32" else (2, GEMM)
    fused = options.get("fused_gradient_accumulation") != "false"
    by_hand = product(tokens, V / tensor, H, rate=rate, element=element, narrow=element, fused=fused)
    logits = (8 if "fused_cross_entropy" in options else 26) * tokens * V / tensor / MEMORY
    weights = by_hand.weights if lora is None else 0.0
    assert only(found.forward["vocabulary"]) == pytest.approx(by_hand.forward + logits)
    assert only(found.backward["vocabulary"]) == pytest.approx(by_hand.inputs + weights + logits)
    assert only(found.weight_seconds) == pytest.approx(weights)
    assert "tensor_parallel" not in found.forward


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_loss_over_the_whole_vocabulary_gathers_it(tensor: int) -> None:
    """Forward alone; each rank then passes over all logits."""
    scenario = scenario_with(options={"vocabulary_parallel_loss": "false"}, seq_length=4096)
    found = output(scenario, tensor_parallel=tensor, sequence_parallel=tensor > 1)
    whole = 2 * 4096 * V
    gathered = (tensor - 1) / tensor * whole / LINK + (tensor - 1) * 2e-6
    assert only(found.forward["tensor_parallel"]) == pytest.approx(gathered)
    assert only(found.backward["tensor_parallel"]) == 0
    forward = product(4096, V / tensor, H).forward
    assert only(found.forward["vocabulary"]) == pytest.approx(forward + 26 * 4096 * V / MEMORY)


def test_the_host_waits_at_the_ends_where_they_are_split() -> None:
    slow = replace(ROUND, time=replace(ROUND.time, tensor_ends_overhead_seconds=0.5))
    for tensor in (1, 2):
        plain, waiting = (
            output(scenario_with(coefficients=one), tensor_parallel=tensor, sequence_parallel=tensor > 1)
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
    scenario = scenario_with(model=model, seq_length=tokens, options={"mtp": "true"})
    found = projection_seconds(pricing(scenario, tensor_parallel=tensor, sequence_parallel=tensor > 1))
    by_hand = product(tokens, H / tensor, 2 * H)
    assert only(found.forward["gemm"]) == pytest.approx(by_hand.forward)
    assert only(found.backward["gemm"]) == pytest.approx(by_hand.inputs + by_hand.weights)
    assert only(found.weight_seconds) == pytest.approx(by_hand.weights)


def test_parameters_of_products_alone() -> None:
    """Norms stand beside them and are multiplied by nothing."""
    scenario = scenario_with(model=small_dense(num_nextn_predict_layers=1))
    assert head_parameters(scenario) == V * H
    assert prediction_projection(scenario) == 2 * H * H
    score = scenario_with(options={"score_head": "true"})
    assert head_parameters(score) == H


@pytest.mark.parametrize("share", ["1.0", "0.25"])
@pytest.mark.parametrize("modules", [0, 2])
def test_flops_of_the_output_layer_are_those_of_labelled_tokens(share: str, modules: int) -> None:
    """Of the model's and of every module's; a module has a layer and a projection besides."""
    options = {"labelled_token_fraction": share, "mtp": "true"}
    scenario = scenario_with(model=small_dense(num_nextn_predict_layers=modules), options=options)
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
        scenario = scenario_with(model=model, lora_rank=8, options={"shared_adapters": shared})
        attention = (readers * 64 + 128) + (64 + 64) + (64 + 8)
        experts = 2 * ((inner * 64 + 2 * 48) + (48 + 64))
        adapters = 4 * 2 * 8 * (attention + experts)
        plain = forward_flops_per_token(scenario)
        assert model_flops_per_token(scenario) == pytest.approx(2 * plain + 3 * adapters)


def test_each_layout_of_a_block_is_done_again_by_its_own_mode() -> None:
    """Modes of recomputation side by side, in experts' layers and dense ones: as each by itself."""
    scenario = scenario_with(model=small_moe(), options={"flash_attention": "false"}, devices=8)
    modes: list[dict[str, Any]] = [
        {"recompute": "none"},
        {"recompute": "selective", "recompute_modules": ("core_attn",)},
        {"recompute": "selective", "recompute_modules": ("moe_act", "layernorm")},
        {"recompute": "attention"},
        {"recompute": "full", "recompute_method": "block", "recompute_layers": 1},
        {"recompute": "full"},
    ]
    layouts = [layout_of(scenario, pipeline_parallel=2, **mode) for mode in modes]
    together = price(Pricing(scenario, block_of(layouts)))
    parts = together.step.parts(together.pricing)
    for index, layout in enumerate(layouts):
        alone = price(pricing_of(scenario, layout))
        of_one = alone.step.parts(alone.pricing)
        assert {name: value[index] for name, value in parts.items()} == {name: only(v) for name, v in of_one.items()}
        assert together.memory.device[:, index].tolist() == alone.memory.device[:, 0].tolist()
    again = parts["recompute"]
    assert again[0] == 0
    assert (again[1:] > 0).all()
    assert len(set(again.tolist())) == len(modes)


def test_weight_gradients_of_a_split_schedule_are_no_more_than_a_backward_pass() -> None:
    """Frozen weights have none, whatever the shape of the answer."""
    assert ZeroBubbleH1().splits
    scenario = scenario_with(model=small_dense(num_hidden_layers=8), lora_rank=8, devices=4)
    layouts = [layout_of(scenario, pipeline_parallel=2, schedule="zb_h1", micro_batch_size=size) for size in (1, 2)]
    found = price(Pricing(scenario, block_of(layouts))).step.work.by_chunk
    assert all((one.weights == 0.0).all() and one.weights.shape == one.backward.shape for one in found)
    trained = price(Pricing(replace(scenario, lora_rank=None), block_of(layouts))).step.work.by_chunk
    assert found
    assert all(((one.weights > 0.0) & (one.weights < one.backward)).all() for one in trained)
    assert np.shape(trained[0].weights) == (2, 2)


MANY = 65_536
"""Tokens: enough that no product is split along its depth but that of the weights' gradient, which has few outputs."""
WIDE: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "head_dim": 64}
PRODUCTS = {"qkv": (1024 + 2 * 128, 1024), "o": (1024, 1024), "gate_up": (2 * 4096, 1024), "down": (1024, 4096)}
"""Outputs and inputs of the products of a layer of 16 heads and two key-value heads."""


def wide(efficiency: float, **options: str) -> Scenario:
    """A layer whose products have rates of their shapes, over links of so much of their rate."""
    values = {"product_waves": 1.1, "product_split_seconds": 3.9e-6, "link_efficiency": efficiency}
    coefficients = replace(ROUND, time=replace(ROUND.time, **values))
    named = {"tp_comm_overlap": "true", **options}
    return scenario_with(model=small_dense(**WIDE), coefficients=coefficients, seq_length=MANY, options=named)


@pytest.mark.parametrize("efficiency", [0.75, 0.0075])
def test_collectives_beside_products(efficiency: float) -> None:
    """Gathered before queries and before gate and up, scattered behind the others; half shows, or what outlasts.

    A collective hides behind the product of its own operation alone: backward, the scatter of a gathered input's
    gradient behind the gradient of the weights, the gather of an output's gradient in that of the inputs.
    """
    scenario = wide(efficiency)
    here = block(scenario, tensor_parallel=2, sequence_parallel=True)
    layer = layer_seconds(Pricing(scenario, here), scenario.model.layer_kinds[0])
    each = 0.5 * 2 * MANY * 1024 / (efficiency * 450e9) + 2e-6
    forward, backward, of_forward, of_backward = 0.0, 0.0, 0.0, 0.0
    for name, (outputs, inputs) in PRODUCTS.items():
        column = name in ("qkv", "gate_up")
        n, k = (outputs / 2, float(inputs)) if column else (float(outputs), inputs / 2)
        seconds = shaped_seconds(scenario, GEMM, ProductShape(np.array([float(MANY)]), n, k))
        beside = seconds.weights if column else seconds.inputs
        forward += max(each / 2, each - only(seconds.forward))
        backward += max(each / 2, each - only(beside))
        of_forward += only(seconds.forward)
        of_backward += only(seconds.inputs + seconds.weights)
    assert only(layer.forward["gemm"]) == pytest.approx(of_forward)
    assert only(layer.backward["gemm"]) == pytest.approx(of_backward)
    assert only(layer.forward["tensor_parallel"]) == pytest.approx(forward)
    assert only(layer.backward["tensor_parallel"]) == pytest.approx(backward)
    # An eighth of the products' time is lost beside them.
    assert only(layer.forward["overlap"]) == pytest.approx(of_forward / 8)
    assert only(layer.backward["overlap"]) == pytest.approx(of_backward / 8)
    # Without overlap they wait, and nothing is lost.
    waiting = wide(efficiency, tp_comm_overlap="false", overlap_tensor_gradients="false")
    plain = layer_seconds(Pricing(waiting, here), scenario.model.layer_kinds[0])
    for parts in (plain.forward, plain.backward):
        assert only(parts["tensor_parallel"]) == pytest.approx(4 * each)
        assert only(parts["overlap"]) == 0


@pytest.mark.parametrize("lora", [None, 8])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("tokens", [1, 2**16])
def test_products_take_no_less_than_they_move(lora: int | None, fused: bool, tokens: int) -> None:
    """Weights' gradients are added up in the product, or in a kernel behind it; adapters' base has none."""
    scenario = scenario_with(seq_length=64, lora_rank=lora, options={"fused_gradient_accumulation": str(fused).lower()})
    found = product_seconds(scenario, GEMM, ProductShape(np.array([float(tokens)]), 1024.0, 512.0, 4.0), 1.0, 1.5)
    entered = product(tokens, 1024, 512, narrow=1.0, weight=1.5, fused=fused, at_once=4)
    assert only(found.forward) == pytest.approx(entered.forward)
    assert only(found.inputs) == pytest.approx(entered.inputs)
    if lora:
        assert found.weights == 0
        return
    assert only(found.weights) == pytest.approx(entered.weights)
    assert only(found.passes[1]) == pytest.approx(entered.inputs + entered.weights)


@pytest.mark.parametrize(("waits", "experts", "expected"), [(2.5e-3, 8, 1.25e-3), (2.5e-3, 1, 0.0), (0.0, 8, 0.0)])
@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("graphs", ["none", "layers", "full_iteration"])
def test_ranks_of_experts_wait_half_of_it_in_either_pass(
    waits: float, experts: int, expected: float, overlapped: bool, graphs: str
) -> None:
    """Where exchanges are overlapped, so much of it as is said to show; where a graph holds the pass, nothing waits."""
    found, options = [], {"overlap_expert_exchange": str(overlapped).lower(), "cuda_graphs": graphs}
    for seconds in (0.0, waits):
        time = replace(ROUND.time, expert_wait_seconds=seconds, expert_wait_exposed=0.25)
        scenario = scenario_with(model=small_moe(), coefficients=replace(ROUND, time=time), options=options)
        layer = layer_seconds(pricing(scenario, expert_parallel=experts), scenario.model.layer_kinds[1])
        found.append([only(one["expert_parallel"]) for one in (layer.forward, layer.backward)])
    assert [after - before for before, after in zip(*found, strict=True)] == pytest.approx(
        [0.0 if graphs == "full_iteration" else expected * (0.25 if overlapped else 1.0)] * 2
    )


@pytest.mark.parametrize(("graphs", "captured"), [("none", False), ("layers", True), ("full_iteration", True)])
@pytest.mark.parametrize(("kind", "launches"), [(0, 0.0), (1, 103 + 6 * 4)])
def test_a_layer_with_experts_takes_no_less_than_its_launches(
    graphs: str, captured: bool, kind: int, launches: float
) -> None:
    """Of four experts on a rank; none of a dense layer, and none that a graph starts."""
    options = {"cuda_graphs": graphs, "host_paced_layers": "false"}
    scenario = scenario_with(model=small_moe(), options=options)
    here = pricing(scenario, expert_parallel=2)
    work = layer_work(conditions_of(scenario), scenario.model.layer_kinds[kind])
    expected = 0.0 if captured else launches * ROUND.time.launch_seconds
    assert only(np.asarray(host_seconds(here, work))) == pytest.approx(expected)


@pytest.mark.parametrize(("hardware", "rate"), [("h100-sxm-80g", 67e12), ("b200-sxm", 2250e12 / 16)])
def test_heads_off_the_tensor_cores_run_at_the_peak_of_fp32(hardware: str, rate: float) -> None:
    """A sixteenth of the 16-bit peak where a data sheet leaves it out."""
    scenario = scenario_with(model=small_dense(head_dim=20), hardware=hardware, options={"flash_attention": "false"})
    assert attention_rate(scenario) == pytest.approx(rate * ROUND.time.attention_unaligned)


@pytest.mark.parametrize(
    ("model", "gathered"),
    [
        # Around attention and around the network 2 h are gathered, and as much is scattered; of two experts' layer the
        # shared expert's. What experts exchange is no tensor-parallel collective.
        (small_dense(), 4 * 2 * 64),
        (small_moe(first_k_dense_replace=0), 4 * 2 * 64),
        (small_moe(first_k_dense_replace=0, num_shared_experts=0), 2 * 2 * 64),
    ],
)
@pytest.mark.parametrize(("compiled", "passes"), [("true", 2.0), ("false", 2.0 + 3.0)])
def test_copies_around_functional_collectives(model: Any, gathered: float, compiled: str, passes: float) -> None:
    """What is gathered along the sequence is read and written once more; eager DTensor copies three times besides."""
    coefficients = replace(ROUND, time=replace(ROUND.time, functional_copies=3.0))
    found = []
    for word in ("false", "true"):
        options = {"functional_collectives": word, "compiled": compiled}
        scenario = scenario_with(model=model, options=options, coefficients=coefficients)
        kind = model.layer_kinds[-1]
        found.append([layer_seconds(pricing(scenario, tensor_parallel=size), kind) for size in (1, 2)])
    more = [
        [only(after.forward["memory_bound"] - before.forward["memory_bound"]), only(after.backward["memory_bound"])]
        for before, after in zip(*found, strict=True)
    ]
    assert more[0][0] == 0
    assert more[1][0] == pytest.approx(passes * gathered * 64 / MEMORY)
    assert more[1][1] - only(found[0][1].backward["memory_bound"]) == pytest.approx(more[1][0])
