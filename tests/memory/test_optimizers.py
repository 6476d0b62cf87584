"""Optimizers as data: state by class of tensor, what is gathered for a step, the step's time, refusals."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.cost.derived import pricing_of
from simulator.cost.memory.host import host_memory
from simulator.cost.memory.peak import memory_by_stage
from simulator.cost.memory.state import (
    gathered_bytes,
    largest_matrix,
    optimizer_on_device,
    orthogonal_bytes,
    orthogonal_flops,
    orthogonal_step,
    resident_optimizer,
    training_state,
)
from simulator.cost.operations.sums import total_parameters
from simulator.errors import InputError
from simulator.question.specs import optimizers
from simulator.question.specs.model import ModelSpec
from simulator.question.units import GIB
from simulator.question.vocabulary import OPTIMIZERS
from tests.scenario.cases import layout_of, only, scenario_of, small_moe

# Megatron-LM 4dd8555, tests/functional_tests/test_cases/moe/gpt3_moe_mcore_te_ep8_resume_torch_dist_*: 12 layers of
# 512, 8 experts of 1024 on as many ranks, 50,304 tokens of a tied table, 1024 learned positions.
CI_MODEL = ModelSpec(
    name="gpt3-moe-ci",
    architecture="gpt2",
    num_hidden_layers=12,
    hidden_size=512,
    intermediate_size=1024,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=64,
    vocab_size=50304,
    tie_word_embeddings=True,
    gated=False,
    activation="gelu",
    norm="layer_norm",
    rotary=False,
    learned_positions=1024,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=1024,
)
MATRICES = 12 * (3 * 512 * 512 + 512 * 512 + 512 * 8)
EXPERTS = 12 * 2 * 512 * 1024
TABLES = (50304 + 1024) * 512


def state(optimizer: str, zero_stage: int = 1, **options: str) -> float:
    """Bytes of optimizer state on a rank of the public test."""
    chosen = {"optimizer": optimizer, **options}
    scenario = scenario_of(CI_MODEL, global_batch_size=32, seq_length=1024, options=chosen)
    layout = layout_of(scenario, expert_parallel=8, zero_stage=zero_stage)
    return float(training_state(pricing_of(scenario, layout)).optimizer[0, 0])


# Two norms a layer and the last one, each of weight and bias.
VECTORS = (12 * 2 + 1) * 2 * 512


def test_muons_public_examples_to_the_byte() -> None:
    # Without the distributed optimizer all of it is on every rank, with it what is no expert is on one of eight.
    adam = TABLES + VECTORS
    assert state("muon", zero_stage=0) == (MATRICES + EXPERTS) * 8 + adam * 12
    assert state("muon") == MATRICES / 8 * 8 + EXPERTS * 8 + adam / 8 * 12
    assert state("adamw") == (MATRICES + adam) / 8 * 12 + EXPERTS * 12


def test_muons_public_examples_differ_from_adam_as_measured() -> None:
    # golden_values_dev_dgx_h100.json, mem-allocated-bytes: of ..._dist_muon and of ..._dist_dist_optimizer. What else
    # is allocated is alike.
    measured = 1096610816.0 - 788147200.0
    assert state("muon", zero_stage=0) - state("adamw") == pytest.approx(measured, rel=0.005)


def test_without_a_layout_one_rank_of_muon_has_the_whole_table() -> None:
    # Megatron-LM d98e8a6, core/optimizer/layer_wise_optimizer.py, `_shard_params_ping_pong`; the same test with
    # --no-use-layer-wise-param-layout (..._dist_muon) and without (..._dist_muon_param_layout), mem-allocated-bytes.
    whole = state("muon", whole_table_state="true") - state("muon")
    assert whole == TABLES * 12 * 7 / 8
    assert whole == pytest.approx(994082304.0 - 742175488.0, rel=0.1)
    assert state("adamw", whole_table_state="true") == state("adamw")


def test_the_trainer_keeps_an_embedding_in_32_bits() -> None:
    """transformers 4.57.1, trainer.py, `create_optimizer`: `register_module_override(module, "weight", 32 bits)`."""
    table, all_of_them = 128256 * 4096, total_parameters(scenario_of(model="llama3.1-8b").model)
    for zero_stage, wide in ((0, table), (3, 0)):
        found = simulator.estimate(
            model="llama3.1-8b",
            hardware="h200-sxm-141g",
            devices=1 if zero_stage == 0 else 8,
            stack="transformers",
            optimizer="adamw_8bit",
            zero_stage=zero_stage,
            seq_length=512,
            global_batch_size=8,
            options={"parameter_dtype": "bf16"},
        )
        ranks = 1 if zero_stage == 0 else 8
        state = found.memory.parts_bytes["optimizer"]
        assert state == pytest.approx(((all_of_them - wide) * 2.03125 + wide * 8) / ranks)


def test_without_zero_every_rank_holds_every_matrix() -> None:
    scenario = scenario_of(model="llama3.1-8b", devices=256, options={"optimizer": "muon"})
    layout = layout_of(scenario, pipeline_parallel=32, data_parallel=8, zero_stage=0)
    middle = float(training_state(pricing_of(scenario, layout)).optimizer[1, 0])
    assert middle == 8 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336) + 12 * 2 * 4096


def test_a_rank_that_has_one_matrix_holds_it_whole() -> None:
    # 8 replicas share the 7 matrices of a layer of its own: the largest is more than an eighth of them.
    scenario = scenario_of(model="llama3.1-8b", devices=256, options={"optimizer": "muon"})
    layout = layout_of(scenario, pipeline_parallel=32, data_parallel=8)
    pricing = pricing_of(scenario, layout)
    middle = float(training_state(pricing).optimizer[1, 0])
    assert middle == pytest.approx(8 * 2 * 4096 * 14336 + 12 * 2 * 4096 / 8, rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [
        ("adamw", 8.0),
        ("adamw_8bit", 2.03125),
        ("lion", 4.0),
        ("lion_8bit", 1.015625),
        ("adamw_torch_8bit", 2.03125),
        ("adamw_4bit", 1.03125),
        ("sgd_momentum", 4.0),
        ("sgd", 0.0),
    ],
)
def test_state_of_every_parameter(optimizer: str, bytes_per_parameter: float) -> None:
    scenario = scenario_of(model="llama3.1-8b", devices=8, profile="torch", options={"optimizer": optimizer})
    pricing = pricing_of(scenario, layout_of(scenario))
    assert float(training_state(pricing).optimizer[0, 0]) == total_parameters(scenario.model) / 8 * bytes_per_parameter


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"), [("paged_adamw", 8.0), ("paged_adamw_8bit", 2.03125), ("paged_lion", 4.0)]
)
def test_paged_state_is_on_the_host(optimizer: str, bytes_per_parameter: float) -> None:
    """bitsandbytes: what the device lacks room for; a tensor's at a time comes back."""
    scenario = scenario_of(model="llama3.1-8b", devices=8, profile="torch", options={"optimizer": optimizer})
    pricing = pricing_of(scenario, layout_of(scenario))
    memory = memory_by_stage(pricing)
    away = total_parameters(scenario.model) / 8 * bytes_per_parameter
    assert host_memory(pricing, memory).parts["optimizer"][0] == 8 * away
    resident, in_step = optimizer_on_device(pricing, memory.state.optimizer)
    assert (only(resident), only(in_step)) == (0.0, 128256 * 4096 / 8 * bytes_per_parameter)


