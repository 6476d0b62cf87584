"""What a number per token is multiplied by on a device, for every layout of a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never, cast

import numpy as np

from simulator.cost.operations.record import CopySpread, HeadSpread, Spread
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec


def tokens_per_device(scenario: Scenario, block: LayoutBlock) -> Array:
    """T: tokens of one micro batch that a device sees, `b s / cp` of every sequence in a sample, shape (n,)."""
    return sequences(scenario, block) * float(scenario.seq_length) / block.context_parallel


def sequences(scenario: Scenario, block: LayoutBlock) -> Array:
    """Sequences of one micro batch, shape (n,): where pairs are compared two for each sample."""
    return block.micro_batch_size * float(scenario.framework.sequences_per_sample)


def sequence_split(block: LayoutBlock) -> Array:
    """Ranks over which the tensors between tensor-parallel regions are spread: t with sequence parallelism, else 1."""
    return np.where(block.sequence_parallel > 0, block.tensor_parallel, 1.0)


def routed_tokens(scenario: Scenario, block: LayoutBlock) -> Array:
    """Token copies that the experts of one device work on per micro batch and layer, shape (n,).

    Each device owns T / t tokens (all T without sequence parallelism) and sends k copies of each; balanced routing
    returns as many. Expert tensor parallelism gathers the copies of its group, which hold the same tokens already
    without sequence parallelism. `expert_imbalance` scales the busiest rank.
    """
    split = sequence_split(block)
    copies = tokens_per_device(scenario, block) / split * scenario.model.num_experts_per_tok
    gathered = np.where((split > 1.0) | (block.tensor_parallel == 1.0), block.expert_tensor_parallel, 1.0)
    return copies * gathered * scenario.framework.expert_imbalance


def inner_context(scenario: Scenario, block: LayoutBlock) -> Array:
    """Ranks of the context-parallel group that exchange tokens for heads, shape (n,): none, all, or those of a node."""
    profile, context = scenario.framework, block.context_parallel
    match profile.cp_communication:
        case "all_to_all":
            return context
        case "all_to_all_ring":
            joined = float(scenario.hardware.joined_devices(scenario.devices))
            node = np.floor_divide(joined, block.tensor_parallel)
            inside = float(profile.cp_inner_degree) if profile.cp_inner_degree else np.maximum(node, 1.0)
            return np.minimum(inside, context)
        case _:
            return np.ones_like(context)


def expected_islands(model: ModelSpec, islands: Array) -> Array:
    """Islands (ranks or nodes) of equal parts of the experts that a token's experts lie on, expected, shape (n,).

    Free routing chooses K of E experts; group-limited routing first `topk_group` of `n_group` groups, all of which are
    then used: islands of whole groups are reached as groups are, smaller ones as islands of the chosen groups.
    """
    values, kind = np.unique(islands, return_inverse=True)
    found: Array = np.array([_islands(model, float(each)) for each in values])[kind]
    return found


def _islands(model: ModelSpec, islands: float) -> float:
    experts, chosen, groups, used = model.num_experts, model.num_experts_per_tok, model.n_group, model.topk_group
    if not groups:
        return _reached(islands, chosen, experts)
    if islands <= groups:
        return _reached(islands, used, groups)
    return _reached(islands * used / groups, chosen, experts * used / groups)


def _reached(islands: float, chosen: float, of: float) -> float:
    """`n [1 - C(E - E/n, K) / C(E, K)]`: islands of E/n members each that K distinct members lie on."""
    missed, part = 1.0, of / islands
    for drawn in range(int(chosen)):
        missed *= max(of - part - drawn, 0.0) / (of - drawn)
    return islands * (1.0 - missed)


class Extents:
    """The extents of a block, each worked out when it is first asked for."""

    __slots__ = ("_block", "_known", "_scenario")

    def __init__(self, scenario: Scenario, block: LayoutBlock) -> None:
        self._scenario, self._block = scenario, block
        self._known: dict[Spread, Array] = block.known(scenario)

    def of(self, spread: Spread) -> Array:
        """The extent of a spread, shape (n,)."""
        if spread not in self._known:
            self._known[spread] = self._extent(spread)
        return self._known[spread]

    def total(self, amounts: Mapping[Spread, float]) -> Array:
        """Amounts times their extents, added up in their order, shape (n,)."""
        result: Array | None = None
        for spread, amount in amounts.items():
            part = amount * self.of(spread)
            result = part if result is None else result + part
        return np.zeros(len(self._block)) if result is None else result

    def _extent(self, spread: Spread) -> Array:
        scenario, block = self._scenario, self._block
        match spread:
            case "whole":
                extent = tokens_per_device(scenario, block)
            case "sequence":
                extent = self.of("whole") / sequence_split(block)
            case "scattered":
                extent = np.where(block.tensor_parallel > 1.0, self.of("sequence"), 0.0)
            case "tensor":
                extent = self.of("whole") / block.tensor_parallel
            case "scores":
                extent = self.of("tensor") * float(scenario.seq_length)
            case "positions":
                extent = float(scenario.seq_length) / block.context_parallel
            case "copies" | "copies_exchanged" | "copies_tensor" | "reached" | "pooled" | "pooled_choices":
                extent = self._of_copies(spread)
            case _:
                extent = self._by_heads(spread)
        return extent

    def _of_copies(self, spread: CopySpread) -> Array:
        """An extent that goes by the copies of tokens that experts work on."""
        scenario, block = self._scenario, self._block
        match spread:
            case "copies":
                return routed_tokens(scenario, block)
            case "copies_exchanged":
                return np.where(block.expert_parallel > 1.0, self.of("copies"), 0.0)
            case "copies_tensor":
                return self.of("copies") / block.expert_tensor_parallel
            case "reached":
                spread_over = expected_islands(scenario.model, block.expert_ranks)
                return self.of("sequence") * spread_over * scenario.framework.expert_imbalance
            case "pooled":
                return self.of("sequence") * block.expert_ranks
            case "pooled_choices":
                return self.of("sequence") * block.expert_tensor_parallel
        assert_never(spread)

    def _by_heads(self, spread: HeadSpread) -> Array:
        """An extent that goes by the key-value heads of attention."""
        scenario, block = self._scenario, self._block
        sliding = spread == "window" or spread.startswith("sliding")
        shared = float(scenario.model.heads("sliding" if sliding else "grouped_query").shared)
        few, whole = block.tensor_parallel > shared, self.of("whole")
        held = whole / np.minimum(block.tensor_parallel, shared)
        match spread:
            case "key_value" | "sliding_key_value":
                return held
            case "projection" | "sliding_projection":
                return np.where(few, whole, self.of("tensor"))
            case "gathered" | "sliding_gathered":
                return np.where(few, whole, 0.0)
            case "ring" | "sliding_ring":
                return np.where(block.context_parallel > 1.0, held, 0.0)
            case "key_value_context" | "sliding_key_value_context":
                return np.where(block.context_parallel > 1.0, block.context_parallel * held, 0.0)
            case "window":
                halo = 2.0 * sequences(scenario, block) * float(cast("int", scenario.model.sliding_window))
                passed = halo / np.maximum(block.context_parallel - 1.0, 1.0)
                return np.minimum(passed * held / whole, held)
        assert_never(spread)
