"""Bytes of parameters, gradients and optimizer state: data types, ZeRO stages, fp8 caches, LoRA, offload."""

from typing import Any

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.dtypes import optimizer_bytes_per_parameter
from simulator.cost.memory.fully_shard import shards_by_unit
from simulator.cost.memory.peak import embedding_gradient_bytes, layer_gradient_bytes, memory_by_stage
from simulator.cost.memory.state import device_parameters, largest_state_tensor, linear_by_class, training_state
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import block, only, priced, pricing, scenario_of, small_dense, small_moe

# 4 layers of 43136, two tables of 64000, the last norm.
DENSE = 4 * 43_136 + 2 * 64_000 + 64
# One dense layer, three with experts (22144 beside them), tables, norm; and 3 x 73728 routed.
MOE, ROUTED = 43_136 + 3 * 22_144 + 128_064, 3 * 73_728


def state(scenario: Scenario, **fields: Any) -> tuple[float, float, float]:
    here = pricing(scenario, **fields)
    found = training_state(here)
    return only(found.parameters), only(found.gradients), only(found.optimizer)


@pytest.mark.parametrize(
    ("stage", "bytes_per_parameter"),
    [(0, (2, 4, 12)), (1, (2, 4, 12 / 8)), (2, (2, 4 / 8, 12 / 8)), (3, (2 / 8, 4 / 8, 12 / 8))],
)
def test_zero_stages_shard_one_after_another(stage: int, bytes_per_parameter: tuple[float, float, float]) -> None:
    found = state(scenario_of(small_dense()), zero_stage=stage)
    assert found == tuple(DENSE * per for per in bytes_per_parameter)


def test_gradients_of_16_bits_beside_those_of_fp32_are_whole() -> None:
    plain = state(scenario_of(small_dense()), zero_stage=1)
    copied = state(scenario_of(small_dense(), options={"gradient_copies": "true"}), zero_stage=1)
    assert copied == (plain[0], plain[1] + 2 * DENSE, plain[2])
    narrow = {"gradient_dtype": "bf16", "gradient_copies": "true"}
    assert state(scenario_of(small_dense(), options=narrow))[1] == 2 * DENSE


def test_the_shard_group_is_data_times_context_parallel() -> None:
    scenario = scenario_of(small_dense())
    eight = state(scenario, data_parallel=8)
    assert state(scenario, data_parallel=4, context_parallel=2) == eight
    assert state(scenario, data_parallel=2, context_parallel=4) == eight
    assert eight[2] == 12 * DENSE / 8


def test_experts_shard_over_their_own_replicas() -> None:
    # 8 ranks, expert parallel 4: two copies of each expert, eight of the rest.
    found = state(scenario_of(small_moe()), expert_parallel=4)
    assert found == (2 * (MOE + ROUTED / 4), 4 * (MOE + ROUTED / 4), 12 * (MOE / 8 + ROUTED / 4 / 2))
    _, _, optimizer = state(scenario_of(small_moe()), expert_parallel=8)
    assert optimizer == 12 * (MOE / 8 + ROUTED / 8)


@pytest.mark.parametrize(
    ("profile", "options", "expected"),
    [
        ("megatron", {}, (2, 4, 12)),
        ("megatron", {"gradient_dtype": "bf16"}, (2, 2, 12)),
        ("megatron", {"optimizer_dtype": "bf16"}, (2, 4, 8)),
        ("megatron", {"master_weights": "false"}, (2, 4, 8)),
        ("megatron", {"master_weight_dtype": "bf16"}, (2, 4, 10)),
        # Stored in fp32, computed with a 16-bit copy.
        ("megatron", {"parameter_dtype": "fp32"}, (6, 4, 8)),
        ("paddle", {}, (2, 6, 12)),
        ("torch", {}, (6, 4, 8)),
        ("torch", {"parameter_dtype": "bf16", "gradient_dtype": "bf16", "optimizer_dtype": "bf16"}, (2, 2, 4)),
        ("torch", {"parameter_dtype": "bf16", "master_weights": "true"}, (2, 4, 12)),
    ],
)
def test_data_types(profile: str, options: dict[str, str], expected: tuple[int, int, int]) -> None:
    scenario = scenario_of(small_dense(), profile=profile, options=options)
    assert state(scenario, zero_stage=0) == tuple(DENSE * per for per in expected)
    assert optimizer_bytes_per_parameter(scenario) == expected[2]


