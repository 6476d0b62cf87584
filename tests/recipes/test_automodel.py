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
        ("NeMoAutoModelForCausalLM", "NeMoAutoModelForMultimodalLM"),
        ("strategy: fsdp2", "strategy: megatron_fsdp"),
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


SEEING = (
    PLAIN.replace("TrainFinetuneRecipeForNextTokenPrediction", "FinetuneRecipeForVLM")
    .replace("ForCausalLM", "ForImageTextToText")
    .replace("meta-llama/Llama-3.2-1B", "google/gemma-4-31B-it")
    .replace("dataset: {_target_: a.mock, seq_len: 4096}", "dataloader: {collate_fn: {max_length: 2048}}")
)


def test_a_model_that_sees_images_is_priced_with_what_rests(tmp_path: Path) -> None:
    """`default_collate_fn` fills samples up to `max_length`; `freeze_config` freezes the encoder unless it says no."""
    whole = judged(SEEING, tmp_path)
    rests = judged(f"{SEEING}freeze_config: {{freeze_audio_tower: true}}\n", tmp_path)
    text = judged(f"{SEEING}freeze_config: {{freeze_language_model: true}}\n", tmp_path)
    adapters = f"{SEEING}peft: {{_target_: a.PeftConfig, dim: 16, exclude_modules: ['*vision_tower*']}}\n"
    sparse = judged(adapters, tmp_path)
    every = judged(adapters.replace("exclude_modules: ['*vision_tower*']", "match_all_linear: true"), tmp_path)
    parts = [result.case.recipe.encoder_training for result in (whole, rests, text, sparse, every) if result.case]
    assert parts == ["trained", "projector", "projector", "frozen", "lora16"]
    assert whole.case is not None
    assert (whole.case.model.name, whole.case.scenario.seq_length) == ("gemma-4-vl-31b", 2048)
    assert text.case is not None
    assert text.case.scenario.lora_rank == 1


@pytest.mark.parametrize("words", ["attn_implementation: eager", "backend: {attn: eager}"])
def test_eager_attention_keeps_its_scores(words: str, tmp_path: Path) -> None:
    result = judged(PLAIN.replace("model:\n", f"model:\n  {words}\n"), tmp_path)
    assert result.case is not None
    assert not result.case.scenario.framework.flash_attention
    sees = SEEING.replace("model:\n", f"model:\n  {words}\n").replace("tp_size: 1", "defer_fsdp_grad_sync: false")
    rests = judged(f"{sees}freeze_config: {{freeze_vision_tower: true}}\n", tmp_path)
    assert rests.case is not None
    assert rests.case.recipe.seq_length is not None
    scores = 6 * 2 * rests.case.recipe.seq_length / 280 * 16 * 2520**2
    assert 0.4 * scores < rests.case.recipe.unpriced_bytes < 1.5 * scores
    trained = judged(sees, tmp_path)
    assert trained.outcome == "not_modelled"


def test_prediction_layers_are_built_where_its_own_classes_do(tmp_path: Path) -> None:
    """`components/models/qwen3_5/model.py`: 79; transformers' Llama has none, and a count of 0 is none."""
    text = PLAIN.replace("meta-llama/Llama-3.2-1B", "Qwen/Qwen3.5-27B")
    each = judged(text, tmp_path)
    none = judged(text.replace("model:\n", "model:\n  num_nextn_predict_layers: 0\n"), tmp_path)
    assert each.case is not None
    assert none.case is not None
    assert each.case.scenario.framework.mtp
    assert each.case.model.num_nextn_predict_layers == 1
    assert none.case.model.num_nextn_predict_layers == 0


def test_a_decoder_whose_encoder_is_unknown_is_not_judged_with_images(tmp_path: Path) -> None:
    result = judged(SEEING.replace("google/gemma-4-31B-it", "mistralai/Mistral-Small-4-119B-2603"), tmp_path)
    assert result.outcome == "not_modelled"
    assert "what reads its images is not known" in result.reasons[0]


