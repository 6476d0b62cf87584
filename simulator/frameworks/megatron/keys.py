"""Megatron's flags in other trainers' files: keys with true or false, flags beside a named model. Prices nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import table_of
from simulator.frameworks.values import known_value
from simulator.question.recipe import Recipe

_ANY_SHAPE: Final = ("no-vocabulary", "not-modelled")
"""Rules whose remarks a named model makes obsolete, where they name no line."""


def normalize_flags(arguments: Arguments, renamed: Mapping[str, str]) -> None:
    """Turn flags stated as `true` or `false` into Megatron's switches, under Megatron's names."""
    entries, arguments.entries = arguments.entries, {}
    for name, own in entries.items():
        new = renamed.get(name, name)
        flag = table_of("megatron", "mindspeed", "pai", "flagscale", "megatron_deepspeed").get(new)
        switch = flag is not None and flag.kind == "switch" and flag.effect != "no_effect"
        for entry in own:
            if not (switch and entry.is_off):
                values = () if switch and not entry.causes else entry.values
                changed = dataclasses.replace(entry, name=new, values=values)
                arguments.entries.setdefault(new, []).append(changed)


def add_layers(arguments: Arguments, model: str | None, line: int, file: str = "") -> None:
    """Add the number of layers of a named model, which cuts depend on, unless the recipe states it."""
    if model is not None and not arguments.has("num-layers"):
        layers = models.load_model(model).num_hidden_layers
        arguments.add("--num-layers", [known_value(str(layers), line)], line, file)


def with_model(run: Recipe, model: str | None) -> Recipe:
    """Return the run with a named model; shapes that the run states replace the model's."""
    if model is None:
        return dataclasses.replace(run, model=None, model_fields={})
    own = {name: value for name, value in run.model_fields.items() if name in run.places}
    remarks = tuple(remark for remark in run.remarks if remark.place or remark.rule not in _ANY_SHAPE)
    remarks = tuple(remark for remark in remarks if remark.rule != "no-vocabulary")
    return dataclasses.replace(run, model=model, model_fields=models.differing(model, own), remarks=remarks)


def take_model(arguments: Arguments, run: Recipe, model: str | None) -> Recipe:
    """Return `with_model` of a run whose remarks and places are still with its arguments."""
    whole = dataclasses.replace(run, places=arguments.places, remarks=tuple(arguments.remarks))
    settled = with_model(whole, model)
    arguments.remarks = list(settled.remarks)
    return settled
