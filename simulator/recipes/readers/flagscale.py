"""FlagScale's experiments: a file that names the configuration of the training beside it, and what starts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import UnsupportedError
from simulator.frameworks.documents import Key, beside, keys_of, read_document
from simulator.recipes.readers.nemo import read_nemo
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
    tuned = next((key for key in own if "auto_tuner" in key.path), None)
    name = f"train/{_named(content)}.yaml"
    if tuned is not None:
        raise UnsupportedError(f"{path}:{tuned.line}: FlagScale's tuner chooses the layout as it runs; give {name}")
    task = next((key for key in own if key.dotted == "experiment.task.backend"), None)
    if task is not None and task.values[0].text != "megatron":
        raise UnsupportedError(
            f"{path}:{task.line}: FlagScale on {task.values[0].text[:40]} is not read; read is megatron"
        )
    file = beside(str(path), name, 1)
    named = [dataclasses.replace(key, file=str(file)) for key in keys_of(file, read_document(file))]
    return read_nemo(path, [*named, *own], settings)


def _named(content: Mapping[str, Any]) -> str:
    """The configuration among the defaults, without its folder; empty where there is none."""
    entries = content.get("defaults")
    found = [entry.get("train") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return next((name for name in found if isinstance(name, str) and "\0" not in name), "")
