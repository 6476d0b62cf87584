"""Shipped models that recipes name: by name, by a configuration beside the recipe, or by shape."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.values import require_inside
from simulator.question.recipe import Recipe
from simulator.question.specs import names as spec_names
from simulator.question.specs.catalogue import load_model, models_by_sizes
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.vision import Images

__all__ = ["BY_NAME_ALONE", "beside", "by_name", "by_shape", "differing", "load_model", "shares_sizes"]

_OTHER: Final = re.compile(
    r"-(distill|vl|vision|multimodal|omni|audio|reward|rm|draft|awq|gptq|aqlm|gguf|int\d|\dbit|fp8|fp4"
    r"|mini|tiny|small|medium|large|nano|lite|flash|moe)\b"
)  # parts of a name that mark another network, or other weights, than the model whose name it begins with
BY_NAME_ALONE: Final = ("baichuan2-7b", "qwen-7b")
"""Models with the sizes of LLaMA-7B but another vocabulary, which sizes cannot identify."""
_SIZE: Final = re.compile(r"(?<!\d)\d+(?:[.p]\d+)?[bm](?![a-z0-9])")
"""A number of parameters, which distinguishes `gpt3-4b` from the model `gpt3`."""
_OWNER: Final = re.compile(r"^[a-z][a-z\d-]*?(?:--|\.)(?=[a-z])")  # in one word with a model: `Qwen__Qwen2.5-7B`
_CACHED: Final = re.compile(r"(?:^|/)models--[^/]*?--([^/]+?)(?:/snapshots/[^/]*)?/?$")
_LENGTH: Final = ("max_position_embeddings",)
_SHAPE: Final = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
)


@functools.lru_cache(maxsize=1024)
def by_name(name: str) -> tuple[str | None, bool]:
    """Return the shipped model that a name or path means, and whether that is a guess.

    The name of a series (`gpt3` for gpt3-175b) stands for its one shipped model only alone: `gpt3-sft` has any size.
    What follows a name without a size may state one, and is another model then: `deepseek-r1-0528-qwen3-8b`.
    """
    cached = _CACHED.search(name)  # the hub's own folder of a model, whose last name is a commit
    plain = (cached[1] if cached else PurePosixPath(name.strip().rstrip("/")).name).lower().replace("_", "-")
    if not plain or len(plain) > 100:
        return None, False
    shipped = spec_names.shipped_name("model", plain)
    if shipped is not None:
        return shipped, False
    if _OWNER.match(plain):
        return by_name(_OWNER.sub("", plain))
    variant, rest = spec_names.variant_name(plain)
    if variant is not None:
        return (None, False) if _OTHER.search(rest) or _SIZE.search(rest) else (variant, bool(rest))
    known, plain = spec_names.known_names("model"), spec_names.LLAMA.sub("llama-", plain)
    whole = (word for word in known if _SIZE.search(word) or not _SIZE.search(known[word]))
    starts = [
        word
        for word in whole
        if plain.startswith(f"{word}-")
        and not (_SIZE.match if _SIZE.search(word) else _SIZE.search)(plain, len(word) + 1)
    ]
    start = max(starts, key=len, default="")
    if not start or _OTHER.search(plain, len(start)):
        return None, False
    return known[start], True


def beside(name: str, recipe: Path) -> str | None:
    """Return the path of a model configuration that a recipe names, relative to it; None without one.

    Raises InputError for one outside the recipe's repository.
    """
    if not name or len(name) > 1000 or "\0" in name or name.startswith(("/", "~")) or "$" in name:
        return None
    path = recipe.parent / name
    try:
        file = path if path.suffix.lower() == ".json" else path / spec_names.CONFIG_FILE
        if not file.is_file():
            return None
    except OSError:
        return None
    require_inside(file, recipe, f"{recipe}: {name[:200]}")
    return str(path)


def by_shape(fields: Mapping[str, object]) -> str | None:
    """Return the shipped model with all the stated sizes; among several, the one most alike in other fields."""
    stated = [key for key in _SHAPE if key in fields]
    if not {"num_hidden_layers", "hidden_size"} <= set(stated):
        return None
    shipped = [spec for spec in models_by_sizes() if spec.name not in BY_NAME_ALONE]
    shipped = [spec for spec in shipped if all(getattr(spec, key) == fields[key] for key in stated)]
    kinds = ("mixers", "feed_forwards")
    shipped = [spec for spec in shipped if all(getattr(spec, key) == fields.get(key, ()) for key in kinds)]
    if "num_experts" not in fields:
        shipped = [spec for spec in shipped if not spec.is_moe]

    def likeness(spec: ModelSpec) -> int:
        alike = [key for key, value in fields.items() if key not in _LENGTH and getattr(spec, key, None) == value]
        return len(alike) + int(spec.max_position_embeddings == fields.get("max_position_embeddings"))

    return max(shipped, key=likeness).name if shipped else None


def seeing_by_shape(kinds: Collection[str], fields: Mapping[str, object]) -> str | None:
    """Return the known model with an encoder of one of these kinds and the stated layers and widths; None without."""
    names = (name for name, row in spec_names.variants().items() if row.get("type") in kinds)
    specs = {name: load_model(name) for name in names} if {"num_hidden_layers", "hidden_size"} <= fields.keys() else {}
    keys = [key for key in ("num_hidden_layers", "hidden_size", "num_experts") if key in fields]
    alike = [name for name, spec in specs.items() if all(getattr(spec, key) == fields[key] for key in keys)]
    wide = [name for name in alike if specs[name].intermediate_size == fields.get("intermediate_size")]
    return next(iter((*wide, *alike)), None)


def shares_sizes(model: str) -> bool:
    """Whether a model of `BY_NAME_ALONE` has the same sizes, so that only name or vocabulary distinguish them."""
    spec = load_model(model)
    others = (load_model(name) for name in BY_NAME_ALONE)
    return any(all(getattr(other, key) == getattr(spec, key) for key in _SHAPE) for other in others)


def differing(model: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that differ from the model's."""
    spec = load_model(model)
    return {key: value for key, value in fields.items() if getattr(spec, key) != value}


