"""Products over a frozen base of 8 bits: bitsandbytes 0.50, autograd/_functions.py and backends/cuda/ops.py."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import pricing_of
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import layer_work
from simulator.cost.timing.products import dequantised_seconds, gemm_rate, memory_rate, product_passes
from simulator.question.frameworks.stacks import framework
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware, load_model
from tests.scenario.cases import layout_of

TOKENS, HIDDEN, INNER, SHARED = 2048.0, 4096.0, 14336.0, 1024.0
NUMBERS = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * SHARED + 3 * HIDDEN * INNER
ENTERING, LEAVING = TOKENS * (6 * HIDDEN + INNER), TOKENS * (3 * HIDDEN + 2 * SHARED + 2 * INNER)


def asked(hardware: str = "a100-sxm-80g", precision: Any = "bf16", **options: str) -> Any:
    switches = {"quantised_base": "true", "widened_rest": "false", "fused_projections": "false", **options}
    scenario = Scenario(
        model=load_model("llama3.1-8b"),
        hardware=load_hardware(hardware),
        framework=framework("torch", switches, "peft"),
        devices=1,
        seq_length=2048,
        global_batch_size=1,
        precision=precision,
        lora_rank=8,
    )
    pricing = pricing_of(scenario, layout_of(scenario))
    return pricing, layer_work(conditions_of(scenario), scenario.model.layer_kinds[0])


@pytest.mark.parametrize(
    ("precision", "widened", "into", "out", "weight"),
    [
        # A number that enters: cast 4, absolute 4, compared 3, any of all and of columns 2, rows quantised 3.
        # One that leaves: 2 more as int32, scaled 6, cast 4, outliers added 4. A weight: cast 3, scaled 4.
        ("bf16", "false", 16, 16, 7),
        ("fp16", "false", 12, 12, 7),
        # Behind norms in fp32: cast 6; cast 6, outliers added 8; cast 5, scaled 8.
        ("bf16", "true", 18, 22, 13),
    ],
)
def test_bytes_around_integer_products(precision: str, widened: str, into: int, out: int, weight: int) -> None:
    pricing, work = asked(precision=precision, widened_rest=widened, quantised_bits="8")
    forward, backward = dequantised_seconds(pricing, work)
    rate = memory_rate(pricing.scenario)
    assert np.asarray(forward * rate) == pytest.approx(into * ENTERING + out * LEAVING)
    assert np.asarray(backward * rate) == pytest.approx(weight * NUMBERS)


def test_a_base_of_4_bits_is_written_in_both_passes() -> None:
    pricing, work = asked(quantised_scale_bytes="4")
    forward, backward = dequantised_seconds(pricing, work)
    assert forward == backward == pytest.approx((2.5 + 4 / 64) * NUMBERS / memory_rate(pricing.scenario))


@pytest.mark.parametrize(
    ("hardware", "precision", "times"),
    [("a100-sxm-80g", "bf16", 2.0), ("t4", "fp16", 2.0), ("mi250x", "bf16", 1.0), ("v100-sxm-32g", "fp16", 1 / 8)],
)
def test_integers_multiply_twice_as_fast_as_16_bits(hardware: str, precision: str, times: float) -> None:
    """A100 624 of 312, T4 130 of 65, MI250X 383 of 383; V100's fp32 15.7 of 125, which bitsandbytes takes there."""
    (wide, work), (narrow, _) = (asked(hardware, precision, quantised_bits=bits) for bits in ("4", "8"))
    largest = max(work.shapes, key=lambda each: each.inputs * each.outputs)
    before, after = product_passes(wide, largest), product_passes(narrow, largest)
    assert float(before.forward[0] / after.forward[0]) == pytest.approx(times, rel=0.25)
    assert float(before.inputs[0]) == float(after.inputs[0])


def test_behind_fp32_norms_the_backward_products_are_fp32() -> None:
    """The weight is widened to the type of the input: 19.5 TFLOP/s of 312 on A100."""
    (narrow, work), (wide, _) = (asked(quantised_bits="8", widened_rest=word) for word in ("false", "true"))
    largest = max(work.shapes, key=lambda each: each.inputs * each.outputs)
    slower = product_passes(wide, largest).inputs[0] / product_passes(narrow, largest).inputs[0]
    assert float(slower) == pytest.approx(gemm_rate(wide.scenario) / 19.5e12, rel=0.2)
