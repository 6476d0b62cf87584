"""What fp8 keeps of weights and inputs, and in how many bits weights are gathered."""

from typing import Any

import pytest

from simulator.cost.derived import Pricing
from simulator.question.scenario.block import block_of
from simulator.search.build import estimate_layout
from tests.memory.counted import layer_tensors
from tests.scenario.cases import layout_of, scenario_of

GIB = 2**30
LINEAR = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
"""Linear weights in the layers of Llama 3.1 8B."""


def estimated(options: dict[str, str], profile: str = "megatron", **layout: Any) -> Any:
    scenario = scenario_of(model="llama3.1-8b", profile=profile, devices=16, precision="fp8", options=options)
    return estimate_layout(scenario, layout_of(scenario, **layout))


def parameters(options: dict[str, str], **layout: Any) -> float:
    return float(estimated(options, **layout).memory.stages[0].parts_bytes["parameters"])


RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")


@pytest.mark.parametrize(("recipe", "copies"), list(zip(RECIPES, (2, 2, 2, 66 / 32), strict=True)))
def test_gathered_weights_stand_in_for_16_bit_ones(recipe: str, copies: float) -> None:
    """13.0 GiB less on 8B: two copies instead of two copies and a 16-bit weight."""
    table = 2 * 2 * 128256 * 4096 + 2 * (2 * 32 + 1) * 4096
    both = parameters({"fp8_recipe": recipe})
    assert both == LINEAR * (2 + copies) + table
    alone = parameters({"fp8_recipe": recipe, "fp8_param_gather": "true"})
    assert alone == LINEAR * copies + table
    assert (both - alone) / GIB == pytest.approx(13.0, abs=0.05)


@pytest.mark.parametrize(("recipe", "copies"), list(zip(RECIPES, (1, 1, 2, 66 / 32), strict=True)))
def test_products_of_any_layout_need_no_transpose_of_a_tensor_with_one_scale(recipe: str, copies: float) -> None:
    scenario = scenario_of(
        model="llama3.1-8b", hardware="b200-sxm", devices=8, precision="fp8", options={"fp8_recipe": recipe}
    )
    memory = estimate_layout(scenario, layout_of(scenario)).memory
    table = 2 * 2 * 128256 * 4096 + 2 * (2 * 32 + 1) * 4096
    assert memory.stages[0].parts_bytes["parameters"] == LINEAR * (2 + copies) + table


def test_without_copies_between_micro_batches_one_stays() -> None:
    options = {"fp8_weight_cache": "false", "fp8_param_gather": "true"}
    assert parameters({"fp8_weight_cache": "false"}) - parameters(options) == LINEAR
    table = 2 * 2 * 128256 * 4096 + 2 * (2 * 32 + 1) * 4096
    assert parameters({"fp8_weight_cache": "false"}) == LINEAR * 2 + table


@pytest.mark.parametrize(("recipe", "each"), list(zip(RECIPES, (1, 1, 33 / 32, 33 / 32), strict=True)))
def test_inputs_bring_the_scales_of_their_recipe(recipe: str, each: float) -> None:
    """fp32 for 128 numbers, or 8 bits for 32; torchao keeps 16-bit inputs and casts them again."""
    kept = {}
    for profile in ("megatron", "torch"):
        scenario = scenario_of(
            model="llama3.1-8b", profile=profile, devices=1, precision="fp8", options={"fp8_recipe": recipe}
        )
        block = block_of([layout_of(scenario)])
        kept[profile] = layer_tensors(Pricing(scenario, block), scenario.model.layer_kinds[0])
    assert float(kept["megatron"]["ffn_norm_output"][0]) == each * 8192 * 4096
    assert float(kept["torch"]["ffn_norm_output"][0]) == 2 * 8192 * 4096
    assert "attention_output_fp8" not in kept["torch"]


@pytest.mark.parametrize(("recipe", "narrow"), [("delayed", True), ("blockwise", True), ("mxfp8", False)])
def test_gathers_of_8_bits_are_shorter(recipe: str, narrow: bool) -> None:
    """mxfp8's weights are gathered in 16 bits and cast then."""
    seconds = []
    for gather in ("false", "true"):
        options = {"fp8_recipe": recipe, "fp8_param_gather": gather, "overlap_param_gather": "false"}
        seconds.append(estimated(options, zero_stage=1).throughput.parts_seconds["data_parallel"])
    assert (seconds[1] < seconds[0]) == narrow


def test_fsdp_gathers_layers_in_8_bits() -> None:
    """A layer in use and the next one coming in: half of their linear weights' bytes."""
    options = {"overlap_param_gather": "false"}
    more = options | {"fp8_param_gather": "true"}
    wide, slim = (estimated(one, "torch", zero_stage=3, recompute="full") for one in (options, more))
    assert slim.throughput.parts_seconds["data_parallel"] < wide.throughput.parts_seconds["data_parallel"]
    assert slim.memory.device_bytes <= wide.memory.device_bytes


def test_moments_of_8_bits() -> None:
    stages = (estimated({"optimizer_dtype": name}).memory.stages[0] for name in ("fp32", "fp8"))
    wide, narrow = (stage.parts_bytes["optimizer"] for stage in stages)
    assert narrow / wide == (4 + 2) / (4 + 8)


@pytest.mark.parametrize("groups", [1, 2, 4, 16])
def test_groups_that_shard_hold_replicas_of_the_state(groups: int) -> None:
    state = estimated({"sharding_replicas": str(groups)}, zero_stage=1).memory.stages[0].parts_bytes["optimizer"]
    alone = estimated({}, zero_stage=1).memory.stages[0].parts_bytes["optimizer"]
    assert state == pytest.approx(groups * alone)
    same = estimated({"sharding_degree": str(16 // groups)}, zero_stage=1)
    assert estimated({"sharding_replicas": str(groups)}, zero_stage=1).throughput == same.throughput
