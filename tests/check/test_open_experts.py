"""Routed experts under adapters: a bound where the priced model is a mixture, whoever names it."""

from pathlib import Path
from typing import Any

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked

AUTOMODEL = """recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 32, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: mistralai/Mixtral-8x7B-v0.1
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  dim: 8
quantization:
  load_in_4bit: BITS
distributed:
  strategy: fsdp2
packed_sequence:
  packed_sequence_size: 2048
optimizer:
  _target_: torch.optim.Adam
"""
FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
quantization_bit: 4
template: llama3
cutoff_len: 2048
output_dir: x
bf16: true
per_device_train_batch_size: 1
"""


def judged(folder: Path, text: str, **asked: Any) -> Checked:
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    question = question_of({"hardware": "h100-sxm-80g", "devices": 1, **asked})
    (found,) = check_files([str(folder / "run.yaml")], question, Gates(), root=folder)
    return found


def bounds(found: Checked) -> list[str]:
    return [remark.message for remark in found.remarks if remark.bound == "experts" and remark.severity == "warning"]


def switches(found: Checked) -> tuple[bool, bool]:
    assert found.case is not None
    framework = found.case.scenario.framework
    return framework.quantised_base, framework.quantised_experts


def test_a_model_beside_a_recipe_has_the_bound_of_one_within(tmp_path: Path) -> None:
    assert bounds(judged(tmp_path, FACTORY)) == []
    beside = judged(tmp_path, FACTORY, model="mixtral-8x7b-v0.1")
    within = judged(tmp_path, FACTORY.replace("meta-llama/Meta-Llama-3-8B", "mistralai/Mixtral-8x7B-v0.1"))
    assert (beside.outcome, within.outcome) == ("depends", "depends")
    assert bounds(beside) == bounds(within)
    assert switches(beside) == switches(within) == (True, False)


@pytest.mark.parametrize(("bits", "wide"), [("true", True), ("false", False)])
def test_a_narrow_base_of_automodel_is_bitsandbytes_s_too(bits: str, wide: bool, tmp_path: Path) -> None:
    found = judged(tmp_path, AUTOMODEL.replace("BITS", bits))
    assert switches(found) == (wide, not wide)
    assert [("in 16 bits" in message) for message in bounds(found)] == [True] * wide


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"options": {"quantised_experts": "true"}}, ["with adapters;"]),
        ({"options": {"expert_adapters": "false"}}, ["in 16 bits;"]),
        ({"options": {"expert_adapters": "false", "quantised_experts": "true"}}, []),
        ({"stack": "unsloth"}, ["with adapters;"]),
    ],
)
def test_what_the_user_says_is_not_left_open(asked: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    found = bounds(judged(tmp_path, FACTORY, model="mixtral-8x7b-v0.1", **asked))
    assert [message.partition("priced ")[2].partition(" libraries")[0] for message in found] == said
