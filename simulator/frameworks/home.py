"""The bounds of reading: no file outside the recipe's repository is opened, whatever the recipe names."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from simulator.errors import AbsentFileError, InputError

_ROOT: Final[ContextVar[Path | None]] = ContextVar("root", default=None)
_NAMED: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("named", default=None)
_TOLD: Final[ContextVar[frozenset[str]]] = ContextVar("told", default=frozenset())

_FILE: Final = re.compile(r"[^\s$`(]+(?:\.(?:json|ya?ml|toml|sh|txt|env|cfg|conf|tmpl|template|in)|/[^\s$`(]*)")
"""Names of files, among those of variables and commands."""


@contextmanager
def staying(root: Path | None, settings: Mapping[str, str]) -> Iterator[None]:
    """Read below `root`, by default each recipe's own; `settings` alone (`--set`) may name files elsewhere."""
    tokens = _ROOT.set(root), _NAMED.set(settings), _TOLD.set(frozenset())
    try:
        yield
    finally:
        _ROOT.reset(tokens[0])
        _NAMED.reset(tokens[1])
        _TOLD.reset(tokens[2])


def told(name: str) -> str | None:
    """The path that the user gave for a file that a recipe names."""
    path = (_NAMED.get() or {}).get(name)
    if path is not None:
        _TOLD.set(_TOLD.get() | {name})
    return path


def told_names() -> frozenset[str]:
    """The files whose paths were asked for and given."""
    return _TOLD.get()


def asking(name: str, *, is_file: bool = False) -> str:
    """The option that tells an unknown: its value, the path of a file, or the nodes of the list that a flag names."""
    if name.startswith("--"):
        return "--nodes N"
    return f"--set {shlex.quote(f'{name}=PATH' if is_file or _FILE.fullmatch(name) else f'{name}=VALUE')}"


def root_of(recipe: Path) -> Path:
    """The folder that reading does not leave: the one given, else the recipe's repository.

    Outside every repository it is the working folder where the recipe is in it, else the recipe's own folder.
    """
    root = _ROOT.get()
    if root is not None:
        return root
    folder = Path(os.path.normpath(recipe.parent.absolute()))
    for above in (folder, *folder.parents):
        if os.path.exists(above / ".git"):  # noqa: PTH110  false where nobody may look
            return above
    here = Path.cwd()
    return here if folder.is_relative_to(here) else folder


def kept_inside(path: Path, recipe: Path, where: str) -> Path:
    """The path, if it is inside the root once its links are followed.

    Raises InputError for a recipe that is not, AbsentFileError for a file that a recipe names.
    """
    try:
        root = root_of(recipe)
        inside = path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:
        raise InputError(f"{where}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not inside:
        kind = InputError if path == recipe else AbsentFileError
        raise kind(f"{where}: leads out of {root}, where reading stays; --root FOLDER widens it")
    return path
