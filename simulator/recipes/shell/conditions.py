"""Tests in `[ ]` and `[[ ]]`, which are true, false or undecided before the run. Runs nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.recipes.shell.machine import Machine
from simulator.recipes.shell.patterns import matches
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.state import is_outside
from simulator.recipes.shell.values import EMPTY, Cause, Value, could_equal, could_match, filled, hole, joined
from simulator.recipes.shell.words import Words

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMUM_EXPRESSION: Final = 2000
_EXPRESSION_MEMORY: Final = 4 << 20
"""Most bytes of a compiled regular expression; larger ones are not read."""

_EXPRESSION_WORK: Final = 100_000
"""Units of work of compiling a regular expression; each of its characters adds a hundredth."""

Truth = bool | frozenset[Cause]
"""Whether a test holds, or what that depends on."""

_INNER: Final = frozenset({"binary_expression", "unary_expression", "parenthesized_expression", "negated_expression"})
_UNARY: Final = frozenset(f"-{letter}" for letter in "abcdefghknoprstuvwxzGLNOS")
_NUMERIC: Final = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
_SIGNS: Final = ("--", "-", "++", "+", "~")
"""Signs that the parser takes for operators at the start of a word."""
_BINARY: Final = frozenset({"=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef", *_NUMERIC})


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


def either(left: Truth, right: Truth) -> Truth:
    """Return whether at least one holds."""
    return negated(both(negated(left), negated(right)))


def test_truth(machine: Machine, source: Source, node: Node) -> Truth:
    """Return the truth of a `test_command` node."""
    line = source.line(node.start_byte)
    opening = source.raw(node)[:2]
    if opening == "((":
        number = Words(machine, source).arithmetic(node, line)
        return number.text != "0" if number.known else number.causes
    double = opening == "[["
    words = Words(machine, source)
    tokens: list[Value] = []
    end = -1
    for leaf in _leaves(node):
        value = _pattern(source, leaf) if leaf.type == "regex" else words.pattern(leaf)
        is_part = leaf.is_named or source.raw(leaf) in _SIGNS
        before, end = end, leaf.end_byte if is_part else -1
        if is_part and leaf.start_byte == before:  # `*"a"*` and `--tp` are one word
            tokens[-1] = joined([tokens[-1], value])
            continue
        tokens += [value if value.pieces else EMPTY] if double else words.split(value, line)
    return Test(machine, words, tokens, line, double=double).truth()


def _pattern(source: Source, node: Node) -> Value:
    """Return the pattern of `=~`, with its backslashes."""
    raw = source.raw(node)
    plain = not re.search(r"""["'`]|[$][\w{(@]""", raw)
    pieces = source.pieces(node.start_byte, node.end_byte)
    return Value(tuple(pieces)) if plain else hole(raw, source.line(node.start_byte), [Cause(0, raw[:80])])


def _leaves(node: Node) -> list[Node]:
    """Return the operands and operators of a test in order, without brackets."""
    stack = list(reversed(node.children[1:-1]))
    leaves = []
    while stack:
        child = stack.pop()
        if child.type in _INNER:
            stack.extend(reversed(child.children))
        elif child.type != "comment":
            leaves.append(child)
    return leaves