SIZED = PLAIN.replace(
    "  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B\n",
    "  config: {_target_: transformers.models.qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig, hidden_size: 2048, "
    "num_hidden_layers: 2, num_attention_heads: 8, vocab_size: 151936, num_experts: 4, num_experts_per_tok: 2, "
    "moe_intermediate_size: 1024, intermediate_size: 1024}\n",
)


def test_a_configuration_in_the_file_is_the_model(tmp_path: Path) -> None:
    result = judged(SIZED, tmp_path)
    assert result.case is not None, result.reasons
    model = result.case.model
    assert (model.num_hidden_layers, model.hidden_size, model.num_experts, model.qk_norm) == (2, 2048, 4, True)
    fewer = judged(PLAIN.replace("model:\n", "model:\n  num_hidden_layers: 2\n"), tmp_path)
    assert fewer.case is not None
    assert fewer.case.model.num_hidden_layers == 2
    built = "_target_: nemo_automodel.components.models.gpt2.build_gpt2_model"
    sizes = "  n_layer: 12\n  n_embd: 768\n  n_head: 12\n  vocab_size: 50258\n  n_positions: 4096\n"
    small = PLAIN.replace("_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained", built)
    own_gpt = judged(small.replace("  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B\n", sizes), tmp_path)
    assert own_gpt.case is not None
    assert (own_gpt.case.model.num_hidden_layers, own_gpt.case.model.learned_positions) == (12, 4096)


def test_a_launch_replaces_keys_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(PLAIN, encoding="utf-8")
    script = tmp_path / "launch.sh"
    words = "torchrun --nproc-per-node=8 examples/llm_finetune/finetune.py --config run.yaml"
    script.write_text(f"{words} --step_scheduler.local_batch_size 4\n", encoding="utf-8")
    (result,) = check_files([str(script)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert result.case is not None, result.reasons
    assert (result.dialect, result.case.layout.micro_batch_size) == ("automodel-shell", 4)
    assert result.case.scenario.devices == 8


def test_a_launch_replaces_sizes_that_stand_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SIZED, encoding="utf-8")
    script = tmp_path / "launch.sh"
    words = "torchrun --nproc-per-node=8 examples/llm_finetune/finetune.py --config run.yaml"
    script.write_text(f"{words} --model.config.num_hidden_layers 4\n", encoding="utf-8")
    (result,) = check_files([str(script)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert result.case is not None, result.reasons
    assert result.case.model.num_hidden_layers == 4


def test_nodes_of_its_repositorys_tests_pass_a_file_and_never_fail_it(tmp_path: Path) -> None:
    """A number of nodes that only `ci` states: what passes on it passes, what does not waits for one."""
    large = PLAIN.replace("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.3-70B-Instruct")
    large = large.replace(
        "strategy: fsdp2", "strategy: fsdp2, activation_checkpointing: true, defer_fsdp_grad_sync: false"
    )
    large = large.replace("local_batch_size: 2", "local_batch_size: 1").replace("seq_len: 4096", "seq_len: 2048")
    assert judged(large, tmp_path).outcome == "cannot_tell"
    passes = judged(f"{large}ci: {{recipe_owner: x, nodes: 4}}\n", tmp_path)
    assert passes.outcome == "fits", passes.reasons
    assert passes.case is not None
    assert passes.case.scenario.devices == 32
    assert any("as its repository's own tests run it" in remark.message for remark in passes.remarks)
    assert judged(f"{large}ci: {{nodes: 1}}\n", tmp_path).outcome == "cannot_tell"
    assert judged(f"{large}ci: {{nodes: 4, cluster_tag: gb200}}\n", tmp_path).outcome == "cannot_tell"
    assert judged(f"{large}slurm: {{nodes: 1}}\nbenchmark: {{num_nodes: 4}}\n", tmp_path).outcome == "does_not_fit"
