"""Lookup of shipped models by name, by a configuration beside the recipe, or by shape. Leaves remarks to `named`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from simulator.frameworks.home import require_inside
from simulator.question.specs.catalogue import (
    CONFIG_FILE,
    known_names,
    load_model,
    model_names,
    models_by_sizes,
    shipped_name,
)
from simulator.question.specs.model import ModelSpec

__all__ = ["BY_NAME_ALONE", "beside", "by_name", "by_shape", "differing", "load_model", "model_names", "shares_sizes"]

_LONGEST: Final = {"llama-": 2048, "llama-2-": 4096, "llama3-": 8192, "llama3.1-": 131072, "llama3.2-": 131072}
"""Maximum sequence length by prefix of a name, for models that differ in nothing else."""
_OTHER: Final = re.compile(
    r"-(distill|vl|vision|multimodal|omni|audio|reward|rm|draft|awq|gptq|aqlm|gguf|int\d|\dbit|fp8|fp4"
    r"|mini|tiny|small|medium|large|nano|lite|flash|moe)\b"
)
"""Parts of a name that mark another network, or other weights, than the model whose name it begins with."""
BY_NAME_ALONE: Final = ("baichuan2-7b", "qwen-7b")
"""Models with the sizes of LLaMA-7B but another vocabulary, which sizes cannot identify."""
_SIZE: Final = re.compile(r"(?<!\d)\d+(?:[.p]\d+)?[bm](?![a-z0-9])")
"""A number of parameters, which distinguishes `gpt3-4b` from the model `gpt3`."""
_LENGTH: Final = ("max_position_embeddings",)
_SHAPE: Final = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)


def by_name(name: str) -> tuple[str | None, bool]:
    """Return the shipped model that a name or path means, and whether that is a guess.

    The name of a series (`gpt3` for gpt3-175b) stands for its one shipped model only alone: `gpt3-sft` has any size.
    What follows a name without a size may state one, and is another model then: `deepseek-r1-0528-qwen3-8b`.
    """
    plain = PurePosixPath(name.strip().rstrip("/")).name.lower().replace("_", "-")
    if not plain or len(plain) > 100:
        return None, False
    shipped = shipped_name("model", plain)
    if shipped is not None:
        return shipped, False
    known = known_names("model")
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
    """Return the path of a model configuration that a recipe names relative to itself; None without one.

    Raises InputError for one outside the recipe's repository.
    """
    if not name or len(name) > 1000 or "\0" in name or name.startswith(("/", "~")) or "$" in name:
        return None
    path = recipe.parent / name
    try:
        file = path if path.suffix.lower() == ".json" else path / CONFIG_FILE
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
        start = max((start for start in _LONGEST if spec.name.startswith(start)), key=len, default="")
        longest = spec.max_position_embeddings or _LONGEST.get(start)
        alike = [key for key, value in fields.items() if key not in _LENGTH and getattr(spec, key, None) == value]
        return len(alike) + int(longest == fields.get("max_position_embeddings"))

    return max(shipped, key=likeness).name if shipped else None


def shares_sizes(model: str) -> bool:
    """Whether a model of `BY_NAME_ALONE` has the same sizes, so that only name or vocabulary distinguish them."""
    spec = load_model(model)
    others = (load_model(name) for name in BY_NAME_ALONE)
    return any(all(getattr(other, key) == getattr(spec, key) for key in _SHAPE) for other in others)


def differing(model: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that differ from the model's."""
    spec = load_model(model)
    return {key: value for key, value in fields.items() if getattr(spec, key) != value}
