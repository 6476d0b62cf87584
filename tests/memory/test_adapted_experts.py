"""Adapters over mixtures: whether routed experts have adapters and 4 bits hangs on how the library holds them."""

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import Estimate
from simulator.answers.gates import Gates
from simulator.api import scenario_of
from simulator.errors import PrecisionError
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from tests.recipes.test_formats import FACTORY

GIB = 2.0**30
SMALL = {"seq_length": 1024, "global_batch_size": 4, "micro_batch_size": 1, "recompute": "full"}


def over_4_bits(model: str, stack: str, hardware: str = "h200", **options: str) -> Estimate:
    words: dict[str, Any] = {**SMALL, "hardware": hardware, "options": options}
    return simulator.estimate(model=model, stack=stack, devices=1, method="qlora", lora_rank=8, **words)


def state_bytes(answer: Estimate, part: str) -> float:
    return answer.memory.parts_bytes.get(part, 0.0)


def test_adapters_beside_experts_are_those_of_unsloth_s_gpt_oss() -> None:
    """Unsloth's notebook of gpt-oss-20b, rank 8: 3,981,312 trained parameters, 8 (2880 + 4096) 2 + 8 (2880 + 512) 2."""
    trained = 24 * 8 * (2 * (2880 + 4096) + 2 * (2880 + 512))
    assert trained == 3_981_312
    answer = over_4_bits("gpt-oss-20b", "unsloth", expert_adapters="false")
    assert state_bytes(answer, "gradients") == pytest.approx(4 * trained, rel=0.001)


def test_experts_that_no_library_quantises_stay_in_16_bits() -> None:
    """48 layers of 128 experts with three matrices of 2048 x 768: 12 more bits each, less a scale."""
    narrow, wide = (over_4_bits("qwen3-30b-a3b", "llama-factory", quantised_experts=word) for word in ("true", "false"))
    experts = 48 * 128 * 3 * 2048 * 768
    more = experts * (2 - 0.5 - 1.015625 / 64)
    assert state_bytes(wide, "parameters") - state_bytes(narrow, "parameters") == pytest.approx(more, rel=0.001)


def test_experts_that_are_not_quantised_are_gathered_in_16_bits() -> None:
    """Under ZeRO 3 two layers are gathered: of 8 experts with three matrices of 4096 x 14336 each."""
    words: dict[str, Any] = {**SMALL, "hardware": "h200", "devices": 2, "method": "qlora", "zero_stage": 3}
    narrow, wide = (
        simulator.estimate(model="mixtral-8x7b", stack="peft", options={"quantised_experts": word}, **words)
        for word in ("true", "false")
    )
    experts = 8 * 3 * 4096 * 14336
    more = state_bytes(wide, "temporary") - state_bytes(narrow, "temporary")
    assert more == pytest.approx(2 * experts * (2 - 0.5 - 4 / 64), rel=0.001)


def test_experts_outside_a_4_bit_base_are_widened_as_peft_widens_the_rest() -> None:
    """peft 0.19, utils/other.py, `prepare_model_for_kbit_training`: what is not of 4 bits becomes fp32."""
    answer = over_4_bits("qwen3-30b-a3b", "trl", quantised_experts="false", widened_rest="true")
    assert state_bytes(answer, "parameters") > 48 * 128 * 3 * 2048 * 768 * 4


@pytest.mark.full_answer
@pytest.mark.parametrize(("stack", "name"), [("trl", "quantised_experts"), ("unsloth", "expert_adapters")])
def test_no_firm_answer_hangs_on_how_experts_are_held(stack: str, name: str) -> None:
    """TRL's adapters are on queries and values alone; Unsloth quantises experts itself."""
    answer = over_4_bits("qwen3-30b-a3b", stack, "rtx-4090")
    assert answer.verdict == "depends"
    assert answer.open is not None
    assert name in answer.open.names


@pytest.mark.full_answer
def test_said_they_are_not_open() -> None:
    answer = over_4_bits("qwen3-30b-a3b", "unsloth", "rtx-4090", expert_adapters="false", quantised_experts="true")
    assert answer.open is None or not {"expert_adapters", "quantised_experts"} & set(answer.open.names)


MIXTURE = f"{FACTORY}quantization_bit: 4\n".replace("full", "lora").replace(
    "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen3-30B-A3B"
)


@pytest.mark.parametrize(("hardware", "outcome"), [("rtx-4090", "longest_does_not_fit"), ("b200", "fits")])
def test_a_recipe_is_read_both_ways(hardware: str, outcome: str, tmp_path: Path) -> None:
    file = tmp_path / "llamafactory.yaml"
    file.write_text(MIXTURE, encoding="utf-8")
    question = question_of({"hardware": hardware, "nodes": 1, "seq_length": 1024})
    checked = check_files([str(file)], question, Gates())[0]
    assert checked.outcome == outcome
    assert any("routed experts are priced with adapters and in 16 bits" in each.message for each in checked.remarks)


@pytest.mark.parametrize("hardware", ["t4", "v100-sxm-32g"])
def test_a_device_without_bf16_trains_in_fp16_unless_it_is_said(hardware: str) -> None:
    words: dict[str, Any] = {**SMALL, "hardware": hardware, "model": "llama3.2-1b", "devices": 1}
    assert simulator.estimate(**words).precision == "fp16"
    with pytest.raises(PrecisionError, match="has no bf16 peak"):
        simulator.estimate(**words, precision="bf16")
    for groups in (f"{hardware}:1,a100-sxm-80g:1", f"a100-sxm-80g:1,{hardware}:1"):
        assert scenario_of(model="llama3.2-1b", hardware=groups).precision == "fp16"
