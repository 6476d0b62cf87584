"""Operations of Kimi delta attention: a gated delta rule with a decay per channel (Kimi Team 2025). Sums nothing.

Read from transformers 5.23.0, models/kimi_linear/modeling_kimi_linear.py; saved tensors are those of
flash-linear-attention's chunked kernel.
"""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import output_projection
from simulator.cost.operations.blocks import vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.gated_delta import convolution, delta_flops, gated_norm
from simulator.cost.operations.linear import input_projection, scan_exchange
from simulator.cost.operations.record import Amount, Operation, Saved, Weight
from simulator.question.specs.model import ModelSpec


def kimi_delta(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition.

    One projection makes queries, keys and values, a strength per head, and the narrow inputs of decay and output gate,
    which a second one widens. The scan saves queries, keys, values, the decays' sums in fp32, and two triangles per
    chunk.
    """
    model, element = conditions.model, element_bytes(conditions)
    heads, keys = model.linear_value_heads, model.linear_key_heads * model.linear_key_head_dim
    values = heads * model.linear_value_head_dim
    narrow = model.delta_gate_rank * (2 if model.delta_output_gate == "low_rank" else 1)
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
        input_projection(conditions, "delta_projection", _weights(model), 2 * keys + values + heads),
        _gates(conditions, keys, values, narrow),
        scan_exchange(conditions, 3 * keys + values + heads, values),
        convolution(conditions, 2 * keys + values),
        scan,
        gated_norm(conditions, values),
        output_projection(conditions, values),
    )


def _weights(model: ModelSpec) -> tuple[Weight, ...]:
    hidden, heads = model.hidden_size, model.linear_value_heads
    keys, values = model.linear_key_heads * model.linear_key_head_dim, heads * model.linear_value_head_dim
    full = {"g": values} if model.delta_output_gate == "full" else {}
    widths = {"q": keys, "k": keys, "v": values, "b": heads, **full}
    narrow = ("f_a", "g_a") if model.delta_output_gate == "low_rank" else ("f_a",)
    return (
        *(Weight(name, hidden, width, "column") for name, width in widths.items()),
        *(Weight(name, hidden, model.delta_gate_rank, "replicated") for name in narrow),
    )


def _gates(conditions: Conditions, keys: int, values: int, narrow: int) -> Operation:
    """Return the widened decay and output gate; their narrow inputs are saved, and the gate's factor."""
    model, element = conditions.model, element_bytes(conditions)
    wide = [Weight("f_b", model.delta_gate_rank, keys, "column")]
    if model.delta_output_gate == "low_rank":
        wide.append(Weight("g_b", model.delta_gate_rank, values, "column"))
    return Operation(
        name="delta_gates",
        group="attention_projection",
        weights=tuple(wide),
        saved=(
            Saved("delta_gate_inputs", element * narrow, "sequence"),
            Saved("scan_gate", element * values, "tensor"),
        ),
    )
