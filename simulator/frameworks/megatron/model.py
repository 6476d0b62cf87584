"""The model of Megatron's and MindSpeed's flags: its shape, its vocabulary, and the shipped model that equals it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.megatron.cut import idle_layers
from simulator.frameworks.megatron.mixers import is_known_spec, layer_digits, mixers_of
from simulator.frameworks.megatron.vocabulary import padded, padding, vocabulary
from simulator.frameworks.take import Targets, part

LATENT: Final = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_LATENT_SIZES: Final = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
"""Default sizes of MLA's heads: core_v0.10 to core_v0.19, megatron/training/arguments.py (d98e8a6: 3552) and
MLATransformerConfig of megatron/core/transformer/transformer_config.py."""
_HEADS: Final = ("n-head-kv", "num-key-value-heads")
"""Flags of key-value heads in Pai's older models and Megatron-DeepSpeed, which need no switch."""
_ROTARY: Final = ("rope", "rotary", "mrope", "yarn", "deepseek4")
"""Rotary position embeddings, by Megatron-LM's, Pai's and MindSpeed's names."""
_LINEAR: Final = ("linear_", "mamba_", "convolution", "chunk_tokens")
"""Prefixes of fields that belong to mixers other than attention."""


def fields_of(arguments: Arguments, targets: Targets) -> dict[str, Any]:
    """Return the model's shape as the flags state it, with the fields that Megatron derives."""
    fields = {name: value for name, value in part(targets, "model").items() if not name.startswith(_LINEAR)}
    layers = fields.get("num_hidden_layers")
    if layers:
        fields["num_hidden_layers"] = layers - len(idle_layers(arguments) & frozenset(range(layers)))
    if (experts := _experts(arguments)) is not None:
        fields["num_experts"] = experts
    _set_heads(arguments, fields)
    _set_parts(arguments, fields)
    _set_width(arguments, fields)
    _set_experts(arguments, fields, layers)
    _set_latent(arguments, fields)
    fields |= mixers_of(arguments, fields, part(targets, "model"))
    arguments.forget("spec")
    return fields


def _experts(arguments: Arguments) -> int | None:
    """Return the number of routed experts; per-layer numbers, as in Megatron-DeepSpeed, must be equal."""
    numbers = (arguments.text("num_experts", "num-experts") or "").split()
    if len(numbers) < 2 or not all(re.fullmatch(r"[0-9]{1,6}", number, re.ASCII) for number in numbers):
        return arguments.integer("num_experts", "num-experts", low=0)
    if len(set(numbers)) > 1:
        message = f"--num-experts {' '.join(numbers)[:60]}: layers of unequal numbers of experts are not modelled"
        arguments.not_modelled(message, "num-experts")
    return int(numbers[0])


