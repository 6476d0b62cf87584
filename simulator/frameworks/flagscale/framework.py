"""Reader of FlagScale's experiments, which name a trainer, and a file beside them in Megatron-Bridge's keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.documents import Key, beside, keys_of, read_document
from simulator.frameworks.framework import Framework
from simulator.frameworks.nemo.framework import FORM
from simulator.frameworks.nemo.read import read_nemo
from simulator.frameworks.values import require_inside
from simulator.question.recipe import Recipe


def is_experiment(names: Collection[str]) -> bool:
    """Whether keys belong to an experiment."""
    return "defaults" in names and any(name.startswith("experiment.task") for name in names)


def read_experiment(arguments: Arguments, keys: Sequence[Key]) -> Recipe | None:
    """Return the run of an experiment with the configuration that it names; None where it names none.

    Raises UnsupportedError for trainers other than Megatron-LM, and InputError where the configuration is missing.
    """
    content = read_document(Path(arguments.file))
    if not _is_experiment(content):
        return None
    name = f"train/{_named(content)}.yaml"
    _require_megatron(arguments.file, keys, name)
    file = beside(arguments.file, name, 1)
    return read_nemo(arguments, [*_of_file(file, read_document(file)), *keys])


def read_fragment(arguments: Arguments, keys: Sequence[Key]) -> Recipe | None:
    """Return the run of a training configuration with the experiment that names it; None outside `conf/train`.

    Where every experiment beside it names another configuration, the first one states the trainer but no machines.
    Raises UnsupportedError as `read_experiment` does.
    """
    path = Path(arguments.file)
    if not (path.parent.name == "train" and path.parent.parent.name == "conf"):
        return None
    experiments = list(_experiments(path))
    naming = next((pair for pair in experiments if _named(pair[1]) == path.stem), None)
    if naming is None and experiments:
        file, content = experiments[0]
        more = [key for key in _of_file(file, content) if key.path[:2] == ("experiment", "task")]
    else:
        more = _of_file(*naming) if naming else []
    _require_megatron(arguments.file, more, path.name)
    arguments.keys_beside = tuple(more)
    return read_nemo(arguments, [*keys, *more])


def _is_experiment(content: Mapping[str, Any]) -> bool:
    experiment = content.get("experiment")
    return isinstance(experiment, dict) and "task" in experiment and _named(content) != ""


def _experiments(path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the readable experiments in the folder above a configuration."""
    for file in sorted(path.parent.parent.glob("*.yaml"))[:_MOST_EXPERIMENTS]:
        with suppress(InputError):
            content = read_document(require_inside(file, path, str(file)))
            if _is_experiment(content):
                yield file, content


_MOST_EXPERIMENTS: Final = 16


def _of_file(file: Path, content: Mapping[str, Any]) -> list[Key]:
    return [dataclasses.replace(key, file=str(file)) for key in keys_of(file, content)]


def _require_megatron(file: str, keys: Iterable[Key], name: str) -> None:
    """Raise UnsupportedError for an experiment on another trainer, or with a layout chosen at run time."""
    for key in keys:
        if "auto_tuner" in key.path:
            raise UnsupportedError(f"{file}:{key.line}: FlagScale's tuner chooses the layout as it runs; give {name}")
        if key.dotted == "experiment.task.backend" and key.first.text != "megatron":
            message = f"FlagScale on {key.first.text[:40]} is not read; read is megatron"
            raise UnsupportedError(f"{file}:{key.line}: {message}")


def _named(content: Mapping[str, Any]) -> str:
    """Return the name of the training configuration among the defaults; empty without one."""
    entries = content.get("defaults")
    names = [entry.get("train") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return next((name for name in names if isinstance(name, str) and "\0" not in name), "")


FRAMEWORK: Final = Framework(
    title="FlagScale",
    profile="megatron",
    extends="megatron",
    order=40,
    files=(
        replace(FORM, order=3, is_own=is_experiment, read=read_experiment),
        replace(FORM, order=4, read=read_fragment),
    ),
)
