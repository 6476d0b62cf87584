"""Registry of layers: which operations each mixer and feed-forward network of a model has, as one list a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from simulator.cost.derived import remembered
from simulator.cost.dtypes import adapter_bytes, element_bytes
from simulator.cost.operations.attention import compressed, grouped_query, latent, reused
from simulator.cost.operations.blocks import (
    adapts,
    aggregated,
    collapsed,
    decomposed,
    expanded,
    input_casts,
    keeps_inputs,
    layer_embedding,
    linear_input,
    multiplies_dropped,
    norm,
    post_norm,
    residual,
)
from simulator.cost.operations.feed_forward import dense, experts, experts_beside, hashed_experts, linear
from simulator.cost.operations.record import Amount, Conditions, Operation, OperationGroup, Saved, moved, summed
from simulator.cost.operations.recurrent import filtered, gated_delta, kimi_delta, lightning, mamba, selective_scan
from simulator.question.specs.model import FeedForward, LayerKind, Mixer

Listing = Callable[[Conditions], tuple[Operation, ...]]
"""Operations between a norm and the residual addition."""


def nothing(_conditions: Conditions) -> tuple[Operation, ...]:
    """Return no operations: a layer without a mixer, or without a feed-forward network."""
    return ()


_ALIKE: Mapping[Callable[..., tuple[Operation, ...]], tuple[Mixer, ...]] = {
    grouped_query: ("grouped_query", "sliding", "sparse"),
    latent: ("latent", "sparse_latent", "shared_sparse_latent"),
    reused: ("reused_grouped_query", "reused_sliding"),
    compressed: ("window_shared", "compressed_sparse", "heavily_compressed"),
}
MIXERS: Mapping[Mixer, Listing] = MappingProxyType(
    {
        **{mixer: partial(listing, mixer=mixer) for listing, mixers in _ALIKE.items() for mixer in mixers},
        "filtered": filtered,
        "gated_delta": gated_delta,
        "lightning": lightning,
        "mamba": mamba,
        "selective_scan": selective_scan,
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


@remembered
def layer_operations(conditions: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """Return the operations of one layer in forward order, with the tensors saved on the device."""
    return tuple(
        _captured(conditions, _left(conditions, kind, operation)) for operation in whole_operations(conditions, kind)
    )


def _captured(conditions: Conditions, operation: Operation) -> Operation:
    """Return an operation, marked if a CUDA graph launches all of it (T12)."""
    groups = CAPTURED.get(conditions.framework.cuda_graphs)
    everything = conditions.framework.cuda_graphs in ("layers", "full_iteration")
    inside = everything or (groups is not None and operation.group in groups)
    return operation._replace(captured=operation.calls) if inside and operation.calls else operation


_MIXING = frozenset(("attention_projection", "position", "context_exchange", "core_attention", "indexer"))
CAPTURED: Mapping[str, frozenset[str]] = MappingProxyType(
    {"attention": _MIXING, "attention_router": _MIXING | {"router"}, "network": frozenset(("feed_forward",))}
)
"""Groups of operations in CUDA graphs, for `attn` and `mamba`, those with `moe_router`, and `mlp` of Megatron."""


def _left(conditions: Conditions, kind: LayerKind, operation: Operation) -> Operation:
    """Return an operation without saved tensors that are offloaded, or recomputed by a share of the experts."""
    profile = conditions.framework
    if offloaded := moved(conditions, kind, operation):
        operation = operation._replace(saved=tuple(tensor for tensor in operation.saved if tensor not in offloaded))
    shares = (profile.recomputed_expert_share, _EXPERTS), (profile.recomputed_network_share, NETWORKS)
    left = math.prod(1.0 - share for share, groups in shares if operation.group in groups)
    return operation._replace(saved=tuple(tensor._replace(amount=left * tensor.amount) for tensor in operation.saved))


def shared_repeats(conditions: Conditions, kind: LayerKind) -> tuple[tuple[float, tuple[Operation, ...]], ...]:
    """Return the operations that the stack recomputes in a share of the layers, with that share.

    Recomputed exchanges of experts overlap with other recomputed work (megatron-moe-zero-memory.md of MindSpeed).
    """
    networks, experts = conditions.framework.recomputed_network_share, conditions.framework.recomputed_expert_share
    if not networks and not experts:
        return ()
    operations = layer_operations(conditions, kind)
    hidden = tuple(part._replace(collectives=()) for part in operations if part.group in _EXPERTS)
    repeats = (
        (networks, tuple(part for part in operations if part.group in NETWORKS)),
        ((1.0 - networks) * experts, hidden),
    )
    return tuple((share, again) for share, again in repeats if share and again)


_EXPERTS = frozenset(("experts", "dispatch"))
NETWORKS = frozenset(("feed_forward", "router", "experts", "dispatch", "shared_experts"))


def whole_operations(conditions: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """Return the operations of one layer with all saved tensors, on device or host."""
    conditions = conditions._replace(model=conditions.model.of_kind(kind))
    mixer = _block(conditions, MIXERS[kind.mixer](conditions), "attention", "input_norm")
    feed_forward = _block(conditions, FEED_FORWARDS[kind.feed_forward](conditions), "ffn", "post_attention_norm")
    if conditions.model.parallel_residual and mixer and feed_forward:
        feed_forward = _parallel(conditions, feed_forward)
    feed_forward = _read_by_trained(conditions, feed_forward)
    operations = (*mixer, *feed_forward, *layer_embedding(conditions))
    return (*operations, *_adapters(conditions, kind, operations))


def _read_by_trained(conditions: Conditions, part: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return a feed-forward part without the inputs of frozen products that have no adapter (M2).

    An activation's output that is not kept leaves no room for a gradient of the backward pass (M12).
    """
    if conditions.lora_rank is None or keeps_inputs(conditions):
        return part
    first = ((each.group, weight) for each in part for weight in each.weights if not weight.name.endswith("down"))
    entered = any(adapts(conditions, group, each.name) for group, each in first if each.matmul and not each.routed)

    def is_read(group: OperationGroup, name: str) -> bool:
        place = "expert_up" if group in _EXPERTS else "down" if name.endswith("_product") else ""
        read = adapts(conditions, "experts" if place == "expert_up" else group, place) if place else entered
        return read or not name.endswith(_PRODUCT_INPUTS)

    def read(operation: Operation) -> Operation:
        saved = tuple(tensor for tensor in operation.saved if is_read(operation.group, tensor.name))
        product = (tensor for tensor in operation.saved if tensor.name == "ffn_product" and tensor not in saved)
        more = tuple(Amount(tensor.amount, tensor.spread) for tensor in product)
        return operation._replace(saved=saved, temporary=(*operation.temporary, *more))

    return tuple(map(read, part))


