"""Families whose layers are all alike but for windows: one feed-forward network that every token passes."""

from collections.abc import Callable, Mapping
from typing import Final

from simulator.question.specs.configuration import Config
from simulator.question.specs.families.common import (
    Fields,
    activation,
    all_biases,
    even_share,
    every_layer_slides,
    grouped,
    heads,
    kinds,
    sizes,
    sliding_layers,
    windowed_from,
)


def _llama(config: Config) -> Fields:
    return grouped(config)


def _mistral(config: Config) -> Fields:
    fields = grouped(config, kv_heads=8)
    return fields | every_layer_slides(config, fields["num_hidden_layers"])


def _ministral(config: Config) -> Fields:
    fields = grouped(config, kv_heads=8)
    layers = fields["num_hidden_layers"]
    windowed = config.optional("sliding_window") is not None
    default = ["sliding_attention" if windowed else "full_attention"] * layers
    return fields | kinds(config, sliding_layers(config, layers, default))


def _qwen2(config: Config) -> Fields:
    fields = sizes(config) | activation(config) | {"attention_bias": True}
    fields |= heads(config, fields, kv_heads=32)
    return fields | windowed_from(config, fields["num_hidden_layers"])


def _mimo(config: Config) -> Fields:
    return _qwen2(config) | {
        "attention_bias": config.flag("attention_bias", default=True),
        "num_nextn_predict_layers": config.integer("num_nextn_predict_layers", 0),
    }


def _qwen3(config: Config) -> Fields:
    fields = grouped(config, kv_heads=32, head_dim=128) | {"qk_norm": True}
    return fields | windowed_from(config, fields["num_hidden_layers"])


def _ernie4_5(config: Config) -> Fields:
    biased = config.flag("use_bias", default=False)
    biases = {"attention_bias": biased, "attention_output_bias": biased, "mlp_bias": biased}
    return grouped(config, kv_heads=2, head_dim=128, tied=True) | biases


def _glm(config: Config) -> Fields:
    fields = sizes(config) | activation(config) | {"attention_bias": config.flag("attention_bias", default=True)}
    return fields | heads(config, fields, kv_heads=2, head_dim=128)


def _glm4(config: Config) -> Fields:
    return _glm(config) | {"norm_placement": "around"}


def _olmo(config: Config) -> Fields:
    return grouped(config) | {"norm": "layer_norm_unweighted"}


def _olmo2(config: Config) -> Fields:
    return grouped(config) | {"norm_placement": "after", "qk_norm": True, "qk_norm_span": "projection"}


def _olmo3(config: Config) -> Fields:
    fields = _olmo2(config)
    layers = fields["num_hidden_layers"]
    default = ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(layers)]
    return fields | kinds(config.assuming(sliding_window=4096), sliding_layers(config, layers, default))


def _phi3(config: Config) -> Fields:
    fields = sizes(config) | activation(config)
    fields |= heads(config, fields)
    return fields | every_layer_slides(config, fields["num_hidden_layers"])


def _gemma(config: Config) -> Fields:
    fields = sizes(config, tied=True) | all_biases(config)
    fields |= activation(config, "gelu_pytorch_tanh", keys=("hidden_activation", "hidden_act"))
    return fields | heads(config, fields, kv_heads=16, head_dim=256)


def _gemma2(config: Config) -> Fields:
    return _alternating_gemma(config, 2, "final_logit_softcapping" if config.has("final_logit_softcapping") else None)


def _gemma3(config: Config) -> Fields:
    every = config.layers("sliding_window_pattern", 6)
    return _alternating_gemma(config, every, "final_logit_softcapping") | {"qk_norm": True}


def _alternating_gemma(config: Config, every: int, cap: str | None) -> Fields:
    """Norms on both sides, windows in all but every n-th layer; Gemma 2 bounds its logits unless told otherwise."""
    fields = _gemma(config.assuming(num_key_value_heads=4))
    layers = fields["num_hidden_layers"]
    default = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    capped = cap is None or config.present(cap)
    fields |= {"norm_placement": "around", "logit_softcap": capped}
    return fields | kinds(config.assuming(sliding_window=4096), sliding_layers(config, layers, default))


def _plain(*, biased: bool = True) -> Fields:
    """A feed-forward network without a gate, LayerNorms, and biases everywhere or nowhere."""
    norm = "layer_norm" if biased else "layer_norm_without_bias"
    biases = dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), biased)
    return {"gated": False, "norm": norm} | biases


