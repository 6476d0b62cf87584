"""Expansion of words: quotes, parameters, arithmetic. Commands in `$( )` are never run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.errors import InputError, UndecidedError
from simulator.recipes.shell import arithmetic, braces, escapes
from simulator.recipes.shell.machine import Machine
from simulator.recipes.shell.patterns import edited
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.state import Content, items_of, words
from simulator.recipes.shell.values import (
    EMPTY,
    Cause,
    Piece,
    Value,
    filled,
    hole,
    joined,
    one_of,
    open_causes,
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
_DEFAULTS: Final = frozenset([":-", ":=", ":+", ":?", "-", "=", "+", "?"])
_SET: Final = re.compile(r"\b([A-Za-z_]\w*+)\s*+(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")
_NODE_WORK: Final = 40
"""Units of work of one syntax node."""
_BLANK: Final = re.compile(rb"(?:\s|\\\n)*")
_NAMED_BRACE: Final = re.compile(r"\$[A-Za-z_]\w*\{", re.ASCII)
_PLAIN: Final = re.compile(r"[$`\"']")
_JOINED: Final = re.compile(rb"(?:\\\n)*")
"""What stands between two parts of one word: nothing, or ends of lines with a backslash."""
_MAXIMUM_NAME: Final = 80


_ITEM: Final = re.compile(r"(?<!\w)[A-Za-z_]\w*\[")
"""An item of a list in arithmetic, which is not read."""


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
        whole = self.value(node)
        if (node.start_byte, node.end_byte) in self._source.plain and whole.known and "{" not in whole.text:
            return [whole] if whole.pieces else []
        parts = braces.expanded(whole)
        if len(parts) > 1 and _NAMED_BRACE.search(raw := self._source.raw(node)):  # `$X{1,2}` is `$X1 $X2`
            line = self._source.line(node.start_byte)
            return [hole(raw, line, [Cause(line, raw[:_MAXIMUM_NAME])])]
        line = self._source.line(node.start_byte)
        return [field for part in parts for field in self.split(part, line)]

    def split(self, value: Value, line: int) -> list[Value]:
        """Return the words of a value; a hole where branches set IFS to texts that split it otherwise."""
        first, *others = (split_fields(value, separators) for separators in self._machine.separators)
        if all(other == first for other in others):
            return first
        return [hole(value.text, line, [Cause(line, "IFS")]).inserted(quoted=False)]

    def all_fields(self, nodes: Iterable[Node]) -> list[Value]:
        """Return the words of nodes in a row; what nothing or a backslash at a line's end divides is one word."""
        words: list[Value] = []
        end = -1
        for node in nodes:
            fields = self.fields(node)
            if words and fields and end >= 0 and _JOINED.fullmatch(self._source.data, end, self._begin(node)):
                words[-1] = joined([words[-1], fields.pop(0)])
            words += fields
            end = node.end_byte
        return words

    def value(self, node: Node) -> Value:
        """Return the node's expansion as one value, not yet split into words."""
        start, end = node.start_byte, node.end_byte
        if (plain := self._source.plain.get((start, end))) is not None:
            charge(_NODE_WORK)
            return plain
        self._machine.step(self._source.line(start))
        if not node.child_count and node.type not in _EXPANDED:  # a bare word, as most are
            charge(_NODE_WORK)
            plain = self._source.plain[start, end] = Value(tuple(self._literal(start, end, quoted=False)))
            return plain
        return Value(tuple(self._interpolated(node, node.start_byte, node.end_byte, quoted=False)))

    def pattern(self, node: Node) -> Value:
        """Return the expansion of a pattern, which the parser may take for plain text: `*$X*`."""
        return self._reread(self.value(node), node.start_byte, node.end_byte)

    def _reread(self, value: Value, start: int, end: int) -> Value:
        """Return the value of a pattern between two bytes, parsed anew if expansions stand in it as plain text."""
        if not any(
            piece.known and not (piece.quoted or piece.splits) and _PLAIN.search(piece.text) for piece in value.pieces
        ):
            return value
        inner = Source(self._machine.file, Value(tuple(self._source.pieces(start, end))))
        return Words(self._machine, inner).value(inner.root)

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
            yield from escapes.resolved(piece, quoted=quoted)

    def _expanded(self, node: Node, *, quoted: bool) -> Value:  # noqa: PLR0911  one per kind of expansion
        """Return the value of one expansion."""
        kind = node.type
        begin = self._begin(node)
        line = self._source.line(begin)
        if kind in ("string", "translated_string"):
            return self._string(node, begin + (2 if kind == "translated_string" else 1), line)
        if kind == "raw_string" and quoted:  # `"${X:-'a'}"`: plain signs
            raw = self._source.text(begin, node.end_byte)
            return hole(raw, line, [Cause(line, raw)]) if set(raw) & set("$`\\") else text_value(raw, line, quoted=True)
        if kind == "raw_string":
            return Value(
                (*self._source.pieces(begin + 1, node.end_byte - 1, quoted=True), Piece("", line, quoted=True))
            )
        if kind == "ansi_c_string":
            text = escapes.ansi(self._source.text(begin + 2, node.end_byte - 1))
            return joined([text_value(text, line, quoted=True), Value((Piece("", line, quoted=True),))])
        if kind == "arithmetic_expansion" or (kind == "command_substitution" and self._is_arithmetic(node, begin)):
            return self.arithmetic(node, line)
        if kind == "process_substitution":
            name = " ".join(self._source.node_text(node).split())[:_MAXIMUM_NAME]
            value = hole(name, line, [Cause(line, name)], filled=True)
        elif kind == "command_substitution":
            value = self._command(node, line)
        elif kind == "simple_expansion":
            name = self._source.text(begin + 1, node.end_byte)
            content = self._name(name, line)
            self._machine.unbound(name, content, line)
            return self._inserted(self._first(name, content, line), quoted=quoted, apart=name == "@")
        else:
            return self._braced(node, begin, line, quoted=quoted)
        return value.inserted(quoted=quoted)

    def _string(self, node: Node, start: int, line: int) -> Value:
        """Return text in double quotes; `"$@"` may be no word at all."""
        pieces = list(self._interpolated(node, start, node.end_byte - 1, quoted=True))
        inner = self._source.text(start, node.end_byte - 1)
        if not pieces and re.fullmatch(r"\$@|\$\{!?(@|\w+\[@\])[^{}]*\}", inner):
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
        nested = "\\`" in self._source.raw(node)  # backquotes within backquotes
        output = None if nested else self._machine.capture(self._source, node)
        return setting or output or hole(name, line, [Cause(line, name)])

    def _name(self, name: str, line: int) -> Content:
        if name in ("?", "$", "!", "-", "_"):
            return hole(f"${name}", line, [Cause(line, name)])
        return self._machine.lookup(name, line)

    def _inserted(self, content: Content, *, quoted: bool, apart: bool = False) -> Value:
        """Return a variable's content, or all items of a list; `apart` keeps quoted items separate words."""
        if isinstance(content, Value):
            # `"$@"` of unknown parameters is any number of words.
            return content.inserted(quoted=quoted and (content.known or not apart))
        if not content:
            return EMPTY
        if apart or not quoted:
            empty = Value((Piece("", 0, quoted=True),)) if quoted else EMPTY
            return words(
                tuple(item.inserted(quoted=quoted, is_item=True) if item.pieces else empty for item in content)
            )
        first, *others = (separators[:1] for separators in self._machine.separators)
        causes = open_causes(content) | {Cause(content[0].line, "IFS") for other in others if other != first}
        if len(content) > 1 and causes:
            return hole("$*", content[0].line, causes)
        between = text_value(first, 0)
        parts = (part for number, item in enumerate(content) for part in ((between, item) if number else (item,)))
        return joined(parts).inserted(quoted=True)

    def _first(self, name: str, content: Content, line: int) -> Content:
        """Return what `$X` is: the first item of a list."""
        if not isinstance(content, tuple) or name in ("@", "*"):
            return content
        return self.element(name, text_value("0", line), line)

    def _braced(self, node: Node, begin: int, line: int, *, quoted: bool) -> Value:
        """Return the value of `${...}` with its default, substring or replacement."""
        raw = self._source.text(begin, node.end_byte)
        match = _BRACED.match(raw)
        if match is None:
            return hole(raw, line, [Cause(line, raw[:_MAXIMUM_NAME])])
        name, operator = match["name"], match["operator"] or ""
        content = self._meant(node, match, begin, line)
        defaults = operator in _DEFAULTS
        self._machine.unbound("@" if defaults else match["index"] or name, content, line)
        if match["length"]:
            return self._length(content, raw, line)
        operand_start = begin + len(match[0].encode())
        apart = name == "@" or match["index"] == "@"
        if defaults:
            return self._defaulted(node, name, content, operator, operand_start, line, quoted=quoted)
        if match.end() != len(raw) - 1 or operator in ("^^", "^", ",,", ","):
            operand = Value(tuple(self._interpolated(node, operand_start, node.end_byte - 1, quoted=False)))
            operand = self._reread(operand, operand_start, node.end_byte - 1)
            if isinstance(content, tuple) and operator == ":" and self._machine.elements(match["name"]):
                content = hole(raw, line, [Cause(line, raw[:_MAXIMUM_NAME])])  # by keys, which may have gaps
            elif isinstance(content, tuple) and operator == ":":
                content = _slice(content, self._ends(operand, line), first=int(name in ("@", "*")))
            elif isinstance(content, tuple):
                edits = ((item, self._edited(item, operator, operand, raw, line)) for item in content)
                content = tuple(text.inserted(quoted=False) if item.open else text for item, text in edits)
            else:
                content = self._edited(content or EMPTY, operator, operand, raw, line)
        return self._inserted(content, quoted=quoted, apart=apart)

    def _meant(self, node: Node, match: re.Match[str], begin: int, line: int) -> Content:
        """Return what `${X}`, `${!X}` or `${X[index]}` means, without its operator."""
        content = self._name(match["name"], line)
        if match["index"] is None:
            return self._indirect(content, line) if match["indirect"] else self._first(match["name"], content, line)
        start = begin + len(match.string[: match.start("index")].encode())
        index = Value(tuple(self._interpolated(node, start, start + len(match["index"].encode()), quoted=False)))
        return self._chosen(match["name"], content, index, keys=bool(match["indirect"]))

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
        number = None if "A" in self._machine.attributed.get(name, "") else self.number_or_causes(key, line)
        before = open_causes(items, number if isinstance(number, int) and number >= 0 else None)
        if before or isinstance(number, frozenset):
            return hole(shown, line, before or (number if isinstance(number, frozenset) else ()))
        from_end = isinstance(number, int) and number < 0 and bool(keyed)  # which the keys decide
        if number is None or from_end:
            nothing = not from_end and (bool(keyed) or content is None)
            return EMPTY if nothing else hole(shown, line, [Cause(line, shown)])
        inside = -len(items) <= number < len(items)
        return keyed.get(str(number), items[number] if inside else EMPTY)

    def arithmetic_between(self, node: Node, start: int, end: int, line: int) -> Value:
        """Return the value of the arithmetic between two bytes; 1 for an empty text, as in `for ((;;))`."""
        pieces = Value(tuple(self._interpolated(node, start, end, quoted=True)))
        return self.number(pieces, pieces.text.strip(), line) if pieces.text.strip() else text_value("1", line)

    def _indirect(self, content: Content, line: int) -> Content:
        if isinstance(content, Value) and content.known and re.fullmatch(r"[A-Za-z_]\w*", content.text, re.ASCII):
            return self._first(content.text, self._machine.lookup(content.text, line), line)
        causes = content.causes if isinstance(content, Value) else frozenset()
        return hole("${!}", line, causes or [Cause(line, "!")])

    def _length(self, content: Content, raw: str, line: int) -> Value:
        if isinstance(content, tuple):
            causes = open_causes(content)
            return hole(raw, line, causes, filled=True) if causes else text_value(str(len(content)), line)
        if content is not None and not content.known:
            return hole(raw, line, content.causes, filled=True)
        return text_value(str(len(content.text) if content else 0), line)

    def _defaulted(  # noqa: PLR0913, PLR0917  the parts of one expansion
        self, node: Node, name: str, content: Content, operator: str, start: int, line: int, *, quoted: bool
    ) -> Value:
        """Return the value of `${X:-y}` and similar expansions. Raises UndecidedError for `${X:?}` unset."""
        empty = operator[0] == ":" and isinstance(content, Value) and content.known and not content.text
        assigned = operator[0] != ":" and name in self._machine.state.variables
        missing = empty or content in (None, ())
        missing = missing or (not (assigned or isinstance(content, tuple)) and self._machine.unset(name, line))
        if operator[-1] == "+" and missing:
            return EMPTY
        if operator[-1] == "+" or (missing and operator[-1] in "-="):
            value = Value(tuple(self._interpolated(node, start, node.end_byte - 1, quoted=quoted)))
            value = value if value.pieces else Value((Piece("", line),))
            if operator[-1] == "=":
                self._machine.assign(name, value, line)
            if operator == ":+" and isinstance(content, Value) and filled(content) is None:  # nothing where it is empty
                value = one_of([EMPTY, value], f"${{{name}:+}}", line, content.causes)
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
        text = None if causes else edited(value.text, operator, operand)
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
        """Return the number of `$(( ))`, `(( ))` or `$[ ]`, or a hole that is some number."""
        raw = self._source.data[node.start_byte : node.end_byte]
        old = raw.startswith(b"$[")
        opening = 2 if old else raw.index(b"((") + 2 if b"((" in raw else 0
        pieces = self._interpolated(node, node.start_byte + opening, node.end_byte - (1 if old else 2), quoted=True)
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
            self._machine.unbound(name, content, line)
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
            if _ITEM.search(text):
                raise _UnknownError(frozenset({Cause(line, text.strip()[:60])})) from problem
            raise InputError(f"{self._machine.file}:{line}: arithmetic '{text.strip()[:60]}': {problem}") from problem

    def number_or_causes(self, value: Value, line: int) -> int | frozenset[Cause] | None:
        """Return a number as arithmetic reads it, or what it depends on; None for text that is no arithmetic."""
        try:
            return self._computed(value.text, line)
        except _UnknownError as unknown:
            return unknown.causes
        except InputError:
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
    """Return `${A[@]:1:2}`; a hole for bounds that are not plain numbers, and for one that takes in `$0`."""
    match = re.fullmatch(r"\s*(-?\d{1,6})\s*(?::\s*(\d{1,6})\s*)?", operand.text, re.ASCII)
    start = int(match[1]) if match else -1
    start = start + len(items) if start < 0 else start - first
    if match is None or (start < 0 and match[1][0] != "-"):
        return hole(operand.text, operand.line, operand.causes or [Cause(operand.line, operand.text[:_MAXIMUM_NAME])])
    end = None if match[2] is None else start + int(match[2])
    if causes := open_causes(items, None if match[1][0] == "-" else end if end is not None else start):
        return hole(operand.text, operand.line, causes)
    if start < 0:
        return ()
    return items[start:end]


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
