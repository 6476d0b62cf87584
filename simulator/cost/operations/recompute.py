"""Recompute policies: which operations the backward pass does again, and which of their tensors are then not kept.

A policy is a set of operations. Recomputation of whole layers keeps their inputs alone and is counted by layer, in
`memory.recomputed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Group, Operation, Spread, summed
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RECOMPUTE_MODES, RecomputeMode


@dataclass(frozen=True, slots=True)
class Policy:
    """What one word of `recompute` does inside a layer."""

    groups: frozenset[Group]
    """Operations of these groups are done again."""
    frees: frozenset[str] | None = None
    """Names of the tensors that are then not kept; None is all that those operations keep."""


_ATTENTION: frozenset[Group] = frozenset(
    {"attention_projection", "position", "context_exchange", "indexer", "core_attention"},
)


def policy(mode: RecomputeMode) -> Policy | None:
    """What a word does inside a layer; None for `none`, and for `full`, which is about whole layers."""
    match mode:
        case "none" | "full":
            return None
        case "selective":
            # With a flash kernel there are no scores, so it frees nothing (measured: `sel` rows take a little more
            # memory than `none`).
            return Policy(frozenset({"core_attention"}), frozenset({"attention_scores"}))
        case "attention":
            # All of the attention block but the norm and its output, the block's input.
            return Policy(_ATTENTION)
    assert_never(mode)


INSIDE: tuple[RecomputeMode, ...] = tuple(mode for mode in RECOMPUTE_MODES if policy(mode) is not None)
"""The words that do something inside a layer."""


@lru_cache(maxsize=512)
def repeated(given: Conditions, kind: LayerKind, mode: RecomputeMode) -> tuple[Operation, ...]:
    """The operations of a layer that a policy does again."""
    chosen = policy(mode)
    groups = chosen.groups if chosen else frozenset[Group]()
    return tuple(one for one in layer_operations(given, kind) if one.group in groups)


@lru_cache(maxsize=512)
def freed(given: Conditions, kind: LayerKind, mode: RecomputeMode) -> Mapping[Spread, float]:
    """Bytes that a policy does not keep of a layer, by spread."""
    chosen = policy(mode)
    frees = chosen.frees if chosen else frozenset[str]()
    kept = (tensor for one in repeated(given, kind, mode) for tensor in one.kept)
    return summed(tensor for tensor in kept if frees is None or tensor.name in frees)


@lru_cache(maxsize=512)
def behind(given: Conditions, kind: LayerKind, mode: RecomputeMode) -> Mapping[Spread, float]:
    """Bytes kept by the operations behind the last repeated one: freed before the repeated ones are done again."""
    operations = layer_operations(given, kind)
    last = max((operations.index(one) for one in repeated(given, kind, mode)), default=len(operations) - 1)
    return summed(tensor for one in operations[last + 1 :] for tensor in one.kept if one.group != "adapter")
