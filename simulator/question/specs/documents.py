"""YAML and JSON files to plain values, refusing whatever a spec has no use for.

Only mappings with text keys, lists, text, whole numbers, finite numbers,
true, false and null come out. No Python object is ever constructed from a
file. Refused with a one-line InputError: files over one mebibyte, duplicate
keys, aliases, merge keys, tags, non-finite numbers, deep nesting.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, Final

import yaml

from simulator.errors import InputError
from simulator.question.units import MIB

MAXIMUM_BYTES: Final = MIB
"""Largest file read, in bytes."""
_MAXIMUM_DEPTH: Final = 32
_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,30}", re.ASCII)
_TAG: Final = "tag:yaml.org,2002:"
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(file: Path) -> Any:
    """Return what the YAML file holds, as plain values; None for an empty file."""
    return parse_yaml(str(file), _read(file))


def parse_yaml(file: str, text: str) -> Any:
    """Return what the text of a YAML file holds, as plain values; None for an empty one."""
    try:
        return _YamlReader(file, text).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{file}{line}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{file}: not valid YAML: {error}") from error


def read_json(file: Path, *, infinite: bool = False) -> Any:
    """Return what the JSON file holds, as plain values; `infinite` lets numbers pass that are not finite."""
    return parse_json(str(file), _read(file), infinite=infinite)


def parse_json(file: str, text: str, *, infinite: bool = False) -> Any:
    """Return what the text of a JSON file holds, as plain values; `infinite` lets numbers pass that are not finite."""

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InputError(f"{file}: duplicate key '{key[:60]}'")
            found[key] = value
        return found

    def constant(text: str) -> float:
        if infinite:
            return math.inf
        raise InputError(f"{file}: {text} is not a finite number")

    def number(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else constant(text[:40])

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        raise InputError(f"{file}:{error.lineno}: not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise InputError(f"{file}: not valid JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{file}: not valid JSON: nested too deep") from error


def _read(file: Path) -> str:
    """Return the text of a regular file of acceptable size."""
    try:
        if not file.is_file():
            raise InputError(f"{file}: no such file")
        with file.open("rb") as stream:
            data = stream.read(MAXIMUM_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file}: cannot be read: {reason}") from error
    if len(data) > MAXIMUM_BYTES:
        raise InputError(f"{file}: too large; at most {MAXIMUM_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text: {error.reason} at byte {error.start}") from error


class _YamlReader:
    """Turns parser events into plain values.

    Events are taken one at a time, so that nesting is refused before the
    parser or Python runs out of stack, and aliases before they multiply.
    """

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._loader = _Loader(text)

    def document(self) -> Any:
        """Return the value of the only document; None if there is none."""
        self._loader.get_event()
        found: Any = None
        if not self._loader.check_event(yaml.StreamEndEvent):
            self._loader.get_event()
            found = self._value(self._loader.get_event(), 1)
            self._loader.get_event()
        if not self._loader.check_event(yaml.StreamEndEvent):
            raise InputError(f"{self._file}: holds more than one YAML document")
        return found

    def _value(self, event: yaml.Event, depth: int) -> Any:
        """Return the value that starts with ``event``."""
        if depth > _MAXIMUM_DEPTH:
            raise self._refusal(event, f"nested deeper than {_MAXIMUM_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            raise self._refusal(event, "aliases are not allowed; write the value again")
        if isinstance(event, yaml.ScalarEvent):
            tag = event.tag or self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            return _scalar(self._where(event), tag, event.value)
        if isinstance(event, yaml.CollectionStartEvent) and event.tag is not None:
            raise self._refusal(event, f"tag '{event.tag[:60]}' is not allowed")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        return self._sequence(depth)

    def _sequence(self, depth: int) -> list[Any]:
        """Return the list whose start was just taken."""
        found = []
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            found.append(self._value(event, depth + 1))
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        """Return the mapping whose start was just taken."""
        found: dict[str, Any] = {}
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            if not isinstance(key, str):
                raise self._refusal(event, f"key '{str(key)[:60]}' is not text")
            if key in found:
                raise self._refusal(event, f"duplicate key '{key[:60]}'")
            found[key] = self._value(self._loader.get_event(), depth + 1)
        return found

    def _where(self, event: yaml.Event) -> str:
        """Return file and line of ``event``."""
        mark = event.start_mark
        return f"{self._file}:{mark.line + 1}" if mark else str(self._file)

    def _refusal(self, event: yaml.Event, reason: str) -> InputError:
        """Return the error that refuses what ``event`` starts."""
        return InputError(f"{self._where(event)}: {reason}")


def _scalar(where: str, tag: str, text: str) -> Any:
    """Return the plain value of a scalar by its resolved tag."""
    kind = tag.removeprefix(_TAG)
    if kind in ("str", "timestamp"):
        return text
    if kind == "null":
        return None
    if kind == "bool":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InputError(f"{where}: '{text[:40]}' is ambiguous; write true or false, or quote it")
    if kind == "int" and _WHOLE.fullmatch(text):
        return int(text)
    if kind == "float":
        return _finite(where, text)
    raise InputError(f"{where}: '{text[:40]}' ({kind[:60]}) is not allowed; write a plain number or quoted text")


def _finite(where: str, text: str) -> float:
    """Return the finite number ``text`` stands for."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: '{text[:40]}' is not a plain finite number")
    return number