@pytest.mark.parametrize("profile", ["megatron", "paddle", "torch"])
def test_fp32_training_has_one_type_and_no_copies(profile: str) -> None:
    scenario = scenario_of(small_dense(), profile=profile, precision="fp32")
    assert state(scenario, zero_stage=0) == (4 * DENSE, 4 * DENSE, 8 * DENSE)
    # FSDP2 that keeps its gathered copy holds that beside its part.
    at_two = 4 / 8 + 4 if profile == "torch" else 4
    assert state(scenario, zero_stage=2) == (at_two * DENSE, 4 * DENSE / 8, 8 * DENSE / 8)
    assert state(scenario, zero_stage=3)[0] == 4 * DENSE / 8


def test_fp32_training_freezes_fp32_weights_and_gathers_fp32_layers() -> None:
    scenario = scenario_of(small_dense(), precision="fp32", lora_rank=8)
    parameters, gradients, optimizer = state(scenario, zero_stage=0)
    assert parameters == 4 * DENSE + gradients
    assert optimizer == 2 * gradients
    here = pricing(scenario_of(small_dense(), precision="fp32"), zero_stage=3)
    found = training_state(here)
    # Two gathered layers, one layer's gradients, the gathered table.
    assert only(found.gathered) == 2 * 43_136 * 4 + 43_136 * 4 + 64_000 * 4


def test_zero_shards_over_a_part_of_the_ranks() -> None:
    scenario = scenario_of(small_dense(), options={"sharding_degree": "2"})
    assert state(scenario, zero_stage=1)[2] == 12 * DENSE / 2
    assert state(scenario, zero_stage=0)[2] == 12 * DENSE
    assert state(scenario_of(small_dense(), options={"sharding_degree": "64"}), zero_stage=1)[2] == 12 * DENSE / 8
    # 8 ranks in two groups of 4; of the two copies of each expert each group has one.
    experts = scenario_of(small_moe(), options={"sharding_degree": "4"})
    assert state(experts, expert_parallel=4, zero_stage=1)[2] == 12 * (MOE / 4 + ROUTED / 4)
    here = block(scenario, zero_stage=1)
    assert only(largest_state_tensor(Pricing(scenario, here))) == 12 * 64_000 / 2


def test_routers_in_fp32() -> None:
    # Three layers with a router of 64 x 8: fp32 parameters and gradients, moments, no master copy.
    routers = 3 * 64 * 8
    plain = scenario_of(small_moe(), profile="paddle", options={"fp32_router": "false"})
    wide = scenario_of(small_moe(), profile="paddle")
    before, after = (state(scenario, zero_stage=0) for scenario in (plain, wide))
    assert after == (before[0] + 2 * routers, before[1] + 2 * routers, before[2] - 4 * routers)
    assert state(wide, zero_stage=1)[2] == state(plain, zero_stage=1)[2] - 4 * routers / 8
    options = {"fp32_router": "false"}
    frozen = state(scenario_of(small_moe(), profile="paddle", lora_rank=8))
    narrow = state(scenario_of(small_moe(), profile="paddle", lora_rank=8, options=options))
    assert frozen == (narrow[0] + 2 * routers, *narrow[1:])


def test_parameters_on_the_host_leave_the_gathered_layers() -> None:
    scenario = scenario_of(small_dense(), options={"offload_parameters": "true"})
    here = pricing(scenario, zero_stage=3)
    found = training_state(here)
    assert only(found.parameters) == 0
    assert only(found.parameters_on_host) == 2 * DENSE / 8
    assert only(found.gathered) == 2 * 43_136 * 2 + 43_136 * 4 + 64_000 * 2


