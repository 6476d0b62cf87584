"""Rates of matrix products by shape, and of attention by kernel."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.timing.products import (
    ProductShape,
    attention_kernel,
    attention_rate,
    roofline,
    shape_factor,
    shaped_seconds,
    whole_tiles,
)
from simulator.question.coefficients import Coefficients, TimeCoefficients
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import Precision
from tests.scenario.cases import ROUND, load_hardware, only, scenario_of, small_dense

RATE = 700e12


def h100(**time: float) -> Scenario:
    waves = {"product_waves": 1.1, "product_split_seconds": 3.9e-6} | time
    return scenario_of("llama3.1-8b", coefficients=Coefficients(time=TimeCoefficients(**waves)))


def factor(scenario: Scenario, rows: float, outputs: float, depth: float) -> float:
    return float(np.atleast_1d(shape_factor(scenario, RATE)(np.array([rows * outputs]), np.array([depth])))[0])


def test_a_large_product_has_its_flops_rate() -> None:
    assert factor(h100(), 65_536, 65_536, 65_536) == pytest.approx(1.0, abs=0.01)


def test_a_product_by_hand() -> None:
    # 132 processors of tiles of 32768 outputs, one and a tenth of each started beside those needed.
    at_once = 132 * 32_768
    started, piece = 1.1 * at_once, 3.9e-6 * RATE / (2 * at_once)
    # 2048 x 4096 outputs of depth 4096 are not split.
    assert math.sqrt(started * 4096 / (piece * 2048 * 4096)) < 3
    pieces = max(1.0, math.sqrt(started * 4096 / (piece * 2048 * 4096)))
    by_hand = (1 + piece * pieces / 4096) * (1 + started / (2048 * 4096 * pieces))
    assert factor(h100(), 2048, 4096, 4096) == pytest.approx(by_hand)


def test_few_outputs_are_split_along_the_depth() -> None:
    # Without a split the factor would be that of one piece.
    at_once = 132 * 32_768
    whole = (1 + 3.9e-6 * RATE / (2 * at_once) / 65_536) * (1 + 1.1 * at_once / (256 * 1024))
    assert 1.0 < factor(h100(), 256, 1024, 65_536) < whole / 2


@pytest.mark.parametrize(("rows", "outputs"), [(2048, 4096), (256, 64), (1, 1)])
def test_a_split_that_costs_nothing_fills_every_processor(rows: float, outputs: float) -> None:
    """However few its outputs are: as many pieces as fill all waves. Nothing is lost where nothing is started."""
    free = h100(product_waves=1.1, product_split_seconds=0.0)
    assert factor(free, rows, outputs, 4096) == pytest.approx(1.0, abs=2e-3)
    idle = h100(product_waves=0.0, product_split_seconds=3.9e-6)
    at_once = 132 * 32_768
    assert factor(idle, rows, outputs, 4096) == pytest.approx(1 + 3.9e-6 * RATE / (2 * at_once) / 4096)
    # A fitted coefficient below zero is none.
    for below in (h100(product_waves=-1.0, product_split_seconds=-1.0), h100(product_waves=0, product_split_seconds=0)):
        assert factor(below, rows, outputs, 4096) == 1.0


def test_smaller_products_are_never_relatively_faster() -> None:
    factors = [factor(h100(), rows, 4096, 4096) for rows in (256, 512, 1024, 4096, 16_384)]
    assert factors == sorted(factors, reverse=True)


def test_each_pass_has_its_own_shape() -> None:
    found = shaped_seconds(h100(), RATE, ProductShape(np.array([512.0]), 8192.0, 2048.0))
    flops = 2 * 512 * 8192 * 2048 / RATE
    for seconds, shape in ((found.forward, (512, 8192, 2048)), (found.inputs, (512, 2048, 8192))):
        assert float(seconds[0]) == pytest.approx(flops * factor(h100(), *shape))
    assert only(found.weights) == pytest.approx(flops * factor(h100(), 2048, 8192, 512))
    # Of eight at once, all fill the device together.
    several = shaped_seconds(h100(), RATE, ProductShape(np.array([512.0]), 8192.0, 2048.0, 8.0))
    assert only(several.forward) == pytest.approx(8 * flops * factor(h100(), 8 * 512, 8192, 2048))


@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "made"),
    [
        # A device computes the whole last tile (NVIDIA, Matrix Multiplication Background User's Guide, "Tile
        # Quantization"): GPT-OSS's 2,880 take 23 tiles of 128 outputs beside two of 256 tokens, 12 of 256 beside 128.
        (512.0, 2880.0, 2880.0, (512 * 2944, 512 * 2944, 2944 * 3072)),
        (128.0, 2880.0, 2880.0, (128 * 3072, 128 * 3072, 2944 * 3072)),
        (129.0, 256.0, 128.0, (256 * 256, 256 * 128, 128 * 256)),
        (1.0, 1.0, 1.0, (128 * 256, 128 * 256, 128 * 256)),
    ],
)
def test_a_product_computes_whole_tiles(
    rows: float, outputs: float, depth: float, made: tuple[float, float, float]
) -> None:
    found = shaped_seconds(h100(product_waves=0.0), RATE, ProductShape(np.array([rows]), outputs, depth))
    for seconds, tiled, summed in zip(found, made, (depth, outputs, rows), strict=True):
        assert only(seconds) == pytest.approx(2 * tiled * summed / RATE * factor(h100(product_waves=0.0), 1, 1, summed))
    # Without sides of a tile nothing is filled up.
    bare = h100(product_waves=0.0)
    bare = replace(bare, hardware=replace(bare.hardware, product_tile=None))
    exact = shaped_seconds(bare, RATE, ProductShape(np.array([rows]), outputs, depth))
    assert [only(seconds) for seconds in exact] == pytest.approx([2 * rows * outputs * depth / RATE] * 3)


def test_an_expert_s_last_tile_is_half_full() -> None:
    """Its tokens are a mean: 64 more than they are, of a tile of 128, however many."""
    for rows in (128.0, 200.0):
        shape = ProductShape(np.array([rows]), 256.0, 512.0, 4.0, uneven=True)
        found = shaped_seconds(h100(product_waves=0.0), RATE, shape)
        unit = 2 * 4 * 256 / RATE
        assert only(found.forward) == pytest.approx(
            unit * (rows + 64) * 512 * factor(h100(product_waves=0.0), 1, 1, 512)
        )


@pytest.mark.parametrize(
    ("device", "one", "two"),
    [
        # 128 x 256, 256 x 256; of an MI300X none is stated.
        ("h100-sxm-80g", 32_768, 65_536),
        ("ascend-910b-64g", 32_768, 65_536),
        ("b200-sxm", 65_536, 131_072),
        ("mi300x", 1, 257),
    ],
)
def test_a_device_s_tile(device: str, one: int, two: int) -> None:
    scenario = scenario_of("llama3.1-8b", device)
    assert (whole_tiles(scenario, 1.0, 1.0), whole_tiles(scenario, 1.0, 257.0)) == (one, two)
    assert whole_tiles(scenario, 257.0, 1.0) == two
    # A fraction that a division left is no further tile.
    assert whole_tiles(scenario, 128 * (1 + 1e-12), 1.0) == pytest.approx(max(one, 128) if device == "mi300x" else one)


@pytest.mark.parametrize(("sharpness", "together"), [(1.0, 7.0), (2.0, 5.0), (1e6, 4.0), (0.5, 7.0)])
def test_kernels_that_compute_and_move(sharpness: float, together: float) -> None:
    """Between the longer and both one after the other; an exponent below one is one."""
    scenario = h100(roofline_sharpness=sharpness)
    for compute, moves in ((3.0, 4.0), (4.0, 3.0)):
        assert only(roofline(scenario, np.array([compute]), np.array([moves]))) == pytest.approx(together)
    assert only(roofline(scenario, np.array([0.0]), np.array([0.0]))) < 1e-20


def test_no_shape_counts_where_the_processors_are_not_known() -> None:
    assert factor(scenario_of("llama3.1-8b", "mi300x"), 16, 16, 16) == 1.0


@pytest.mark.parametrize(
    ("kernel", "share"),
    [
        ("flash_1", 0.63 * 0.3),
        ("sdpa_flash", 0.63 * 0.35),
        ("sdpa", 0.6),
        ("flash_2", 0.63 * 0.5),
        ("flash_3", 0.6),
        ("ck", 0.4),
        ("aiter", 0.6),
        ("npu", 0.7),
    ],
)
def test_each_kernel_has_its_rate(kernel: str, share: float) -> None:
    rates = {
        "attention_efficiency": 0.5,
        "attention_efficiency_flash_1": 0.3,
        "attention_efficiency_sdpa": 0.35,
        "attention_efficiency_flash_3": 0.6,
        "attention_efficiency_ck": 0.4,
        "attention_efficiency_npu": 0.7,
    }
    scenario = replace(h100(**rates), hardware=load_hardware("h100-sxm-80g"))
    chosen = replace(scenario, framework=replace(scenario.framework, attention_kernel=kernel))
    assert attention_rate(chosen) == pytest.approx(989e12 * share)


def test_the_device_names_its_kernel_unless_the_stack_does() -> None:
    assert attention_kernel(scenario_of("llama3.1-8b", "a100-sxm-80g")) == "flash_2"
    for head_dim, kernel in ((128, "flash_3"), (256, "flash_3"), (264, "flash_2")):
        # TransformerEngine's kernels for Hopper end at heads of 256.
        assert attention_kernel(scenario_of(small_dense(head_dim=head_dim), "h100-sxm-80g")) == kernel
    ascend = scenario_of("llama3.1-8b", "ascend-910b-64g")
    assert attention_kernel(ascend) == "npu"
    assert (
        attention_kernel(replace(ascend, framework=replace(ascend.framework, attention_kernel="sdpa"))) == "sdpa_flash"
    )
    assert attention_kernel(scenario_of("llama3.1-8b", options={"flash_attention": "false"})) == "unfused"
    assert load_hardware("b200-sxm").attention_kernel == "flash_3"


@pytest.mark.parametrize(("head_dim", "precision"), [(64, "bf16"), (100, "bf16"), (100, "fp32")])
def test_heads_that_tensor_cores_do_not_load_run_on_the_units_for_fp32(head_dim: int, precision: Precision) -> None:
    def rate(head_dim: int, flash: str) -> float:
        options = {"flash_attention": flash, "attention_kernel": "flash_2"}
        model = small_dense(head_dim=head_dim)
        return attention_rate(scenario_of(model, options=options, precision=precision, coefficients=ROUND))

    # 100 numbers of 16 bits are no multiple of 16 bytes.
    fp32 = load_hardware("z2000").peak("fp32") * ROUND.time.attention_unaligned
    expected = fp32 if (head_dim, precision) == (100, "bf16") else rate(128, "false")
    assert rate(head_dim, "false") == pytest.approx(expected)
    assert rate(head_dim, "true") == rate(128, "true")


@pytest.mark.parametrize("missing", ["processors", "product_tile"])
def test_a_device_of_which_processors_or_tiles_are_not_known_runs_every_shape_alike(missing: str) -> None:
    scenario = h100()
    hardware = replace(scenario.hardware, **dict[str, Any]({missing: None}))
    assert shape_factor(replace(scenario, hardware=hardware), RATE)(np.array([64.0]), np.array([64.0])) == 1.0
