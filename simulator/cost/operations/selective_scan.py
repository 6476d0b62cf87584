"""Operations of Mamba-1: a state per channel, with a decay that every token chooses (Gu and Dao 2023). Sums nothing.

Read from state-spaces/mamba v2.2.4, mamba_ssm/ops/selective_scan_interface.py (MambaInnerFn, checkpoint_lvl 1).
"""

from __future__ import annotations

import math

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import output_projection
from simulator.cost.operations.blocks import vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.gated_delta import convolution
from simulator.cost.operations.linear import input_projection, scan_exchange
from simulator.cost.operations.record import Amount, Operation, Saved, Weight

_CHUNK = 2048
"""Tokens between two states that the scan saves in fp32, with the product of their decays."""


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
    return (
        input_projection(conditions, "scan_projection", weights, 2 * inner),
        scan_exchange(conditions, 2 * inner, inner),
        convolution(conditions, inner),
        scan,
        output_projection(conditions, inner),
    )
