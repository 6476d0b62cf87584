"""Operations shared by all kinds of attention: core, context-parallel exchanges, output projection.

The module of each kind, such as latent attention, lists its operations.
"""

from __future__ import annotations

from typing import Final, Literal, assert_never
from typing import cast as as_type

from simulator.cost.dtypes import FP32, HALF, element_bytes, narrow_number_bytes
from simulator.cost.operations.blocks import cast, tensor_collective, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Collective, Operation, Saved, Spread, Weight, Window
from simulator.question.specs.model import Heads, Mixer
from simulator.question.vocabulary import NARROW, ContextExchange

_SLIDING: Final = ("sliding", "reused_sliding")
"""Mixers over a window with the heads of sliding layers."""


def shared_spread(mixer: Mixer, of: Literal["key_value", "projection", "gathered", "ring"]) -> Spread:
    """Return the spread of a tensor with the key-value heads of a mixer."""
    forms: dict[str, Spread] = {
        "key_value": "sliding_key_value",
        "projection": "sliding_projection",
        "gathered": "sliding_gathered",
        "ring": "sliding_ring",
    }
    return forms[of] if mixer in _SLIDING else of


def attention_width(heads: Heads) -> float:
    """Return the width of the two attention products, `heads (qk size + v size) / 2`: h for the usual shapes."""
    return (heads.query_width + heads.output_width) / 2.0


def rotation(conditions: Conditions, mixer: Mixer, saved: tuple[Saved, ...], *, keys: bool = True) -> Operation:
    """Return the rotary position embedding; the core saves its outputs.

    It reads and writes q and, unless another layer's `keys` are reused, k. Composed of several operations it casts to
    fp32, multiplies and casts back: 20 bytes per number, not 4.
    """
    model, element, heads = conditions.model, element_bytes(conditions), conditions.model.heads(mixer)
    tables: tuple[Saved, ...] = ()
    if conditions.framework.rope_tables_per_call:
        # cos and sin, for q and for k, each one head wide; shared by the micro batch and by all heads.
        width = float(model.qk_rope_head_dim or heads.size)
        tables = (Saved("rope_tables", 4.0 * element * width, "positions"),)
    one_kernel = conditions.framework.fused_rotary or conditions.framework.compiled
    each = 2.0 * element if one_kernel else 5.0 * FP32
    moved = Amount(each * (heads.query_width + (heads.key_width if keys else 0)), "tensor")
    return Operation(name="rotation", group="position", saved=(*saved, *tables), moved=(moved,))


def context_exchange(conditions: Conditions, mixer: Mixer, joined_width: float) -> Operation:
    """Return the context-parallel exchange; the backward pass exchanges twice as much.

    Ring: every rank passes keys and values on `c - 1` times, as one joined tensor that the backward pass starts from;
    in a sliding layer only those inside a window. Gathered: keys and values of all ranks arrive at once, beside
    attention to a rank's own (`gathered_ring`) or before attention (`all_gather`). All-to-all: q, k, v and the output
    change from sequence to head splits, keys and values as often as they are repeated; within a ring over some ranks,
    and keys and values go round the others. The core saves its output, the product behind it the exchanged one
    (`AttnFuncWithCPAndQKVOA2A`, TransformerEngine 2.11).
    """
    element, heads = element_bytes(conditions), conditions.model.heads(mixer)
    shared = element * float(heads.key_width + heads.value_width)
    passed: Spread = "window" if mixer in _SLIDING else "key_value"
    joined = element * joined_width
    everything = element * float(heads.query_width + heads.output_width) + joined
    kind = as_type("ContextExchange", conditions.framework.cp_communication)
    saved: tuple[Saved, ...] = ()
    match kind:
        case "ring":
            exchanges = [Collective("context", "ring", shared, passed, "core_attention", backward=2.0)]
        case "gathered_ring":
            exchanges = [Collective("context", "gather_each", shared, passed, "first_block", backward=2.0)]
        case "all_gather":
            exchanges = [Collective("context", "gather_each", shared, passed, "attention_apart", backward=2.0)]
        case "all_to_all":
            exchanges = [Collective("context", "all_to_all", everything, "tensor", "attention_apart", backward=2.0)]
        case "all_to_all_ring":
            exchanges = [
                Collective("context_inner", "all_to_all", everything, "tensor", "attention_apart", backward=2.0),
                Collective("context_outer", "ring", joined, passed, "core_attention", backward=2.0),
            ]
        case _:
            assert_never(kind)
    if kind in ("ring", "all_to_all_ring"):
        saved = (Saved("ring_key_value", joined, shared_spread(mixer, "ring")),)
    if kind in ("all_to_all", "all_to_all_ring"):
        saved = (*saved, Saved("exchanged_output", element * float(heads.output_width), "tensor_exchanged"))
    return Operation(name="context_exchange", group="context_exchange", saved=saved, collectives=tuple(exchanges))


def gathered_context(conditions: Conditions, mixer: Mixer) -> tuple[Amount, ...]:
    """Return the gathered keys and values of the whole context and their gradients, alive in attention's backward."""
    if conditions.framework.cp_communication not in ("gathered_ring", "all_gather"):
        return ()
    heads = conditions.model.heads(mixer)
    each = 2.0 * element_bytes(conditions) * float(heads.key_width + heads.value_width)
    return (Amount(each, "sliding_key_value_context" if mixer in _SLIDING else "key_value_context"),)


