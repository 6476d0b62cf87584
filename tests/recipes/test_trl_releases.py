"""Defaults of TRL's own command by release: the newest that has every flag, as a later one refuses the others."""

from pathlib import Path

import pytest

import simulator
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
    assumed = {remark.fix for remark in recipe.remarks if remark.rule == "release-assumed"}
    assert ("" in assumed) == (recompute == "full")
    assert ("--dtype bfloat16" in assumed) == ("frozen_dtype" in options and "seq" not in more and "--bf16" not in more)


def test_flags_of_every_release_tell_none(tmp_path: Path) -> None:
    """trl/trainer/base_config.py of 1.9 has what older trainers state themselves."""
    for more in ("--bf16 true", "--logging_steps 10", "--average_tokens_across_devices true"):
        assert read(tmp_path, "x.sh", f"{COMMAND} {more}\n").options["frozen_dtype"] == "fp32"


def test_fp32_of_a_release_has_a_remedy(tmp_path: Path) -> None:
    """trl/trainer/utils.py of 1.10, `create_model_from_path`: float32 unless `dtype` says another type."""
    lines = ["model_name_or_path: google/gemma-2-9b", "use_peft: true", "per_device_train_batch_size: 1"]
    file = tmp_path / "sft.yaml"
    file.write_text("\n".join(lines))
    (checked,) = simulator.check(file, hardware="rtx-4090", devices=1).results
    assert "dtype: bfloat16" in {remark.fix for remark in checked.remarks}
    assert "--option frozen_dtype=compute" in {change.text for change in checked.changes}
    # A base of 4 bits is made from any type.
    narrow = read(tmp_path, "x.sh", f"{COMMAND} --load_in_4bit\n")
    assert not any(remark.fix.startswith("--dtype") for remark in narrow.remarks)


@pytest.mark.parametrize(("stack", "is_open"), [("trl", True), ("transformers", True), ("unsloth", False)])
def test_the_type_of_a_base_hangs_on_the_release(stack: str, is_open: bool) -> None:
    found = simulator.estimate(model="llama3.1-8b", hardware="h100-sxm-80g", devices=1, stack=stack, method="lora")
    assert found.open is not None
    assert ("frozen_dtype" in {switch.switch for switch in found.open.switches}) == is_open


def test_a_family_s_layers_are_read_with_the_recipe(tmp_path: Path) -> None:
    assert read(tmp_path, "x.sh", COMMAND).options["flash_attention"] == "false"
    flash = f"{COMMAND} --attn_implementation flash_attention_2"
    assert read(tmp_path, "x.sh", flash).options["flash_attention"] == "true"


def test_fp16_is_no_bf16(tmp_path: Path) -> None:
    assert read(tmp_path, "x.sh", f"{COMMAND} --fp16").precision == "fp16"
    assert read(tmp_path, "x.sh", f"{COMMAND} --max_target_length 9").precision is None
