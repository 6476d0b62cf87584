"""The model of Megatron's and MindSpeed's flags: its shape, its vocabulary, and the shipped model of that shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.megatron.cut import idle_layers
from simulator.frameworks.megatron.mixers import count_layers, is_known_spec, mixers_of
from simulator.frameworks.megatron.parts import is_gated, parts_of, places_of_experts
from simulator.recipes.readers.megatron_flags import PATCHED, TOKENIZERS

_SIZES: Final = {
    "num_hidden_layers": ("num-layers",),
    "hidden_size": ("hidden-size",),
    "intermediate_size": ("ffn-hidden-size", "intermediate-size"),
    "num_attention_heads": ("num-attention-heads",),
    "head_dim": ("kv-channels",),
    "max_position_embeddings": ("max-position-embeddings",),
    "num_experts": ("num-experts", "num-moe-experts"),
    "num_experts_per_tok": ("moe-router-topk",),
    "n_group": ("moe-router-num-groups",),
    "topk_group": ("moe-router-group-topk",),
    "moe_intermediate_size": ("moe-ffn-hidden-size", "moe-intermediate-size"),
    "q_lora_rank": ("q-lora-rank",),
    "kv_lora_rank": ("kv-lora-rank",),
    "qk_nope_head_dim": ("qk-head-dim", "qk-nope-head-dim"),
    "qk_rope_head_dim": ("qk-pos-emb-head-dim", "qk-rope-head-dim"),
    "v_head_dim": ("v-head-dim",),
    "num_nextn_predict_layers": ("mtp-num-layers", "num-nextn-predict-layers"),
}
_HEADS: Final = ("n-head-kv", "num-key-value-heads")
"""Key-value heads of Pai's older models and of Megatron-DeepSpeed, without a switch."""
LATENT: Final = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_LATENT_SIZES: Final = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
"""What MLA's heads have where no flag tells: core_v0.10 to core_v0.19, megatron/training/arguments.py (d98e8a6: 3552)
and MLATransformerConfig of megatron/core/transformer/transformer_config.py."""
_MLA: Final = ("multi-latent-attention", "multi-head-latent-attention")


def fields_of(given: Given) -> dict[str, Any]:
    """The model's shape as the flags give it."""
    found: dict[str, Any] = {}
    count_layers(given)
    for field, names in _SIZES.items():
        number = _experts(given, names) if field == "num_experts" else given.integer(field, *names, low=0)
        if number is not None:
            found[field] = number
    places = found.get("num_hidden_layers")
    if places:
        found["num_hidden_layers"] -= len(idle_layers(given) & frozenset(range(found["num_hidden_layers"])))
    heads = found.get("num_attention_heads")
    groups = given.integer("num_key_value_heads", "num-query-groups", *_HEADS)
    grouped = given.switch("num_key_value_heads", "group-query-attention") or given.has(*_HEADS)
    if "n_group" in found and not found.get("topk_group") and "topk_group" not in given.incomplete:
        # Without a number of groups per token no group is looked at: core_r0.12.0, transformer/moe/moe_utils.py:525.
        found |= {"n_group": 0, "topk_group": 0}
    if heads and "num_key_value_heads" not in given.incomplete:
        found["num_key_value_heads"] = groups if grouped and groups else heads
    if "tie_word_embeddings" not in given.incomplete:
        found["tie_word_embeddings"] = not given.switch("tie_word_embeddings", "untie-embeddings-and-output-weights")
    found |= parts_of(given, found.get("max_position_embeddings"))
    found["qk_norm"] = given.switch("qk_norm", "qk-layernorm")
    _derive_dense(given, found)
    _derive_experts(given, found, places)
    _derive_attention(given, found)
    return found | mixers_of(given, found)


def _experts(given: Given, names: tuple[str, ...]) -> int | None:
    """Routed experts; Megatron-DeepSpeed takes a number for each layer, of which only equal ones are modelled."""
    numbers = (given.text("num_experts", *names) or "").split()
    if len(numbers) < 2 or not all(re.fullmatch(r"[0-9]{1,6}", number, re.ASCII) for number in numbers):
        return given.integer("num_experts", *names, low=0)
    if len(set(numbers)) > 1:
        said = f"--num-experts {' '.join(numbers)[:60]}: layers of unequal numbers of experts are not modelled"
        given.not_modelled(said, *names)
    return int(numbers[0])