def core_attention(conditions: Conditions, mixer: Mixer) -> Operation:
    """Return the core: softmax of the scores times the values.

    A flash kernel saves its output and one number per row; without one the `a s s` score matrix is saved too, whatever
    a window or an indexer selects, with dropout also its mask and the product of both, and the products, the mask and
    the softmax write and read it. The backward pass holds the gradients of queries, keys and values.
    """
    model, profile, element, heads = (
        conditions.model,
        conditions.framework,
        element_bytes(conditions),
        conditions.model.heads(mixer),
    )
    queries = float(heads.queries)
    output = Saved("attention_output", element * heads.output_width, "tensor")
    gradients = element * (heads.query_width + heads.key_width + heads.value_width)
    sinks = model.attention_sinks == "all" or (model.attention_sinks == "sliding" and mixer in _SLIDING)
    scores = profile.attention_matrix_bytes * (element / HALF) * queries
    fused = profile.flash_attention
    return Operation(
        name="core_attention",
        group="core_attention",
        weights=(vector("sinks", heads.queries, "column"),) if sinks else (),
        saved=(output, *_scores(conditions, queries, scores)),
        temporary=(Amount(gradients, "tensor"), *gathered_context(conditions, mixer)),
        moved=_masked(conditions, queries) if fused else (Amount(4.5 * scores, "scores"),),
        moved_backward=(_backward_traffic(element, heads.output_width),) if fused else (),
        core_width=attention_width(heads),
        core_window=_window(conditions, mixer) if fused else None,
    )


def _backward_traffic(element: float, width: float) -> Amount:
    """Return the bytes moved by kernels around a flash kernel's backward pass.

    One reads the output and its gradient for every row's sum; the gradient of the queries is cleared, added to in fp32
    and cast (FlashAttention 2.7, csrc/flash_attn/src/flash_bwd_preprocess_kernel.h): 2 + 2, 4, and 4 + 2.
    """
    return Amount((3.0 * element + 2.0 * FP32) * width, "tensor")


def _scores(conditions: Conditions, queries: float, scores: float) -> tuple[Saved, ...]:
    """Return the tensors saved for the scores: statistics of each row, or all scores with their dropout.

    Korthikanti et al. 2022, section 4.1: of `5 a s s b` two bytes are the softmax, one the mask and two the product.
    """
    if conditions.framework.flash_attention:
        # Every layer scales the position bias anew; its kernel's backward pass makes a gradient too.
        bias = (Saved("position_bias", HALF * queries, "scores"),)
        biased = conditions.framework.position_bias_tables > 0
        return (Saved("attention_statistics", FP32 * queries, "tensor"), *(bias if biased else ()))
    saved = Saved("attention_scores", scores, "scores")
    return (
        (saved, Saved("attention_dropout", queries + scores, "scores"))
        if conditions.framework.attention_dropout
        else (saved,)
    )


def _masked(conditions: Conditions, queries: float) -> tuple[Amount, ...]:
    """Return a byte of mask per causal score, which each pass of the fused kernel reads once.

    It applies to masks of the whole sequence (`sparse_mode` 0 of torch_npu's fused attention); the compressed mask of
    2048 x 2048 stays in caches.
    """
    if conditions.framework.attention_mask not in ("sequence", "layers"):
        return ()
    return (Amount(2.0 / 3.0 * 0.5 * queries, "scores"),)


def _window(conditions: Conditions, mixer: Mixer) -> Window | None:
    """Return the bound on the tokens that a token attends to; None if it attends to all."""
    match mixer:
        case "sliding" | "reused_sliding":
            return Window(as_type("int", conditions.model.sliding_window), conditions.model.window_chunked)
        case "sparse" | "sparse_latent" | "shared_sparse_latent":
            return Window(conditions.model.index_topk)
        case _:
            return None


def output_gate(conditions: Conditions, mixer: Mixer) -> tuple[Operation, ...]:
    """Return attention's output times a sigmoid per head or feature; the sigmoid and the product are saved."""
    heads, element = conditions.model.heads(mixer), element_bytes(conditions)
    if conditions.model.attention_gate == "none":
        return ()
    gates = heads.queries if conditions.model.attention_gate == "head" else heads.output_width
    saved = (
        Saved("attention_gate", element * gates, "tensor"),
        Saved("gated_attention_output", element * heads.output_width, "tensor"),
    )
    moved = Amount(element * (2.0 * heads.output_width + 2.0 * gates), "tensor")
    return (Operation(name="attention_gate", group="attention_projection", saved=saved, moved=(moved,)),)


def output_projection(conditions: Conditions, width: int) -> Operation:
    """Return the product behind a mixer; under fp8 it saves an 8-bit copy of its 16-bit input."""
    model = conditions.model
    copied = conditions.precision in NARROW and conditions.framework.fp8_inputs
    copy = (Saved("attention_output_fp8", narrow_number_bytes(conditions) * width, "tensor"),) if copied else ()
    bias = (vector("o_bias", model.hidden_size),) if model.attention_output_bias else ()
    return Operation(
        name="output_projection",
        group="attention_projection",
        weights=(Weight("o", width, model.hidden_size, "row"), *bias),
        saved=copy,
        moved=cast(conditions, float(width), "tensor"),
        collectives=(tensor_collective(conditions, "reduce"),),
    )
