"""Arithmetic as in bash: signed 64 bits, truncating division; `evaluate("N / 8", {"N": 32}.__getitem__)` is 4."""

from __future__ import annotations

import operator
import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from simulator.budget import charge

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|[0-9]+(?:#[0-9a-zA-Z]+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator><<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>!~&|^?:=(),]))",
    re.ASCII,
)
_COMMA, _CHOICE, _POWER = 0, 1, 12
_LEVELS: Final = {
    sign: level
    for level, signs in enumerate(
        (", ", "?", "||", "&&", "|", "^", "&", "== !=", "<= >= < >", "<< >>", "+ -", "* / %", "**")
    )
    for sign in signs.split()
}  # how strongly each operator binds
_ASSIGNMENTS: Final = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
_MAXIMUM_TOKENS: Final = 2000
_MAXIMUM_DEPTH: Final = 60
_TOKEN_WORK: Final = 800

Lookup = Callable[[str], int]
"""Returns the value of a name; may raise."""
Assign = Callable[[str, int], None]


class ArithmeticProblemError(Exception):
    """An invalid expression."""


def evaluate(text: str, lookup: Lookup, assign: Assign | None = None) -> int:
    """Return the value of an expanded expression. Raises ArithmeticProblemError, and the errors of `lookup`."""
    if not text.strip():
        return 0
    parser = _Parser(_tokens(text), lookup, assign)
    value = parser.expression(_COMMA)
    if parser.peek():
        raise ArithmeticProblemError(f"'{parser.peek()[:20]}' is not expected here")
    return value


def _wrapped(number: int) -> int:
    """Return `number` as a signed 64-bit integer."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _number(text: str) -> int:
    """Return a constant's value: decimal, octal with a leading 0, hexadecimal, or `base#digits` up to base 36."""
    if len(text) > 80:
        raise ArithmeticProblemError("number too long")
    base, mark, digits = text.rpartition("#")
    try:
        if mark:
            return _wrapped(int(digits, int(base) or 1))
        if text[:2] in ("0x", "0X"):
            return _wrapped(int(text, 16))
        return _wrapped(int(text, 8) if len(text) > 1 and text[0] == "0" else int(text))
    except ValueError as error:
        raise ArithmeticProblemError(f"'{text}' is no number") from error


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
    """Parser by precedence; `live` is off in an operand that a short circuit skips."""

    def __init__(self, tokens: Iterable[tuple[str, str]], lookup: Lookup, assign: Assign | None) -> None:
        self._tokens = deque(tokens)
        self._depth = 0
        self._live = True
        self._lookup = lookup
        self._assign = assign

    def peek(self, ahead: int = 0) -> str:
        """Return the text of a coming token; empty at the end."""
        return self._tokens[ahead][1] if ahead < len(self._tokens) else ""

    def expression(self, lowest: int) -> int:
        """Return the value of an expression of operators that bind at least as strongly as `lowest`."""
        self._depth += 1
        if self._depth > _MAXIMUM_DEPTH:
            raise ArithmeticProblemError("nested too deep")
        named = bool(self._tokens) and self._tokens[0][0] == "name"
        assigns = named and lowest <= _CHOICE and self.peek(1) in _ASSIGNMENTS
        left = self._assigned() if assigns else self._operand()
        while (level := _LEVELS.get(sign := self.peek(), -1)) >= lowest:
            self._tokens.popleft()
            left = self._binary(left, sign, level)
        self._depth -= 1
        return left

    def _binary(self, left: int, sign: str, level: int) -> int:
        """Return the value of an operator whose left operand is read."""
        if sign == "?":
            yes = self._skipping(partial(self.expression, _CHOICE), skip=not left)
            self._expect(":")
            no = self._skipping(partial(self.expression, _CHOICE), skip=bool(left))
            return yes if left else no
        after = partial(self.expression, level if level == _POWER else level + 1)
        if sign not in ("&&", "||"):
            return self._applied(sign, left, after())
        right = self._skipping(after, skip=bool(left) == (sign == "||"))
        return int(bool(left) and bool(right)) if sign == "&&" else int(bool(left) or bool(right))

    def _assigned(self) -> int:
        """Return the value of `N = 3` or `N += 3`."""
        name, sign = self._tokens.popleft()[1], self._tokens.popleft()[1]
        right = self.expression(_CHOICE)
        if sign != "=":
            right = self._applied(sign[:-1], self._value(name), right)
        self._store(name, right)
        return right

    def _operand(self) -> int:
        """Return the value of a number, a name, an expression in parentheses, or one of these behind signs."""
        if not self._tokens:
            raise ArithmeticProblemError("a value is missing")
        kind, sign = self._tokens.popleft()
        if kind == "number":
            return _number(sign)
        if kind == "name":
            return (
                self._stepped(sign, self._tokens.popleft()[1], after=True)
                if self.peek() in ("++", "--")
                else self._value(sign)
            )
        if sign == "(":
            value = self.expression(_COMMA)
            self._expect(")")
            return value
        if sign in ("++", "--") and self._tokens and self._tokens[0][0] == "name":
            return self._stepped(self._tokens.popleft()[1], sign, after=False)
        if sign not in ("-", "+", "!", "~"):
            raise ArithmeticProblemError(f"'{sign}' is not expected here")
        value = self.expression(len(_LEVELS))
        return _wrapped({"-": -value, "+": value, "!": int(not value), "~": ~value}[sign])

    def _stepped(self, name: str, sign: str, *, after: bool) -> int:
        """Return the value of `N++` or `++N`."""
        old = self._value(name)
        new = _wrapped(old + (1 if sign == "++" else -1))
        self._store(name, new)
        return old if after else new

    def _expect(self, text: str) -> None:
        if self.peek() != text:
            raise ArithmeticProblemError(f"'{text}' is missing")
        self._tokens.popleft()

    def _skipping(self, parse: Callable[[], int], *, skip: bool) -> int:
        """Return the value of an operand, of which nothing is looked up or set where it is skipped."""
        before = self._live
        self._live = before and not skip
        value = parse()
        self._live = before
        return value

    def _applied(self, sign: str, left: int, right: int) -> int:
        if not self._live:
            return 0
        if sign in ("/", "%") and right == 0:
            raise ArithmeticProblemError("division by 0")
        if sign == "**" and right < 0:
            raise ArithmeticProblemError("exponent less than 0")
        return _wrapped(int(_OPERATIONS[sign](left, right)))

    def _value(self, name: str) -> int:
        return self._lookup(name) if self._live else 0

    def _store(self, name: str, value: int) -> None:
        if self._live and self._assign is not None:
            self._assign(name, value)


def _divided(left: int, right: int) -> int:
    """Return the quotient, truncated towards zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    ",": lambda _a, b: b,
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "<<": lambda a, b: a << (b % 64),
    ">>": lambda a, b: a >> (b % 64),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
    "**": lambda a, b: pow(a, b, 1 << 64),
}
