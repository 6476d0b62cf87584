"""Expansion of words, and tests: quotes, parameters, arithmetic, the output of `$( )`; `[ ]`, `[[ ]]`, `(( ))`.

With TP as 2, `"--tp "$TP` expands to the one word `--tp 2`, and `[[ $TP -gt 1 && $PP == 1 ]]` depends on PP alone. What
is not expanded here (`${X/a/b}`, `{1..3}`, `${!X}`) is a hole that the run fills.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.errors import InputError, UndecidedError
from simulator.frameworks.values import Cause
from simulator.recipes.shell import arithmetic
from simulator.recipes.shell import values as bash
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.state import Content, Machine, items_of, words
from simulator.recipes.shell.values import EMPTY, Piece, Truth, Value

if TYPE_CHECKING:
    from tree_sitter import Node

_QUOTED: Final = frozenset(["string", "raw_string", "ansi_c_string", "translated_string"])
_EXPANDED: Final = _QUOTED | frozenset(
    ["simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"]
)
_BRACED: Final = re.compile(
    r"\$\{(?P<length>#(?=[\w@*]))?(?P<name>\w+|[@*#?$-])(?:\[(?P<index>[^]]*)\])?"
    r"(?P<operator>:?[-=+?])?",
    re.ASCII,
)  # the expansions in braces that are read, up to their operator's operand
_SET: Final = re.compile(r"\b([A-Za-z_]\w*+)\s*+(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")
"""A variable that an arithmetic expression sets."""
_ITEM: Final = re.compile(r"(?<!\w)[A-Za-z_]\w*\[")  # an item of a list in arithmetic, which is not read
_BRACES: Final = re.compile(r"\{[^{}]*(?:,|\.\.)")  # the beginning of braces that make several words of one
_BLANK: Final = re.compile(rb"(?:\s|\\\n)*")
_PLAIN: Final = re.compile(r"[$`\"']")
_JOINED: Final = re.compile(rb"(?:\\\n)*")
"""What stands between two parts of one word: nothing, or ends of lines with a backslash."""
_ESCAPE: Final = re.compile(r"\\(.?)", re.DOTALL)
_IN_QUOTES: Final = frozenset('$`"\\')
_ANSI: Final = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|([abeEfnrtv\\'\"?]))")
_ESCAPES: Final = {"a": "\a", "b": "\b", "e": "\33", "E": "\33", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NODE_WORK: Final = 40  # units of work of one syntax node
_MAXIMUM_NAME: Final = 80
_MAXIMUM_REFERENCES: Final = 8  # most names that the value of a number may pass through


class _UnknownError(Exception):
    """An arithmetic expression needs an unknown value; it holds the causes."""


class Words:
    """Expansion of the nodes of one source with a machine's variables."""

    def __init__(self, machine: Machine, source: Source) -> None:
        self._machine = machine
        self._source = source

    # Words and their parts.

    def fields(self, node: Node) -> list[Value]:
        """Return the words that a node expands to."""
        whole = self.value(node)
        if has_braces(whole):
            return [bash.hole(whole.text, whole.line).inserted(quoted=False)]
        if whole.known and (node.start_byte, node.end_byte) in self._source.plain:
            return [whole] if whole.pieces else []
        return self.split(whole, self._source.line(node.start_byte))

    def split(self, value: Value, line: int) -> list[Value]:
        """Return the words of a value; a hole where only the run knows what separates them."""
        separators = self._machine.separators
        if separators is None and any(piece.splits for piece in value.pieces):
            return [bash.hole(value.text, line, [Cause(line, "IFS")]).inserted(quoted=False)]
        return bash.split_fields(value, separators or "")

    def all_fields(self, nodes: Iterable[Node]) -> list[Value]:
        """Return the words of nodes in a row; what nothing or a backslash at a line's end divides is one word."""
        fields: list[Value] = []
        end, data = -1, self._source.data
        for node in nodes:
            parts = self.fields(node)
            joins = fields and parts and end >= 0 and not data[end : end + 1].isspace()
            if joins and _JOINED.fullmatch(data, end, self._begin(node)):
                fields[-1] = bash.joined([fields[-1], parts.pop(0)])
            fields += parts
            end = node.end_byte
        return fields

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
        return self._between(node, start, end, quoted=False)

    def pattern(self, node: Node) -> Value:
        """Return the expansion of a pattern, which the parser may take for plain text: `*$X*`."""
        value = self.value(node)
        bare = (piece.text for piece in value.pieces if not (piece.causes or piece.quoted or piece.splits))
        if not any(map(_PLAIN.search, bare)):
            return value
        inner = Source(self._machine.file, Value(tuple(self._source.pieces(node.start_byte, node.end_byte))))
        return Words(self._machine, inner).value(inner.root)

    def heredoc(self, node: Node, *, expands: bool) -> Value:
        """Return the text of a here document."""
        if not expands:
            return Value(tuple(self._source.pieces(node.start_byte, node.end_byte, quoted=True)))
        return self._between(node, node.start_byte, node.end_byte, quoted=True)

    def _between(self, node: Node, start: int, end: int, *, quoted: bool) -> Value:
        """Return the value of the text between two bytes of a node, expansions and literal text."""
        return Value(tuple(self._interpolated(node, start, end, quoted=quoted)))

    def _interpolated(self, node: Node, start: int, end: int, *, quoted: bool) -> list[Piece]:
        pieces: list[Piece] = []
        for child in _topmost(node, start, end):
            begin = self._begin(child)
            if begin > start:
                pieces += self._literal(start, begin, quoted=quoted)
            pieces += self._expanded(child, quoted=quoted).pieces
            start = child.end_byte
        if end > start:
            pieces += self._literal(start, end, quoted=quoted)
        return pieces

    def _begin(self, node: Node) -> int:
        """Return the first byte of an expansion, after white space that the parser includes."""
        start, data = node.start_byte, self._source.data
        blank = _BLANK.match(data, start, node.end_byte) if data[start : start + 1] in b" \t\n\r\v\f\\" else None
        return blank.end() if blank else start

    def _literal(self, start: int, end: int, *, quoted: bool) -> list[Piece]:
        pieces = self._source.pieces(start, end, quoted=quoted)
        if b"\\" not in self._source.data[start:end]:
            return pieces
        parts = (_unescaped(piece, quoted=quoted) if piece.known else (piece,) for piece in pieces)
        return [part for several in parts for part in several]

    def _expanded(self, node: Node, *, quoted: bool) -> Value:  # noqa: PLR0911  one per kind of expansion
        kind = node.type
        begin = self._begin(node)
        line = self._source.line(begin)
        if kind in ("string", "translated_string"):
            return self._string(node, begin + (2 if kind == "translated_string" else 1), line)
        if kind == "raw_string" and quoted:  # `"${X:-'a'}"`: plain signs
            raw = self._source.text(begin, node.end_byte)
            return bash.hole(raw, line) if set(raw) & set("$`\\") else bash.text_value(raw, line, quoted=True)
        if kind == "raw_string":
            inner = self._source.pieces(begin + 1, node.end_byte - 1, quoted=True)
            return Value((*inner, Piece("", line, quoted=True)))
        if kind == "ansi_c_string":
            text = _ANSI.sub(_sign, self._source.text(begin + 2, node.end_byte - 1))
            return Value((*bash.text_value(text, line, quoted=True).pieces, Piece("", line, quoted=True)))
        data = self._source.data[begin : node.end_byte] if kind == "command_substitution" else b""
        if kind == "arithmetic_expansion" or (data[:3] == b"$((" and data[-2:] == b"))"):  # as inside `${ }`
            return self.arithmetic(node, line)
        if kind == "process_substitution":
            value = bash.hole(" ".join(self._source.node_text(node).split())[:_MAXIMUM_NAME], line, filled=True)
        elif kind == "command_substitution":
            value = self._command(node, line)
        elif kind == "simple_expansion":
            name = self._source.text(begin + 1, node.end_byte)
            return self._inserted(self._first(name, self._name(name, line), line), quoted=quoted, apart=name == "@")
        else:
            return self._braced(node, begin, line, quoted=quoted)
        return value.inserted(quoted=quoted)

    def _string(self, node: Node, start: int, line: int) -> Value:
        """Return text in double quotes; `"$@"` may be no word at all."""
        pieces = self._interpolated(node, start, node.end_byte - 1, quoted=True)
        inner = self._source.text(start, node.end_byte - 1)
        if not pieces and re.fullmatch(r"\$@|\$\{(@|\w+\[@\])[^{}]*\}", inner):
            return EMPTY
        return Value((*pieces, Piece("", line, quoted=True)))

    def _command(self, node: Node, line: int) -> Value:
        """Return the output of a command in `$( )`, from a setting or the script; else a hole."""
        name = " ".join(self._source.node_text(node).split())
        name = name if len(name) <= _MAXIMUM_NAME else name[: _MAXIMUM_NAME - 3] + "..."
        setting = self._machine.preset(name, line)
        nested = "\\`" in self._source.raw(node)  # backquotes within backquotes
        output = None if nested else self._machine.capture(self._source, node)
        return setting or output or bash.hole(name, line)

    # Parameters.

    def _name(self, name: str, line: int, *, may_be_unset: bool = False) -> Content:
        """Return what a parameter means; `set -u` ends the script at one that is surely not set."""
        if name in ("?", "$", "!", "-", "_"):
            return bash.hole(f"${name}", line, [Cause(line, name)])
        content = self._machine.lookup(name, line)
        if content is None and not may_be_unset and "u" in self._machine.state.options:
            self._machine.ends(line)
        return content

    def _inserted(self, content: Content, *, quoted: bool, apart: bool = False) -> Value:
        """Return a variable's content, or all items of a list; `apart` keeps quoted items separate words."""
        if isinstance(content, Value):
            # `"$@"` of unknown parameters is any number of words.
            return content.inserted(quoted=quoted and (content.known or not apart))
        if not content:
            return EMPTY
        items = tuple(content.values())
        if apart or not quoted:
            empty = Value((Piece("", 0, quoted=True),)) if quoted else EMPTY
            return words(item.inserted(quoted=quoted, is_item=True) if item.pieces else empty for item in items)
        separators = self._machine.separators
        causes = bash.open_causes(items) | ({Cause(items[0].line, "IFS")} if separators is None else set())
        if len(items) > 1 and causes:
            return bash.hole("$*", items[0].line, causes)
        between = bash.text_value((separators or "")[:1], 0)
        parts = (part for number, item in enumerate(items) for part in ((between, item) if number else (item,)))
        return bash.joined(parts).inserted(quoted=True)

    def _first(self, name: str, content: Content, line: int) -> Content:
        """Return what `$X` is: the first item of a list."""
        if isinstance(content, Value) or content is None or name in ("@", "*"):
            return content
        return self.element(name, bash.text_value("0", line), line)

    def _braced(self, node: Node, begin: int, line: int, *, quoted: bool) -> Value:
        """Return the value of `${...}`, with its default."""
        raw = self._source.text(begin, node.end_byte)
        match = _BRACED.match(raw)
        if match is None or begin in self._source.blank:
            return self._not_read(raw, None, line).inserted(quoted=quoted and "@" not in raw)
        name, operator = match["name"], match["operator"] or ""
        content = self._meant(node, match, begin, line)
        if match["length"]:
            if isinstance(content, Mapping):
                causes = bash.open_causes(tuple(content.values()))
                return bash.hole(raw, line, causes, filled=True) if causes else bash.text_value(str(len(content)), line)
            if content is not None and not content.known:
                return bash.hole(raw, line, content.causes, filled=True)
            return bash.text_value(str(len(content.text) if content else 0), line)
        start = begin + len(match[0].encode())
        apart = name == "@" or match["index"] == "@"
        if operator:
            return self._defaulted(node, name, content, operator, start, line, quoted=quoted)
        if match.end() != len(raw) - 1:
            content = self._not_read(raw, content, line)
        return self._inserted(content, quoted=quoted, apart=apart)

    def _not_read(self, raw: str, content: Content, line: int) -> Value:
        """Return the value of an expansion that is not followed: the user's setting, or a hole."""
        name = raw if len(raw) <= _MAXIMUM_NAME else f"{raw[: _MAXIMUM_NAME - 3]}..."
        items = items_of(content).values()
        causes = () if any(item.known for item in items) else frozenset().union(*(item.causes for item in items))
        return self._machine.preset(name, line) or bash.hole(raw, line, causes or [Cause(line, name)])

    def _meant(self, node: Node, match: re.Match[str], begin: int, line: int) -> Content:
        """Return what `${X}` or `${X[index]}` means, without its operator."""
        may_be_unset = bool(match["operator"]) or match["index"] in ("@", "*")
        content = self._name(match["name"], line, may_be_unset=may_be_unset)
        if match["index"] is None:
            return self._first(match["name"], content, line)
        start = begin + len(match.string[: match.start("index")].encode())
        index = self._between(node, start, start + len(match["index"].encode()), quoted=False)
        if isinstance(content, Value) and not content.known:
            return content
        return items_of(content) if index.text in ("@", "*") else self.element(match["name"], index, index.line)

    def element(self, name: str, key: Value, line: int) -> Value:
        """Return one item of a list; empty where it is not set, a hole where unknown."""
        content = self._machine.lookup(name, line)
        shown = f"${{{name}[{key.text}]}}"[:_MAXIMUM_NAME]
        place = self.key(name, key, line)
        if isinstance(content, Value) and not content.known:
            return content
        items = items_of(content)
        if not isinstance(place, str):
            return bash.hole(shown, line, place)
        before = bash.open_causes(tuple(items.values()), int(place) if place.isdecimal() else None)
        return bash.hole(shown, line, before) if before else items.get(place, EMPTY)

    def key(self, name: str, key: Value, line: int) -> str | frozenset[Cause]:
        """Return the key that `X[key]` means, or what it depends on."""
        if not key.known or "A" in self._machine.attributed.get(name, "") or key.text.isdecimal():
            return key.text if key.known else key.causes
        number = self.number_or_causes(key, line)
        if not isinstance(number, int):
            return number or frozenset({Cause(line, f"{name}[{key.text[:40]}]")})
        items = items_of(self._machine.lookup(name, line)) if number < 0 else {}
        return str(number if number >= 0 else max((int(k) for k in items if k.isdecimal()), default=-1) + 1 + number)

    def _defaulted(  # noqa: PLR0913, PLR0917  the parts of one expansion
        self, node: Node, name: str, content: Content, operator: str, start: int, line: int, *, quoted: bool
    ) -> Value:
        """Return the value of `${X:-y}` and similar expansions. Raises UndecidedError for `${X:?}` unset."""
        empty = operator[0] == ":" and isinstance(content, Value) and content.known and not content.text
        assigned = operator[0] != ":" and name in self._machine.state.variables
        missing = empty or not (isinstance(content, Value) or content)
        missing = missing or (not (assigned or isinstance(content, Mapping)) and self._machine.unset(name, line))
        if operator[-1] == "+" and missing:
            return EMPTY
        if operator[-1] == "+" or (missing and operator[-1] in "-="):
            value = self._between(node, start, node.end_byte - 1, quoted=quoted)
            value = value if value.pieces else Value((Piece("", line),))
            if operator[-1] == "=":
                self._machine.assign(name, value, line)
            if (
                operator == ":+" and isinstance(content, Value) and bash.filled(content) is None
            ):  # nothing where it is empty
                value = bash.one_of([EMPTY, value], f"${{{name}:+}}", line, content.causes)
            if quoted:
                return value.inserted(quoted=True)
            return Value(tuple(p if p.quoted else dataclasses.replace(p, splits=True) for p in value.pieces))
        if missing and isinstance(content, Value) and content.pieces and not content.known:
            self._machine.assumed_unset.pop(name, None)
        elif missing:
            self._machine.ended_without.add(name)
            self._machine.state.exit_line = line
            raise UndecidedError(
                f"{self._machine.file}:{line}: the script stops here: {name} is not set; --set {name}=VALUE"
            )
        return self._inserted(content, quoted=quoted)

    # Arithmetic.

    def arithmetic_between(self, node: Node, start: int, end: int, line: int) -> Value:
        """Return the value of the arithmetic between two bytes; 1 for an empty text, as in `for ((;;))`."""
        pieces = self._between(node, start, end, quoted=True)
        return self.number(pieces, pieces.text.strip(), line) if pieces.text.strip() else bash.text_value("1", line)

    def arithmetic(self, node: Node, line: int) -> Value:
        """Return the number of `$(( ))`, `(( ))` or `$[ ]`, or a hole that is some number."""
        raw = self._source.data[node.start_byte : node.end_byte]
        old = raw.startswith(b"$[")
        opening = 2 if old else raw.index(b"((") + 2 if b"((" in raw else 0
        pieces = self._between(node, node.start_byte + opening, node.end_byte - (1 if old else 2), quoted=True)
        return self.number(pieces, " ".join(self._source.node_text(node).split()), line)

    def number(self, expression: Value, shown: str, line: int) -> Value:
        """Return the value of an arithmetic expression."""
        if expression.known:
            try:
                return bash.text_value(str(self._computed(expression.text, line)), line)
            except _UnknownError as unknown:
                value = bash.hole(shown, line, unknown.args[0], filled=True)
        else:
            value = bash.hole(shown, line, expression.causes, filled=True)
        charge(10 * len(expression.text))
        for match in _SET.finditer(expression.text):
            self._machine.assign(match[1], bash.hole(f"${match[1]}", line, value.causes, filled=True), line)
        return value

    def _computed(self, text: str, line: int) -> int:
        def assign(name: str, number: int) -> None:
            self._machine.assign(name, bash.text_value(str(number), line), line)

        try:
            return arithmetic.evaluate(text, partial(self._number_of, line), assign)
        except arithmetic.ArithmeticProblemError as problem:
            if _ITEM.search(text):
                raise _UnknownError(frozenset({Cause(line, text.strip()[:60])})) from problem
            raise InputError(f"{self._machine.file}:{line}: arithmetic '{text.strip()[:60]}': {problem}") from problem

    def _number_of(self, line: int, name: str, depth: int = 0) -> int:
        """Return what a variable in arithmetic is. Raises _UnknownError where only the run knows."""
        value = self._inserted(self._machine.lookup(name, line), quoted=True)
        if not value.known:
            raise _UnknownError(value.causes)
        if depth > _MAXIMUM_REFERENCES:
            raise arithmetic.ArithmeticProblemError(f"{name} refers to itself")
        return arithmetic.evaluate(value.text, lambda other: self._number_of(line, other, depth + 1))

    def number_or_causes(self, value: Value, line: int) -> int | frozenset[Cause] | None:
        """Return a number as arithmetic reads it, or what it depends on; None for text that is no arithmetic."""
        try:
            return self._computed(value.text, line)
        except _UnknownError as unknown:
            return frozenset(unknown.args[0])
        except InputError:
            return None


