"""Output of commands that follows from the script alone: `echo`, `printf`, `cat`, `expr`. Runs none of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.errors import InputError, UndecidedError
from simulator.recipes.shell import arithmetic
from simulator.recipes.shell.choices import unlike
from simulator.recipes.shell.state import Output
from simulator.recipes.shell.values import EMPTY, Piece, Value, hole, joined, text_value
from simulator.recipes.shell.walk import Walk

if TYPE_CHECKING:
    from tree_sitter import Node

_SPEAKING: Final = frozenset(["echo", "printf", "cat", "expr", "pwd"])
SILENT: Final = frozenset(
    ["cd", "mkdir", "rm", "cp", "mv", "ln", "touch", "chmod", "sleep", "set", "shopt", "trap", ":", "true"]
)
"""Commands that print nothing."""
_MARK: Final = re.compile(r"(%[sdi%]|\\n|\\t|\\.|%)")
_PART_WORK: Final = 50
"""Units of work of one part of a format."""
_MAXIMUM_ARGUMENTS: Final = 256


def captured(runner: Walk, node: Node) -> Value | None:
    """Return the output of the command in `$( )`, without trailing line breaks; None where it is not known."""
    machine = runner.machine
    statements = [child for child in node.named_children if child.type != "comment"]
    if not statements or not _speaks(runner, statements[0]):
        return None
    before, outer, calls = machine.state, (machine.output, machine.tested, len(machine.shadowed)), len(machine.calls)
    aside = machine.aside()
    output = Output(len(machine.conditions))
    machine.state, machine.output = before.fork(), output
    launches = len(runner.launches)
    machine.state.options = {option: on for option, on in before.options.items() if option != "e"}
    machine.state.trap = None
    try:
        machine.substituted = runner.all(statements)
        runner.end()
    except (InputError, UndecidedError):
        output.whole = False
    before.files = machine.state.files.copy(before.files.folder, before.files.stack)
    machine.state, (machine.output, machine.tested, shadowed) = before, outer
    machine.back(aside)
    runner.launches[launches:] = unlike(runner.launches[:launches], runner.launches[launches:])
    del machine.calls[calls:], machine.shadowed[shadowed:]
    return _without_end(joined(output.parts)) if output.whole else None


def _speaks(runner: Walk, node: Node) -> bool:
    """Whether a statement begins with a command whose output is read."""
    while node.type in ("redirected_statement", "command") and node.named_children:
        node = node.named_children[0]
    name = runner.source.raw(node)
    return name in _SPEAKING or name in runner.machine.state.functions


def echo_output(argv: Sequence[Value], line: int) -> Value | None:
    """Return the output of `echo`; None for escapes that are not read."""
    words = list(argv[1:])
    ends = True
    while words and words[0].known and re.fullmatch(r"-[neE]+", words[0].text):
        if "e" in words[0].text and any("\\" in word.text for word in words):
            return None
        ends = ends and "n" not in words[0].text
        words.pop(0)
    # A word that may be none has no space of its own.
    spaces = (hole(" ", line, word.causes) if word.open else text_value(" ", line) for word in words)
    parts = [part for number, pair in enumerate(zip(spaces, words, strict=True)) for part in pair[number == 0 :]]
    return joined([*parts, text_value("\n", line)] if ends else parts)


def printf_output(words: Sequence[Value], line: int) -> Value | None:
    """Return the output of `printf` for a format and its arguments; None for a format that is not read."""
    if words and words[0].text[:1] == "-":  # an option, which a format is too that begins so
        words = words[1:] if words[0].text == "--" else ()
    if not words or not words[0].known or len(words) > _MAXIMUM_ARGUMENTS:
        return None
    rest = list(words[1:])
    pieces: list[Value] = []
    parts = _MARK.split(words[0].text)
    while True:
        before = len(rest)
        for text in parts:
            charge(_PART_WORK)
            if text in ("%d", "%i") and rest and rest[0].known and not re.fullmatch(r"0|-?[1-9]\d*", rest[0].text):
                return None
            if text in ("%s", "%d", "%i"):
                pieces.append(rest.pop(0) if rest else EMPTY)
            elif text in ("%%", "\\n", "\\t", "\\\\"):
                pieces.append(text_value({"%%": "%", "\\n": "\n", "\\t": "\t"}.get(text, "\\"), line))
            elif _MARK.fullmatch(text):
                return None
            else:
                pieces.append(text_value(text, line))
        if not rest or len(rest) == before:
            return joined(pieces)


def expr_output(argv: Sequence[Value], line: int) -> Value | None:
    """Return the output of `expr` for whole numbers; None for other words."""
    words = [value.text for value in argv[1:]]
    if not all(value.known for value in argv) or not all(re.fullmatch(r"-?\d{1,18}|[-+*/%()]", word) for word in words):
        return None
    try:
        return text_value(f"{arithmetic.evaluate(' '.join(words), lambda _name: 0)}\n", line)
    except arithmetic.ArithmeticProblemError:
        return None


def _without_end(value: Value) -> Value:
    """Return the value without trailing line breaks."""
    pieces = list(value.pieces)
    while pieces and pieces[-1].known:
        last = pieces.pop()
        text = last.text.rstrip("\n")
        if text:
            pieces.append(Piece(text, last.line, quoted=last.quoted, splits=last.splits))
            break
    return Value(tuple(pieces))


def without_tabs(value: Value) -> Value:
    """Return the text of a `<<-` here document."""
    return Value(
        tuple(
            Piece(piece.text.lstrip("\t"), piece.line, quoted=piece.quoted) if piece.known else piece
            for piece in value.pieces
        )
    )