_PRODUCT_INPUTS = ("ffn_norm_output", "ffn_input", "_product", "dispatched_tokens", "experts_norm_output")
"""Name endings of the tensors that only a feed-forward part's matrix products read."""
_MIXER_INPUTS = ("attention_norm_output", "attention_input", "latent_norm_outputs", "attention_output")


def product_inputs(conditions: Conditions, kind: LayerKind) -> Iterator[Saved]:
    """Yield the inputs that a layer's products keep apart from autograd's saved tensors (M38)."""
    for operation in whole_operations(conditions, kind) if keeps_inputs(conditions) else ():
        if operation.group not in _EXPERTS or conditions.framework.quantised_experts:
            yield from (each for each in operation.saved if each.name.endswith((*_PRODUCT_INPUTS, *_MIXER_INPUTS)))


def _block(conditions: Conditions, inside: tuple[Operation, ...], name: str, weight: str) -> tuple[Operation, ...]:
    """Return operations with their norms and the residual addition; empty if there are none."""
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
            entered = Operation(name=f"{name}_entry", group="norm", saved=(linear_input(conditions, f"{name}_input"),))
            return (entered, *inside, post_norm(conditions, f"{name}_norm", weight), added)
        case "around":
            behind = post_norm(conditions, f"{name}_post_norm", f"{weight}_behind")
            return (norm(conditions, f"{name}_norm", weight), *inside, behind, added)