def has_braces(value: Value) -> bool:
    """Whether bare braces make several words of one, `{1..3}` or `a{b,c}`, which are not followed."""
    if "{" not in value.text:
        return False
    bare = (piece.text for piece in value.pieces if piece.known and not piece.quoted and not piece.splits)
    return _BRACES.search("".join(bare)) is not None


def _topmost(node: Node, start: int, end: int) -> Iterator[Node]:
    """Yield the expansions between two bytes in order, without those inside another."""
    stack = [node]
    while stack:
        top = stack.pop()
        charge(_NODE_WORK)
        if (top.start_byte >= start and top.end_byte <= end) and top.type in _EXPANDED:
            yield top
        elif top.end_byte > start and top.start_byte < end:
            stack.extend(reversed(top.children))


def _unescaped(piece: Piece, *, quoted: bool) -> Iterator[Piece]:
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
        if part:  # of known text, which nothing of a hole says anything about
            yield Piece(part, piece.line, splits=piece.splits, quoted=quoted or number % 2 == 1)


def _sign(match: re.Match[str]) -> str:
    """Return the character of an escape in `$'...'`."""
    code = int(match[1] or "0", 16) or int(match[2] or "0", 8)
    return chr(code) if code else _ESCAPES.get(match[3], match[3] or "")


