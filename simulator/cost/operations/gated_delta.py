"""Operations of the gated delta net (Qwen3-Next, Qwen3.5): a state per head, updated in chunks. Sums nothing."""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import output_projection
from simulator.cost.operations.blocks import vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.linear import input_projection, scan_exchange
from simulator.cost.operations.record import Amount, Operation, Saved, Weight
from simulator.question.specs.model import ModelSpec


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
    return (
        input_projection(conditions, "delta_projection", _weights(model), entering + values + 2 * heads),
        scan_exchange(conditions, entering + values + 2 * heads, values),
        convolution(conditions, entering),
        scan,
        gated_norm(conditions, values),
        output_projection(conditions, values),
    )


def convolution(conditions: Conditions, width: int) -> Operation:
    """Return a causal convolution of every feature over a few tokens, with SiLU; it reads and writes its width."""
    model = conditions.model
    bias = (vector("convolution_bias", width, "column"),) if model.convolution_bias else ()
    return Operation(
        name="convolution",
        group="attention_projection",
        weights=(Weight("convolution", model.convolution, width, "column", matmul=False), *bias),
        moved=(Amount(2.0 * element_bytes(conditions) * width, "tensor"),),
    )


def _weights(model: ModelSpec) -> tuple[Weight, ...]:
    hidden, heads = model.hidden_size, model.linear_value_heads
    keys, values = model.linear_key_heads * model.linear_key_head_dim, heads * model.linear_value_head_dim
    widths = {"q": keys, "k": keys, "v": values, "z": values, "a": heads, "b": heads}
    return tuple(Weight(name, hidden, width, "column") for name, width in widths.items())


def gated_norm(conditions: Conditions, values: int) -> Operation:
    """Return a norm of every head times SiLU of z: saves the scan's output, a number per head, and its own output."""
    model, element = conditions.model, element_bytes(conditions)
    return Operation(
        name="gated_norm",
        group="attention_projection",
        weights=(vector("scan_norm", model.linear_value_head_dim),),
        saved=(
            Saved("scan_output", element * values, "tensor"),
            Saved("scan_norm_statistics", FP32 * model.linear_value_heads, "tensor"),
            Saved("gated_scan_output", element * values, "tensor"),
        ),
        moved=(Amount(3.0 * element * values, "tensor"),),
    )


def delta_flops(model: ModelSpec) -> float:
    """Return the forward FLOP per token in chunks of C tokens, by value head (Yang et al. 2024, Gated Delta Networks).

    A chunk has the products of keys with keys and of queries with keys, the triangle times keys and values, and scores
    times values: `6 C k + 4 C v`, and `2 C^2 / 3` for the triangle's inverse; the state takes three products of `2 k
    v`.
    """
    chunk, key, value = model.chunk_tokens, model.linear_key_head_dim, model.linear_value_head_dim
    inside = 6.0 * chunk * key + 4.0 * chunk * value + 2.0 * chunk**2 / 3.0
    return model.linear_value_heads * (inside + 6.0 * key * value)
