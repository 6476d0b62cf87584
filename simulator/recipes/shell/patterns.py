"""Shell patterns: `*`, `?` and `[...]` in `case`, `[[ ]]` and `${X%...}`. Quoted parts are literal."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Final

from simulator.budget import charge
from simulator.errors import InputError
from simulator.recipes.shell.values import Piece, Value

_WORK: Final = 500
"""Units of work of compiling one character of a pattern."""
_MAXIMUM_PATTERN: Final = 200
_MAXIMUM_TEXT: Final = 4096
_CLASS: Final = re.compile(r"\[:(\w+):\]")
_CLASSES: Final = {
    "digit": "0-9",
    "alpha": "A-Za-z",
    "alnum": "0-9A-Za-z",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9A-Fa-f",
    "space": " \t\n\r\f\v",
    "blank": " \t",
}
_CASES: Final[dict[str, Callable[[str], str]]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}


def _spelled(pattern: Value) -> str | None:
    """Return a pattern as `fnmatch` spells it; None for extended ones and for others that are not read."""
    plain = "".join(piece.text for piece in pattern.pieces if not piece.quoted)
    literal = "".join(piece.text for piece in pattern.pieces if piece.quoted)
    classes = _CLASS.findall(plain)
    if re.search(r"[@?*+!]\(", plain) or not _CLASSES.keys() >= set(classes):
        return None
    if "[" in plain and re.search(r"[]\[*?!^-]", literal):
        return None
    shown = "".join(
        re.sub(r"([*?[])", r"[\1]", piece.text) if piece.quoted else piece.text.replace("[^", "[!")
        for piece in pattern.pieces
    )
    return _CLASS.sub(lambda match: _CLASSES[match[1]], shown) if classes else shown


def matches(text: str, pattern: Value, file: str) -> bool | None:
    """Whether a shell pattern matches; None for one that is not read. Raises InputError for one that is too long."""
    shown = _spelled(pattern)
    if shown is None:
        return None
    if len(shown) > _MAXIMUM_PATTERN:
        raise InputError(f"{file}:{pattern.line}: a pattern of more than {_MAXIMUM_PATTERN} characters")
    return _compiled(shown, len(text)).match(text) is not None


def _compiled(shown: str, characters: int, start: str = "", end: str = r"\Z") -> re.Pattern[str]:
    """Return the expression of a shell pattern; `characters` are those of all texts to be matched, and charged for.

    Stars do not multiply the work: the text after a star is located once.
    """
    charge(_WORK * (10 + len(shown)) + characters * (1 + len(shown) // 4))
    return re.compile(start + fnmatch.translate(shown).removesuffix(r"\Z") + end, re.DOTALL)


def edited(text: str, operator: str, operand: Value) -> str | None:
    """Return the text of `${X<operator><operand>}`; None for an edit that is not read."""
    if len(text) > _MAXIMUM_TEXT or len(operand.text) > _MAXIMUM_PATTERN:
        return None
    if operator in _CASES:
        return None if operand.text else _CASES[operator](text)
    if operator == ":":
        return _substring(text, operand.text)
    if operator in ("#", "##", "%", "%%"):
        return _trimmed(text, operator, operand)
    return _replaced(text, operator, operand) if operator[:1] == "/" else None


def _substring(text: str, operand: str) -> str | None:
    match = re.fullmatch(r"(-?\d{1,6})(?::(-?\d{1,6}))?", operand, re.ASCII)
    if match is None:
        return None
    start = int(match[1]) + (len(text) if match[1][0] == "-" else 0)
    size = len(text) if match[2] is None else int(match[2])
    return None if start < 0 else text[start:size] if size < 0 else text[start : start + size]


def _trimmed(text: str, operator: str, operand: Value) -> str | None:
    """Return the text without its shortest or longest matching prefix or suffix."""
    shown = _spelled(operand)
    if shown is None:
        return None
    match = _compiled(shown, len(text) * (len(text) + 1) // 2).match
    sizes = range(len(text) + 1) if len(operator) == 1 else range(len(text), -1, -1)
    for size in sizes:
        part = text[:size] if operator[0] == "#" else text[len(text) - size :]
        if match(part):
            return text[size:] if operator[0] == "#" else text[: len(text) - size]
    return text


def _replaced(text: str, operator: str, operand: Value) -> str | None:
    """Return the text with other text in the place of what matches; None for a pattern of any length."""
    old, new = _halves(operand)
    shown = _spelled(old)
    # bash 5.2 puts the matched text for `&`; older versions do not.
    if shown is None or "*" in shown.replace("[*]", "") or any("&" in p.text for p in new.pieces if not p.quoted):
        return None
    if not shown and operator in ("/", "//"):
        return None
    start, end = (r"\A" if operator == "/#" else ""), (r"\Z" if operator == "/%" else "")
    expression = _compiled(shown, len(text), start, end)
    return expression.sub(lambda _match: new.text, text, count=0 if operator == "//" else 1)


def _halves(operand: Value) -> tuple[Value, Value]:
    """Return pattern and replacement: what stands before and behind the first bare `/`."""
    for number, piece in enumerate(operand.pieces):
        if not piece.quoted and not piece.splits and "/" in piece.text:
            old, _, new = piece.text.partition("/")
            return (
                Value((*operand.pieces[:number], Piece(old, piece.line))),
                Value((Piece(new, piece.line), *operand.pieces[number + 1 :])),
            )
    return operand, Value()
