"""Families with routed experts whose layers mix tokens by attention."""

from collections.abc import Callable, Mapping
from typing import Final

from simulator.question.specs.configuration import Config
from simulator.question.specs.families.common import (
    Fields,
    activation,
    grouped,
    heads,
    kinds,
    routed_experts,
    sizes,
    sliding_layers,
    translated,
    windowed_from,
)
from simulator.question.specs.model import FeedForward, Mixer


def _mixtral(config: Config) -> Fields:
    fields = grouped(config, kv_heads=8)
    return fields | routed_experts(config, "num_local_experts", 8, 2, width=fields["intermediate_size"])


def interleaved(config: Config, layers: int) -> list[FeedForward]:
    """Qwen's rule: experts in every `decoder_sparse_step`-th layer but those of `mlp_only_layers`."""
    step, dense = config.layers("decoder_sparse_step", 1), set(config.integers("mlp_only_layers"))
    return ["experts" if i not in dense and (i + 1) % step == 0 else "gated" for i in range(layers)]


def _qwen_experts(config: Config, fields: Fields, experts: int, chosen: int, width: int) -> Fields:
    key = "num_experts" if config.has("num_experts") else "num_local_experts"
    layers = fields["num_hidden_layers"]
    return {
        **routed_experts(config, key, experts, chosen, usual=width),
        **kinds(config, (), interleaved(config, layers)),
    }


def _qwen2_moe(config: Config) -> Fields:
    fields = sizes(config) | activation(config) | {"attention_bias": config.flag("qkv_bias", default=True)}
    fields |= heads(config, fields, kv_heads=16) | windowed_from(config, fields["num_hidden_layers"])
    return fields | _qwen_experts(config, fields, 60, 4, 1408) | gated_shared_expert(config, 5632)


def gated_shared_expert(config: Config, width: int) -> Fields:
    """One shared expert of a width of its own, weighed by a gate."""
    return {
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": config.integer("shared_expert_intermediate_size", width),
        "shared_expert_gate": True,
    }


def _qwen3_moe(config: Config) -> Fields:
    fields = grouped(config, kv_heads=4) | {"qk_norm": True}
    fields |= windowed_from(config, fields["num_hidden_layers"])
    return fields | _qwen_experts(config, fields, 128, 8, 768)


def _deepseek(config: Config, absent: Mapping[str, int]) -> Fields:
    """A model with latent attention.

    ``absent`` holds what the class assumes for absent keys; a null for the routed experts means a dense model.
    """

    def count(key: str) -> int:
        return config.integer(key, 0 if config.has(key) else absent[key])

    if config.flag("attention_bias", default=False):
        raise config.unsupported("attention_bias", "biases in latent attention cannot be priced")
    if config.integer("moe_layer_freq", 1) != 1:
        raise config.unsupported("moe_layer_freq", "only 1 (experts in every layer) can be priced")
    fields = sizes(config) | activation(config) | _latent(config)
    fields |= {
        "num_key_value_heads": fields["num_attention_heads"],
        "num_nextn_predict_layers": config.integer("num_nextn_predict_layers", 0),
    }
    if not count("n_routed_experts"):
        return fields
    return fields | {
        "num_experts": count("n_routed_experts"),
        "num_experts_per_tok": count("num_experts_per_tok"),
        "num_shared_experts": count("n_shared_experts"),
        "moe_intermediate_size": count("moe_intermediate_size"),
        "first_k_dense_replace": config.layers("first_k_dense_replace", count("first_k_dense_replace"), low=0),
    }


def _latent(config: Config) -> Fields:
    nope, rope = config.integer("qk_nope_head_dim", 128), config.integer("qk_rope_head_dim", 64)
    return {
        "attention": "mla",
        "head_dim": nope + rope,
        "q_lora_rank": config.optional("q_lora_rank") if config.has("q_lora_rank") else 1536,
        "kv_lora_rank": config.integer("kv_lora_rank", 512),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": config.integer("v_head_dim", 128),
    }


_V2: Final = {
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 0,
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
}
_V3: Final = {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}


def _deepseek_v2(config: Config) -> Fields:
    fields = _deepseek(config, _V2)
    limited = config.text("topk_method", "greedy") == "group_limited_greedy"
    return fields | (_groups(config, fields, 1, 1) if limited else {})


