"""Files that a script would write: here documents as text, others as text that nobody knows. Nothing is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from simulator.frameworks.launch import plain_path
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.values import EMPTY, Cause, Value, hole
from simulator.recipes.shell.words import Words

if TYPE_CHECKING:
    from tree_sitter import Node


def written_files(node: Node, document: Node, words: Words, source: Source) -> Iterator[tuple[str, Value]]:
    """Name and text of every file that a redirected command, or the one it is piped to, writes."""
    redirects = [*node.children, *document.children]
    body = next((child for child in document.children if child.type == "heredoc_body"), None)
    start = "".join(source.raw(child) for child in document.children if child.type == "heredoc_start")
    expands = not set(start) & set("'\"\\")
    piped = [
        child.named_children[0] for child in document.children if child.type == "pipeline" and child.named_children
    ]
    for command in (node.children[0], *piped):
        for target in _targets(command, redirects, words):
            yield plain_path(target.text), words.heredoc(body, expands=expands) if body is not None else EMPTY


_SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml")
_IN_PLACE: Final = {"sed": r"-[A-Za-z]*i.*|--in-place.*", "perl": r"-[a-z]*i.*", "yq": r"-[a-z]*i|--inplace"}
"""Flags by which a command edits the files that it names."""


def changed_files(argv: Sequence[Value], line: int) -> dict[str, Value]:
    """Configuration files that a command edits or copies over, by name, as text that nobody knows."""
    command, named = argv[0].text, [word.text for word in argv[1:] if word.text.endswith(_SUFFIXES)]
    flag = _IN_PLACE.get(command)
    if flag is not None:
        named = named if any(re.fullmatch(flag, word.text) for word in argv[1:]) else []
    elif command in ("cp", "mv"):
        named = [name for name in named[-1:] if name == argv[-1].text]
    else:
        named = []
    return unknown_files(named, line)


def unknown_files(names: Iterable[str], line: int) -> dict[str, Value]:
    """Configuration files among the names, as text that only the run knows."""
    return {plain_path(name): hole(name, line, [Cause(line, name)]) for name in names if name.endswith(_SUFFIXES)}


def redirected_names(redirects: Iterable[Node], words: Words) -> Iterator[str]:
    """Names of the files that redirections write."""
    for child in redirects:
        if child.type == "file_redirect" and child.named_children and child.children[0].type in (">", ">|", ">>"):
            yield from (field.text for field in words.fields(child.named_children[-1]))


def tee_names(command: Node, words: Words) -> list[str]:
    """Names of the files that a `tee` writes; none of another command."""
    return [word.text for word in _targets(command, (), words)] if command.type == "command" else []


def _targets(command: Node, redirects: Sequence[Node], words: Words) -> list[Value]:
    """Files that a command writes what it reads to."""
    children = command.named_children if command.type == "command" else []
    argv = [field for child in children if "redirect" not in child.type for field in words.fields(child)]
    name = argv[0].text if argv else ""
    if name == "tee":
        return [word for word in argv[1:] if not word.text.startswith("-")]
    outputs = [
        child
        for child in redirects
        if child.type == "file_redirect" and child.named_children and child.children[0].type in (">", ">|")
    ]
    return [field for child in outputs for field in words.fields(child.named_children[-1])] if name == "cat" else []
