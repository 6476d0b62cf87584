"""The user's options over a recipe: those of `simulate estimate`, each only where it is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import InputError
from simulator.question.scenario.complete import asked_layout
from simulator.question.scenario.layout import BY_NAME
from simulator.question.scenario.typed import StatedWorkload
from simulator.question.vocabulary import StackName


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(StatedWorkload):
    """Options by meaning, from the command line or a program; None or empty leaves the value to the recipe."""

    hardware: str = "z2000"
    hardware_assumed: bool = False
    """Whether the hardware is the default because none was named, which the answer remarks."""
    model: str | None = None
    model_fields: Mapping[str, object] = field(default_factory=dict)
    nodes: int | None = None
    devices: int | None = None
    num_layers: int | None = None
    framework: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    stack: StackName | None = None
    """Named stack, which provides defaults of the options; a recipe's own flags override it."""
    calibration: str | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Layout` that are set, and `layers_per_virtual_stage`."""


def asked_of(inputs: Mapping[str, Any]) -> Asked:
    """Return the arguments of `simulator.estimate` that are set, as options. Raises InputError."""
    stated = {name: value for name, value in inputs.items() if value is not None}
    if not isinstance(stated.get("model", ""), str):
        raise InputError("model: over a file it is a name or a path")
    layout = asked_layout({name: stated.pop(name) for name in tuple(stated) if name in BY_NAME})
    return Asked(hardware_assumed="hardware" not in stated, layout=layout, **stated)
