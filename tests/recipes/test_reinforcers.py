"""Finetuning in libraries that also reinforce: OpenRLHF's and verl's words, and the trainings that are refused."""

from pathlib import Path

import pytest

from simulator.errors import UnsupportedError
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe

OLD = """deepspeed --module openrlhf.cli.train_sft --max_len 4096 --dataset x --train_batch_size 64 \\
  --micro_train_batch_size 1 --pretrain Qwen/Qwen2.5-7B --zero_stage 3 --bf16 --flash_attn --gradient_checkpointing"""
NEW = """deepspeed --module openrlhf.cli.train_PROGRAM --data.dataset x --train.micro_batch_size 2 \\
  --model.model_name_or_path meta-llama/Meta-Llama-3-8B"""
VERL = """torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \\
  data.train_files=x.parquet +data.response_dict_keys=['answer'] model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct"""


def read(folder: Path, line: str) -> Recipe:
    (folder / "run.sh").write_text(line, encoding="utf-8")
    (recipe,) = read_recipe(folder / "run.sh")
    return recipe


def errors(recipe: Recipe) -> list[str]:
    return [remark.message for remark in recipe.remarks if remark.severity == "error"]


def test_flat_names_of_openrlhf(tmp_path: Path) -> None:
    recipe = read(tmp_path, OLD)
    assert recipe.layout is not None
    assert (recipe.model, recipe.seq_length, recipe.global_batch_size) == ("qwen2.5-7b", 4096, 64)
    layout = recipe.layout
    assert (layout.zero_stage, layout.micro_batch_size, layout.recompute) == (3, 1, "full")
    assert recipe.options["step_temporaries"] == "0"  # DeepSpeed's own Adam
    assert (recipe.precision, recipe.options["flash_attention"]) == ("bf16", "true")
    offloaded = read(tmp_path, f"{OLD} --adam_offload").layout
    assert offloaded is not None
    assert offloaded.offload == "optimizer_tensorwise"
    assert any("neither bf16 nor fp16" in each for each in errors(read(tmp_path, OLD.replace(" --bf16", ""))))
    bound = read(tmp_path, OLD.replace(" --flash_attn", ""))
    assert bound.options["flash_attention"] == "false"
    assert "activations-bound" in [remark.rule for remark in bound.remarks if "eager" in remark.message]


@pytest.mark.parametrize(
    ("program", "length", "options"),
    [
        ("sft", 2048, {}),
        ("dpo", 512, {"frozen_reference": "true", "sequences_per_sample": "2"}),
        ("rm", 512, {"score_head": "true", "sequences_per_sample": "2"}),
    ],
)
def test_names_with_sections_and_defaults_of_openrlhf(
    program: str, length: int, options: dict[str, str], tmp_path: Path
) -> None:
    recipe = read(tmp_path, NEW.replace("PROGRAM", program))
    assert recipe.layout is not None
    assert (recipe.seq_length, recipe.global_batch_size, recipe.precision) == (length, 128, "bf16")
    assert (recipe.layout.zero_stage, recipe.layout.recompute, recipe.lora_rank) == (2, "none", None)
    assert options.items() <= recipe.options.items()
    assert not errors(recipe)
    four = read(tmp_path, f"{NEW.replace('PROGRAM', program)} --ds.load_in_4bit --ds.lora.rank 16")
    said = {name: four.options[name] for name in ("quantised_base", "quantised_scale_bytes", "widened_rest")}
    assert (four.lora_rank, said["quantised_base"], said["widened_rest"]) == (16, "true", "false")
    assert float(said["quantised_scale_bytes"]) == 1 + 4 / 256


@pytest.mark.parametrize(
    "words", ["--ds.zpg 8", "--ds.ring_attn_size 2", "--ds.tensor_parallel_size 2", "--optim muon", "--ds.no_such 1"]
)
def test_what_openrlhf_has_and_is_not_priced(words: str, tmp_path: Path) -> None:
    assert errors(read(tmp_path, f"{NEW.replace('PROGRAM', 'sft')} {words}"))


def test_state_of_verl_keeps_the_type_that_it_is_loaded_in(tmp_path: Path) -> None:
    recipe = read(tmp_path, f"{VERL} data.micro_batch_size_per_gpu=2")
    assert recipe.layout is not None
    assert (recipe.model, recipe.seq_length, recipe.global_batch_size) == ("qwen2.5-7b", 1024, 256)
    layout = recipe.layout
    assert (layout.zero_stage, layout.micro_batch_size, layout.recompute) == (3, 2, "full")
    assert (recipe.precision, recipe.options["parameter_dtype"], recipe.lora_rank) == ("bf16", "fp32", None)
    assert not recipe.remarks
    half = read(tmp_path, f"{VERL} model.fsdp_config.model_dtype=bf16 model.lora_rank=32")
    assert (half.options["parameter_dtype"], half.options["optimizer_dtype"], half.lora_rank) == ("bf16", "bf16", 32)


@pytest.mark.parametrize(
    "words",
    [
        "ulysses_sequence_parallel_size=2 use_remove_padding=true",
        "data.micro_batch_size=8",
        "model.fsdp_config.model_dtype=int8",
        "optim.optimizer_impl=bitsandbytes.optim",
        "model.no_such=1",
    ],
)
def test_what_verl_has_and_is_not_priced(words: str, tmp_path: Path) -> None:
    assert errors(read(tmp_path, f"{VERL} {words}"))


def test_an_unknown_word_of_verl_may_be_any(tmp_path: Path) -> None:
    assert "micro_batch_size" in {
        option
        for unknown in read(tmp_path, f"{VERL} data.micro_batch_size_per_gpu=$1").unknowns
        for option in unknown.affects
    }


@pytest.mark.parametrize(
    "module",
    ["openrlhf.cli.train_ppo_ray", "openrlhf.cli.train_kto", "verl.trainer.main_ppo", "verl.trainer.sft_trainer"],
)
def test_what_reinforces_or_runs_on_other_engines_is_refused(module: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"'{module}' starts (OpenRLHF|verl), which is not read"):
        read(tmp_path, f"python3 -m {module} data.train_batch_size=8 model.path=x")
