"""The limits of reading: no file outside a recipe's repository is opened, whatever the recipe names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from simulator.errors import AbsentFileError, InputError

_ROOT: Final[ContextVar[Path | None]] = ContextVar("root", default=None)
_NAMED: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("named", default=None)
_USED: Final[ContextVar[frozenset[str]]] = ContextVar("used", default=frozenset())


@contextmanager
def reading_within(root: Path | None, settings: Mapping[str, str]) -> Iterator[None]:
    """Limit reading to files below `root` (None: each recipe's repository) and those that `settings` (`--set`) name."""
    tokens = _ROOT.set(root), _NAMED.set(settings), _USED.set(frozenset())
    try:
        yield
    finally:
        _ROOT.reset(tokens[0])
        _NAMED.reset(tokens[1])
        _USED.reset(tokens[2])


def path_set_by_user(name: str) -> str | None:
    """Return the path that the user set for a file that a recipe names; None without one."""
    path = (_NAMED.get() or {}).get(name)
    if path is not None:
        _USED.set(_USED.get() | {name})
    return path


def used_names() -> frozenset[str]:
    """Return the names of files whose user-set paths were used."""
    return _USED.get()


def root_of(recipe: Path) -> Path:
    """Return the folder that reading must stay in: the root set by the user, else the recipe's repository.

    Outside every repository it is the working folder if it contains the recipe, else the recipe's own folder.
    """
    root = _ROOT.get()
    if root is not None:
        return root
    folder = Path(os.path.normpath(recipe.parent.absolute()))
    above, below = str(folder), ""
    while above != below:
        if os.path.exists(os.path.join(above, ".git")):  # noqa: PTH110, PTH118  false where nobody may look; quick
            return Path(above)
        above, below = os.path.dirname(above), above  # noqa: PTH120  the same
    here = Path.cwd()
    return here if folder.is_relative_to(here) else folder


def require_inside(path: Path, recipe: Path, where: str) -> Path:
    """Return a path if it is inside the root once its links are followed.

    Raises InputError where the recipe itself is outside, AbsentFileError for a file that it names.
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