def _set_heads(arguments: Arguments, fields: dict[str, Any]) -> None:
    """Set key-value heads, which only a switch reduces, and the size of a head."""
    heads, hidden = fields.get("num_attention_heads"), fields.get("hidden_size")
    groups = fields.pop("num_key_value_heads", None) or arguments.integer("num_key_value_heads", *_HEADS)
    grouped = arguments.switch("num_key_value_heads", "group-query-attention") or arguments.has(*_HEADS)
    if heads and "num_key_value_heads" not in arguments.incomplete:
        fields["num_key_value_heads"] = groups if grouped and groups else heads
    if hidden and heads and hidden % heads == 0 and "head_dim" not in arguments.incomplete:
        fields.setdefault("head_dim", hidden // heads)


def is_gated(arguments: Arguments, fields: Mapping[str, Any]) -> bool:
    """Whether the feed-forward network has a gate; `--fc-type up_down` of MindSpeed-LLM c77308a removes it."""
    return bool(fields.get("gated")) and arguments.text("intermediate_size", "fc-type") != "up_down"


def _set_parts(arguments: Arguments, fields: dict[str, Any]) -> None:
    """Set a layer's parts: network, biases, positions."""
    biased = not arguments.switch("mlp_bias", "disable-bias-linear")
    kind = (arguments.text("rotary", "position-embedding-type") or "").lower()
    rotary = kind in _ROTARY
    learned = not rotary and kind in ("", "learned_absolute", "absolute") and not arguments.has("no-position-embedding")
    fields |= {
        "gated": is_gated(arguments, fields),
        "activation": fields.get("activation", "gelu"),
        "attention_bias": arguments.switch("attention_bias", "add-qkv-bias") or biased,
        "attention_output_bias": biased or fields.get("attention_output_bias", False),
        "mlp_bias": biased,
        "rotary": rotary,
        "learned_positions": fields.get("max_position_embeddings", 0) if learned else 0,
    }


def _set_width(arguments: Arguments, fields: dict[str, Any]) -> None:
    """Set the network's width as Megatron derives it, or by FlagScale's `--multiple-of` (v0.1, arguments.py)."""
    hidden = fields.get("hidden_size")
    if not hidden or "intermediate_size" in fields or "intermediate_size" in arguments.incomplete:
        return
    multiple = arguments.integer("intermediate_size", "multiple-of")
    if not fields["gated"]:
        width = 4 * hidden
    elif multiple is None:
        width = int(hidden * 4 * 2 / 3 / 64) * 64
    else:
        factor = arguments.text("intermediate_size", "hidden-dim-multiplier") or "1"
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", factor, re.ASCII):
            problem = f"'{factor[:40]}' given; must be a number"
            raise arguments.refusal(arguments.entry("hidden-dim-multiplier"), problem)
        width = padded(int(int(4 * hidden * 2 / 3) * float(factor)), multiple)
    fields["intermediate_size"] = width


def _set_experts(arguments: Arguments, fields: dict[str, Any], layers: int | None) -> None:
    """Set the fields of experts, where the model has them; `layers` include no-op layers."""
    shared = fields.pop("num_shared_experts", None)
    gate = fields.pop("shared_expert_gate", False)
    if "n_group" in fields and not fields.get("topk_group") and "topk_group" not in arguments.incomplete:
        # Groups are ignored without a number of groups per token: core_r0.12.0, transformer/moe/moe_utils.py:525.
        fields |= {"n_group": 0, "topk_group": 0}
    alone = fields.get("num_experts") == 1 and arguments.has("deepspeed")
    if alone or not fields.get("num_experts"):
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
            fields.pop(name, None)
        return
    fields.setdefault("num_experts_per_tok", 2)
    own = fields.setdefault("moe_intermediate_size", fields.get("intermediate_size"))
    width = arguments.integer("num_shared_experts", "moe-shared-expert-intermediate-size")
    if shared:
        fields["num_shared_experts"] = shared
    elif width and own:
        fields["num_shared_experts"] = max(1, width // own)
        if width % own:
            fields["shared_expert_intermediate_size"] = width
    if fields.get("num_shared_experts"):
        fields["shared_expert_gate"] = gate
    fields |= _places_of_experts(arguments, fields, layers)


def _places_of_experts(arguments: Arguments, fields: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """Return which layers have experts: by MindSpeed's count of leading dense ones, a step, or a list."""
    leading = max(arguments.integer("first_k_dense_replace", "first-k-dense-replace", low=-1) or 0, 0)
    text = (arguments.text("first_k_dense_replace", "moe-layer-freq") or "1").replace(" ", "").strip("\"'")
    if text in ("1", "-1"):
        return {"first_k_dense_replace": leading}
    step = int(text) if re.fullmatch(r"[0-9]{1,4}", text, re.ASCII) and int(text) else 0
    digits = "".join("01"[i % step == 0 and i >= leading] for i in range(layers or 0)) if step else layer_digits(text)
    if "1" not in digits or (layers is not None and len(digits) != layers):
        message = f"--moe-layer-freq {text[:40]}: no list of {layers or 'all'} layers of which some have experts"
        arguments.not_modelled(message, "moe-layer-freq")
        return {"first_k_dense_replace": 0}
    first = digits.find("1")
    if "0" not in digits[first:]:
        return {"first_k_dense_replace": first}
    plain = "gated" if fields["gated"] else "plain"
    return {"feed_forwards": tuple("experts" if digit == "1" else plain for digit in digits)}


def _set_latent(arguments: Arguments, fields: dict[str, Any]) -> None:
    """Set the sizes of latent attention, if the model has it; refuse unknown definitions of layers."""
    spec = arguments.text("spec", "spec")
    if spec and not is_known_spec(spec):
        arguments.not_modelled(f"--spec {spec[:80]}: layers of this kind are not modelled", "spec")
    if fields.get("attention") != "mla":
        for name in LATENT:
            fields.pop(name, None)
        return
    # With MLA the flag means the norms of compressed queries and keys, which its layers include anyway.
    fields |= {"qk_norm": False, "attention_bias": False}
    if arguments.has("multi-latent-attention"):
        usual = {name: size for name, size in _LATENT_SIZES.items() if name not in {*fields, *arguments.incomplete}}
        fields |= usual
    if fields.get("qk_nope_head_dim") and fields.get("qk_rope_head_dim"):
        fields["head_dim"] = fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"]


def model_of(arguments: Arguments, fields: dict[str, Any], tensor_parallel: int) -> tuple[str | None, dict[str, Any]]:
    """Return the shipped model of a shape, and the fields in which the run differs from it."""
    count, assumed = vocabulary(arguments)
    shape = {**fields, **({"vocab_size": count} if count else {})}
    model = models.by_shape(shape)
    unknown = arguments.has("patch-tokenizer-type") and model is not None and models.shares_sizes(model)
    if model is not None and not count and (unknown or _has_other_parts(model, fields)):
        # Several models of equal sizes, or an unknown tokenizer: the vocabulary would be a guess.
        model = None
    multiple = padding(arguments, tensor_parallel)
    fix = "--model-field vocab_size=N"
    if model is None:
        if count:
            shape["vocab_size"] = padded(count, multiple)
        else:
            message = "the recipe does not say how large the vocabulary is"
            arguments.remark("no-vocabulary", "warning", message, "tokenizer-type", "patch-tokenizer-type", fix=fix)
        return None, {**shape, "architecture": _architecture(shape)}
    own = models.load_model(model).vocab_size
    known = count if count and not own - _SPARE_ENTRIES <= count <= own else own
    if assumed and known != own:
        message = f"vocabulary of {known} is what {assumed} has; the script does not say"
        arguments.remark("vocabulary-assumed", "note", message, "tokenizer-model", "tokenizer-type", fix=fix)
    shape["vocab_size"] = padded(known, multiple)
    shape.pop("max_position_embeddings", None)
    return model, models.differing(model, shape)


_SPARE_ENTRIES: Final = 600
"""Most rows by which a model's vocabulary exceeds its tokenizer's entries, padding included."""


def _has_other_parts(model: str, fields: Mapping[str, object]) -> bool:
    """Whether a model's biases or head norms differ from the flags'."""
    spec = models.load_model(model)
    return any(name in fields and getattr(spec, name) != fields[name] for name in ("attention_bias", "qk_norm"))


def _architecture(shape: Mapping[str, object]) -> str:
    """Return a model family whose layers have these parts."""
    if "architecture" in shape:
        return str(shape["architecture"])
    if shape.get("attention") == "mla":
        return "deepseek_v3"
    if not shape.get("gated"):
        return "mixtral" if shape.get("num_experts") else "gpt2"
    if shape.get("qk_norm"):
        return "qwen3_moe" if shape.get("num_experts") else "qwen3"
    if shape.get("num_experts"):
        return "mixtral"
    return "qwen2" if shape.get("attention_bias") else "llama"
