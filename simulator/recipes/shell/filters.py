"""Files that a script writes: here documents, and what `cat`, `sed` or `envsubst` make of others. Runs no command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.recipes.shell.capture import echo_output, printf_output, without_tabs
from simulator.recipes.shell.files import EVERYTHING
from simulator.recipes.shell.includes import left_in, text_of
from simulator.recipes.shell.machine import Machine
from simulator.recipes.shell.source import HOLES, Source
from simulator.recipes.shell.state import items_of, words
from simulator.recipes.shell.values import EMPTY, Cause, Piece, TooLargeError, Value, hole, joined, text_value
from simulator.recipes.shell.words import Words

if TYPE_CHECKING:
    from tree_sitter import Node

_PRIVATE: Final = HOLES.pattern[2:-2]
"""A hole stands in a text that is searched as one private character."""
_SUBSTITUTION: Final = re.compile(
    rf"""[;\s]*s([/#|,:@!%~+=])                               # s, and the mark between its parts
    ((?:(?!\1)(?:[^\\.*^$\[\]\n{_PRIVATE}]|\\[./$*^"\[\]]))+)  # text to look for, without signs of a pattern
    (\.\*)?\1                                                 # and whatever stands behind it
    ((?:(?!\1)[^\\&\n]|\\[^\w\n{_PRIVATE}])*)\1(g?)[ \t]*(?=[;\n]|\Z)""",
    re.VERBOSE,
)
_EXTENDED: Final = re.compile(r"(?<!\\)[(){}+?|]")
"""Signs of an extended pattern; in a basic one they are plain."""
_SED_FLAG: Final = re.compile(r"(?P<extended>-[Er]|--regexp-extended)|(?P<in_place>-i.*|--in-place.*)")
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_SETS: Final = re.compile(r":?=|\+\+|--")
"""Signs of words that set variables."""
_LOG: Final = re.compile(r"log|out|res|err|stat|hist|trace|report|metric|te?mp|dev", re.IGNORECASE)
"""Names of variables that hold the path of what a command prints."""
_REDIRECTS: Final = frozenset([">", ">|", ">>", "&>", "&>>", ">&"])
_STREAM: Final = re.compile(r"\d+\Z|-\Z")


@dataclass(frozen=True, slots=True)
class _Call:
    """A command: its words without its name, the text that it reads, assignments in front of it."""

    words: list[Value]
    text: Value | None
    prefix: Mapping[str, Value]
    machine: Machine
    line: int


class Writer:
    """The files that the commands of a source write."""

    def __init__(self, reader: Words, source: Source, machine: Machine) -> None:
        self._reader, self._source, self._machine = reader, source, machine
        self.inputs: dict[int, Value | None] = {}
        """Text that each command of a pipeline reads, by its node; None where that is not known."""

    def here_document(self, node: Node) -> Value:
        """Return the text of a here document."""
        parts = {child.type: child for child in node.named_children}
        body = parts.get("heredoc_body")
        if body is None:
            return EMPTY
        start = self._source.raw(parts["heredoc_start"]) if "heredoc_start" in parts else ""
        text = self._reader.heredoc(body, expands=not set(start) & set("'\"\\"))
        return without_tabs(text) if node.children[0].type == "<<-" else text

    def write(self, body: Node | None, parts: Sequence[Node] = ()) -> None:
        """Keep what a pipeline, or a command with redirections, writes; what its words set is left to the command."""
        before = self._machine.state
        sets = body is not None and _SETS.search(self._source.raw(body)) is not None
        if sets:
            self._machine.state = before.fork()
        self._write(body, parts)
        if sets:
            before.files, self._machine.state = self._machine.state.files, before

    def _write(self, body: Node | None, parts: Sequence[Node]) -> None:
        """Keep what the stages of a pipeline write; the shell empties its files first."""
        stages = _stages(body, parts)
        outputs = [self._outputs(command, redirects) for command, redirects in stages]
        for emptied in (target for targets in outputs for target in targets if not target.appends):
            # Another command of a pipeline may read the file before it is emptied.
            self._keep(emptied, EMPTY if len(stages) == 1 else None)
        text: Value | None = None
        for (command, redirects), targets in zip(stages, outputs, strict=True):
            text = self._stage(command, redirects, targets, text)

    def _outputs(self, command: Node | None, redirects: Sequence[Node]) -> list[_Target]:
        """Return the files that a command's redirections write."""
        targets: list[_Target] = []
        for child in (*_children(command), *redirects):
            if child.type == "file_redirect" and len(child.children) > 1:
                operator, target = child.children[child.children[0].is_named :][:2]
                words = self._reader.fields(target) if operator.type in _REDIRECTS else []
                appends, errors = operator.type.endswith(">>"), self._source.raw(child)[0] in "023456789"
                line = self._source.line(child.start_byte)
                joins = operator.type == ">&"  # `2>&1`, unless a file follows
                targets += [_Target(w, line, appends, errors) for w in words if not joins or not _STREAM.match(w.text)]
        return targets

    def _stage(
        self, command: Node | None, redirects: Sequence[Node], targets: Sequence[_Target], text: Value | None
    ) -> Value | None:
        """Keep what a command writes, and return what it prints; None for what is not known."""
        line, reader = self._source.line(command.start_byte) if command is not None else 0, self._reader
        nodes = [child for child in _children(command) if "redirect" not in child.type]
        for child in (*_children(command), *redirects):
            if child.type == "heredoc_redirect":
                text = self.here_document(child)
            elif child.type == "herestring_redirect":
                text = joined([reader.value(child.named_children[-1]), text_value("\n", line)])
            elif child.type == "file_redirect" and len(child.children) > 1:
                operator, target = child.children[child.children[0].is_named :][:2]
                nodes += words_behind(child)
                if operator.type == "<":
                    text = joined(content(word, self._machine, line) for word in reader.fields(target))
        if command is not None:
            self.inputs[command.id] = text
        prints = self._printer(nodes, command.child_by_field_name("name") if _children(command) and command else None)
        written = EMPTY if command is None else None
        if prints is not None:
            prefix = {
                self._source.raw(node.named_children[0]): reader.value(node.named_children[-1])
                for node in nodes
                if node.type == "variable_assignment"
            }
            argv = [word for node in nodes if node.type != "variable_assignment" for word in reader.fields(node)]
            with suppress(TooLargeError):
                written = prints(_Call(argv[1:], text, prefix, self._machine, line))
            if argv[0].text == "tee":
                appends = any(word.text in ("-a", "--append") for word in argv)
                files = [word for word in argv[1:] if word.text[:1] != "-"]
                targets = [*targets, *(_Target(word, line, appends) for word in files)]
        for written_file in targets:
            # What a command reports as an error is known where it does nothing.
            self._keep(written_file, written if not written_file.errors or written is EMPTY else None)
        return written

    def _keep(self, target: _Target, text: Value | None) -> None:
        """Keep the text of a file, or of its end; None for one that nobody knows."""
        files, name = self._machine.state.files, target.word.text
        starts = not target.appends or files.removed(name)
        before = EMPTY if starts else text_of(self._machine, target.word, target.line)
        for spelling in spellings(target.word):
            files.change(spelling, target.line)
        if is_any_file(target.word):
            files.change(EVERYTHING, target.line)
        with suppress(TooLargeError):
            if text is not None and before is not None:
                files.write(name, joined([before, text]))

    def _printer(self, nodes: list[Node], first: Node | None) -> Callable[[_Call], Value | None] | None:
        """Return what prints as a command does; `sudo` in front is dropped from its nodes."""
        if first is not None and self._source.raw(first) == "sudo":
            nodes.remove(first)
            first = next((node for node in nodes if node.type != "variable_assignment"), None)
        return _PRINTED.get(PurePath(self._source.raw(first)).name) if first is not None else None


@dataclass(frozen=True, slots=True)
class _Target:
    """A file that a command writes."""

    word: Value
    line: int
    appends: bool
    errors: bool = False
    """Whether it holds what the command reports as errors."""


def _children(command: Node | None) -> Sequence[Node]:
    """Return the parts of a simple command; none of a group."""
    return command.named_children if command is not None and command.type == "command" else ()


def words_behind(redirect: Node) -> list[Node]:
    """Return the words of a command that stand behind a redirection of it."""
    return redirect.children[2 + redirect.children[0].is_named :]


_PipelineStage = tuple["Node | None", Sequence["Node"]]


def _stages(node: Node | None, parts: Sequence[Node] = ()) -> list[_PipelineStage]:
    """Return the commands of a pipeline, or the one command, each with its redirections."""
    stages: list[_PipelineStage] = [(node, ())]
    if node is not None and node.type == "pipeline":
        stages = [stage for child in node.named_children for stage in _stages(child)]
    elif node is not None and node.type == "redirected_statement":
        stages = _stages(node.children[0], node.children[1:])
    *before, (command, redirects) = stages
    nested = [part for child in parts if child.type == "heredoc_redirect" for part in child.children]
    piped = [stage for child in nested if child.type == "pipeline" for stage in _stages(child)]
    return [*before, (command, [*redirects, *parts, *nested]), *piped]


def _cat(call: _Call) -> Value | None:
    texts = [call.text if word.text == "-" else content(word, call.machine, call.line) for word in call.words]
    if any(word.text[:1] == "-" != word.text for word in call.words) or None in texts:
        return None
    return joined(text for text in texts if text is not None) if texts else call.text


def _envsubst(call: _Call) -> Value | None:
    """Return the text with the variables of the environment filled in, or with those that the first word names."""
    wanted = {name for word in call.words for match in _VARIABLE.finditer(word.text) for name in match.groups()}

    def put(match: re.Match[str]) -> Value:
        name = match[1] or match[2]
        if wanted and name not in wanted:
            return text_value(match[0], call.line)
        content = call.prefix.get(name) or call.machine.preset(name, call.line)
        if content is None and name in call.machine.state.exported:
            content = words(items_of(call.machine.lookup(name, call.line)))
        return content or hole(match[0], call.line, [Cause(call.line, name)])

    return None if call.text is None or not all(word.known for word in call.words) else _put(call.text, _VARIABLE, put)


@dataclass(frozen=True, slots=True)
class SedEdits:
    """What `sed` is asked for."""

    edits: list[Value]
    files: list[Value]
    flags: frozenset[str]
    """Of `extended`, `in_place`."""


def sed_edits(argv: Sequence[Value]) -> SedEdits | None:
    """Return what the words of `sed` ask for; None for a flag that is not followed."""
    edits: list[Value] = []
    files: list[Value] = []
    flags: set[str] = set()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag = _SED_FLAG.fullmatch(word.text)
        if word.text in ("-e", "--expression") and rest:
            edits.append(rest.pop(0))
        elif word.text.startswith("--expression="):
            edits.append(word.after(len("--expression=")))
        elif flag is not None:
            flags.add(flag.lastgroup or "")
        elif word.text[:1] == "-":
            return None
        else:
            files.append(word)
    return SedEdits(edits or files[:1], files if edits else files[1:], frozenset(flags))


def _sed(call: _Call) -> Value | None:
    asked = sed_edits(call.words)
    if asked is None or "in_place" in asked.flags:
        return None
    text = _cat(replace(call, words=asked.files))
    return None if text is None else edited(text, asked)


def edited(text: Value, asked: SedEdits) -> Value | None:
    """Return the text after commands `s/TEXT/other/` or `s/TEXT.*/other/g`; None for others of `sed`."""
    for edit in asked.edits:
        script, holes = _marked(edit.pieces)
        if not script:
            return None  # BSD's `-i ''`: what the next word is differs by system
        end = 0
        while end < len(script):
            match = _SUBSTITUTION.match(script, end)
            if match is None or ("extended" in asked.flags and _EXTENDED.search(match[2])):
                return None
            pattern = re.escape(re.sub(r"\\(.)", r"\1", match[2])) + (match[3] or "")
            inserted = Value(tuple(_unmarked(re.sub(r"\\(.)", r"\1", match[4]), holes, edit.line)))
            text = _put(text, re.compile(pattern), partial(_same, inserted), count=None if match[5] else 1)
            end = match.end()
            end += not script[end:].strip(";\n \t") and len(script) - end
    return text


def _same(text: Value, _match: re.Match[str]) -> Value:
    return text


def _put(
    text: Value, pattern: re.Pattern[str], put: Callable[[re.Match[str]], Value], *, count: int | None = None
) -> Value:
    """Return the text with others in the place of what matches, `count` times in each line."""
    pieces: list[Piece] = []
    for row in _rows(text):
        marked, holes = _marked(row)
        charge(len(marked))
        before = 0
        for match in islice(pattern.finditer(marked), count):
            inserted = put(match).pieces
            charge(1 + len(inserted))
            pieces += [*_unmarked(marked[before : match.start()], holes, row[0].line), *inserted]
            before = match.end()
        pieces += _unmarked(marked[before:], holes, row[0].line)
    return Value(tuple(pieces))


def _rows(text: Value) -> Iterator[list[Piece]]:
    """Yield the pieces of each line."""
    row: list[Piece] = []
    for piece in text.pieces:
        for part in re.findall(r"[^\n]*\n|[^\n]+", piece.text) if piece.known else [piece.text]:
            row.append(replace(piece, text=part))
            if piece.known and part.endswith("\n"):
                yield row
                row = []
    if row:
        yield row


def _marked(pieces: Sequence[Piece]) -> tuple[str, dict[str, Piece]]:
    """Return a text with a private character for each hole, and the holes by it."""
    holes: dict[str, Piece] = {}
    text = ""
    for piece in pieces:
        mark = "" if piece.known else chr(ord(_PRIVATE[0]) + len(holes))
        holes |= {mark: piece} if mark else {}
        text += mark or piece.text
    return text, holes


def _unmarked(text: str, holes: Mapping[str, Piece], line: int) -> list[Piece]:
    return [holes.get(part) or Piece(part, line, quoted=True) for part in HOLES.split(text) if part]


def is_any_file(word: Value) -> bool:
    """Whether a file that is written may be any: its name is not known at all, and does not say that it is a log."""
    unknown = bool(word.pieces) and not any(piece.text if piece.known else piece.alternatives for piece in word.pieces)
    return unknown and _LOG.search(word.text) is None


def spellings(word: Value) -> list[str]:
    """Return the names that a word may stand for, by the branch that the script takes; its own last."""
    parts = [piece.text for piece in word.pieces]
    for number, piece in enumerate(word.pieces):
        if piece.alternatives:
            others = ["".join([*parts[:number], part.text, *parts[number + 1 :]]) for part in piece.alternatives]
            return [*others, word.text]
    return [word.text]


def content(file: Value, machine: Machine, line: int) -> Value:
    """Return the text of a file as the script has left it; what nobody knows where it is not at hand."""
    text = left_in(machine, file, line)
    return hole(file.text, line, file.causes or [Cause(line, file.text)]) if text is None else text


_PRINTED: Final[Mapping[str, Callable[[_Call], Value | None]]] = {
    ":": lambda _call: EMPTY,
    "cat": _cat,
    "echo": lambda call: echo_output([EMPTY, *call.words], call.line),
    "envsubst": _envsubst,
    "printf": lambda call: printf_output(call.words, call.line),
    "sed": _sed,
    "tee": lambda call: call.text,
    "true": lambda _call: EMPTY,
}
"""What a command prints."""
