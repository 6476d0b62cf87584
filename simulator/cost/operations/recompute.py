"""Recompute policies: which operations the backward pass does again, and which of their tensors are then not kept.

A policy is a few parts, each a set of operations. Recomputation of whole layers keeps their inputs alone and is counted
by layer, in `memory.rank_activations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, assert_never

from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Kept, Operation, OperationGroup, Split, Spread, Weight, summed
from simulator.question.specs.mixers import LATENT
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode, RecomputeModule

Modules = tuple[RecomputeModule, ...]


class Part(NamedTuple):
    """One part of a layer that the backward pass does again as a whole."""

    groups: frozenset[OperationGroup] = frozenset()
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


_ATTENTION: frozenset[OperationGroup] = frozenset(
    {"attention_projection", "position", "context_exchange", "indexer", "core_attention"},
)


def parts(conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> tuple[Part, ...]:
    """The parts that a mode does again as a whole; `full` is about whole layers, `operations` has its own rule."""
    match mode:
        case "none" | "full" | "operations":
            return ()
        case "selective":
            return tuple(_module(conditions, kind, module) for module in modules)
        case "attention":
            # All of the attention block but the norm and its output, the block's input.
            return (Part(groups=_ATTENTION),)
    assert_never(mode)


def _module(conditions: Conditions, kind: LayerKind, module: RecomputeModule) -> Part:
    """What a module of selective recompute is in a layer of a kind, as megatron-core 0.16 cuts it."""
    groups: set[OperationGroup] = set()
    names: set[str] = set()
    frees: set[str] | None = None
    match module:
        case "core_attn":
            # With a flash kernel there are no scores, so it frees nothing (measured: `sel` rows take a little more
            # memory than `none`).
            groups, frees = {"core_attention"}, {"attention_scores", "attention_dropout"}
        case "layernorm":
            # Norms that TransformerEngine joins to the product behind them are not done again apart.
            names |= {"attention_norm"} if kind.mixer in LATENT else set()
            names |= {"ffn_norm"} if kind.routed else set()
            frees = {f"{name}_{what}" for name in names for what in ("output", "statistics")}
        case "moe_act":
            names, frees = {"experts_activation"}, {"experts_silu", "experts_product"}
        case "moe_gate_up":
            names, frees = {"experts_gate_up"}, {"experts_gate_up"}
        case "mla_up_proj":
            names = {"latent_up", "rotation"} if kind.mixer in LATENT else set()
            frees = {"query", "key", "latent_value", "key_value_projection"}
            if conditions.framework.fuse_latent_norm:
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
def repeated(conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> tuple[Operation, ...]:
    """The operations of a layer that a policy does again, each once; of those that it keeps in part, the rest (M6)."""
    match mode:
        case "full":
            return _needed(conditions, kind)
        case "operations":
            return tuple(_rest(conditions, kind))
        case _:
            chosen = parts(conditions, kind, mode, modules)
            return tuple(
                operation
                for operation in layer_operations(conditions, kind)
                if any(part.repeats(operation) for part in chosen)
            )


def _needed(conditions: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """What recomputation of a whole layer does: it ends with the last tensor that is read, or with the layer."""
    ends = conditions.framework.recompute_stops_early or conditions.framework.compiled
    return _read(conditions, kind) if ends else layer_operations(conditions, kind)


def _read(conditions: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """A layer up to the last tensor that its backward pass reads."""
    operations = layer_operations(conditions, kind)
    last = max(
        (i for i, operation in enumerate(operations) if operation.kept and operation.group != "adapter"), default=-1
    )
    return operations[: last + 1]


def _rest(conditions: Conditions, kind: LayerKind) -> Iterator[Operation]:
    """What per-operation checkpointing does again: not attention, every second product, exchanges that end one (M7).

    Scatters of tensor parallelism and the experts' all-to-alls are kept; gathers are done again.
    """
    kept = {weight.name for weight in _kept_products(conditions, kind)}
    for operation in _needed(conditions, kind):
        if operation.group in ("core_attention", "context_exchange"):
            continue
        yield operation._replace(
            weights=tuple(weight for weight in operation.weights if weight.name not in kept),
            collectives=tuple(each for each in operation.collectives if each.pattern not in ("reduce", "all_to_all")),
        )


_LATENT_ORDER: tuple[str, ...] = ("q", "q_a", "q_b", "kv_a", "kv_b")
"""Products of latent attention as torchtitan runs them: queries first."""


def _kept_products(conditions: Conditions, kind: LayerKind) -> tuple[Weight, ...]:
    """The products whose outputs per-operation checkpointing keeps: the first, third and so on of a layer.

    torchtitan 0.2.2 counts plain matrix products (`distributed/activation_checkpoint.py`): not those of routed experts,
    which are grouped, and not the router's, whose shape its configuration leaves out.
    """
    products = [
        weight
        for operation in layer_operations(conditions, kind)
        for weight in operation.weights
        if weight.matmul and not weight.routed and operation.group != "router"
    ]
    if kind.mixer in LATENT:
        # What stands behind the projections stays behind them.
        products.sort(key=lambda weight: (*_LATENT_ORDER, weight.name).index(weight.name))
    return tuple(products[::2])


_OUTPUTS: Mapping[Split, Spread] = {
    "column": "tensor",
    # Every rank's own part of the sum, before it is scattered.
    "row": "whole",
    "replicated": "sequence",
}
"""How the output of a product is spread, by the way its weight is cut."""


def _kept_outputs(conditions: Conditions, kind: LayerKind) -> Iterator[Kept]:
    """What per-operation checkpointing keeps: the input, attention, every second product, what is exchanged (M7).

    A compiled layer keeps none that nothing reads: what the last product puts out goes into the residual stream.
    """
    hidden = float(conditions.model.hidden_size)
    yield Kept("layer_input", element_bytes(conditions) * hidden, "sequence")
    for operation in layer_operations(conditions, kind):
        if operation.group in ("core_attention", "adapter"):
            yield from operation.kept
    unread = {output.name for output in _unread(conditions, kind)} if conditions.framework.compiled else set()
    yield from (
        output for output in _outputs(conditions, kind, layer_operations(conditions, kind)) if output.name not in unread
    )


def _unread(conditions: Conditions, kind: LayerKind) -> Iterator[Kept]:
    """Outputs behind the last tensor that the backward pass reads."""
    yield from _outputs(conditions, kind, layer_operations(conditions, kind)[len(_read(conditions, kind)) :])


def _outputs(conditions: Conditions, kind: LayerKind, operations: tuple[Operation, ...]) -> Iterator[Kept]:
    """What some of a layer's operations put out and per-operation checkpointing keeps."""
    kept = {weight.name for weight in _kept_products(conditions, kind)}
    for operation in operations:
        for weight in operation.weights:
            if weight.name in kept:
                amount = element_bytes(conditions) * weight.outputs
                yield Kept(f"{weight.name}_output", amount, _OUTPUTS[weight.split])
        for each in operation.collectives:
            if each.pattern == "reduce" and each.group == "tensor":
                yield Kept(f"{operation.name}_scattered", each.amount, "scattered")
            elif each.pattern == "all_to_all" and each.group == "expert":
                yield Kept(f"{operation.name}_exchanged", each.amount, "copies_exchanged")


