"""Operations of attention over locally filtered tokens (Yuan 2.0, Wu et al. 2023). Sums nothing."""

from __future__ import annotations

from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.blocks import norm, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.grouped_query import grouped_query
from simulator.cost.operations.record import Amount, Operation, Saved, Weight


def filtered(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the filter and its norm, then attention, whose values read the block's norm.

    Every rank has the whole filter (paddlenlp/transformers/yuan/modeling.py of 056cdcb, LocalizedFiltering).
    """
    return (_filter(conditions), norm(conditions, "filter_norm", "filter_norm"), *grouped_query(conditions))


def _filter(conditions: Conditions) -> Operation:
    """Return two causal convolutions over two tokens, to half the width and back, added to their input.

    Each saves its input in a convolution's layout: `2 T h` and `T h`.
    """
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
        saved=(
            Saved("filter_input", element * hidden, "sequence"),
            Saved("filter_inner", element * half, "sequence"),
        ),
        moved=(Amount(8.0 * element * hidden, "sequence"),),
        core_flops=8.0 * hidden * half,
    )
