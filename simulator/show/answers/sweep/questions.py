"""The questions of a sweep: mappings whose lists are multiplied, numbered without being laid out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from math import prod
from pathlib import Path
from typing import Any

from simulator._version import __version__
from simulator.errors import InputError, UnsupportedError, did_you_mean
from simulator.evidence.cluster import cluster, device_kinds
from simulator.question.frameworks.stacks import framework, stack_for
from simulator.question.scenario.complete import KEYS, layout_fields
from simulator.question.scenario.inputs import BY_INPUT, DEFAULTS
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import read_yaml
from simulator.question.specs.folders import data_folder
from simulator.question.specs.names import hub_file
from simulator.question.units import parse_count

MOST_QUESTIONS = 100_000_000
"""A sweep beyond this is a slip."""
KEYWORDS = (*BY_INPUT, "layout")
"""What a mapping may hold: the arguments of `simulator.rank`, and `layout`, which narrows each search."""
_MAPPINGS = ("options", "layout")
_DEFAULTS = {name: value for name, value in DEFAULTS.items() if value is not None}
QuestionGrid = Mapping[str, tuple[Any, ...]]
"""Values by keyword; their product are questions."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Numbered questions: those of the first product, then those of the next."""

    products: tuple[QuestionGrid, ...]

    def __len__(self) -> int:
        return sum(map(_size, self.products))

    def __getitem__(self, number: int) -> dict[str, Any]:
        """The question of a number from 0; the last keyword of a product turns fastest."""
        for product in self.products:
            if 0 <= number < _size(product):
                values: dict[str, Any] = {}
                for name in reversed(list(product)):
                    number, position = divmod(number, len(product[name]))
                    values[name] = product[name][position]
                return {name: values[name] for name in product}
            number -= _size(product)
        raise IndexError(number)

    def fingerprint(self) -> str:
        """Digest of what the answers follow from: questions, version, specs, calibration."""
        digest = hashlib.sha256(json.dumps([__version__, self.products]).encode())
        for folder in ("hardware_specs", "model_specs", "calibration"):
            for file in sorted(data_folder(folder).glob("*.yaml")):
                digest.update(file.name.encode() + file.read_bytes())
        for file in sorted(set(_own_files(self.products))):
            digest.update(str(file).encode() + file.read_bytes())
        return digest.hexdigest()


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
    questions = Questions(tuple(_product(mapping, place) for mapping, place in zip(mappings, places, strict=True)))
    if len(questions) > MOST_QUESTIONS:
        raise InputError(f"{where}: {len(questions):,} questions; at most {MOST_QUESTIONS:,}")
    return questions


def _size(product: QuestionGrid) -> int:
    return prod(map(len, product.values()))


def _product(mapping: Mapping[Any, Any], where: str) -> QuestionGrid:
    """The checked product of one mapping."""
    for name in mapping:
        if name not in KEYWORDS:
            near = did_you_mean(str(name), KEYWORDS)
            raise InputError(f"{where}: unknown input '{name}'{near}; allowed: {', '.join(KEYWORDS)}")
    if "model" not in mapping:
        raise InputError(f"{where}: needs a model, or a list of them")
    inputs = {**_DEFAULTS, **mapping}
    product = {name: _values(name, inputs[name], where) for name in KEYWORDS if name in inputs}
    for name, values in product.items():
        for value in values:
            _checked(f"{where}: {name}", _CHECKS[name], value)
    sizes = product.get("nodes", ()), product.get("devices", ())
    if any(size is not None for size in sizes[0]) and any(size is not None for size in sizes[1]):
        raise InputError(f"{where}: nodes and devices exclude each other: give one")
    for kind, options in cartesian(product["framework"], product.get("options", ())):
        _checked(f"{where}: options", lambda kind: framework(kind, options), kind)  # noqa: B023  called at once
    for kind, stack in cartesian(product["framework"], product.get("stack", ())):
        _checked(f"{where}: stack", lambda kind: stack_for(kind, stack), kind)  # noqa: B023
    for machines, calibration in cartesian(product["hardware"], product.get("calibration", ())):
        _checked(f"{where}: calibration", lambda name: cluster(name, None, None, calibration), machines)  # noqa: B023
    return product


def _values(name: str, value: Any, where: str) -> tuple[Any, ...]:
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    if name in _MAPPINGS:
        if not all(isinstance(item, Mapping) for item in listed):
            raise InputError(f"{where}: {name}: must be a mapping, or a list of mappings")
        listed = tuple({str(key): _plain(name, item[key]) for key in item} for item in listed)
    if name in BY_INPUT and BY_INPUT[name].kind == "count":
        listed = tuple(_number(f"{where}: {name}", BY_INPUT[name].of_tokens, item) for item in listed)
    if not listed:
        raise InputError(f"{where}: {name}: is an empty list")
    for position, item in enumerate(listed):
        if item in listed[:position]:
            raise InputError(f"{where}: {name}: {item!r} is there twice")
    return listed


def _number(where: str, of_tokens: bool, value: Any) -> Any:  # noqa: FBT001  of the input
    """A count, which may be written as `8k`."""
    if not isinstance(value, str):
        return value
    try:
        return parse_count(value, length=of_tokens)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _plain(name: str, value: Any) -> Any:
    """A value of `options` as text; one of `layout` as a tuple of what is searched."""
    if name == "options":
        return str(value).lower() if isinstance(value, bool) else str(value)
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _checked(where: str, check: Callable[[Any], object], value: Any) -> None:
    try:
        check(value)
    except UnsupportedError:
        return  # sound, and a row that says so
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _text(load: Callable[[str], object]) -> Callable[[Any], object]:
    def check(value: Any) -> object:
        if not isinstance(value, str):
            raise InputError(f"{value!r}: must be a name or a path")
        return load(value)

    return check


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    **{name: setting._replace(name="value").check for name, setting in BY_INPUT.items()},
    "model": _text(load_model),
    "hardware": _text(device_kinds),
    "calibration": lambda value: value is None or _text(str)(value),
    "layout": lambda layout: layout_fields(layout, KEYS, many=True),
}


def _own_files(products: Sequence[QuestionGrid]) -> Iterator[Path]:
    """Files that the user named."""
    for product in products:
        for name in ("model", "hardware", "calibration"):
            for value in product.get(name, ()):
                for text in (value or "").split(","):
                    path = Path(text)
                    if path.is_file():
                        yield path
                    elif (path / "config.json").is_file():
                        yield path / "config.json"
                    elif (cached := hub_file(text)) is not None:
                        yield cached


def absolute(question: Mapping[str, Any]) -> dict[str, Any]:
    """The question with the paths that it names made absolute: a worker may stand in another folder."""
    inputs = dict(question)
    for name in ("model", "hardware", "calibration"):
        path = Path(inputs.get(name) or "")
        if path.suffix in (".yaml", ".yml", ".json") or (len(path.parts) > 1 and path.exists()):
            inputs[name] = str(path.resolve())
    return inputs
