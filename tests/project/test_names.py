"""A type has a name of its own: no class or alias is called like one of another module."""

import ast
import re
from collections.abc import Iterator

from tests.project.tree import ROOT, files_under

TYPE = re.compile(r"_?[A-Z][a-z][A-Za-z0-9]*|_?[A-Z][a-z]*[A-Z]")
"""How classes and aliases of types are spelled; constants are in capitals."""


def _types(text: str) -> Iterator[str]:
    """Classes and aliases at the top level of a module."""
    for node in ast.parse(text).body:
        names: list[ast.expr] = []
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            names = node.targets
        elif isinstance(node, ast.AnnAssign):
            names = [node.target]
        yield from (name.id for name in names if isinstance(name, ast.Name) and TYPE.fullmatch(name.id))


def test_types_are_told_from_constants() -> None:
    text = "class Group: ...\nKind = Literal['a']\n_Found = list[int]\nMOST = 3\n_NAMES: Final = ()\n__all__ = []\n"
    assert list(_types(text)) == ["Group", "Kind", "_Found"]


def test_no_two_types_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in files_under("simulator", ".py"):
        for name in _types((ROOT / path).read_text(encoding="utf-8")):
            homes.setdefault(name, []).append(path.as_posix())
    assert len(homes) > 100
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
