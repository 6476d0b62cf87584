"""Text in pieces, each with its line, some of which only the run knows.

`--tp $TP` on line 7 has the value ``PlainValue((PlainPiece("$TP", 7, {Cause(3, "TP")}),))``: unknown, because line 3
takes `TP` from the environment. Values of configuration files and logs have one known piece.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from simulator.budget import charge

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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class PlainValue:
    """Text as a sequence of pieces. Raises TooLargeError beyond the size limits."""

    pieces: tuple[PlainPiece, ...] = ()

    def __post_init__(self) -> None:
        """Charge for the characters and pieces, and check their number."""
        characters = byte_count = 0
        for piece in self.pieces:
            text = piece.text
            size = len(text)
            characters += size
            byte_count += size if text.isascii() else 4 * size
        charge(_VALUE_WORK + _PIECE_WORK * len(self.pieces) + byte_count)
        if characters > MAXIMUM_CHARACTERS or len(self.pieces) > MAXIMUM_PIECES:
            raise TooLargeError

    @property
    def text(self) -> str:
        """The text, with holes as the file spells them."""
        if len(self.pieces) == 1:
            return self.pieces[0].text
        charge(LOOK_WORK * len(self.pieces))
        return "".join(piece.text for piece in self.pieces)

    @property
    def known(self) -> bool:
        """Whether all of the text is known before the run."""
        charge(LOOK_WORK * len(self.pieces))
        return not any(piece.causes for piece in self.pieces)

    @property
    def causes(self) -> frozenset[Cause]:
        """What the unknown pieces depend on."""
        charge(LOOK_WORK * sum(1 + len(piece.causes) for piece in self.pieces))
        return frozenset().union(*(piece.causes for piece in self.pieces))

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
