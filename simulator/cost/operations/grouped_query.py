"""Operations of attention with shared key-value heads: over all tokens, a window, or chosen blocks. Sums nothing."""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import (
    context_exchange,
    core_attention,
    output_gate,
    output_projection,
    rotation,
    shared_spread,
)
from simulator.cost.operations.blocks import cast, norm_bytes, summed_gradients, tensor_collective, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.indexer import indexer
from simulator.cost.operations.record import Amount, Collective, Operation, Saved, Weight
from simulator.question.specs.model import TRAITS, Mixer


def grouped_query(conditions: Conditions, mixer: Mixer = "grouped_query") -> tuple[Operation, ...]:
    """Return the operations between norm and residual addition: projections, head norms, positions, core, output.

    With `keep_qkv_output` the fused projection's output `2 T (q + 2k)` stays alive through v, beside rotated q and k;
    beside a repeated v only if another view of it is saved: unrotated queries, a norm's input, a gate. With fewer
    key-value heads than tensor-parallel ranks, the ranks gather the projection and take their parts.
    """
    model, profile, element = conditions.model, conditions.framework, element_bytes(conditions)
    heads = conditions.model.heads(mixer)
    query, key, value = float(heads.query_width), float(heads.key_width), float(heads.value_width)
    own = 0.0 if _values_from_keys(conditions, mixer) else value
    expanded = query if profile.repeat_kv else key
    output: tuple[Saved, ...] = ()
    viewed = not profile.repeat_kv or not model.rotary or model.qk_norm or model.attention_gate == "element"
    if profile.keep_qkv_output and viewed:
        gated = float(heads.output_width) if model.attention_gate == "element" else 0.0
        output = (Saved("qkv_output", element * (query + gated + key + own), shared_spread(mixer, "projection")),)
    if profile.repeat_kv or not profile.keep_qkv_output or model.value_norm:
        repeated = float(heads.output_width) if profile.repeat_kv else value
        output = (*output, Saved("value", element * repeated, shared_spread(mixer, "key_value")))
    joined = Collective("tensor", "gather", element * (query + key + own), shared_spread(mixer, "gathered"), "nothing")
    projection = Operation(
        name="query_key_value",
        group="attention_projection",
        weights=_weights(conditions, mixer),
        saved=output,
        moved=cast(conditions, float(model.hidden_size), "sequence"),
        moved_backward=summed_gradients(conditions, 3),
        collectives=(
            tensor_collective(conditions, "gather"),
            *((joined,) if profile.limits.replicates_kv_heads else ()),
        ),
        calls=0.5,
    )
    rotated = (
        Saved("rotated_query", element * query, "tensor"),
        Saved("rotated_key", element * expanded, shared_spread(mixer, "key_value")),
    )
    return (
        projection,
        *((_head_norms(conditions, mixer),) if model.qk_norm else ()),
        *_positions(conditions, mixer, rotated),
        context_exchange(conditions, mixer, expanded + (query if profile.repeat_kv else value)),
        *(indexer(conditions) if TRAITS[mixer].context == "chosen" else ()),
        core_attention(conditions, mixer),
        *output_gate(conditions, mixer),
        output_projection(conditions, heads.output_width),
    )


def _values_from_keys(conditions: Conditions, mixer: Mixer) -> bool:
    """Return whether values come from the keys' projection."""
    return conditions.model.keys_as_values and mixer != "sliding"


def _positions(conditions: Conditions, mixer: Mixer, rotated: tuple[Saved, ...]) -> tuple[Operation, ...]:
    """Return the rotation, if any; without one the core reads projected or normed queries and keys."""
    if conditions.model.rotary:
        return (rotation(conditions, mixer, rotated),)
    if conditions.framework.keep_qkv_output and not conditions.model.qk_norm:
        return ()
    return (Operation(name="query_key", group="position", saved=rotated),)


def _weights(conditions: Conditions, mixer: Mixer) -> tuple[Weight, ...]:
    model, heads = conditions.model, conditions.model.heads(mixer)
    hidden = model.hidden_size
    widths = {"q": heads.query_width, "k": heads.key_width, "v": heads.value_width}
    if _values_from_keys(conditions, mixer):
        del widths["v"]
    if model.attention_gate != "none":
        widths["g"] = heads.queries if model.attention_gate == "head" else heads.output_width
    weights = tuple(Weight(name, hidden, width, "column") for name, width in widths.items())
    if not model.attention_bias:
        return weights
    biased = {name: width for name, width in widths.items() if name != "g" or model.attention_gate == "element"}
    return (*weights, *(vector(f"{name}_bias", length, "column") for name, length in biased.items()))


def _head_norms(conditions: Conditions, mixer: Mixer) -> Operation:
    """Return the norms of queries and keys: save a number per head or projection, and an input not saved elsewhere."""
    heads, span = conditions.model.heads(mixer), conditions.model.qk_norm_span
    normed = 2 if conditions.model.value_norm else 1
    statistics = (
        Saved("qk_norm_statistics", 2.0 * FP32, "whole")
        if span == "projection"
        else Saved("qk_norm_statistics", FP32 * float(heads.queries + normed * heads.shared), "tensor")
    )
    saved = [statistics]
    if not conditions.framework.keep_qkv_output:
        value = heads.value_width if normed > 1 and not _values_from_keys(conditions, mixer) else 0
        width = float(heads.query_width + heads.key_width + value)
        saved.append(Saved("qk_norm_input", element_bytes(conditions) * width, "tensor"))
    weights = {
        "head": (vector("q_norm", heads.size), vector("k_norm", heads.size)),
        "projection": (vector("q_norm", heads.query_width, "column"), vector("k_norm", heads.key_width, "column")),
        "unweighted": (),
    }[span]
    passed = norm_bytes(conditions) * float(heads.query_width + heads.key_width)
    return Operation(
        name="query_key_norm",
        group="attention_projection",
        weights=weights,
        saved=tuple(saved),
        moved=(Amount(passed, "tensor"),),
    )
