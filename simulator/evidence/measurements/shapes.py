"""The model of a log, by the shape it prints: the shipped spec that has it, or what to write into an own one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import yaml

from simulator.errors import InputError
from simulator.question.specs.catalogue import load_model, model_names
from simulator.question.specs.documents import parse_yaml
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.validation import validated

INLINE: Final = "{"
"""Begins a model that is its own spec, as YAML on one line, where others are names and paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedShape:
    """What a log says of the model; None where it says nothing."""

    num_hidden_layers: int
    """Decoder layers, a count."""
    hidden_size: int
    intermediate_size: int | None
    """Width of the feed-forward network; of one expert where there are experts."""
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int | None
    vocab_size: int | None
    """Rows of the token table, padding of the framework included."""
    vocab_padding: int = 0
    """Rows the framework may have added to or kept out of the table, a count."""
    tie_word_embeddings: bool | None
    num_experts: int = 0
    num_experts_per_tok: int | None = None
    gated: bool | None = None
    """Whether the feed-forward network is gated."""
    activation: str | None = None
    layer_norm: bool | None = None
    """Whether norms have a mean and a bias."""
    biases: bool | None = None
    """Whether linear layers have biases."""
    attention_bias: bool | None = None
    """Whether queries, keys and values have biases; None where `biases` tells."""
    learned_positions: int = 0
    """Rows of a learned table of positions, a count."""
    rotary: bool | None = None
    embedding_norm: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """A spec for a log."""

    model: str
    num_layers: int | None
    """Layers of a truncated model, a count; None for all its layers."""
    note: str
    """What a reader should know about the choice; empty when there was none."""


def match_shape(where: str, shape: LoggedShape, model: str | None = None) -> Match:
    """Return the spec with this shape: `model` if given, else the shipped one, else the shape itself as a spec.

    A spec with more layers and otherwise equal is taken as truncated. Of a shape that is not logged whole the model
    is blank. Raises InputError when `model` has another shape.
    """
    if model is not None:
        spec = model_of(model)
        different = _difference(spec, shape)
        if different:
            raise InputError(f"{where}: the log's model is not {model[:100]}: {different}")
        return Match(model, _truncated(spec, shape), "")
    same = [spec for spec in shipped_models() if not _difference(spec, shape)]
    whole = [spec for spec in same if spec.num_hidden_layers == shape.num_hidden_layers]
    if not same:
        own = _yaml(shape)
        try:
            model_of(own)
        except InputError:
            return Match("", None, f"No shipped model has the logged shape {own}.")
        return Match(own, None, "No shipped model has the logged shape, which stands in the row as a spec of its own.")
    found = whole or same
    others = ", ".join(spec.name for spec in found[1:])
    return Match(found[0].name, _truncated(found[0], shape), f"Same shape: {others}." if others else "")


def model_of(name: str) -> ModelSpec:
    """Return a model by name, by path, or from its own text. Raises InputError."""
    return validated("model", ModelSpec, parse_yaml("model", name)) if name.startswith(INLINE) else load_model(name)


def spec_text(spec: ModelSpec) -> str:
    """Return a model as its own text, which `model_of` reads back equal."""
    values = spec.model_dump(mode="json", exclude_defaults=True, exclude={"note", "sources", "provenance", "published"})
    return yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10**9).strip()


@lru_cache(maxsize=1)
def shipped_models() -> tuple[ModelSpec, ...]:
    """Return all shipped models."""
    return tuple(load_model(name) for name in model_names())


def _truncated(spec: ModelSpec, shape: LoggedShape) -> int | None:
    return None if spec.num_hidden_layers == shape.num_hidden_layers else shape.num_hidden_layers


def _difference(spec: ModelSpec, shape: LoggedShape) -> str:
    """Return the first field in which they differ, or an empty text; fewer layers are no difference."""
    if shape.num_hidden_layers > spec.num_hidden_layers:
        return f"num_hidden_layers {shape.num_hidden_layers}, not {spec.num_hidden_layers}"
    width = spec.moe_intermediate_size if spec.is_moe else spec.intermediate_size
    pairs: list[tuple[str, object, object]] = [
        ("hidden_size", shape.hidden_size, spec.hidden_size),
        ("intermediate_size", shape.intermediate_size, width),
        ("num_attention_heads", shape.num_attention_heads, spec.num_attention_heads),
        ("num_experts", shape.num_experts, spec.num_experts),
        ("num_experts_per_tok", shape.num_experts_per_tok, spec.num_experts_per_tok),
        ("tie_word_embeddings", shape.tie_word_embeddings, spec.tie_word_embeddings),
        ("gated", shape.gated, spec.gated),
        ("norm", None if shape.layer_norm is None else shape.layer_norm, spec.norm != "rms_norm"),
    ]
    if spec.attention == "gqa":
        pairs.append(("num_key_value_heads", shape.num_key_value_heads, spec.num_key_value_heads))
        pairs.append(("head_dim", shape.head_dim, spec.head_dim))
    for name, logged, known in pairs:
        if logged is not None and logged != known:
            return f"{name} {logged}, not {known}"
    if shape.vocab_size is not None:
        slack = max(shape.vocab_padding, spec.vocab_size // 100)
        if abs(shape.vocab_size - spec.vocab_size) > slack:
            return f"vocab_size {shape.vocab_size}, not {spec.vocab_size} within {slack}"
    return ""


def _yaml(shape: LoggedShape) -> str:
    """Return the shape as a mapping on one line, in YAML; what the log does not say is left out."""
    heads = shape.num_attention_heads
    plain = shape.gated is False
    values: dict[str, object] = {
        "name": f"logged-{shape.num_hidden_layers}x{shape.hidden_size}",
        "architecture": "mixtral" if shape.num_experts else "gpt2" if plain else "llama",
        "num_hidden_layers": shape.num_hidden_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim or max(shape.hidden_size // heads, 1),
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tie_word_embeddings or False,
        "attention_bias": shape.biases if shape.attention_bias is None else shape.attention_bias,
        "attention_output_bias": shape.biases,
        "mlp_bias": shape.biases,
    }
    if shape.num_experts:
        values["num_experts"] = shape.num_experts
        values["num_experts_per_tok"] = shape.num_experts_per_tok
        values["moe_intermediate_size"] = shape.intermediate_size
    if plain:
        values |= {"gated": False, "activation": shape.activation or "gelu"}
    if shape.layer_norm:
        values["norm"] = "layer_norm"
    if shape.rotary is False:
        values |= {"rotary": False, "learned_positions": shape.learned_positions}
    if shape.embedding_norm:
        values["embedding_norm"] = True
    known = (f"{name}: {str(value).lower()}" for name, value in values.items() if value is not None)
    return "{" + ", ".join(known) + "}"
