"""Hugging Face ``config.json`` to a model spec.

The file is data: it is parsed as JSON, nothing is fetched and no code it
names is run. A key that is absent means what the configuration class of the
``transformers`` library makes of its absence. Sizes that a saved
configuration always carries are required. What the simulator cannot price is
refused by name.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, UnsupportedError, did_you_mean
from simulator.question.specs.configuration import Config
from simulator.question.specs.documents import read_json
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.validation import validated

CONFIG_FILE: Final = "config.json"
"""File name Hugging Face gives a model's configuration."""

Fields = dict[str, Any]
"""Fields of a model spec by name."""


def read_config(file: Path) -> ModelSpec:
    """Return the model a Hugging Face configuration describes; InputError or UnsupportedError if none."""
    values = read_json(file)
    if not isinstance(values, dict):
        raise InputError(f"{file}: must hold a mapping of keys to values")
    config = Config(str(file), values)
    if not config.has("model_type"):
        raise InputError(f"{file}: model_type: is missing; this is not a Hugging Face model configuration")
    architecture = config.text("model_type", "")
    if architecture not in _READERS:
        raise UnsupportedError(
            f"{file}: model_type: '{architecture[:60]}' cannot be priced"
            f"{did_you_mean(architecture, _READERS) or ';'} known: {', '.join(_READERS)}"
        )
    _refuse_unpriced(config)
    fields = {"name": _name_of(file), "architecture": architecture, "note": _note(config)}
    return validated(config.where, ModelSpec, fields | _READERS[architecture](config))


def _refuse_unpriced(config: Config) -> None:
    """Refuse settings that change the shape in ways the spec does not hold."""
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        raise config.unsupported("hidden_act", f"'{activation[:40]}' cannot be priced; only 'silu' can")
    for key in ("mlp_bias", "use_bias"):
        if config.flag(key, default=False):
            raise config.unsupported(key, "biases in the feed-forward network cannot be priced")


def _common(config: Config, *, tied: bool = False) -> Fields:
    """Return the fields all architectures write the same way."""
    return {
        "num_hidden_layers": config.integer("num_hidden_layers"),
        "hidden_size": config.integer("hidden_size"),
        "intermediate_size": config.integer("intermediate_size"),
        "num_attention_heads": config.integer("num_attention_heads"),
        "vocab_size": config.integer("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", default=tied),
        "max_position_embeddings": config.optional("max_position_embeddings"),
    }


def _gqa(config: Config, *, kv_heads: int | None = None, head_dim: int | None = None, tied: bool = False) -> Fields:
    """Return the fields of a model with shared key-value heads.

    ``kv_heads`` and ``head_dim`` are what the class assumes for an absent key;
    None, like a null in the file, means one per query head and an even share
    of the hidden size.
    """
    if config.flag("attention_bias", default=False):
        raise config.unsupported("attention_bias", "a bias on the output projection cannot be priced")
    fields = _common(config, tied=tied)
    heads = fields["num_attention_heads"]
    absent_heads = heads if config.has("num_key_value_heads") else kv_heads
    fields["num_key_value_heads"] = config.integer("num_key_value_heads", absent_heads or heads)
    absent_dim = None if config.has("head_dim") else head_dim
    given = config.optional("head_dim") or absent_dim
    fields["head_dim"] = _even_share(config, fields) if given is None else given
    return fields


