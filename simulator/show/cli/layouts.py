"""Option values as an estimate's layout or a ranking's space. Checks words; prices nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from click import UsageError

from simulator.question.scenario.complete import OPTIONS, asked_layout
from simulator.question.scenario.layout import SETTINGS
from simulator.search.space import Space


def check_cluster(values: Mapping[str, Any]) -> None:
    """Raise UsageError for nodes and devices together."""
    if values["nodes"] is not None and values["devices"] is not None:
        raise UsageError("--nodes and --devices exclude each other: give one")


def framework_options(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the framework's switches, with the optimizer. Raises for one with two values."""
    optimizer = values.get("optimizer")
    return values_by_name("--option", [*values["option"], *([("optimizer", optimizer)] if optimizer else [])])


def values_by_name(option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the names and values of an option. Raises for a name with two values."""
    values: dict[str, str] = {}
    for name, text in pairs:
        if values.setdefault(name, text) != text:
            raise UsageError(f"{option} {name}: given as '{values[name]}' and as '{text}'")
    return values


def layout_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a layout from the options, by their short names."""
    return {setting.key: values[setting.key] for setting in SETTINGS if values[setting.key] is not None}


def space(values: Mapping[str, Any]) -> Space:
    """Return the space of a ranking: options restrict it, other fields are searched."""
    axes = asked_layout(layout_values(values), OPTIONS, many=True)
    return Space(
        **{name: value if isinstance(value, tuple) else (value,) for name, value in axes.items()},
        tensor_parallel_across_nodes=values["allow_tp_across_nodes"],
    )
