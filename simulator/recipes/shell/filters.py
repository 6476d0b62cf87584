"""Text that `cat` and `sed` make of a file: a configuration filled in from a template. Runs none of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.recipes.shell.includes import text_of
from simulator.recipes.shell.machine import Machine
from simulator.recipes.shell.values import Cause, Piece, Value, hole
from simulator.recipes.shell.words import Words

if TYPE_CHECKING:
    from tree_sitter import Node

_START: Final = re.compile(r"s([/#|,:@!])([\w-]+)\1")
"""`s/NAME/` of a substitution whose pattern is a plain word."""
_SPECIAL: Final = frozenset("&\\\n")
"""Marks that mean something in what is put in its place."""


def stages_of(node: Node) -> list[Node]:
    """Return the commands of a pipeline, or the one command; without redirections."""
    stages = node.named_children if node.type == "pipeline" else [node]
    return [stage.named_children[0] if stage.type == "redirected_statement" else stage for stage in stages]


def filtered(stages: Sequence[Node], words: Words, machine: Machine, line: int) -> Value | None:
    """Return what `cat FILE` or `sed s/NAME/text/ FILE`, and the `sed` behind it, print; None for other commands."""
    text: Value | None = None
    for stage in stages:
        if stage.type != "command":
            return None
        argv = [field for child in stage.named_children for field in words.fields(child)]
        text = _stage(argv, text, machine, line)
        if text is None:
            return None
    return text


def _stage(argv: Sequence[Value], text: Value | None, machine: Machine, line: int) -> Value | None:
    """Return what one command prints of a text, or of the file that it names."""
    name, rest = argv[0].text if argv else "", list(argv[1:])
    edits: list[Value] = []
    if name == "sed":
        while len(rest) > 1 and rest[0].text == "-e":
            edits.append(rest[1])
            del rest[:2]
        edits += [] if edits else [rest.pop(0)] if rest else []
    elif name != "cat":
        return None
    if (text is None) != (len(rest) == 1) or len(rest) > 1:
        return None
    text = _text(rest[0], machine, line) if text is None else text
    for edit in edits:
        text = _edited(text, edit)
        if text is None:
            return None
    return text


def _text(file: Value, machine: Machine, line: int) -> Value:
    """Return the text of a file; where it is not at hand, what nobody knows for want of it."""
    text = text_of(machine, file, line)
    if text is not None:
        return text
    if file.known:
        remark = f"{file.text[:200]} is not beside the recipe: what is made of it is not known"
        machine.remark("base-configuration", "warning", remark, line, f"--set {shlex.quote(f'{file.text[:200]}=PATH')}")
    return hole(file.text, line, file.causes or [Cause(line, file.text)])


def _edited(text: Value, edit: Value) -> Value | None:
    """Return the text after `s/NAME/text/` or `s/NAME/text/g`; None for another command of `sed`."""
    start = _START.match(edit.pieces[0].text) if edit.pieces and edit.pieces[0].known else None
    if start is None or not edit.pieces[-1].known:
        return None
    mark, pattern = start[1], start[2]
    behind = edit.after(start.end()).pieces
    last, end, flag = behind[-1].text.rpartition(mark) if behind else ("", "", "")
    inserted = [*behind[:-1], replace(behind[-1], text=last)] if behind else []
    if not end or flag not in ("", "g") or any(piece.known and _SPECIAL & {*piece.text} for piece in inserted):
        return None
    if any(piece.known and mark in piece.text for piece in inserted):
        return None
    whole = "".join(piece.text if piece.known else "\n" for piece in text.pieces)
    if whole.count(pattern) != sum(piece.text.count(pattern) for piece in text.pieces if piece.known):
        return None  # a name that stands in what one edit left and in what another put in
    pieces: list[Piece] = []
    is_done = False
    for piece in text.pieces:
        if not piece.known:
            pieces.append(piece)
            continue
        before = 0
        for match in re.finditer(rf"{pattern}|\n", piece.text):
            charge(1)
            if match[0] == "\n":
                is_done = False
            elif flag or not is_done:
                pieces += (replace(piece, text=piece.text[before : match.start()]), *inserted)
                before, is_done = match.end(), True
        pieces.append(replace(piece, text=piece.text[before:]))
    return Value(tuple(piece for piece in pieces if piece.text))
