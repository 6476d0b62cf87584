"""Families with layers that mix tokens by linear attention or a state space."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from simulator.errors import InputError
from simulator.question.specs.configuration import Config
from simulator.question.specs.families.common import (
    Fields,
    activation,
    attention_layers,
    grouped,
    kinds,
    period,
    routed_experts,
    translated,
)
from simulator.question.specs.families.experts import gated_shared_expert, interleaved
from simulator.question.specs.model import FeedForward, LayerKind, Mixer

_CHUNK: Final = 64
"""Tokens that the published kernels of the gated delta rule treat at once."""
_DELTA: Final[Mapping[str, Mixer]] = {"linear_attention": "gated_delta", "full_attention": "grouped_query"}


def _delta_layers(config: Config, fields: Fields) -> Fields:
    """Gated delta net in all layers but every n-th, which has gated attention."""
    layers, every = fields["num_hidden_layers"], config.layers("full_attention_interval", 4)
    default = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    mixers = translated(config, "layer_types", attention_layers(config, layers, default), _DELTA)
    predicted = config.integer("mtp_num_hidden_layers", config.integer("num_nextn_predict_layers", 0))
    return {
        "mixers": period(mixers),
        "qk_norm": True,
        "attention_gate": "element",
        "linear_key_heads": config.integer("linear_num_key_heads", 16),
        "linear_value_heads": config.integer("linear_num_value_heads", 32),
        "linear_key_head_dim": config.integer("linear_key_head_dim", 128),
        "linear_value_head_dim": config.integer("linear_value_head_dim", 128),
        "convolution": config.integer("linear_conv_kernel_dim", 4),
        "chunk_tokens": _CHUNK,
        "num_nextn_predict_layers": predicted,
    }


def _delta_experts(config: Config, layers: int, experts: int, chosen: int) -> Fields:
    return {
        **routed_experts(config, "num_experts", experts, chosen, usual=512),
        **gated_shared_expert(config, 512),
        **kinds(config, (), interleaved(config, layers)),
    }


def _qwen3_next(config: Config) -> Fields:
    fields = grouped(config.assuming(intermediate_size=5632), kv_heads=2, head_dim=256)
    return fields | _delta_layers(config, fields) | _delta_experts(config, fields["num_hidden_layers"], 512, 10)


def _qwen3_5(config: Config) -> Fields:
    fields = grouped(config, kv_heads=4, head_dim=256)
    return fields | _delta_layers(config, fields)


def _qwen3_5_moe(config: Config) -> Fields:
    width = config.integer("moe_intermediate_size", 512)
    fields = grouped(config.assuming(intermediate_size=width), kv_heads=2, head_dim=256)
    return fields | _delta_layers(config, fields) | _delta_experts(config, fields["num_hidden_layers"], 256, 8)


def _minimax(config: Config) -> Fields:
    fields = grouped(config, kv_heads=8)
    layers = fields["num_hidden_layers"]
    listed = config.integers("attn_type_list")
    default = ["full_attention" if one else "linear_attention" for one in listed]
    default = default or ["linear_attention" if (i + 1) % 2 else "full_attention" for i in range(layers)]
    known: dict[str, Mixer] = {"linear_attention": "lightning", "full_attention": "grouped_query"}
    mixers = translated(config, "layer_types", attention_layers(config, layers, default), known)
    if config.integer("shared_intermediate_size", 0):
        raise config.unsupported("shared_intermediate_size", "only 0 (no shared experts) can be priced")
    fields |= kinds(config, mixers)
    return fields | {
        "chunk_tokens": config.integer("block_size", 256),
        **routed_experts(config, "num_local_experts", 8, 2, width=fields["intermediate_size"]),
    }


_BLOCKS: Final[Mapping[str, LayerKind]] = {
    "M": LayerKind("mamba", "none"),
    "*": LayerKind("grouped_query", "none"),
    "-": LayerKind("none", "plain"),
    "E": LayerKind("none", "experts"),
}
_WORDS: Final[Mapping[str, LayerKind]] = {
    "mamba": _BLOCKS["M"],
    "linear_attention": _BLOCKS["M"],
    "attention": _BLOCKS["*"],
    "full_attention": _BLOCKS["*"],
    "mlp": _BLOCKS["-"],
    "moe": _BLOCKS["E"],
}


def _nemotron_h(config: Config) -> Fields:
    """Layers of one part each: a state space, attention, a network or experts."""
    key, blocks = _nemotron_blocks(config)
    if not blocks:
        raise InputError(f"{config.where}: {key}: is missing")
    layers = len(blocks)
    sized = config.replaced(num_hidden_layers=layers).renamed(attention_head_dim="head_dim")
    fields = grouped(sized.replaced(hidden_act="silu"), kv_heads=8, head_dim=128)
    mixers: list[Mixer] = [kind.mixer for kind in blocks]
    networks: list[FeedForward] = [kind.feed_forward for kind in blocks]
    for biased in ("use_bias", "mamba_proj_bias"):
        if config.flag(biased, default=False):
            raise config.unsupported(biased, "biases of the state space's projections cannot be priced")
    fields |= activation(config, "relu2", keys=("mlp_hidden_act",)) | {"gated": False, "rotary": False}
    # Both patterns repeat at the same place.
    both = period(blocks)
    fields |= {"mixers": tuple(mixers[: len(both)]), "feed_forwards": tuple(networks[: len(both)])}
    fields |= _state_space(config) if "mamba" in mixers else {}
    return fields | (_nemotron_experts(config) if "experts" in networks else {})


def _nemotron_blocks(config: Config) -> tuple[str, Sequence[LayerKind]]:
    for key in ("layers_block_type", "layer_types"):
        if words := config.texts(key):
            return key, translated(config, key, words, _WORDS)
    key = "hybrid_override_pattern"
    return key, translated(config, key, list(config.text(key, "")), _BLOCKS)


def _state_space(config: Config) -> Fields:
    return {
        "mamba_heads": config.integer("mamba_num_heads", 128),
        "mamba_head_dim": config.integer("mamba_head_dim", 64),
        "mamba_groups": config.integer("n_groups", 8),
        "mamba_state": config.integer("ssm_state_size", 128),
        "convolution": config.integer("conv_kernel", 4),
        "convolution_bias": config.flag("use_conv_bias", default=True),
        "chunk_tokens": config.integer("chunk_size", 128),
    }


def _nemotron_experts(config: Config) -> Fields:
    predicted = config.integer("num_nextn_predict_layers", 0)
    if predicted:
        words = config.texts("mtp_layers_block_type") or list(config.text("mtp_hybrid_override_pattern", "*E"))
        if [_WORDS.get(word) or _BLOCKS.get(word) for word in words] != [_BLOCKS["*"], _BLOCKS["E"]]:
            raise config.unsupported("mtp_hybrid_override_pattern", "only attention and experts can be priced")
    return {
        "num_experts": config.integer("n_routed_experts", 8),
        "num_experts_per_tok": config.integer("num_experts_per_tok", 2),
        "num_shared_experts": config.integer("n_shared_experts", 1),
        "moe_intermediate_size": config.integer("moe_intermediate_size", 7688),
        "shared_expert_intermediate_size": config.integer("moe_shared_expert_intermediate_size", 7688),
        "expert_latent_size": config.integer("moe_latent_size", 0),
        "router_bias": True,
        "num_nextn_predict_layers": predicted,
    }


HYBRID: Final[Mapping[str, Callable[[Config], Fields]]] = {
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "minimax": _minimax,
    "minimax_text_01": _minimax,
    "minimax_m1": _minimax,
    "nemotron_h": _nemotron_h,
}
"""Readers by `model_type`."""
