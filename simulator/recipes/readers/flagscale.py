"""FlagScale's experiments: a file that names the configuration of the training beside it, and what starts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks.documents import Key, beside, keys_of, read_document
from simulator.frameworks.home import kept_inside
from simulator.recipes.readers.nemo import read_nemo
from simulator.recipes.readers.networks import with_network
from simulator.recipes.recipe import Recipe


def is_flagscale(content: Mapping[str, Any]) -> bool:
    """Whether a document is an experiment of FlagScale."""
    experiment = content.get("experiment")
    return isinstance(experiment, dict) and "task" in experiment and _named(content) != ""


def read_flagscale(
    path: Path, keys: Iterable[Key], content: Mapping[str, Any], settings: Mapping[str, str]
) -> tuple[Recipe, set[str]]:
    """The recipe of an experiment with the configuration that it names, and the settings that it used."""
    own = list(keys)
    name = f"train/{_named(content)}.yaml"
    _require_megatron(path, own, name)
    file = beside(str(path), name, 1)
    return read_nemo(path, [*_of_file(file, read_document(file)), *own], settings)


def is_fragment(path: Path) -> bool:
    """Whether a file lies where an experiment of FlagScale looks for what it names."""
    return path.parent.name == "train" and path.parent.parent.name == "conf"


def read_fragment(path: Path, keys: Iterable[Key], settings: Mapping[str, str]) -> tuple[Recipe, set[str]]:
    """The recipe of a configuration with the experiment beside it that names it, and the settings that it used.

    Where each experiment beside it names another configuration, they tell the program that is started, and nothing of
    the machines.
    """
    own = list(keys)
    experiments = list(_experiments(path))
    naming = next((pair for pair in experiments if _named(pair[1]) == path.stem), None)
    if naming is None and experiments:
        file, content = experiments[0]
        more = [key for key in _of_file(file, content) if key.path[:2] == ("experiment", "task")]
    else:
        more = _of_file(*naming) if naming else []
    _require_megatron(path, more, path.name)
    recipe, used = read_nemo(path, [*own, *more], settings)
    return with_network(recipe, more), used


def _experiments(path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The experiments in the folder above a configuration, those that can be read."""
    for file in sorted(path.parent.parent.glob("*.yaml"))[:_MOST_EXPERIMENTS]:
        with suppress(InputError):
            content = read_document(kept_inside(file, path, str(file)))
            if is_flagscale(content):
                yield file, content


_MOST_EXPERIMENTS: Final = 16


def _of_file(file: Path, content: Mapping[str, Any]) -> list[Key]:
    return [dataclasses.replace(key, file=str(file)) for key in keys_of(file, content)]


def _require_megatron(path: Path, keys: Iterable[Key], name: str) -> None:
    """Raise UnsupportedError for an experiment on another trainer, and for one whose layout is searched as it runs."""
    for key in keys:
        if "auto_tuner" in key.path:
            raise UnsupportedError(f"{path}:{key.line}: FlagScale's tuner chooses the layout as it runs; give {name}")
        if key.dotted == "experiment.task.backend" and key.values[0].text != "megatron":
            raise UnsupportedError(
                f"{path}:{key.line}: FlagScale on {key.values[0].text[:40]} is not read; read is megatron"
            )


def _named(content: Mapping[str, Any]) -> str:
    """The configuration among the defaults, without its folder; empty where there is none."""
    entries = content.get("defaults")
    names = [entry.get("train") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return next((name for name in names if isinstance(name, str) and "\0" not in name), "")
