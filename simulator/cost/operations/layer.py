"""The operations of a layer of each kind: a mixer of tokens, and a feed-forward network, each behind a norm.

An architecture is a file that lists its operations, and its name here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from simulator.cost.elements import element_bytes
from simulator.cost.operations.blocks import norm, residual
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.experts import experts
from simulator.cost.operations.gated import gated
from simulator.cost.operations.grouped_query import grouped_query
from simulator.cost.operations.latent import latent
from simulator.cost.operations.record import Kept, Operation
from simulator.question.specs.model import FeedForward, LayerKind, Mixer

Listing = Callable[[Conditions], tuple[Operation, ...]]
"""The operations between a norm and the residual addition."""

MIXERS: Mapping[Mixer, Listing] = MappingProxyType({"grouped_query": grouped_query, "latent": latent})
FEED_FORWARDS: Mapping[FeedForward, Listing] = MappingProxyType({"gated": gated, "experts": experts})


@lru_cache(maxsize=256)
def layer_operations(given: Conditions, kind: LayerKind) -> tuple[Operation, ...]:
    """The operations of one layer, in the order of its forward pass."""
    return (
        norm(given, "attention_norm", "input_norm"),
        *MIXERS[kind.mixer](given),
        residual(given, "attention_residual"),
        norm(given, "ffn_norm", "post_attention_norm"),
        *FEED_FORWARDS[kind.feed_forward](given),
        residual(given, "ffn_residual"),
        *_adapters(given),
    )


def _adapters(given: Conditions) -> tuple[Operation, ...]:
    """LoRA keeps its inner activation; four linear groups (qkv, output, gate-up, down) at the least."""
    if given.lora_rank is None:
        return ()
    inner = Kept("adapter_inner", 4.0 * element_bytes(given) * float(given.lora_rank), "whole")
    return (Operation(name="adapters", group="adapter", kept=(inner,)),)
