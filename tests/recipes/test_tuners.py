"""What decides a sequence or a vocabulary, and what trains nothing: ms-swift, LLaMA-Factory, GPT-NeoX, torchtitan."""

from pathlib import Path

import pytest

from simulator.errors import InputError, NoRecipeError
from simulator.recipes.readers.read import read_recipe
from simulator.recipes.recipe import Recipe

SWIFT = "NPROC_PER_NODE=8 PROGRAM sft --model Qwen/Qwen2.5-7B --dataset x --max_length 8192"
PREDICT = """model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_predict: true
finetuning_type: lora
cutoff_len: 2048
"""
NEOX = """{
  "pipe_parallel_size": 1, "model_parallel_size": 2,
  "num_layers": 6, "hidden_size": 128, "num_attention_heads": 4,
  "seq_length": 2048, "max_position_embeddings": 2048, "pos_emb": "rotary", "no_weight_tying": true,
  "tokenizer_type": "HFTokenizer",
  "train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true}
}
"""


def read(folder: Path, name: str, text: str) -> Recipe:
    (folder / name).write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(folder / name)
    return recipe


@pytest.mark.parametrize("program", ["swift", "megatron"])
def test_packed_samples_are_as_long_as_their_own_length_says(program: str, tmp_path: Path) -> None:
    plain = SWIFT.replace("PROGRAM", program)
    assert read(tmp_path, "x.sh", f"{plain} --packing true").seq_length == 8192
    assert read(tmp_path, "x.sh", f"{plain} --packing true --packing_length 16384").seq_length == 16384
    assert read(tmp_path, "x.sh", f"{plain} --packing_length 16384").seq_length == 8192


@pytest.mark.parametrize("program", ["swift", "megatron"])
def test_tasks_beside_the_next_token(program: str, tmp_path: Path) -> None:
    plain = SWIFT.replace("PROGRAM", program)
    assert "score_head" not in read(tmp_path, "x.sh", f"{plain} --task_type causal_lm").options
    scored = read(tmp_path, "x.sh", f"{plain} --task_type seq_cls --num_labels 2")
    assert scored.options["score_head"] == "true"
    for task in ("embedding", "reranker", "generative_reranker"):
        said = [
            one.message
            for one in read(tmp_path, "x.sh", f"{plain} --task_type {task}").remarks
            if one.severity == "error"
        ]
        assert said == [f"task_type {task}: samples of several texts, and their loss, are not modelled"]


def test_llamafactory_that_only_predicts_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoRecipeError, match=r"x.yaml: starts no training: do_predict without do_train"):
        read(tmp_path, "x.yaml", PREDICT)
    assert read(tmp_path, "x.yaml", f"{PREDICT}do_train: true\n").lora_rank == 8


def test_the_tokenizer_file_of_neox_tells_the_vocabulary(tmp_path: Path) -> None:
    assert "vocab_size" not in read(tmp_path, "x.yml", NEOX).model_fields
    named = NEOX.replace('"HFTokenizer",', '"HFTokenizer", "vocab-file": "/data/20B_tokenizer.json",')
    # 50277 entries, padded to 128 for each of two tensor-parallel ranks.
    assert read(tmp_path, "x.yml", named).model_fields["vocab_size"] == 50432


def test_torchtitan_programs_that_train_nothing(tmp_path: Path) -> None:
    launch = "torchrun --nproc_per_node=8 PROGRAM --job.config_file ../outside.toml"
    with pytest.raises(NoRecipeError, match=r"convert_hf_to_dcp_with_gpus.py converts"):
        read(tmp_path, "x.sh", launch.replace("PROGRAM", "convert_hf_to_dcp_with_gpus.py"))
    with pytest.raises(InputError, match="no such file beside"):
        read(tmp_path, "x.sh", launch.replace("PROGRAM", "torchtitan/train.py"))
