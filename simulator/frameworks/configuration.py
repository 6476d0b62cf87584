"""Configuration files that a launch names: beside the recipe, or written by the script. Interprets no key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from simulator.errors import AbsentFileError
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.documents import Key, beside, keys_of, read_document, written_keys
from simulator.frameworks.home import path_set_by_user
from simulator.frameworks.launch import LaunchCommand
from simulator.frameworks.values import PlainValue, known_value

SUFFIXES: Final = (".json", ".yaml", ".yml")
"""Suffixes of configuration files."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The keys of one configuration file."""

    file: str
    """File that the keys' lines refer to: the script, where it writes the configuration."""
    keys: tuple[Key, ...]


def configuration(launch: LaunchCommand, file: str, name: str, line: int) -> Configuration | None:
    """Return the file that a launch names; None where the script writes one of several that only the run knows.

    Raises InputError where it is neither written nor beside the recipe, or not a configuration file.
    """
    written = launch.written(name) if path_set_by_user(name) is None else None
    if written is not None:
        if written.pieces and not any(piece.known for piece in written.pieces):
            return None
        where = f"{file}:{max(written.line, 1)}: {name[:200]}"
        return Configuration(file, tuple(written_keys(where, name, written)))
    path = configuration_path(launch, file, name, line)
    return Configuration(str(path), tuple(keys_of(path, read_document(path))))


def configuration_path(launch: LaunchCommand, file: str, name: str, line: int) -> Path:
    """Return the path of a file that a launch names: in its folder, else beside the recipe. Raises InputError."""
    if path_set_by_user(name) is not None:
        return beside(file, name, line)
    if launch.folder:
        try:
            return beside(file, _in_own_folder(file, f"{launch.folder}/{name}"), line)
        except AbsentFileError:
            if not launch.folder.startswith("."):
                raise
    return beside(file, _in_own_folder(file, name), line)


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
        take(arguments, named.keys, named.file)
    arguments.entries |= flags


def take_files(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue], take: TakeKeys) -> None:
    """Take the words before the first flag: configuration files, and `key=value`, which overrides their keys."""
    for word in words:
        name, equals, text = word.text.partition("=")
        if equals and word.known:
            arguments.add(name, [known_value(text, word.line)], word.line)
        elif word.text.endswith(SUFFIXES) and (word.known or launch.written(word.text) is not None):
            take_file(arguments, launch, word, take)


def replaced(document: Configuration | None, words: Mapping[str, PlainValue], file: str) -> list[Key]:
    """Return the keys of a document, with those named by `words` (dotted names, from `file`) replaced."""
    keys = [dataclasses.replace(key, file=document.file) for key in document.keys] if document is not None else []
    left = [key for key in keys if key.dotted not in words]
    own = (Key(tuple(name.split(".")), (word,), word.line, word.text, file) for name, word in words.items())
    return [*left, *own]


def _in_own_folder(file: str, name: str) -> str:
    """Return a file's name in the recipe's own folder where a path from the repository's top leads there."""
    folders = PurePath(name).parent.parts
    own = Path(file).resolve().parent.parts
    return PurePath(name).name if folders and own[-len(folders) :] == folders else name
