"""Recompute policies: which operations the backward pass does again, and which of their tensors are then not kept.

A policy is a few parts, each a set of operations. Recomputation of whole layers keeps their inputs alone and is counted
by layer, in `memory.schedule`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Group, Kept, Operation, Spread, summed
from simulator.question.specs.model import LATENT, LayerKind
from simulator.question.vocabulary import RecomputeMode, RecomputeModule

Modules = tuple[RecomputeModule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a layer that the backward pass does again as a whole."""

    groups: frozenset[Group] = frozenset()
    """Operations of these groups are done again,"""
    names: frozenset[str] = frozenset()
    """and those of these names."""
    frees: frozenset[str] | None = None
    """Names of the layer's tensors that are then not kept; None is all that those operations keep."""
    back_with_others: bool = False
    """Whether what is done again is alive beside all else of the layer; else what stands behind it has gone by then."""

    def repeats(self, operation: Operation) -> bool:
        """Whether an operation is done again."""
        return operation.group in self.groups or operation.name in self.names

    def drops(self, operation: Operation, tensor: Kept) -> bool:
        """Whether a tensor that an operation keeps is not kept."""
        return self.repeats(operation) if self.frees is None else tensor.name in self.frees


_ATTENTION: frozenset[Group] = frozenset(
    {"attention_projection", "position", "context_exchange", "indexer", "core_attention"},
)


def parts(given: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> tuple[Part, ...]:
    """What a mode does inside a layer: nothing for `none`, and for `full`, which is about whole layers."""
    match mode:
        case "none" | "full":
            return ()
        case "selective":
            return tuple(_module(given, kind, module) for module in modules)
        case "attention":
            # All of the attention block but the norm and its output, the block's input.
            return (Part(groups=_ATTENTION),)
    assert_never(mode)


def _module(given: Conditions, kind: LayerKind, module: RecomputeModule) -> Part:
    """What a module of selective recompute is in a layer of a kind, as megatron-core 0.16 cuts it."""
    groups: set[Group] = set()
    names: set[str] = set()
    frees: set[str] | None = None
    match module:
        case "core_attn":
            # With a flash kernel there are no scores, so it frees nothing (measured: `sel` rows take a little more
            # memory than `none`).
            groups, frees = {"core_attention"}, {"attention_scores"}
        case "layernorm":
            # Norms that TransformerEngine joins to the product behind them are not done again apart.
            names |= {"attention_norm"} if kind.mixer in LATENT else set()
            names |= {"ffn_norm"} if kind.feed_forward == "experts" else set()
            frees = {f"{name}_{what}" for name in names for what in ("output", "statistics")}
        case "moe_act":
            names, frees = {"experts_activation"}, {"experts_silu", "experts_product"}
        case "mla_up_proj":
            names = {"latent_up", "rotation"} if kind.mixer in LATENT else set()
            frees = {"query", "key", "latent_value", "key_value_projection"}
            if given.framework.fuse_latent_norm:
                frees |= {"latent_norm_outputs", "latent_norm_statistics"}
        case "mlp":
            groups = {"feed_forward"}
        case "moe":
            groups = {"router", "dispatch", "experts", "shared_experts"}
        case "shared_experts":
            groups = {"shared_experts"}
        case _:
            assert_never(module)
    return Part(
        groups=frozenset(groups),
        names=frozenset(names),
        frees=None if frees is None else frozenset(frees),
        back_with_others=module == "core_attn",
    )


@lru_cache(maxsize=512)
def repeated(given: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> tuple[Operation, ...]:
    """The operations of a layer that a policy does again, each once."""
    chosen = parts(given, kind, mode, modules)
    return tuple(one for one in layer_operations(given, kind) if any(part.repeats(one) for part in chosen))


@lru_cache(maxsize=512)
def freed(given: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Mapping[Spread, float]:
    """Bytes that a policy does not keep of a layer, by spread."""
    return _bytes_of(given, kind, parts(given, kind, mode, modules))


def _bytes_of(given: Conditions, kind: LayerKind, chosen: tuple[Part, ...]) -> Mapping[Spread, float]:
    return summed(
        tensor
        for one in layer_operations(given, kind)
        for tensor in one.kept
        if any(part.drops(one, tensor) for part in chosen)
    )


@lru_cache(maxsize=512)
def returning(
    given: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules
) -> tuple[tuple[Mapping[Spread, float], Mapping[Spread, float]], ...]:
    """For each part of a policy: bytes back while it is done again, and bytes kept behind it that have gone by then."""
    operations, chosen = layer_operations(given, kind), parts(given, kind, mode, modules)
    found = []
    for part in chosen:
        again = _bytes_of(given, kind, (part,))
        last = max((i for i, one in enumerate(operations) if part.repeats(one)), default=len(operations) - 1)
        gone = (
            tensor
            for one in operations[last + 1 :]
            for tensor in one.kept
            if one.group != "adapter" and not any(other.drops(one, tensor) for other in chosen)
        )
        found.append((again, {} if part.back_with_others else summed(gone)))
    return tuple(found)
