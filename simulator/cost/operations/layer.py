"""The registry of layers: for each mixer and network its list of operations. A new architecture gets a line here.

An architecture is a file that lists its operations, and its name here. No operation is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType

from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.blocks import linear_input, norm, post_norm, residual
from simulator.cost.operations.compressed import compressed
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.dense import dense, linear
from simulator.cost.operations.experts import experts, experts_beside, hashed_experts
from simulator.cost.operations.filtered import filtered
from simulator.cost.operations.gated_delta import gated_delta
from simulator.cost.operations.grouped_query import grouped_query
from simulator.cost.operations.kimi_delta import kimi_delta
from simulator.cost.operations.latent import latent
from simulator.cost.operations.layer_embedding import layer_embedding
from simulator.cost.operations.lightning import lightning
from simulator.cost.operations.mamba import mamba
from simulator.cost.operations.offload import moved
from simulator.cost.operations.record import Kept, Operation
from simulator.cost.operations.reused import reused
from simulator.cost.operations.selective_scan import selective_scan
from simulator.cost.operations.streams import aggregated, collapsed, expanded
from simulator.question.specs.mixers import Mixer
from simulator.question.specs.model import FeedForward, LayerKind

Listing = Callable[[Conditions], tuple[Operation, ...]]
"""The operations between a norm and the residual addition."""


def nothing(_given: Conditions) -> tuple[Operation, ...]:
    """No operations: a layer without a mixer, or without a feed-forward network."""
    return ()


MIXERS: Mapping[Mixer, Listing] = MappingProxyType(
    {
        "grouped_query": grouped_query,
        "sliding": partial(grouped_query, mixer="sliding"),
        "sparse": partial(grouped_query, mixer="sparse"),
        "filtered": filtered,
        "latent": latent,
        "sparse_latent": partial(latent, mixer="sparse_latent"),
        "shared_sparse_latent": partial(latent, mixer="shared_sparse_latent"),
        "gated_delta": gated_delta,
        "lightning": lightning,
        "mamba": mamba,
        "selective_scan": selective_scan,
        "reused_grouped_query": partial(reused, mixer="reused_grouped_query"),
        "reused_sliding": partial(reused, mixer="reused_sliding"),
        "window_shared": partial(compressed, mixer="window_shared"),
        "compressed_sparse": partial(compressed, mixer="compressed_sparse"),
        "heavily_compressed": partial(compressed, mixer="heavily_compressed"),
        "kimi_delta": kimi_delta,
        "linear": linear,
        "none": nothing,
    }
)
FEED_FORWARDS: Mapping[FeedForward, Listing] = MappingProxyType(
    {
        "gated": dense,
        "plain": dense,
        "linear": linear,
        "experts": experts,
        "hashed_experts": hashed_experts,
        "experts_beside": experts_beside,
        "none": nothing,
    }
)


@lru_cache(maxsize=256)
def layer_operations(conditions: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """The operations of one layer, in the order of its forward pass; kept is what stays on the device."""
    return tuple(
        _captured(conditions, _left(conditions, kind, operation)) for operation in whole_operations(conditions, kind)
    )


def _captured(conditions: Conditions, operation: Operation) -> Operation:
    """An operation, marked where a CUDA graph starts all of it at once (T12)."""
    groups = CAPTURED.get(conditions.framework.cuda_graphs)
    everything = conditions.framework.cuda_graphs in ("layers", "full_iteration")
    inside = everything or (groups is not None and operation.group in groups)
    return operation._replace(captured=operation.calls) if inside and operation.calls else operation


_MIXING = frozenset(("attention_projection", "position", "context_exchange", "core_attention", "indexer"))
CAPTURED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "attention": _MIXING,
        "attention_router": _MIXING | {"router"},
        "network": frozenset(("feed_forward",)),
    }
)
"""Groups of operations inside CUDA graphs of parts of a layer: `attn` and `mamba`, those and `moe_router`, `mlp` of
Megatron's `--cuda-graph-scope`."""


def _left(conditions: Conditions, kind: LayerKind, operation: Operation) -> Operation:
    """An operation with what is moved to the host, or done again by a share of the experts, not kept."""
    profile = conditions.framework
    if away := moved(conditions, kind, operation):
        operation = operation._replace(kept=tuple(tensor for tensor in operation.kept if tensor not in away))
    shares = (profile.recomputed_expert_share, _EXPERTS), (profile.recomputed_network_share, _NETWORKS)
    left = math.prod(1.0 - share for share, groups in shares if operation.group in groups)
    return operation._replace(kept=tuple(tensor._replace(amount=left * tensor.amount) for tensor in operation.kept))


