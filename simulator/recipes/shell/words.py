"""Expansion of words: quotes, parameters, arithmetic. Commands in `$( )` are never run."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.errors import InputError, UndecidedError
from simulator.recipes.shell import arithmetic
from simulator.recipes.shell.machine import Content, Machine, items_of, words
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.values import (
    EMPTY,
    Cause,
    Piece,
    Value,
    definitely_filled,
    hole,
    joined,
    split_fields,
    text_value,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_EXPANDED: Final = frozenset(
    {
        "string",
        "raw_string",
        "ansi_c_string",
        "translated_string",
        "simple_expansion",
        "expansion",
        "command_substitution",
        "process_substitution",
        "arithmetic_expansion",
    }
)
_BRACED: Final = re.compile(
    r"\$\{(?P<length>#(?=[\w@*]))?(?P<indirect>!)?(?P<name>\w+|[@*#?$!-])(?:\[(?P<index>[^]]*)\])?"
    r"(?P<operator>:[-=+?]|[-=+?]|##|#|%%|%|//|/#|/%|/|\^\^|\^|,,|,|:|@)?",
    re.ASCII,
)
_ESCAPE: Final = re.compile(r"\\(.?)", re.DOTALL)
_SET: Final = re.compile(r"\b([A-Za-z_]\w*+)\s*+(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")
_NODE_WORK: Final = 40
"""Units of work of one syntax node."""
_PATTERN_WORK: Final = 500
"""Units of work of compiling one character of a pattern."""
_BLANK: Final = re.compile(rb"(?:\s|\\\n)*")
_IN_QUOTES: Final = frozenset('$`"\\')
_ESCAPES: Final = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_MAXIMUM_NAME: Final = 80
_MAXIMUM_PATTERN: Final = 200


class _UnknownError(Exception):
    """An arithmetic expression needs an unknown value."""

    def __init__(self, causes: frozenset[Cause]) -> None:
        super().__init__()
        self.causes = causes


class Words:
    """Expansion of the nodes of one source with a machine's variables."""

    def __init__(self, machine: Machine, source: Source) -> None:
        self._machine = machine
        self._source = source

    def fields(self, node: Node) -> list[Value]:
        """Return the words that a node expands to."""
        return split_fields(self.value(node))

    def value(self, node: Node) -> Value:
        """Return the node's expansion as one value, not yet split into words."""
        self._machine.step(self._source.line(node.start_byte))
        return Value(tuple(self._interpolated(node, node.start_byte, node.end_byte, quoted=False)))

    def heredoc(self, node: Node, *, expands: bool) -> Value:
        """Return the text of a here document."""
        if not expands:
            return Value(tuple(self._source.pieces(node.start_byte, node.end_byte, quoted=True)))
        return Value(tuple(self._interpolated(node, node.start_byte, node.end_byte, quoted=True)))

    def _interpolated(self, node: Node, start: int, end: int, *, quoted: bool) -> Iterator[Piece]:
        """Yield the pieces between two bytes of a node: literal text and expansions."""
        for child in _topmost(node, start, end):
            begin = self._begin(child)
            if begin > start:
                yield from self._literal(start, begin, quoted=quoted)
            yield from self._expanded(child, quoted=quoted).pieces
            start = child.end_byte
        if end > start:
            yield from self._literal(start, end, quoted=quoted)

    def _begin(self, node: Node) -> int:
        """Return the first byte of an expansion, after white space that the parser includes."""
        blank = _BLANK.match(self._source.data, node.start_byte, node.end_byte)
        return blank.end() if blank else node.start_byte

    def _literal(self, start: int, end: int, *, quoted: bool) -> Iterator[Piece]:
        for piece in self._source.pieces(start, end, quoted=quoted):
            if not piece.known or "\\" not in piece.text:
                yield piece
                continue
            text = _without_escapes(piece.text, quoted=quoted)
            if text:
                yield dataclasses.replace(piece, text=text)

    def _expanded(self, node: Node, *, quoted: bool) -> Value:  # noqa: PLR0911  one per kind of expansion
        """Return the value of one expansion."""
        kind = node.type
        begin, line = self._begin(node), self._source.line(self._begin(node))
        if kind in ("string", "translated_string"):
            return self._string(node, begin + (2 if kind == "translated_string" else 1), line)
        if kind == "raw_string":
            return Value(
                (*self._source.pieces(begin + 1, node.end_byte - 1, quoted=True), Piece("", line, quoted=True))
            )
        if kind == "ansi_c_string":
            text = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), self._source.text(begin + 2, node.end_byte - 1))
            return text_value(text, line, quoted=True)
        if kind == "arithmetic_expansion" or (kind == "command_substitution" and self._is_arithmetic(node, begin)):
            return self.arithmetic(node, line)
        if kind in ("command_substitution", "process_substitution"):
            value = self._command(node, line)
        elif kind == "simple_expansion":
            name = self._source.text(begin + 1, node.end_byte)
            return self._inserted(self._name(name, line), quoted=quoted, apart=name == "@")
        else:
            return self._braced(node, begin, line, quoted=quoted)
        return value.inserted(quoted=quoted)

    def _string(self, node: Node, start: int, line: int) -> Value:
        """Return text in double quotes; `"$@"` may be no word at all."""
        pieces = list(self._interpolated(node, start, node.end_byte - 1, quoted=True))
        inner = self._source.text(start, node.end_byte - 1)
        if not pieces and re.fullmatch(r"\$@|\$\{(@|\w+\[@\])\}", inner):
            return EMPTY
        return Value((*pieces, Piece("", line, quoted=True)))

    def _is_arithmetic(self, node: Node, begin: int) -> bool:
        """Whether the parser took `$(( ))` for a command, as it does inside `${ }`."""
        raw = self._source.text(begin, node.end_byte)
        return raw.startswith("$((") and raw.endswith("))")

    def _command(self, node: Node, line: int) -> Value:
        """Return the output of a command in `$( )`, from a setting or the script; else a hole."""
        name = " ".join(self._source.node_text(node).split())
        name = name if len(name) <= _MAXIMUM_NAME else name[: _MAXIMUM_NAME - 3] + "..."
        setting = self._machine.preset(name, line)
        return setting or self._machine.capture(self._source, node) or hole(name, line, [Cause(line, name)])

    def _name(self, name: str, line: int) -> Content:
        if name in ("?", "$", "!", "-", "_"):
            return hole(f"${name}", line, [Cause(line, name)])
        return self._machine.lookup(name, line)

    def _inserted(self, content: Content, *, quoted: bool, apart: bool = False) -> Value:
        """Return a variable's content, or all items of a list; `apart` keeps quoted items separate words."""
        if isinstance(content, Value):
            return content.inserted(quoted=quoted)
        if not content:
            return EMPTY
        items = words(tuple(item.inserted(quoted=quoted) for item in content))
        return items if apart or not quoted else items.inserted(quoted=True)

    def _braced(self, node: Node, begin: int, line: int, *, quoted: bool) -> Value:
        """Return the value of `${...}` with its default, substring or replacement."""
        raw = self._source.text(begin, node.end_byte)
        match = _BRACED.match(raw)
        if match is None:
            return hole(raw, line, [Cause(line, raw[:_MAXIMUM_NAME])])
        name, operator = match["name"], match["operator"] or ""
        content = self._name(name, line)
        if match["indirect"] and match["index"] is None:
            content = self._indirect(content, line)
        if match["index"] is not None:
            start = begin + len(raw[: match.start("index")].encode())
            index = Value(tuple(self._interpolated(node, start, start + len(match["index"].encode()), quoted=False)))
            content = self._chosen(name, content, index, keys=bool(match["indirect"]))
        if match["length"]:
            return self._length(content, raw, line)
        operand_start = begin + len(match[0].encode())
        apart = name == "@" or match["index"] == "@"
        if operator and operator[-1] in "-=+?" and operator[0] in ":-=+?":
            return self._defaulted(node, name, content, operator, operand_start, line, quoted=quoted)
        if match.end() != len(raw) - 1 or operator in ("^^", "^", ",,", ","):
            operand = Value(tuple(self._interpolated(node, operand_start, node.end_byte - 1, quoted=False)))
            if isinstance(content, tuple) and operator == ":":
                content = _slice(content, operand, first=int(name == "@"))
            else:
                content = self._edited(self._inserted(content, quoted=quoted), operator, operand, raw, line)
        return self._inserted(content, quoted=quoted, apart=apart)

    def _chosen(self, name: str, content: Content, index: Value, *, keys: bool) -> Content:
        """Return `${X[index]}`, `${X[@]}` or, with `keys`, `${!X[@]}`."""
        if isinstance(content, Value) and not content.known:
            return content
        if index.text not in ("@", "*"):
            return self.element(name, index, index.line)
        items = items_of(content)
        more = self._machine.elements(name)
        if keys:
            return tuple(text_value(key, index.line) for key in (*map(str, range(len(items))), *more))
        return (*items, *more.values())

    def element(self, name: str, key: Value, line: int) -> Value:
        """Return one item of a list; empty where it is not set, a hole where unknown."""
        content = self._machine.lookup(name, line)
        shown = f"${{{name}[{key.text}]}}"[:_MAXIMUM_NAME]
        if not key.known:
            return hole(shown, line, key.causes)
        if isinstance(content, Value) and not content.known:
            return content
        items = items_of(content)
        keyed = self._machine.elements(name)
        if key.text in keyed:
            return keyed[key.text]
        number = self.integer(key, line)
        if number is None:
            return EMPTY if keyed or content is None else hole(shown, line, [Cause(line, shown)])
        inside = -len(items) <= number < len(items)
        return keyed.get(str(number), items[number] if inside else EMPTY)

    def arithmetic_between(self, node: Node, start: int, end: int, line: int) -> Value:
        """Return the value of the arithmetic between two bytes; 1 for an empty text, as in `for ((;;))`."""
        pieces = Value(tuple(self._interpolated(node, start, end, quoted=True)))
        return self.number(pieces, pieces.text.strip(), line) if pieces.text.strip() else text_value("1", line)

    def _indirect(self, content: Content, line: int) -> Content:
        if isinstance(content, Value) and content.known and re.fullmatch(r"[A-Za-z_]\w*", content.text, re.ASCII):
            return self._machine.lookup(content.text, line)
        causes = content.causes if isinstance(content, Value) else frozenset()
        return hole("${!}", line, causes or [Cause(line, "!")])

    def _length(self, content: Content, raw: str, line: int) -> Value:
        if isinstance(content, tuple):
            return text_value(str(len(content)), line)
        if content is not None and not content.known:
            return hole(raw, line, content.causes, filled=True)
        return text_value(str(len(content.text) if content else 0), line)

    def _defaulted(  # noqa: PLR0913, PLR0917  the parts of one expansion
        self, node: Node, name: str, content: Content, operator: str, start: int, line: int, *, quoted: bool
    ) -> Value:
        """Return the value of `${X:-y}` and similar expansions. Raises UndecidedError for `${X:?}` unset."""
        empty = operator[0] == ":" and isinstance(content, Value) and content.known and not content.text
        missing = empty or content == () or (not isinstance(content, tuple) and self._machine.unset(name, line))
        if operator[-1] == "+" and missing:
            return EMPTY
        if operator[-1] == "+" or (missing and operator[-1] in "-="):
            value = Value(tuple(self._interpolated(node, start, node.end_byte - 1, quoted=quoted)))
            value = value if value.pieces else Value((Piece("", line),))
            if operator[-1] == "=":
                self._machine.assign(name, value, line)
            return value.inserted(quoted=True) if quoted else _splitting(value)
        if missing and isinstance(content, Value) and content.pieces and not content.known:
            self._machine.assumed_unset.pop(name, None)
        elif missing:
            raise UndecidedError(
                f"{self._machine.file}:{line}: the script stops here: {name} is not set; --set {name}=VALUE"
            )
        return self._inserted(content, quoted=quoted)

    def _edited(self, value: Value, operator: str, operand: Value, raw: str, line: int) -> Value:
        """Return the value of substring, prefix, suffix, replacement and case operators."""
        if operator == ":":
            operand = self._ends(operand, line)
        causes = value.causes | operand.causes
        if not causes and len(value.text) <= 4096 and len(operand.text) <= _MAXIMUM_PATTERN:
            text = _edited_text(value.text, operator, operand.text)
            if text is not None:
                return text_value(text, value.line or line)
        return hole(raw, line, causes or [Cause(line, raw[:_MAXIMUM_NAME])])

    def _ends(self, operand: Value, line: int) -> Value:
        """Return start and length of a substring, evaluated: `$N+1:2`."""
        plain = re.sub(r"[${}]", "", operand.text)
        if not operand.known or not plain.strip() or "?" in plain:
            return operand
        colon = text_value(":", line)
        parts = [self.number(text_value(part, line), part, line) for part in plain.split(":")[:2]]
        return joined([parts[0], colon, parts[1]] if len(parts) > 1 else parts)

    def arithmetic(self, node: Node, line: int) -> Value:
        """Return the number of `$(( ))` or `(( ))`, or a hole that is some number."""
        raw = self._source.data[node.start_byte : node.end_byte]
        opening = raw.index(b"((") + 2 if b"((" in raw else 0
        pieces = self._interpolated(node, node.start_byte + opening, node.end_byte - 2, quoted=True)
        return self.number(Value(tuple(pieces)), " ".join(self._source.node_text(node).split()), line)

    def number(self, expression: Value, shown: str, line: int) -> Value:
        """Return the value of an arithmetic expression."""
        if expression.known:
            try:
                return text_value(str(self._computed(expression.text, line)), line)
            except _UnknownError as unknown:
                value = hole(shown, line, unknown.causes, filled=True)
        else:
            value = hole(shown, line, expression.causes, filled=True)
        for name in _assigned(expression.text):
            self._machine.assign(name, hole(f"${name}", line, value.causes, filled=True), line)
        return value

    def _computed(self, text: str, line: int) -> int:
        def lookup(name: str, depth: int = 0) -> int:
            content = self._machine.lookup(name, line)
            value = self._inserted(content, quoted=True)
            if not value.known:
                raise _UnknownError(value.causes)
            if depth > MAXIMUM_REFERENCES:
                raise arithmetic.ArithmeticProblemError(f"{name} refers to itself")
            return arithmetic.evaluate(value.text, lambda other: lookup(other, depth + 1))

        def assign(name: str, number: int) -> None:
            self._machine.assign(name, text_value(str(number), line), line)

        try:
            return arithmetic.evaluate(text, lookup, assign)
        except arithmetic.ArithmeticProblemError as problem:
            raise InputError(f"{self._machine.file}:{line}: arithmetic '{text.strip()[:60]}': {problem}") from problem

    def integer(self, value: Value, line: int) -> int | None:
        """Return a number as `-eq` reads it; None for other text."""
        try:
            return self._computed(value.text, line)
        except (InputError, _UnknownError):
            return None