@lru_cache(maxsize=512)
def freed(conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Mapping[Spread, float]:
    """Bytes that a policy does not keep of a layer, by spread; below zero where it keeps others instead."""
    if mode == "operations":
        everything = summed(tensor for operation in layer_operations(conditions, kind) for tensor in operation.kept)
        return _added(everything, summed(_kept_outputs(conditions, kind)), sign=-1.0)
    return _bytes_of(conditions, kind, parts(conditions, kind, mode, modules))


def _added(first: Mapping[Spread, float], second: Mapping[Spread, float], sign: float = 1.0) -> Mapping[Spread, float]:
    spreads = dict.fromkeys((*first, *second))
    return {spread: first.get(spread, 0.0) + sign * second.get(spread, 0.0) for spread in spreads}


def _bytes_of(conditions: Conditions, kind: LayerKind, chosen: tuple[Part, ...]) -> Mapping[Spread, float]:
    return summed(
        tensor
        for operation in layer_operations(conditions, kind)
        for tensor in operation.kept
        if any(part.drops(operation, tensor) for part in chosen)
    )


@lru_cache(maxsize=512)
def returning(
    conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules
) -> tuple[tuple[Mapping[Spread, float], Mapping[Spread, float]], ...]:
    """For each part of a policy: bytes back while it is done again, and bytes kept behind it that have gone by then."""
    if mode == "operations":
        # All of the layer is back before its backward pass begins, beside what that does not read.
        unread = () if conditions.framework.compiled else _unread(conditions, kind)
        return ((_added(freed(conditions, kind, mode, modules), summed(unread)), {}),)
    operations, chosen = layer_operations(conditions, kind), parts(conditions, kind, mode, modules)
    pairs = []
    for part in chosen:
        again = _bytes_of(conditions, kind, (part,))
        last = max(
            (i for i, operation in enumerate(operations) if part.repeats(operation)), default=len(operations) - 1
        )
        gone = (
            tensor
            for operation in operations[last + 1 :]
            for tensor in operation.kept
            if operation.group != "adapter" and not any(other.drops(operation, tensor) for other in chosen)
        )
        pairs.append((again, {} if part.back_with_others else summed(gone)))
    return tuple(pairs)