class Test:
    """The words of one test, evaluated by the rules of `test`; a malformed one fails as it does in the shell."""

    def __init__(self, machine: Machine, words: Words, tokens: list[Value], line: int, *, double: bool) -> None:
        self._machine = machine
        self._words = words
        self._tokens = tokens
        self._line = line
        self._double = double
        self._position = 0

    def truth(self) -> Truth:
        """Return the truth of the whole test."""
        if not self._tokens:
            return False
        result = self._any()
        return result if self._position == len(self._tokens) else False

    def _peek(self, ahead: int = 0) -> str:
        place = self._position + ahead
        return self._tokens[place].text if place < len(self._tokens) else ""

    def _left(self) -> int:
        return len(self._tokens) - self._position

    def _any(self) -> Truth:
        result = self._all()
        while self._left() > 1 and self._peek() in ("-o", "||"):
            self._position += 1
            result = either(result, self._all())
        return result

    def _all(self) -> Truth:
        result = self._primary()
        while self._left() > 1 and self._peek() in ("-a", "&&"):
            self._position += 1
            result = both(result, self._primary())
        return result

    def _primary(self) -> Truth:
        if self._left() == 0:
            return False
        self._machine.step(self._line)
        if self._left() >= 3 and self._peek(1) in _BINARY:
            left, operator, right = self._tokens[self._position], self._peek(1), self._tokens[self._position + 2]
            self._position += 3
            return self._compared(left, operator, right)
        text = self._peek()
        if text == "!" and self._left() > 1:
            self._position += 1
            return negated(self._primary())
        if text == "(" and self._left() > 1:
            self._position += 1
            result = self._any()
            if self._peek() == ")":
                self._position += 1
            return result
        if text in _UNARY and self._left() > 1:
            operand = self._tokens[self._position + 1]
            self._position += 2
            return self._unary(text, operand)
        self._position += 1
        return self._filled(self._tokens[self._position - 1])

    def _filled(self, value: Value) -> Truth:
        if is_outside(value):
            self._machine.assume_unset(value)
            return False
        is_filled = filled(value)
        return value.causes if is_filled is None else is_filled

    def _unary(self, operator: str, operand: Value) -> Truth:
        if operator == "-z":
            return negated(self._filled(operand))
        if operator == "-n":
            return self._filled(operand)
        if operator == "-v" and operand.known:
            content = self._machine.lookup(operand.text, self._line)
            if isinstance(content, Value) and any(piece.alternatives for piece in content.pieces):
                return content.causes  # set on some paths
            return not self._machine.unset(operand.text, self._line)
        return self._asked(f"{operator} {operand.text}")

    def _asked(self, name: str) -> Truth:
        """Return the truth of a test of files and the like, which only the user's settings can decide."""
        name = " ".join(name.split())[:80]
        value = self._machine.preset(name, self._line)
        return frozenset({Cause(self._line, name)}) if value is None else value.text.lower() in ("1", "true", "yes")

    def _compared(self, left: Value, operator: str, right: Value) -> Truth:
        causes = left.causes | right.causes
        if operator in _NUMERIC:
            if causes:
                return causes
            return self._ordered(left, operator, right)
        if operator in ("=", "==", "!="):
            equal = self._equal(left, right)
            return negated(equal) if operator == "!=" else equal
        if operator == "=~" and not causes and (matched := _matched(left.text, right)) is not None:
            return matched
        if operator in ("<", ">") and not causes:
            return (left.text < right.text) == (operator == "<") and left.text != right.text
        return causes or self._asked(f"{left.text} {operator} {right.text}")

    def _ordered(self, left: Value, operator: str, right: Value) -> Truth:
        """Compare numbers: decimal ones in `[ ]`, where other text is an error; arithmetic in `[[ ]]`."""
        if not self._double:
            texts = [left.text.strip(), right.text.strip()]
            decimal = all(re.fullmatch(r"[-+]?\d{1,18}", text, re.ASCII) for text in texts)
            return decimal and bool(_NUMERIC[operator](*map(int, texts)))
        first, second = (self._words.number_or_causes(value, self._line) for value in (left, right))
        if isinstance(first, int) and isinstance(second, int):
            return bool(_NUMERIC[operator](first, second))
        causes = frozenset[Cause]().union(*(part for part in (first, second) if isinstance(part, frozenset)))
        return causes or False

    def _equal(self, left: Value, right: Value) -> Truth:
        causes = left.causes | right.causes
        if right.known and right.text and self._machine.leaves_out(left):
            self._machine.assume_unset(left)
            return False
        if not self._double or not right.known:
            if not causes:
                return left.text == right.text
            return causes if could_equal(left, right) else False
        if left.known:
            matched = matches(left.text, right, self._machine.file)
            return self._asked(f"{left.text} == {right.text}") if matched is None else matched
        return causes if could_match(left, right) else False


def _matched(text: str, expression: Value) -> bool | None:
    """Whether a text matches a regular expression, in linear time; None for an expression that is not read."""
    pattern = "".join(re.escape(piece.text) if piece.quoted else piece.text for piece in expression.pieces)
    if len(pattern) > _MAXIMUM_EXPRESSION:
        return None
    import re2  # noqa: PLC0415  only a script with `=~` waits for it

    options = re2.Options()
    options.posix_syntax = True
    options.never_capture = True
    options.one_line = True
    options.dot_nl = True
    options.log_errors = False
    options.max_mem = _EXPRESSION_MEMORY
    charge(_EXPRESSION_WORK + 1000 * len(pattern) + 10 * len(text))
    try:
        return re2.compile(pattern, options).search(text) is not None
    except (re2.error, UnicodeError):
        return None
