"""Spec of a logged model: the shipped one of its shape, else the shape as a spec. Guesses nothing by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from simulator.errors import InputError
from simulator.question.specs.catalogue import load_model, models_by_sizes
from simulator.question.specs.documents import parse_yaml, validated
from simulator.question.specs.model import ModelSpec

INLINE: Final = "{"
"""Beginning of a model that is its own spec, as YAML on one line, instead of a name or path."""
LoggedFields = Mapping[str, Any]
"""Fields of a model's spec that a log states."""
_LOOSE: Final = frozenset({"num_hidden_layers", "vocab_size", "architecture", "max_position_embeddings"})
"""Fields in which a log may differ from the spec of its model: fewer layers, a padded vocabulary, the longest run."""


@dataclass(frozen=True, slots=True)
class Match:
    """Spec that matches a log's model."""

    model: str
    num_layers: int | None
    """Layers of a truncated model, a count; None for all its layers."""
    note: str
    """Note on the choice for readers; empty when there was none."""


def match_shape(where: str, shape: LoggedFields, model: str | None = None, *, vocab_padding: int = 0) -> Match:
    """Return the spec with this shape: `model` if given, else the shipped one, else the shape itself as a spec.

    A spec with more layers and otherwise equal is taken as truncated; `vocab_padding` are rows that the framework may
    have added to the token table. Of a shape that is not logged whole the model is blank. Raises InputError when
    `model` has another shape.
    """
    if model is not None:
        spec = model_of(model)
        different = _difference(spec, shape, vocab_padding)
        if different:
            raise InputError(f"{where}: the log's model is not {model[:100]}: {different}")
        return Match(model, _truncated(spec, shape), "")
    same = [spec for spec in models_by_sizes() if not _difference(spec, shape, vocab_padding)]
    whole = [spec for spec in same if _truncated(spec, shape) is None]
    if not same:
        own = _own_spec(shape)
        try:
            model_of(own)
        except InputError:
            return Match("", None, f"No shipped model has the logged shape {own}.")
        return Match(own, None, "No shipped model has the logged shape, which stands in the row as a spec of its own.")
    best = whole or same
    others = ", ".join(spec.name for spec in best[1:])
    return Match(best[0].name, _truncated(best[0], shape), f"Same shape: {others}." if others else "")


def model_of(name: str) -> ModelSpec:
    """Return a model by name, by path, or from its own text. Raises InputError."""
    return validated("model", ModelSpec, parse_yaml("model", name)) if name.startswith(INLINE) else load_model(name)


def spec_text(spec: ModelSpec) -> str:
    """Return a model as its own text, which `model_of` reads back equal."""
    return _text(
        spec.model_dump(mode="json", exclude_defaults=True, exclude={"note", "sources", "provenance", "published"})
    )


def _text(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), default_flow_style=True, sort_keys=False, width=10**9).strip()


def _truncated(spec: ModelSpec, shape: LoggedFields) -> int | None:
    layers: int = shape["num_hidden_layers"]
    return None if spec.num_hidden_layers == layers else layers


def _difference(spec: ModelSpec, shape: LoggedFields, vocab_padding: int) -> str:
    """Return the first field in which they differ, or an empty text; fewer layers are no difference."""
    if shape["num_hidden_layers"] > spec.num_hidden_layers:
        return f"num_hidden_layers {shape['num_hidden_layers']}, not {spec.num_hidden_layers}"
    idle = {"intermediate_size"} if spec.is_moe and not spec.num_dense_layers else set()
    idle |= {"num_key_value_heads", "head_dim"} if spec.attention == "mla" else set()
    for name in ModelSpec.model_fields:
        logged, known = shape.get(name), getattr(spec, name)
        if name not in _LOOSE | idle and logged is not None and logged != known:
            return f"{name} {logged}, not {known}"
    if (rows := shape.get("vocab_size")) is not None:
        slack = max(vocab_padding, spec.vocab_size // 100)
        if abs(rows - spec.vocab_size) > slack:
            return f"vocab_size {rows}, not {spec.vocab_size} within {slack}"
    return ""


def _own_spec(shape: LoggedFields) -> str:
    """Return the shape as a mapping on one line, in YAML, without fields that the log lacks."""
    name = f"logged-{shape['num_hidden_layers']}x{shape['hidden_size']}"
    usual = {"tie_word_embeddings": False, "head_dim": max(shape["hidden_size"] // shape["num_attention_heads"], 1)}
    family = "mixtral" if shape.get("num_experts") else "gpt2" if shape.get("gated") is False else "llama"
    stated = {field: value for field, value in shape.items() if value is not None}
    values = {"architecture": family} | usual | stated
    fields = {
        field: list(values[field]) if isinstance(values[field], tuple) else values[field]
        for field, about in ModelSpec.model_fields.items()
        if field in values and values[field] != about.default
    }
    return _text({"name": name, **fields})
