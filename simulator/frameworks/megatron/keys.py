"""Megatron's flags as keys with values: off is not given, and a model may be named instead of spelled out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Argument as Entry
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.named import AnyRun
from simulator.frameworks.names import plain
from simulator.frameworks.values import Value, known_value
from simulator.recipes.readers.megatron_flags import FLAGS

OFF: Final = ("false", "none", "null", "", "0")
"""Values of a key that is as if it were not there, in lower case."""
_UNLESS: Final = {"add_bias_linear": "disable_bias_linear", "add_position_embedding": "no_position_embedding"}
"""Keys that are on unless they say otherwise, and the flag that says so."""
_ANY_SHAPE: Final = ("no-vocabulary", "not-modelled")
"""Remarks on a shape that a model's name makes up for, where they point at no line."""


def add_key(given: Given, name: str, values: tuple[Value, ...], line: int, file: str = "") -> None:
    """Take a key as the flag of Megatron that it spells; a switch or value that is off is not there."""
    name = plain(name)
    lowered = " ".join(value.text for value in values).lower()
    known = all(value.known for value in values)
    if name in _UNLESS and lowered in OFF:
        given.add(_UNLESS[name], (), line, file)
    switch = name in FLAGS and FLAGS[name].kind == "switch"
    if switch and (lowered not in OFF or not known):
        given.add(name, () if known else values, line, file)
    elif not switch and (lowered not in ("none", "null") or not known):
        given.add(name, values, line, file)


def settle(given: Given, renamed: Mapping[str, str]) -> None:
    """Turn flags that were given with `true` and `false` into Megatron's, under Megatron's names."""
    entries = given.entries
    given.entries = {}
    for name, found in entries.items():
        for entry in found:
            _settle(given, renamed.get(name, name), entry)


def _settle(given: Given, name: str, entry: Entry) -> None:
    switch = name in FLAGS and FLAGS[name].kind == "switch"
    if switch and not entry.causes and entry.text.lower() in OFF and entry.values:
        return
    values = () if switch and not entry.causes else entry.values
    given.entries.setdefault(name, []).append(dataclasses.replace(entry, name=name, values=values))


def add_defaults(given: Given, flags: Iterable[str], line: int, told: Iterable[str] = ()) -> None:
    """Take flags that the framework sets itself, `name` or `name=value`, unless the recipe gives or has `told` them."""
    said = frozenset(told)
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not given.has(name) and plain(name) not in said:
            given.add(name, [known_value(text, line)] if equals else [], line)


def add_layers(given: Given, model: str | None, line: int, file: str = "") -> None:
    """Take the layers of a model that is named, which cuts are counted with, unless the recipe gives them."""
    if model is not None and not given.has("num-layers"):
        layers = models.load_model(model).num_hidden_layers
        given.add("--num-layers", [known_value(str(layers), line)], line, file)


def with_model(recipe: AnyRun, model: str | None) -> AnyRun:
    """The recipe with a model that is known by its name; shapes that the recipe gives itself replace the model's."""
    if model is None:
        return dataclasses.replace(recipe, model=None, model_fields={})
    own = {name: value for name, value in recipe.model_fields.items() if name in recipe.places}
    remarks = tuple(remark for remark in recipe.remarks if remark.place or remark.rule not in _ANY_SHAPE)
    remarks = tuple(remark for remark in remarks if remark.rule != "no-vocabulary")
    return dataclasses.replace(recipe, model=model, model_fields=models.differing(model, own), remarks=remarks)
