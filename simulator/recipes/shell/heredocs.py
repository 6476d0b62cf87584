"""Files that `cat` and `tee` would write from here documents, kept as text. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simulator.frameworks.launch import plain_path
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.values import EMPTY, Value
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
