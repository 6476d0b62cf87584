"""Respelling of bash that the parser's grammar does not know, in the same number of bytes.

The parser takes from the new spelling only where words, expansions and statements begin and end; their content is read
from the script itself. Used only where the script does not parse as written.
"""

from __future__ import annotations

import re
from typing import Final

from simulator.budget import charge

_WORK: Final = 30
"""Units of work of one byte."""
_ENDS: Final = re.compile(rb"(?<![\w$-])(fi|done|esac|\})[ \t](?=[ \t]*(?:fi|done|esac|elif|else|\})(?![\w-]))")
"""The end of a statement directly after another's: `fi done`."""
_BASE: Final = re.compile(rb"(?<=[\s(+*/%-])(\d{1,2})#(?=\$)")
"""A variable number with a base: `10#$X`."""
_PART: Final = re.compile(rb"\$\{(?:[A-Za-z_]\w*(?:\[[@*]\])?|[@*]):(?![-=+?])(?=[^}\n]{0,200}\$)")
"""A substring or slice with variable bounds: `${X:$N+1}`, `${A[@]:$N:2}`."""
_ARITHMETIC: Final = re.compile(rb"\$\(\(")
_HOLE: Final = re.compile(rb"[\xf3\xf4][\x80-\xbf]{3}")
"""A private character of four bytes, which stands for a value that is not known."""
_REMARK: Final = re.compile(rb"(?<=[ \t])`#[^`\n]*`(?=[ \t\\\n]|\Z)")
"""A comment within a command."""
_DEFAULT: Final = re.compile(rb"\$\{[A-Za-z_]\w*:?[-=+]")
"""An expansion with a default."""
_LONGEST: Final = 4000
"""Most bytes of a default that are examined."""


def respelled(data: bytes) -> bytes:
    """Return a script in the grammar's spelling: the same number of bytes, each expansion at its place."""
    charge(_WORK * len(data))
    text = bytearray(_ENDS.sub(rb"\1;", _BASE.sub(rb"\1+", data)))
    for match in _PART.finditer(data):
        end = data.find(b"}", match.end(), match.end() + _LONGEST)
        _blank(text, match.end(), end, b"${#")
    for default in _DEFAULT.finditer(data):
        _plain_default(text, default.start(), default.end())
    for opening in _ARITHMETIC.finditer(data) if _HOLE.search(data) else ():
        end = data.find(b"))", opening.end(), opening.end() + _LONGEST)
        text[opening.end() : end] = _HOLE.sub(b"____", text[opening.end() : end])
    return bytes(text)


def without_remarks(data: bytes) -> bytes:
    """Return a script with blanks for comments within commands, which stand in backquotes and print nothing."""
    return _REMARK.sub(lambda match: b" " * len(match[0]), data) if b"`#" in data else data


def _blank(text: bytearray, start: int, end: int, marks: bytes) -> None:
    """Replace each of the marks by a character without meaning."""
    for place in range(start, end):
        if text[place] in marks:
            text[place] = ord("_")


def _plain_default(text: bytearray, opening: int, start: int) -> None:
    """Replace the marks of nested arithmetic, lists and JSON in a default."""
    quoted = text[:opening].rfind(b'"') > text[:opening].rfind(b"\n")
    place, depth = start, 0
    while place < min(len(text), start + _LONGEST):
        mark = text[place : place + 3]
        if mark == b"$((":
            place = _plain_arithmetic(text, place)
            continue
        if mark[:1] == b"\\":
            if quoted and mark[1:2] == b'"':
                text[place : place + 2] = b"__"
            place += 2
            continue
        if mark[:2] == b"${":
            depth += 1
            place += 2
            continue
        if mark[:1] == b"}":
            if depth == 0:
                return
            depth -= 1
        elif mark[:1] in b"[]{":
            text[place] = ord("_")
        elif mark[:1] == b"\n":
            return
        place += 1


def _plain_arithmetic(text: bytearray, start: int) -> int:
    """Replace the marks inside `$(( ))`; return the place after it."""
    depth, place = 0, start + 3
    while place < min(len(text), start + _LONGEST) and text[place] != ord("\n"):
        if text[place] == ord("("):
            depth += 1
        elif text[place] == ord(")"):
            if depth == 0:
                break
            depth -= 1
        place += 1
    _blank(text, start + 3, place, b"()<>&|;*?!~^%")
    return place + 2