def _groups(config: Config, fields: Fields, groups: int, used: int) -> Fields:
    """Return the groups that routing is limited to, nothing where it is free; the numbers stand for absent keys."""
    if "num_experts" not in fields or config.integer("n_group", groups) <= 1:
        return {}
    return {"n_group": config.integer("n_group", groups), "topk_group": config.integer("topk_group", used)}


def _deepseek_v3(config: Config) -> Fields:
    fields = _deepseek(config, _V3)
    corrected = config.text("topk_method", "noaux_tc") == "noaux_tc"
    return fields | {"router_bias": corrected and "num_experts" in fields} | _groups(config, fields, 8, 4)


def _deepseek_v32(config: Config) -> Fields:
    return _deepseek_v3(config) | {"mixers": ("sparse_latent",)} | _index(config, 64)


def _index(config: Config, count: int) -> Fields:
    return {
        "index_heads": config.integer("index_n_heads", count),
        "index_head_dim": config.integer("index_head_dim", 128),
        "index_topk": config.integer("index_topk", 2048),
    }


def _glm_moe_dsa(config: Config) -> Fields:
    absent = {"qk_nope_head_dim": 192, "v_head_dim": 256, "q_lora_rank": 2048}
    fields = _deepseek_v3(config.assuming(**absent)) | _index(config, 32)
    layers = fields["num_hidden_layers"]
    words = config.texts("indexer_types") or _indexer_schedule(config, layers)
    known: dict[str, Mixer] = {"full": "sparse_latent", "shared": "shared_sparse_latent"}
    mixers = translated(config, "indexer_types", words[:layers], known)
    networks: list[FeedForward] = ["gated"] * fields.pop("first_k_dense_replace")
    networks += ["experts"] * (layers - len(networks))
    if given := config.texts("mlp_layer_types"):
        networks = translated(config, "mlp_layer_types", given[:layers], _SPARSE)
    return fields | kinds(config, mixers, networks, usual="latent")


_SPARSE: Final[Mapping[str, FeedForward]] = {"dense": "gated", "sparse": "experts"}


def _indexer_schedule(config: Config, layers: int) -> list[str]:
    """Layers with an indexer of their own: all before an offset, and every n-th from there."""
    every, offset = max(config.integer("index_topk_freq", 1), 1), config.integer("index_skip_topk_offset", 2)
    return ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(layers)]


def _glm4_moe(config: Config) -> Fields:
    fields = sizes(config) | activation(config)
    fields |= {
        "attention_bias": config.flag("attention_bias", default=False),
        "qk_norm": config.flag("use_qk_norm", default=False),
        "router_bias": True,
    }
    return fields | heads(config, fields, kv_heads=8) | _corrected(config, 128, 1, 1408, dense=1)


def _corrected(config: Config, experts: int, shared: int, width: int, *, dense: int) -> Fields:
    """Experts by the keys of DeepSeek-V3, on other attention."""
    return {
        "num_experts": config.integer("n_routed_experts", experts),
        "num_experts_per_tok": config.integer("num_experts_per_tok", 8),
        "num_shared_experts": config.integer("n_shared_experts", 0 if config.has("n_shared_experts") else shared),
        "moe_intermediate_size": config.integer("moe_intermediate_size", width),
        "first_k_dense_replace": config.integer("first_k_dense_replace", dense),
        "num_nextn_predict_layers": config.integer("num_nextn_predict_layers", 0),
    }


def _gpt_oss(config: Config) -> Fields:
    fields = grouped(config.assuming(attention_bias=True), kv_heads=8, head_dim=64)
    layers = fields["num_hidden_layers"]
    default = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    return fields | {
        **routed_experts(config, "num_local_experts", 128, 4, width=fields["intermediate_size"]),
        "mlp_bias": True,
        "router_bias": True,
        "attention_sinks": "all",
        **kinds(config.assuming(sliding_window=128), sliding_layers(config, layers, default)),
    }