@pytest.mark.parametrize(
    ("rank", "resident"), [(8, "all but gate, up and down"), (32, "keys and values"), (128, "none")]
)
def test_small_adapters_stay_on_the_device(rank: int, resident: str) -> None:
    """bitsandbytes 0.50, `get_state_buffer`: tensors of under 100,000 numbers are not paged."""
    options = {"optimizer": "paged_adamw", "adapter_targets": "all", "fully_shard": "false"}
    scenario = replace(scenario_of(model="llama3.1-8b", devices=1, profile="torch", options=options), lora_rank=rank)
    pricing = pricing_of(scenario, layout_of(scenario, zero_stage=0))
    optimizer = training_state(pricing).optimizer
    sides = [4096, 4096, 4096, 1024, 4096, 1024, 4096, 4096, *(4096, 14336, 4096, 14336, 14336, 4096)]
    small = sum(rank * side for side in sides if rank * side < 100_000)
    assert only(resident_optimizer(pricing, optimizer)) == 8 * 32 * small, resident


@pytest.mark.parametrize(
    ("optimizer", "each"), [("adamw", 4.0), ("adamw_8bit", 0.0), ("lion", 0.0), ("sgd", 0.0), ("adafactor", None)]
)
def test_numbers_that_a_step_makes(optimizer: str, each: float | None) -> None:
    """Of all parameters at once; Adafactor of its largest tensor, the table."""
    options = {"optimizer": optimizer, "parameter_dtype": "bf16", "foreach_optimizer": "true"}
    scenario = scenario_of(model="llama3.1-8b", devices=1, profile="torch", options=options)
    found = only(training_state(pricing_of(scenario, layout_of(scenario, zero_stage=0))).step_temporary)
    assert found == (16 * 128256 * 4096 if each is None else each * total_parameters(scenario.model))