def _parallel(conditions: Conditions, feed_forward: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return a feed-forward part that reads the layer's input: its norm saves no input, a shared norm nothing."""
    first, *others = feed_forward
    if conditions.model.shared_norm:
        return tuple(others)
    return (first._replace(saved=first.saved[1:]), *others)


def _adapters(conditions: Conditions, kind: LayerKind, others: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return the inner activations that LoRA saves, for four linear groups (qkv, output, gate-up, down), two or one.

    With `adapter_copies` each adapter's cast input is saved beside what the layer saves: of q, k and v two more, of
    gate and up one more, and attention's output (peft 0.19, tuners/lora/layer.py, `_cast_input_dtype`); all of them
    where products keep their own. An input that is dropped at random is such a copy, with a byte of mask for each
    number; a dropped output has the mask alone.
    """
    if conditions.lora_rank is None:
        return ()
    framework, model, element = conditions.framework, conditions.model, element_bytes(conditions)
    hidden, dropout, sharing = float(model.hidden_size), framework.adapter_dropout, framework.shared_adapters
    places = {name: float(adapts(conditions, "attention_projection", name)) for name in ("q", "k", "v", "o")}
    dense = kind.feed_forward in ("gated", "plain")
    gate, up, down = (float(dense * adapts(conditions, "feed_forward", name)) for name in ("gate", "up", "down"))
    products = gate * (kind.feed_forward == "gated") + up
    heads, output = places["q"] + places["k"] + places["v"], places["o"] * float(model.query_width)
    groups = min(heads, 1.0) + places["o"] + 2.0 * (framework.adapter_targets == "all" or products > 0.0)
    saved = [Saved("adapter_inner", groups * element * float(conditions.lora_rank), "whole")]
    inner = down * model.intermediate_size
    # Adapters that read the layer's input, and the feed-forward part's.
    joint = sharing in ("attention", "true") or framework.joint_adapters != "none"
    reads = min(heads, 1.0) if joint else heads
    entered = min(products, 1.0) if sharing in ("network", "true") else products
    cast = input_casts(conditions)
    casts = "each" if dropout == "before" else cast
    if casts != "none":
        apart = keeps_inputs(conditions)
        more = reads + entered if apart else max(reads - 1.0, 0.0) + max(entered - (not model.shared_norm), 0.0)
        # Without autocast they stay in fp32, as the first of each input does then.
        width, narrow = element if framework.autocast else adapter_bytes(conditions), cast == "each" and not apart
        first = narrow * (width - element) * (1.0 + (entered > 0.0 and not model.shared_norm))
        copies = (width * more + first) * hidden + width * (casts == "each") * output
        saved.append(Saved("adapter_copies", copies, "sequence"))
        saved.append(Saved("adapter_inner_copy", (apart * width + narrow * (width - element)) * inner, "tensor"))
    if framework.joint_adapters == "padded":
        saved.append(Saved("adapter_outputs", element * (model.query_width + model.kv_width), "tensor"))
    if dropout == "before":
        saved.append(Saved("adapter_input_masks", (reads + entered) * hidden + output, "sequence"))
        saved.append(Saved("adapter_inner_mask", inner, "tensor"))
    if dropout == "after":
        outputs = places["q"] * model.query_width + (places["k"] + places["v"]) * model.kv_width
        outputs += products * model.intermediate_size
        saved.append(Saved("adapter_output_masks", (places["o"] + down) * hidden, "sequence"))
        saved.append(Saved("adapter_inner_masks", outputs, "tensor"))
    widths = summed(Amount(float(each.outputs), each.output_spread) for each in decomposed(conditions, others))
    # DoRA's magnitudes multiply outputs of base and adapter; what is dropped the base multiplies as adapters do (M42).
    number, dropped = element if framework.autocast else adapter_bytes(conditions), multiplies_dropped(conditions)
    for spread, width in widths.items():
        saved.append(Saved(f"{spread}_magnitude_input", number * width * (1.0 + dropped), spread))
        saved.append(Saved(f"{spread}_base_output", element * width * (not dropped), spread))
    moves = element + 4.0 * adapter_bytes(conditions)  # two products by magnitudes, and a sum
    moved = tuple(Amount(moves * width, spread) for spread, width in widths.items())
    return (Operation(name="adapters", group="adapter", saved=tuple(saved), moved=moved),)
