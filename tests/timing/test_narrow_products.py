"""Times that fp8 changes beside the layers' products: attention, output layer, gathered inputs; and adapters' FLOP."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.operations.sums import WeightTotals
from simulator.cost.timing.layers import (
    attention_share,
    layer_seconds,
    layers_are_captured,
    output_rate,
    passes_are_captured,
)
from simulator.cost.timing.products import ProductShape, product_flops, product_seconds
from tests.scenario.cases import ROUND, block, only, pricing, scenario_of, small_dense, small_moe

H100 = "h100-sxm-80g"
BF16, FP8 = 989.5e12, 1979e12
"""Dense peaks of the data sheet; products reach half of one, and a quarter of the other (`cases.ROUND`)."""


@pytest.mark.parametrize(
    ("hardware", "precision", "switch", "share"),
    [
        # Both passes of cuDNN at 8,192 tokens: 567 TFLOP/s in 16 and 511 in 8 bits on H200, 1,393 and 1,585 on GB200.
        (H100, "fp8", "true", 567 / 511),
        (H100, "fp8", "false", 1.0),
        (H100, "bf16", "true", 1.0),
        ("gb200-nvl72", "fp8", "true", 1393 / 1585),
        ("gb200-nvl72", "fp4", "true", 1393 / 1585),
        # No measurement was read.
        ("mi300x", "fp8", "true", 1.0),
    ],
)
def test_attention_in_8_bits(hardware: str, precision: Any, switch: str, share: float) -> None:
    scenario = scenario_of(small_dense(), hardware, precision=precision, options={"fp8_attention": switch})
    assert attention_share(scenario) == pytest.approx(share, rel=3e-3)


@pytest.mark.parametrize(
    ("precision", "switch", "rate"),
    [("fp8", "true", FP8 / 4), ("fp8", "false", BF16 / 2), ("bf16", "true", BF16 / 2)],
)
def test_the_output_layer_in_8_bits(precision: Any, switch: str, rate: float) -> None:
    options = {"fp8_output_layer": switch}
    scenario = scenario_of(small_dense(), H100, precision=precision, options=options, coefficients=ROUND)
    assert output_rate(scenario) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(
    ("graphs", "layers", "passes"),
    [("none", False, False), ("attention", False, False), ("layers", True, False), ("full_iteration", True, True)],
)
def test_what_a_graph_holds(graphs: str, layers: bool, passes: bool) -> None:
    scenario = scenario_of(small_dense(), options={"cuda_graphs": graphs})
    assert (layers_are_captured(scenario), passes_are_captured(scenario)) == (layers, passes)


@pytest.mark.parametrize(
    ("hardware", "precision", "narrow"), [(H100, "bf16", 1.0), (H100, "fp8", 0.5), ("b200-sxm", "fp4", 1.0)]
)
def test_gathered_inputs_are_as_narrow_as_products_read_them(hardware: str, precision: Any, narrow: float) -> None:
    """Two gathers of inputs forward, two of gradients' products backward; what is scattered is of 16 bits.

    TransformerEngine 0004dbd, pytorch/module/base.py, `initialize_ub`: fp8 alone. Links are so slow that no product
    hides what it takes.
    """
    values = replace(ROUND, time=replace(ROUND.time, link_efficiency=1e-4, tensor_exposed=0.25))
    options = {"tp_comm_overlap": "true", "overlap_tensor_gradients": "false"}
    given: dict[str, Any] = {"precision": precision, "coefficients": values, "seq_length": 512, "options": options}
    scenario = scenario_of(small_dense(), hardware, **given)
    here = Pricing(scenario, block(scenario, tensor_parallel=2, sequence_parallel=True))
    layer = layer_seconds(here, scenario.model.layer_kinds[0])
    link = scenario.hardware.links_of(scenario.devices)[0]
    each = 0.5 * 2 * 512 * 64 / (1e-4 * link.bandwidth_bytes_per_second) + link.latency_seconds
    both = (2 * narrow + 2) * each
    assert only(layer.forward["tensor_parallel"]) == pytest.approx(both, rel=2e-2)
    assert only(layer.backward["tensor_parallel"]) == pytest.approx(both, rel=2e-2)


def test_the_flop_of_a_device() -> None:
    """Of 32 tokens: what is cut over two ranks, what each has for its own tokens, two copies of each for experts."""
    scenario = scenario_of(small_moe(), devices=4, seq_length=32)
    here = pricing(scenario, tensor_parallel=2, sequence_parallel=True, expert_parallel=2, micro_batch_size=1)
    dense, routed = product_flops(here, WeightTotals(split=1000.0, replicated=100.0, routed=800.0))
    assert only(dense) == 2 * 32 * (1000 / 2 + 100 / 2)
    assert only(routed) == 2 * (16 * 2) * 800 / 8
    dense, routed = product_flops(here, WeightTotals(split=1000.0, replicated=100.0))
    assert (only(dense), only(routed)) == (2 * 32 * (1000 / 2 + 100 / 2), 0)


def test_frozen_products_have_no_gradient_of_their_weights() -> None:
    shape = ProductShape(np.array([64.0]), 128.0, 64.0)
    for rank, frozen in ((None, False), (8, True)):
        scenario = scenario_of(small_dense(), coefficients=ROUND, lora_rank=rank)
        assert np.all(product_seconds(scenario, 1e12, shape, 2.0, 2.0).weights == 0.0) == frozen
