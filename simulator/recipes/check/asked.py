"""The user's options over a recipe: those of `simulate estimate`, each only where it was set."""

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
    """Values from the command line or a program, by meaning; what is None or empty is left to the recipe."""

    hardware: str = "z2000"
    hardware_assumed: bool = False
    """Nobody named the hardware: the default is priced, and the answer says so."""
    model: str | None = None
    model_fields: Mapping[str, object] = field(default_factory=dict)
    nodes: int | None = None
    devices: int | None = None
    num_layers: int | None = None
    framework: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    stack: StackName | None = None
    """Named stack under the options; a recipe's own flags stand above it."""
    calibration: str | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Layout`, and `layers_per_virtual_stage`; given ones only."""


def asked_of(inputs: Mapping[str, Any]) -> Asked:
    """The arguments of `simulator.estimate`, as far as they are given, in the place of options. Raises InputError."""
    stated = {name: value for name, value in inputs.items() if value is not None}
    if not isinstance(stated.get("model", ""), str):
        raise InputError("model: over a file it is a name or a path")
    layout = asked_layout({name: stated.pop(name) for name in tuple(stated) if name in BY_NAME})
    return Asked(hardware_assumed="hardware" not in stated, layout=layout, **stated)
