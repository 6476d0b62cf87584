"""Configuration files (YAML, JSON, TOML) as flat keys with their lines."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from simulator.budget import charge
from simulator.errors import AbsentFileError, InputError, NoRecipeError
from simulator.frameworks.values import EMPTY, TEXTS, PlainValue, known_value, require_inside, root_of, set_by_user
from simulator.question.origin import option_for
from simulator.question.specs.documents import parse_json, read_json, read_limited, read_yaml
from simulator.question.specs.yaml_text import parse_yaml

_MAXIMUM_NAME: Final = 1000
_MAXIMUM_DEPTH: Final = 32
_MOST_ENDINGS: Final = 12  # most endings of an absolute path that are looked for
_MAXIMUM_KEYS: Final = 20_000
_TOML_TEXT: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)?|\'\'\'.*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?|#[^\n]*+',
    re.DOTALL,
)  # quoted text, closed or not, and comments: dots in them separate no keys
_TOML_CHAIN: Final = re.compile(
    rf'(?<![\w"-])(?:[\w-]++|")(?:[ \t]*+\.[ \t]*+(?:[\w-]++|")){{{_MAXIMUM_DEPTH}}}', re.ASCII
)
_TOML_WORK: Final = 300  # units of work per character that separates keys, values or tables
_LONG_NUMBER: Final = re.compile(r"(?<![\w-])[\w-]{4097}", re.ASCII)
_KEY_TEXT: Final = re.compile(r"""(?<![\w.-])([\w.-]++)["']?+\s*+(?=[:=\]]|$)""")
"""Characters of a key, followed by what marks them as one."""
_KEY_BEFORE: Final = frozenset("{,[\"' \t")
_OF_NAMES: Final = re.compile(r"target|modules|parameters")
"""Keys that hold lists of a model's parts."""
_LINE_WORK: Final = 5  # units of work per character of the search for keys


@dataclass(frozen=True, slots=True)
class Key:
    """One value of a configuration file."""

    path: tuple[str, ...]
    values: tuple[PlainValue, ...]
    """The value, or the items of a list."""
    line: int
    content: Any
    """Value as parsed."""
    file: str = ""
    """File of the line; empty for the file being read."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path[-1]

    @property
    def first(self) -> PlainValue:
        """The value, or the first item; an empty text for an empty list."""
        return self.values[0] if self.values else EMPTY

    @property
    def dotted(self) -> str:
        """The whole path, joined by dots."""
        return ".".join(self.path)


def beside(file: str, name: str, line: int) -> Path:
    """Return the path of a configuration file that a recipe names, beside it or above it in its repository.

    A path from the machine's top is where its author keeps the repository: its longest ending of two parts or more that
    leads to a file counts. A user's setting may point elsewhere. Raises InputError where that file does not exist,
    AbsentFileError where the repository has none of the name.
    """
    named = set_by_user(name)
    if named is not None:
        with contextlib.suppress(OSError, ValueError):
            if Path(named).is_file():
                return Path(named)
        raise InputError(f"--set {shlex.quote(f'{name[:200]}={named[:200]}')}: no such file")
    if "\0" not in name and len(name) < _MAXIMUM_NAME:
        start = Path(file).parent
        inside = Path(os.path.normpath(start.absolute()))
        root = Path(os.path.normpath(root_of(Path(file)).absolute()))
        count = len(inside.parts) - len(root.parts) if inside.is_relative_to(root) else 0
        folders = [start / "/".join([".."] * steps) for steps in range(count + 1)]
        for ending, folder in product(_endings(name), folders):
            with contextlib.suppress(OSError):
                if (folder / ending).is_file():
                    return require_inside(folder / ending, Path(file), f"{file}:{line}: {name[:200]}")
    shown = name[:200]
    raise AbsentFileError(
        f"{file}:{line}: {shown}: no such file beside the recipe or above it in its repository; "
        f"{option_for(shown, is_file=True)}"
    )


def _endings(name: str) -> list[str]:
    """Return what a name may be within the repository, longest first."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    last = max(len(parts) - 1, 1)
    return (
        ["/".join(parts[n:]) for n in range(max(1, last - _MOST_ENDINGS), last)]
        if name.startswith(("~", "/"))
        else [name]
    )


def read_text(path: Path, *, newlines: bool = False) -> str:
    """Return a file's text; `newlines` keeps carriage returns before line breaks. Raises InputError."""
    texts = TEXTS.get({})
    text = texts[path] if path in texts else texts.setdefault(path, read_limited(path))
    if "\0" in text:
        raise InputError(f"{path}: a binary file, no recipe")
    return text if newlines else text.replace("\r\n", "\n")


