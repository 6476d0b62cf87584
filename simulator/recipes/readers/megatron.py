"""Runs of Megatron's flags as recipes, for readers of files that stand for such flags."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.megatron.read import read
from simulator.frameworks.run import finished
from simulator.frameworks.values import PlainValue
from simulator.recipes.recipe import Recipe, recipe_of


def megatron_recipe(  # noqa: PLR0913, PLR0917  what a launch and a configuration file have in common
    arguments: Arguments,
    environment: Mapping[str, PlainValue] | None,
    dialect: str,
    title: str,
    nodes: int | None,
    devices: int | None,
) -> Recipe:
    """The recipe of Megatron's flags; `environment` is None where the recipe says nothing about it."""
    run = finished(arguments, read(arguments, environment, own=dialect == "megatron-yaml"))
    return recipe_of(run, arguments.file, title=title, dialect=dialect, nodes=nodes, devices_per_node=devices)