def _gpt2(config: Config) -> Fields:
    hidden, positions = config.integer("n_embd", 768), config.integer("n_positions", 1024)
    fields = {
        "num_hidden_layers": config.layers("n_layer", 12),
        "hidden_size": hidden,
        "intermediate_size": config.optional("n_inner") or 4 * hidden,
        "num_attention_heads": config.integer("n_head", 12),
        "vocab_size": config.integer("vocab_size", 50257),
        "tie_word_embeddings": config.flag("tie_word_embeddings", default=True),
        "max_position_embeddings": positions,
        "rotary": False,
        "learned_positions": positions,
    }
    fields |= _plain() | activation(config, "gelu_new", keys=("activation_function",))
    return fields | {"num_key_value_heads": fields["num_attention_heads"], "head_dim": even_share(config, fields)}


def _gpt_bigcode(config: Config) -> Fields:
    fields = _gpt2(config)
    return fields | ({"num_key_value_heads": 1} if config.flag("multi_query", default=True) else {})


def _gpt_neox(config: Config) -> Fields:
    biased = config.flag("attention_bias", default=True)
    fields = sizes(config) | _plain() | activation(config, "gelu")
    fields |= {"attention_bias": biased, "attention_output_bias": biased}
    fields |= {"num_key_value_heads": fields["num_attention_heads"], "head_dim": even_share(config, fields)}
    return fields | {"parallel_residual": config.flag("use_parallel_residual", default=True)}


def _bloom(config: Config) -> Fields:
    config = config.renamed(n_layer="num_hidden_layers", n_head="num_attention_heads", n_embed="hidden_size")
    fields = sizes(config.assuming(intermediate_size=4 * config.integer("hidden_size")), tied=True) | _plain()
    fields |= {"num_key_value_heads": fields["num_attention_heads"], "head_dim": even_share(config, fields)}
    return fields | {"activation": "gelu", "rotary": False, "embedding_norm": True}


def _opt(config: Config) -> Fields:
    for key, only in (("do_layer_norm_before", True), ("_remove_final_layer_norm", False)):
        if config.flag(key, default=only) != only:
            raise config.unsupported(key, f"only {str(only).lower()} can be priced")
    if config.integer("word_embed_proj_dim", config.integer("hidden_size")) != config.integer("hidden_size"):
        raise config.unsupported("word_embed_proj_dim", "embeddings of another width than hidden_size cannot be priced")
    fields = sizes(config.renamed(ffn_dim="intermediate_size"), tied=True)
    fields |= _plain() | activation(config, "relu", keys=("activation_function",))
    biased = config.flag("enable_bias", default=True)
    fields |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), biased)
    fields |= {"num_key_value_heads": fields["num_attention_heads"], "head_dim": even_share(config, fields)}
    # The table has two rows that no position uses.
    positions = config.integer("max_position_embeddings", 2048) + 2
    return fields | {"rotary": False, "learned_positions": positions}


def _mpt(config: Config) -> Fields:
    attention = config.section("attn_config")
    if attention.text("attn_type", "multihead_attention") != "multihead_attention":
        raise config.unsupported("attn_config.attn_type", "only 'multihead_attention' can be priced")
    for key in ("qk_ln", "prefix_lm"):
        if attention.flag(key, default=False):
            raise config.unsupported(f"attn_config.{key}", "only false can be priced")
    names = {"n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "d_model": "hidden_size"}
    config = config.renamed(max_seq_len="max_position_embeddings", **names)
    width = config.integer("hidden_size") * config.integer("expansion_ratio", 4)
    fields = sizes(config.assuming(intermediate_size=width), tied=True) | _plain(biased=False)
    fields |= {"num_key_value_heads": fields["num_attention_heads"], "head_dim": even_share(config, fields)}
    return fields | {"activation": "gelu", "rotary": False}


def _starcoder2(config: Config) -> Fields:
    biased = config.flag("use_bias", default=True)
    fields = sizes(config, tied=True) | _plain() | activation(config, "gelu_pytorch_tanh")
    fields |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), biased)
    fields |= heads(config, fields, kv_heads=2)
    return fields | every_layer_slides(config, fields["num_hidden_layers"])


def _nemotron(config: Config) -> Fields:
    fields = sizes(config) | _plain() | activation(config, "relu2")
    return fields | all_biases(config) | heads(config, fields)


def _yuan(config: Config) -> Fields:
    return grouped(config, tied=True) | {"mixers": ("filtered",)}


DENSE: Final[Mapping[str, Callable[[Config], Fields]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "ministral": _ministral,
    "ministral3": _ministral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3,
    "mimo": _mimo,
    "ernie4_5": _ernie4_5,
    "glm": _glm,
    "glm4": _glm4,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neox": _gpt_neox,
    "bloom": _bloom,
    "opt": _opt,
    "mpt": _mpt,
    "starcoder2": _starcoder2,
    "nemotron": _nemotron,
    "yuan": _yuan,
}
"""Readers by `model_type`."""
