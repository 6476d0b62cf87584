"""Text of a shell script in pieces, of which each is known or a hole that only the run fills.

`--tp $TP`, where nobody sets TP, is the known piece `--tp ` and the hole `$TP` with its cause. A piece also says
whether blanks in it separate words, as in `$LIST` outside of quotes, and what a hole may be by the script's branches.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from simulator.budget import charge
from simulator.frameworks.values import LOOK_WORK, MAXIMUM_PIECES, Cause, PlainPiece, PlainValue, TooLargeError

BLANKS: Final = " \t\n"
"""Characters that separate words unless the script sets IFS."""
_MAXIMUM_ALTERNATIVES: Final = 16
_MAXIMUM_ALTERNATIVE_PIECES: Final = 4096


@dataclass(frozen=True, slots=True)
class Piece(PlainPiece):
    """Text of one line of the script, or a hole, whose text only the run knows."""

    splits: bool = False
    """Whether white space in it separates words, as after an unquoted expansion."""
    quoted: bool = False
    """Whether pattern characters in it are literal."""
    outside: bool = False
    """Whether it is an environment variable that may well be unset."""
    filled: bool = False
    """Whether it is a hole that cannot be empty, such as a number."""
    alternatives: tuple[Value, ...] = field(default=(), compare=False)
    """Possible values of the hole, by the branch that the script takes; `alike` compares them."""

    def tagged(self, *, splits: bool, quoted: bool) -> Piece:
        """Return the piece with other `splits` and `quoted`."""
        if (self.splits, self.quoted) == (splits, quoted):
            return self
        # The hot path of most expansions: `dataclasses.replace` takes five times as long.
        return Piece(self.text, self.line, self.causes, splits, quoted, self.outside, self.filled, self.alternatives)


@dataclass(frozen=True, slots=True)
class Value(PlainValue):
    """Text as a sequence of pieces."""

    pieces: tuple[Piece, ...] = ()

    def inserted(self, *, quoted: bool, is_item: bool = False) -> Value:
        """Return the value as an expansion inserts it, inside or outside quotes; an item of a list stays open."""
        pieces = tuple(
            piece.tagged(splits=not quoted or (is_item and piece.splits and not piece.known), quoted=quoted)
            for piece in self.pieces
        )
        return self if all(map(operator.is_, pieces, self.pieces)) else Value(pieces)

    @property
    def open(self) -> bool:
        """Whether the value may be several words, or none: it has an unknown part outside of quotes."""
        return any(piece.splits and not piece.known for piece in self.pieces)

    @property
    def has_text(self) -> bool:
        """Whether any part of the text is known."""
        return any(piece.known for piece in self.pieces)

    @property
    def outside(self) -> bool:
        """Whether the value is environment variables alone that nobody is known to set."""
        return bool(self.pieces) and all(piece.outside for piece in self.pieces)


EMPTY: Final = Value()
BREAK: Final = Piece(" ", 0, splits=True)
"""The end of an item of a list, which ends a word whatever IFS is."""


def text_value(text: str, line: int, *, quoted: bool = False) -> Value:
    """Return known text that starts on `line`, one piece per line."""
    if "\n" not in text:
        return Value((Piece(text, line, quoted=quoted),) if text else ())
    parts = text.split("\n")
    ends = [part + "\n" for part in parts[:-1]] + parts[-1:]
    return Value(tuple(Piece(part, line + n, quoted=quoted) for n, part in enumerate(ends) if part))


def hole(shown: str, line: int, causes: Iterable[Cause] = (), *, filled: bool = False, outside: bool = False) -> Value:
    """Return a value that is wholly unknown and spelled `shown`, by default with itself as its cause."""
    reasons = frozenset(causes) or frozenset({Cause(line, shown)})
    return Value((Piece(shown, line, causes=reasons, filled=filled, outside=outside),))


def joined(values: Iterable[Value]) -> Value:
    """Return the concatenation of values."""
    pieces: list[Piece] = []
    for value in values:
        pieces.extend(value.pieces)
        if len(pieces) > MAXIMUM_PIECES:
            raise TooLargeError
    return Value(tuple(pieces))


def one_of(values: Iterable[Value], shown: str, line: int, causes: frozenset[Cause]) -> Value:
    """Return a hole that is one of `values`; too many are not kept as alternatives."""
    flat: dict[tuple[str, frozenset[Cause]], Value] = {}
    joint = [causes]
    for value in values:
        for alternative in _flattened(value):
            flat.setdefault((alternative.text, alternative.causes), alternative)
            if alternative is not value:
                joint.append(alternative.causes)
    alternatives = tuple(flat.values())
    size = sum(len(alternative.pieces) for alternative in alternatives)
    if len(alternatives) > _MAXIMUM_ALTERNATIVES or size > _MAXIMUM_ALTERNATIVE_PIECES:
        alternatives = ()
    charge(LOOK_WORK * sum(map(len, joint)))
    is_filled = bool(alternatives) and all(filled(value) for value in alternatives)
    return Value((Piece(shown, line, causes.union(*joint), filled=is_filled, alternatives=alternatives),))


def _flattened(value: Value) -> tuple[Value, ...]:
    """Return the alternatives of a value that is a single hole with some, else the value."""
    if len(value.pieces) == 1 and value.pieces[0].alternatives:
        return value.pieces[0].alternatives
    return (value,)


def open_causes(items: Sequence[Value], end: int | None = None) -> frozenset[Cause]:
    """Return why the number of a list's first `end` words is not known; empty where it is."""
    charge(LOOK_WORK * len(items))
    return frozenset().union(*(item.causes for item in items[:end] if item.open))


