"""Text of a recipe in pieces, each with its line, some of which only the run knows.

`--tp $TP` on line 7 has the value ``PlainValue((PlainPiece("$TP", 7, {Cause(3, "TP")}),))``: unknown, because line 3
takes `TP` from the environment. Values of configuration files and logs have one known piece.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from simulator.budget import charge
from simulator.errors import AbsentFileError, InputError

MAXIMUM_CHARACTERS: Final = 1 << 20
"""Most characters of one value."""
MAXIMUM_PIECES: Final = 1 << 14
"""Most pieces of one value."""
LOOK_WORK: Final = 10
"""Units of work of examining one piece."""
_VALUE_WORK: Final = 60
_PIECE_WORK: Final = 100
"""Units of work of a value and of each of its pieces; each character adds 1, or 4 where the text is not ASCII."""


class TooLargeError(Exception):
    """A value exceeds its size limit."""


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """Something that a recipe leaves to the run: `$WORLD_SIZE`, `$1`, a `$(command)`."""

    line: int
    name: str


@dataclass(slots=True, unsafe_hash=True)
class PlainPiece:
    """Text of one line, or a hole, whose text only the run knows."""

    text: str
    """The text; for a hole, its spelling in the file."""
    line: int
    causes: frozenset[Cause] = frozenset()
    """What the text depends on; empty for known text."""

    @property
    def known(self) -> bool:
        """Whether the text is known before the run."""
        return not self.causes


@dataclass(slots=True, unsafe_hash=True)
class PlainValue:
    """Text as a sequence of pieces. Raises TooLargeError beyond the size limits."""

    pieces: tuple[PlainPiece, ...] = ()

    def __post_init__(self) -> None:
        """Charge for the characters and pieces, and check their number."""
        pieces = self.pieces
        whole = pieces[0].text if (count := len(pieces)) == 1 else "".join([piece.text for piece in pieces])
        wide = 0 if whole.isascii() else sum(3 * len(piece.text) for piece in pieces if not piece.text.isascii())
        charge(_VALUE_WORK + _PIECE_WORK * count + (size := len(whole)) + wide)
        if size > MAXIMUM_CHARACTERS or count > MAXIMUM_PIECES:
            raise TooLargeError

    @property
    def text(self) -> str:
        """The text, with holes as the file spells them."""
        if len(self.pieces) == 1:
            return self.pieces[0].text
        charge(LOOK_WORK * len(self.pieces))
        return "".join([piece.text for piece in self.pieces])

    @property
    def known(self) -> bool:
        """Whether all of the text is known before the run."""
        if len(self.pieces) == 1:
            return not self.pieces[0].causes
        charge(LOOK_WORK * len(self.pieces))
        return not any(piece.causes for piece in self.pieces)

    @property
    def causes(self) -> frozenset[Cause]:
        """What the unknown pieces depend on."""
        if len(self.pieces) == 1:
            return self.pieces[0].causes
        every = [piece.causes for piece in self.pieces]
        charge(LOOK_WORK * (len(every) + sum(map(len, every))))
        return frozenset().union(*every)

    @property
    def line(self) -> int:
        """Line of the first text; 0 without pieces."""
        return next((piece.line for piece in self.pieces if piece.text), self.pieces[0].line if self.pieces else 0)

    def after(self, count: int) -> Self:
        """Return the value without its first `count` characters, which must be known."""
        pieces = []
        for piece in self.pieces:
            if count >= len(piece.text) and piece.known:
                count -= len(piece.text)
                continue
            pieces.append(dataclasses.replace(piece, text=piece.text[count:]) if count else piece)
            count = 0
        return dataclasses.replace(self, pieces=tuple(pieces))


EMPTY: Final = PlainValue()


def known_value(text: str, line: int) -> PlainValue:
    """Return known text that starts on `line`, one piece per line."""
    if "\n" not in text:
        return PlainValue((PlainPiece(text, line),) if text else ())
    parts = text.split("\n")
    ends = [part + "\n" for part in parts[:-1]] + parts[-1:]
    return PlainValue(tuple(PlainPiece(part, line + number) for number, part in enumerate(ends) if part))


def unknown_value(shown: str, line: int, causes: Iterable[Cause]) -> PlainValue:
    """Return a value that is wholly unknown and spelled `shown` in the file."""
    return PlainValue((PlainPiece(shown, line, frozenset(causes)),))


def joined(values: Iterable[PlainValue]) -> PlainValue:
    """Return the concatenation of values."""
    return PlainValue(tuple(piece for value in values for piece in value.pieces))


_ROOT: Final[ContextVar[Path | None]] = ContextVar("root", default=None)
_NAMED: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("named", default=None)
_USED: Final[ContextVar[frozenset[str]]] = ContextVar("used", default=frozenset())
TEXTS: Final[ContextVar[dict[Path, str]]] = ContextVar("texts")  # of the files that the present recipe needed


@contextmanager
def reading_within(root: Path | None, settings: Mapping[str, str]) -> Iterator[None]:
    """Limit reading to files below `root` (None: each recipe's repository) and those that `settings` (`--set`) name."""
    tokens = _ROOT.set(root), _NAMED.set(settings), _USED.set(frozenset()), TEXTS.set({})
    try:
        yield
    finally:
        _ROOT.reset(tokens[0])
        _NAMED.reset(tokens[1])
        _USED.reset(tokens[2])
        TEXTS.reset(tokens[3])


def set_by_user(name: str) -> str | None:
    """Return what the user set for a name, such as the path of a file that a recipe names; None without a setting."""
    text = (_NAMED.get() or {}).get(name)
    if text is not None:
        _USED.set(_USED.get() | {name})
    return text


def used_names() -> frozenset[str]:
    """Return the names of settings that were used, those of files among them."""
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
    """Return a path inside the root once links are followed. Raises InputError; AbsentFileError for a file beside."""
    try:
        root = root_of(recipe)
        inside = path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:
        raise InputError(f"{where}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not inside:
        kind = InputError if path == recipe else AbsentFileError
        raise kind(f"{where}: leads out of {root}, where reading stays; --root FOLDER widens it")
    return path
