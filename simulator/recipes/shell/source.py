"""Shell text with its syntax tree, parsed in bounded time and memory, and the script's line of every byte.

Where the grammar does not know a spelling, another of as many bytes takes its place: where words, expansions and
statements begin and end is taken from the tree, what they say from the text itself. `shell.walk` follows the tree.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.errors import InputError, NotShellError
from simulator.recipes.shell.values import Piece, Value

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_MAXIMUM_DEPTH: Final = 120
_MAXIMUM_BYTES: Final = 1 << 16
_CHUNK_BYTES: Final = 256
_MAXIMUM_REREADS: Final = 30_000
"""Most pieces of the text that the parser may request again, as it does for text that it cannot parse."""
_MOST_MARKS: Final = {b"|": 2000, b"`": 400, b")": 4000}
"""Most occurrences of a mark: the parser's time grows with the square of a pipeline's length, and of the number of
commands that the other marks cut short, without reading anything that could be counted."""
_READ_WORK: Final = 300  # units of work of one piece that the parser requests
_NODE_WORK: Final = 60  # units of work of one node of the tree
_RESPELLING_WORK: Final = 30  # units of work of one byte that is spelled anew
_HOLE_BASE: Final = 0xF0000  # first of the private characters that stand for holes in a text that is parsed again
_HOLE_LIMIT: Final = 0xFFFFD
_WIDE: Final = re.compile(r"[^\x00-\xff]")
_LINE_END: Final = re.compile(rb"[ \t]*(?:#[^\n]*)?\n|[ \t]+(\\)\n[ \t]*#")
_TWO_ASSIGNMENTS: Final = re.compile(rb"^[ \t]*\w+\+?=[^\n]*[ \t](?:\w+\+?=|\\\n[ \t]*#)", re.MULTILINE)
_ESCAPED_BLANK: Final = re.compile(rb"((?:^|[^\\])(?:\\\\)*)\\[ \t](?![ \t]*\n)", re.MULTILINE)
"""A blank with a backslash in front, which the parser would take for the end of a word."""
_JOINED_LINES: Final = re.compile(rb"^([^#\n]*[^\s\\#])\\\n(?=\S)(?!\w+\n)", re.MULTILINE)
"""The end of a line within a word; a comment has none, and the end of a here document stands alone."""
_JOINS: Final = re.compile(rb"\\\n(?<=[^\s\\#]\\\n)(?=\S)")
"""The same, wherever it stands: most texts have none, and this is found ten times as fast."""
_CONTINUED: Final = re.compile(rb"(?<!\\)((?:\\\\)*+)\\(?:\n\s*+)?\Z")
"""A continued line at the end of the text, which bash accepts."""
_MASKS: Final = {2: "\u00b7", 3: "\u00b7x", 4: "\u00b7\u00b7"}  # replacement of a character, by its number of bytes
HOLES: Final = re.compile(f"([{chr(_HOLE_BASE)}-{chr(_HOLE_LIMIT)}])")
"""The characters that stand for holes."""
_REMARK: Final = re.compile(rb"(?<=[ \t])`#[^`\n]*`(?=[ \t\\\n]|\Z)")
"""A comment within a command, which prints nothing."""
_ENDS: Final = re.compile(rb"(?<![\w$-])(fi|done|esac|\})[ \t](?=[ \t]*(?:fi|done|esac|elif|else|\})(?![\w-]))")
"""The end of a statement directly after another's: `fi done`."""
_BASE: Final = re.compile(rb"(?<=[\s(+*/%-])(\d{1,2})#(?=\$)")
"""A variable number with a base: `10#$X`."""
_BRACED: Final = re.compile(rb"\$\{(?:[A-Za-z_]\w*(?:\[[@*]\])?|[@*])(:?[-=+]|:)")
_HARD: Final = {True: re.compile(rb"\$"), False: re.compile(rb"\$\(\(|[][]|(?<!\$)\{")}
"""Signs that the grammar may not know in an expansion: variable bounds of a slice; arithmetic or JSON as a default."""
_PRIVATE: Final = re.compile(rb"[\xf3\xf4][\x80-\xbf]{3}")  # the bytes of a character that stands for a hole
_LONGEST: Final = 4000  # most bytes of such an expansion


