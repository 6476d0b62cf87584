"""Values in configuration files: environment variables (`$NAME`, `${NAME:default}`), interpolation, unread keys."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import floordiv
from pathlib import Path, PurePath
from typing import Final

from simulator.budget import charge
from simulator.errors import AbsentFileError
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.documents import Key, beside, keys_of, read_document, written_keys
from simulator.frameworks.flags import plain, table_of
from simulator.frameworks.purpose import STAGES
from simulator.frameworks.values import Cause, PlainValue, joined, known_value, set_by_user, unknown_value
from simulator.records import Record

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_]\w*)(?::-?([^{}]*))?\}|\$([A-Za-z_]\w*)", re.ASCII)


class Variables:
    """Substitution of the variables of one file."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self.used: set[str] = set()
        """Settings that were used."""
        self.assumed_unset: dict[str, tuple[str, int]] = {}
        """File and line of variables whose default was used."""

    def keys(self, keys: Iterable[Key]) -> list[Key]:
        """Return the keys with variables replaced in their values; a value that only the run knows is a hole."""
        return [dataclasses.replace(key, values=tuple(self._filled(x, key.file) for x in key.values)) for key in keys]

    def _filled(self, value: PlainValue, file: str) -> PlainValue:
        if not value.known or "$" not in value.text:
            return value
        text, line, position = value.text, value.line, 0
        parts: list[PlainValue] = []
        for match in _VARIABLE.finditer(text):
            parts.append(known_value(text[position : match.start()], line))
            parts.append(self._variable(match[1] or match[3], match[2], match[0], (file, line)))
            position = match.end()
        return joined([*parts, known_value(text[position:], line)])

    def _variable(self, name: str, default: str | None, shown: str, place: tuple[str, int]) -> PlainValue:
        line = place[1]
        if name in self._settings:
            self.used.add(name)
            return known_value(self._settings[name], line)
        if default is None:
            return unknown_value(shown, line, [Cause(line, name)])
        self.assumed_unset.setdefault(name, place)
        return known_value(default.strip("'\""), line)


def remark_keys(arguments: Arguments, keys: Iterable[tuple[str, Key]], *frameworks: str) -> None:
    """Remark keys that are not priced or not known; each pair has the key's name in the frameworks' tables."""
    table = table_of(*frameworks)
    aside = Arguments(arguments.file, table, complete=True)
    for name, key in keys:
        flag, text = table.get(plain(name)), " ".join(value.text for value in key.values)
        if flag is not None and flag.is_off(text) and all(value.known for value in key.values):
            continue
        aside.add(name, key.values, key.line, key.file)
        entries = aside.entries[plain(name)]
        entries[-1] = dataclasses.replace(entries[-1], spelled=key.dotted[:80])
    aside.remark_unread()
    arguments.remarks += aside.remarks


_INNERMOST: Final = re.compile(r"\$\{([^{}$]*)\}")
_MISSING: Final = "???"
_PLACEHOLDER: Final = re.compile(r"x{3,}|<[A-Za-z][^<>]{0,200}>|\{\{[^{}]{0,200}\}\}|TO_?DO|CHANGE_?ME")
"""Placeholder for a value that the user must fill in: `vocab_size: xxx` in FlagScale da4935e, examples/aquila."""
_MAXIMUM_DEPTH: Final = 16
_MAXIMUM_ROUNDS: Final = 64
_MAXIMUM_CHARACTERS: Final = 4096
_ROUND_WORK: Final = 500  # units of work of one substitution
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
        self.referred: set[str] = set()
        """Keys that another key refers to."""
        self.assumed_unset: dict[str, tuple[str, int]] = {}
        """File and line of environment variables whose default was used."""

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
        filled, name = self._text(text, key.path, 0)
        if filled is not None:
            return known_value(filled, key.line)
        name, shown = name or text[:80], text[:_MAXIMUM_CHARACTERS]
        return self._asked(name, key.line) or unknown_value(shown, key.line, [Cause(key.line, name)])

    def _asked(self, name: str, line: int) -> PlainValue | None:
        text = self._settings.get(name, set_by_user(name))
        return None if text is None else known_value(text, line)

    def _text(self, text: str, path: tuple[str, ...], depth: int) -> tuple[str | None, str]:
        """Return a text with all references replaced, or None and the first that cannot be: a variable, else itself."""
        for _ in range(_MAXIMUM_ROUNDS):
            charge(_ROUND_WORK + len(text))
            match = _INNERMOST.search(text)
            if match is None:
                return None if "${" in text else text, ""
            inner = self._resolve(match[1].strip(), path, depth)
            if inner is None:
                resolver, _, rest = match[1].strip().partition(":")
                return None, rest.split(",")[0].strip() if resolver in ("oc.env", "env") else match[0][:80]
            if len(text) > _MAXIMUM_CHARACTERS:
                break
            text = text[: match.start()] + inner + text[match.end() :]
        return None, ""

    def _resolve(self, inner: str, path: tuple[str, ...], depth: int) -> str | None:
        """Return the text that one `${...}` stands for; None where it cannot be resolved."""
        resolver, colon, rest = inner.partition(":")
        if not colon:
            return self._reference(inner, path, depth)
        words = [word.strip() for word in rest.split(",")]
        if resolver in ("oc.env", "env"):
            setting = self._asked(words[0], 0)
            if setting is None and len(words) > 1:
                key = self._keys[".".join(path)]
                self.assumed_unset.setdefault(words[0], (key.file, key.line))
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
        filled, _ = self._text(text, key.path, depth + 1)
        if filled is not None:
            self._resolved[key.dotted] = filled
        return filled


