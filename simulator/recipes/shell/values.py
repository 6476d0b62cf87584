"""Shell text in pieces, each with the line it was written on, and pieces that only the run could fill in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from simulator.budget import charge

MAXIMUM_CHARACTERS: Final = 1 << 20
"""Most characters one value may have."""
MAXIMUM_PIECES: Final = 1 << 14
"""Most pieces one value may have."""
_VALUE_WORK: Final = 60
_PIECE_WORK: Final = 100
"""Units of work of a value and of each of its pieces; each character takes one more, or four."""
_LOOK_WORK: Final = 10
"""Units of work of looking at a piece."""
_BLANKS: Final = re.compile(r"([ \t\n]+)")
_MAXIMUM_ALTERNATIVES: Final = 16
_MAXIMUM_ALTERNATIVE_PIECES: Final = 4096


class TooLargeError(Exception):
    """A value outgrew its bound."""


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """Something the script does not say: `$WORLD_SIZE`, `$1`, a `$(command)`."""

    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one line of the script, or a hole (`causes`) whose text only the run knows."""

    text: str
    """The text; of a hole, how the script writes it."""
    line: int
    causes: frozenset[Cause] = frozenset()
    """Why the text is not known; empty for text that is."""
    splits: bool = False
    """White space in it separates words: it came from an expansion outside quotes."""
    quoted: bool = False
    """Pattern characters in it are plain."""
    outside: bool = False
    """A hole that is a variable of the environment and may well not be set."""
    filled: bool = False
    """A hole that cannot be empty, such as a number."""
    alternatives: tuple[Value, ...] = field(default=(), compare=False)
    """A hole that is one of these, by the branch the script takes; `alike` compares them."""

    @property
    def known(self) -> bool:
        """Whether the text is what the run would see."""
        return not self.causes

    def tagged(self, *, splits: bool, quoted: bool) -> Piece:
        """The piece as an expansion inserts it."""
        if (self.splits, self.quoted) == (splits, quoted):
            return self
        return dataclasses.replace(self, splits=splits, quoted=quoted)


@dataclass(frozen=True, slots=True)
class Value:
    """A text as a sequence of pieces."""

    pieces: tuple[Piece, ...] = ()

    def __post_init__(self) -> None:
        """Charge for what is kept; refuse a value that outgrew its bound."""
        characters = kept = 0
        for piece in self.pieces:
            characters += len(piece.text)
            kept += len(piece.text) if piece.text.isascii() else 4 * len(piece.text)
        charge(_VALUE_WORK + _PIECE_WORK * len(self.pieces) + kept)
        if len(self.pieces) > MAXIMUM_PIECES or characters > MAXIMUM_CHARACTERS:
            raise TooLargeError

    @property
    def text(self) -> str:
        """The text, holes as the script writes them."""
        if len(self.pieces) == 1:
            return self.pieces[0].text
        charge(_LOOK_WORK * len(self.pieces))
        return "".join(piece.text for piece in self.pieces)

    @property
    def known(self) -> bool:
        """Whether all of it is what the run would see."""
        charge(_LOOK_WORK * len(self.pieces))
        return not any(piece.causes for piece in self.pieces)

    @property
    def causes(self) -> frozenset[Cause]:
        """Why it is not known."""
        charge(_LOOK_WORK * sum(1 + len(piece.causes) for piece in self.pieces))
        return frozenset().union(*(piece.causes for piece in self.pieces))

    @property
    def line(self) -> int:
        """Line of its first text; 0 for nothing at all."""
        return next((piece.line for piece in self.pieces if piece.text), self.pieces[0].line if self.pieces else 0)

    def inserted(self, *, quoted: bool) -> Value:
        """As an expansion inside or outside quotes inserts it."""
        return Value(tuple(piece.tagged(splits=not quoted, quoted=quoted) for piece in self.pieces))

    def after(self, count: int) -> Value:
        """The value without its first `count` characters, which are known."""
        pieces = []
        for piece in self.pieces:
            if count >= len(piece.text) and piece.known:
                count -= len(piece.text)
                continue
            pieces.append(dataclasses.replace(piece, text=piece.text[count:]) if count else piece)
            count = 0
        return Value(tuple(pieces))


EMPTY: Final = Value()


def text_value(text: str, line: int, *, quoted: bool = False) -> Value:
    """Known text that starts on `line`, one piece a line."""
    parts = text.split("\n")
    ends = [part + "\n" for part in parts[:-1]] + parts[-1:]
    return Value(tuple(Piece(part, line + n, quoted=quoted) for n, part in enumerate(ends) if part))


