"""Attention of DeepSeek-V4: one key-value tensor for all heads, a window, and compressed keys before it.

Read from transformers 5.23.0, models/deepseek_v4/modeling_deepseek_v4.py. Megatron-LM runs it whole on every
tensor-parallel rank (009276b, transformer/experimental_attention_variant/deepseek_v4_hybrid_attention.py). Sums
nothing.
"""

from __future__ import annotations

from typing import cast as as_type

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import core_attention, rotation
from simulator.cost.operations.blocks import cast, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.indexer import INDEX_BYTES
from simulator.cost.operations.record import Operation, Saved, Weight, Window
from simulator.question.specs.model import Mixer


def compressed(conditions: Conditions, mixer: Mixer) -> tuple[Operation, ...]:
    """Return the operations between norm and residual: low-rank queries, one key-value head, compressed keys, output.

    A token attends to a window, and to one key per `compression` tokens if an indexer chooses it (`compressed_sparse`),
    or to all keys of `heavy_compression` tokens each (`heavily_compressed`).
    """
    model, element = conditions.model, element_bytes(conditions)
    heads, rank = model.heads(mixer), as_type("int", model.q_lora_rank)
    hidden, size, query = model.hidden_size, heads.size, heads.query_width
    down = Operation(
        name="shared_down",
        group="attention_projection",
        weights=(
            Weight("q_a", hidden, rank, "replicated"),
            vector("q_a_norm", rank),
            Weight("shared_key_value", hidden, size, "replicated"),
            vector("shared_norm", size),
        ),
        saved=(
            Saved("latents", element * (rank + size), "sequence"),
            Saved("latent_norm_statistics", 2.0 * FP32, "sequence"),
            Saved("latent_norm_outputs", element * rank, "sequence"),
        ),
        moved=cast(conditions, float(hidden), "sequence"),
        calls=0.5,
    )
    up = Operation(
        name="shared_up",
        group="attention_projection",
        weights=(Weight("q_b", rank, query, "column"),),
        # Queries are normalised without weights: the input is saved, and one number per head.
        saved=(
            Saved("query_projection", element * query, "tensor"),
            Saved("qk_norm_statistics", FP32 * heads.queries, "tensor"),
        ),
    )
    rotated = (Saved("query", element * query, "tensor"), Saved("shared_key", element * size, "whole"))
    core = core_attention(conditions, mixer)._replace(core_window=Window(as_type("int", model.sliding_window)))
    return (
        down,
        up,
        rotation(conditions, mixer, rotated),
        *_compressed_keys(conditions, mixer),
        core,
        *_compressed_core(conditions, mixer),
        *_output(conditions, query),
    )


def _tokens(conditions: Conditions, mixer: Mixer) -> int:
    """Return the tokens per compressed key; 0 without such keys."""
    model = conditions.model
    return {"compressed_sparse": model.compression, "heavily_compressed": model.heavy_compression}.get(mixer, 0)


def _compressor(conditions: Conditions, prefix: str, size: int, width: int, tokens: int) -> Operation:
    """Return the keys of several tokens as their gated mean: two products, a bias per position, and a norm.

    It saves values and softmaxed gates, in fp32 and cast, `8` bytes a feature; and per key, one in `tokens`, the norm's
    input, its output, and the rotated key.
    """
    model, element = conditions.model, element_bytes(conditions)
    saved = (2.0 * element + FP32) * width + (3.0 * element * size + FP32) / tokens
    return Operation(
        name=f"{prefix}compressor",
        group="indexer" if prefix else "attention_projection",
        weights=(
            Weight(f"{prefix}compressed", model.hidden_size, width, "replicated"),
            Weight(f"{prefix}compressed_gate", model.hidden_size, width, "replicated"),
            Weight(f"{prefix}compressed_bias", tokens, width, "replicated", matmul=False),
            vector(f"{prefix}compressed_norm", size),
        ),
        saved=(Saved(f"{prefix}compressed_states", saved, "whole"),),
    )


def _compressed_keys(conditions: Conditions, mixer: Mixer) -> tuple[Operation, ...]:
    """Return the compressed keys, and the indexer that chooses among them and compresses keys of its own."""
    model, element, tokens = conditions.model, element_bytes(conditions), _tokens(conditions, mixer)
    if not tokens:
        return ()
    size = model.head_dim
    if mixer == "heavily_compressed":
        return (_compressor(conditions, "", size, size, tokens),)
    # Neighbouring windows overlap: every token contributes to its own key and to the next.
    queries = model.index_heads * model.index_head_dim
    indexer = Operation(
        name="indexer",
        group="indexer",
        weights=(
            Weight("index_q", as_type("int", model.q_lora_rank), queries, "replicated"),
            Weight("index_weights", model.hidden_size, model.index_heads, "replicated"),
        ),
        saved=(
            Saved("index_query_key", element * queries, "whole"),
            Saved("index_weights", FP32 * model.index_heads, "whole"),
            Saved("index_choice", INDEX_BYTES * model.index_topk, "whole"),
        ),
        # One product of scores, over the compressed keys.
        core_width=queries / 2.0 / tokens,
    )
    return (
        _compressor(conditions, "", size, 2 * size, tokens),
        _compressor(conditions, "index_", model.index_head_dim, 2 * model.index_head_dim, tokens),
        indexer,
    )


def _compressed_core(conditions: Conditions, mixer: Mixer) -> tuple[Operation, ...]:
    """Return the attention to compressed keys, all or chosen, which the window's kernel computes too."""
    model, tokens = conditions.model, _tokens(conditions, mixer)
    if not tokens:
        return ()
    width = model.heads(mixer).query_width / tokens
    chosen = Window(tokens * model.index_topk) if mixer == "compressed_sparse" else None
    return (
        Operation(name="compressed_attention", group="core_attention", core_width=float(width), core_window=chosen),
    )


def _output(conditions: Conditions, query: int) -> tuple[Operation, ...]:
    """Return the inverse rotation and the output: every group of heads to a narrow width, all to the hidden size."""
    model, element = conditions.model, element_bytes(conditions)
    narrow = model.output_groups * model.output_lora_rank
    fused = conditions.framework.fused_rotary
    undone = () if fused else (Saved("unrotated_output", element * query, "tensor"),)
    return (
        Operation(
            name="grouped_output",
            group="attention_projection",
            weights=(Weight("o_a", query // model.output_groups, narrow, "column"),),
            saved=undone,
        ),
        Operation(
            name="output_projection",
            group="attention_projection",
            weights=(Weight("o", narrow, model.hidden_size, "row"),),
            saved=(Saved("grouped_output", element * narrow, "tensor"),),
            moved=cast(conditions, float(narrow), "tensor"),
        ),
    )