def filled(value: Value) -> bool | None:
    """Whether a value has any character, whatever its holes are; None where that is not known."""
    if any(piece.filled or (piece.known and piece.text) for piece in value.pieces):
        return True
    return None if not value.known else False


def alike(left: Value, right: Value) -> bool:
    """Whether two values have the same text and holes; alternatives must be the same object."""
    if left is right or (left.known and right.known and left.text == right.text):
        return True
    charge(LOOK_WORK * len(left.pieces))
    return left == right and all(
        piece.alternatives is other.alternatives for piece, other in zip(left.pieces, right.pieces, strict=True)
    )


# Truth.

Truth = bool | frozenset[Cause]
"""Whether a test holds or a command succeeds, or what that depends on."""


def negated(truth: Truth) -> Truth:
    """Return the opposite truth."""
    return truth if isinstance(truth, frozenset) else not truth


def both(left: Truth, right: Truth) -> Truth:
    """Return whether both hold."""
    if left is False or right is False:
        return False
    if isinstance(left, frozenset):
        return left | right if isinstance(right, frozenset) else left
    return right


# Words.


def split_fields(value: Value, separators: str = BLANKS) -> list[Value]:
    """Return the words of a value, between blanks that separate; a quoted part makes a word even if it is empty."""
    if not any(piece is BREAK or (piece.splits and piece.known) for piece in value.pieces):
        return [value] if value.pieces else []
    words: list[Value] = []
    current: list[Piece] = []
    open_word = False
    for piece in value.pieces:
        splits = piece.splits and piece.known
        if piece is not BREAK and not (splits and separators):
            open_word = open_word or not splits or piece.text != ""
            current.append(piece)
            continue
        for number, part in enumerate(re.split(f"([{BLANKS if piece is BREAK else separators}]+)", piece.text)):
            if number % 2:  # what separates
                if open_word:
                    words.append(Value(tuple(current)))
                current, open_word = [], False
            elif part:
                current.append(Piece(part, piece.line, splits=True, quoted=piece.quoted))
                open_word = True
    if open_word:
        words.append(Value(tuple(current)))
    return words
