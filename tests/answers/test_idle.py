"""Settings without effect are named, whatever they are; what acts, or says the default, is not."""

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.answers.cases import case_of, priceable
from simulator.answers.idle import _figures, _is_met, without_effect
from simulator.errors import InputError
from simulator.question.frameworks.profile import acts_beside, switches
from simulator.question.question import question_of
from simulator.question.scenario.layout import BY_NAME
from simulator.question.specs.optimizers import OPTIMIZERS
from tests.cli.running import run
from tests.frameworks.test_switches import SETTINGS, other, priced

pytestmark = pytest.mark.usefixtures("closed_switches", "bare")
ONE: Any = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "devices": 1}
EIGHT: Any = ONE | {"devices": 8}
OFFLOADED = "--offload optimizer or --offload optimizer_tensorwise"


def idle(**question: Any) -> list[str]:
    return list(without_effect(priceable(case_of(question_of(question)))))


@pytest.mark.parametrize(
    ("question", "option", "lacks"),
    [
        (
            ONE | {"method": "lora", "stack": "transformers"},
            "cross_entropy_chunk_mib=16",
            "--option cross_entropy_chunk_tokens=...",
        ),
        (ONE | {"method": "lora", "stack": "trl"}, "quantised_scale_bytes=2", "--option quantised_base=true"),
        (ONE | {"method": "full", "stack": "trl"}, "adapter_targets=attention", "--lora-rank"),
        (ONE | {"method": "lora", "stack": "peft"}, "saved_modules_dtype=fp32", "--option saved_modules=..."),
        (EIGHT | {"stack": "deepspeed", "zero_stage": 1}, "prefetch_parameters=9", "--zero-stage 3"),
        (EIGHT | {"stack": "deepspeed", "zero_stage": 3}, "offload_fraction=0.5", OFFLOADED),
        (EIGHT, "overlap_p2p=false", "--pp"),
        (EIGHT, "expert_imbalance=2", "experts"),
        (EIGHT, "fp8_recipe=mxfp8", "--precision fp8"),
        (EIGHT | {"precision": "fp8"}, "fp4_recipe=mxfp4", "--precision fp4"),
        (EIGHT | {"context_parallel": 2}, "cp_inner_degree=2", "--option cp_communication=all_to_all_ring"),
        (EIGHT, "losses_in_turn=true", "--option mtp=true"),
    ],
)
def test_what_needs_another_setting_names_it(question: dict[str, Any], option: str, lacks: str) -> None:
    name, _, text = option.partition("=")
    assert idle(**question, options={name: text}) == [f"--option {option} has no effect without {lacks}"]


def test_a_layout_and_lengths_are_looked_at_too() -> None:
    tuned = ONE | {"method": "qlora", "stack": "torchtune", "recompute": "full"}
    assert idle(**tuned, zero_stage=2) == ["--zero-stage 2 has no effect on this model and layout"]
    packed = EIGHT | {"lengths": "p50=900,p90=3000,max=8192", "batching": "packed"}
    assert idle(**packed, survive=0.9) == ["--survive 0.9 has no effect on this model and layout"]


@pytest.mark.parametrize(
    "question",
    [
        EIGHT | {"options": {"fp8_recipe": "delayed", "mtp": "false", "overlap_p2p": "true"}},
        EIGHT | {"zero_stage": 1, "recompute": "none", "data_parallel": 8, "precision": "bf16", "seq_length": 8192},
        ONE | {"method": "lora", "stack": "trl", "options": {"quantised_scale_bytes": "4.0"}},
        EIGHT | {"stack": "megatron-bridge@26.04", "options": {"fp8_recipe": "delayed"}},
    ],
)
def test_what_says_the_default_is_no_noise(question: dict[str, Any]) -> None:
    assert idle(**question) == []


def test_what_acts_at_another_moment_is_no_noise() -> None:
    """Saving is less than loading here, and building a model less than a step: no figure shows either."""
    sharded = EIGHT | {"stack": "transformers", "method": "full", "zero_stage": 3, "seq_length": 2048}
    for option in ({"saves_on_host": "state"}, {"builds_in_fp32": "true"}, {"composed_activation_bytes": "8"}):
        assert idle(**sharded, options=option) == []
    assert idle(**EIGHT, options={"unmeasured_runtime": "true"}) == []  # widens ranges


