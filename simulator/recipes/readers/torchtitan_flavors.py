"""Flavors of torchtitan that are no published model: the ones that its own tests train.

Shapes as `torchtitan/models/*/__init__.py` of v0.2.0 and `torchtitan/experiments/llama4/__init__.py` of v0.1.0 have
them, the widths of feed-forward networks as their `model.py` rounds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TABLE: Final = 2048
"""Vocabulary of the test tokenizer, which v0.2.0 names beside each shape."""
_COMMON: Final = {"hidden_size": 256, "num_attention_heads": 16, "vocab_size": _TABLE}
_LLAMA: Final = {
    **_COMMON,
    "num_hidden_layers": 6,
    "intermediate_size": 768,
    "num_key_value_heads": 16,
    "head_dim": 16,
}
_QWEN3: Final = {
    **_COMMON,
    "architecture": "qwen3",
    "num_hidden_layers": 8,
    "intermediate_size": 3072,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "qk_norm": True,
}
FLAVORS: Final[Mapping[str, Mapping[str, object]]] = {
    "llama3-debugmodel": _LLAMA,
    "llama4-debugmodel": {
        **_LLAMA,
        "architecture": "llama4_text",
        "feed_forwards": ("gated", "experts"),
        "num_experts": 8,
        "num_experts_per_tok": 1,
        "num_shared_experts": 1,
        "moe_intermediate_size": 512,
        "router_bias": True,
    },
    "qwen3-debugmodel": {**_QWEN3, "tie_word_embeddings": True},
    "qwen3-debugmodel-moe": {
        **_QWEN3,
        "architecture": "qwen3_moe",
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "deepseek-v3-debugmodel": {
        **_COMMON,
        "architecture": "deepseek_v3",
        "num_hidden_layers": 6,
        "intermediate_size": 1024,
        "num_key_value_heads": 16,
        "head_dim": 192,
        "attention": "mla",
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 2,
        "moe_intermediate_size": 256,
        "first_k_dense_replace": 1,
    },
}
"""Shapes by name and flavor, as `ModelSpec` has them."""


def shape_of(name: str, *, with_table: bool) -> dict[str, object]:
    """The shape of a flavor; without its vocabulary where a tokenizer decides it. Empty where it is none of these."""
    shape = dict(FLAVORS.get(name, {}))
    if not with_table:
        shape.pop("vocab_size", None)
    return shape
