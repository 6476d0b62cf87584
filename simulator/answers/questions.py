"""Questions of a sweep: mappings whose lists are multiplied, numbered and never laid out.

    >>> found = questions_of({"model": "llama3.1-8b", "nodes": [1, 2, 4]})
    >>> len(found), found[2]["nodes"]
    (3, 4)

Values are checked before the first question is asked; `simulator.answers.sweep` prices the questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product as cartesian
from math import prod
from pathlib import Path
from typing import Any

from simulator._version import __version__
from simulator.answers.ranking import space_of
from simulator.errors import InputError, UnsupportedError, did_you_mean
from simulator.evidence.cluster import cluster, device_kinds
from simulator.question.frameworks.stacks import framework, stack_for
from simulator.question.question import question_of
from simulator.question.scenario.complete import KEYS, named
from simulator.question.scenario.inputs import BY_INPUT, DEFAULTS
from simulator.question.specs.catalogue import data_folder, hub_file, load_model
from simulator.question.specs.documents import read_yaml
from simulator.question.units import parse_count

MOST_QUESTIONS = 100_000_000
"""A sweep beyond this is a slip."""
KEYWORDS = (*BY_INPUT, "layout")
"""What a mapping may hold: the arguments of `simulator.rank`, and `layout`, which narrows each search."""
_MAPPINGS = ("options", "layout")
_FILES = ("model", "hardware", "calibration")
"""Inputs whose values are names or paths."""
QuestionGrid = Mapping[str, tuple[Any, ...]]
"""Values by keyword; their product are questions."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Numbered questions: those of the first grid, then those of the next."""

    grids: tuple[QuestionGrid, ...]

    def __len__(self) -> int:
        return sum(map(_size, self.grids))

    def __getitem__(self, number: int) -> dict[str, Any]:
        """The question of a number from 0; the last keyword of a grid turns fastest."""
        for grid in self.grids:
            if 0 <= number < _size(grid):
                values: dict[str, Any] = {}
                for name in reversed(list(grid)):
                    number, position = divmod(number, len(grid[name]))
                    values[name] = grid[name][position]
                return {name: values[name] for name in grid}
            number -= _size(grid)
        raise IndexError(number)

    def fingerprint(self, *settings: Any) -> str:
        """Digest of what the answers follow from: questions, settings of the sweep, version, specs, calibration."""
        digest = hashlib.sha256(json.dumps([__version__, self.grids, settings]).encode())
        folders = (data_folder(name) for name in ("hardware_specs", "model_specs", "calibration"))
        for file in (*(file for folder in folders for file in sorted(folder.glob("*.yaml"))), *self._named_files()):
            digest.update(file.name.encode() + file.read_bytes())
        return digest.hexdigest()[:16]

    def absolute(self) -> Questions:
        """The questions with the paths that they name made absolute: a worker may stand in another folder."""
        grids = ({name: tuple(map(partial(_absolute, name), grid[name])) for name in grid} for grid in self.grids)
        return Questions(tuple(grids))

    def _named_files(self) -> Iterator[Path]:
        """Files that the questions name."""
        for value in (value for grid in self.grids for name in _FILES for value in grid.get(name, ())):
            for text in (value or "").split(","):
                path, cached = Path(text), hub_file(text)
                for file in (path, path / "config.json", *((cached,) if cached is not None else ())):
                    if file.is_file():
                        yield file
                        break


def read_questions(file: Path) -> Questions:
    """The questions of a YAML file. Raises InputError for what is wrong, before any is asked."""
    return questions_of(read_yaml(file), str(file))


def questions_of(value: Any, where: str = "questions") -> Questions:
    """The questions of a mapping of keywords to values or lists of them, or of a list of such mappings."""
    mappings = value if isinstance(value, list | tuple) else [value]
    if not mappings:
        raise InputError(f"{where}: holds no question")
    if not all(isinstance(mapping, Mapping) for mapping in mappings):
        raise InputError(f"{where}: must be a mapping of inputs to lists, or a list of such mappings")
    places = [where if len(mappings) == 1 else f"{where}[{number}]" for number in range(len(mappings))]
    questions = Questions(tuple(_grid(mapping, place) for mapping, place in zip(mappings, places, strict=True)))
    if len(questions) > MOST_QUESTIONS:
        raise InputError(f"{where}: {len(questions):,} questions; at most {MOST_QUESTIONS:,}")
    return questions


