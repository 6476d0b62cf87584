"""Errors that the simulator raises on purpose, with the exit status of each; text made fit for one line.

Each message is one line: what is wrong, where (file and key path), what is allowed and, where one is close, the nearest
valid name. Any other exception that escapes is a defect of the simulator.
"""

from collections.abc import Iterable
from typing import ClassVar, Final

from simulator.late import late_pattern

_COMMAND: Final = late_pattern(r"(?<=^:)(?=:)|(?<=##)(?=\[|vso\[)")
"""Beginning of a line that is a command to the CI runner that prints it."""
_LONG_WORD: Final = late_pattern(r"\S{301,}")
_LONGEST: Final = 2000


def one_line(text: str) -> str:
    """Return text from outside as it may be shown: one line, without control and direction marks or CI commands.

    Every run of such marks and of white space becomes one space; a space breaks up what a CI runner would obey.
    """
    printable = "".join(mark if mark.isprintable() else " " for mark in text)
    return _COMMAND.sub(" ", " ".join(printable.split()))


def short_line(text: str) -> str:
    """Return ``one_line`` of a message, with long quotations cut in the middle."""
    line = _LONG_WORD.sub(lambda word: f"{word[0][:120]}...{word[0][-60:]}", one_line(text))
    return line if len(line) <= _LONGEST else f"{line[:1400]} ... {line[-500:]}"


class SimulateError(Exception):
    """Base of every error raised on purpose; its text is always one line."""

    exit_code: ClassVar[int] = 1
    """Status with which the command line ends when this error reaches it."""

    def __init__(self, message: str) -> None:
        """Keep ``message``, folded to one line that is not too long to read."""
        super().__init__(short_line(message))


class InputError(SimulateError):
    """Error of a wrong input, or a wrong use of it, that the user can correct."""

    exit_code: ClassVar[int] = 2


class NoRecipeError(InputError):
    """Error of a sound file that is no recipe: it starts no training."""


class NotShellError(InputError):
    """Error of a text that is no shell script."""


class AbsentFileError(InputError):
    """Error of a file that a recipe names and that is missing, or lies outside the folders that are read."""


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], text: str) -> None:
    """Raise InputError unless a value is of some types, which `text` says in words."""
    if not isinstance(value, kinds):
        raise InputError(f"{name} {str(value)[:60]!r}: must be {text}, not {type(value).__name__}")


class UnsupportedError(SimulateError):
    """Error of a sound input that the simulator cannot price."""

    exit_code: ClassVar[int] = 3


class PrecisionError(UnsupportedError):
    """Error of a precision that the device's units do not have: a run would be refused, or fall back unseen."""


class UndecidedError(SimulateError):
    """Error of an answer that depends on a missing value or file; the message names it."""

    exit_code: ClassVar[int] = 3


def quoted(value: object) -> str:
    """Return a value in quotes, cut for a message."""
    shown = str(value)
    return f"'{shown[:40]}...'" if len(shown) > 40 else f"'{shown}'"


LONGEST_NAME = 200
"""Characters of a name, beyond which no nearest one is looked for: that takes long, and nobody typed it."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the choice nearest to ``name``, whatever case and dashes, or ``""``.

    A choice that begins with ``name`` is nearest. A name over `LONGEST_NAME` gets none.
    """
    if len(name) > LONGEST_NAME:
        return ""
    by_folded = {choice.lower().lstrip("-"): choice for choice in choices}
    folded = name.lower().lstrip("-")
    near = sorted((choice for choice in by_folded if choice.startswith(folded)), key=len)
    if not near or len(folded) < 3:
        from difflib import get_close_matches  # noqa: PLC0415  start-up time

        near = get_close_matches(folded, by_folded, n=1, cutoff=0.61)
    return f", did you mean '{by_folded[near[0]]}'?" if near else ""


_MOST_LISTED = 20  # choices that are listed beside the nearest


def not_one_of(name: str, choices: Iterable[str], hint: str = "") -> str:
    """Return what follows a name that is none of the choices: the nearest, or a hint instead, and all of a few."""
    listed = list(choices)
    near = hint or did_you_mean(name, listed)
    if near and len(listed) > _MOST_LISTED:
        return f"{near}; --help, or the command without it, lists all {len(listed)}"
    return f"{near}; allowed are {', '.join(listed)}" if near else f" is not one of {', '.join(listed)}"