def read_document(path: Path) -> dict[str, Any]:
    """Parse a YAML, JSON or TOML file. Raises InputError."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        content = read_json(path)
    elif suffix == ".toml":
        content = _toml(path)
    else:
        content = read_yaml(path, loose=True)
    if not isinstance(content, dict):
        raise InputError(f"{path}: must hold a mapping of keys to values")
    return content


def _toml(path: Path) -> Any:
    text = read_text(path)
    _check_toml(path, text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: not valid TOML: nested too deep, or a number too long") from error


def _check_toml(path: Path, text: str) -> None:
    """Raise InputError for TOML that takes the parser too long: it limits neither a key's depth nor the tables."""
    bare = _TOML_TEXT.sub('"', text)
    chain = _TOML_CHAIN.search(bare)
    if chain is not None:
        line = bare.count("\n", 0, chain.start()) + 1
        raise InputError(f"{path}:{line}: not valid TOML: a key of more than {_MAXIMUM_DEPTH} parts")
    if _LONG_NUMBER.search(bare):
        raise InputError(f"{path}: not valid TOML: a number or a name too long")
    charge(_TOML_WORK * sum(map(bare.count, "\n=[]{},.")) + 20 * len(text))


def keys_of(path: Path, document: Mapping[str, Any], *, empty: bool = False) -> list[Key]:
    """Return every value of a document in order, with its line; `empty` ones (`null`) too."""
    return _keys(str(path), document, read_text(path), empty=empty)


def written_keys(where: str, name: str, content: PlainValue) -> list[Key]:
    """Return every value of a file that a script writes, with its line in the script. Raises InputError.

    Values that only the run knows are holes.
    """
    text, holes = _marked(content, quotes=name.lower().endswith(".json"))
    is_json = name.lower().endswith(".json")
    document = parse_json(where, text) if is_json else parse_yaml(where, text, loose=True)
    if not isinstance(document, dict):
        raise InputError(f"{where}: must hold a mapping of keys to values")
    keys = []
    # Text made from another file has the line of the command that makes it.
    last = max((piece.line for piece in content.pieces), default=1)
    for key in _keys(where, document, text, (max(content.line, 1), max(last, 1))):
        values = [next((holes[mark] for mark in holes if mark in value.text), value) for value in key.values]
        keys.append(dataclasses.replace(key, values=tuple(values)))
    return keys


def _marked(content: PlainValue, *, quotes: bool) -> tuple[str, dict[str, PlainValue]]:
    """Return the text with unknown parts replaced by marks, quoted where needed, and the values by mark."""
    text = ""
    holes: dict[str, PlainValue] = {}
    for piece in content.pieces:
        if piece.known:
            text += piece.text
            continue
        mark = f"unknown-{len(holes)}-"
        holes[mark] = PlainValue((piece,))
        text += f'"{mark}"' if quotes and text.count('"') % 2 == 0 else mark
    return text, holes


def _keys(
    path: str, document: Mapping[str, Any], text: str, lines: tuple[int, float] = (1, math.inf), *, empty: bool = False
) -> list[Key]:
    """Return every value of a document with its line, of the first and the last of its text; `empty` ones too."""
    finder = _Lines(text.split("\n"))
    leaves: list[Key] = []
    for keys, value in _flat(document, ()):
        line = int(min(finder.of(keys) + lines[0] - 1, lines[1]))
        items = value if isinstance(value, list) else [value]
        if items and all(isinstance(item, list) and all(isinstance(part, str) for part in item) for item in items):
            items = [f"[{', '.join(item)}]" for item in items]
        if _OF_NAMES.search(keys[-1]):  # what is no name in a list of some is for the reader to refuse
            wrong = (dict, list) if value is None else (dict, list, type(None))
            items = [json.dumps(item or {}, default=str) if isinstance(item, wrong) else item for item in items]
        if not all(isinstance(item, str | int | float | bool) for item in items) and (value is not None or not empty):
            continue
        leaves.append(Key(keys, tuple(known_value(as_text(item), line) for item in items), line, value))
        if len(leaves) > _MAXIMUM_KEYS:
            raise NoRecipeError(f"{path}: more than {_MAXIMUM_KEYS} keys; no recipe")
    return leaves


def line_of(text: str, path: Sequence[str]) -> int:
    """Return the line of a key of a document's text, as near as its own and its parents' names tell."""
    return _lines_of(text).of(tuple(path)) if path else 1


@functools.lru_cache(maxsize=8)
def _lines_of(text: str) -> _Lines:
    return _Lines(text.split("\n"))


def as_text(value: object) -> str:
    """Return a plain value as text, as a flag would have it."""
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
    """The line of each key, in the order of the file."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at: dict[str, list[int]] = {}
        for number, whole in enumerate(lines, start=1):
            line = whole.split(" #", 1)[0]
            charge(_LINE_WORK * (10 + len(line)))
            for match in _KEY_TEXT.finditer(line):
                starts = match.start() == 0 or line[match.start() - 1] in _KEY_BEFORE
                word = match[1] if starts else match[1].partition(".")[2]
                for name in {word, word.rpartition(".")[2]} - {""}:
                    self._at.setdefault(name, []).append(number)
        self._parents: dict[tuple[str, ...], int] = {}

    def of(self, path: tuple[str, ...]) -> int:
        """Return a key's line: the first of its name after its parent's."""
        start = 1
        for depth in range(1, len(path) + 1):
            part = path[:depth]
            if part not in self._parents:
                numbers: Sequence[int] = self._at.get(path[depth - 1], ())
                place = bisect.bisect_left(numbers, start)
                self._parents[part] = numbers[place] if place < len(numbers) else start
            start = self._parents[part]
        return start
