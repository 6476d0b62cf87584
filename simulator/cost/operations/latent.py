"""Operations of latent attention (DeepSeek-V2): keys and values expanded from a compressed latent. Sums nothing."""

from __future__ import annotations

from typing import cast as as_type

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import (
    context_exchange,
    core_attention,
    output_gate,
    output_projection,
    rotation,
)
from simulator.cost.operations.blocks import cast, tensor_collective, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.indexer import indexer
from simulator.cost.operations.record import Operation, Saved, Weight
from simulator.question.specs.model import TRAITS, Mixer, ModelSpec


def latent(conditions: Conditions, mixer: Mixer = "latent") -> tuple[Operation, ...]:
    """Return the operations between norm and residual addition: projections down and up, positions, core, output.

    Operations are split as in Megatron. The compressed latents and their norms are saved. One projection expands keys
    and values; keys are joined with the shared rotary part into a new tensor. With `copy_latent_value` v is copied as
    well, and the projection's output is freed; without, it stays alive through v.
    """
    model, element = conditions.model, element_bytes(conditions)
    heads, (rank, no_rope, rope, value) = model.num_attention_heads, _sizes(model)
    normed = rank + (model.q_lora_rank or 0)
    down = Operation(
        name="latent_down",
        group="attention_projection",
        weights=_down_weights(conditions),
        saved=(
            Saved("latents", element * (normed + rope), "sequence"),
            *_norm_statistics(conditions),
            Saved("latent_norm_outputs", element * normed, "sequence"),
        ),
        moved=cast(conditions, float(model.hidden_size), "sequence"),
        collectives=(tensor_collective(conditions, "gather"),),
        calls=0.5,
    )
    query = () if model.q_lora_rank is None else (Weight("q_b", model.q_lora_rank, model.query_width, "column"),)
    expansion = Saved("latent_value", element * heads * value, "tensor")
    if not conditions.framework.copy_latent_value:
        expansion = Saved("key_value_projection", element * heads * (no_rope + value), "tensor")
    up = Operation(
        name="latent_up",
        group="attention_projection",
        weights=(*query, Weight("kv_b", rank, heads * (no_rope + value), "column")),
        saved=(expansion,),
    )
    rotated = tuple(Saved(name, element * heads * (no_rope + rope), "tensor") for name in ("query", "key"))
    return (
        down,
        up,
        _positions(conditions, mixer, rotated),
        context_exchange(conditions, mixer, heads * (no_rope + rope + value)),
        *(indexer(conditions) if TRAITS[mixer].context == "chosen" else ()),
        core_attention(conditions, mixer),
        *output_gate(conditions, mixer),
        output_projection(conditions, model.value_width),
    )


def _positions(conditions: Conditions, mixer: Mixer, rotated: tuple[Saved, ...]) -> Operation:
    """Return the rotation; without one, keys are still joined with their shared part, and queries stay as projected."""
    if conditions.model.rotary:
        return rotation(conditions, mixer, rotated)
    return Operation(name="rotation", group="position", saved=rotated)


def _sizes(model: ModelSpec) -> tuple[int, int, int, int]:
    """Return the latent's rank, and a head's features without rotation, with rotation, and of its values."""
    conditions = model.kv_lora_rank, model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
    return as_type("tuple[int, int, int, int]", conditions)


def _norm_statistics(conditions: Conditions) -> tuple[Saved, ...]:
    """Return one fp32 number per token for the norm of each latent."""
    norms = 1.0 if conditions.model.q_lora_rank is None else 2.0
    return (Saved("latent_norm_statistics", FP32 * norms, "sequence"),)


def _down_weights(conditions: Conditions) -> tuple[Weight, ...]:
    """Return the compressions, replicated on every rank, and their norms; without a query rank the query's projection.

    A gate on attention's output is one more product of the same input.
    """
    model = conditions.model
    hidden, (rank, _, rope, _) = model.hidden_size, _sizes(model)
    compressed: tuple[Weight, ...] = (
        Weight("kv_a", hidden, rank + rope, "replicated"),
        vector("kv_a_norm", rank),
    )
    if model.attention_gate != "none":
        gates = model.num_attention_heads if model.attention_gate == "head" else model.value_width
        compressed = (*compressed, Weight("g", hidden, gates, "column"))
    if model.q_lora_rank is None:
        return (Weight("q", hidden, model.query_width, "column"), *compressed)
    query = (Weight("q_a", hidden, model.q_lora_rank, "replicated"), vector("q_a_norm", model.q_lora_rank))
    return (*query, *compressed)
