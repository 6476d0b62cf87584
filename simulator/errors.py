"""Errors the simulator raises on purpose, and the exit status of each.

::

    Exception
    └── SimulateError            anything the simulator refuses on purpose
        ├── InputError           exit 2: the input or its use is wrong
        │   └── NoRecipeError    the file starts no training
        └── UnsupportedError     exit 3: the input is sound but cannot be priced

Each message is one line: what is wrong, where (file and key path), what is
allowed and, where one is close, the nearest valid name. Any other exception
that escapes is a defect of the simulator.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


def one_line(text: str) -> str:
    """Return ``text`` with every run of whitespace and control marks made one space."""
    printable = "".join(mark if mark.isprintable() else " " for mark in text)
    return " ".join(printable.split())


class SimulateError(Exception):
    """Base of every error raised on purpose; its text is always one line."""

    exit_code: ClassVar[int] = 1
    """Status with which the command line ends when this error reaches it."""

    def __init__(self, message: str) -> None:
        """Keep ``message``, folded to one line."""
        super().__init__(one_line(message))


class InputError(SimulateError):
    """The input, or the way it was used, is wrong; the user can correct it."""

    exit_code: ClassVar[int] = 2


class NoRecipeError(InputError):
    """The file is sound, and no recipe: it starts no training."""


class UnsupportedError(SimulateError):
    """The input is sound, but the simulator has no way to price it."""

    exit_code: ClassVar[int] = 3


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the choice nearest to ``name``, or ``""``.

    A choice that begins with ``name`` is nearest. Upper and lower case count
    as equal. Names over 200 characters get no suggestion, so that a hostile
    name costs nothing.
    """
    if len(name) > 200:
        return ""
    by_folded = {choice.lower(): choice for choice in choices}
    folded = name.lower()
    found = sorted((choice for choice in by_folded if choice.startswith(folded)), key=len)
    if not found or len(folded) < 3:
        found = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return f", did you mean '{by_folded[found[0]]}'?" if found else ""
