"""Arithmetic as in bash: 64 bits, division that truncates, names that stand for their values. Runs no command."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from simulator.budget import charge

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|[0-9]+(?:#[0-9a-zA-Z@_]+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator><<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>!~&|^?:=(),]))",
    re.ASCII,
)
_BINARY: Final[tuple[tuple[str, ...], ...]] = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<=", ">=", "<", ">"),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("**",),
)
_ASSIGNMENTS: Final = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
_MAXIMUM_TOKENS: Final = 2000
_MAXIMUM_DEPTH: Final = 60
_TOKEN_WORK: Final = 800
"""Units of work of one token, which each level of precedence examines."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"

Lookup = Callable[[str], int]
"""Returns the value of a name; may raise."""
Assign = Callable[[str, int], None]


class ArithmeticProblemError(Exception):
    """An invalid expression."""


def wrapped(number: int) -> int:
    """Return `number` as a signed 64-bit integer."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def evaluate(text: str, lookup: Lookup, assign: Assign | None = None) -> int:
    """Return the value of an expanded expression. Raises ArithmeticProblemError, and the errors of `lookup`."""
    if not text.strip():
        return 0
    parser = _Parser(_tokens(text), lookup, assign)
    value = parser.comma()
    if parser.peek():
        raise ArithmeticProblemError(f"'{parser.peek()[:20]}' is not expected here")
    return value


def whole_number(text: str) -> int:
    """Return a constant's value: decimal, octal with a leading 0, hexadecimal, or `base#digits`."""
    if len(text) > 80:
        raise ArithmeticProblemError("number too long")
    try:
        if "#" in text:
            base, digits = text.split("#", 1)
            return wrapped(_in_base(digits, int(base)))
        if text[:2] in ("0x", "0X"):
            return wrapped(int(text, 16))
        return wrapped(int(text, 8) if len(text) > 1 and text[0] == "0" else int(text))
    except ValueError as error:
        raise ArithmeticProblemError(f"'{text}' is no number") from error


def _in_base(digits: str, base: int) -> int:
    if not 2 <= base <= 64:
        raise ArithmeticProblemError(f"base {base} must be from 2 to 64")
    value = 0
    for digit in digits.lower() if base <= 36 else digits:
        place = _DIGITS.index(digit)
        if place >= base:
            raise ArithmeticProblemError(f"'{digit}' is no digit in base {base}")
        value = value * base + place
    return value


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return kind and text of each token."""
    tokens: list[tuple[str, str]] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise ArithmeticProblemError(f"'{text[position : position + 20].strip()}' is not arithmetic")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
        if len(tokens) > _MAXIMUM_TOKENS:
            raise ArithmeticProblemError("expression too long")
    charge(_TOKEN_WORK * len(tokens) + len(text))
    return tokens


class _Parser:
    """Recursive-descent parser; `live` is off in an operand that a short circuit skips."""

    def __init__(self, tokens: list[tuple[str, str]], lookup: Lookup, assign: Assign | None) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._live = True
        self._lookup = lookup
        self._assign = assign

    def peek(self) -> str:
        """Return the text of the next token; empty at the end."""
        return self._tokens[self._position][1] if self._position < len(self._tokens) else ""

    def comma(self) -> int:
        """Return the value of the last expression of a list."""
        value = self._assignment()
        while self._take(","):
            value = self._assignment()
        return value

    def _take(self, text: str) -> bool:
        if self.peek() == text:
            self._position += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise ArithmeticProblemError(f"'{text}' is missing")

    def _assignment(self) -> int:
        self._depth += 1
        if self._depth > _MAXIMUM_DEPTH:
            raise ArithmeticProblemError("nested too deep")
        try:
            kind, name = self._tokens[self._position] if self.peek() else ("", "")
            following = self._tokens[self._position + 1][1] if self._position + 1 < len(self._tokens) else ""
            if kind == "name" and following in _ASSIGNMENTS:
                self._position += 2
                right = self._assignment()
                if following != "=":
                    right = self._apply(following[:-1], self._name(name), right)
                self._store(name, right)
                return right
            return self._ternary()
        finally:
            self._depth -= 1

    def _ternary(self) -> int:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        yes = self._skipping(self._assignment, skip=not condition)
        self._expect(":")
        no = self._skipping(self._assignment, skip=bool(condition))
        return yes if condition else no

    def _skipping(self, parse: Callable[[], int], *, skip: bool) -> int:
        was = self._live
        self._live = was and not skip
        try:
            return parse()
        finally:
            self._live = was

    def _binary(self, level: int) -> int:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while (operator := self.peek()) in _BINARY[level]:
            self._position += 1
            if operator == "**":
                self._depth += 1
                if self._depth > _MAXIMUM_DEPTH:
                    raise ArithmeticProblemError("nested too deep")
                left = self._apply(operator, left, self._binary(level))
                self._depth -= 1
            elif operator in ("&&", "||"):
                right = self._skipping(lambda: self._binary(level + 1), skip=bool(left) == (operator == "||"))
                left = int(bool(left) and bool(right)) if operator == "&&" else int(bool(left) or bool(right))
            else:
                left = self._apply(operator, left, self._binary(level + 1))
        return left

    def _apply(self, operator: str, left: int, right: int) -> int:
        if not self._live:
            return 0
        if operator in ("/", "%") and right == 0:
            raise ArithmeticProblemError("division by 0")
        if operator == "**":
            if right < 0:
                raise ArithmeticProblemError("exponent less than 0")
            return wrapped(pow(left, right, 1 << 64))
        return wrapped(int(_OPERATIONS[operator](left, right)))

    def _unary(self) -> int:
        self._depth += 1
        if self._depth > _MAXIMUM_DEPTH:
            raise ArithmeticProblemError("nested too deep")
        try:
            for operator in ("++", "--"):
                if self._take(operator):
                    return self._stepped(operator, after=False)
            for operator in ("-", "+", "!", "~"):
                if self._take(operator):
                    value = self._unary()
                    return wrapped({"-": -value, "+": value, "!": int(not value), "~": ~value}[operator])
            return self._primary()
        finally:
            self._depth -= 1

    def _stepped(self, operator: str, *, after: bool) -> int:
        kind, name = self._tokens[self._position] if self.peek() else ("", "")
        if kind != "name":
            raise ArithmeticProblemError(f"'{operator}' needs a name")
        self._position += 1
        old = self._name(name)
        new = wrapped(old + (1 if operator == "++" else -1))
        self._store(name, new)
        return old if after else new

    def _primary(self) -> int:
        if self._take("("):
            value = self.comma()
            self._expect(")")
            return value
        if not self.peek():
            raise ArithmeticProblemError("a value is missing")
        kind, text = self._tokens[self._position]
        if kind == "number":
            self._position += 1
            return whole_number(text)
        if kind != "name":
            raise ArithmeticProblemError(f"'{text}' is not expected here")
        following = self._tokens[self._position + 1][1] if self._position + 1 < len(self._tokens) else ""
        if following in ("++", "--"):
            value = self._stepped(following, after=True)
            self._position += 1
            return value
        self._position += 1
        return self._name(text)

    def _name(self, name: str) -> int:
        return self._lookup(name) if self._live else 0

    def _store(self, name: str, value: int) -> None:
        if self._live and self._assign is not None:
            self._assign(name, value)


def _divided(left: int, right: int) -> int:
    """Return the quotient, truncated towards zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<<": lambda a, b: a << (b % 64),
    ">>": lambda a, b: a >> (b % 64),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
}
