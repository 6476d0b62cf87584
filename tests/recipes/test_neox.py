"""GPT-NeoX' configurations, whole or in several files."""

from pathlib import Path

import pytest

from tests.recipes.seeds import about, rules
from tests.recipes.test_formats import read

NEOX = """{
  "pipe_parallel_size": 1,
  "model-parallel-size": 2,
  "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_kv_heads": 8,
  "intermediate_size": 43008, "mlp_multiple_of": 256, "activation": "swiglu", "norm": "rmsnorm",
  "use_bias_in_attn_linear": false, "no_weight_tying": true, "padded_vocab_size": 128256,
  "seq_length": 8192, "max_position_embeddings": 8192,
  "attention_config": [[["flash"], 32]],
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000},
  "checkpoint_activations": true, "checkpoint_num_layers": 2,
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "fp16": {"enabled": true},
  "optimizer": {"type": "Adam", "params": {"lr": 1.0e-4}},
}
"""


def test_neox(tmp_path: Path) -> None:
    recipe = read(NEOX, tmp_path, "x.yml")
    assert (recipe.dialect, recipe.model, recipe.precision) == ("neox-yaml", "llama3-8b", "fp16")
    assert (recipe.seq_length, recipe.gradient_accumulation_steps) == (8192, 8)
    assert recipe.layout is not None
    layout = recipe.layout
    assert (layout.tensor_parallel, layout.pipeline_parallel, layout.zero_stage) == (2, 1, 1)
    assert (layout.recompute, layout.recompute_layers, layout.micro_batch_size) == ("full", 2, 4)
    assert recipe.options["gradient_dtype"] == "bf16"
    assert not [remark for remark in recipe.remarks if remark.severity == "error"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[["flash"], 32]', '[["rwkv"], 32]', "attention_config rwkv: only flash and global attention are modelled"),
        ('[["flash"], 32]', '[["mamba"], 32]', "attention_config mamba: only flash and global attention are modelled"),
        ('"norm"', '"moe_num_experts": 8, "norm"', "moe_num_experts: GPT-NeoX' experts are not modelled"),
        ('"norm"', '"checkpoint_in_cpu": true, "norm"', "checkpoint_in_cpu: checkpoints on the host are not priced"),
        ('"norm"', '"train_impl": "dpo", "norm"', "train_impl dpo: a second model or another loss is not modelled"),
    ],
)
def test_what_neox_is_not_priced_with(old: str, new: str, message: str, tmp_path: Path) -> None:
    recipe = read(NEOX.replace(old, new), tmp_path, "x.yml")
    assert message in about(recipe, "not-modelled")


def test_layers_of_mamba(tmp_path: Path) -> None:
    """As many channels as the width that is stated, else twice the hidden size; heads are attention's."""
    fused = NEOX.replace('[["flash"], 32]', '[["mamba"], 32]').replace(
        '"norm"', '"mamba_inner_func_fusion": true, "norm"'
    )
    fused = fused.replace('"num_kv_heads": 8,', "").replace('"num_attention_heads": 32', '"num_attention_heads": 12')
    for text, channels in ((fused, 43008), (fused.replace('"intermediate_size": 43008,', ""), 8192)):
        recipe = read(text, tmp_path, "x.yml")
        assert not [remark for remark in recipe.remarks if remark.severity == "error"]
        fields = {"mixers": ("selective_scan",), "mamba_heads": channels, "mamba_state": 16, "num_attention_heads": 1}
        assert fields.items() <= recipe.model_fields.items()


@pytest.mark.parametrize(
    ("handed", "read_over"),
    [
        ('{"comms_logger": {"enabled": true, "prof_all": true}}', True),
        ('{"zero_optimization": {"stage": 3}}', False),
        ('{"some_new_offload": true}', False),
    ],
)
def test_what_neox_hands_to_deepspeed(handed: str, read_over: bool, tmp_path: Path) -> None:
    recipe = read(NEOX.replace('"norm"', f'"deepspeed_extra_args": {handed}, "norm"'), tmp_path, "x.yml")
    assert any("what is handed to DeepSpeed" in told for told in about(recipe, "not-modelled")) != read_over


def test_a_part_of_a_neox_configuration_says_so(tmp_path: Path) -> None:
    without = NEOX.split('  "train_micro_batch', maxsplit=1)[0] + "}"
    assert "base-configuration" in rules(read(without, tmp_path, "x.yml"))
    assert "base-configuration" not in rules(read(NEOX, tmp_path, "x.yml"))
    part = NEOX.replace('"train_micro_batch_size_per_gpu": 4,', "")
    assert "base-configuration" not in rules(read(part, tmp_path, "x.yml"))


def test_neox_in_several_files(tmp_path: Path) -> None:
    recipe = read(NEOX.replace('"train_micro_batch_size_per_gpu": 4,', ""), tmp_path, "x.yml")
    assert [unknown.name for unknown in recipe.unknowns if unknown.affects] == ["train_micro_batch_size_per_gpu"]
    settings = {"train_micro_batch_size_per_gpu": "2"}
    recipe = read(NEOX.replace('"train_micro_batch_size_per_gpu": 4,', ""), tmp_path, "x.yml", **settings)
    assert recipe.layout is not None
    assert (recipe.layout.micro_batch_size, "unused-setting" in rules(recipe)) == (2, False)
