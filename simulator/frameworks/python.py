"""Return values of functions in a Python file, by reading it: assignments, calls, conditions, imports beside it.

Nothing of the file is executed. Names of packages that are not beside it stay names, and values that depend on the
machine are `OpenValue`. A condition on one leaves everything unknown that either branch sets.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.budget import charge
from simulator.errors import InputError
from simulator.frameworks.python_expressions import (
    STEP,
    WRONG,
    Class,
    Default,
    Expressions,
    Instance,
    LeftError,
    Module,
    Outside,
    PythonFunction,
    RaisedError,
    ReturnedError,
    Scopes,
)
from simulator.frameworks.values import root_of
from simulator.question.origin import Place
from simulator.question.specs.documents import read_limited

_READ: Final = 100
"""Units of work of one node of a file."""


class PythonReader(Expressions):
    """Reader of the files of one checkout, each read once."""

    def __init__(self, default: Default | None = None, follows: Callable[[str], bool] = lambda _: True) -> None:
        """`default` returns the value of unset fields; `follows` decides, by dotted name, whether a module is read."""
        super().__init__(default)
        self.modules: dict[Path, Module] = {}
        self.follows = follows
        self.unsure = 0
        """Number of enclosing conditions whose outcome is not known."""

    # Modules.

    def module(self, path: Path) -> Module:
        """Read a file with the names at its top level. Raises InputError for text that is not Python."""
        result = self.modules.get(path)
        if result is not None:
            return result
        try:
            tree = ast.parse(read_limited(path))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{path}: no Python that can be read: {str(error)[:120]}") from error
        charge(_READ * sum(1 for _ in ast.walk(tree)))
        result = self.modules[path] = Module(path)
        with contextlib.suppress(RaisedError, ReturnedError, LeftError):
            self.run(tree.body, (result.names,), result)
        return result

    def _file(self, name: str, near: Path) -> Path | None:
        """Return the file of a module, searched in the folders above the importing file; None without one."""
        if not self.follows(name):
            return None
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        root = root_of(near).absolute()
        for folder in near.absolute().parents:
            for start in (folder, folder / "src"):
                for file in (start.joinpath(*parts).with_suffix(".py"), start.joinpath(*parts, "__init__.py")):
                    if file.is_file():
                        return file
            if folder == root:
                break
        return None

    def imported(self, name: str, near: Module) -> Module | Outside:
        """Return a module by its dotted name, or an `Outside` where it is not in the checkout."""
        file = self._file(name, near.path)
        return Outside(name) if file is None else self.module(file)

    def _import_from(self, node: ast.ImportFrom, names: dict[str, Any], module: Module) -> None:
        base = node.module or ""
        if node.level:
            folder = module.path.parents[node.level - 1]
            file = folder.joinpath(*base.split(".")) if base else folder
            files = (file.with_suffix(".py"), file / "__init__.py")
            known = next((path for path in files if path.is_file()), None)
            source: Module | Outside = self.module(known) if known else Outside(base)
        else:
            source = self.imported(base, module)
        for alias in node.names:
            if alias.name == "*":
                if isinstance(source, Module):
                    names |= {name: value for name, value in source.names.items() if not name.startswith("_")}
                continue
            value = source.names.get(alias.name) if isinstance(source, Module) else None
            if value is None:
                inner = self.imported(f"{base}.{alias.name}", module) if base and not node.level else None
                value = inner if isinstance(inner, Module) else Outside(f"{base}.{alias.name}")
            names[alias.asname or alias.name] = value

    # Statements.

    def run(self, body: Sequence[ast.stmt], scopes: Scopes, module: Module) -> None:
        """Run statements; kinds without a `_run_` method are skipped."""
        for statement in body:
            charge(STEP)
            run = getattr(self, f"_run_{type(statement).__name__}", None)
            if run is not None:
                run(statement, scopes, module)

    def _run_Import(self, node: ast.Import, scopes: Scopes, module: Module) -> None:  # noqa: N802, ARG002  as its node
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            scopes[0][alias.asname or name] = Outside(name)

    def _run_ImportFrom(self, node: ast.ImportFrom, scopes: Scopes, module: Module) -> None:  # noqa: N802
        self._import_from(node, scopes[0], module)

    def _run_FunctionDef(self, node: ast.FunctionDef, scopes: Scopes, module: Module) -> None:  # noqa: N802
        scopes[0][node.name] = PythonFunction(node, scopes, module, node.name)

    def _run_ClassDef(self, node: ast.ClassDef, scopes: Scopes, module: Module) -> None:  # noqa: N802
        scopes[0][node.name] = Class(node, module, tuple(self.value(base, scopes, module) for base in node.bases))

    def _run_Expr(self, node: ast.Expr, scopes: Scopes, module: Module) -> None:  # noqa: N802
        self.value(node.value, scopes, module)

    def _run_Assign(self, node: ast.Assign, scopes: Scopes, module: Module) -> None:  # noqa: N802
        value = self.value(node.value, scopes, module)
        for target in node.targets:
            self.assign(target, value, scopes, module, self._origin(node.value, scopes, module))

    def _run_AnnAssign(self, node: ast.AnnAssign, scopes: Scopes, module: Module) -> None:  # noqa: N802
        if node.value is not None:
            self.assign(node.target, self.value(node.value, scopes, module), scopes, module)

    def _run_AugAssign(self, node: ast.AugAssign, scopes: Scopes, module: Module) -> None:  # noqa: N802
        left = self.value(node.target, scopes, module)
        right = self.value(node.value, scopes, module)
        self.assign(node.target, self._combined(node.op, left, right, node, module), scopes, module)

    def _run_Return(self, node: ast.Return, scopes: Scopes, module: Module) -> None:  # noqa: N802
        value = None if node.value is None else self.value(node.value, scopes, module)
        raise ReturnedError(self.unknown(node, module) if self.unsure and not isinstance(value, Instance) else value)

    def _run_Raise(self, node: ast.Raise, scopes: Scopes, module: Module) -> None:  # noqa: N802, ARG002
        raise RaisedError

    def _run_Break(self, node: ast.Break, scopes: Scopes, module: Module) -> None:  # noqa: N802, ARG002
        raise LeftError(whole=True)

    def _run_Continue(self, node: ast.Continue, scopes: Scopes, module: Module) -> None:  # noqa: N802, ARG002
        raise LeftError(whole=False)

    def _run_If(self, node: ast.If, scopes: Scopes, module: Module) -> None:  # noqa: N802
        truth = self.truth(self.value(node.test, scopes, module))
        if truth is not None:
            self.run(node.body if truth else node.orelse, scopes, module)
            return
        for branch in (node.body, node.orelse):
            self._run_unsure(branch, scopes, module)

    def _run_unsure(self, body: Sequence[ast.stmt], scopes: Scopes, module: Module) -> None:
        """Run statements that may not be reached: everything that they set is unknown."""
        self.unsure += 1
        try:
            with contextlib.suppress(RaisedError, LeftError, ReturnedError):
                self.run(body, scopes, module)
        finally:
            self.unsure -= 1

    def _run_For(self, node: ast.For, scopes: Scopes, module: Module) -> None:  # noqa: N802
        items = self.value(node.iter, scopes, module)
        items = list(items) if isinstance(items, dict | set) else items
        if not isinstance(items, list | tuple | str):
            self._run_unsure(node.body, scopes, module)
            return
        for item in items:
            self.assign(node.target, item, scopes, module)
            try:
                self.run(node.body, scopes, module)
            except LeftError as left:
                if left.whole:
                    return

    def _run_While(self, node: ast.While, scopes: Scopes, module: Module) -> None:  # noqa: N802
        self._run_unsure(node.body, scopes, module)

    def _run_With(self, node: ast.With, scopes: Scopes, module: Module) -> None:  # noqa: N802
        self.run(node.body, scopes, module)

    def _run_Try(self, node: ast.Try, scopes: Scopes, module: Module) -> None:  # noqa: N802
        try:
            self.run(node.body, scopes, module)
        except RaisedError:
            for handler in node.handlers[:1]:
                self.run(handler.body, scopes, module)
        else:
            self.run(node.orelse, scopes, module)
        self.run(node.finalbody, scopes, module)

    def assign(self, target: ast.expr, value: Any, scopes: Scopes, module: Module, origin: Place | None = None) -> None:
        """Set a name, field or item; `origin` is where the value, passed on from a field, was first set."""
        if self.unsure and not isinstance(value, Instance | Module | PythonFunction | Class):
            value = self.unknown(target, module)
        match target:
            case ast.Name():
                scopes[0][target.id] = value
            case ast.Attribute():
                owner = self.value(target.value, scopes, module)
                if isinstance(owner, Instance):
                    owner.put(target.attr, value, origin or Place(str(module.path), target.lineno))
            case ast.Subscript():
                owner, key = self.value(target.value, scopes, module), self.value(target.slice, scopes, module)
                with contextlib.suppress(*WRONG):
                    if isinstance(owner, dict) or (isinstance(owner, list) and isinstance(key, int)):
                        owner[key] = value
            case ast.Tuple() | ast.List():
                several = isinstance(value, list | tuple) and len(value) == len(target.elts)
                for index, part in enumerate(target.elts):
                    self.assign(part, value[index] if several else self.unknown(target, module), scopes, module)

    def _origin(self, node: ast.expr, scopes: Scopes, module: Module) -> Place | None:
        """Return where the field was set whose value an expression passes on; None for other expressions."""
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value, scopes, module)
            return owner.places.get(node.attr) if isinstance(owner, Instance) else None
        return None
