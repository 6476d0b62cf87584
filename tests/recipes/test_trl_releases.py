"""Defaults of TRL's own command by release: the newest that has every flag, as a later one refuses the others."""

from pathlib import Path

import pytest

from tests.recipes.test_tuners import read

COMMAND = "trl sft --model_name_or_path google/gemma-2-9b --use_peft --num_processes 1 --per_device_train_batch_size 1"
CHUNK = {"cross_entropy_chunk_tokens": "256"}  # trl/trainer/sft_trainer.py, `_CHUNKED_LM_HEAD_CHUNK_SIZE`
LATEST = {**CHUNK, "frozen_dtype": "fp32"}  # trl/trainer/model_config.py since 1.0: dtype is float32


@pytest.mark.parametrize(
    ("more", "recompute", "options"),
    [
        ("", "full", LATEST),
        ("--gradient_checkpointing false", "none", LATEST),
        ("--loss_type nll", "full", {"frozen_dtype": "fp32"}),
        ("--use_liger_kernel", "full", {"frozen_dtype": "fp32"}),
        ("--dtype bfloat16", "full", CHUNK),
        # Gone with 0.27, 0.20 and 0.18.
        ("--torch_dtype bfloat16", "full", {}),
        ("--max_seq_length 2048", "none", {"frozen_dtype": "fp32"}),
        ("--use_liger --bf16", "none", {"frozen_dtype": "fp32"}),
    ],
)
def test_defaults_are_those_of_a_release(more: str, recompute: str, options: dict[str, str], tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.sh", f"{COMMAND} {more}\n")
    assert recipe.layout is not None
    assert (recipe.layout.recompute, recipe.precision) == (recompute, "bf16")
    named = {"frozen_dtype": recipe.options.get("frozen_dtype")}
    named |= {"cross_entropy_chunk_tokens": recipe.options.get("cross_entropy_chunk_tokens")}
    expected = {"frozen_dtype": None, "cross_entropy_chunk_tokens": None, **options}
    if "liger" in more:
        expected["cross_entropy_chunk_tokens"] = named["cross_entropy_chunk_tokens"]
        assert named["cross_entropy_chunk_tokens"] != "256"
    assert named == expected
    assert any(remark.rule == "release-assumed" for remark in recipe.remarks) == (recompute == "full")


def test_a_family_s_layers_are_read_with_the_recipe(tmp_path: Path) -> None:
    assert read(tmp_path, "x.sh", COMMAND).options["flash_attention"] == "false"
    flash = f"{COMMAND} --attn_implementation flash_attention_2"
    assert read(tmp_path, "x.sh", flash).options["flash_attention"] == "true"


def test_fp16_is_no_bf16(tmp_path: Path) -> None:
    assert read(tmp_path, "x.sh", f"{COMMAND} --fp16").precision == "fp16"
    assert read(tmp_path, "x.sh", f"{COMMAND} --max_target_length 9").precision is None