def _even_share(config: Config, fields: Fields) -> int:
    """Return the hidden size over the query heads."""
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    if heads < 1 or hidden % heads:
        raise InputError(
            f"{config.where}: num_attention_heads: {heads} must divide hidden_size {hidden} without head_dim"
        )
    return int(hidden // heads)


def _llama(config: Config) -> Fields:
    return _gqa(config)


def _mistral(config: Config) -> Fields:
    return _gqa(config, kv_heads=8)


def _mixtral(config: Config) -> Fields:
    fields = _gqa(config, kv_heads=8)
    return fields | {
        "num_experts": config.integer("num_local_experts", 8),
        "num_experts_per_tok": config.integer("num_experts_per_tok", 2),
        "moe_intermediate_size": fields["intermediate_size"],
    }


def _qwen2(config: Config) -> Fields:
    return _gqa(config, kv_heads=32) | {"attention_bias": True}


def _qwen3(config: Config) -> Fields:
    return _gqa(config, kv_heads=32, head_dim=128) | {"qk_norm": True}


def _qwen3_moe(config: Config) -> Fields:
    if config.integer("decoder_sparse_step", 1) != 1:
        raise config.unsupported("decoder_sparse_step", "only 1 (experts in every layer) can be priced")
    dense = sorted(config.integers("mlp_only_layers"))
    if dense != list(range(len(dense))):
        raise config.unsupported("mlp_only_layers", "dense layers can be priced only where they come first")
    experts_key = "num_experts" if config.has("num_experts") else "num_local_experts"
    return _gqa(config, kv_heads=4) | {
        "qk_norm": True,
        "num_experts": config.integer(experts_key, 128),
        "num_experts_per_tok": config.integer("num_experts_per_tok", 8),
        "moe_intermediate_size": config.integer("moe_intermediate_size", 768),
        "first_k_dense_replace": len(dense),
    }


def _deepseek(config: Config, absent: Mapping[str, int]) -> Fields:
    """Return the fields of a model with latent attention.

    ``absent`` holds what the class assumes for absent keys; a null for the
    routed experts means a dense model.
    """

    def count(key: str) -> int:
        return config.integer(key, 0 if config.has(key) else absent[key])

    if config.flag("attention_bias", default=False):
        raise config.unsupported("attention_bias", "biases in latent attention cannot be priced")
    if config.integer("moe_layer_freq", 1) != 1:
        raise config.unsupported("moe_layer_freq", "only 1 (experts in every layer) can be priced")
    fields = _common(config)
    nope, rope = config.integer("qk_nope_head_dim", 128), config.integer("qk_rope_head_dim", 64)
    fields |= {
        "attention": "mla",
        "num_key_value_heads": fields["num_attention_heads"],
        "head_dim": nope + rope,
        "q_lora_rank": config.optional("q_lora_rank") if config.has("q_lora_rank") else 1536,
        "kv_lora_rank": config.integer("kv_lora_rank", 512),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": config.integer("v_head_dim", 128),
        "num_nextn_predict_layers": config.integer("num_nextn_predict_layers", 0),
    }
    if not count("n_routed_experts"):
        return fields
    return fields | {
        "num_experts": count("n_routed_experts"),
        "num_experts_per_tok": count("num_experts_per_tok"),
        "num_shared_experts": count("n_shared_experts"),
        "moe_intermediate_size": count("moe_intermediate_size"),
        "first_k_dense_replace": count("first_k_dense_replace"),
    }


def _deepseek_v2(config: Config) -> Fields:
    absent = {
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 0,
        "moe_intermediate_size": 1407,
        "first_k_dense_replace": 0,
    }
    fields = _deepseek(config, absent)
    limited = config.text("topk_method", "greedy") == "group_limited_greedy"
    return fields | (_groups(config, fields, 1, 1) if limited else {})


def _groups(config: Config, fields: Fields, groups: int, used: int) -> Fields:
    """Return the groups that routing is limited to, nothing where it is free; the numbers stand for absent keys."""
    if "num_experts" not in fields or config.integer("n_group", groups) <= 1:
        return {}
    return {"n_group": config.integer("n_group", groups), "topk_group": config.integer("topk_group", used)}


def _deepseek_v3(config: Config) -> Fields:
    absent = {
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
    }
    fields = _deepseek(config, absent)
    corrected = config.text("topk_method", "noaux_tc") == "noaux_tc"
    return fields | {"router_bias": corrected and "num_experts" in fields} | _groups(config, fields, 8, 4)


def _ernie4_5(config: Config) -> Fields:
    return _gqa(config, kv_heads=2, head_dim=128, tied=True)


def _ernie4_5_moe(config: Config) -> Fields:
    if config.single("moe_layer_interval", 1) != 1:
        raise config.unsupported("moe_layer_interval", "only 1 (experts in every layer) can be priced")
    fields = _gqa(config, kv_heads=4, tied=True)
    last = config.single("moe_layer_end_index", -1)
    if last != -1 and last < fields["num_hidden_layers"] - 1:
        raise config.unsupported("moe_layer_end_index", "dense layers that come last cannot be priced")
    return fields | {
        "num_experts": config.single("moe_num_experts", 64),
        "num_experts_per_tok": config.integer("moe_k", 6),
        "num_shared_experts": config.integer("moe_num_shared_experts", 2),
        "moe_intermediate_size": config.single("moe_intermediate_size", 1536),
        "first_k_dense_replace": config.single("moe_layer_start_index", 1),
        "router_bias": config.flag("moe_use_aux_free", default=True),
        "num_nextn_predict_layers": config.integer("num_nextn_predict_layers", 0),
    }


_READERS: Final[Mapping[str, Callable[[Config], Fields]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "ernie4_5": _ernie4_5,
    "ernie4_5_moe": _ernie4_5_moe,
}


def _note(config: Config) -> str:
    """Return what the reader of the result should know about settings left out."""
    notes = []
    if config.has("sliding_window") and config.flag("use_sliding_window", default=True):
        window = config.optional("sliding_window")
        if window is not None:
            notes.append(f"sliding_window {window} is not applied: attention covers the whole sequence.")
    if config.has("quantization_config"):
        notes.append("quantization_config is not applied: the precision asked for is priced.")
    return " ".join(notes)


def _name_of(file: Path) -> str:
    """Return a name for the model: the folder of a ``config.json``, the stem of any other file."""
    raw = file.absolute().parent.name if file.name == CONFIG_FILE else file.stem
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", raw).lstrip("._+-")
    return name[:100] or "config"
