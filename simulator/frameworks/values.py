"""A text in pieces, each with the line it was written on, and pieces that only the run could fill in.

`--tp $TP` on line 7 has the value ``PlainValue((PlainPiece("$TP", 7, {Cause(3, "TP")}),))``: not known, because line 3
takes `TP` from the environment. A configuration file and a log have values of one known piece.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from simulator.budget import charge

MAXIMUM_CHARACTERS: Final = 1 << 20
"""Most characters one value may have."""
MAXIMUM_PIECES: Final = 1 << 14
"""Most pieces one value may have."""
LOOK_WORK: Final = 10
"""Units of work of looking at a piece."""
_VALUE_WORK: Final = 60
_PIECE_WORK: Final = 100
"""Units of work of a value and of each of its pieces; each character takes one more, or four."""


class TooLargeError(Exception):
    """A value outgrew its bound."""


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """Something that a recipe does not say: `$WORLD_SIZE`, `$1`, a `$(command)`."""

    line: int
    name: str


@dataclass(frozen=True, slots=True)
class PlainPiece:
    """Text of one line, or a hole (`causes`) whose text only the run knows."""

    text: str
    """The text; of a hole, how the file writes it."""
    line: int
    causes: frozenset[Cause] = frozenset()
    """Why the text is not known; empty for text that is."""

    @property
    def known(self) -> bool:
        """Whether the text is what the run would see."""
        return not self.causes


@dataclass(frozen=True, slots=True)
class PlainValue:
    """A text as a sequence of pieces. Raises TooLargeError for one that outgrew its bound."""

    pieces: tuple[PlainPiece, ...] = ()

    def __post_init__(self) -> None:
        """Charge for the characters and pieces that are held."""
        characters = held = 0
        for piece in self.pieces:
            characters += len(piece.text)
            held += len(piece.text) if piece.text.isascii() else 4 * len(piece.text)
        charge(_VALUE_WORK + _PIECE_WORK * len(self.pieces) + held)
        if len(self.pieces) > MAXIMUM_PIECES or characters > MAXIMUM_CHARACTERS:
            raise TooLargeError

    @property
    def text(self) -> str:
        """The text, holes as the file writes them."""
        if len(self.pieces) == 1:
            return self.pieces[0].text
        charge(LOOK_WORK * len(self.pieces))
        return "".join(piece.text for piece in self.pieces)

    @property
    def known(self) -> bool:
        """Whether all of it is what the run would see."""
        charge(LOOK_WORK * len(self.pieces))
        return not any(piece.causes for piece in self.pieces)

    @property
    def causes(self) -> frozenset[Cause]:
        """Why it is not known."""
        charge(LOOK_WORK * sum(1 + len(piece.causes) for piece in self.pieces))
        return frozenset().union(*(piece.causes for piece in self.pieces))

    @property
    def line(self) -> int:
        """Line of its first text; 0 for nothing at all."""
        return next((piece.line for piece in self.pieces if piece.text), self.pieces[0].line if self.pieces else 0)

    def after(self, count: int) -> Self:
        """The value without its first `count` characters, which are known."""
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
    """Known text that starts on `line`, one piece a line."""
    parts = text.split("\n")
    ends = [part + "\n" for part in parts[:-1]] + parts[-1:]
    return PlainValue(tuple(PlainPiece(part, line + number) for number, part in enumerate(ends) if part))


def unknown_value(shown: str, line: int, causes: Iterable[Cause]) -> PlainValue:
    """A value that is not known at all; `shown` is how the file writes it."""
    return PlainValue((PlainPiece(shown, line, frozenset(causes)),))


def joined(values: Iterable[PlainValue]) -> PlainValue:
    """The values one after another."""
    return PlainValue(tuple(piece for value in values for piece in value.pieces))
