"""Backslashes in shell text, outside quotes, inside them and in `$'...'`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from simulator.budget import charge
from simulator.recipes.shell.values import Piece

_ESCAPE: Final = re.compile(r"\\(.?)", re.DOTALL)
_ANSI: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|([abeEfnrtv\\'\"?]))"
)
_IN_QUOTES: Final = frozenset('$`"\\')
_ESCAPES: Final = {"a": "\a", "b": "\b", "e": "\33", "E": "\33", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def resolved(piece: Piece, *, quoted: bool) -> Iterator[Piece]:
    """Yield text with backslashes resolved; one at the end of a line joins it to the next."""

    def sign(match: re.Match[str]) -> str:
        if match[1] == "\n":
            return ""
        return match[0] if match[1] not in _IN_QUOTES else match[1]

    charge(20 * len(piece.text))
    if quoted:
        parts = [_ESCAPE.sub(sign, piece.text)]
    else:
        parts = ["" if part == "\n" else part for part in _ESCAPE.split(piece.text)]
    for number, part in enumerate(parts):
        if part:
            yield dataclasses.replace(piece, text=part, quoted=quoted or number % 2 == 1)


def ansi(text: str) -> str:
    """Return the text of `$'...'`."""
    return _ANSI.sub(_ansi, text)


def _ansi(match: re.Match[str]) -> str:
    """Return the character of an escape in `$'...'`."""
    code = int(match[1] or match[2] or match[3] or "0", 16) or int(match[4] or "0", 8)
    return chr(min(code, 0xEFFFF)) if code else _ESCAPES.get(match[5], match[5] or "")
