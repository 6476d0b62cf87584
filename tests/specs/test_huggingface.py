"""Unmodified Hugging Face configurations give the shape of the shipped spec; what is absent, wrong or not priced."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError, SimulateError, UnsupportedError
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import read_yaml
from simulator.question.specs.families.reading import read_config
from simulator.question.specs.model import FAMILIES_FILE, ModelSpec, architectures
from tests.specs.published_configs import CONFIGS
from tests.specs.small_configs import SMALL

# What such files hold beside the shape; none of it may disturb.
COMMON: dict[str, Any] = {
    "architectures": ["SomeForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "auto_map": {"AutoModelForCausalLM": "modeling_custom.Evil"},
}


def read(folder: Path, config: object) -> ModelSpec:
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return read_config(file)


def test_no_class_of_transformers_differs() -> None:
    lines = (FAMILIES_FILE.parents[4] / "docs" / "transformers.csv").read_text(encoding="utf-8").splitlines()
    results = {row["model_type"]: row["result"] for row in csv.DictReader(lines)}
    assert set(results.values()) == {"exact", "text exact", "refused", "not built"}
    assert all(results[name] == "exact" for name in ("llama", "qwen2_5_vl", "qwen3_vl_moe", "internvl", "gemma3"))


def test_every_family_has_a_reader_and_a_small_configuration() -> None:
    names = architectures()
    assert len(set(names)) == len(names)
    assert set(names) == {name for name in read_yaml(FAMILIES_FILE) if not name.startswith("_")}
    # A config.json of another class, or of code beside the checkpoint: read like a family that is tested.
    alike = {
        "kimi_k2",
        "glm4_moe_lite",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "mimo",
        "minimax_text_01",
        "minimax_m1",
        "minimax_m3",
    }
    alike |= {
        "glm4_moe_lite",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "minimax_m3_vl_text",
        "step3p5",
        "step3p7",
        "yuan",
        "smollm3",
        "deepseek_ref",
        "nemotron-nas",
        *("baichuan", "internlm2", "qwen", "chatglm"),
    }
    assert {model_type for model_type, _ in SMALL.values()} == set(names) - alike


@pytest.mark.parametrize("name", CONFIGS)
def test_same_shape_as_shipped(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "My Model (1)"
    folder.mkdir()
    spec = read(folder, COMMON | CONFIGS[name] | {"max_position_embeddings": 4096})
    assert spec.shape() == load_model(name).shape() | {"max_position_embeddings": 4096}
    assert spec.name == "My-Model-1-"
    assert load_model(str(folder)) == load_model(str(folder / "config.json")) == spec


def test_what_is_not_applied_is_noted(tmp_path: Path) -> None:
    assert "quantization_config is not applied" in read(tmp_path, CONFIGS["deepseek-v3"]).note
    assert read(tmp_path, CONFIGS["qwen2.5-14b"]).note == ""
    wrapped = {"model_type": "qwen3_vl", "text_config": CONFIGS["qwen3-4b"] | {"model_type": "qwen3_vl_text"}}
    spec = read(tmp_path, wrapped)
    assert "the text part of a 'qwen3_vl' configuration" in spec.note
    assert spec.shape() == load_model("qwen3-4b").shape() | {
        "architecture": "qwen3_vl_text",
        "max_position_embeddings": None,
    }


@pytest.mark.parametrize(
    ("name", "absent", "field", "expected"),
    [
        ("mistral-7b-v0.1", "num_key_value_heads", "num_key_value_heads", 8),
        ("qwen3-30b-a3b", "num_key_value_heads", "num_key_value_heads", 4),
        ("qwen3-30b-a3b", "num_experts", "num_experts", 128),
        ("qwen3-30b-a3b", "head_dim", "head_dim", 64),
        ("qwen3-4b", "head_dim", "head_dim", 128),
        ("qwen3-4b", "tie_word_embeddings", "tie_word_embeddings", False),
        ("mixtral-8x7b-v0.1", "num_local_experts", "num_experts", 8),
        ("deepseek-v2-lite", "q_lora_rank", "q_lora_rank", 1536),
        ("deepseek-v2-lite", "first_k_dense_replace", "first_k_dense_replace", 0),
        ("deepseek-v3", "first_k_dense_replace", "first_k_dense_replace", 3),
        ("deepseek-v3", "num_nextn_predict_layers", "num_nextn_predict_layers", 0),
        ("ernie-4.5-300b-a47b", "tie_word_embeddings", "tie_word_embeddings", True),
        ("ernie-4.5-21b-a3b", "moe_layer_end_index", "first_k_dense_replace", 1),
    ],
)
def test_an_absent_key_means_the_class_default(
    name: str, absent: str, field: str, expected: object, tmp_path: Path
) -> None:
    config = {key: value for key, value in CONFIGS[name].items() if key != absent}
    assert getattr(read(tmp_path, config), field) == expected


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama3.1-8b", {"model_type": "rwkv7"}, "model_type: 'rwkv7' cannot be priced; known: llama, mistral"),
        ("llama3.1-8b", {"model_type": "qwen2_mo"}, "did you mean 'qwen2_moe'"),
        ("llama3.1-8b", {"model_type": "bamba"}, "the nearest that is: nemotron_h; it differs by a gated network"),
        ("llama3.1-8b", {"hidden_act": "tanh"}, "hidden_act: 'tanh' cannot be priced"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias: "),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq: "),
        ("ernie-4.5-21b-a3b", {"use_bias": True}, "use_bias: "),
        ("ernie-4.5-21b-a3b", {"moe_num_experts": [64, 64]}, "moe_num_experts: a list of 2"),
    ],
)
def test_what_cannot_be_priced_is_named(name: str, changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read(tmp_path, CONFIGS[name] | changes)
    assert message in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "4096"}, "hidden_size: '4096' must be a whole number"),
        ({"hidden_size": 4096.0}, "hidden_size: '4096.0' must be a whole number"),
        ({"hidden_size": True}, "hidden_size: 'True' must be a whole number"),
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"hidden_size": 10**400}, "hidden_size: "),
        ({"num_attention_heads": 0, "head_dim": None}, "num_attention_heads: 0 must divide hidden_size"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: '0'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no' must be true or false"),
        ({"model_type": ["llama"]}, "model_type: '['llama']' must be text"),
        ({"hidden_act": 7}, "hidden_act: '7' must be text"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "mlp_only_layers: '3' must be a list"),
    ],
)
def test_wrong_values_are_one_line(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, CONFIGS["llama3.1-8b"] | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["mamba", "gpt2", "bloom", "llama", "qwen3_next"])
def test_sizes_of_the_model_are_never_assumed(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"num_hidden_layers: is missing.*vocab_size: is missing"):
        read(tmp_path, {"model_type": kind, "hidden_size": 64})


@pytest.mark.parametrize("content", ["[]", "{}", "null", "", "{", '{"model_type": null, "a": 1', "\ufeff{}"])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SimulateError):
        read_config(file)


def test_leading_dense_layers_of_qwen3_moe(tmp_path: Path) -> None:
    spec = read(tmp_path, CONFIGS["qwen3-30b-a3b"] | {"mlp_only_layers": [1, 0]})
    assert spec.num_dense_layers == 2


def test_deepseek_without_experts_is_dense(tmp_path: Path) -> None:
    spec = read(tmp_path, CONFIGS["deepseek-v3"] | {"n_routed_experts": None})
    assert not spec.is_moe
