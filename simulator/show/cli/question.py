"""Question of a command line: the values of its options, each said by an option or by the environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from simulator.question.frameworks.profile import switches
from simulator.question.origin import NOBODY, OPTION, Origin
from simulator.question.question import Question, question_of
from simulator.question.scenario.complete import OPTIONS
from simulator.question.scenario.inputs import BY_INPUT
from simulator.question.scenario.layout import SETTINGS

_OTHER_NAMES = {"options": "option", "model_fields": "model_field"}
"""Parameters of the command line whose name is not that of their input."""


def question_on_line(ctx: click.Context, *, many: bool = False, without: Iterable[str] = ()) -> Question:
    """Return the question of a command's options; what is left to its default was said by nobody.

    With `many` the fields of the layout are sets to search; inputs in `without` are those of another question. Raises
    UsageError for nodes and devices together and InputError for other values that no question has.
    """
    values = ctx.params
    if values.get("nodes") is not None and values.get("devices") is not None:
        raise click.UsageError("--nodes and --devices exclude each other: give one")
    names = [name for name in BY_INPUT if name not in ("options", *without) and name in values]
    names += [setting.key for setting in SETTINGS if setting.key in values]
    stated = {name: values[name] for name in names if origin_on_line(ctx, name) != NOBODY}
    options = values_by_name("--option", values.get("option") or ())
    flags = {flag.lstrip("-").replace("-", "_"): flag for option in ctx.command.params for flag in option.opts}
    flags |= {setting.name: flags[setting.key] for setting in SETTINGS if setting.key in flags}
    for name in options.keys() & flags.keys():
        if name not in {switch.name for switch in switches()}:
            raise click.UsageError(f"--option {name}: is no switch but a flag of its own: {flags[name]}")
    stated["options"] = options
    if values.get("model_field"):
        from simulator.answers.models import field_values

        stated["model_fields"] = field_values(values["model_field"])
    return question_of(stated, OPTIONS, lambda name: origin_on_line(ctx, name), many=many)


def origin_on_line(ctx: click.Context, name: str) -> Origin:
    """Return who said the value of an option: the option, a variable of the environment, or nobody."""
    parameter = _OTHER_NAMES.get(name, name)
    source = ctx.get_parameter_source(parameter)
    if source is click.core.ParameterSource.ENVIRONMENT:
        return Origin("environment", f"{ctx.auto_envvar_prefix}_{parameter.upper()}")
    return NOBODY if source in (click.core.ParameterSource.DEFAULT, None) else OPTION


def require_model(values: Mapping[str, Any]) -> None:
    """Raise UsageError where no model is named."""
    if not values["model"]:
        raise click.UsageError("missing option '--model'; `simulate models` lists the names")


def values_by_name(option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the names and values of an option. Raises for a name with two values."""
    values: dict[str, str] = {}
    for name, text in pairs:
        if values.setdefault(name, text) != text:
            raise click.UsageError(f"{option} {name}: given as '{values[name]}' and as '{text}'")
    return values