@pytest.mark.parametrize(("parameters", "numbers"), [("fp32", 2), ("bf16", 4)])
def test_adafactor_steps_tensor_by_tensor(parameters: str, numbers: int) -> None:
    """Traced of transformers 5.24: the update and its square; a gradient and a weight of 16 bits are cast before."""
    options = {"optimizer": "adafactor", "parameter_dtype": parameters, "foreach_optimizer": "false"}
    scenario = scenario_of(model="llama3.1-8b", devices=1, profile="torch", options=options)
    found = only(training_state(pricing_of(scenario, layout_of(scenario, zero_stage=0))).step_temporary)
    assert found == 4 * numbers * 128256 * 4096


def test_a_step_within_the_backward_pass() -> None:
    """Llama-2-7B in bf16 with paged 8-bit Adam: a layer's gradients; none at the loss."""
    options = {"optimizer": "paged_adamw_8bit", "parameter_dtype": "bf16", "gradient_dtype": "bf16"}
    options |= {"step_in_backward": "true", "master_weights": "false"}
    scenario = scenario_of(model="llama-2-7b", devices=1, profile="torch", options=options, seq_length=2048)
    memory = memory_by_stage(pricing_of(scenario, layout_of(scenario, zero_stage=0, recompute="full")))
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert only(memory.state.gradients) == 2 * layer
    absent = {moment.name: np.max(moment.gradients_absent) for moment in memory.moments}
    assert absent == {"backward": 0.0, "loss": 2 * layer, "embedding gradient": 2 * layer, "optimizer step": 0.0}
    assert only(memory.after_step) == pytest.approx(2 * total_parameters(scenario.model))


def test_adafactor_keeps_rows_and_columns() -> None:
    scenario = scenario_of(model="llama3.1-8b", devices=8, profile="torch", options={"optimizer": "adafactor"})
    found = float(training_state(pricing_of(scenario, layout_of(scenario))).optimizer[0, 0])
    layer = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    sides = 32 * layer + 2 * (4096 + 128256)
    assert found == 4 * (sides + 65 * 4096) / 8
    options = {"optimizer": "adafactor", "fully_shard": "false"}
    scenario = scenario_of(model="llama3.1-8b", devices=8, profile="torch", options=options)
    # DeepSpeed v0.19.5, runtime/zero/stage_1_and_2.py: a group's parameters are one vector, with a whole moment.
    every = total_parameters(scenario.model)
    for zero_stage, expected in ((0, sides + 65 * 4096), (1, every / 8), (2, every / 8)):
        pricing = pricing_of(scenario, layout_of(scenario, zero_stage=zero_stage))
        assert float(training_state(pricing).optimizer[0, 0]) == pytest.approx(4 * expected)


def test_what_muon_gathers_of_matrices_in_equal_parts() -> None:
    # InternLM/xtuner pull request 2069: GLM-5.2's down projections of 256 experts, 12 left over of 76 on 64 ranks,
    # a buffer and its flattened copy of 72 GiB each.
    sizes: dict[str, Any] = {
        "num_hidden_layers": 76,
        "hidden_size": 6144,
        "moe_intermediate_size": 2048,
        "num_experts": 256,
    }
    model = replace(CI_MODEL, **dict[str, Any](sizes))
    scenario = scenario_of(model=model, devices=64, seq_length=1024, profile="torch", options={"optimizer": "muon"})
    pricing = pricing_of(scenario, layout_of(scenario, zero_stage=3))
    assert float(gathered_bytes(pricing, pricing.block.replicas)[0, 0]) == (72 + 72) * GIB


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_flops_of_newton_schulz_by_hand(tensor: int) -> None:
    """Of a rank's part: rows of what leads back into the model, columns of what leads out of it."""
    scenario = scenario_of(model="llama3.1-8b", options={"optimizer": "muon"})
    pricing = pricing_of(scenario, layout_of(scenario, tensor_parallel=tensor))

    def iteration_flops(*sides: float) -> float:
        short, long = sorted(sides)
        return 5 * (4 * short**2 * long + 2 * short**3)

    attention = (
        iteration_flops(4096, 4096 / tensor)
        + 2 * iteration_flops(4096, 1024 / tensor)
        + iteration_flops(4096 / tensor, 4096)
    )
    network = iteration_flops(4096, 2 * 14336 / tensor) + iteration_flops(14336 / tensor, 4096)
    assert float(orthogonal_flops(pricing, scenario.model.layer_kinds[0]).dense[0]) == attention + network
    assert float(largest_matrix(pricing).dense[0]) == 4096 * 2 * 14336 / tensor
    largest = 3 * 4096 * 2 * 14336 / tensor + 2 * min(4096, 2 * 14336 / tensor) ** 2
    assert float(orthogonal_bytes(pricing)[0]) == 4 * largest


