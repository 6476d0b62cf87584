"""Configuration files of frameworks as flat keys with lines: YAML, JSON and TOML."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError
from simulator.question.specs.documents import MAXIMUM_BYTES, parse_json, parse_yaml, read_json, read_yaml
from simulator.recipes.shell.values import Value, text_value

_MAXIMUM_NAME: Final = 1000
_MAXIMUM_DEPTH: Final = 32
_MAXIMUM_KEYS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Key:
    """One value of a file."""

    path: tuple[str, ...]
    values: tuple[Value, ...]
    """The value, or the items of a list."""
    line: int
    content: Any
    """As the file holds it."""
    file: str = ""
    """Where the line is, if not in the file that is read."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path[-1]

    @property
    def dotted(self) -> str:
        """The whole path."""
        return ".".join(self.path)


def beside(file: str, name: str, line: int, settings: Mapping[str, Value]) -> Path:
    """The configuration file that a recipe names: beside the recipe, or from a folder above it in its repository.

    `settings` tell where a file is whose name leads elsewhere. Raises InputError where there is none.
    """
    named = settings[name].text if name in settings else name
    if not named.startswith("~") and "\0" not in named and len(named) < _MAXIMUM_NAME:
        start = Path(file).parent
        inside = Path(os.path.normpath(start.absolute()))
        above = [folder for folder in (inside, *inside.parents) if (folder / ".git").exists()][:1]
        count = len(inside.parts) - len(above[0].parts) if above else 0
        folders = [start / "/".join([".."] * steps) for steps in range(count + 1)]
        if named is not name:
            folders = [Path()]
        elif named.startswith("/"):
            folders = []
        for folder in folders:
            with contextlib.suppress(OSError):
                if (folder / named).is_file():
                    return folder / named
    shown = name[:200]
    raise InputError(
        f"{file}:{line}: {shown}: no such file beside the recipe or above it in its repository; "
        f"--set {shlex.quote(f'{shown}=PATH')}"
    )


def read_text(path: Path, *, newlines: bool = False) -> str:
    """Text of a file of acceptable size; `newlines` keeps a carriage return before a line break. Raises InputError."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: a folder, not a file")
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a regular file")
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        with path.open("rb") as stream:
            data = stream.read(MAXIMUM_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAXIMUM_BYTES:
        raise InputError(f"{path}: too large; at most {MAXIMUM_BYTES} bytes")
    if b"\0" in data:
        raise InputError(f"{path}: a binary file, no recipe")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    return text if newlines else text.replace("\r\n", "\n")


def read_document(path: Path) -> dict[str, Any]:
    """What a YAML, JSON or TOML file holds. Raises InputError."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        found = read_json(path)
    elif suffix == ".toml":
        found = _toml(path)
    else:
        found = read_yaml(path, loose=True)
    if not isinstance(found, dict):
        raise InputError(f"{path}: must hold a mapping of keys to values")
    return found


def _toml(path: Path) -> Any:
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: not valid TOML: nested too deep, or a number too long") from error


def keys_of(path: Path, document: Mapping[str, Any]) -> list[Key]:
    """Every value of a document in its order, with its line."""
    return _keys(str(path), document, read_text(path), 1)


def written_keys(where: str, name: str, content: Value) -> list[Key]:
    """Every value of a file that a script writes, with its line in the script. Raises InputError.

    A value that only the run knows is one.
    """
    text, holes = _marked(content, quotes=name.lower().endswith(".json"))
    json = name.lower().endswith(".json")
    document = parse_json(where, text) if json else parse_yaml(where, text, loose=True)
    if not isinstance(document, dict):
        raise InputError(f"{where}: must hold a mapping of keys to values")
    found = []
    for key in _keys(where, document, text, max(content.line, 1)):
        values = [next((holes[mark] for mark in holes if mark in value.text), value) for value in key.values]
        found.append(dataclasses.replace(key, values=tuple(values)))
    return found


def _marked(content: Value, *, quotes: bool) -> tuple[str, dict[str, Value]]:
    """The text with a word for every part that is not known, in quotes where it stands outside them."""
    text = ""
    holes: dict[str, Value] = {}
    for piece in content.pieces:
        if piece.known:
            text += piece.text
            continue
        mark = f"unknown-{len(holes)}-"
        holes[mark] = Value((piece,))
        text += f'"{mark}"' if quotes and text.count('"') % 2 == 0 else mark
    return text, holes


def _keys(path: str, document: Mapping[str, Any], text: str, first_line: int) -> list[Key]:
    finder = _Lines(text.split("\n"))
    found: list[Key] = []
    for keys, value in _flat(document, ()):
        line = finder.of(keys) + first_line - 1
        items = value if isinstance(value, list) else [value]
        if value is None or not all(isinstance(item, str | int | float | bool) for item in items):
            continue
        found.append(Key(keys, tuple(text_value(as_text(item), line) for item in items), line, value))
        if len(found) > _MAXIMUM_KEYS:
            raise InputError(f"{path}: more than {_MAXIMUM_KEYS} keys; no recipe")
    return found


def as_text(value: object) -> str:
    """A plain value as a flag has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and math.fabs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of too many digits"
    return str(value)


def _flat(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(path) > _MAXIMUM_DEPTH:
        return
    for key, content in value.items():
        if isinstance(content, dict) and content:
            yield from _flat(content, (*path, str(key)))
        else:
            yield (*path, str(key)), content


class _Lines:
    """Finds keys in the order a file writes them."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at: dict[str, list[int]] = {}
        for number, line in enumerate(lines, start=1):
            for match in re.finditer(r"""(?:^|[{,\[\s.])["']?([\w.-]+)["']?\s*(?:[:=\]]|$)""", line.split(" #", 1)[0]):
                for word in {match[1], match[1].rsplit(".", 1)[-1]}:
                    self._at.setdefault(word, []).append(number)
        self._parents: dict[tuple[str, ...], int] = {}

    def of(self, path: tuple[str, ...]) -> int:
        """Line of a key: the first of its name after its parent's."""
        start = 1
        for depth in range(1, len(path) + 1):
            part = path[:depth]
            if part not in self._parents:
                numbers = self._at.get(path[depth - 1], ())
                self._parents[part] = next((n for n in numbers if n >= start), start)
            start = self._parents[part]
        return start
