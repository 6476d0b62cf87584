"""Small configurations of every family, as keys of its configuration class in transformers."""

from typing import Any

_SIZES: dict[str, Any] = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
_FALCON: dict[str, Any] = {key: value for key, value in _SIZES.items() if key != "intermediate_size"}
_SHARED: dict[str, Any] = _SIZES | {"num_key_value_heads": 2, "head_dim": 32}
_QWEN: dict[str, Any] = _SHARED | {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
_LATENT: dict[str, Any] = _SIZES | {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 2,
    "n_group": 1,
    "topk_group": 1,
}
_INDEX: dict[str, Any] = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
_GPT2: dict[str, Any] = {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 128, "n_positions": 32}
_NEMOTRON: dict[str, Any] = _SHARED | {
    "mlp_hidden_act": "relu2",
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
}

_COMPRESSED: dict[str, Any] = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "vocab_size": 128,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "hc_mult": 3,
    "sliding_window": 16,
}
_GEMMA_4: dict[str, Any] = _SHARED | {
    "global_head_dim": 48,
    "num_global_key_value_heads": 1,
    "sliding_window": 16,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}
_KIMI: dict[str, Any] = {key: value for key, value in _LATENT.items() if key != "n_routed_experts"} | {
    "num_local_experts": 8,
    "n_shared_experts": 1,
    "pad_token_id": 0,
    "linear_attn_config": {
        "full_attn_layers": [3, 6],
        "kda_layers": [1, 2, 4, 5],
        "num_heads": 2,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
    },
}
_ROPE: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}
_GRANITE: dict[str, Any] = _SIZES | {
    "num_key_value_heads": 2,
    "shared_intermediate_size": 40,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "layer_types": ["mamba", "mamba", "attention"] * 2,
}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SHARED),
    "llama with biases": ("llama", _SHARED | {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", _SHARED | {"sliding_window": 16}),
    "ministral": ("ministral", _SHARED | {"sliding_window": 16}),
    "ministral3": ("ministral3", _SHARED),
    "qwen2": ("qwen2", _SIZES | {"num_key_value_heads": 2}),
    "qwen3": ("qwen3", _SHARED | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 4}),
    "ernie4_5": ("ernie4_5", _SHARED | {"use_bias": True}),
    "glm": ("glm", _SHARED | {"pad_token_id": 0}),
    "glm4": ("glm4", _SHARED | {"pad_token_id": 0}),
    "granite": ("granite", _SIZES | {"num_key_value_heads": 2}),
    "cohere": ("cohere", _SIZES | {"num_key_value_heads": 2, "attention_bias": True}),
    "cohere2": ("cohere2", _SIZES | {"num_key_value_heads": 2, "sliding_window": 16}),
    "stablelm": ("stablelm", _SIZES | {"num_key_value_heads": 2, "use_qkv_bias": True}),
    "stablelm side by side": ("stablelm", _SIZES | {"num_key_value_heads": 2, "use_parallel_residual": True}),
    "falcon": ("falcon", _FALCON | {"bias": True}),
    "falcon with new layers": ("falcon", _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon with one norm": (
        "falcon",
        _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon with all heads": ("falcon", _FALCON | {"multi_query": False}),
    "olmo": ("olmo", _SIZES | {"num_key_value_heads": 2}),
    "olmo2": ("olmo2", _SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}),
    "olmo3": ("olmo3", _SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}),
    "phi": ("phi", _SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}),
    "phi3": ("phi3", _SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}),
    "gemma": ("gemma", _SHARED),
    "gemma2": ("gemma2", _SHARED | {"attention_bias": True}),
    "gemma3": ("gemma3_text", _SHARED),
    "gpt2": ("gpt2", _GPT2),
    "gpt2 with a width": ("gpt2", _GPT2 | {"n_inner": 100}),
    "gptj": ("gptj", _GPT2 | {"rotary_dim": 8}),
    "gpt_bigcode": ("gpt_bigcode", _GPT2),
    "gpt_neox": ("gpt_neox", _SIZES),
    "gpt_neox in sequence": ("gpt_neox", _SIZES | {"use_parallel_residual": False, "attention_bias": False}),
    "bloom": ("bloom", {"n_layer": 3, "hidden_size": 64, "n_head": 4, "vocab_size": 128}),
    "opt": (
        "opt",
        _SIZES | {"ffn_dim": 96, "max_position_embeddings": 32, "word_embed_proj_dim": 64, "pad_token_id": 0},
    ),
    "mpt": ("mpt", {"n_layers": 3, "d_model": 64, "n_heads": 4, "vocab_size": 128}),
    "starcoder2": ("starcoder2", _SIZES | {"num_key_value_heads": 2}),
    "nemotron": ("nemotron", _SIZES | {"num_key_value_heads": 2}),
    "mixtral": ("mixtral", _SHARED | {"num_local_experts": 4}),
    "qwen2_moe": ("qwen2_moe", _QWEN | {"decoder_sparse_step": 2, "mlp_only_layers": [3], "head_dim": 16}),
    "qwen3_moe": ("qwen3_moe", _QWEN | {"mlp_only_layers": [2]}),
    "deepseek_v2": ("deepseek_v2", _LATENT),
    "deepseek_v3": ("deepseek_v3", _LATENT),
    "deepseek_v3 without query rank": ("deepseek_v3", _LATENT | {"q_lora_rank": None}),
    "deepseek_v32": ("deepseek_v32", _LATENT | _INDEX),
    "glm4_moe": ("glm4_moe", _SHARED | {"n_routed_experts": 8, "use_qk_norm": True, "attention_bias": True}),
    "glm_moe_dsa": ("glm_moe_dsa", _LATENT | _INDEX | {"index_topk_freq": 2, "index_skip_topk_offset": 2}),
    "gpt_oss": ("gpt_oss", _SHARED | {"num_local_experts": 8}),
    "minimax_m2": ("minimax_m2", _SHARED | {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "llama4": ("llama4_text", _SHARED | {"num_local_experts": 4, "interleave_moe_layer_step": 2}),
    "mimo_v2_flash": ("mimo_v2_flash", _SHARED | {"v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        _SHARED | {"moe_num_experts": 8, "moe_k": 2, "moe_layer_end_index": 4, "moe_layer_interval": 2},
    ),
    "olmoe": ("olmoe", _SIZES | {"num_experts": 8, "num_experts_per_tok": 2}),
    "qwen3_next": ("qwen3_next", _QWEN | _DELTA | {"mlp_only_layers": [1]}),
    "qwen3_5": ("qwen3_5_text", _SHARED | _DELTA),
    "qwen3_5_moe": ("qwen3_5_moe_text", _QWEN | _DELTA),
    "minimax": ("minimax", _SHARED | {"num_local_experts": 4}),
    "mamba": ("mamba", {"num_hidden_layers": 3, "hidden_size": 80, "vocab_size": 128, "state_size": 8}),
    "nemotron_h": ("nemotron_h", _NEMOTRON | {"hybrid_override_pattern": "M-M*ME"}),
    "nemotron_h with narrow experts": (
        "nemotron_h",
        _NEMOTRON | {"hybrid_override_pattern": "M-M*ME", "moe_latent_size": 24, "use_conv_bias": False},
    ),
    "deepseek_v4": (
        "deepseek_v4",
        _COMPRESSED | _INDEX | {"compress_ratios": [0, 0, 4, 128, 4, 128], "num_hash_layers": 2},
    ),
    "deepseek_v4 of the class": ("deepseek_v4", _COMPRESSED | _INDEX),
    "gemma4": ("gemma4_text", _GEMMA_4),
    "gemma4 with keys for values": ("gemma4_text", _GEMMA_4 | {"attention_k_eq_v": True}),
    "gemma4 with experts": (
        "gemma4_text",
        _GEMMA_4 | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 24},
    ),
    "gemma4 with embeddings of every layer": (
        "gemma4_text",
        _GEMMA_4
        | {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 100}
        | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    ),
    "arcee": ("arcee", _SHARED),
    "helium": ("helium", _SIZES | {"num_key_value_heads": 2, "head_dim": 16}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _SHARED | {"rope_parameters": _ROPE}),
    "exaone": ("exaone", _SIZES | {"num_key_value_heads": 2}),
    "exaone4": ("exaone4", _SIZES | {"num_key_value_heads": 2}),
    "exaone4 without windows": (
        "exaone4",
        _SIZES | {"num_key_value_heads": 2, "sliding_window": None, "layer_types": ["full_attention"] * 6},
    ),
    "seed_oss": ("seed_oss", _SHARED | {"attention_out_bias": True}),
    "vaultgemma": ("vaultgemma", _SHARED),
    "flex_olmo": ("flex_olmo", _SIZES | {"num_key_value_heads": 2, "num_experts": 8, "pad_token_id": 0}),
    "granitemoe": ("granitemoe", _SIZES | {"num_key_value_heads": 2}),
    "phimoe": ("phimoe", _SIZES | {"num_key_value_heads": 2, "num_local_experts": 4, "lm_head_bias": True}),
    "minicpm3": ("minicpm3", _SIZES | {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16}),
    "youtu": ("youtu", {key: value for key, value in _LATENT.items() if key in _SIZES or "_head_dim" in key}),
    "granitemoehybrid": ("granitemoehybrid", _GRANITE | {"num_local_experts": 4}),
    "granitemoehybrid without experts": ("granitemoehybrid", _GRANITE | {"num_local_experts": 0}),
    "afmoe": ("afmoe", _SHARED | {"num_experts": 8, "num_experts_per_tok": 2, "num_dense_layers": 2}),
    "kimi_linear": ("kimi_linear", _KIMI),
    "kimi_linear without ranks of queries": ("kimi_linear", _KIMI | {"q_lora_rank": None}),
}
"""Name to the family's `model_type` and the keys of a small model."""