@pytest.mark.parametrize("name", [name for name, needs in acts_beside().items() if needs])
def test_what_a_switch_acts_beside_is_true(name: str) -> None:
    """Where a setting that it needs is missing it changes nothing."""
    for setting, (question, _) in enumerate(SETTINGS):
        scenario, estimate = priced(setting, question.get("profile", "megatron"), ())
        text = other(name, getattr(scenario.framework, name))
        changed, again = priced(setting, question.get("profile", "megatron"), ((name, text),))
        if not all(_is_met(need, changed, again.layout) for need in acts_beside()[name]):
            assert _figures(changed, again.layout) == _figures(scenario, estimate.layout)


def test_what_is_needed_is_a_setting() -> None:
    names = {field.name for field in switches()} | BY_NAME.keys() | {"experts", "fp8", "lora_rank", "precision"}
    needs = "|".join(need for needs in acts_beside().values() for need in needs).split("|")
    assert {need.partition("=")[0] for need in needs} <= names


def test_a_recipe_s_own_setting_counts_again_without_the_user_s(tmp_path: Path) -> None:
    file = tmp_path / "sft.sh"
    file.write_text("trl sft --model_name_or_path google/gemma-2-9b --use_peft --num_processes 1\n")
    options = {"fp8_recipe": "mxfp8", "frozen_dtype": "fp32", "adapter_targets": "all"}
    (checked,) = simulator.check(file, hardware="h100-sxm-80g", options=options).results
    said = [remark.message for remark in checked.remarks if remark.rule == "inactive-flag"]
    assert said == ["--option fp8_recipe=mxfp8 has no effect without --precision fp8"]


@pytest.mark.parametrize("command", ["estimate", "explain", "rank"])
def test_the_first_screen_says_it(command: str) -> None:
    layout = () if command == "rank" else ("--tp", "1")
    shown = run(command, "--model", "llama3.1-8b", "--devices", "8", *layout, "--option", "expert_imbalance=2")
    assert "--option expert_imbalance=2 has no effect without experts." in shown.output


def test_a_ranking_names_what_moves_none_of_its_layouts() -> None:
    found = simulator.rank(model="llama3.1-8b", devices=8, options={"expert_imbalance": "2", "overlap_p2p": "false"})
    assert found.estimates[0].provenance.without_effect == (
        "--option expert_imbalance=2 has no effect without experts",
    )
    assert any(estimate.layout.pipeline_parallel > 1 for estimate in found.estimates)


def test_a_base_of_4_bits_needs_adapters(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="quantised_base=true: needs adapters"):
        simulator.estimate(**ONE, options={"quantised_base": "true"})
    file = tmp_path / "sft.sh"
    file.write_text("trl sft --model_name_or_path google/gemma-2-9b --use_peft --load_in_4bit --num_processes 1\n")
    (checked,) = simulator.check(file, hardware="h100-sxm-80g", method="full").results
    assert checked.estimate is not None
    assert checked.estimate.lora_rank is None


@pytest.mark.parametrize(
    ("word", "why"),
    [("galore_adamw", "gradients of low rank are not priced"), ("ademamix", "beside Adam's moments is")],
)
def test_an_optimizer_that_is_not_priced_says_why(word: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        simulator.estimate(**ONE, framework="torch", optimizer=word)
    shown = run("estimate", "--model", "llama3.1-8b", "--devices", "1", "--optimizer", word)
    assert shown.exit_code == 2
    assert why in shown.output


def test_torchao_s_8_bits_are_not_those_of_bitsandbytes() -> None:
    """torchao 0.18, optim/subclass_8bit.py: the table's moments are 8 bits too, whatever the Trainer overrides."""
    states = [
        simulator.estimate(**ONE, stack="transformers", method="full", optimizer=word).memory.parts_bytes["optimizer"]
        for word in ("adamw_torch_8bit", "adamw_bnb_8bit")
    ]
    table = 128256 * 4096
    assert states[1] - states[0] == pytest.approx(table * 2 * (4 - 1.015625))
    assert {"adamw_torch_8bit", "adamw_8bit"} <= OPTIMIZERS.keys()