@pytest.mark.parametrize(
    ("profile", "offload", "in_step"),
    [("paddle", "optimizer", 12.0), ("megatron", "optimizer", 6.0), ("megatron", "optimizer_tensorwise", 6.0)],
)
def test_a_part_of_the_optimizer_on_the_host(profile: str, offload: str, in_step: float) -> None:
    scenario = scenario_of(small_dense(), profile=profile, options={"offload_fraction": "0.5"})
    here = pricing(scenario, offload=offload, zero_stage=0)
    passes, step = (memory_by_stage(here).moments[i] for i in (0, 3))
    assert only(passes.resident) == 6 * DENSE
    # Tensor by tensor the largest one comes back: the table.
    largest = 12 * 64_000 if in_step < 12.0 else 0
    assert only(step.resident) == in_step * DENSE + largest


def test_fp32_parameters_by_zero_stage() -> None:
    scenario = scenario_of(small_dense(), profile="torch")
    stored = [state(scenario, zero_stage=stage)[0] / DENSE for stage in range(4)]
    # Whole and its 16-bit copy; from 1 on an eighth, below 3 beside the gathered copy.
    assert stored == [6, 4 / 8 + 2, 4 / 8 + 2, 4 / 8]
    # Cast by autocast they are sharded from 2 on.
    scenario = scenario_of(small_dense(), profile="torch", options={"fully_shard": "false"})
    assert [state(scenario, zero_stage=stage)[0] / DENSE for stage in range(4)] == [6, 6, 4 / 8 + 2, 4 / 8]


def test_units_are_sharded_where_all_weights_train_in_fp32() -> None:
    assert shards_by_unit(scenario_of(small_dense(), profile="torch"))
    assert not shards_by_unit(scenario_of(small_dense(), profile="torch", lora_rank=8))
    for options in ({"parameter_dtype": "bf16"}, {"fully_shard": "false"}):
        assert not shards_by_unit(scenario_of(small_dense(), profile="torch", options=options))
    assert not shards_by_unit(scenario_of(small_dense()))


def test_fp8_adds_two_bytes_per_linear_parameter() -> None:
    bf16, fp8 = scenario_of(small_moe()), scenario_of(small_moe(), precision="fp8")
    here = pricing(fp8)
    # One dense layer 43008; three layers of attention, shared expert, router, experts.
    linear = 43_008 + 3 * (21_504 + 512 + 73_728)
    assert only(sum(linear_by_class(here))) == linear
    assert state(fp8)[0] - state(bf16)[0] == 2 * linear
    without = scenario_of(small_moe(), precision="fp8", options={"fp8_weight_cache": "false"})
    assert state(without) == state(bf16)


def test_adapters_are_all_that_trains() -> None:
    scenario = scenario_of(small_dense(), lora_rank=4)
    # r (inputs + outputs): q, k and v together 64 + 128, o 128, gate and up together 64 + 320, down 224 = 928 a layer.
    adapters = 4 * 4 * 928
    assert state(scenario, zero_stage=0) == (2 * DENSE + 2 * adapters, 4 * adapters, 12 * adapters)
    here = pricing(scenario, tensor_parallel=2)
    cut = device_parameters(here, "adapters")
    # Column weights split their outputs' side (q 64, k 32, v 32, gate 160, up 160), row weights their inputs' (o 64,
    # down 160): 672 in halves, the other 256 whole.
    assert only(cut.dense) == 4 * 4 * (672 / 2 + 256)


def test_adapters_on_every_expert() -> None:
    here = pricing(scenario_of(small_moe(), lora_rank=4), expert_parallel=4)
    found = device_parameters(here, "adapters")
    # Gate and up share an adapter.
    assert only(found.routed) == 3 * 4 * (64 + 2 * 48 + 48 + 64) * 8 / 4


def test_foreach_holds_one_parameter_sized_temporary_in_the_step() -> None:
    for value, per in (("true", 4), ("false", 0)):
        scenario = scenario_of(small_dense(), options={"foreach_optimizer": value})
        here = pricing(scenario, zero_stage=0)
        assert only(training_state(here).step_temporary) == per * DENSE