def filled_keys(arguments: Arguments, keys: Iterable[Key]) -> list[Key]:
    """Return the keys with references to others of them replaced; a value that only the run knows is a hole."""
    interpolation = Interpolation(keys, arguments.settings)
    filled = interpolation.keys()
    arguments.passed |= {plain(name) for name in interpolation.referred if plain(name) not in arguments.table}
    arguments.note_unset(interpolation.assumed_unset)
    return filled


SUFFIXES: Final = (".json", ".yaml", ".yml")
"""Suffixes of configuration files."""


class Configuration(Record):
    """The keys of one configuration file."""

    file: str
    """File that the keys' lines refer to: the script, where it writes the configuration."""
    keys: tuple[Key, ...]


def configuration(launch: LaunchCommand, file: str, name: str, line: int) -> Configuration | None:
    """Return the file that a launch names; None where the script writes one of several that only the run knows.

    Raises InputError where it is neither written nor beside the recipe, or not a configuration file.
    """
    written = launch.written(name) if set_by_user(name) is None else None
    if written is not None:
        if written.pieces and not any(piece.known for piece in written.pieces):
            return None
        where = f"{file}:{max(written.line, 1)}: {name[:200]}"
        return Configuration(file, tuple(written_keys(where, name, written)))
    path = configuration_path(launch, file, name, line)
    return Configuration(str(path), tuple(keys_of(path, read_document(path))))


def configuration_path(launch: LaunchCommand, file: str, name: str, line: int) -> Path:
    """Return the path of a file that a launch names: in its folder, else beside the recipe. Raises InputError."""
    if set_by_user(name) is not None:
        return beside(file, name, line)
    if launch.folder and not name.startswith(("/", "~")):
        try:
            return beside(file, _in_own_folder(file, f"{launch.folder}/{name}"), line)
        except AbsentFileError:
            if not launch.folder.startswith("."):
                raise
    return beside(file, _in_own_folder(file, name), line)


def named_configuration(arguments: Arguments, launch: LaunchCommand, *flags: str) -> Configuration | None:
    """Return the file that the first of some flags names; None where only the run knows its name or its text."""
    named = next((entry for flag in flags if (entry := arguments.entry(flag)) is not None), None)
    if named is None or not named.values or not named.values[0].known:
        arguments.need(named.causes if named is not None else (), "model")
        return None
    document = configuration(launch, arguments.file, named.values[0].text, named.value_line)
    if document is None:
        need_written(arguments, launch, named.values[0].text, "model")
    return document


def over_file(arguments: Arguments, launch: LaunchCommand) -> tuple[Configuration, list[Key]] | None:
    """Return the file of `--config` or `-c`, and its keys with those replaced that flags name (`--a.b X`).

    The flags are taken from the arguments. None where only the run knows the file.
    """
    document = named_configuration(arguments, launch, "config", "c")
    flags, arguments.entries = arguments.entries, {}
    if document is None:
        return None
    words = {name: entries[-1].values[0] for name, entries in flags.items() if "." in name and entries[-1].values}
    return document, replaced(arguments, document, words)


def need_written(arguments: Arguments, launch: LaunchCommand, name: str, option: str) -> None:
    """Note that `option` depends on a file whose text only the run knows."""
    written = launch.written(name)
    arguments.need(written.causes if written is not None else (), option)


TakeKeys = Callable[[Arguments, Sequence[Key], str], None]
"""Function that adds the keys of a file to the arguments."""


def take_file(arguments: Arguments, launch: LaunchCommand, word: PlainValue, take: TakeKeys) -> None:
    """Take the keys of the file that a word names; flags override them, and unknown text makes the model unknown."""
    flags, arguments.entries = arguments.entries, {}
    named = configuration(launch, arguments.file, word.text, word.line)
    if named is None:
        need_written(arguments, launch, word.text, "model")
    else:
        take(arguments, filled_keys(arguments, (key for key in named.keys if key.dotted not in flags)), named.file)
    arguments.entries |= flags


def take_files(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue], take: TakeKeys) -> None:
    """Take the words before the first flag: configuration files, and `key=value`, which overrides their keys."""
    for word in words:
        name, equals, _ = word.text.partition("=")
        if equals:
            arguments.add(name.lstrip("+"), [word.after(len(name) + 1)], word.line)
        elif word.text.endswith(SUFFIXES) and (word.known or launch.written(word.text) is not None):
            take_file(arguments, launch, word, take)
        elif not word.known:
            arguments.bags |= word.causes
        else:
            message = f"{word.text[:60]}: no JSON or YAML file, nor key=value"
            arguments.remark_line("unknown-flag", "error", message, word.line)


def replaced(arguments: Arguments, document: Configuration | None, words: Mapping[str, PlainValue]) -> list[Key]:
    """Return the keys of a document, with those that `words` of the recipe name, dotted, replaced."""
    keys = [dataclasses.replace(key, file=document.file) for key in document.keys] if document is not None else []
    left = [key for key in keys if key.dotted not in words]
    own = (Key((*name.split("."),), (word,), word.line, _scalar(word), arguments.file) for name, word in words.items())
    return filled_keys(arguments, [*left, *own])


def _scalar(word: PlainValue) -> object:
    """Return what a configuration has for a word: a number or switch, else its text."""
    plain = re.fullmatch(r"-?\d{1,18}|true|false|null", word.text.lower(), re.ASCII) if word.known else None
    return json.loads(word.text.lower()) if plain else word.text


def _in_own_folder(file: str, name: str) -> str:
    """Return a file's name in the recipe's own folder where a path from the repository's top leads there."""
    folders = PurePath(name).parent.parts
    own = Path(file).resolve().parent.parts
    return PurePath(name).name if folders and own[-len(folders) :] == folders else name
