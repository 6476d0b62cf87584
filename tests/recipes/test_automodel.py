"""NeMo Automodel's configuration files, by the rules of its own sources (36044ad)."""

from pathlib import Path
from typing import Any

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked

PLAIN = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 2, max_steps: 10}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
distributed: {strategy: fsdp2, tp_size: 1, cp_size: 1}
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}
dataset: {_target_: a.mock, seq_len: 4096}
optimizer: {_target_: torch.optim.Adam, lr: 1.0e-5}
"""


def judged(text: str, folder: Path, **options: Any) -> Checked:
    file = folder / "train.yaml"
    file.write_text(text, encoding="utf-8")
    (result,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g", **options}), Gates(), root=folder)
    return result


def test_a_plain_file_is_fsdp2_with_weights_of_16_bits(tmp_path: Path) -> None:
    result = judged(PLAIN, tmp_path)
    assert result.outcome == "fits", result.reasons
    assert result.case is not None
    assert (result.dialect, result.case.layout.zero_stage, result.case.layout.micro_batch_size) == (
        "automodel-yaml",
        3,
        2,
    )
    options = result.case.question.options
    assert (options["parameter_dtype"], options["loss_bytes_per_logit"]) == ("bf16", "14")
    whole = judged(PLAIN.replace("model:\n", "model:\n  torch_dtype: float32\n"), tmp_path)
    assert whole.case is not None
    assert "parameter_dtype" not in whole.case.question.options


@pytest.mark.parametrize(
    ("per_stage", "rounding", "stages", "cut"),
    [
        (2, "down", 3, (3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2)),
        (3, "up", 3, (3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2)),
        (3, "down", 2, (4, 4, 4, 4, 3, 3, 3, 3)),
        (7, "down", 1, ()),
    ],
)
def test_a_pipeline_is_cut_as_its_own_code_does(
    per_stage: int, rounding: str, stages: int, cut: tuple[int, ...], tmp_path: Path
) -> None:
    pipeline = (
        f"pp_size: 4, pipeline: {{pp_schedule: interleaved1f1b, pp_microbatch_size: 1, layers_per_stage: {per_stage}, "
        f"round_virtual_stages_to_pp_multiple: {rounding}}}"
    )
    text = PLAIN.replace("tp_size: 1", pipeline).replace("Llama-3.2-1B", "Llama-3.2-3B")  # 28 layers
    result = judged(text, tmp_path)
    assert result.case is not None, result.reasons
    layout = result.case.layout
    assert (layout.virtual_stages, layout.zero_stage, layout.micro_batch_size) == (stages, 2, 1)
    assert layout.chunk_layers == cut
    assert layout.stage_layers == (7, 7, 7, 7)


def test_adapters_lengths_and_the_batch_rule(tmp_path: Path) -> None:
    adapters = f"{PLAIN}peft: {{_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 16, alpha: 32}}\n"
    result = judged(adapters, tmp_path)
    assert result.estimate is not None
    assert result.estimate.lora_rank == 16
    open_length = PLAIN.replace("seq_len: 4096", "dataset_name: a")
    assert judged(open_length, tmp_path).outcome == "longest_does_not_fit"
    assert judged(open_length, tmp_path, seq_length=2048).outcome == "fits"
    refused = judged(PLAIN.replace("global_batch_size: 64", "global_batch_size: 24"), tmp_path, nodes=1)
    assert refused.outcome == "refused"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TrainFinetuneRecipeForNextTokenPrediction", "KnowledgeDistillationRecipeForNextTokenPrediction"),
        ("NeMoAutoModelForCausalLM", "NeMoAutoModelForImageTextToText"),
        ("torch.optim.Adam", "dion.Muonish"),
    ],
)
def test_what_is_not_priced_is_said(old: str, new: str, tmp_path: Path) -> None:
    assert judged(PLAIN.replace(old, new), tmp_path).outcome == "not_modelled"


def test_gradients_that_stay_whole_between_micro_batches_are_a_bound(tmp_path: Path) -> None:
    result = judged(PLAIN, tmp_path)
    assert result.case is not None
    assert result.case.recipe.unpriced_bytes == 4 * 1_235_814_400
    each = judged(PLAIN.replace("cp_size: 1", "cp_size: 1, defer_fsdp_grad_sync: false"), tmp_path)
    once = judged(PLAIN.replace("global_batch_size: 64", "global_batch_size: 16"), tmp_path)
    assert each.case is not None
    assert once.case is not None
    assert each.case.recipe.unpriced_bytes == once.case.recipe.unpriced_bytes == 0
