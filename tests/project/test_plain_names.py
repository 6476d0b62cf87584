"""No variable of the package is called by a word that stands for anything.

`found` is what some search found and `given` what some caller gave: the reader has to look up which. A thing has the
name that the field gives it.
"""

import ast
from collections.abc import Iterator

from tests.project.tree import ROOT, files_under

VAGUE = frozenset({"asked", "found", "given", "told", "kept", "has", "least", "of", "one", "what"})


def bound(tree: ast.AST) -> Iterator[str]:
    """Names that a function's own body or a class binds: parameters, targets of assignments and loops, fields."""
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = scope.args
            own = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
            if not isinstance(scope, ast.Lambda):
                own |= {node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and _stored(node)}
            yield from own
        elif isinstance(scope, ast.ClassDef):
            yield from (
                node.target.id
                for node in scope.body
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            )


def _stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def test_no_variable_has_a_vague_name() -> None:
    vague = {
        f"{path}: {name}"
        for path in files_under("simulator", ".py")
        for name in bound(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if name in VAGUE
    }
    assert vague == set()
