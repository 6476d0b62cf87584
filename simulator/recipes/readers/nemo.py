"""Readers of launches, Python recipes and files with keys of NeMo or Megatron-Bridge.

`frameworks/nemo` interprets the keys, such as `model.pipeline_model_parallel_size`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks import registry
from simulator.frameworks.arguments import Arguments, finished
from simulator.frameworks.configuration import Interpolation, configuration
from simulator.frameworks.documents import Key, read_text
from simulator.frameworks.nemo import read as nemo
from simulator.frameworks.nemo.framework import FORM
from simulator.frameworks.nemo.recipes import (
    PythonRecipe,
    is_override,
    is_partial_recipe,
    is_python_recipe,
    is_setting,
    partial_recipes,
    python_recipes,
    read_python,
)
from simulator.frameworks.values import EMPTY, PlainValue, known_value
from simulator.question.recipe import Recipe
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.shell.launch import TrainingCommand

_STAGES: Final = ("training", "fine_tuning", "peft")
"""Sections in which NeMo 1's launcher holds one configuration each."""
_OVERRIDE: Final = re.compile(
    r"(?:~|\+{0,2})(?:(?:training|fine_tuning|peft)\.)?"
    r"(?P<path>(?:trainer|model|optim|optimizer|strategy|data|dataset|train|ddp)(?:\.\w+)+)(?P<equals>=|$)",
    re.ASCII,
)
"""A key that a command line sets, adds or removes."""


def read_nemo(path: Path, keys: Iterable[Key], settings: Mapping[str, str]) -> tuple[Recipe, set[str]]:
    """Return the recipe of a file with keys of NeMo, and the settings that it used."""
    arguments = Arguments(str(path), registry.table("nemo", FORM))
    arguments.settings = settings
    run = finished(arguments, nemo.read_nemo(arguments, list(keys)))
    return dataclasses.replace(
        run, file=str(path), dialect=FORM.dialect, nodes=arguments.nodes, devices_per_node=arguments.devices_per_node
    ), arguments.used


def read_python_file(path: Path, settings: Mapping[str, str]) -> tuple[tuple[Recipe, ...], list[str]]:
    """Return the recipes that a Python file's functions return, without running it, and settings of no recipe.

    Raises UnsupportedError for a file without functions that return a configuration of Megatron-Bridge or NeMo 2.
    """
    text = read_text(path)
    is_partial = is_partial_recipe(text)
    read = partial_recipes if is_partial else python_recipes
    whole = read(path, settings) if is_partial or is_python_recipe(text) else ()
    recipes = tuple(_python_recipe(path, recipe, settings) for recipe in whole)
    if not recipes:
        raise UnsupportedError(
            f"{path}: Python is never run, and no function of the file returns a configuration of Megatron-Bridge or "
            "NeMo 2; give the shell script or the configuration file"
        )
    takes = is_setting if is_partial else is_override
    return recipes, [name for name in settings if not takes(name)]


def _python_recipe(path: Path, recipe: PythonRecipe, settings: Mapping[str, str]) -> Recipe:
    arguments = Arguments(str(path), registry.table("nemo", FORM))
    arguments.settings = settings
    run = finished(arguments, read_python(arguments, recipe))
    return dataclasses.replace(
        run,
        file=str(path),
        title=recipe.name,
        dialect="nemo-python",
        nodes=arguments.nodes,
        devices_per_node=arguments.devices_per_node,
    )


def is_nemo_launch(launch: TrainingCommand) -> bool:
    """Whether a launch sets keys of NeMo on its command line; veRL has similar keys."""
    if launch.script.text.startswith("verl.") or any(
        value.text.startswith("actor_rollout_ref.") for value in launch.arguments
    ):
        return False
    return sum(_OVERRIDE.match(value.text) is not None for value in launch.arguments) >= 2


def read_nemo_launch(launch: TrainingCommand, file: str) -> Recipe:
    """Return the recipe of a launch: its configuration, with the keys that the command line overrides."""
    named = next((value for value in launch.arguments if value.text.partition("=")[0] == "--recipe"), None)
    if named is not None:
        raise UnsupportedError(
            f"{file}:{max(named.line, 1)}: --recipe: Megatron-Bridge keeps what it sets in Python, which is not run; "
            "read are its configuration files that name the model and its layout"
        )
    arguments = Arguments(file, registry.table("nemo", FORM))
    keys: dict[tuple[str, ...], Key] = {}
    base = _base(arguments, launch, file)
    for key in (*base, *_overrides(launch)):
        keys.pop(key.path, None)
        keys[key.path] = key
    environment = {name: value.text for name, value in launch.environment.items() if value.known}
    filled = Interpolation([key for key in keys.values() if key.values], environment)
    run, _ = nemo.read_filled(arguments, filled, launch.environment)
    nodes, devices = _cluster(arguments, launch)
    title = PurePath(launch.script.text).name
    run = finished(arguments, run)
    return dataclasses.replace(run, file=file, title=title, dialect="nemo-shell", nodes=nodes, devices_per_node=devices)


def _base(arguments: Arguments, launch: TrainingCommand, file: str) -> tuple[Key, ...]:
    """Return the keys of `--config-name` in `--config-path`; empty where the file is missing."""
    words: dict[str, PlainValue] = {}
    for value, following in zip(launch.arguments, (*launch.arguments[1:], None), strict=True):
        name, equals, _ = value.text.partition("=")
        if name in ("--config-name", "--config-path"):
            words[name] = value.after(len(name) + 1) if equals else following or EMPTY
        elif equals and name in _STAGES:
            # The launcher's choice of a file: `training=gpt3/20b`.
            words["--config-name"], words["--config-path"] = value.after(len(name) + 1), known_value(f"conf/{name}", 0)
    if "--config-name" not in words:
        return ()
    word = words["--config-name"]
    name = word.text if word.text.endswith((".yaml", ".yml")) else f"{word.text}.yaml"
    folder = words.get("--config-path", EMPTY).text
    name = f"{folder}/{name}" if folder else name
    try:
        configured = configuration(launch, file, name, word.line)
    except InputError:
        configured = None
    if configured is None:
        message = f"{name[:200]} is not beside the recipe: only the keys of the command line are read"
        arguments.remark_line("base-configuration", "warning", message, word.line)
        return ()
    return tuple(dataclasses.replace(key, file=configured.file) for key in configured.keys)


def _overrides(launch: TrainingCommand) -> Iterator[Key]:
    """Yield the keys on the command line: `a.b=c`, `+a.b=c`, `++a.b=c`; `~a.b` removes one."""
    for value in launch.arguments:
        match = _OVERRIDE.match(value.text)
        if match is None:
            continue
        path = tuple(match["path"].split("."))
        content = value.after(match.end()) if match["equals"] else EMPTY
        yield Key(path, () if value.text.startswith("~") else (content,), value.line, content.text)


def _cluster(arguments: Arguments, launch: TrainingCommand) -> tuple[int | None, int | None]:
    """Return nodes and devices per node by the keys, else by the launcher."""
    nodes, devices = arguments.nodes, arguments.devices_per_node
    if launch.launcher == "python" or (nodes and devices):
        return nodes or (None if "nodes" in arguments.incomplete else 1), devices
    own_nodes, own_devices = cluster_of(launch, arguments)
    return nodes or own_nodes, devices or own_devices
