"""Operations of every mixer that scores keys (grouped queries, latent, indexed, compressed ...); shared parts first."""

from __future__ import annotations

from typing import Final, Literal, assert_never
from typing import cast as as_type

from simulator.cost.dtypes import FP32, HALF, element_bytes, narrow_number_bytes
from simulator.cost.operations.blocks import (
    adapts,
    cast,
    columns,
    first_products,
    input_casts,
    keeps_inputs,
    norm_bytes,
    norm_copies,
    projection,
    separate_products,
    tensor_collective,
    vector,
)
from simulator.cost.operations.record import Amount, Collective, Conditions, Operation, Saved, Spread, Weight, Window
from simulator.question.specs.model import TRAITS, Mixer, ModelSpec
from simulator.question.vocabulary import NARROW, ContextExchange

_SLIDING: Final = ("sliding", "reused_sliding")  # mixers over a window with the heads of sliding layers


def shared_spread(
    mixer: Mixer, tensor: Literal["key_value", "key_value_context", "projection", "gathered", "ring"]
) -> Spread:
    """Return the spread of a tensor with the key-value heads of a mixer."""
    return as_type("Spread", f"sliding_{tensor}") if mixer in _SLIDING else tensor


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
    """Return the context-parallel exchange; the backward pass exchanges twice as much (M3, T8)."""
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
    """Return keys and values of the whole context, gathered for attention's backward pass, and what differs then.

    Gathered before attention, they have gradients of their own. A ring's steps add up fp32 gradients of a rank's
    queries, and of keys and values, which go round: one arrived, one joined, one sent, beside keys and values joined
    (PyTorch 2.13, experimental/_context_parallel/_attention.py, `_templated_ring_attention_backward`).
    """
    kind = conditions.framework.cp_communication
    if kind not in ("gathered_ring", "all_gather"):
        return ()
    heads, element = conditions.model.heads(mixer), element_bytes(conditions)
    shared = float(heads.key_width + heads.value_width)
    spread = shared_spread(mixer, "key_value_context")
    if kind == "all_gather":
        return (Amount(2.0 * element * shared, spread),)
    passed = (3.0 * FP32 + element) * shared + FP32 * heads.query_width
    return (Amount(element * shared, spread), Amount(passed, shared_spread(mixer, "ring")))


def core_attention(conditions: Conditions, mixer: Mixer) -> Operation:
    """Return the core: softmax of the scores times the values.

    A flash kernel saves its output and one number per row; without one the `a s s` score matrix is saved too, whatever
    a window or an indexer selects, with dropout also its mask and the product of both, and the products, the mask and
    the softmax write and read it. The backward pass holds the gradients of queries, keys and values.
    """
    model, profile, element = conditions.model, conditions.framework, element_bytes(conditions)
    heads, queries = model.heads(mixer), float(model.heads(mixer).queries)
    math = composed(conditions, mixer)
    scores = (FP32 if math else profile.attention_matrix_bytes * (element / HALF)) * queries
    fused = profile.flash_attention and not math
    # Behind other products it is what an adapter copies, or a trained product reads.
    narrow = conditions.lora_rank is not None and not adapts(conditions, "attention_projection", "o")
    saves = fused or keeps_inputs(conditions) or not (narrow or input_casts(conditions) == "each")
    output = (Saved("attention_output", element * heads.output_width, "tensor"),) if saves else ()
    gradients = element * (heads.query_width + heads.key_width + heads.value_width)
    read = 1.0 / 3.0 * (profile.attention_mask in ("sequence", "layers"))
    sinks = model.attention_sinks == "all" or (model.attention_sinks == "sliding" and mixer in _SLIDING)
    return Operation(
        name="core_attention",
        group="core_attention",
        weights=(vector("sinks", heads.queries, "column"),) if sinks else (),
        saved=(*output, *_scores(conditions, mixer, queries, scores, fused=fused)),
        temporary=(Amount(gradients, "tensor"), *gathered_context(conditions, mixer)),
        # Each pass of a fused kernel reads a byte of mask per causal score, where it is of the whole sequence
        # (`sparse_mode` 0 of torch_npu's).
        moved=(Amount(read * queries if fused else 4.5 * scores, "scores"),) if read or not fused else (),
        # Around a flash kernel's backward pass output and gradient are read for every row's sum, the queries' gradient
        # cleared, added to in fp32 and cast (FlashAttention 2.7, csrc/flash_attn/src/flash_bwd_preprocess_kernel.h).
        moved_backward=(Amount((3.0 * element + 2.0 * FP32) * heads.output_width, "tensor"),) if fused else (),
        core_width=(heads.query_width + heads.output_width) / 2.0,
        core_window=_window(conditions, mixer) if fused else None,
    )


