"""Text of YAML to plain values, within bounds; `specs.documents` remembers what ships, so few questions load this."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, Final

import yaml

from simulator.budget import CHARACTER_WORK, charge
from simulator.errors import InputError

_MAXIMUM_DEPTH: Final = 32
_MAXIMUM_VALUES: Final = 200_000  # most values of a document once its aliases are written out
_EVENT_WORK: Final = 600  # units of work of one event of the YAML parser
_MAXIMUM_DIRECTIVES: Final = 100  # most lines that begin with %: the parser compares each directive with all others
_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,30}", re.ASCII)
_TAG: Final = "tag:yaml.org,2002:"
_TRUE: Final = ("true", "yes", "on")
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(file: str, text: str, *, loose: bool = False) -> Any:
    """Return the content of a YAML file's text as plain values; None for an empty one."""
    try:
        return _YamlReader(file, text, loose=loose).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{file}{line}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{file}: not valid YAML: {error}") from error


class _YamlReader:
    """Turns parser events into plain values, one at a time: nesting and aliases are refused before they multiply."""

    def __init__(self, file: str, text: str, *, loose: bool) -> None:
        self._file = file
        if text.count("\n%") > _MAXIMUM_DIRECTIVES:
            raise InputError(f"{file}: more than {_MAXIMUM_DIRECTIVES} lines that begin with %")
        charge(CHARACTER_WORK * len(text))
        self._loader = _Loader(text)
        self._loose = loose
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0

    def document(self) -> Any:
        """Return the value of the only document; None if there is none."""
        self._loader.get_event()
        if self._loader.check_event(yaml.StreamEndEvent):
            return None
        self._loader.get_event()
        content = self._value(self._loader.get_event(), 1)
        self._loader.get_event()
        if not self._loader.check_event(yaml.StreamEndEvent):
            raise InputError(f"{self._file}: holds more than one YAML document")
        return content

    def _value(self, event: yaml.Event, depth: int) -> Any:
        """Return the value that starts with ``event``."""
        charge(_EVENT_WORK)
        if depth > _MAXIMUM_DEPTH:
            raise self._refusal(event, f"nested deeper than {_MAXIMUM_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            if not self._loose:
                raise self._refusal(event, "aliases are not allowed; write the value again")
            name = str(event.anchor)
            if name not in self._anchors:
                raise self._refusal(event, f"alias '{name[:60]}' has no anchor before it")
            content, size = self._anchors[name]
            self._count(event, size)
            return content
        before = self._values
        self._count(event, 1)
        content = self._content(event, depth)
        anchor = getattr(event, "anchor", None)
        if self._loose and anchor:
            self._anchors[anchor] = (content, self._values - before)
        return content

    def _content(self, event: yaml.Event, depth: int) -> Any:
        """Return the scalar, mapping or list that starts with ``event``."""
        if isinstance(event, yaml.ScalarEvent):
            tag = event.tag or self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            scalar = _loose_scalar if self._loose else _scalar
            return scalar(self._where(event), tag, event.value)
        if isinstance(event, yaml.CollectionStartEvent) and event.tag is not None:
            raise self._refusal(event, f"tag '{event.tag[:60]}' is not allowed")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        items = []
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _count(self, event: yaml.Event, size: int) -> None:
        """Refuse a document that its aliases make too large."""
        self._values += size
        if self._values > _MAXIMUM_VALUES:
            raise self._refusal(event, f"more than {_MAXIMUM_VALUES} values")

    def _mapping(self, depth: int) -> dict[str, Any]:
        """Return the mapping whose start was just taken."""
        items: dict[str, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            merge = self._loose and key == "<<" and not getattr(event, "style", None)
            if isinstance(key, int | float) and self._loose:
                key = str(key)
            if not isinstance(key, str):
                raise self._refusal(event, f"key '{str(key)[:60]}' is not text")
            value = self._value(self._loader.get_event(), depth + 1)
            if merge:
                merged += value if isinstance(value, list) else [value]
            elif key in items and not (self._loose and items[key] == value):
                raise self._refusal(event, f"duplicate key '{key[:60]}'")
            else:
                items[key] = value
        for source in merged:
            if not isinstance(source, dict):
                raise InputError(f"{self._file}: '<<' merges mappings only")
            items = source | items
        return items

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


def _loose_scalar(where: str, tag: str, text: str) -> Any:
    """Return the plain value of a scalar in YAML 1.1; text that is no plain value stays text."""
    kind = tag.removeprefix(_TAG)
    if kind == "bool":
        return text.lower() in _TRUE
    if kind == "int":
        return _loose_int(text)
    if kind == "float":
        try:
            return _finite(where, text.replace("_", ""))
        except InputError:
            return text
    return text if kind == "merge" else _scalar(where, tag, text)


@lru_cache(maxsize=1024)
def _loose_int(text: str) -> int | str:
    """Return the whole number that YAML 1.1 has: also octal, hexadecimal, binary, and with underscores."""
    digits = text.replace("_", "").lower()
    octal = re.fullmatch(r"([-+]?)0([0-7]{1,30})", digits)
    if octal:
        return int(f"{octal[1]}{octal[2]}", 8)
    if re.fullmatch(r"[-+]?(0x[0-9a-f]{1,16}|0b[01]{1,64})", digits):
        return int(digits, 0)
    return int(digits) if _WHOLE.fullmatch(digits) else text


def _finite(where: str, text: str) -> float:
    """Return the finite number ``text`` stands for."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: '{text[:40]}' is not a plain finite number")
    return number
