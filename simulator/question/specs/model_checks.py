"""Contradictions in the shape of a model, a message each. Raises and mends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from simulator.question.specs.mixers import LATENT, NEEDS, TRAITS, UNDIVIDED

if TYPE_CHECKING:
    from simulator.question.specs.model import ModelSpec

_MLA_FIELDS: Final = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_MOE_FIELDS: Final = ("num_experts_per_tok", "moe_intermediate_size")
_MOE_DETAILS: Final = ("num_shared_experts", "first_k_dense_replace", "router_bias", "n_group")
SHARED_EXPERT_FIELDS: Final = (
    *("shared_expert_intermediate_size", "shared_expert_gate", "expert_latent_size", "expert_latent_norm"),
)
EXPERT_FIELDS: Final = frozenset(("num_experts", "topk_group", *_MOE_FIELDS, *_MOE_DETAILS, *SHARED_EXPERT_FIELDS))
"""Fields that only a model with routed experts has."""


def problems(model: ModelSpec) -> Iterator[str]:
    """Yield every problem of a shape."""
    for check in (_head_problem, _mla_problem, _moe_problem, _group_problem, _kind_problem, _whole_problem):
        if problem := check(model):
            yield problem


def _head_problem(model: ModelSpec) -> str:
    """Return the problem of the heads, or an empty text."""
    heads, shared = model.num_attention_heads, model.num_key_value_heads
    if heads % shared:
        return f"num_attention_heads {heads} must be a multiple of num_key_value_heads {shared}"
    return ""


def _mla_problem(model: ModelSpec) -> str:
    """Return the problem of the latent attention fields, or an empty text."""
    if model.attention == "gqa":
        latent = ("q_lora_rank", *(field for field in _MLA_FIELDS if field != "v_head_dim"))
        compressed = ("q_lora_rank", "qk_rope_head_dim") if UNDIVIDED.intersection(model.mixers) else ()
        present = [field for field in latent if field not in compressed and getattr(model, field) is not None]
        return f"{present[0]} is for attention 'mla' only; this model has 'gqa'" if present else ""
    missing = [field for field in _MLA_FIELDS if getattr(model, field) is None]
    if missing:
        return f"attention 'mla' needs {missing[0]}"
    if model.attention_bias or model.qk_norm:
        return "attention 'mla' takes neither attention_bias nor qk_norm"
    joined = (model.qk_nope_head_dim or 0) + (model.qk_rope_head_dim or 0)
    if model.head_dim != joined:
        return f"head_dim {model.head_dim} must be qk_nope_head_dim + qk_rope_head_dim = {joined}"
    if model.num_key_value_heads != model.num_attention_heads:
        return "attention 'mla' needs num_key_value_heads equal to num_attention_heads"
    return ""


def _moe_problem(model: ModelSpec) -> str:
    """Return the problem of the expert fields, or an empty text."""
    if not model.is_moe:
        for field in (*_MOE_FIELDS, *_MOE_DETAILS, *SHARED_EXPERT_FIELDS):
            if getattr(model, field):
                return f"{field} needs num_experts of at least 1"
        return ""
    for field in _MOE_FIELDS:
        if not getattr(model, field):
            return f"num_experts {model.num_experts} needs {field} of at least 1"
    if model.num_experts_per_tok > model.num_experts:
        return f"num_experts_per_tok {model.num_experts_per_tok} exceeds num_experts {model.num_experts}"
    if model.first_k_dense_replace > model.num_hidden_layers:
        return (
            f"first_k_dense_replace {model.first_k_dense_replace} exceeds num_hidden_layers {model.num_hidden_layers}"
        )
    return ""


def _group_problem(model: ModelSpec) -> str:
    """Return the problem of the groups of experts, or an empty text."""
    groups, used = model.n_group, model.topk_group
    if groups == used == 0 or (groups and model.num_experts % groups == 0 and 1 <= used <= groups):
        return ""
    return f"n_group {groups}, topk_group {used}: of groups that divide {model.num_experts} experts a token uses some"


def _kind_problem(model: ModelSpec) -> str:
    """Return the problem of the sequence of layer kinds, or an empty text."""
    mixers: set[str] = set(model.mixers)
    for needing, field in NEEDS:
        present = mixers & needing
        if bool(present) != bool(getattr(model, field)):
            says = "needs {} of at least 1" if present else "is what {} is for; this model has none"
            named = next(mixer for mixer in TRAITS if mixer in (present or needing))
            return f"mixer '{named}' {says.format(field)}"
    return _sequence_problem(model, mixers)


def _whole_problem(model: ModelSpec) -> str:
    """Return the problem of the parts around the layers, or an empty text."""
    if bool(model.layer_embedding_size) != bool(model.layer_embedding_rows):
        return "layer_embedding_size and layer_embedding_rows go together"
    if model.residual_streams > 1 and (model.norm_placement != "before" or model.residual_block):
        return (
            f"residual_streams {model.residual_streams} stand with norm_placement 'before', and without residual_block"
        )
    if model.output_groups and model.query_width % model.output_groups:
        return f"output_groups {model.output_groups} must divide the {model.query_width} features of all heads"
    return ""


def _sequence_problem(model: ModelSpec, mixers: set[str]) -> str:
    """Return the contradiction in the sequence, or an empty text."""
    latent = mixers & LATENT
    if model.attention == "gqa" and latent:
        return f"mixer '{min(latent)}' needs attention 'mla'"
    if model.feed_forwards and model.is_moe != any(kind.routed for kind in model.layers):
        return "feed_forwards and num_experts must agree on whether there are experts"
    if model.feed_forwards and model.first_k_dense_replace:
        return "first_k_dense_replace and feed_forwards both say which layers are dense; give one"
    if any(kind[:2] == ("none", "none") for kind in model.layers):
        return "a layer of mixer 'none' and feed-forward 'none' is empty"
    own = model.sliding_attention_heads or model.sliding_key_value_heads
    heads, shared = model.heads("sliding").queries, model.heads("sliding").shared
    return f"{heads} sliding heads must be a multiple of {shared} key-value heads" if own and heads % shared else ""
