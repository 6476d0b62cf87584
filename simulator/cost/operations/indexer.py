"""Operations of sparse attention's indexer: small heads score all keys, each token keeps the best. Sums nothing."""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.blocks import vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Operation, Saved, Weight

INDEX_BYTES = 4.0
"""Bytes of the index of a chosen key."""


def indexer(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the projections of queries and one key head, and the scores of all earlier tokens; the choice is saved.

    Latent attention projects the compressed queries, and weights heads by a projection of its own (DeepSeek-V3.2);
    grouped-query attention projects the hidden state and norms queries and keys (MiniMax-M3). The indexer is trained
    with the model, so every pass counts. Its scores are one product, half of attention's two; they are not saved.
    """
    model, element = conditions.model, element_bytes(conditions)
    hidden, size, heads = model.hidden_size, model.index_head_dim, model.index_heads
    width = heads * size
    key = Weight("index_k", hidden, size, "replicated")
    weights: tuple[Weight, ...]
    if model.attention == "mla":
        weights = (
            Weight("index_q", model.q_lora_rank or hidden, width, "replicated"),
            Weight("index_weights", hidden, heads, "replicated"),
            *(vector(name, size) for name in ("index_k_norm", "index_k_norm_bias")),
        )
    else:
        query = Weight("index_q", hidden, width, "replicated")
        weights = (query, *(vector(name, size) for name in ("index_q_norm", "index_k_norm")))
    return (
        Operation(
            name="indexer",
            group="indexer",
            weights=(key, *weights),
            saved=(
                Saved("index_query_key", element * (width + size), "whole"),
                Saved("index_weights", FP32 * heads, "whole"),
                Saved("index_choice", INDEX_BYTES * model.index_topk, "whole"),
            ),
            core_width=width / 2.0,
        ),
    )