class Source:
    """A shell text with its syntax tree. `eval` makes another one from a value."""

    def __init__(self, file: str, value: Value) -> None:
        self.file = file
        self._holes: list[Piece] = []
        texts = (self._plain(piece) if piece.causes else piece.text for piece in value.pieces)
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        data = b"".join(parts)
        self.data = _REMARK.sub(lambda match: b" " * len(match[0]), data) if b"`#" in data else data
        if self.data.rstrip().endswith(b"\\"):
            self.data = _CONTINUED.sub(rb"\1\n", self.data)
        self._starts = [0, *accumulate(map(len, parts[:-1]))][: len(parts)]
        self._lines = [piece.line for piece in value.pieces]
        self.blank: set[int] = set()
        """First bytes of the expansions in braces whose inside the tree does not have."""
        self.root = self._understood()
        self.plain: dict[tuple[int, int], Value] = {}
        """Values of bare words, which are the same in every round and call."""

    def _plain(self, piece: Piece) -> str:
        """Return a piece that is not known as the parser sees it."""
        self._holes.append(piece)
        if _HOLE_BASE + len(self._holes) > _HOLE_LIMIT:
            raise InputError(f"{self.file}:{piece.line}: too many values that are not known")
        return chr(_HOLE_BASE + len(self._holes) - 1)

    def line(self, byte: int) -> int:
        """Return the script's line of a byte."""
        place = bisect.bisect_right(self._starts, byte) - 1
        return self._lines[max(place, 0)] if self._lines else 1

    def text(self, start: int, end: int) -> str:
        """Return the text between two bytes."""
        charge(end - start)
        return self.data[start:end].decode("utf-8", "replace")

    def node_text(self, node: Node) -> str:
        """Return the text of a node, holes as the script writes them."""
        return HOLES.sub(lambda mark: self._holes[ord(mark[0]) - _HOLE_BASE].text, self.raw(node))

    def raw(self, node: Node) -> str:
        """Return the text of a node as the parser sees it."""
        return self.text(node.start_byte, node.end_byte)

    def pieces(self, start: int, end: int, *, quoted: bool = False) -> list[Piece]:
        """Return the text between two bytes as pieces, one per line and per hole."""
        pieces_of_text: list[Piece] = []
        charge(2 * (end - start))
        while start < end:
            place = bisect.bisect_right(self._starts, start)
            stop = min(end, self._starts[place]) if place < len(self._starts) else end
            text, line = self.data[start:stop].decode("utf-8", "replace"), self._lines[place - 1]
            if self._holes:
                pieces_of_text += self._line_pieces(text, line, quoted=quoted)
            else:
                pieces_of_text.append(Piece(text, line, quoted=quoted))
            start = stop
        return pieces_of_text

    def _line_pieces(self, text: str, line: int, *, quoted: bool) -> list[Piece]:
        parts = []
        for number, part in enumerate(HOLES.split(text)):
            if number % 2:
                old = self._holes[ord(part) - _HOLE_BASE]
                parts.append(dataclasses.replace(old, quoted=quoted, splits=not quoted))
            elif part:
                parts.append(Piece(part, line, quoted=quoted))
        return parts

    def _understood(self) -> Node:
        """Return the tree of the text, respelled if necessary. Raises InputError where it is no shell script."""
        check_length(self.file, self.data)
        for mark, most in _MOST_MARKS.items():
            if self.data.count(mark) > most:
                raise InputError(f"{self.file}: more than {most} '{mark.decode()}'; not a launch script")
        root = self._parse(self.data)
        wrong = self._check(root)
        ends = self._line_ends(root)
        if wrong is None and not ends:
            return root
        spelled = bytearray(self.data)
        for end in ends:
            spelled[end] = ord(";")
        refusal = None if wrong is None else self._refusal(wrong)
        for text in (bytes(spelled), self._respelled(bytes(spelled))):
            if text != self.data:
                root = self._parse(text)
                if self._check(root) is None:
                    return root
        raise refusal or NotShellError(f"{self.file}: not a shell script that can be read")

    def _respelled(self, text: bytes) -> bytes:
        """Return the text with separate ends of statements and blanks in expansions that the grammar may not know."""
        charge(_RESPELLING_WORK * len(text))
        spelled = bytearray(_PRIVATE.sub(b"____", _ENDS.sub(rb"\1;", _BASE.sub(rb"\1+", text))))
        for match in _BRACED.finditer(text):
            end = _closing(text, match.end())
            if _HARD[match[1] == b":"].search(text, match.end(), end):
                self.blank.add(match.start())
                spelled[match.end() : end] = b"_" * (end - match.end())
        return bytes(spelled)

    def _parse(self, text: bytes) -> Node:
        """Return the tree of a text. Raises InputError where parsing takes too long."""
        left, data = _MAXIMUM_REREADS + len(text) // _CHUNK_BYTES, text
        if b"\\ " in data or b"\\\t" in data:
            data = _ESCAPED_BLANK.sub(rb"\1..", data)
        data = _masked(_JOINED_LINES.sub(rb"\1..", data) if _JOINS.search(data) else data)
        charge(_READ_WORK * (len(text) // _CHUNK_BYTES))

        def read(offset: int, _point: object) -> bytes:
            nonlocal left
            left -= 1
            # An empty piece ends the parse; an exception in here would not. The parser never frees the pieces, so they
            # are small and counted.
            return data[offset : offset + _CHUNK_BYTES] if left >= 0 else b""

        tree = _parser().parse(read)
        charge(_READ_WORK * (_MAXIMUM_REREADS - max(left, 0)))
        if left < 0 or tree is None:
            raise InputError(f"{self.file}: takes too long to parse; not a launch script")
        self._tree = tree  # its nodes are valid while it lives
        return tree.root_node

    def _check(self, root: Node) -> Node | None:
        """Return the first node that could not be parsed. Raises InputError for a tree too deep."""
        charge(_NODE_WORK * root.descendant_count)
        cursor, depth, wrong, is_whole = root.walk(), 0, None, not root.has_error
        while True:
            if depth > _MAXIMUM_DEPTH:
                line = self.line(cursor.node.start_byte) if cursor.node else 1
                raise InputError(f"{self.file}:{line}: nested too deep for a launch script")
            if not is_whole and wrong is None and (node := cursor.node) and (node.is_error or node.is_missing):
                wrong = node
            if cursor.goto_first_child():
                depth += 1
                continue
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return wrong
                depth -= 1

    def _line_ends(self, root: Node) -> list[int]:
        """Return the ends of lines of assignments, `A=1 B=2`, that the parser joins to the command on the next line.

        A comment ends such a line too, where a backslash stands before it.
        """
        ends: list[int] = []
        nodes = [root] if _TWO_ASSIGNMENTS.search(self.data) else []
        while nodes:
            node = nodes.pop()
            charge(_NODE_WORK)
            children = node.named_children
            nodes.extend(child for child in children if child.named_child_count)
            joined = children[:-1] if node.type == "command" else ()
            before = (_LINE_END.match(self.data, x.end_byte) for x in joined if x.type == "variable_assignment")
            ends += [match.start(match.lastindex or 0) for match in before if match]
        return ends

    def _refusal(self, node: Node) -> InputError:
        line = self.line(node.start_byte)
        if node.is_missing:
            return NotShellError(f"{self.file}:{line}: not a shell script that can be read: '{node.type}' is missing")
        # The first loose sign that was not parsed is the likely place: an `if` without its end, a quote.
        node = next((child for child in node.children if not child.is_named and child.type.strip()), node)
        line = self.line(node.start_byte)
        near = self.node_text(node).strip().split("\n")[0][:40]
        return NotShellError(f"{self.file}:{line}: not a shell script that can be read, from '{near}' on")


def _closing(text: bytes, start: int) -> int:
    """Return the place of the brace that closes an expansion; 0 where its line ends before."""
    depth, place = 0, start
    while place < min(len(text), start + _LONGEST) and text[place] != ord("\n"):
        mark = text[place : place + 1]
        if mark == b"}" and depth == 0:
            return place
        depth += (mark == b"{") - (mark == b"}")
        place += 2 if mark == b"\\" else 1
    return 0


def _masked(data: bytes) -> bytes:
    """Return the text with characters beyond U+00FF replaced by meaningless ones of as many bytes.

    The parser's scanner would look them up beyond the end of a table of 256: `{?..1}` of U+10FFFF ends the process.
    """
    if data.isascii():
        return data
    text = data.decode("utf-8", "surrogatepass")
    return _WIDE.sub(lambda mark: _MASKS[len(mark[0].encode("utf-8", "surrogatepass"))], text).encode()


def check_length(file: str, text: str | bytes) -> None:
    """Raise InputError for text too long for a launch script."""
    if len(text) > _MAXIMUM_BYTES:
        raise InputError(f"{file}: more than {_MAXIMUM_BYTES} bytes of shell text; not a launch script")


@cache
def _parser() -> Parser:
    """Return the parser of bash, created on first use."""
    import tree_sitter  # noqa: PLC0415  only who reads shell scripts waits for it
    import tree_sitter_bash  # noqa: PLC0415

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
