"""Operations of Mamba-2: a state per head with a scalar decay, scanned in chunks (Dao and Gu 2024). Sums nothing."""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import output_projection
from simulator.cost.operations.blocks import vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.gated_delta import convolution
from simulator.cost.operations.linear import input_projection, scan_exchange
from simulator.cost.operations.record import Amount, Operation, Saved, Weight
from simulator.question.specs.model import ModelSpec


def mamba(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition.

    One projection makes the gate z, the input x, the matrices B and C of every group, and a step per head. The fused
    scan saves these alone, and its own output before the gate; its backward pass recomputes convolution and chunk
    states. The norm over groups saves the gated output and makes the next product's input.
    """
    model, element = conditions.model, element_bytes(conditions)
    inner, matrices = model.mamba_heads * model.mamba_head_dim, 2 * model.mamba_groups * model.mamba_state
    entering = 2 * inner + matrices + model.mamba_heads
    scan = Operation(
        name="state_space_scan",
        group="core_attention",
        weights=tuple(vector(name, model.mamba_heads, "column") for name in ("decay", "step_bias", "skip")),
        saved=(Saved("scan_output", element * inner, "tensor"), *_matrices(conditions)),
        temporary=(Amount(element * entering, "tensor"),),
        moved=(Amount(element * (3 * inner + matrices), "tensor"),),
        core_flops=_flops(model),
    )
    norm = Operation(
        name="group_norm",
        group="attention_projection",
        weights=(vector("scan_norm", inner, "column"),),
        saved=(
            Saved("gated_scan_output", element * inner, "tensor"),
            Saved("scan_norm_statistics", FP32 * model.mamba_groups, "tensor"),
            Saved("scan_norm_output", element * inner, "tensor"),
        ),
        moved=(Amount(2.0 * element * inner, "tensor"),),
    )
    return (
        input_projection(conditions, "scan_projection", _weights(model), entering),
        scan_exchange(conditions, entering, inner),
        convolution(conditions, inner + matrices),
        scan,
        norm,
        output_projection(conditions, inner),
    )


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


def _weights(model: ModelSpec) -> tuple[Weight, ...]:
    inner, groups = model.mamba_heads * model.mamba_head_dim, model.mamba_groups * model.mamba_state
    widths = {"z": inner, "x": inner, "b": groups, "c": groups, "step": model.mamba_heads}
    return tuple(Weight(name, model.hidden_size, width, "column") for name, width in widths.items())


def _flops(model: ModelSpec) -> float:
    """Return the forward FLOP per token in chunks of C tokens, with state N and head size P.

    Scores, `2 C N` by group; scores times x, `2 C P`, and chunk states written and read, `4 N P`, by head.
    """
    chunk, state, size = model.chunk_tokens, model.mamba_state, model.mamba_head_dim
    scores = 2.0 * chunk * state * model.mamba_groups
    return scores + model.mamba_heads * (2.0 * chunk * size + 4.0 * state * size)
