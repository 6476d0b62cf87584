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
from simulator.frameworks.launch import plain_path
from simulator.recipes.shell.capture import echo_output, printf_output, without_tabs
from simulator.recipes.shell.includes import text_of
from simulator.recipes.shell.machine import Machine, items_of, words
from simulator.recipes.shell.source import HOLES, Source
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
_CONFIGURATIONS: Final = (".json", ".yaml", ".yml", ".toml", ".sh")
_IN_PLACE: Final = {"sed": r"-[A-Za-z]*i.*|--in-place.*", "perl": r"-[a-z]*i.*", "yq": r"-[a-z]*i|--inplace"}
"""Flags by which a command edits the files that it names."""
_WRITERS: Final = frozenset(["curl", "dd", "rm", "sponge", "truncate", "wget"])
"""Commands that leave in a file that they name what nobody knows."""
_COPIES: Final = frozenset(["cp", "mv", "ln", "install", "rsync"])
_REDIRECTS: Final = frozenset([">", ">|", ">>", "&>", "&>>"])


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

    def here_document(self, node: Node) -> Value:
        """Return the text of a here document."""
        parts = {child.type: child for child in node.named_children}
        body = parts.get("heredoc_body")
        if body is None:
            return EMPTY
        start = self._source.raw(parts["heredoc_start"]) if "heredoc_start" in parts else ""
        text = self._reader.heredoc(body, expands=not set(start) & set("'\"\\"))
        return without_tabs(text) if node.children[0].type == "<<-" else text

    def write(self, node: Node) -> None:
        """Keep what a pipeline, or a command with redirections, writes."""
        text: Value | None = None
        for command, redirects in _stages(node):
            text = self._stage(command, redirects, text)

    def _stage(self, command: Node, redirects: Sequence[Node], text: Value | None) -> Value | None:
        """Keep what a command writes, and return what it prints; None for what is not known."""
        line, reader = self._source.line(command.start_byte), self._reader
        children = command.named_children if command.type == "command" else []
        nodes = [child for child in children if "redirect" not in child.type]
        targets: list[tuple[str, bool]] = []
        for child in (*children, *redirects):
            if child.type == "heredoc_redirect":
                text = self.here_document(child)
            elif child.type == "herestring_redirect":
                text = joined([reader.value(child.named_children[-1]), text_value("\n", line)])
            elif child.type == "file_redirect" and len(child.children) > 1:
                operator, target = child.children[child.children[0].is_named :][:2]
                nodes += words_behind(child)
                if operator.type == "<":
                    text = joined(_content(word, self._machine, line) for word in reader.fields(target))
                elif operator.type in _REDIRECTS and self._source.raw(child)[0] != "2":
                    targets += [(word.text, operator.type.endswith(">>")) for word in reader.fields(target)]
        first = command.child_by_field_name("name") if children else None
        prints = self._printer(nodes, first)
        written: Value | None = None
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
                appends = any(word.text == "-a" for word in argv)
                targets += [(word.text, appends) for word in argv[1:] if word.text[:1] != "-"]
        for name, appends in targets:
            _keep(self._machine, name, written, line, appends=appends)
        return written

    def _printer(self, nodes: list[Node], first: Node | None) -> Callable[[_Call], Value | None] | None:
        """Return what prints as a command does; `sudo` in front is dropped from its nodes."""
        if first is not None and self._source.raw(first) == "sudo":
            nodes.remove(first)
            first = next((node for node in nodes if node.type != "variable_assignment"), None)
        return _PRINTED.get(PurePath(self._source.raw(first)).name) if first is not None else None


def words_behind(redirect: Node) -> list[Node]:
    """Return the words of a command that stand behind a redirection of it."""
    return redirect.children[2 + redirect.children[0].is_named :]


_PipelineStage = tuple["Node", Sequence["Node"]]


def _stages(node: Node) -> list[_PipelineStage]:
    """Return the commands of a pipeline, or the one command, each with its redirections."""
    if node.type == "pipeline":
        return [stage for child in node.named_children for stage in _stages(child)]
    if node.type != "redirected_statement":
        return [(node, ())]
    *before, (command, redirects) = _stages(node.children[0])
    nested = [part for child in node.children if child.type == "heredoc_redirect" for part in child.children]
    piped = [stage for child in nested if child.type == "pipeline" for stage in _stages(child)]
    return [*before, (command, [*redirects, *node.children[1:], *nested]), *piped]


def _cat(call: _Call) -> Value | None:
    texts = [call.text if word.text == "-" else _content(word, call.machine, call.line) for word in call.words]
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
class _Edits:
    """What `sed` is asked for."""

    edits: list[Value]
    files: list[Value]
    flags: frozenset[str]
    """Of `extended`, `in_place`."""


def _edits(argv: Sequence[Value]) -> _Edits | None:
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
    return _Edits(edits or files[:1], files if edits else files[1:], frozenset(flags))


def _sed(call: _Call) -> Value | None:
    asked = _edits(call.words)
    if asked is None or "in_place" in asked.flags:
        return None
    text = _cat(replace(call, words=asked.files))
    return None if text is None else _edited(text, asked)


def _edited(text: Value, asked: _Edits) -> Value | None:
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


def _content(file: Value, machine: Machine, line: int) -> Value:
    """Return the text of a file as the script has left it; what nobody knows where it is not at hand."""
    text = machine.state.files.get(plain_path(file.text))
    if text is None:
        text = text_of(machine, file, line)
    return hole(file.text, line, file.causes or [Cause(line, file.text)]) if text is None else text


_PRINTED: Final[Mapping[str, Callable[[_Call], Value | None]]] = {
    "cat": _cat,
    "echo": lambda call: echo_output([EMPTY, *call.words], call.line),
    "envsubst": _envsubst,
    "printf": lambda call: printf_output(call.words, call.line),
    "sed": _sed,
    "tee": lambda call: call.text,
}
"""What a command prints."""


def change_files(argv: Sequence[Value], machine: Machine, line: int) -> None:
    """Keep what a command makes of the files that it edits, copies or moves."""
    name, named = PurePath(argv[0].text).name, [word for word in argv[1:] if word.text[:1] != "-"]
    if name == "sudo" and named:
        change_files(argv[argv.index(named[0]) :], machine, line)
    elif name in _WRITERS:
        for path in {plain_path(word.text.rpartition("=")[2]) for word in argv[1:]} & machine.state.files.keys():
            _keep(machine, path, None, line)
    elif name in _COPIES:
        target = named.pop().text if named else ""
        for source in named:
            # Whether the target is a folder is not known: the file is kept under both names.
            paths = [target, str(PurePath(target, PurePath(source.text).name))]
            paths = [path for path in paths if path.endswith(_CONFIGURATIONS)]
            text = _content(source, machine, line) if name in ("cp", "mv") and paths else None
            for path in paths:
                _keep(machine, path, text, line)
    elif name in _IN_PLACE and any(re.fullmatch(_IN_PLACE[name], word.text) for word in argv[1:]):
        asked = _edits(argv[1:]) if name == "sed" else None
        for file in named if asked is None else asked.files:
            _keep(machine, file.text, None if asked is None else _edited(_content(file, machine, line), asked), line)


def _keep(machine: Machine, name: str, text: Value | None, line: int, *, appends: bool = False) -> None:
    """Keep the text of a file, or of its end; None for one that nobody knows."""
    name = plain_path(name)
    before = machine.state.files.get(name) if appends else EMPTY
    machine.state.files[name] = hole(name, line, [Cause(line, name)])
    with suppress(TooLargeError):
        if text is not None and before is not None:
            machine.state.files[name] = joined([before, text])