def _absolute(name: str, value: Any) -> Any:
    path = Path(value or "") if name in _FILES else Path()
    named = path.suffix in (".yaml", ".yml", ".json") or (len(path.parts) > 1 and path.exists())
    return str(path.resolve()) if named else value


def _size(grid: QuestionGrid) -> int:
    return prod(map(len, grid.values()))


def _grid(mapping: Mapping[Any, Any], where: str) -> QuestionGrid:
    """The checked grid of one mapping."""
    for name in mapping:
        if name not in KEYWORDS:
            near = did_you_mean(str(name), KEYWORDS)
            raise InputError(f"{where}: unknown input '{name}'{near}; allowed: {', '.join(KEYWORDS)}")
    if "model" not in mapping:
        raise InputError(f"{where}: needs a model, or a list of them")
    inputs = {**{name: value for name, value in DEFAULTS.items() if value is not None}, **mapping}
    grid = {name: _values(name, inputs[name], f"{where}: {name}") for name in KEYWORDS if name in inputs}
    for name, values in grid.items():
        for value in values:
            _check(f"{where}: {name}", _CHECKS[name], value)
    if all(any(size is not None for size in grid.get(name, ())) for name in ("nodes", "devices")):
        raise InputError(f"{where}: nodes and devices exclude each other: give one")
    for kind, options in cartesian(grid["framework"], grid.get("options", ())):
        _check(f"{where}: options", partial(framework, kind), options)
    for kind, stack in cartesian(grid["framework"], grid.get("stack", ())):
        _check(f"{where}: stack", partial(stack_for, kind), stack)
    for machines, calibration in cartesian(grid["hardware"], grid.get("calibration", ())):
        _check(f"{where}: calibration", partial(cluster, machines, None, None), calibration)
    return grid


def _values(name: str, value: Any, where: str) -> tuple[Any, ...]:
    """The values that are listed for an input: counts as numbers, mappings with plain values."""
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    if name in _MAPPINGS:
        if not all(isinstance(item, Mapping) for item in listed):
            raise InputError(f"{where}: must be a mapping, or a list of mappings")
        listed = tuple({str(key): _plain(name, item[key]) for key in item} for item in listed)
    if name in BY_INPUT and BY_INPUT[name].kind == "count":
        try:
            listed = tuple(
                parse_count(item, length=BY_INPUT[name].of_tokens) if isinstance(item, str) else item for item in listed
            )
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    if not listed:
        raise InputError(f"{where}: is an empty list")
    for position, item in enumerate(listed):
        if item in listed[:position]:
            raise InputError(f"{where}: {item!r} is there twice")
    return listed


def _plain(name: str, value: Any) -> Any:
    """A value of `options` as text; one of `layout` as a tuple of what is searched."""
    if name == "options":
        return str(value).lower() if isinstance(value, bool) else str(value)
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _check(where: str, check: Callable[[Any], object], value: Any) -> None:
    """Raise an InputError that says where a value is wrong; a sound one that cannot be priced becomes a row."""
    try:
        check(value)
    except UnsupportedError:
        return
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _loads(load: Callable[[str], object], value: Any) -> object:
    if not isinstance(value, str):
        raise InputError(f"{value!r}: must be a name or a path")
    return load(value)


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    **{name: setting._replace(name="value").check for name, setting in BY_INPUT.items()},
    "model": partial(_loads, load_model),
    "hardware": partial(_loads, device_kinds),
    "calibration": lambda value: value is None or _loads(str, value),
    "layout": lambda layout: space_of(question_of(named(layout), KEYS, many=True)),
}