def shared_repeats(conditions: Conditions, kind: LayerKind) -> tuple[tuple[float, tuple[Operation, ...]], ...]:
    """What the stack does again of a share of the layers, each share with its operations in order.

    Experts' exchanges that are done again run under what is computed again (MindSpeed 028de58c,
    docs/zh/features/megatron_moe/megatron-moe-zero-memory.md).
    """
    networks, experts = conditions.framework.recomputed_network_share, conditions.framework.recomputed_expert_share
    if not networks and not experts:
        return ()
    operations = layer_operations(conditions, kind)
    hidden = tuple(part._replace(collectives=()) for part in operations if part.group in _EXPERTS)
    repeats = (
        (networks, tuple(part for part in operations if part.group in _NETWORKS)),
        ((1.0 - networks) * experts, hidden),
    )
    return tuple((share, again) for share, again in repeats if share and again)


_EXPERTS = frozenset(("experts", "dispatch"))
_NETWORKS = frozenset(("feed_forward", "router", "experts", "dispatch", "shared_experts"))


def whole_operations(conditions: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """The operations of one layer with all that they keep, wherever it is."""
    conditions = conditions._replace(model=conditions.model.of_kind(kind))
    mixer = _block(conditions, MIXERS[kind.mixer](conditions), "attention", "input_norm")
    feed_forward = _block(conditions, FEED_FORWARDS[kind.feed_forward](conditions), "ffn", "post_attention_norm")
    if conditions.model.parallel_residual and mixer and feed_forward:
        feed_forward = _beside(conditions, feed_forward)
    feed_forward = tuple(_read_by_trained(conditions, operation) for operation in feed_forward)
    return (*mixer, *feed_forward, *layer_embedding(conditions), *_adapters(conditions))


def _read_by_trained(conditions: Conditions, operation: Operation) -> Operation:
    """An operation of the feed-forward part without the inputs of frozen products without an adapter.

    Their input gradients need the weights alone (TransformerEngine, module/linear.py).
    """
    if conditions.lora_rank is None or conditions.framework.adapter_targets == "all":
        return operation
    read = tuple(tensor for tensor in operation.kept if not tensor.name.endswith(_PRODUCT_INPUTS))
    return operation._replace(kept=read)


_PRODUCT_INPUTS = ("ffn_norm_output", "ffn_input", "_product", "dispatched_tokens", "experts_norm_output")
"""Endings of the names of tensors that matrix products of a feed-forward part alone read."""


def _block(conditions: Conditions, inside: tuple[Operation, ...], name: str, weight: str) -> tuple[Operation, ...]:
    """Operations with their norms and the addition to the residual stream; nothing around nothing."""
    if not inside:
        return ()
    if conditions.model.residual_streams > 1:
        return (
            collapsed(conditions, name),
            norm(conditions, f"{name}_norm", weight),
            *inside,
            expanded(conditions, name),
        )
    added = residual(conditions, f"{name}_residual")
    if conditions.model.residual_block:
        return (aggregated(conditions, name), norm(conditions, f"{name}_norm", weight), *inside, added)
    match conditions.model.norm_placement:
        case "before":
            return (norm(conditions, f"{name}_norm", weight), *inside, added)
        case "after":
            entered = Operation(name=f"{name}_entry", group="norm", kept=(linear_input(conditions, f"{name}_input"),))
            return (entered, *inside, post_norm(conditions, f"{name}_norm", weight), added)
        case "around":
            behind = post_norm(conditions, f"{name}_post_norm", f"{weight}_behind")
            return (norm(conditions, f"{name}_norm", weight), *inside, behind, added)


def _beside(conditions: Conditions, feed_forward: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """A feed-forward part that reads the layer's input: its norm keeps no input of its own, a shared norm nothing."""
    first, *others = feed_forward
    if conditions.model.shared_norm:
        return tuple(others)
    return (first._replace(kept=first.kept[1:]), *others)


def _adapters(conditions: Conditions) -> tuple[Operation, ...]:
    """LoRA keeps its inner activation; four linear groups (qkv, output, gate-up, down) at the least, or two."""
    if conditions.lora_rank is None:
        return ()
    groups = 2.0 if conditions.framework.adapter_targets == "attention" else 4.0
    inner = Kept("adapter_inner", groups * element_bytes(conditions) * float(conditions.lora_rank), "whole")
    return (Operation(name="adapters", group="adapter", kept=(inner,)),)
