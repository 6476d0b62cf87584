"""Interpolation of `${...}` in configuration files: other keys, environment variables, sums. Executes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import floordiv
from typing import Final

from simulator.budget import charge
from simulator.frameworks.documents import Key
from simulator.frameworks.purpose import STAGES
from simulator.frameworks.values import Cause, PlainValue, joined, known_value, unknown_value

_INNERMOST: Final = re.compile(r"\$\{([^{}$]*)\}")
_MISSING: Final = "???"
_PLACEHOLDER: Final = re.compile(r"x{3,}")
"""Placeholder for a value that the user must fill in: `vocab_size: xxx` in FlagScale da4935e, examples/aquila."""
_MAXIMUM_DEPTH: Final = 16
_MAXIMUM_ROUNDS: Final = 64
_MAXIMUM_CHARACTERS: Final = 4096
_ROUND_WORK: Final = 500
"""Units of work of one substitution."""
_SUMS: Final[Mapping[str, Callable[[Iterable[int]], int]]] = {
    "multiply": math.prod,
    "mul": math.prod,
    "add": sum,
    "sum": sum,
    "floor_div": lambda numbers: reduce(floordiv, numbers),
    "int_div": lambda numbers: reduce(floordiv, numbers),
}
"""Arithmetic resolvers: `multiply` and `sum` of NeMo (nemo/core/config/hydra_runner.py of 8cfedd7), the others of
its recipes' programs."""


class Interpolation:
    """Substitution of the references in one file."""

    def __init__(self, keys: Iterable[Key], settings: Mapping[str, str]) -> None:
        self._keys = {key.dotted: key for key in keys}
        self._settings = settings
        self._resolved: dict[str, str] = {}
        """Values resolved so far, by key."""
        self.used: set[str] = set()
        """Settings that were used."""
        self.referred: set[str] = set()
        """Keys that another key refers to."""
        self.assumed_unset: set[str] = set()
        """Environment variables whose default was used."""

    def keys(self) -> list[Key]:
        """Return the keys with references replaced; a value that only the run knows is a hole."""
        filled = ((key, tuple(self._filled(key, value) for value in key.values)) for key in self._keys.values())
        return [key if values == key.values else dataclasses.replace(key, values=values) for key, values in filled]

    def _filled(self, key: Key, value: PlainValue) -> PlainValue:
        """Return a value with its references replaced; unresolved ones make it unknown."""
        text = value.text
        if text == _MISSING or _PLACEHOLDER.fullmatch(text):
            return self._asked(key.dotted, key.line) or unknown_value(text, key.line, [Cause(key.line, key.dotted)])
        if "${" not in text:
            return value
        filled = self._text(text, key.path, 0)
        if filled is not None:
            return known_value(filled, key.line)
        # The unknown is named after the reference that cannot be resolved.
        name = self._open(text, key.path) or text[:80]
        return self._asked(name, key.line) or joined([unknown_value(text[:200], key.line, [Cause(key.line, name)])])

    def _asked(self, name: str, line: int) -> PlainValue | None:
        if name not in self._settings:
            return None
        self.used.add(name)
        return known_value(self._settings[name], line)

    def _text(self, text: str, path: tuple[str, ...], depth: int) -> str | None:
        """Return a text with all references replaced; None where one cannot be resolved."""
        for _ in range(_MAXIMUM_ROUNDS):
            charge(_ROUND_WORK + len(text))
            match = _INNERMOST.search(text)
            if match is None:
                return None if "${" in text else text
            inner = self._resolve(match[1].strip(), path, depth)
            if inner is None or len(text) > _MAXIMUM_CHARACTERS:
                return None
            text = text[: match.start()] + inner + text[match.end() :]
        return None

    def _resolve(self, inner: str, path: tuple[str, ...], depth: int) -> str | None:
        """Return the text that one `${...}` stands for; None where it cannot be resolved."""
        resolver, colon, rest = inner.partition(":")
        if not colon:
            return self._reference(inner, path, depth)
        words = [word.strip() for word in rest.split(",")]
        if resolver in ("oc.env", "env"):
            setting = self._asked(words[0], 0)
            if setting is None and len(words) > 1:
                self.assumed_unset.add(words[0])
                return words[1].strip("'\"")
            return setting.text if setting else None
        if resolver == "oc.decode":
            # OmegaConf: the text, read as a value.
            return rest.strip().strip("'\"")
        if resolver in _SUMS and all(re.fullmatch(r"-?\d{1,15}", word, re.ASCII) for word in words):
            with contextlib.suppress(ZeroDivisionError):  # which the framework refuses
                return str(_SUMS[resolver](int(word) for word in words))
        return None

    def _reference(self, name: str, path: tuple[str, ...], depth: int) -> str | None:
        """Return the value of another key: `a.b` from the top, `.x` beside this one, `..x` one level up."""
        dots = len(name) - len(name.lstrip("."))
        start = path[: len(path) - dots] if dots else ()
        dotted = ".".join((*start, name.lstrip(".")))
        group, _, rest = dotted.partition(".")
        key = self._keys.get(dotted) or (self._keys.get(rest) if group in STAGES else None)
        if key is None or depth >= _MAXIMUM_DEPTH or dots > len(path) or len(key.values) != 1:
            return None
        self.referred.add(key.dotted)
        if key.dotted in self._resolved:
            return self._resolved[key.dotted]
        text = key.values[0].text
        if text == _MISSING:
            setting = self._asked(key.dotted, key.line)
            return setting.text if setting else None
        filled = self._text(text, key.path, depth + 1)
        if filled is not None:
            self._resolved[key.dotted] = filled
        return filled

    def _open(self, text: str, path: tuple[str, ...]) -> str:
        """Return the name of the first unresolved reference: a variable, a key, or the reference itself."""
        match = _INNERMOST.search(text)
        for _ in range(_MAXIMUM_ROUNDS):
            if match is None:
                return ""
            inner = self._resolve(match[1].strip(), path, 0)
            if inner is None:
                resolver, _, rest = match[1].strip().partition(":")
                return rest.split(",")[0].strip() if resolver in ("oc.env", "env") else match[0][:80]
            text = text[: match.start()] + inner + text[match.end() :]
            charge(_ROUND_WORK + len(text))
            match = _INNERMOST.search(text)
        return ""