def _assigned(expression: str) -> Iterator[str]:
    """Yield the variables that an arithmetic expression sets."""
    charge(10 * len(expression))
    for match in _SET.finditer(expression):
        yield match[1]


def _splitting(value: Value) -> Value:
    """Return an unquoted default, of which the unquoted parts split."""
    return Value(tuple(p if p.quoted else dataclasses.replace(p, splits=True) for p in value.pieces))


def _slice(items: tuple[Value, ...], operand: Value, *, first: int) -> Content:
    """Return `${A[@]:1:2}`; a hole for bounds that are not plain numbers."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*(?::\s*(\d{1,6})\s*)?", operand.text, re.ASCII)
    if match is None:
        return hole(operand.text, operand.line, operand.causes or [Cause(operand.line, operand.text[:_MAXIMUM_NAME])])
    start = max(int(match[1]) - first, 0)
    return items[start:] if match[2] is None else items[start : start + int(match[2])]


MAXIMUM_REFERENCES: Final = 8
"""Most names that the value of a number may pass through."""


def _topmost(node: Node, start: int, end: int) -> Iterator[Node]:
    """Yield the expansions between two bytes in order, without those inside another."""
    stack = [node]
    while stack:
        top = stack.pop()
        charge(_NODE_WORK)
        inside = top.start_byte >= start and top.end_byte <= end
        if inside and top.type in _EXPANDED:
            yield top
        elif top.end_byte > start and top.start_byte < end:
            stack.extend(reversed(top.children))


def _without_escapes(text: str, *, quoted: bool) -> str:
    """Return text with backslashes resolved; one at the end of a line joins it to the next."""

    def resolved(match: re.Match[str]) -> str:
        if match[1] == "\n":
            return ""
        return match[0] if quoted and match[1] not in _IN_QUOTES else match[1]

    charge(20 * len(text))
    return _ESCAPE.sub(resolved, text)


def matches(text: str, pattern: Value, file: str) -> bool:
    """Whether a shell pattern matches; its quoted parts are literal. Raises InputError for one that is too long."""
    shown = "".join(re.sub(r"([*?[])", r"[\1]", p.text) if p.quoted else p.text for p in pattern.pieces)
    if len(shown) > _MAXIMUM_PATTERN:
        raise InputError(f"{file}:{pattern.line}: a pattern of more than {_MAXIMUM_PATTERN} characters")
    return _compiled(shown, len(text))(text) is not None


def _compiled(shown: str, characters: int) -> Callable[[str], object]:
    """Return the matcher of a shell pattern; `characters` are those of all texts to be matched, and charged for.

    Stars do not multiply the work: the text after a star is located once.
    """
    charge(_PATTERN_WORK * (10 + len(shown)) + characters * (1 + len(shown) // 4))
    return re.compile(fnmatch.translate(shown), re.DOTALL).match


def _edited_text(text: str, operator: str, operand: str) -> str | None:  # noqa: PLR0911  one per operator
    """Return the edited text; None for an edit that is not read."""
    if operator in ("^^", ",,") and not operand:
        return text.upper() if operator == "^^" else text.lower()
    if operator == ":":
        match = re.fullmatch(r"(-?\d{1,6})(?::(-?\d{1,6}))?", operand, re.ASCII)
        if match is None:
            return None
        start = int(match[1]) + (len(text) if match[1][0] == "-" else 0)
        size = len(text) if match[2] is None else int(match[2])
        return None if start < 0 else text[start:size] if size < 0 else text[start : start + size]
    if operator in ("#", "##", "%", "%%"):
        return _trimmed(text, operator, operand)
    if operator in ("/", "//"):
        old, _, new = operand.partition("/")
        if re.search(r"[*?[]", old) or not old:
            return None
        return text.replace(old, new) if operator == "//" else text.replace(old, new, 1)
    return None


def _trimmed(text: str, operator: str, operand: str) -> str:
    """Return the text without its shortest or longest matching prefix or suffix."""
    pattern = _compiled(operand, len(text) * (len(text) + 1) // 2)
    sizes = range(len(text) + 1) if len(operator) == 1 else range(len(text), -1, -1)
    for size in sizes:
        part = text[:size] if operator[0] == "#" else text[len(text) - size :]
        if pattern(part):
            return text[size:] if operator[0] == "#" else text[: len(text) - size]
    return text


def filled(value: Value) -> bool | None:
    """Whether a value has any character; None where that is not known."""
    if definitely_filled(value):
        return True
    return None if not value.known else False
