"""Brace expansion: `{1..3}` and `{a,b}`, before all others. Only braces that stand bare in the script expand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final

from simulator.budget import charge
from simulator.errors import InputError
from simulator.recipes.shell.values import Piece, Value

_MOST: Final = 1024
"""Most words of one expansion."""
_DEEPEST: Final = 8
_MARK: Final = 0xF0000
"""First of the private characters that stand for quoted and expanded pieces."""
_SEQUENCE: Final = re.compile(r"(-?\d{1,9}|[A-Za-z])\.\.(-?\d{1,9}|[A-Za-z])(?:\.\.(-?\d{1,6}))?", re.ASCII)


def expanded(value: Value) -> list[Value]:
    """Return the words of a word with braces. Raises InputError for too many, or nested too deep."""
    if not any("{" in piece.text and _is_bare(piece) for piece in value.pieces):
        return [value]
    text = "".join(piece.text if _is_bare(piece) else chr(_MARK + n) for n, piece in enumerate(value.pieces))
    line = value.line
    texts = list(itertools.islice(_texts(text, line, 0), _MOST + 1))
    if len(texts) > _MOST:
        raise InputError(f"line {line}: braces of more than {_MOST} words; not a launch script")
    return [value] if texts == [text] else [_unmarked(part, value, line) for part in texts]


def _is_bare(piece: Piece) -> bool:
    return piece.known and not piece.quoted and not piece.splits


def _unmarked(text: str, value: Value, line: int) -> Value:
    parts = re.split(rf"([{chr(_MARK)}-\U000ffffd])", text)
    pieces = (
        value.pieces[ord(part) - _MARK] if number % 2 else Piece(part, line)
        for number, part in enumerate(parts)
        if part
    )
    return Value(tuple(pieces))


def _texts(text: str, line: int, depth: int) -> Iterator[str]:
    """Yield the texts that a text with braces expands to."""
    charge(10 * len(text))
    if depth > _DEEPEST:
        raise InputError(f"line {line}: braces nested too deep for a launch script")
    start = text.find("{")
    while start >= 0:
        end, commas = _end(text, start)
        inner = text[start + 1 : end]
        choices: Iterator[str] | None = None
        if end > 0 and commas:
            cuts = [start, *commas, end]
            parts = [text[left + 1 : right] for left, right in itertools.pairwise(cuts)]
            choices = (choice for part in parts for choice in _texts(part, line, depth + 1))
        elif end > 0 and (match := _SEQUENCE.fullmatch(inner)):
            choices = _sequence(match)
        if choices is not None:
            behind = list(itertools.islice(_texts(text[end + 1 :], line, depth + 1), _MOST + 1))
            for choice in choices:
                for rest in behind:
                    charge(len(text))
                    yield text[:start] + choice + rest
            return
        start = text.find("{", start + 1)
    yield text


def _end(text: str, start: int) -> tuple[int, list[int]]:
    """Return the place of the brace that closes the one at `start`, -1 without one, and of the commas between them."""
    depth, commas = 0, list[int]()
    charge(len(text) - start)
    for place in range(start, len(text)):
        mark = text[place]
        if mark == "{":
            depth += 1
        elif mark == "}":
            depth -= 1
            if depth == 0:
                return place, commas
        elif mark == "," and depth == 1:
            commas.append(place)
    return -1, commas


def _sequence(match: re.Match[str]) -> Iterator[str] | None:
    """Return the texts of `{1..9..2}` or `{a..e}`; None for a number beside a letter."""
    first, last, step = match.groups()
    if first.isalpha() != last.isalpha():
        return None
    by = max(abs(int(step or 1)), 1)
    start, stop = (ord(first), ord(last)) if first.isalpha() else (int(first), int(last))
    numbers = range(start, stop + 1, by) if start <= stop else range(start, stop - 1, -by)
    if first.isalpha():
        return map(chr, numbers)
    padded = any(re.match(r"-?0\d", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return (f"{number:0{width}d}" for number in numbers)
