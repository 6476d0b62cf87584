"""Changes of one expression in a Python file, such as a wrong factor, comparison or branch."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
NAMES = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "ceil": "floor",
    "floor": "ceil",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
}
"""Functions that are easily taken for each other."""


@dataclass(frozen=True)
class Mutant:
    """One expression of a file put in place of another."""

    path: str
    line: int
    start: int
    """Where the expression begins, in bytes of the file."""
    end: int
    before: str
    after: str
    within: tuple[int, int] | None
    """First and last line of the function it stands in; None where it is worked out by importing the file."""
    nth: int
    """Which of the file's mutants with both expressions it is, from 0."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What tells it from all others, wherever in its file it stands."""
        return self.path, self.before, self.after, self.nth

    def __str__(self) -> str:
        """File, line and both expressions."""
        return f"{self.path}:{self.line}: {' '.join(self.before.split())}  ->  {self.after}"

    def applied(self, text: str) -> str:
        """The file with the change in it."""
        data = text.encode()
        return (data[: self.start] + f"({self.after})".encode() + data[self.end :]).decode()


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a file; `path` is only written down."""
    data = text.encode()
    lines = [0]
    for line in data.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    tree = ast.parse(text)
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    starts = [min([one.lineno, *(decorator.lineno for decorator in one.decorator_list)]) for one in functions]
    ranges = [(start, one.end_lineno or one.lineno) for start, one in zip(starts, functions, strict=True)]
    seen: Counter[tuple[str, str]] = Counter()
    for node in _expressions(tree):
        around = [lines_of for lines_of in ranges if lines_of[0] <= node.lineno <= lines_of[1]]
        within = max(around, default=None)  # the innermost begins last
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = data[start:end].decode()
        for other in _changes(node):
            after = ast.unparse(other)
            if after != ast.unparse(node):
                yield Mutant(path, node.lineno, start, end, before, after, within, seen[before, after])
                seen[before, after] += 1


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that compute something: no types, decorators, texts, imports, refusals or `strict` of zip."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Assign) and _is_type(node.value):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    if isinstance(node, ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _expressions(child)


def _is_type(node: ast.expr) -> bool:
    """Whether this is a name for types, such as `Array | float`."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_type(left) and _is_type(right)
        case ast.Subscript(value=value):
            return _is_type(value)
        case ast.Name(id=name):
            return name.lstrip("_")[:1].isupper() and not name.isupper()
    return False


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) in OPERATORS:
                yield ast.BinOp(left, OPERATORS[type(op)](), right)
            if isinstance(op, ast.Add | ast.Sub | ast.BitAnd | ast.BitOr):
                yield left
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
            if value > 1:
                yield ast.Constant(value - 1)
        case ast.Call(func=func, args=args, keywords=keywords):
            yield from _calls(func, args, keywords)
        case _:
            yield from _choices(node)


def _choices(node: ast.expr) -> Iterator[ast.expr]:
    """Another comparison, or one branch whatever is asked."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse


def _calls(func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Iterator[ast.expr]:
    """Another function of the kind, or another branch of a choice."""
    if isinstance(func, ast.Attribute) and func.attr in NAMES:
        yield ast.Call(ast.Attribute(func.value, NAMES[func.attr], ast.Load()), args, keywords)
    if isinstance(func, ast.Name) and func.id in NAMES:
        yield ast.Call(ast.Name(NAMES[func.id], ast.Load()), args, keywords)
    if isinstance(func, ast.Attribute) and func.attr == "where" and len(args) == 3:
        yield args[1]
        yield args[2]
