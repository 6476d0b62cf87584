"""Values of shell text: pieces with the effects of expansions and branches. Runs no command.

A piece knows whether white space in it separates words (`$LIST` outside quotes), and a hole whose text depends on a
branch carries its alternatives.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from simulator.budget import charge
from simulator.frameworks.values import (
    LOOK_WORK,
    MAXIMUM_CHARACTERS,
    MAXIMUM_PIECES,
    Cause,
    PlainPiece,
    PlainValue,
    TooLargeError,
)

__all__ = [
    "BLANKS",
    "BREAK",
    "EMPTY",
    "MAXIMUM_CHARACTERS",
    "MAXIMUM_PIECES",
    "Cause",
    "Piece",
    "TooLargeError",
    "Value",
    "alike",
    "could_equal",
    "definitely_filled",
    "filled",
    "hole",
    "joined",
    "one_of",
    "open_causes",
    "split_fields",
    "splitter",
    "text_value",
]

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


def hole(shown: str, line: int, causes: Iterable[Cause], *, filled: bool = False, outside: bool = False) -> Value:
    """Return a value that is wholly unknown and spelled `shown`."""
    return Value((Piece(shown, line, causes=frozenset(causes), filled=filled, outside=outside),))


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
    if (
        len(alternatives) > _MAXIMUM_ALTERNATIVES
        or sum(len(v.pieces) for v in alternatives) > _MAXIMUM_ALTERNATIVE_PIECES
    ):
        alternatives = ()
    charge(LOOK_WORK * sum(map(len, joint)))
    causes = causes.union(*joint)
    filled = bool(alternatives) and all(definitely_filled(value) for value in alternatives)
    return Value((Piece(shown, line, causes=causes, filled=filled, alternatives=alternatives),))


def _flattened(value: Value) -> tuple[Value, ...]:
    """Return the alternatives of a value that is a single hole with some, else the value."""
    if len(value.pieces) == 1 and value.pieces[0].alternatives:
        return value.pieces[0].alternatives
    return (value,)


def open_causes(items: Sequence[Value], end: int | None = None) -> frozenset[Cause]:
    """Return why the number of a list's first `end` words is not known; empty where it is."""
    charge(LOOK_WORK * len(items))
    return frozenset().union(*(item.causes for item in items[:end] if item.open))


def definitely_filled(value: Value) -> bool:
    """Whether the value has at least one character, whatever its holes are."""
    return any(piece.filled or (piece.known and piece.text) for piece in value.pieces)


def filled(value: Value) -> bool | None:
    """Whether a value has any character; None where that is not known."""
    if definitely_filled(value):
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


def could_equal(left: Value, right: Value) -> bool:
    """Whether two values may be equal; exact where one of them is known."""
    if left.known and right.known:
        return left.text == right.text
    if left.known:
        left, right = right, left
    if not right.known:
        return True
    if len(left.pieces) == 1 and left.pieces[0].alternatives:
        return any(could_equal(alternative, right) for alternative in left.pieces[0].alternatives)
    return _could_be(left, right.text)


_WILD: Final = re.compile(r"[*?[]")


def could_match(value: Value, pattern: Value) -> bool:
    """Whether an unknown value may match a shell pattern, judged by their known beginnings."""
    prefix = ""
    for piece in pattern.pieces:
        mark = None if piece.quoted else _WILD.search(piece.text)
        prefix += piece.text[: mark.start()] if mark else piece.text
        if mark:
            break
    else:
        return could_equal(value, pattern)
    start = ""
    for piece in value.pieces:
        if not piece.known:
            break
        start += piece.text
    charge(LOOK_WORK + len(start) + len(prefix))
    return start.startswith(prefix) or prefix.startswith(start)


def _could_be(value: Value, text: str) -> bool:
    """Whether `text` contains the known parts in order, the outer ones at its ends."""
    charge(LOOK_WORK * len(value.pieces) + len(text))
    known: list[list[str]] = [[]]
    for piece in value.pieces:
        if piece.known:
            known[-1].append(piece.text)
        else:
            known.append([])
    runs = ["".join(texts) for texts in known]
    first, last = runs[0], runs[-1]
    if len(first) + len(last) > len(text) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for run in runs[1:-1]:
        position_of_run = text.find(run, position, end)
        if position_of_run < 0:
            return False
        position = position_of_run + len(run)
    return True


@functools.lru_cache(maxsize=32)
def splitter(separators: str) -> re.Pattern[str]:
    """Return the expression, one group, of what separates words: white space, or one other sign within white space."""
    blanks = "".join(mark for mark in BLANKS if mark in separators)
    marks = "".join(re.escape(mark) for mark in dict.fromkeys(separators) if mark not in BLANKS)
    blank = f"[{blanks}]" if blanks else "(?!)"
    return re.compile(f"({blank}*[{marks}]{blank}*|{blank}+)" if marks else f"({blank}+)")


def split_fields(value: Value, separators: str = BLANKS) -> list[Value]:
    """Return the words of a value; a quoted part makes a word even if it is empty."""
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
        for number, part in enumerate(splitter(BLANKS if piece is BREAK else separators).split(piece.text)):
            if number % 2:  # what separates
                if open_word or part.strip(BLANKS):
                    words.append(Value(tuple(current)))
                current, open_word = [], False
            elif part:
                current.append(Piece(part, piece.line, splits=True, quoted=piece.quoted))
                open_word = True
    if open_word:
        words.append(Value(tuple(current)))
    return words
