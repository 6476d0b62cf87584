"""Bytes of one number of each kind under every precision and switch that decides them."""

from typing import Any

import pytest

from simulator.cost import dtypes
from simulator.cost.operations.record import Conditions
from simulator.question.frameworks.stacks import framework
from tests.scenario.cases import small_dense


def conditions_with(precision: str, **options: str) -> Conditions:
    return Conditions(small_dense(), framework("megatron", options), precision)


@pytest.mark.parametrize(
    ("precision", "options", "expected"),
    [
        # An activation, a stored parameter's type, a gradient, the optimizer's own copy, and that with two moments.
        ("bf16", {}, (2, "bf16", 4, 4, 12)),
        ("fp16", {}, (2, "bf16", 4, 4, 12)),
        ("fp8", {}, (2, "bf16", 4, 4, 12)),
        ("bf16", {"parameter_dtype": "fp32"}, (2, "fp32", 4, 0, 8)),
        ("bf16", {"gradient_dtype": "bf16"}, (2, "bf16", 2, 4, 12)),
        ("bf16", {"master_weights": "false"}, (2, "bf16", 4, 0, 8)),
        ("bf16", {"optimizer_dtype": "bf16"}, (2, "bf16", 4, 4, 8)),
        ("bf16", {"master_weight_dtype": "bf16"}, (2, "bf16", 4, 2, 10)),
        ("fp32", {}, (4, "fp32", 4, 0, 8)),
        # What is said of 16-bit training.
        ("fp32", {"gradient_dtype": "bf16", "parameter_dtype": "bf16", "master_weights": "true"}, (4, "fp32", 4, 0, 8)),
    ],
)
def test_16_and_32_bits(precision: str, options: dict[str, str], expected: tuple[Any, ...]) -> None:
    one = conditions_with(precision, **options)
    assert (
        dtypes.element_bytes(one),
        dtypes.parameter_dtype(one),
        dtypes.gradient_bytes(one),
        dtypes.master_bytes(one),
        dtypes.optimizer_bytes_per_parameter(one),
    ) == expected


@pytest.mark.parametrize(
    ("recipe", "inputs", "weights"),
    [
        ("delayed", 1, 2),
        ("tensorwise", 1, 2),
        # A scale of 4 bytes for every 128 inputs; blocks of 128 x 128 weights have next to none.
        ("blockwise", 1 + 4 / 128, 2),
        # One of a byte for every 32, in either direction.
        ("mxfp8", 1 + 1 / 32, 2 * (1 + 1 / 32)),
    ],
)
def test_8_bits_and_their_scales(recipe: str, inputs: float, weights: float) -> None:
    narrow = conditions_with("fp8", fp8_recipe=recipe)
    assert dtypes.narrow_element_bytes(narrow) == inputs
    assert dtypes.narrow_weight_bytes(narrow) == weights
    for other in (conditions_with("bf16", fp8_recipe=recipe), conditions_with("fp32", fp8_recipe=recipe)):
        assert dtypes.narrow_element_bytes(other) == dtypes.element_bytes(other)
        assert dtypes.narrow_weight_bytes(other) == 0
    assert dtypes.narrow_element_bytes(conditions_with("fp8", fp8_recipe=recipe, fp8_inputs="false")) == 2
    assert dtypes.narrow_weight_bytes(conditions_with("fp8", fp8_recipe=recipe, fp8_weight_cache="false")) == 0


@pytest.mark.parametrize(
    ("precision", "option", "recipe", "narrow"),
    [
        ("fp8", "true", "delayed", True),
        ("fp8", "true", "blockwise", True),
        ("fp8", "true", "mxfp8", False),
        ("fp8", "false", "delayed", False),
        ("bf16", "true", "delayed", False),
    ],
)
def test_weights_that_travel_in_8_bits(precision: str, option: str, recipe: str, narrow: bool) -> None:
    found = dtypes.gathered_narrow(conditions_with(precision, fp8_param_gather=option, fp8_recipe=recipe))
    assert found is narrow