def test_newton_schulz_takes_each_expert_of_a_rank() -> None:
    """Of 8 experts 4 on a rank, whole under tensor parallel 2: 64 x 96 and 48 x 64."""
    scenario = scenario_of(model=small_moe(), options={"optimizer": "muon"})
    pricing = pricing_of(scenario, layout_of(scenario, tensor_parallel=2, expert_parallel=2))
    each = 5 * (4 * 64**2 * 96 + 2 * 64**3 + 4 * 48**2 * 64 + 2 * 48**3)
    assert orthogonal_flops(pricing, scenario.model.layer_kinds[-1]).routed.tolist() == [4 * each]


def test_an_optimizer_that_a_framework_lacks_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^optimizer adafactor: framework megatron has adamw, sgd_momentum, lion, muon$"
    ):
        simulator.estimate(model="llama3.1-8b", devices=8, optimizer="adafactor")
    with pytest.raises(InputError, match=r"^optimizer: given as 'muon' and, among the switches, as 'lion'$"):
        simulator.estimate(model="llama3.1-8b", optimizer="muon", options={"optimizer": "lion"})


def test_the_table_has_every_word_once() -> None:
    assert tuple(optimizers.OPTIMIZERS) == OPTIMIZERS
    words = [word for each in optimizers.OPTIMIZERS.values() for word in each.words]
    assert len(words) == len(set(words))
    with Path(optimizers.__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as stream:
        assert all(row["source"] for row in csv.DictReader(stream))


def test_what_muon_s_step_holds_under_fsdp_2_by_zero_stage() -> None:
    """One matrix at a time in fp32, three times and its short side squared twice; from ZeRO 1 on others' parts too."""
    scenario = scenario_of(model=small_moe(), profile="torch", options={"optimizer": "muon"})
    found = []
    for stage in range(4):
        pricing = pricing_of(scenario, layout_of(scenario, zero_stage=stage))
        found.append((only(orthogonal_step(pricing)), only(gathered_bytes(pricing, np.array([8.0])))))
    # Gate and up of the dense layer, 64 x 320.
    alone = 4 * (3 * 64 * 320 + 2 * 64**2)
    assert [held for held, _ in found] == [alone, *[alone + gathered for _, gathered in found[1:]]]
    assert only(gathered_bytes(pricing_of(scenario, layout_of(scenario)), np.array([1.0]))) == 0
    # Of three layers' experts on eight ranks each layer's are left over: eight experts' gate and up in 16 bits, twice.
    assert found[1][1] == 2 * 2 * 3 * 8 * 64 * 96
    # Nobody orthogonalizes adapters, nor what another optimizer updates.
    for other in (replace(scenario, lora_rank=8), scenario_of(model=small_moe(), profile="torch")):
        assert orthogonal_step(pricing_of(other, layout_of(other))) == 0.0


def test_muon_s_step_adds_to_the_moment_of_the_step() -> None:
    """Of ZeRO 3 under FSDP 2 the step holds what other ranks' matrices and one matrix in fp32 take, on top."""
    model = small_moe()
    held = []
    for name in ("muon", "adamw"):
        options = {"optimizer": name, "foreach_optimizer": "false"}
        scenario = scenario_of(model=model, profile="torch", options=options)
        pricing = pricing_of(scenario, layout_of(scenario, zero_stage=3))
        moment = next(each for each in memory_by_stage(pricing).moments if each.name == "optimizer step")
        state = float(
            np.max(moment.total(pricing.contents) - pricing.contents.on_ranks(moment.resident + np.zeros((1, 1))))
        )
        held.append((state, only(orthogonal_step(pricing))))
    (muon, step), (adam, _) = held
    assert muon - adam == step > 0


def test_a_rank_gathers_matrices_that_it_has() -> None:
    """Of two ranks the first has dense layers alone, the second experts: eight of each layer, in 16 bits and twice."""
    model = small_moe(first_k_dense_replace=2, num_shared_experts=0)
    scenario = scenario_of(model=model, devices=16, profile="torch", options={"optimizer": "muon"})
    pricing = pricing_of(scenario, layout_of(scenario, pipeline_parallel=2))
    first, last = gathered_bytes(pricing, np.array([8.0]))[:, 0]
    assert first == 2 * 2 * 2 * 64 * 320  # gate and up of two layers
    assert last == 2 * 2 * 2 * 8 * 64 * 96
