"""Model of a question as a spec: from a name, a path or a configuration, with the fields that somebody replaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, get_origin

from simulator.cost.operations.sums import total_parameters
from simulator.errors import InputError, did_you_mean
from simulator.question.origin import Remark, Severity
from simulator.question.recipe import Recipe
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import of_fields, validated, wrong_values
from simulator.question.specs.model import ModelSpec
from simulator.question.units import GIGA


class ContradictionError(InputError):
    """Numbers of a recipe that contradict each other: its framework fails at the start."""

    def __init__(self, message: str, *settings: str) -> None:
        """Store the settings at fault, by option name, the most likely first."""
        super().__init__(message)
        self.settings = settings


def model_of(model: Any) -> ModelSpec:
    """Return the model of a name, a path, or a Hugging Face configuration: a mapping, or an object with `to_dict`.

    Raises InputError, or UnsupportedError for a configuration of unknown make.
    """
    if isinstance(model, str):
        return load_model(model)
    values = model.to_dict() if hasattr(model, "to_dict") else model
    if not isinstance(values, Mapping):
        raise InputError(f"model {str(model)[:60]!r}: must be a name, a path, or a Hugging Face configuration")
    from simulator.question.specs.families.reading import model_of_config  # noqa: PLC0415  start-up time

    name = str(values.get("_name_or_path") or values.get("name") or "").rpartition("/")[2]
    return model_of_config(values, "model", name or "own-model")


_NOT_SHAPE = ("name", "note", "sources", "provenance", "published", "encoder")


def field_values(settings: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Return `--model-field NAME=VALUE` as values of a model spec's fields. Raises InputError naming the field."""
    names = [name for name in ModelSpec.field_types() if name not in _NOT_SHAPE]
    values: dict[str, object] = {}
    for name, text in settings:
        if name not in names:
            raise InputError(
                f"--model-field {name}: no such field{did_you_mean(name, names)}; known: {', '.join(names)}"
            )
        value = _value(name, text)
        if values.setdefault(name, value) != value:
            raise InputError(f"--model-field {name}: given as '{values[name]}' and as '{text}'")
    return values


def _value(name: str, text: str) -> object:
    kind = ModelSpec.field_types()[name]
    if get_origin(kind) is Literal:
        return text
    if get_origin(kind) is tuple:
        return tuple(word.strip() for word in text.split(",") if word.strip())
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise InputError(f"--model-field {name}={text[:60]}: allowed are true and false")
        return text.lower() in ("true", "1")
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InputError(f"--model-field {name}={text[:60]}: must be a whole number")
    if wrong := wrong_values(ModelSpec, {name: int(text)}):  # its own range; the model checks how fields combine
        raise InputError(f"--model-field {name}={text[:60]}: {wrong[0].rpartition(': ')[2]}")
    return int(text)


def recipe_model(
    recipe: Recipe, name: Any, fields: Mapping[str, object], layers: int | None
) -> tuple[ModelSpec | None, tuple[Remark, ...]]:
    """Return the model that a recipe trains, None where it does not state one, and remarks on it.

    `name` replaces the recipe's model, `fields` replace single shapes. A head size equal to hidden size over heads
    stays so, as the frameworks compute it. Raises InputError for shapes that make no model.
    """
    named = name if name is not None else recipe.model
    shapes = {**(recipe.model_fields if name is None else {}), **fields}
    if named is None and not _describes(shapes):
        return None, ()
    base = None if named is None else model_of(named)
    start: dict[str, Any] = {"name": "recipe", "architecture": "llama"} if base is None else of_fields(base)
    values = start | dict(shapes)
    if base is not None and _differs(base, shapes):
        for key in ("published", "provenance"):
            values[key] = None
        values["sources"] = {}
    _head_size(base, shapes, values)
    model = base if base and values == start else validated(f"{recipe.file}: model", ModelSpec, values)
    model = _shared(model if layers is None else model.with_layers(layers))
    return model, tuple(_remarks(base, model, recipe, fields))


@lru_cache(maxsize=64)
def _shared(model: ModelSpec) -> ModelSpec:
    """Return one object for equal models: caches by model find it without comparing all fields."""
    return model


_NEEDED = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


def needs_vocabulary(recipe: Recipe, fields: Mapping[str, object]) -> bool:
    """Whether a recipe states every size of its model except the vocabulary."""
    shapes = {**recipe.model_fields, **fields}
    return recipe.model is None and "vocab_size" not in shapes and _describes({**shapes, "vocab_size": 1})


def _describes(shapes: Mapping[str, object]) -> bool:
    """Whether the shapes alone define a model."""
    return all(name in shapes for name in _NEEDED)


def _differs(base: ModelSpec, shapes: Mapping[str, object]) -> bool:
    return any(getattr(base, name, None) != value for name, value in shapes.items())


def _head_size(base: ModelSpec | None, shapes: Mapping[str, object], values: dict[str, Any]) -> None:
    """Set the sizes that frameworks derive: head size, key-value heads, tied embeddings."""
    heads, hidden = int(values["num_attention_heads"]), int(values["hidden_size"])
    values.setdefault("num_key_value_heads", heads)
    values.setdefault("tie_word_embeddings", False)
    even = base is None or base.head_dim * base.num_attention_heads == base.hidden_size
    if "head_dim" in shapes or values.get("attention") == "mla" or not even:
        return
    if heads < 1 or hidden % heads:
        message = f"model: num_attention_heads {heads} does not divide hidden_size {hidden}: give head_dim too"
        raise ContradictionError(message, "num_attention_heads", "model")
    values["head_dim"] = hidden // heads


def _remarks(
    base: ModelSpec | None, model: ModelSpec, recipe: Recipe, fields: Mapping[str, object]
) -> Iterable[Remark]:
    if base is None or not fields or not _differs(base, fields):
        return
    before, after = total_parameters(base), total_parameters(model)
    changed = [f"{name} {getattr(base, name)} -> {value}" for name, value in fields.items()]
    derived = f", head_dim {base.head_dim} -> {model.head_dim}" if base.head_dim != model.head_dim else ""
    counted = f"{before / GIGA:.2f}B -> {after / GIGA:.2f}B parameters" if before != after else f"{after / GIGA:.2f}B"
    message = f"{', '.join(changed)}{derived}: {counted}; the published weights of {base.name} no longer match"
    severity: Severity = "warning" if derived or before != after else "note"
    yield Remark("changed-model", severity, message, recipe.places.get("model"))