def _derive_dense(given: Given, found: dict[str, Any]) -> None:
    """Sizes that follow from others, as Megatron derives them."""
    hidden, heads = found.get("hidden_size"), found.get("num_attention_heads")
    if hidden and heads and "head_dim" not in found and "head_dim" not in given.incomplete and hidden % heads == 0:
        found["head_dim"] = hidden // heads
    if hidden and "intermediate_size" not in found and "intermediate_size" not in given.incomplete:
        found["intermediate_size"] = _gated_width(given, hidden) if is_gated(given) else 4 * hidden
    spec = given.text("spec", "spec")
    if spec and not is_known_spec(spec):
        given.not_modelled(f"--spec {spec[:80]}: layers of this kind are not modelled", "spec")


def _gated_width(given: Given, hidden: int) -> int:
    """As Megatron derives it, or with FlagScale's `--multiple-of` (v0.1, megatron/arguments.py)."""
    multiple = given.integer("intermediate_size", "multiple-of")
    if multiple is None:
        return int(hidden * 4 * 2 / 3 / 64) * 64
    factor = given.text("intermediate_size", "hidden-dim-multiplier") or "1"
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", factor, re.ASCII):
        raise given.refusal(given.entry("hidden-dim-multiplier"), f"'{factor[:40]}' given; must be a number")
    return _padded(int(int(4 * hidden * 2 / 3) * float(factor)), multiple)