def masked(conditions: Conditions, mixer: Mixer) -> bool:
    """Return whether a layer's kernel adds a number to each score, and reads keys and values of all heads (M41)."""
    masks, sliding = conditions.framework.dense_masks, conditions.windowed and mixer in _SLIDING
    dense = masks != "none" and not conditions.framework.attention_kernel.startswith("flash")
    return dense and (masks == "all" or sliding or not conditions.framework.flash_attention)


def composed(conditions: Conditions, mixer: Mixer) -> bool:
    """Return whether PyTorch makes attention up of fp32 products: heads share keys, and no mask expands these (M41)."""
    heads, profile = conditions.model.heads(mixer), conditions.framework
    expanded = heads.shared == heads.queries or profile.repeat_kv or masked(conditions, mixer)
    math = profile.flash_attention and profile.attention_kernel == "math"
    return math and not expanded and heads.size == heads.value_size


def softmax_gradient_bytes(conditions: Conditions, mixer: Mixer) -> float:
    """Return the bytes per score of an fp32 softmax's gradients, less the cast product freed by then; 0 in 16 bits."""
    queries, profile = float(conditions.model.heads(mixer).queries), conditions.framework
    if composed(conditions, mixer):
        return 2.0 * FP32 * queries
    wide = not profile.flash_attention and not profile.attention_dropout and profile.attention_matrix_bytes >= FP32
    return (2.0 * FP32 - HALF) * queries * (wide and element_bytes(conditions) == HALF)


def _scores(conditions: Conditions, mixer: Mixer, queries: float, scores: float, *, fused: bool) -> tuple[Saved, ...]:
    """Return the tensors saved for the scores: statistics of each row, or all scores with their dropout (M3, M4)."""
    profile, element = conditions.framework, element_bytes(conditions)
    if fused:
        # Every layer scales the position bias anew; its kernel's backward pass makes a gradient too.
        bias = (Saved("position_bias", HALF * queries, "scores"),) if profile.position_bias_tables else ()
        mask = (Saved("attention_mask", element, "scores"),) if masked(conditions, mixer) else ()
        return (Saved("attention_statistics", FP32 * queries, "tensor"), *bias, *mask)
    if profile.attention_dropout:
        dropped = Saved("attention_dropout", (1.0 + element) * queries, "scores")
        return (Saved("attention_scores", scores, "scores"), dropped)
    cast = HALF * queries if element == HALF < profile.attention_matrix_bytes and not profile.flash_attention else 0.0
    return (Saved("attention_scores", scores + cast, "scores"),)


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
    gate = Saved("attention_gate", element * gates, "tensor")
    product = Saved("gated_attention_output", element * heads.output_width, "tensor")
    moved = Amount(element * (2.0 * heads.output_width + 2.0 * gates), "tensor")
    return (projection("attention_gate", (), gate, product, moved=(moved,)),)


def output_projection(conditions: Conditions, width: int) -> Operation:
    """Return the product behind a mixer; under fp8 it saves an 8-bit copy of its 16-bit input."""
    model = conditions.model
    copied = conditions.precision in NARROW and conditions.framework.fp8_inputs
    copy = (Saved("attention_output_fp8", narrow_number_bytes(conditions) * width, "tensor"),) if copied else ()
    bias = (vector("o_bias", model.hidden_size),) if model.attention_output_bias else ()
    weights = (Weight("o", width, model.hidden_size, "row"), *bias)
    output = projection("output_projection", weights, *copy, moved=cast(conditions, float(width), "tensor"))
    return output._replace(collectives=(tensor_collective(conditions, "reduce"),))


