"""Files of a folder that may be recipes, chosen by name alone. Opens none of them."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from simulator.errors import InputError, NoRecipeError
from simulator.recipes.shell.launch import SCRIPTS

SUFFIXES: Final = (*(f".{end}" for end in SCRIPTS), ".yaml", ".yml", ".toml", ".json")
"""Suffixes of files that may be recipes."""
_MOST_BYTES: Final = 1 << 20
"""Size above which a file is no recipe but data, such as a tokenizer."""
_MOST_FILES: Final = 100_000
_OTHERS: Final = frozenset(["node_modules", "site-packages", "__pycache__"])
"""Folders of content from elsewhere, skipped like hidden ones."""


def expanded(files: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield each file, and each possible recipe below a folder, with whether a folder yielded it.

    A pattern that no shell has expanded, such as `recipes/**/*.sh`, stands for the files that match it. A file is
    yielded once, however often it is named; a folder without any file is yielded itself. Links to folders are not
    followed. Raises InputError for more files than any repository has.
    """
    seen: set[str] = set()
    for file in chain.from_iterable(map(_matching, files)):
        walked = "\0" not in file and os.path.isdir(file)  # noqa: PTH112  false where nobody may look
        count = 0
        for path in _below(file) if walked else (file,):
            count += 1
            if count > _MOST_FILES:
                raise InputError(f"{file}: more than {_MOST_FILES} files that may be recipes; name a folder of it")
            if (plain := os.path.normpath(path)) not in seen:
                seen.add(plain)
                yield path, walked
        if not count:
            yield file, False


def _matching(file: str) -> list[str]:
    """Return the files that a pattern matches; an existing or unmatched name itself."""
    if "\0" in file or not glob.has_magic(file) or os.path.lexists(file):
        return [file]
    return sorted(glob.glob(file, recursive=True)) or [file]  # noqa: PTH207  names as they are given


def _below(folder: str) -> Iterator[str]:
    """Yield the paths of possible recipes below a folder, sorted by name, and folders that cannot be listed.

    A dangling link is yielded; pipes, sockets and devices are not.
    """
    closed: list[str] = []
    for place, folders, names in os.walk(folder, onerror=lambda error: closed.append(str(error.filename))):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _OTHERS)
        for name in sorted(names):
            path = Path(place) / name
            if name.lower().endswith(SUFFIXES) and (path.is_file() or (path.is_symlink() and not path.exists())):
                yield str(path)
    yield from closed


def require_file(file: str) -> None:
    """Raise InputError for standard input, for no name and for a folder."""
    if file in ("-", ""):
        raise InputError(f"{file or repr(file)}: no file: standard input is not read")
    if "\0" not in file and os.path.isdir(file):  # noqa: PTH112  as above
        raise InputError(f"{file}: no file below this folder may be a recipe ({', '.join(SUFFIXES)})")


def require_size(file: str) -> None:
    """Raise NoRecipeError for a file that is larger than any recipe."""
    with contextlib.suppress(OSError, ValueError):
        if os.stat(file).st_size > _MOST_BYTES:  # noqa: PTH116  as the name was given
            raise NoRecipeError(f"{file}: starts no training: larger than {_MOST_BYTES >> 20} MiB, as data are")
