"""Offload inside a layer: which saved tensors the forward pass sends to the host, to return in the backward pass (M27).

Megatron-LM d98e8a6, core/pipeline_parallel/fine_grained_activation_offload.py: a module of `--offload-modules` moves
the tensors that autograd saves between its start and its end (core/transformer/attention.py, multi_latent_attention.py,
transformer_layer.py, moe/experts.py). Row statistics, below its minimum of a million numbers, stay.
`memory.activations` takes them off the device, `memory.host` counts them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from simulator.cost.operations.record import Conditions, Operation, Saved
from simulator.question.specs.model import LATENT, LayerKind
from simulator.question.vocabulary import NARROW

SWAPPED: Final = frozenset(("attention_projection", "position", "context_exchange", "core_attention"))
"""Groups of operations swapped with attention (mindspeed/core/memory/adaptive_recomputing, swap_attention)."""
_EXPERT_INPUTS: Final = frozenset(("experts_gate_up", "experts_up", "experts_silu"))
_TENSORS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "attn_norm": frozenset(),
        "qkv_linear": frozenset(("attention_norm_output", "qk_norm_input")),
        "core_attn": frozenset(
            (
                *("rotated_query", "rotated_key", "query", "key", "value", "latent_value", "key_value_projection"),
                *("ring_key_value", "attention_scores", "attention_dropout"),
            )
        ),
        "attn_proj": frozenset(("attention_output_fp8", "exchanged_output", "gated_attention_output")),
        "mlp_norm": frozenset(),
        "expert_fc1": frozenset(("dispatched_tokens",)),
        "moe_act": _EXPERT_INPUTS,
        "fused_group_mlp": _EXPERT_INPUTS | {"dispatched_tokens", "experts_product"},
    }
)
"""Names of the tensors that each module saves in any layer."""


@lru_cache(maxsize=256)
def _names(conditions: Conditions, kind: LayerKind) -> frozenset[str]:
    """Return the names of a layer's tensors that its offloaded modules move."""
    modules, model = set(conditions.framework.offloaded_modules), conditions.model
    names = frozenset[str]().union(*(_TENSORS[module] for module in modules))
    latent = kind.mixer in LATENT
    # The norm is fused with the product behind it, except in latent attention and before routed experts.
    if ("attn_norm" if latent else "qkv_linear") in modules:
        names |= {"attention_norm_input"}
    if "qkv_linear" in modules and latent:
        names |= {"latents", "latent_norm_outputs"}
    if "mlp_norm" in modules and kind.routed:
        names |= {"ffn_norm_input"}
    # Values are a view of the joint projection's output, which norms of queries and keys save too.
    if "core_attn" in modules and (not model.qk_norm or "qkv_linear" in modules):
        names |= {"qkv_output"}
    copied = conditions.precision in NARROW and conditions.framework.fp8_inputs
    if "core_attn" in modules and ("attn_proj" in modules or copied) and model.attention_gate == "none":
        names |= {"attention_output"}
    return names


def moved(conditions: Conditions, kind: LayerKind, operation: Operation) -> tuple[Saved, ...]:
    """Return the tensors of an operation that leave the device."""
    if conditions.framework.swapped_attention and operation.group in SWAPPED:
        return operation.saved
    if not conditions.framework.offloaded_modules:
        return ()
    names = _names(conditions, kind)
    return tuple(tensor for tensor in operation.saved if tensor.name in names)


def sent(conditions: Conditions, kind: LayerKind, operation: Operation) -> tuple[Saved, ...]:
    """Return an operation's offloaded tensors with the bytes they transfer.

    Of a joint projection only the values are saved. Attention's 16-bit output is saved by attention and by the product
    behind it, and sent twice.
    """
    tensors = moved(conditions, kind, operation)
    if conditions.framework.swapped_attention:
        return tensors
    return tuple(tensor._replace(amount=_transfers(conditions, kind, tensor) * tensor.amount) for tensor in tensors)


def _transfers(conditions: Conditions, kind: LayerKind, tensor: Saved) -> float:
    model = conditions.model
    if tensor.name == "qkv_output" and not model.qk_norm:
        heads = model.heads(kind.mixer)
        return heads.value_width / (heads.query_width + heads.key_width + heads.value_width)
    twice = tensor.name == "attention_output" and conditions.precision not in NARROW
    return 2.0 if twice and "attn_proj" in conditions.framework.offloaded_modules else 1.0