def test_zero_3_gathers_two_layers_and_a_table_and_zero_2_one_layer_of_gradients() -> None:
    scenario = scenario_of(small_dense())
    for stage, gathered in ((1, 0), (2, 4 * 43_136), (3, 4 * 43_136 + 2 * 2 * 43_136 + 2 * 64_000)):
        here = pricing(scenario, zero_stage=stage)
        assert only(training_state(here).gathered) == gathered


def test_offloaded_state_is_gone_between_steps() -> None:
    scenario = scenario_of("llama3.1-8b")
    for offload in ("optimizer", "optimizer_tensorwise"):
        kept = priced(scenario, pipeline_parallel=2).memory
        moved = priced(scenario, pipeline_parallel=2, offload=offload).memory
        state_bytes = kept.state.optimizer[kept.contents.kind]
        assert (kept.allocated - moved.allocated == state_bytes).all()


def test_the_step_brings_the_whole_state_back_or_one_tensor_of_it() -> None:
    # A single device with a short sequence: the peak is the step. Paddle alone brings the state back.
    fields: dict[str, Any] = {"devices": 1, "seq_length": 128, "global_batch_size": 1}
    options = {"gradient_dtype": "fp32", "master_gradients": "false"}
    scenario = scenario_of("llama3.1-8b", profile="paddle", options=options, **fields)
    for profile in ("megatron", "torch"):
        other = scenario_of("llama3.1-8b", profile=profile, **fields)
        found = [memory_by_stage(pricing(other, offload=f"optimizer{word}")).allocated for word in ("", "_tensorwise")]
        assert (found[0] == found[1]).all()
    total = 8_030_261_248
    sizes = {}
    for offload in ("none", "optimizer", "optimizer_tensorwise"):
        here = pricing(scenario, offload=offload)
        sizes[offload] = only(memory_by_stage(here).allocated)
    assert sizes["optimizer"] == 18 * total
    assert sizes["optimizer_tensorwise"] < 6 * total + 12 * 1.2 * 128_256 * 4096
    assert sizes["none"] > sizes["optimizer"] > sizes["optimizer_tensorwise"]
    # The largest tensor of Llama-8B is the table.
    assert only(largest_state_tensor(pricing(scenario))) == 12 * 128_256 * 4096
    assert only(largest_state_tensor(pricing(scenario, zero_stage=0, tensor_parallel=4, data_parallel=1))) == (
        12 * 128_256 * 4096 / 4
    )


def test_the_embedding_s_gradient_is_a_temporary() -> None:
    scenario = scenario_of("llama3.1-8b")
    assert only(embedding_gradient_bytes(pricing(scenario, tensor_parallel=4))) == 2 * 128_256 * 4096 / 4
    torch = scenario_of("llama3.1-8b", profile="torch")
    assert only(embedding_gradient_bytes(pricing(torch))) == 4 * 128_256 * 4096
    frozen = scenario_of("llama3.1-8b", lora_rank=8)
    assert only(embedding_gradient_bytes(pricing(frozen))) == 0


def test_gradients_inside_a_layer() -> None:
    # T 64 tokens, f 160: gate and up 4 f = 640, the incoming gradient 2 h = 128; gathered input 2 h more.
    scenario = scenario_of(small_dense(), seq_length=64)
    assert only(layer_gradient_bytes(pricing(scenario))) == 64 * (640 + 128)
    assert only(layer_gradient_bytes(pricing(scenario, tensor_parallel=2))) == 64 * (320 + 128)
    split = block(scenario, tensor_parallel=2, sequence_parallel=True)
    assert only(layer_gradient_bytes(Pricing(scenario, split))) == 64 * (320 + 256)
    # Two copies a token, gate and up 4 x 48 and their input and output 2 x 2 h: 2 x (192 + 256) is more than 640.
    moe = scenario_of(small_moe(), seq_length=64)
    assert only(layer_gradient_bytes(pricing(moe))) == 64 * (2 * (192 + 256) + 128)
