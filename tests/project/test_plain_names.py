"""No wing gains variables called by a word that stands for anything; the budgets of those there are only shrink.

`found` is what some search found and `given` what some caller gave: the reader has to look up which. A thing has the
name that the field gives it.
"""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.project.tree import ROOT, files_under

VAGUE = frozenset({"found", "given", "told", "kept", "has", "least", "one"})
BUDGETS = {"cost": 21}
"""Parameters, locals and fields of a wing with such a name, each counted once in a function; `.` is the package itself.

`kept` stands in the cost wing for what operations keep for their backward pass, which is its name.
"""


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


def counts() -> Counter[str]:
    """Vague names by folder under `simulator`; `frameworks`, which takes files over from `recipes`, counts as that."""
    result: Counter[str] = Counter()
    for path in files_under("simulator", ".py"):
        wing = path.parts[1] if len(path.parts) > 2 else "."
        wing = "recipes" if wing == "frameworks" else wing
        names = bound(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        result[wing] += sum(name in VAGUE for name in names)
    return result


def test_no_wing_has_more_vague_names_than_it_had() -> None:
    assert {wing: count for wing, count in counts().items() if count > BUDGETS.get(wing, 0)} == {}
