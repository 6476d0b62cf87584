"""Grouped-query attention: heads share keys and values, from multi-head to multi-query."""

from __future__ import annotations

from simulator.cost.elements import FP32, element_bytes
from simulator.cost.operations.attention import context_exchange, core_attention, output_projection, rotation
from simulator.cost.operations.blocks import cast, tensor_collective, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Kept, Operation, Weight


def grouped_query(given: Conditions) -> tuple[Operation, ...]:
    """The operations between the norm and the residual addition.

    With `keep_qkv_output` the fused projection's output `2 T (q + 2k)` stays alive through v, next to rotated q, k.
    """
    model, profile, element = given.model, given.framework, element_bytes(given)
    query, key = float(model.query_width), float(model.kv_width)
    expanded = query if profile.repeat_kv else key
    if profile.keep_qkv_output:
        output = Kept("qkv_output", element * (query + 2.0 * key), "tensor")
    else:
        output = Kept("value", element * expanded, "tensor")
    projection = Operation(
        name="query_key_value",
        group="attention_projection",
        weights=_weights(given),
        kept=(output,),
        moved=cast(given, float(model.hidden_size), "sequence"),
        collectives=(tensor_collective(given, "gather"),),
        calls=0.5,
    )
    rotated = Kept("rotated_query_key", element * (query + expanded), "tensor")
    normed = (_head_norms(given),) if model.qk_norm else ()
    return (
        projection,
        *normed,
        rotation(given, (rotated,)),
        context_exchange(given, 2.0 * expanded),
        core_attention(given),
        output_projection(given),
    )


def _weights(given: Conditions) -> tuple[Weight, ...]:
    model = given.model
    hidden, query, key_value = model.hidden_size, model.query_width, model.kv_width
    weights = (
        Weight("q", hidden, query, "column"),
        Weight("k", hidden, key_value, "column"),
        Weight("v", hidden, key_value, "column"),
    )
    if not model.attention_bias:
        return weights
    biases = (("q_bias", query), ("k_bias", key_value), ("v_bias", key_value))
    return (*weights, *(vector(name, length, "column") for name, length in biases))


def _head_norms(given: Conditions) -> Operation:
    """Queries and keys normalised per head: one number per head; the input where the projection's output is gone."""
    model = given.model
    heads = float(model.num_attention_heads + model.num_key_value_heads)
    kept = [Kept("qk_norm_statistics", FP32 * heads, "tensor")]
    if not given.framework.keep_qkv_output:
        width = float(model.query_width + model.kv_width)
        kept.append(Kept("qk_norm_input", element_bytes(given) * width, "tensor"))
    weights = (vector("q_norm", model.head_dim), vector("k_norm", model.head_dim))
    return Operation(name="query_key_norm", group="attention_projection", weights=weights, kept=tuple(kept))
