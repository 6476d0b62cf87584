"""Operations of mixers with a state in place of scores: linear attention, gated delta rules, Mamba, short filters."""

from __future__ import annotations

import math

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import grouped_query, output_projection
from simulator.cost.operations.blocks import columns, first_products, norm, projection, vector
from simulator.cost.operations.record import Amount, Collective, Conditions, Operation, Saved, Weight
from simulator.question.specs.model import ModelSpec


def filtered(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the filter and its norm, then attention, whose values read the block's norm.

    Every rank has the whole filter (paddlenlp/transformers/yuan/modeling.py of 056cdcb, LocalizedFiltering).
    """
    return (_filter(conditions), norm(conditions, "filter_norm", "filter_norm"), *grouped_query(conditions))


def _filter(conditions: Conditions) -> Operation:
    """Return two causal convolutions over two tokens, to half the width and back, added to their input (M3)."""
    hidden, element = conditions.model.hidden_size, element_bytes(conditions)
    half = hidden // 2
    return Operation(
        name="local_filter",
        group="attention_projection",
        weights=(
            Weight("filter_in", 2 * hidden, half, "replicated", matmul=False),
            vector("filter_in_bias", half),
            Weight("filter_out", 2 * half, hidden, "replicated", matmul=False),
            vector("filter_out_bias", hidden),
        ),
        saved=(Saved("filter_input", element * hidden, "sequence"), Saved("filter_inner", element * half, "sequence")),
        moved=(Amount(8.0 * element * hidden, "sequence"),),
        core_flops=8.0 * hidden * half,
    )


def lightning(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition.

    SiLU of q, k and v saves its input (the projection's output) and makes the tensors that the scan saves. The scan's
    output is normed over all heads and multiplied by a gate's sigmoid: the norm saves its input, the product its
    factors.
    """
    model, element = conditions.model, element_bytes(conditions)
    width = model.query_width
    weights = columns(model, dict.fromkeys(("q", "k", "v", "g"), width))
    scan = Operation(
        name="linear_attention",
        group="core_attention",
        saved=(
            Saved("query_key_value", 3.0 * element * width, "tensor"),
            Saved("scan_output", element * width, "tensor"),
        ),
        temporary=(Amount(3.0 * element * width, "tensor"),),
        moved=(Amount(6.0 * element * width, "tensor"),),
        # Inside a chunk of C tokens scores and values, `2 C (k + v)`; between chunks the state, `4 k v`.
        core_flops=model.num_attention_heads * 4.0 * model.head_dim * (model.chunk_tokens + model.head_dim),
    )
    gate = projection(
        "gated_norm",
        (vector("scan_norm", width, "column"),),
        Saved("scan_norm_statistics", FP32, "whole"),
        *(Saved(name, element * width, "tensor") for name in ("scan_norm_output", "scan_gate", "gated_scan_output")),
        moved=(Amount(5.0 * element * width, "tensor"),),
    )
    return _around(conditions, "query_key_value_gate", weights, (3 * width, width), scan, gate)


def input_projection(conditions: Conditions, name: str, weights: tuple[Weight, ...], width: int) -> Operation:
    """Return the product before the scan; its output stays alive as the scan's or convolution's input."""
    output = Saved(f"{name}_output", element_bytes(conditions) * width, "tensor")
    return first_products(conditions, name, weights, output)


def scan_exchange(conditions: Conditions, entering: int, leaving: int) -> Operation:
    """Return the context-parallel all-to-all from sequence to head splits before the scan, and back after it."""
    amount = element_bytes(conditions) * (entering + leaving)
    exchange = Collective("context", "all_to_all", amount, "tensor", "core_attention")
    return Operation(name="context_exchange", group="context_exchange", collectives=(exchange,))


def _around(
    conditions: Conditions, name: str, weights: tuple[Weight, ...], widths: tuple[int, int], *inside: Operation
) -> tuple[Operation, ...]:
    """Return a mixer: a product and an exchange of the first width, what stands inside, the output of the second."""
    entering, leaving = widths
    return (
        input_projection(conditions, name, weights, entering),
        scan_exchange(conditions, entering, leaving),
        *inside,
        output_projection(conditions, leaving),
    )


def gated_delta(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition.

    One projection makes queries, keys, values, the output gate z and two numbers per value head; q, k and v pass a
    causal convolution, which saves its input. The scan's kernel repeats queries and keys to the value heads and norms
    them; it saves them, v, decay and strength of every head, and a triangular matrix per chunk.
    """
    model, element = conditions.model, element_bytes(conditions)
    heads, keys = model.linear_value_heads, model.linear_key_heads * model.linear_key_head_dim
    values = heads * model.linear_value_head_dim
    entering = 2 * keys + values
    widths = {"q": keys, "k": keys, "v": values, "z": values, "a": heads, "b": heads}
    scan = Operation(
        name="delta_rule",
        group="core_attention",
        weights=(vector("decay", heads, "column"), vector("step_bias", heads, "column")),
        saved=(
            Saved("scan_query_key", 2.0 * element * heads * model.linear_key_head_dim, "tensor"),
            Saved("scan_value", element * values, "tensor"),
            Saved("scan_triangle", element * heads * model.chunk_tokens, "tensor"),
            # Decay and statistics of both norms in fp32, strength of the update.
            Saved("scan_numbers", (3.0 * FP32 + element) * heads, "tensor"),
        ),
        temporary=(Amount(element * (2 * heads * model.linear_key_head_dim + values), "tensor"),),
        moved=(Amount(element * (2 * heads * model.linear_key_head_dim + 2 * values), "tensor"),),
        core_flops=delta_flops(model),
    )
    inside = (convolution(conditions, entering), scan, gated_norm(conditions, values))
    outer = (entering + values + 2 * heads, values)
    return _around(conditions, "delta_projection", columns(model, widths), outer, *inside)


def convolution(conditions: Conditions, width: int) -> Operation:
    """Return a causal convolution of every feature over a few tokens, with SiLU; it reads and writes its width."""
    model = conditions.model
    bias = (vector("convolution_bias", width, "column"),) if model.convolution_bias else ()
    weights = (Weight("convolution", model.convolution, width, "column", matmul=False), *bias)
    return projection("convolution", weights, moved=(Amount(2.0 * element_bytes(conditions) * width, "tensor"),))


def gated_norm(conditions: Conditions, values: int) -> Operation:
    """Return a norm of every head times SiLU of z: saves the scan's output, a number per head, and its own output."""
    model, element = conditions.model, element_bytes(conditions)
    return projection(
        "gated_norm",
        (vector("scan_norm", model.linear_value_head_dim),),
        Saved("scan_output", element * values, "tensor"),
        Saved("scan_norm_statistics", FP32 * model.linear_value_heads, "tensor"),
        Saved("gated_scan_output", element * values, "tensor"),
        moved=(Amount(3.0 * element * values, "tensor"),),
    )


def delta_flops(model: ModelSpec) -> float:
    """Return the forward FLOP per token in chunks, by value head (T5; Yang et al. 2024, Gated Delta Networks)."""
    chunk, key, value = model.chunk_tokens, model.linear_key_head_dim, model.linear_value_head_dim
    inside = 6.0 * chunk * key + 4.0 * chunk * value + 2.0 * chunk**2 / 3.0
    return model.linear_value_heads * (inside + 6.0 * key * value)


def kimi_delta(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition.

    One projection makes queries, keys and values, a strength per head, and the narrow inputs of decay and output gate,
    which a second one widens. The scan saves queries, keys, values, the decays' sums in fp32, and two triangles per
    chunk.
    """
    model, element = conditions.model, element_bytes(conditions)
    heads, keys = model.linear_value_heads, model.linear_key_heads * model.linear_key_head_dim
    values = heads * model.linear_value_head_dim
    widths = {"q": keys, "k": keys, "v": values, "b": heads}
    widths |= {"g": values} if model.delta_output_gate == "full" else {}
    narrow = ("f_a", "g_a") if model.delta_output_gate == "low_rank" else ("f_a",)
    gates = (Weight(name, model.hidden_size, model.delta_gate_rank, "replicated") for name in narrow)
    weights = (*columns(model, widths), *gates)
    scan = Operation(
        name="delta_rule",
        group="core_attention",
        weights=(vector("decay", heads, "column"), vector("step_bias", keys, "column")),
        saved=(
            Saved("scan_query_key", 2.0 * element * keys, "tensor"),
            Saved("scan_value", element * values, "tensor"),
            Saved("scan_decay", (FP32 + element) * keys, "tensor"),
            Saved("scan_triangle", 2.0 * element * heads * model.chunk_tokens, "tensor"),
            # The statistics of both norms in fp32, the strength of the update.
            Saved("scan_numbers", (2.0 * FP32 + element) * heads, "tensor"),
        ),
        temporary=(Amount(element * (3 * keys + values), "tensor"),),
        moved=(Amount(element * (3 * keys + 2 * values), "tensor"),),
        core_flops=delta_flops(model),
    )
    return (
        input_projection(conditions, "delta_projection", weights, 2 * keys + values + heads),
        _gates(conditions, keys, values, model.delta_gate_rank * len(narrow)),
        scan_exchange(conditions, 3 * keys + values + heads, values),
        convolution(conditions, 2 * keys + values),
        scan,
        gated_norm(conditions, values),
        output_projection(conditions, values),
    )


def _gates(conditions: Conditions, keys: int, values: int, narrow: int) -> Operation:
    """Return the widened decay and output gate; their narrow inputs are saved, and the gate's factor."""
    model, element = conditions.model, element_bytes(conditions)
    wide = [Weight("f_b", model.delta_gate_rank, keys, "column")]
    if model.delta_output_gate == "low_rank":
        wide.append(Weight("g_b", model.delta_gate_rank, values, "column"))
    inputs = Saved("delta_gate_inputs", element * narrow, "sequence")
    return projection("delta_gates", tuple(wide), inputs, Saved("scan_gate", element * values, "tensor"))


def mamba(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition.

    One projection makes the gate z, the input x, the matrices B and C of every group, and a step per head. The fused
    scan saves these alone, and its own output before the gate; its backward pass recomputes convolution and chunk
    states. The norm over groups saves the gated output and makes the next product's input.
    """
    model, element = conditions.model, element_bytes(conditions)
    inner, matrices = model.mamba_heads * model.mamba_head_dim, 2 * model.mamba_groups * model.mamba_state
    entering = 2 * inner + matrices + model.mamba_heads
    widths = {"z": inner, "x": inner, "b": matrices // 2, "c": matrices // 2, "step": model.mamba_heads}
    weights = columns(model, widths)
    scan = Operation(
        name="state_space_scan",
        group="core_attention",
        weights=tuple(vector(name, model.mamba_heads, "column") for name in ("decay", "step_bias", "skip")),
        saved=(Saved("scan_output", element * inner, "tensor"), *_matrices(conditions)),
        temporary=(Amount(element * entering, "tensor"),),
        moved=(Amount(element * (3 * inner + matrices), "tensor"),),
        core_flops=_flops(model),
    )
    norm = projection(
        "group_norm",
        (vector("scan_norm", inner, "column"),),
        Saved("gated_scan_output", element * inner, "tensor"),
        Saved("scan_norm_statistics", FP32 * model.mamba_groups, "tensor"),
        Saved("scan_norm_output", element * inner, "tensor"),
        moved=(Amount(2.0 * element * inner, "tensor"),),
    )
    inside = (convolution(conditions, inner + matrices), scan, norm)
    return _around(conditions, "scan_projection", weights, (entering, inner), *inside)


def _matrices(conditions: Conditions) -> tuple[Saved, ...]:
    """Return the fp32 tensors that a scan composed of matrix products saves beside its output.

    Decays and scores of every chunk, `2 C` a head; B and C repeated for all heads, `2 N`; and seven tensors of the
    inner width: inputs, their steps, decayed inputs, the outputs within and between chunks and their sum. Derived from
    the peaks of MindSpeed-LLM's four runs (v2.1 to v26), which they match within 4 %.
    """
    if not conditions.framework.composed_scan:
        return ()
    model = conditions.model
    heads, inner = float(model.mamba_heads), float(model.mamba_heads * model.mamba_head_dim)
    matrices = 2.0 * heads * (model.chunk_tokens + model.mamba_state)
    return (Saved("scan_matrices", FP32 * (matrices + 7.0 * inner), "tensor"),)


def _flops(model: ModelSpec) -> float:
    """Return the forward FLOP per token in chunks of C tokens, with state N and head size P.

    Scores, `2 C N` by group; scores times x, `2 C P`, and chunk states written and read, `4 N P`, by head.
    """
    chunk, state, size = model.chunk_tokens, model.mamba_state, model.mamba_head_dim
    scores = 2.0 * chunk * state * model.mamba_groups
    return scores + model.mamba_heads * (2.0 * chunk * size + 4.0 * state * size)


_CHUNK = 2048  # tokens between two states that the scan saves in fp32, with the product of their decays


def selective_scan(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition.

    One projection makes input and gate. The convolved input gives the matrices B and C and, through a narrow rank, a
    step per channel. The fused kernel saves the projection's output, the narrow product with separate copies of B and
    C, and the scan's output. Its backward pass recomputes convolution and steps, and holds them with their gradients,
    those of gate, input and output, and the gated output.
    """
    model, element = conditions.model, element_bytes(conditions)
    inner, state = model.mamba_heads, model.mamba_state
    # mamba_ssm/modules/mamba_simple.py: dt_rank "auto".
    rank = math.ceil(model.hidden_size / 16)
    scan = Operation(
        name="selective_scan",
        group="core_attention",
        weights=(
            Weight("scan_input", inner, rank + 2 * state, "row"),
            Weight("step", rank, inner, "column"),
            Weight("decay", state, inner, "column", matmul=False),
            vector("step_bias", inner, "column"),
            vector("skip", inner, "column"),
        ),
        saved=(
            Saved("scan_matrices", element * (rank + 4 * state), "whole"),
            Saved("scan_output", element * inner, "tensor"),
            Saved("scan_states", 2.0 * FP32 * state * inner / _CHUNK, "tensor"),
        ),
        temporary=(Amount(8.0 * element * inner, "tensor"),),
        # Bound by what it reads and writes (section 3.3.2): the input twice, steps twice, gate, output.
        moved=(Amount(6.0 * element * inner, "tensor"),),
        # State, input and output of every token: 9 FLOPs a channel and number of the state.
        core_flops=9.0 * state * inner,
    )
    weights = tuple(Weight(name, model.hidden_size, inner, "column") for name in ("x", "z"))
    return _around(conditions, "scan_projection", weights, (2 * inner, inner), convolution(conditions, inner), scan)
