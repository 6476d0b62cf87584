"""Recompute inside a layer: which operations the backward pass repeats under a policy, and which tensors that frees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from simulator.cost.derived import remembered
from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Conditions, Operation, OperationGroup, Saved, Split, Spread, Weight, summed
from simulator.question.specs.model import LATENT, LayerKind
from simulator.question.vocabulary import NARROW, RecomputeMode, RecomputeModule
from simulator.records import NamedTuple

Modules = tuple[RecomputeModule, ...]


class Part(NamedTuple):
    """A part of a layer that the backward pass recomputes as a whole."""

    groups: frozenset[OperationGroup] = frozenset()
    names: frozenset[str] = frozenset()
    """Names of further recomputed operations."""
    frees: frozenset[str] | None = None
    """Names of the layer's tensors that are then not saved; None for all tensors of those operations."""
    saves: tuple[Saved, ...] = ()
    """Tensors that are saved instead."""
    back_with_others: bool = False
    """Whether recomputed tensors are alive with the whole layer; else later tensors are freed by then."""

    def repeats(self, operation: Operation) -> bool:
        """Return whether an operation is recomputed."""
        return operation.group in self.groups or operation.name in self.names

    def drops(self, operation: Operation, tensor: Saved) -> bool:
        """Return whether a tensor that an operation saves is dropped."""
        return self.repeats(operation) if self.frees is None else tensor.name in self.frees


_ATTENTION: frozenset[OperationGroup] = frozenset(
    {"attention_projection", "position", "context_exchange", "indexer", "core_attention"}
)


def parts(conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> tuple[Part, ...]:
    """Return the parts that a mode recomputes; none for `full` (whole layers) and `operations` (a rule of its own)."""
    match mode:
        case "none" | "full" | "operations":
            return ()
        case "selective":
            return tuple(_module(conditions, kind, module) for module in modules)
        case "attention":
            # All of the attention block except the norm and its output, the block's input.
            return (Part(groups=_ATTENTION),)
    assert_never(mode)


def _module(conditions: Conditions, kind: LayerKind, module: RecomputeModule) -> Part:
    """Return the part of a layer that a module of selective recompute is, as megatron-core 0.16 splits it."""
    groups: set[OperationGroup] = set()
    names: set[str] = set()
    frees: set[str] | None = None
    saves: tuple[Saved, ...] = ()
    match module:
        case "core_attn":
            groups = {"core_attention"}
            frees, saves = {"attention_scores", "attention_dropout"}, _joined(conditions, kind)
            # Its output too, if the product behind has its own copy.
            copied = conditions.precision in NARROW and conditions.framework.fp8_inputs
            frees |= {"attention_output"} if copied and conditions.model.attention_gate == "none" else set()
        case "layernorm":
            # TransformerEngine fuses other norms with the product behind them: those are not recomputed.
            names |= {"attention_norm"} if kind.mixer in LATENT else set()
            names |= {"ffn_norm"} if kind.routed else set()
            frees = {f"{name}_{tensor}" for name in names for tensor in ("output", "statistics")}
        case "moe_act":
            names, frees = {"experts_activation"}, {"experts_silu", "experts_unweighted", "experts_product"}
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
        saves=saves,
        back_with_others=module == "core_attn",
    )


def _joined(conditions: Conditions, kind: LayerKind) -> tuple[Saved, ...]:
    """Return the queries and keys of the joint projection, which recompute of the core saves (M6).

    The core's input is then the view of the values, not TransformerEngine's copy of them, and holds the whole
    projection (megatron-core d98e8a6, transformer/attention.py, `_checkpointed_attention_forward`).
    """
    framework, heads = conditions.framework, conditions.model.heads(kind.mixer)
    joined = framework.fused_projections and not (framework.keep_qkv_output or framework.repeat_kv)
    copied = framework.flash_attention and joined
    if not copied or kind.mixer not in ("grouped_query", "sliding"):
        return ()
    width = float(heads.query_width + heads.key_width)
    return (Saved("joint_projection", element_bytes(conditions) * width, "tensor"),)


