"""Operations of lightning attention (MiniMax-Text-01): linear attention with a fixed decay per head. Sums nothing."""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import output_projection
from simulator.cost.operations.blocks import vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.linear import input_projection, linear_attention_flops, scan_exchange
from simulator.cost.operations.record import Amount, Operation, Saved, Weight


def lightning(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition.

    SiLU of q, k and v saves its input (the projection's output) and makes the tensors that the scan saves. The scan's
    output is normed over all heads and multiplied by a gate's sigmoid: the norm saves its input, the product its
    factors.
    """
    model, element = conditions.model, element_bytes(conditions)
    width = model.query_width
    weights = (
        *(Weight(name, model.hidden_size, width, "column") for name in ("q", "k", "v")),
        Weight("g", model.hidden_size, width, "column"),
    )
    scan = Operation(
        name="linear_attention",
        group="core_attention",
        saved=(
            Saved("query_key_value", 3.0 * element * width, "tensor"),
            Saved("scan_output", element * width, "tensor"),
        ),
        temporary=(Amount(3.0 * element * width, "tensor"),),
        moved=(Amount(6.0 * element * width, "tensor"),),
        core_flops=model.num_attention_heads
        * linear_attention_flops(model.chunk_tokens, model.head_dim, model.head_dim),
    )
    gate = Operation(
        name="gated_norm",
        group="attention_projection",
        weights=(vector("scan_norm", width, "column"),),
        saved=(
            Saved("scan_norm_statistics", FP32, "whole"),
            Saved("scan_norm_output", element * width, "tensor"),
            Saved("scan_gate", element * width, "tensor"),
            Saved("gated_scan_output", element * width, "tensor"),
        ),
        moved=(Amount(5.0 * element * width, "tensor"),),
    )
    return (
        input_projection(conditions, "query_key_value_gate", weights, 3 * width),
        scan_exchange(conditions, 3 * width, width),
        scan,
        gate,
        output_projection(conditions, width),
    )
