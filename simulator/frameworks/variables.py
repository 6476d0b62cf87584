"""Environment variables in configuration files (`$NAME`, `${NAME:default}`), from settings, never from this process."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Final

from simulator.frameworks.documents import Key
from simulator.frameworks.values import Cause, PlainValue, joined, known_value, unknown_value

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_]\w*)(?::-?([^{}]*))?\}|\$([A-Za-z_]\w*)", re.ASCII)


class Variables:
    """Substitution of the variables of one file."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self.used: set[str] = set()
        """Settings that were used."""
        self.assumed_unset: set[str] = set()
        """Variables whose default was used."""

    def keys(self, keys: Iterable[Key]) -> list[Key]:
        """Return the keys with variables replaced in their values; a value that only the run knows is a hole."""
        return [dataclasses.replace(key, values=tuple(map(self._filled, key.values))) for key in keys]

    def _filled(self, value: PlainValue) -> PlainValue:
        if not value.known or "$" not in value.text:
            return value
        text, line, position = value.text, value.line, 0
        parts: list[PlainValue] = []
        for match in _VARIABLE.finditer(text):
            parts.append(known_value(text[position : match.start()], line))
            parts.append(self._variable(match[1] or match[3], match[2], match[0], line))
            position = match.end()
        return joined([*parts, known_value(text[position:], line)])

    def _variable(self, name: str, default: str | None, shown: str, line: int) -> PlainValue:
        if name in self._settings:
            self.used.add(name)
            return known_value(self._settings[name], line)
        if default is None:
            return unknown_value(shown, line, [Cause(line, name)])
        self.assumed_unset.add(name)
        return known_value(default.strip("'\""), line)