def _minimax_m2(config: Config) -> Fields:
    fields = sizes(config) | activation(config) | {"router_bias": config.flag("use_routing_bias", default=True)}
    trained = config.flag("use_mtp", default=False)
    if config.integer("shared_intermediate_size", 0):
        raise config.unsupported("shared_intermediate_size", "only 0 (no shared experts) can be priced")
    norms = {"qk_norm": config.flag("use_qk_norm", default=True), "qk_norm_span": "projection"}
    if config.text("qk_norm_type", "per_layer") != "per_layer":
        raise config.unsupported("qk_norm_type", "only 'per_layer' can be priced")
    return fields | {
        **norms,
        **heads(config, fields, kv_heads=8, head_dim=128),
        **routed_experts(config, "num_local_experts", 256, 8, width=fields["intermediate_size"]),
        "num_nextn_predict_layers": config.integer("num_mtp_modules", 0) if trained else 0,
    }


def _minimax_m3(config: Config) -> Fields:
    sparse = config.section("sparse_attention_config")
    fields = sizes(config) | activation(config) | {"qk_norm": True}
    layers = fields["num_hidden_layers"]
    chosen = sparse.integers("sparse_attention_freq") or [0] * layers
    routed = config.integers("moe_layer_freq") or [1] * layers
    mixers: list[Mixer] = ["sparse" if one else "grouped_query" for one in chosen[:layers]]
    networks: list[FeedForward] = ["experts" if one else "gated" for one in routed[:layers]]
    index = {
        "index_heads": sparse.integer("sparse_num_index_heads", 4),
        "index_head_dim": sparse.integer("sparse_index_dim", 128),
        "index_topk": sparse.integer("sparse_block_size", 128) * sparse.integer("sparse_topk_blocks", 16),
    }
    fields |= index if "sparse" in mixers else {}
    return fields | {
        **heads(config, fields, kv_heads=4, head_dim=128),
        "intermediate_size": config.integer("dense_intermediate_size", 12288),
        **routed_experts(config, "num_local_experts", 128, 4, width=fields["intermediate_size"]),
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": config.integer("shared_intermediate_size", 3072),
        "router_bias": config.flag("use_routing_bias", default=True),
        "num_nextn_predict_layers": config.integer("num_nextn_predict_layers", 0),
        **kinds(config, mixers, networks),
    }


def _llama4(config: Config) -> Fields:
    fields = grouped(config, kv_heads=8, head_dim=128)
    layers, width = fields["num_hidden_layers"], fields["intermediate_size"]
    step = config.layers("interleave_moe_layer_step", 1)
    routed = set(config.integers("moe_layers") or range(step - 1, layers, step))
    every = config.layers("no_rope_layer_interval", 4)
    rotated = config.integers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]
    chunk = config.optional("attention_chunk_size") if config.has("attention_chunk_size") else 8192
    mixers: list[Mixer] = ["sliding" if one and chunk else "grouped_query" for one in rotated[:layers]]
    networks: list[FeedForward] = ["experts" if i in routed else "gated" for i in range(layers)]
    normed = config.flag("use_qk_norm", default=True)
    fields |= kinds(config.assuming(sliding_window=chunk or 0), mixers, networks)
    return fields | {
        "intermediate_size": config.integer("intermediate_size_mlp", 16384),
        **routed_experts(config, "num_local_experts", 16, 1, width=width),
        "num_shared_experts": 1,
        "window_chunked": "sliding" in mixers,
        **({"qk_norm": True, "qk_norm_span": "unweighted"} if normed else {}),
    }


def _mimo_v2_flash(config: Config) -> Fields:
    fields = sizes(config) | activation(config) | heads(config, sizes(config), kv_heads=4, head_dim=192)
    layers = fields["num_hidden_layers"]
    chosen = config.integers("hybrid_layer_pattern")
    default = ["sliding_attention" if one else "full_attention" for one in chosen]
    mixers = sliding_layers(config, layers, default or [_mimo_layer(i) for i in range(layers)])
    routed = config.integers("moe_layer_freq") or [int(i > 0) for i in range(layers)]
    networks: list[FeedForward] = ["experts" if one else "gated" for one in routed[:layers]]
    for key, own in (("swa_head_dim", "head_dim"), ("swa_v_head_dim", "v_head_dim")):
        if config.has(key) and config.optional(key) != config.optional(own):
            raise config.unsupported(key, f"sliding layers with another {own} than full ones cannot be priced")
    window = config.optional("sliding_window_size")
    assumed = config.assuming(sliding_window=128) if window is None else config.replaced(sliding_window=window + 1)
    shared = fields["num_key_value_heads"]
    fields |= kinds(assumed, mixers, networks)
    return fields | {
        "v_head_dim": config.integer("v_head_dim", 128),
        "sliding_attention_heads": config.integer("swa_num_attention_heads", fields["num_attention_heads"]),
        "sliding_key_value_heads": config.integer("swa_num_key_value_heads", 2 * shared),
        "attention_sinks": "sliding",
        "attention_bias": config.flag("attention_bias", default=False),
        **routed_experts(config, "n_routed_experts", 256, 8, usual=2048),
        "router_bias": True,
    }