def hole(shown: str, line: int, causes: Iterable[Cause], *, filled: bool = False, outside: bool = False) -> Value:
    """A value that is not known at all."""
    return Value((Piece(shown, line, causes=frozenset(causes), filled=filled, outside=outside),))


def joined(values: Iterable[Value]) -> Value:
    """The values one after another."""
    pieces: list[Piece] = []
    for value in values:
        pieces.extend(value.pieces)
        if len(pieces) > MAXIMUM_PIECES:
            raise TooLargeError
    return Value(tuple(pieces))


def one_of(values: Iterable[Value], shown: str, line: int, causes: frozenset[Cause]) -> Value:
    """A hole that is one of `values`; without alternatives where they are too many to carry."""
    flat: dict[tuple[str, frozenset[Cause]], Value] = {}
    joint = [causes]
    for value in values:
        for one in _flattened(value):
            flat.setdefault((one.text, one.causes), one)
            if one is not value:
                joint.append(one.causes)
    kept = tuple(flat.values())
    if len(kept) > _MAXIMUM_ALTERNATIVES or sum(len(v.pieces) for v in kept) > _MAXIMUM_ALTERNATIVE_PIECES:
        kept = ()
    charge(_LOOK_WORK * sum(map(len, joint)))
    causes = causes.union(*joint)
    filled = bool(kept) and all(definitely_filled(value) for value in kept)
    return Value((Piece(shown, line, causes=causes, filled=filled, alternatives=kept),))


def _flattened(value: Value) -> tuple[Value, ...]:
    """The alternatives of a value that is nothing else, or the value."""
    if len(value.pieces) == 1 and value.pieces[0].alternatives:
        return value.pieces[0].alternatives
    return (value,)


def definitely_filled(value: Value) -> bool:
    """Whether the value has at least one character whatever its holes hold."""
    return any(piece.filled or (piece.known and piece.text) for piece in value.pieces)


def alike(left: Value, right: Value) -> bool:
    """Whether two values are the same text with the same holes; alternatives are the same if they are one object."""
    if left is right or (left.known and right.known and left.text == right.text):
        return True
    charge(_LOOK_WORK * len(left.pieces))
    return left == right and all(
        one.alternatives is other.alternatives for one, other in zip(left.pieces, right.pieces, strict=True)
    )


def could_equal(left: Value, right: Value) -> bool:
    """Whether two values may be equal for some text of their holes; exact where one side is known."""
    if left.known and right.known:
        return left.text == right.text
    if left.known:
        left, right = right, left
    if not right.known:
        return True
    if len(left.pieces) == 1 and left.pieces[0].alternatives:
        return any(could_equal(one, right) for one in left.pieces[0].alternatives)
    return _could_be(left, right.text)


_WILD: Final = re.compile(r"[*?[]")


def could_match(value: Value, pattern: Value) -> bool:
    """Whether a value that is not known may match a shell pattern, by what both begin with."""
    wanted = ""
    for piece in pattern.pieces:
        mark = None if piece.quoted else _WILD.search(piece.text)
        wanted += piece.text[: mark.start()] if mark else piece.text
        if mark:
            break
    else:
        return could_equal(value, pattern)
    start = ""
    for piece in value.pieces:
        if not piece.known:
            break
        start += piece.text
    charge(_LOOK_WORK + len(start) + len(wanted))
    return start.startswith(wanted) or wanted.startswith(start)


def _could_be(value: Value, text: str) -> bool:
    """Whether the known parts stand in `text` in order, the outer ones at its ends."""
    charge(_LOOK_WORK * len(value.pieces) + len(text))
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
        found = text.find(run, position, end)
        if found < 0:
            return False
        position = found + len(run)
    return True


def split_fields(value: Value) -> list[Value]:
    """The words that a value becomes; a part in quotes keeps a word even when it is empty."""
    words: list[Value] = []
    current: list[Piece] = []
    open_word = False
    for piece in value.pieces:
        if not piece.splits or not piece.known:
            open_word = True
            current.append(piece)
            continue
        for number, part in enumerate(_BLANKS.split(piece.text)):
            if number % 2:  # white space
                if open_word:
                    words.append(Value(tuple(current)))
                current, open_word = [], False
            elif part:
                current.append(dataclasses.replace(piece, text=part))
                open_word = True
    if open_word:
        words.append(Value(tuple(current)))
    return words