@remembered
def repeated(conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> tuple[Operation, ...]:
    """Return the operations of a layer that a policy recomputes, each once, without the parts it saves (M6)."""
    match mode:
        case "full":
            return _recomputed_whole(conditions, kind)
        case "operations":
            return tuple(_recomputed_parts(conditions, kind))
        case _:
            chosen = parts(conditions, kind, mode, modules)
            return tuple(
                operation
                for operation in layer_operations(conditions, kind)
                if any(part.repeats(operation) for part in chosen)
            )


def _recomputed_whole(conditions: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """Return the operations of full recompute: up to the last tensor that is read, or to the layer's end."""
    ends = conditions.framework.recompute_stops_early or conditions.framework.compiled
    return _read_operations(conditions, kind) if ends else layer_operations(conditions, kind)


def _read_operations(conditions: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """Return a layer's operations up to the last tensor that its backward pass reads."""
    operations = layer_operations(conditions, kind)
    last = max(
        (i for i, operation in enumerate(operations) if operation.saved and operation.group != "adapter"), default=-1
    )
    return operations[: last + 1]


def _recomputed_parts(conditions: Conditions, kind: LayerKind) -> Iterator[Operation]:
    """Yield what per-operation checkpointing recomputes: not attention, every second product, some exchanges (M7)."""
    saved = {weight.name for weight in _saved_products(conditions, kind)}
    for operation in _recomputed_whole(conditions, kind):
        if operation.group in ("core_attention", "context_exchange"):
            continue
        yield operation._replace(
            weights=tuple(weight for weight in operation.weights if weight.name not in saved),
            collectives=tuple(each for each in operation.collectives if each.pattern not in ("reduce", "all_to_all")),
        )


_LATENT_ORDER: tuple[str, ...] = ("q", "q_a", "q_b", "kv_a", "kv_b")
"""Products of latent attention in torchtitan's order: queries first."""


def _saved_products(conditions: Conditions, kind: LayerKind) -> tuple[Weight, ...]:
    """Return the products whose outputs per-operation checkpointing saves: a layer's first, third and so on (M7)."""
    products = [
        weight
        for operation in layer_operations(conditions, kind)
        for weight in operation.weights
        if weight.matmul and not weight.routed and operation.group != "router"
    ]
    if kind.mixer in LATENT:
        # Later products keep their order.
        products.sort(key=lambda weight: (*_LATENT_ORDER, weight.name).index(weight.name))
    return tuple(products[::2])


_OUTPUTS: Mapping[Split, Spread] = {
    "column": "tensor",
    # Partial sums of every rank, before the scatter.
    "row": "whole",
    "replicated": "sequence",
}  # spread of a product's output, by how its weight is split


def _saved_outputs(conditions: Conditions, kind: LayerKind) -> Iterator[Saved]:
    """Yield what per-operation checkpointing saves: input, attention, every second product, exchanges (M7).

    A compiled layer saves none that nothing reads: the last product's output enters the residual stream.
    """
    hidden, operations = float(conditions.model.hidden_size), layer_operations(conditions, kind)
    yield Saved("layer_input", element_bytes(conditions) * hidden, "sequence")
    for operation in operations:
        if operation.group in ("core_attention", "adapter"):
            yield from operation.saved
    compiled = conditions.framework.compiled
    yield from _outputs(conditions, kind, _read_operations(conditions, kind) if compiled else operations)


def _outputs(conditions: Conditions, kind: LayerKind, operations: tuple[Operation, ...]) -> Iterator[Saved]:
    """Yield the outputs of some of a layer's operations that per-operation checkpointing saves."""
    saved = {weight.name for weight in _saved_products(conditions, kind)}
    for operation in operations:
        for weight in operation.weights:
            if weight.name in saved:
                amount = element_bytes(conditions) * weight.outputs
                yield Saved(f"{weight.name}_output", amount, _OUTPUTS[weight.split])
        for each in operation.collectives:
            if each.pattern == "reduce" and each.group == "tensor":
                yield Saved(f"{operation.name}_scattered", each.amount, "scattered")
            elif each.pattern == "all_to_all" and each.group == "expert":
                yield Saved(f"{operation.name}_exchanged", each.amount, "copies_exchanged")


@remembered
def freed(conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Mapping[Spread, float]:
    """Return the bytes of a layer that a policy frees, by spread; negative where it saves others instead."""
    if mode == "operations":
        everything = summed(tensor for operation in layer_operations(conditions, kind) for tensor in operation.saved)
        return _sum(everything, summed(_saved_outputs(conditions, kind)), sign=-1.0)
    chosen = parts(conditions, kind, mode, modules)
    saved_instead = summed(tensor for part in chosen for tensor in part.saves)
    return _sum(_bytes_of(conditions, kind, chosen), saved_instead, sign=-1.0)


def _sum(first: Mapping[Spread, float], second: Mapping[Spread, float], sign: float = 1.0) -> Mapping[Spread, float]:
    spreads = dict.fromkeys((*first, *second))
    return {spread: first.get(spread, 0.0) + sign * second.get(spread, 0.0) for spread in spreads}


def _bytes_of(conditions: Conditions, kind: LayerKind, chosen: tuple[Part, ...]) -> Mapping[Spread, float]:
    return summed(
        tensor
        for operation in layer_operations(conditions, kind)
        for tensor in operation.saved
        if any(part.drops(operation, tensor) for part in chosen)
    )


@remembered
def returning(
    conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules
) -> tuple[tuple[Mapping[Spread, float], Mapping[Spread, float]], ...]:
    """Return, for each part, the bytes recomputed and the bytes of later tensors freed by then."""
    operations, chosen = layer_operations(conditions, kind), parts(conditions, kind, mode, modules)
    if mode == "operations":
        # The whole layer is recomputed before its backward pass begins, with outputs that it does not read.
        unread = () if conditions.framework.compiled else operations[len(_read_operations(conditions, kind)) :]
        return ((_sum(freed(conditions, kind, mode, modules), summed(_outputs(conditions, kind, unread))), {}),)
    pairs = []
    for part in chosen:
        recomputed = _bytes_of(conditions, kind, (part,))
        last = max(
            (i for i, operation in enumerate(operations) if part.repeats(operation)), default=len(operations) - 1
        )
        released = (
            tensor
            for operation in operations[last + 1 :]
            for tensor in operation.saved
            if operation.group != "adapter" and not any(other.drops(operation, tensor) for other in chosen)
        )
        pairs.append((recomputed, {} if part.back_with_others else summed(released)))
    return tuple(pairs)