def _mimo_layer(index: int) -> str:
    return "sliding_attention" if index and (index + 1) % 6 else "full_attention"


def _step(config: Config) -> Fields:
    config = config.renamed(num_attention_groups="num_key_value_heads", moe_num_experts="num_experts")
    config = config.renamed(n_routed_experts="num_experts", moe_top_k="num_experts_per_tok")
    fields = grouped(config, kv_heads=8, head_dim=128)
    layers, predicted = fields["num_hidden_layers"], config.integer("num_nextn_predict_layers", 0)
    mixers = sliding_layers(config, layers, ["full_attention"] * layers)
    leading = config.layers("first_k_dense_replace", 3, low=0)
    routed = set(config.numbers_of_text("moe_layers_enum") or range(leading, layers))
    networks: list[FeedForward] = ["experts" if i in routed else "gated" for i in range(layers)]
    other = config.section("attention_other_setting")
    own = {"sliding_attention_heads": other.integer("num_attention_heads", fields["num_attention_heads"])}
    fields |= kinds(config, mixers, networks)
    fields |= own if "sliding" in mixers else {}
    return fields | {
        "qk_norm": True,
        "attention_gate": "head",
        **routed_experts(config, "num_experts", 288, 8, usual=1280),
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": config.integer("share_expert_dim", 1280),
        "router_bias": config.flag("use_moe_router_bias", default=True),
        "num_nextn_predict_layers": predicted,
    }


def _ernie4_5_moe(config: Config) -> Fields:
    biased = config.flag("use_bias", default=False)
    if biased:
        raise config.unsupported("use_bias", "a bias on the output layer cannot be priced")
    fields = grouped(config, kv_heads=4, tied=True)
    layers = fields["num_hidden_layers"]
    start = config.single("moe_layer_start_index", 1)
    every = config.replaced(moe_layer_interval=config.single("moe_layer_interval", 1)).layers("moe_layer_interval")
    end = config.single("moe_layer_end_index", -1)
    last = layers - 1 if end == -1 else end
    networks: list[FeedForward] = [
        "experts" if start <= i <= last and (i + 1) % every == 0 else "gated" for i in range(layers)
    ]
    fields |= kinds(config, (), networks)
    return fields | {
        "num_experts": config.single("moe_num_experts", 64),
        "num_experts_per_tok": config.integer("moe_k", 6),
        "num_shared_experts": config.integer("moe_num_shared_experts", 2),
        "moe_intermediate_size": config.single("moe_intermediate_size", 1536),
        "router_bias": config.flag("moe_use_aux_free", default=True),
        "num_nextn_predict_layers": config.integer("num_nextn_predict_layers", 0),
    }


def _olmoe(config: Config) -> Fields:
    fields = grouped(config)
    return fields | {
        "qk_norm": True,
        "qk_norm_span": "projection",
        **routed_experts(config, "num_experts", 64, 8, width=fields["intermediate_size"]),
    }


EXPERTS: Final[Mapping[str, Callable[[Config], Fields]]] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "deepseek_v32": _deepseek_v32,
    "kimi_k2": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "glm_moe_dsa": _glm_moe_dsa,
    "gpt_oss": _gpt_oss,
    "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3,
    "minimax_m3_vl_text": _minimax_m3,
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo_v2_flash,
    "step3p5": _step,
    "step3p7": _step,
    "ernie4_5_moe": _ernie4_5_moe,
    "olmoe": _olmoe,
}
"""Readers by `model_type`."""
