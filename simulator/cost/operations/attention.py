"""What the mixers with attention over all tokens share: core, exchange of contexts, output projection."""

from __future__ import annotations

from simulator.cost.elements import FP32, HALF, element_bytes
from simulator.cost.operations.blocks import cast, tensor_collective
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Collective, Kept, Operation, Weight


def attention_width(given: Conditions) -> float:
    """Width that the two attention products run over: `heads (qk size + v size) / 2`, h for the usual shapes."""
    return (given.model.query_width + given.model.value_width) / 2.0


def rotation(given: Conditions, kept: tuple[Kept, ...]) -> Operation:
    """Rotary position embedding: reads and writes q and k; what it makes is what the core keeps."""
    model, element = given.model, element_bytes(given)
    tables: tuple[Kept, ...] = ()
    if given.framework.rope_tables_per_call:
        # cos and sin, for q and for k, each one head wide; shared by the micro batch and by all heads.
        width = float(model.qk_rope_head_dim or model.head_dim)
        tables = (Kept("rope_tables", 4.0 * element * width, "positions"),)
    moved = Amount(2.0 * element * (model.query_width + model.kv_width), "tensor")
    return Operation(name="rotation", group="position", kept=(*kept, *tables), moved=(moved,))


def context_exchange(given: Conditions, joined_width: float) -> Operation:
    """Context-parallel exchange.

    Ring: every rank passes keys and values on, `c - 1` times, as one joined tensor of this width that the backward pass
    starts from. All-to-all: q, k, v and the output change from sequence to head splits. The backward pass exchanges
    twice as much.
    """
    model, element = given.model, element_bytes(given)
    values = model.num_key_value_heads * float(model.v_head_dim or model.head_dim)
    keys_values = model.kv_width + values
    if given.framework.cp_communication == "ring":
        exchange = Collective("context", "ring", element * keys_values, "tensor", "core_attention", backward=2.0)
        kept: tuple[Kept, ...] = (Kept("ring_key_value", element * joined_width, "ring"),)
    else:
        width = model.query_width + model.value_width + keys_values
        exchange = Collective("context", "all_to_all", element * width, "tensor", "core_attention", backward=2.0)
        kept = ()
    return Operation(name="context_exchange", group="context_exchange", kept=kept, collectives=(exchange,))


def core_attention(given: Conditions) -> Operation:
    """Softmax of the scores times the values.

    A flash kernel keeps its output and one number per row; without one the `a s s` score matrix is kept too, and the
    products, the mask and the softmax write and read it.
    """
    model, profile, element = given.model, given.framework, element_bytes(given)
    heads = float(model.num_attention_heads)
    output = Kept("attention_output", element * model.value_width, "tensor")
    if profile.flash_attention:
        return Operation(
            name="core_attention",
            group="core_attention",
            kept=(output, Kept("attention_statistics", FP32 * heads, "tensor")),
            core_width=attention_width(given),
        )
    scores = profile.attention_matrix_bytes * (element / HALF) * heads
    return Operation(
        name="core_attention",
        group="core_attention",
        kept=(output, Kept("attention_scores", scores, "scores")),
        moved=(Amount(4.5 * scores, "scores"),),
        core_width=attention_width(given),
    )


def output_projection(given: Conditions) -> Operation:
    """The product behind attention. Flash attention keeps its 16-bit output, this an 8-bit copy of it under fp8."""
    model = given.model
    copy = (Kept("attention_output_fp8", float(model.value_width), "tensor"),) if given.precision == "fp8" else ()
    return Operation(
        name="output_projection",
        group="attention_projection",
        weights=(Weight("o", model.value_width, model.hidden_size, "row"),),
        kept=copy,
        moved=cast(given, float(model.value_width), "tensor"),
        collectives=(tensor_collective(given, "reduce"),),
    )
