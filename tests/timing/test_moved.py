"""Bytes per token that kernels bound by memory read and write in a forward pass of one layer, worked by hand.

h 64, f 160, 4 heads of 16, 2 key-value heads (q 64, k 32). A dense layer: two norms and two additions 20 h, rotation
4 (q + k), SwiGLU 6 f. One with experts: 10 h a copy, and 6 of the width of each expert and of the shared one, instead.
"""

from typing import Any

import pytest

from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import layer_work, total
from simulator.cost.timing.layers import layer_seconds
from simulator.question.specs.model import ModelSpec
from tests.memory.test_families import DELTA
from tests.scenario.cases import ROUND, only, pricing, scenario_of, small_dense, small_moe

DENSE = 20 * 64 + 4 * 96 + 6 * 160
MOE = 20 * 64 + 4 * 96 + 10 * 2 * 64 + 6 * 3 * 48
FP8 = {"precision": "fp8"}


def moved(model: ModelSpec, options: dict[str, str], **fields: Any) -> float:
    scenario = scenario_of(model, options=options, seq_length=32, global_batch_size=16, **fields)
    work = layer_work(conditions_of(scenario), model.layer_kinds[-1])
    return only(total(pricing(scenario), work.moved)) / 32


@pytest.mark.parametrize(
    ("changes", "options", "more"),
    [
        ({}, {}, 0),
        # Composed of operations, 36 bytes a feature in place of 4; LayerNorm is one kernel; a compiled norm is too.
        ({}, {"fused_rms_norm": "false"}, 2 * 32 * 64),
        ({"norm": "layer_norm"}, {"fused_rms_norm": "false"}, 0),
        ({}, {"fused_rms_norm": "false", "fused_rotary": "false", "fused_swiglu": "false", "compiled": "true"}, 0),
        # Casts to fp32 and back, 20 bytes a number in place of 4.
        ({}, {"fused_rotary": "false"}, 16 * 96),
        ({}, {"fused_swiglu": "false"}, 4 * 160),
        # A share of the layers does its norms, or its activation, once more behind three passes.
        ({}, {"recomputed_norm_share": "0.3"}, 0.1 * 2 * 4 * 64),
        ({}, {"recomputed_activation_share": "0.3"}, 0.1 * 6 * 160),
        ({"norm_placement": "around"}, {}, 2 * 4 * 64),
        # One tensor in, one out.
        ({"gated": False, "activation": "gelu"}, {}, -2 * 160),
        # A sigmoid for each feature, or for each head, and its product with the output.
        ({"attention_gate": "element"}, {}, 2 * (2 * 64 + 2 * 64)),
        ({"attention_gate": "head"}, {}, 2 * (2 * 64 + 2 * 4)),
        # Without a rotation queries and keys stay where they are.
        ({"rotary": False}, {}, -4 * 96),
        # Norms of queries and keys, in one kernel or composed.
        ({"qk_norm": True}, {}, 4 * 96),
        ({"qk_norm": True}, {"fused_rms_norm": "false"}, 2 * 32 * 64 + 36 * 96),
    ],
)
def test_a_dense_layer(changes: dict[str, Any], options: dict[str, str], more: float) -> None:
    assert moved(small_dense(**changes), options) == pytest.approx(DENSE + more)


def test_what_a_backward_pass_alone_moves() -> None:
    """Around a flash kernel 14 bytes a query's feature; where products of one input are apart 6 of each sum."""
    for options, expected in (
        ({}, 14 * 64),
        ({"flash_attention": "false"}, 0),
        ({"fused_projections": "false"}, 14 * 64 + (2 + 1) * 6 * 64),
    ):
        scenario = scenario_of(small_dense(), options=options, seq_length=32, global_batch_size=16, coefficients=ROUND)
        kind = scenario.model.layer_kinds[0]
        work = layer_work(conditions_of(scenario), kind)
        assert sum(work.moved_backward.values()) == expected
        layer = layer_seconds(pricing(scenario), kind)
        more = only(layer.backward["memory_bound"]) - 2 * only(layer.forward["memory_bound"])
        assert more == pytest.approx(32 * expected / 1675e9)


@pytest.mark.parametrize(
    ("changes", "options", "more"),
    [
        ({}, {}, 0),
        ({"shared_expert_gate": True}, {}, 2 * 2 * 64),
        # Product and sum in fp32, joined and cast, for each output of two copies; backward as many as forward.
        ({"mlp_bias": True}, {}, 2 * 28 * 64 * 2 / 3),
        # Of each token one copy arrives and is ordered into two; backward as many as forward.
        ({}, {"expert_dispatch": "deepep"}, 2 * 2 / 3 * 2 * 64 * (2 + 1) - 10 * 2 * 64),
        ({}, {"fused_swiglu": "false"}, 4 * 3 * 48),
    ],
)
def test_a_layer_with_experts(changes: dict[str, Any], options: dict[str, str], more: float) -> None:
    assert moved(small_moe(**changes), options) == pytest.approx(MOE + more)


def test_fp8_casts_the_inputs_of_products() -> None:
    """Read in 16 bits, written twice in 8: two norm outputs, the mixer's output, what goes into the last product."""
    for changes, width in (({}, 64), (DELTA, 96)):
        model = small_dense(**changes)
        assert moved(model, {}, **FP8) - moved(model, {}) == 4 * (2 * 64 + width + 160)
    # Each of two copies instead of the second norm's output, once for both passes; what goes into each last product.
    model = small_moe()
    copies = 2 * (2 / 3 * 64 + 48)
    assert moved(model, {}, **FP8) - moved(model, {}) == pytest.approx(4 * (64 + 64 + copies + 48))