def grouped_query(conditions: Conditions, mixer: Mixer = "grouped_query") -> tuple[Operation, ...]:
    """Return the operations between norm and residual addition: projections, norms, positions, core (M3, M5)."""
    model, profile, element = conditions.model, conditions.framework, element_bytes(conditions)
    heads = conditions.model.heads(mixer)
    query, key, value = float(heads.query_width), float(heads.key_width), float(heads.value_width)
    own = 0.0 if _values_from_keys(conditions, mixer) else value
    repeats = profile.repeat_kv or masked(conditions, mixer)
    repeats = repeats and 1 < heads.shared < heads.queries  # one head is expanded without a copy
    math = composed(conditions, mixer)
    repeats, read = repeats or math, FP32 if math else element
    expanded = query if repeats else key
    output: tuple[Saved, ...] = ()
    viewed = not repeats or not model.rotary or model.qk_norm or model.attention_gate == "element"
    if profile.keep_qkv_output and viewed:
        gated = float(heads.output_width) if model.attention_gate == "element" else 0.0
        output = (Saved("qkv_output", element * (query + gated + key + own), shared_spread(mixer, "projection")),)
    if repeats or not profile.keep_qkv_output or model.value_norm:
        repeated = float(heads.output_width) if repeats else value
        output = (*output, Saved("value", read * repeated, shared_spread(mixer, "key_value")))
    copies, summed = separate_products(conditions, "attention", 3)
    joined = Collective("tensor", "gather", element * (query + key + own), shared_spread(mixer, "gathered"), "nothing")
    products = first_products(conditions, "query_key_value", _weights(conditions, mixer), *output, *copies)
    exchanges = (*products.collectives, *((joined,) if profile.limits.replicates_kv_heads else ()))
    rotated = (
        Saved("rotated_query", read * query, "tensor"),
        Saved("rotated_key", read * expanded, shared_spread(mixer, "key_value")),
    )
    return (
        products._replace(moved_backward=summed, collectives=exchanges),
        *((_head_norms(conditions, mixer),) if model.qk_norm else ()),
        *_positions(conditions, mixer, rotated),
        context_exchange(conditions, mixer, expanded + (query if repeats else value)),
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
    widths = {"q": heads.query_width, "k": heads.key_width, "v": heads.value_width}
    if _values_from_keys(conditions, mixer):
        del widths["v"]
    if model.attention_gate != "none":
        widths["g"] = heads.queries if model.attention_gate == "head" else heads.output_width
    weights = columns(model, widths)
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
        saved.append(Saved("qk_norm_input", norm_copies(conditions) * width, "tensor"))
    weights = {
        "head": (vector("q_norm", heads.size), vector("k_norm", heads.size)),
        "projection": (vector("q_norm", heads.query_width, "column"), vector("k_norm", heads.key_width, "column")),
        "unweighted": (),
    }[span]
    passed = norm_bytes(conditions) * float(heads.query_width + heads.key_width)
    return projection("query_key_norm", weights, *saved, moved=(Amount(passed, "tensor"),))


def reused(conditions: Conditions, mixer: Mixer) -> tuple[Operation, ...]:
    """Return the operations between norm and residual addition; the layer that made keys and values saves them.

    transformers 5.23.0, models/gemma4/modeling_gemma4.py: the last layer of each kind before the first that reuses.
    """
    model, element, heads = conditions.model, element_bytes(conditions), conditions.model.heads(mixer)
    query = float(heads.query_width)
    weights = columns(model, {"q": heads.query_width})
    output = (Saved("query_projection", element * query, "tensor"),) if model.qk_norm else ()
    statistics = Saved("qk_norm_statistics", FP32 * heads.queries, "tensor")
    moved = (Amount(norm_bytes(conditions) * query, "tensor"),)
    norm = projection("query_norm", (vector("q_norm", heads.size),), statistics, moved=moved)
    return (
        first_products(conditions, "query", weights, *output),
        *((norm,) if model.qk_norm else ()),
        rotation(conditions, mixer, (Saved("rotated_query", element * query, "tensor"),), keys=False),
        context_exchange(conditions, mixer, float(heads.key_width + heads.value_width)),
        core_attention(conditions, mixer),
        output_projection(conditions, heads.output_width),
    )


def latent(conditions: Conditions, mixer: Mixer = "latent") -> tuple[Operation, ...]:
    """Return the operations between norm and residual addition: projections down and up, positions, core, output.

    Operations are split as in Megatron. The compressed latents and their norms are saved. One projection expands keys
    and values; keys are joined with the shared rotary part into a new tensor. With `copy_latent_value` v is copied as
    well, and the projection's output is freed; without, it stays alive through v.
    """
    model, element = conditions.model, element_bytes(conditions)
    heads, (rank, no_rope, rope, value) = model.num_attention_heads, _sizes(model)
    normed = rank + (model.q_lora_rank or 0)
    saved = (
        Saved("latents", element * (normed + rope), "sequence"),
        # One fp32 number per token for the norm of each latent.
        Saved("latent_norm_statistics", FP32 * (1.0 if model.q_lora_rank is None else 2.0), "sequence"),
        Saved("latent_norm_outputs", element * normed, "sequence"),
    )
    query = () if model.q_lora_rank is None else (Weight("q_b", model.q_lora_rank, model.query_width, "column"),)
    expansion = Saved("latent_value", element * heads * value, "tensor")
    if not conditions.framework.copy_latent_value:
        expansion = Saved("key_value_projection", element * heads * (no_rope + value), "tensor")
    key_value = Weight("kv_b", rank, heads * (no_rope + value), "column")
    rotated = tuple(Saved(name, element * heads * (no_rope + rope), "tensor") for name in ("query", "key"))
    unrotated = Operation(name="rotation", group="position", saved=rotated)
    return (
        first_products(conditions, "latent_down", _down_weights(conditions), *saved),
        projection("latent_up", (*query, key_value), expansion),
        # Without a rotation keys are still joined with their shared part, and queries stay as projected.
        rotation(conditions, mixer, rotated) if model.rotary else unrotated,
        context_exchange(conditions, mixer, heads * (no_rope + rope + value)),
        *(indexer(conditions) if TRAITS[mixer].context == "chosen" else ()),
        core_attention(conditions, mixer),
        *output_gate(conditions, mixer),
        output_projection(conditions, model.value_width),
    )


def _sizes(model: ModelSpec) -> tuple[int, int, int, int]:
    """Return the latent's rank, and a head's features without rotation, with rotation, and of its values."""
    conditions = model.kv_lora_rank, model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
    return as_type("tuple[int, int, int, int]", conditions)


def _down_weights(conditions: Conditions) -> tuple[Weight, ...]:
    """Return the compressions, replicated on every rank, and their norms; without a query rank the query's projection.

    A gate on attention's output is one more product of the same input.
    """
    model = conditions.model
    hidden, (rank, _, rope, _) = model.hidden_size, _sizes(model)
    compressed: tuple[Weight, ...] = (Weight("kv_a", hidden, rank + rope, "replicated"), vector("kv_a_norm", rank))
    if model.attention_gate != "none":
        gates = model.num_attention_heads if model.attention_gate == "head" else model.value_width
        compressed = (*compressed, Weight("g", hidden, gates, "column"))
    if model.q_lora_rank is None:
        return (Weight("q", hidden, model.query_width, "column"), *compressed)
    query = (Weight("q_a", hidden, model.q_lora_rank, "replicated"), vector("q_a_norm", model.q_lora_rank))
    return (*query, *compressed)


INDEX_BYTES = 4.0
"""Bytes of the index of a chosen key."""


def indexer(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the projections of queries and one key head, and the scores of all earlier tokens; the choice is saved.

    Latent attention projects the compressed queries, and weights heads by a projection of its own (DeepSeek-V3.2);
    grouped-query attention projects the hidden state and norms queries and keys (MiniMax-M3). The indexer is trained
    with the model, so every pass counts. Its scores are one product, half of attention's two; they are not saved.
    """
    model = conditions.model
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
    return (_indexer(conditions, (key, *weights), width + size, width / 2.0),)


def _indexer(conditions: Conditions, weights: tuple[Weight, ...], width: int, core_width: float) -> Operation:
    """Return an indexer that saves projections of a `width`, its weights and its choice."""
    model = conditions.model
    return Operation(
        name="indexer",
        group="indexer",
        weights=weights,
        saved=(
            Saved("index_query_key", element_bytes(conditions) * width, "whole"),
            Saved("index_weights", FP32 * model.index_heads, "whole"),
            Saved("index_choice", INDEX_BYTES * model.index_topk, "whole"),
        ),
        core_width=core_width,
    )


def compressed(conditions: Conditions, mixer: Mixer) -> tuple[Operation, ...]:
    """Return the operations between norm and residual: low-rank queries, one key-value head, compressed keys, output.

    A token attends to a window, and to one key per `compression` tokens if an indexer chooses it (`compressed_sparse`),
    or to all keys of `heavy_compression` tokens each (`heavily_compressed`).
    """
    model, element = conditions.model, element_bytes(conditions)
    heads, rank = model.heads(mixer), as_type("int", model.q_lora_rank)
    hidden, size, query = model.hidden_size, heads.size, heads.query_width
    weights = (
        Weight("q_a", hidden, rank, "replicated"),
        vector("q_a_norm", rank),
        Weight("shared_key_value", hidden, size, "replicated"),
        vector("shared_norm", size),
    )
    saved = (
        Saved("latents", element * (rank + size), "sequence"),
        Saved("latent_norm_statistics", 2.0 * FP32, "sequence"),
        Saved("latent_norm_outputs", element * rank, "sequence"),
    )
    down = first_products(conditions, "shared_down", weights, *saved)
    up = projection(
        "shared_up",
        (Weight("q_b", rank, query, "column"),),
        # Queries are normalised without weights: the input is saved, and one number per head.
        Saved("query_projection", element * query, "tensor"),
        Saved("qk_norm_statistics", FP32 * heads.queries, "tensor"),
    )
    rotated = (Saved("query", element * query, "tensor"), Saved("shared_key", element * size, "whole"))
    core = core_attention(conditions, mixer)._replace(core_window=Window(as_type("int", model.sliding_window)))
    return (
        down._replace(collectives=()),  # no tensor parallelism
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
    """Return the keys of several tokens as their gated mean: two products, a bias per position, and a norm (M3)."""
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
    model, tokens = conditions.model, _tokens(conditions, mixer)
    if not tokens:
        return ()
    size = model.head_dim
    if mixer == "heavily_compressed":
        return (_compressor(conditions, "", size, size, tokens),)
    # Neighbouring windows overlap: every token contributes to its own key and to the next.
    queries = model.index_heads * model.index_head_dim
    weights = (
        Weight("index_q", as_type("int", model.q_lora_rank), queries, "replicated"),
        Weight("index_weights", model.hidden_size, model.index_heads, "replicated"),
    )
    return (
        _compressor(conditions, "", size, 2 * size, tokens),
        _compressor(conditions, "index_", model.index_head_dim, 2 * model.index_head_dim, tokens),
        # One product of scores, over the compressed keys.
        _indexer(conditions, weights, queries, queries / 2.0 / tokens),
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
        projection("grouped_output", (Weight("o_a", query // model.output_groups, narrow, "column"),), *undone),
        projection(
            "output_projection",
            (Weight("o", narrow, model.hidden_size, "row"),),
            Saved("grouped_output", element * narrow, "tensor"),
            moved=cast(conditions, float(narrow), "tensor"),
        ),
    )