_QUANTIZED: Final = re.compile(r"(?i)(?:^|[-_/.])(?:awq|gptq|aqlm|hqq|gguf|bnb|int[48]|[248]-?bit|nf4)(?:$|[-_/.])")

QUANTIZED: Final = "quantized weights are not modelled"
_IN_16_BITS: Final = "quantized weights are priced in 16 bits"


def named_model(arguments: Arguments, name: str, *flags: str) -> str | None:
    """Return the named model, remarked where it is unknown, guessed or quantized; None for an empty or unknown name."""
    if not name:
        return None
    fewer = _QUANTIZED.search(name)
    if fewer:
        arguments.not_modelled(f"model '{name[:80]}': {QUANTIZED}", *flags)
        name = name[: fewer.start()]
    return known_model(arguments, name, *flags)


def known_model(arguments: Arguments, name: str, *flags: str) -> str | None:
    """Return the model of a name, with a remark where it is unknown (None) or guessed."""
    path = beside(name, Path(arguments.file))
    if path:
        return path
    model, guessed = by_name(name)
    if model is None:
        arguments.remark("unknown-model", "warning", f"model '{name[:80]}' is not known", *flags, fix="--model NAME")
    elif guessed:
        message = f"model '{name[:80]}' is read as {model}"
        arguments.remark("model-guessed", "warning", message, *flags, fix=f"--model {model}")
    return model


_ATTENTION: Final = ("attn_implementation", "_attn_implementation", "attn_impl", "attention_backend")
_FREEZES: Final = ("freeze_llm", "freeze_language_model", "freeze_lm")


def of_parts(
    arguments: Arguments, run: Recipe, encoder: int | None, *, projector: bool, decoder: bool = True
) -> Recipe:
    """Return the run with what it trains of a model that sees images; a frozen decoder has adapters of rank 1.

    `encoder` is the rank of its adapters, 0 where all of it is trained, None where it is frozen.
    """
    if not decoder:
        run = replace(run, lora_rank=1)
        message = "a frozen language model is priced with adapters of rank 1, whose gradients pass it"
        arguments.remark("upper-bound", "warning", message, *_FREEZES, bound="adapters")
    if run.options.get("flash_attention") == "false" and encoder is not None:
        arguments.not_modelled("attention of an encoder that keeps its scores is not priced", *_ATTENTION)
    elif run.options.get("flash_attention") == "false":  # scores of one layer at a time, which nothing keeps
        run = replace(run, unpriced_bytes=run.unpriced_bytes + _scores_bytes(run))
    whole = "projector" if projector else "frozen"
    return replace(run, encoder_training=whole if encoder is None else f"lora{encoder}" if encoder else "trained")


def _scores_bytes(run: Recipe) -> float:
    """Return the scores, in fp32 and in 16 bits, of one encoder's layer over all images that a micro batch may have."""
    spec = load_model(run.model) if run.model else None
    if spec is None or spec.encoder is None or run.layout is None:
        return 0.0
    tokens = run.seq_length or spec.max_position_embeddings or 0
    images = Images.filling(spec.encoder, tokens, "frozen")
    patches = images.each(spec.encoder).patches
    return 6.0 * run.layout.micro_batch_size * images.number * spec.encoder.sizes["a"] * float(patches) ** 2


def of_bridged_parts(arguments: Arguments, run: Recipe) -> Recipe:
    """Return the run of a model that Megatron-Bridge builds: what no flag freezes is trained, or has adapters."""
    encoder = None if arguments.switch("encoder", "freeze_vision_model") else run.lora_rank or 0
    projector = not arguments.switch("projector", "freeze_vision_projection")
    decoder = not arguments.switch("decoder", "freeze_language_model")
    return of_parts(arguments, run, encoder, projector=projector, decoder=decoder)


def note_fewer_bits(arguments: Arguments, run: Recipe) -> None:
    """Turn the refusal of quantized weights under adapters into a remark: 16-bit weights bound the need from above.

    This holds where the trainer leaves everything else in 16 bits (peft's `prepare_model_for_kbit_training`, which
    widens it, is called neither by ms-swift 3602360 nor by LLaMA-Factory ff6d4d1 nor by PaddleNLP 3.0.0b4), and where
    only one layer's 16-bit copies are held at a time: with checkpoints at every layer.
    """
    if run.lora_rank is None or run.layout is None or run.layout.recompute != "full":
        return
    arguments.remarks = [
        replace(
            remark,
            rule="upper-bound",
            severity="warning",
            message=remark.message.replace(QUANTIZED, _IN_16_BITS),
            bound="state",
        )
        if remark.rule == "not-modelled" and remark.message.endswith(QUANTIZED)
        else remark
        for remark in arguments.remarks
    ]
