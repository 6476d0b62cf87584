"""Tokens on a device for each layout of a block: factors that turn figures per token into figures per device.

A norm's output has 2 h bytes a token and the spread `sequence`: a device holds 2 h bytes times `extent(pricing,
"sequence")`, the tokens of its micro batch over its sequence-parallel group. The operations state figures per token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never, cast

import numpy as np

from simulator.cost.derived import Pricing, of_sizes, of_work
from simulator.cost.operations.record import CopySpread, HeadSpread, Spread
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.specs.model import ModelSpec


@of_sizes
def micro_batches(pricing: Pricing) -> Array:
    """Return m, the micro batches per step on one replica, `B / (b d)`, shape (n,)."""
    block = pricing.block
    return pricing.scenario.global_batch_size / (block.micro_batch_size * block.data_parallel)


@of_work
def tokens_per_device(pricing: Pricing) -> Array:
    """Return T, the tokens of one micro batch on a device, `b s / cp` for every sequence in a sample, shape (n,)."""
    return sequences(pricing) * float(pricing.scenario.seq_length) / pricing.block.context_parallel


def sequences(pricing: Pricing) -> Array:
    """Return the sequences of one micro batch, shape (n,); preference training has two per sample."""
    return pricing.block.micro_batch_size * float(pricing.scenario.framework.sequences_per_sample)


def sequence_split(block: LayoutBlock) -> Array:
    """Return the ranks that share tensors between tensor-parallel regions: t with sequence parallelism, else 1."""
    return np.where(block.sequence_parallel > 0, block.tensor_parallel, 1.0)


def routed_tokens(pricing: Pricing) -> Array:
    """Return the token copies that a device's experts process per micro batch and layer, shape (n,).

    Each device owns T / t tokens (all T without sequence parallelism) and sends k copies of each; balanced routing
    returns as many. Expert tensor parallelism gathers the copies of its group; without sequence parallelism these hold
    the same tokens already. `expert_imbalance` scales the busiest rank.
    """
    scenario, block = pricing.scenario, pricing.block
    split = sequence_split(block)
    copies = tokens_per_device(pricing) / split * scenario.model.num_experts_per_tok
    gathered = np.where((split > 1.0) | (block.tensor_parallel == 1.0), block.expert_tensor_parallel, 1.0)
    return copies * gathered * scenario.framework.expert_imbalance


def inner_context(pricing: Pricing) -> Array:
    """Return the context-parallel ranks that exchange tokens for heads, shape (n,): 1, all, or those of a node."""
    profile, block = pricing.scenario.framework, pricing.block
    context = block.context_parallel
    match profile.cp_communication:
        case "all_to_all":
            return context
        case "all_to_all_ring":
            joined = float(pricing.scenario.hardware.joined_devices(pricing.scenario.devices))
            node = np.floor_divide(joined, block.tensor_parallel)
            inside = float(profile.cp_inner_degree) if profile.cp_inner_degree else np.maximum(node, 1.0)
            return np.minimum(inside, context)
        case _:
            return np.ones_like(context)


def expected_islands(model: ModelSpec, islands: Array) -> Array:
    """Return the expected number of islands (ranks or nodes) with a token's experts, shape (n,).

    The experts are divided evenly over `islands`. Free routing chooses K of E experts; group-limited routing first
    chooses `topk_group` of `n_group` groups, all of which are then used: islands of whole groups are reached as groups
    are, smaller ones as islands of the chosen groups.
    """
    values, kind = np.unique(islands, return_inverse=True)
    expected: Array = np.array([_islands(model, float(each)) for each in values])[kind]
    return expected


def _islands(model: ModelSpec, islands: float) -> float:
    experts, chosen, groups, used = model.num_experts, model.num_experts_per_tok, model.n_group, model.topk_group
    if not groups:
        return _reached(islands, chosen, experts)
    if islands <= groups:
        return _reached(islands, used, groups)
    return _reached(islands * used / groups, chosen, experts * used / groups)


def _reached(islands: float, chosen: float, of: float) -> float:
    """Return `n [1 - C(E - E/n, K) / C(E, K)]`: islands of E/n members that K distinct members reach (T9)."""
    missed, part = 1.0, of / islands
    for drawn in range(int(chosen)):
        missed *= max(of - part - drawn, 0.0) / (of - drawn)
    return islands * (1.0 - missed)


def total(pricing: Pricing, amounts: Mapping[Spread, float]) -> Array:
    """Return the sum of amounts times their extents, in their order, shape (n,)."""
    result: Array | None = None
    for spread, amount in amounts.items():
        part = amount * extent(pricing, spread)
        result = part if result is None else result + part
    return np.zeros(len(pricing)) if result is None else result


@of_work
def extent(pricing: Pricing, spread: Spread) -> Array:
    """Return the factor of a number per token on a device, shape (n,); see `Spread`."""
    sequence, block = float(pricing.scenario.seq_length), pricing.block
    match spread:
        case "whole":
            result = tokens_per_device(pricing)
        case "sequence":
            result = extent(pricing, "whole") / sequence_split(block)
        case "scattered":
            result = np.where(block.tensor_parallel > 1.0, extent(pricing, "sequence"), 0.0)
        case "tensor":
            result = extent(pricing, "whole") / block.tensor_parallel
        case "tensor_exchanged":
            result = np.where(block.context_parallel > 1.0, extent(pricing, "tensor"), 0.0)
        case "scores":
            result = extent(pricing, "tensor") * sequence
        case "positions":
            result = sequence / block.context_parallel
        case "copies" | "copies_exchanged" | "copies_tensor" | "reached" | "pooled" | "pooled_choices":
            result = _of_copies(pricing, spread)
        case _:
            result = _by_heads(pricing, spread)
    return result


def _of_copies(pricing: Pricing, spread: CopySpread) -> Array:
    """Return an extent by the token copies that experts process."""
    scenario, block = pricing.scenario, pricing.block
    match spread:
        case "copies":
            return routed_tokens(pricing)
        case "copies_exchanged":
            return np.where(block.expert_parallel > 1.0, extent(pricing, "copies"), 0.0)
        case "copies_tensor":
            return extent(pricing, "copies") / block.expert_tensor_parallel
        case "reached":
            ranks = expected_islands(scenario.model, block.expert_ranks)
            return extent(pricing, "sequence") * ranks * scenario.framework.expert_imbalance
        case "pooled":
            return extent(pricing, "sequence") * block.expert_ranks
        case "pooled_choices":
            return extent(pricing, "sequence") * block.expert_tensor_parallel
    assert_never(spread)


def _by_heads(pricing: Pricing, spread: HeadSpread) -> Array:
    """Return an extent by the key-value heads of attention (M5)."""
    scenario, block = pricing.scenario, pricing.block
    sliding = spread == "window" or spread.startswith("sliding")
    shared = float(scenario.model.heads("sliding" if sliding else "grouped_query").shared)
    gathers, whole = block.tensor_parallel > shared, extent(pricing, "whole")
    held = whole / np.minimum(block.tensor_parallel, shared)
    match spread:
        case "key_value" | "sliding_key_value":
            return held
        case "projection" | "sliding_projection":
            return np.where(gathers, whole, extent(pricing, "tensor"))
        case "gathered" | "sliding_gathered":
            return np.where(gathers, whole, 0.0)
        case "ring" | "sliding_ring":
            return np.where(block.context_parallel > 1.0, held, 0.0)
        case "key_value_context" | "sliding_key_value_context":
            return np.where(block.context_parallel > 1.0, block.context_parallel * held, 0.0)
        case "window":
            halo = 2.0 * sequences(pricing) * float(cast("int", scenario.model.sliding_window))
            passed = halo / np.maximum(block.context_parallel - 1.0, 1.0)
            return np.minimum(passed * held / whole, held)
    assert_never(spread)