# Patterns: `*`, `?` and `[...]` in `case` and `[[ ]]`. Quoted parts are literal.

_PATTERN_WORK: Final = 500  # units of work of compiling one character of a pattern
_MAXIMUM_PATTERN: Final = 200


def matches(text: str, pattern: Value, file: str) -> bool | None:
    """Whether a shell pattern matches; None for an extended one. Raises InputError for one that is too long."""
    plain = "".join(piece.text for piece in pattern.pieces if not piece.quoted)
    literal = "".join(piece.text for piece in pattern.pieces if piece.quoted)
    if re.search(r"[@?*+!]\(|\[:", plain) or ("[" in plain and re.search(r"[]\[*?!^-]", literal)):
        return None
    shown = "".join(
        re.sub(r"([*?[])", r"[\1]", piece.text) if piece.quoted else piece.text.replace("[^", "[!")
        for piece in pattern.pieces
    )
    if len(shown) > _MAXIMUM_PATTERN:
        raise InputError(f"{file}:{pattern.line}: a pattern of more than {_MAXIMUM_PATTERN} characters")
    # Stars do not multiply the work: the text after a star is located once.
    charge(_PATTERN_WORK * (10 + len(shown)) + len(text) * (1 + len(shown) // 4))
    return re.compile(fnmatch.translate(shown), re.DOTALL).match(text) is not None


# Tests in `[ ]`, `[[ ]]` and `(( ))`, which are true, false or undecided before the run.

_INNER: Final = frozenset({"binary_expression", "unary_expression", "parenthesized_expression", "negated_expression"})
_UNARY: Final = frozenset(f"-{letter}" for letter in "abcdefghknoprstuvwxzGLNOS")
_NUMERIC: Final = {"-eq": eq, "-ne": ne, "-gt": gt, "-ge": ge, "-lt": lt, "-le": le}
_SIGNS: Final = ("--", "-", "++", "+", "~")  # signs that the parser takes for operators at the start of a word
_BINARY: Final = frozenset({"=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef", *_NUMERIC})


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
        is_regex = leaf.type == "regex"
        value = Value(tuple(source.pieces(leaf.start_byte, leaf.end_byte))) if is_regex else words.pattern(leaf)
        is_part = leaf.is_named or source.raw(leaf) in _SIGNS
        before, end = end, leaf.end_byte if is_part else -1
        if is_part and leaf.start_byte == before:  # `*"a"*` and `--tp` are one word
            tokens[-1] = bash.joined([tokens[-1], value])
            continue
        tokens += [value if value.pieces else EMPTY] if double else words.split(value, line)
    return Test(machine, words, tokens, line, double=double).truth()


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

    def __init__(self, machine: Machine, words: Words, tokens: Iterable[Value], line: int, *, double: bool) -> None:
        self._machine = machine
        self._words = words
        self._tokens = deque(tokens)
        self._open = bash.open_causes(tuple(self._tokens))
        self._line = line
        self._double = double

    def truth(self) -> Truth:
        """Return the truth of the whole test."""
        result = self._joined(("-o", "||"))
        return self._open or False if self._tokens else result

    def _joined(self, signs: tuple[str, str]) -> Truth:
        """Return the truth of terms between `-o` or `||`, of which each is terms between `-a` or `&&`."""
        is_or = signs[0] == "-o"
        result = self._joined(("-a", "&&")) if is_or else self._primary()
        while len(self._tokens) > 1 and self._tokens[0].text in signs:
            self._tokens.popleft()
            term = self._joined(("-a", "&&")) if is_or else self._primary()
            result = (
                bash.negated(bash.both(bash.negated(result), bash.negated(term))) if is_or else bash.both(result, term)
            )
        return result

    def _primary(self) -> Truth:
        tokens = self._tokens
        if not tokens:
            return False
        self._machine.step(self._line)
        first = tokens.popleft()
        if len(tokens) >= 2 and tokens[0].text in _BINARY:
            return self._compared(first, tokens.popleft().text, tokens.popleft())
        if first.text == "!" and tokens:
            return bash.negated(self._primary())
        if first.text == "(" and tokens:
            result = self._joined(("-o", "||"))
            if tokens and tokens[0].text == ")":
                tokens.popleft()
            return result
        return self._unary(first.text, tokens.popleft()) if first.text in _UNARY and tokens else self._filled(first)

    def _filled(self, value: Value) -> Truth:
        if value.outside:
            self._machine.assume_unset(value)
            return False
        is_filled = bash.filled(value)
        return value.causes if is_filled is None else is_filled

    def _unary(self, operator: str, operand: Value) -> Truth:
        if operator == "-z":
            return bash.negated(self._filled(operand))
        if operator == "-n":
            return self._filled(operand)
        return self._preset(f"{operator} {operand.text}")

    def _preset(self, name: str) -> Truth:
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
            return bash.negated(equal) if operator == "!=" else equal
        if operator in ("<", ">") and not causes:
            return (left.text < right.text) == (operator == "<") and left.text != right.text
        return causes or self._preset(f"{left.text} {operator} {right.text}")

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
        if causes or not self._double:
            return causes or left.text == right.text
        matched = matches(left.text, right, self._machine.file)
        return self._preset(f"{left.text} == {right.text}") if matched is None else matched