def _derive_experts(given: Given, found: dict[str, Any], places: int | None) -> None:
    alone = found.get("num_experts") == 1 and given.has("deepspeed")
    if alone or not found.get("num_experts"):
        for field in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
            found.pop(field, None)
        return
    found.setdefault("num_experts_per_tok", 2)
    found.setdefault("moe_intermediate_size", found.get("intermediate_size"))
    count = given.integer("num_shared_experts", "n-shared-experts", low=0)
    width = given.integer("num_shared_experts", "moe-shared-expert-intermediate-size", "shared-moe-ffn-hidden-size")
    own = found["moe_intermediate_size"]
    if count:
        found["num_shared_experts"] = count
    elif width and own:
        found["num_shared_experts"] = max(1, width // own)
        if width % own:
            found["shared_expert_intermediate_size"] = width
    if found.get("num_shared_experts"):
        gates = ("moe-shared-expert-gate", "shared-expert-gate")
        found["shared_expert_gate"] = any(given.switch("shared_expert_gate", name) for name in gates)
    found |= places_of_experts(given, places)


def _derive_attention(given: Given, found: dict[str, Any]) -> None:
    if not any(given.switch("attention", name) for name in _MLA):
        for field in LATENT:
            found.pop(field, None)
        return
    # With MLA the flag means the norms of the compressed queries and keys, which its layers always count.
    found |= {"attention": "mla", "qk_norm": False, "attention_bias": False}
    if given.has("multi-latent-attention"):
        found |= {field: size for field, size in _LATENT_SIZES.items() if field not in {*found, *given.incomplete}}
    if found.get("qk_nope_head_dim") and found.get("qk_rope_head_dim"):
        found["head_dim"] = found["qk_nope_head_dim"] + found["qk_rope_head_dim"]


def model_of(given: Given, fields: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The shipped model of that shape, and the fields in which the recipe differs from it."""
    vocabulary, assumed = _vocabulary(given)
    shape = {**fields, **({"vocab_size": vocabulary} if vocabulary else {})}
    model = models.by_shape(shape)
    unknown = given.has("patch-tokenizer-type") and model is not None and models.shares_sizes(model)
    if model is not None and not vocabulary and (unknown or _other_parts(model, fields)):
        # Another model of equal sizes, or a tokenizer that is not known: the vocabulary would be a guess.
        model = None
    padding = given.integer("vocab_size", "make-vocab-size-divisible-by") or 128
    padding *= given.integer("tp", "tensor-model-parallel-size", "model-parallel-size") or 1
    if model is None:
        shape["vocab_size"] = _padded(vocabulary, padding) if vocabulary else None
        if not vocabulary:
            del shape["vocab_size"]
            given.remark(
                "no-vocabulary",
                "warning",
                "the recipe does not say how large the vocabulary is",
                "tokenizer-type",
                "patch-tokenizer-type",
                fix="--model-field vocab_size=N",
            )
        return None, {**shape, "architecture": _architecture(shape)}
    spec = models.load_model(model)
    known = vocabulary if vocabulary and not _near(vocabulary, spec.vocab_size) else spec.vocab_size
    if assumed and known != spec.vocab_size:
        given.remark(
            "vocabulary-assumed",
            "note",
            f"vocabulary of {known} is what {assumed} has; the script does not say",
            "tokenizer-model",
            "tokenizer-type",
            fix="--model-field vocab_size=N",
        )
    shape["vocab_size"] = _padded(known, padding)
    shape.pop("max_position_embeddings", None)
    return model, models.differing(model, shape)


def _other_parts(model: str, fields: Mapping[str, object]) -> bool:
    spec = models.load_model(model)
    return any(name in fields and getattr(spec, name) != fields[name] for name in ("attention_bias", "qk_norm"))


def _architecture(shape: Mapping[str, object]) -> str:
    """A family whose layers have these parts."""
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


def _near(count: int, spec: int) -> bool:
    """Whether a tokenizer's entries are a model's vocabulary without its padding."""
    return spec - 600 <= count <= spec


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _vocabulary(given: Given) -> tuple[int | None, str]:
    """Vocabulary, and the tokenizer it is assumed from."""
    padded = given.integer("vocab_size", "padded-vocab-size", "pad-vocab-size-to")
    if padded:
        return padded, ""
    # MindSpeed builds the table of the tokenizer it loads, whatever --vocab-size says.
    name = given.text("tokenizer", "tokenizer-name-or-path")
    given.incomplete.discard("tokenizer")
    given.places.pop("tokenizer", None)
    known, _ = models.by_name(name) if name else (None, False)
    if known and known not in models.BY_NAME_ALONE:
        return models.load_model(known).vocab_size, ""
    plain = given.integer("vocab_size", "vocab-size")
    if plain:
        return plain, ""
    if given.has("merge-file") and not given.has("tokenizer-type"):
        # pretrain_gpt.py's own default; merges are kept for that tokenizer alone.
        return TOKENIZERS["gpt2bpetokenizer"], "GPT-2"
    # A flag that is read waits for its value: the next one is read only where those before do not tell.
    # A file that is known says more than its class, which several models share.
    file = given.entry("tokenizer-model")
    known_file = ("tokenizer-model",) if file is not None and not file.causes else ()
    for flag in ("patch-tokenizer-type", *known_file, "tokenizer-type", "tokenizer-model", "tokenizer-name-or-path"):
        text = given.text("tokenizer", flag) or ""
        given.incomplete.discard("tokenizer")
        given.places.pop("tokenizer", None)
        for part, count in TOKENIZERS.items():
            if part in text.lower() and not text.lower().endswith("qwen2tokenizer"):
                return count, PurePath(text).name
    return _beside_weights(given)


def _beside_weights(given: Given) -> tuple[int | None, str]:
    """The vocabulary beside the weights that are loaded, and their name.

    Pai's patch takes the tokenizer from there, whatever its class (megatron_patch/tokenizer of a098ca5); where the
    weights are not known, the vocabulary that all of one class have.
    """
    patched, weights = given.entry("patch-tokenizer-type"), given.entry("load")
    if patched is None:
        return None, ""
    known, _ = models.by_name(weights.text) if weights is not None and not weights.causes else (None, False)
    if weights is not None and known:
        return models.load_model(known).vocab_size, PurePath(weights.text).name
    return PATCHED.get(patched.text.lower()), patched.text
