"""The model of a log, by the shape it prints: the shipped spec that has it, or what to write into an own one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from simulator.errors import InputError
from simulator.question.specs.catalogue import load_model, model_names
from simulator.question.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedShape:
    """What a log says of the model; None where it says nothing."""

    num_hidden_layers: int
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


@dataclass(frozen=True, slots=True)
class Match:
    """A spec for a log."""

    model: str
    num_layers: int | None
    """Layers of a truncated model, a count; None for all its layers."""
    note: str
    """What a reader should know about the choice; empty when there was none."""


def match_shape(where: str, shape: LoggedShape, model: str | None = None) -> Match:
    """Return the spec with this shape: `model` if given, else the shipped one.

    A spec with more layers and otherwise equal is taken as truncated. Raises InputError with the shape as YAML when
    there is none, or when `model` has another shape.
    """
    if model is not None:
        spec = load_model(model)
        different = _difference(spec, shape)
        if different:
            raise InputError(f"{where}: the log's model is not {model[:100]}: {different}")
        return Match(model, _truncated(spec, shape), "")
    same = [spec for spec in _shipped() if not _difference(spec, shape)]
    whole = [spec for spec in same if spec.num_hidden_layers == shape.num_hidden_layers]
    if not same:
        raise InputError(
            f"{where}: no shipped model has this shape; save as YAML, complete it and name it as the model: "
            f"{_yaml(shape)}"
        )
    found = whole or same
    others = ", ".join(spec.name for spec in found[1:])
    return Match(found[0].name, _truncated(found[0], shape), f"Same shape: {others}." if others else "")


@lru_cache(maxsize=1)
def _shipped() -> tuple[ModelSpec, ...]:
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
    values: dict[str, object] = {
        "name": "my-model",
        "architecture": "mixtral" if shape.num_experts else "llama",
        "num_hidden_layers": shape.num_hidden_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim or max(shape.hidden_size // heads, 1),
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tie_word_embeddings,
    }
    if shape.num_experts:
        values["num_experts"] = shape.num_experts
        values["num_experts_per_tok"] = shape.num_experts_per_tok
        values["moe_intermediate_size"] = shape.intermediate_size
    known = (f"{name}: {str(value).lower()}" for name, value in values.items() if value is not None)
    return "{" + ", ".join(known) + "}"
