"""Return values of functions in a Python file, found by reading it: assignments, calls, conditions, imports beside it.

Nothing of the file is executed. Names of packages that are not beside it stay names, and values that depend on the
machine are `OpenValue`. A condition on one leaves everything unknown that either branch sets.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.budget import charge
from simulator.errors import InputError
from simulator.frameworks.values import root_of
from simulator.question.origin import Place
from simulator.question.specs.documents import read_limited


@dataclass(frozen=True, slots=True)
class OpenValue:
    """A value that only a run would know."""

    name: str
    """Expression that it depends on."""
    place: Place


@dataclass(frozen=True, slots=True)
class Outside:
    """An object of a package that is not read."""

    name: str
    """Dotted name: `torch.bfloat16`."""


@dataclass(slots=True, eq=False)
class Instance:
    """An object, represented by its fields."""

    kind: str
    """Dotted name of its class, or of the call that made it."""
    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()
    """Positional arguments of the call."""
    defined: Class | None = None

    def put(self, name: str, value: Any, place: Place) -> None:
        """Set a field."""
        self.fields[name] = value
        self.places[name] = place

    def copy(self) -> Instance:
        """Return an independent object with the same fields."""
        fields = {name: value.copy() if isinstance(value, Instance) else value for name, value in self.fields.items()}
        return Instance(self.kind, fields, dict(self.places), self.arguments, self.defined)


@dataclass(slots=True, eq=False)
class Module:
    """One file and its top-level names."""

    path: Path
    names: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class PythonFunction:
    """A function with its enclosing scopes."""

    node: ast.FunctionDef | ast.Lambda
    scopes: tuple[dict[str, Any], ...]
    module: Module
    name: str = ""


@dataclass(slots=True, eq=False)
class Class:
    """A class: its fields with their defaults, and its properties."""

    node: ast.ClassDef
    module: Module
    bases: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """Name in its definition."""
        return self.node.name


@dataclass(frozen=True, slots=True)
class Method:
    """A method of an object, a text or a list."""

    owner: Any
    name: str


class RaisedError(Exception):
    """The code being read raises an exception."""


class ReturnedError(Exception):
    """The function being read returns; it holds the value."""


class LeftError(Exception):
    """The loop being read breaks, or continues with its next item; it holds whether it breaks."""


TEXT_METHODS: Final = frozenset(
    [
        *("upper", "lower", "strip", "lstrip", "rstrip", "replace", "split", "rsplit", "startswith", "endswith"),
        *("join", "format", "count", "title", "removeprefix", "removesuffix", "index", "find"),
    ]
)
LIST_METHODS: Final = frozenset(["append", "extend", "copy", "index", "count", "insert", "pop"])
DICT_METHODS: Final = frozenset(["get", "items", "keys", "values", "update", "copy", "pop", "setdefault"])
METHODS: Final[dict[type, frozenset[str]]] = {
    str: TEXT_METHODS,
    list: LIST_METHODS,
    tuple: LIST_METHODS,
    dict: DICT_METHODS,
}
"""Methods of built-in types that are followed."""


_READ: Final = 100
"""Units of work of one node of a file."""
STEP: Final = 400
"""Units of work of one expression or statement."""
_DEEPEST: Final = 40
"""Most nested calls."""
_MOST_ITEMS: Final = 10_000
_MOST_NESTED: Final = 120
_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
}
_COMPARED: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def _ranged(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > _MOST_ITEMS:
        raise ValueError
    return list(numbers)


_CALLED: Final[Mapping[str, Callable[..., Any]]] = {
    **{function.__name__: function for function in (len, min, max, sum, abs, round, divmod, sorted, any, all)},
    **{kind.__name__: kind for kind in (str, int, float, bool, list, tuple, dict, set)},
    "enumerate": lambda items: list(enumerate(items)),
    "range": _ranged,
    "zip": lambda *items, **_: list(zip(*items, strict=False)),
}
"""Built-in functions that are evaluated if all their arguments are known."""
_COPIES: Final = ("replace", "deepcopy", "copy", "dataclasses.replace", "copy.deepcopy", "copy.copy")
_MODULE: Final = "importlib.import_module"
WRONG: Final = (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError)
"""Exceptions that Python raises for operands that do not fit."""

Scopes = tuple[dict[str, Any], ...]
"""Values by name, the innermost scope first."""
Default = Callable[[str], Any]
"""Returns the value of an unset field, by its name; an `Outside` where it is not known."""


def unknown_in(value: Any) -> bool:
    """Whether a value, or a part of it, is not known."""
    if isinstance(value, OpenValue | Outside):
        return True
    if isinstance(value, Mapping):
        return any(map(unknown_in, value.values()))
    return isinstance(value, list | tuple | set) and any(map(unknown_in, value))


class PythonReader:
    """Reader of the files of one checkout, each read once."""

    def __init__(self, default: Default | None = None, follows: Callable[[str], bool] = lambda _: True) -> None:
        """`default` returns the value of unset fields; `follows` decides, by dotted name, whether a module is read."""
        self.default = default or Outside
        self.nested = 0
        """Current depth of nested expressions, those inside calls included."""
        self.depth = 0
        """Current depth of nested calls."""
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

    def _run_Break(self, node: ast.Break | ast.Continue, scopes: Scopes, module: Module) -> None:  # noqa: N802, ARG002
        raise LeftError(isinstance(node, ast.Break))

    _run_Continue = _run_Break  # noqa: N815

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
                if left.args[0]:
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

    def value(self, node: ast.expr, scopes: Scopes, module: Module) -> Any:
        """Return the value of an expression, `OpenValue` where it is not known."""
        charge(STEP)
        find = getattr(self, f"_value_{type(node).__name__}", None)
        if find is None or self.nested > _MOST_NESTED:
            return self.unknown(node, module)
        self.nested += 1
        try:
            return find(node, scopes, module)
        except WRONG:
            return self.unknown(node, module)
        finally:
            self.nested -= 1

    def unknown(self, node: ast.AST, module: Module) -> OpenValue:
        """Return the unknown value that stands for an expression."""
        named = node.func if isinstance(node, ast.Call) else node
        plain = isinstance(named, ast.Name) or (isinstance(named, ast.Attribute) and self.nested < _MOST_NESTED)
        text = ast.unparse(named) if plain else "an expression"
        return OpenValue(text[:60], Place(str(module.path), getattr(node, "lineno", 1)))

    # Expressions.

    def _value_Constant(self, node: ast.Constant, scopes: Scopes, module: Module) -> Any:  # noqa: N802, ARG002
        return node.value

    def _value_Name(self, node: ast.Name, scopes: Scopes, module: Module) -> Any:  # noqa: N802, ARG002
        for scope in scopes:
            if node.id in scope:
                return scope[node.id]
        return Outside(node.id)

    def _value_Attribute(self, node: ast.Attribute, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        return self.attribute(self.value(node.value, scopes, module), node.attr, node, module)

    def attribute(  # noqa: PLR0911  one for each kind of owner
        self, owner: Any, name: str, node: ast.AST, module: Module
    ) -> Any:
        """Return a field, property or method of an object, or a name of a module."""
        if isinstance(owner, Instance):
            if name in owner.fields:
                return owner.fields[name]
            own = self._own(owner.defined, name)
            if isinstance(own, PythonFunction):
                return self.call(own, (owner,), {}, node, module)
            return self.default(name)
        if isinstance(owner, Module):
            return owner.names.get(name, Outside(name))
        if isinstance(owner, Outside):
            return Outside(f"{owner.name}.{name}")
        if name in METHODS.get(type(owner), ()):
            return Method(owner, name)
        return self.unknown(node, module)

    def _own(self, kind: Any, name: str) -> Any:
        """Return a property of a class or its bases; None without one."""
        if not isinstance(kind, Class):
            return None
        for part in kind.node.body:
            if isinstance(part, ast.FunctionDef) and part.name == name:
                marked = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in part.decorator_list)
                return PythonFunction(part, (kind.module.names,), kind.module, name) if marked else None
        return next((result for base in kind.bases if (result := self._own(base, name))), None)

    def _value_Call(self, node: ast.Call, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        function = self._function(node.func, scopes, module)
        positional: list[Any] = []
        for part in node.args:
            if isinstance(part, ast.Starred):
                several = self.value(part.value, scopes, module)
                positional += several if isinstance(several, list | tuple) else [self.unknown(part, module)]
            else:
                positional.append(self.value(part, scopes, module))
        named: dict[str, Any] = {}
        for word in node.keywords:
            value = self.value(word.value, scopes, module)
            if word.arg is not None:
                named[word.arg] = value
            elif isinstance(value, dict):
                named |= {str(key): item for key, item in value.items()}
        return self.call(function, tuple(positional), named, node, module)

    def _function(self, node: ast.expr, scopes: Scopes, module: Module) -> Any:
        """Return the callee; for an object without that field or property, a `Method`."""
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value, scopes, module)
            if (
                isinstance(owner, Instance)
                and node.attr not in owner.fields
                and not self._own(owner.defined, node.attr)
            ):
                return Method(owner, node.attr)
        return self.value(node, scopes, module)

    def call(self, function: Any, values: tuple[Any, ...], named: dict[str, Any], node: ast.AST, module: Module) -> Any:
        """Return the value of a call. Raises RaisedError where the called code raises."""
        if isinstance(function, PythonFunction):
            return self._called(function, values, named, node, module)
        if isinstance(function, Class):
            return self._object(function, values, named, node, module)
        if isinstance(function, Method):
            return self._method(function, values, named, node, module)
        if isinstance(function, Outside):
            return self._outside(function.name, values, named, node, module)
        return self.unknown(node, module)

    def _called(
        self, function: PythonFunction, values: tuple[Any, ...], named: dict[str, Any], node: ast.AST, module: Module
    ) -> Any:
        if self.depth >= _DEEPEST:
            raise InputError(f"{module.path}:{getattr(node, 'lineno', 1)}: calls more than {_DEEPEST} functions deep")
        scopes = (self._parameters(function, values, named), *function.scopes)
        self.depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, scopes, function.module)
            self.run(function.node.body, scopes, function.module)
        except ReturnedError as returned:
            return returned.args[0]
        finally:
            self.depth -= 1
        return None

    def _parameters(self, function: PythonFunction, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of a function with their values."""
        parameters = function.node.args
        places = [*parameters.posonlyargs, *parameters.args]
        names: dict[str, Any] = {}
        for word, default in zip(places[len(places) - len(parameters.defaults) :], parameters.defaults, strict=True):
            names[word.arg] = self.value(default, function.scopes, function.module)
        for word, usual in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
            value = None if usual is None else self.value(usual, function.scopes, function.module)
            names[word.arg] = value
        names |= {word.arg: value for word, value in zip(places, values, strict=False)}
        own = {word.arg for word in (*places, *parameters.kwonlyargs)}
        names |= {name: value for name, value in named.items() if name in own}
        if parameters.vararg:
            names[parameters.vararg.arg] = values[len(places) :]
        if parameters.kwarg:
            names[parameters.kwarg.arg] = {name: value for name, value in named.items() if name not in own}
        for word in places:
            names.setdefault(word.arg, OpenValue(word.arg, Place(str(function.module.path), function.node.lineno)))
        return names

    def _object(
        self, kind: Class, values: tuple[Any, ...], named: dict[str, Any], node: ast.AST, module: Module
    ) -> Any:
        """Return an instance of a class that is read: default fields overridden by the call's arguments."""
        instance = Instance(kind.name, defined=kind)
        self._defaults(instance, kind)
        names = [*instance.fields]
        place = Place(str(module.path), getattr(node, "lineno", 1))
        for name, value in (*zip(names, values, strict=False), *named.items()):
            instance.put(name, value, place)
        return instance

    def _defaults(self, instance: Instance, kind: Class) -> None:
        for base in kind.bases:
            if isinstance(base, Class):
                self._defaults(instance, base)
        for part in kind.node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.value is not None:
                value = self.value(part.value, (kind.module.names,), kind.module)
                if isinstance(value, Instance) and value.kind.rpartition(".")[2] == "field":
                    value = self._of_field(value, part, kind.module)
                instance.put(part.target.id, value, Place(str(kind.module.path), part.lineno))

    def _of_field(self, instance: Instance, node: ast.AST, module: Module) -> Any:
        """Return the default that `dataclasses.field` states."""
        if "default" in instance.fields:
            return instance.fields["default"]
        factory = instance.fields.get("default_factory")
        return self.unknown(node, module) if factory is None else self.call(factory, (), {}, node, module)

    def _method(self, method: Method, positional: Any, named: dict[str, Any], node: ast.AST, module: Module) -> Any:
        owner, name = method.owner, method.name
        if isinstance(owner, Instance):
            place = Place(str(module.path), getattr(node, "lineno", 1))
            made = Instance(f"{owner.kind}.{name}", arguments=(*owner.arguments, *positional))
            for word, value in named.items():
                made.put(word, value, place)
            return made
        if unknown_in(positional) and not isinstance(owner, list | dict):
            return self.unknown(node, module)
        if isinstance(owner, str) and name == "join" and positional:
            positional = (list(map(str, positional[0])),)
        charge(STEP + len(owner))
        answer = getattr(owner, name)(*positional, **named)
        return list(answer) if name in ("items", "keys", "values") else answer

    def _outside(self, name: str, values: Any, named: dict[str, Any], node: ast.AST, module: Module) -> Any:
        """Return the value of a call of a name that is not read: a built-in function's, else an `Instance`."""
        if name in _COPIES and values and isinstance(values[0], Instance):
            copied = values[0].copy()
            for word, value in named.items():
                copied.put(word, value, Place(str(module.path), getattr(node, "lineno", 1)))
            return copied
        if name in ("getattr", "hasattr", "setattr", "isinstance"):
            return self._reflected(name, values, node, module)
        if name == _MODULE and values and isinstance(values[0], str):
            return self.imported(values[0], module)
        if name in _CALLED:
            return self.unknown(node, module) if unknown_in(values) else _CALLED[name](*values, **named)
        made = Instance(name, arguments=tuple(values))
        lines = {keyword.arg: keyword.lineno for keyword in getattr(node, "keywords", ())}
        for word, value in named.items():
            made.put(word, value, Place(str(module.path), lines.get(word, getattr(node, "lineno", 1))))
        return made

    def _reflected(  # noqa: PLR0911  one for each of them
        self, name: str, values: Sequence[Any], node: ast.AST, module: Module
    ) -> Any:
        """Evaluate `getattr`, `hasattr`, `setattr` or `isinstance`."""
        owner, word = values[0], values[1]
        if name == "isinstance":
            return self._is_a(owner, word, node, module)
        if not isinstance(word, str):
            return self.unknown(node, module)
        if name == "setattr":
            if isinstance(owner, Instance):
                owner.put(word, values[2], Place(str(module.path), getattr(node, "lineno", 1)))
            return None
        fields = owner.names if isinstance(owner, Module) else owner.fields if isinstance(owner, Instance) else {}
        if name == "hasattr":
            return word in fields or not isinstance(owner, Module)
        if word in fields:
            return fields[word]
        own = self.attribute(owner, word, node, module) if isinstance(owner, Instance) else Outside(word)
        if isinstance(own, Outside | Method) and len(values) > 2:
            return values[2]
        return own

    def _is_a(self, value: Any, kinds: Any, node: ast.AST, module: Module) -> Any:
        several = kinds if isinstance(kinds, tuple) else (kinds,)
        names = [getattr(kind, "name", "").rpartition(".")[2] for kind in several]
        if isinstance(value, OpenValue | Outside) or not all(names):
            return self.unknown(node, module)
        if isinstance(value, Instance):
            return value.kind.rpartition(".")[2] in names
        return type(value).__name__ in names

    def _value_BinOp(self, node: ast.BinOp, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        left, right = self.value(node.left, scopes, module), self.value(node.right, scopes, module)
        return self._combined(node.op, left, right, node, module)

    def _combined(self, kind: ast.operator, left: Any, right: Any, node: ast.AST, module: Module) -> Any:
        combine = _BINARY.get(type(kind))
        if combine is None or isinstance(left, OpenValue | Outside) or isinstance(right, OpenValue | Outside):
            return self.unknown(node, module)
        sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple | dict)]
        if sum(sizes) > _MOST_ITEMS:
            return self.unknown(node, module)
        charge(sum(sizes))
        counts = [side for side in (left, right) if isinstance(side, int)]
        if sizes and isinstance(kind, ast.Mult | ast.Mod) and max(sizes) * max(counts, default=1) > _MOST_ITEMS:
            return self.unknown(node, module)
        return combine(left, right)

    def _value_UnaryOp(self, node: ast.UnaryOp, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        value = self.value(node.operand, scopes, module)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return self.unknown(node, module) if truth is None else not truth
        if isinstance(value, int | float):
            return -value if isinstance(node.op, ast.USub) else value
        return self.unknown(node, module)

    def _value_BoolOp(self, node: ast.BoolOp, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        stops, value = isinstance(node.op, ast.Or), None
        open_part = False
        for part in node.values:
            value = self.value(part, scopes, module)
            truth = self.truth(value)
            if truth is stops:
                return value
            open_part = open_part or truth is None
        return self.unknown(node, module) if open_part else value

    def _value_Compare(self, node: ast.Compare, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        left = self.value(node.left, scopes, module)
        for kind, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other, scopes, module)
            if isinstance(left, OpenValue) or isinstance(right, OpenValue):
                return self.unknown(node, module)
            elsewhere = isinstance(left, Outside) != isinstance(right, Outside) or isinstance(left, Instance)
            # A name defined elsewhere may equal any value except None.
            if elsewhere and not (right is None and isinstance(left, Instance | Outside)):
                return self.unknown(node, module)
            if not _COMPARED[type(kind)](left, right):
                return False
            left = right
        return True

    def _value_IfExp(self, node: ast.IfExp, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        truth = self.truth(self.value(node.test, scopes, module))
        if truth is None:
            return self.unknown(node, module)
        return self.value(node.body if truth else node.orelse, scopes, module)

    def _value_List(self, node: ast.List | ast.Tuple | ast.Set, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        kind = list if isinstance(node, ast.List) else tuple if isinstance(node, ast.Tuple) else set
        return kind(self._items(node.elts, scopes, module))

    _value_Tuple = _value_Set = _value_List  # noqa: N815

    def _items(self, nodes: Sequence[ast.expr], scopes: Scopes, module: Module) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                several = self.value(node.value, scopes, module)
                yield from several if isinstance(several, list | tuple) else (self.unknown(node, module),)
            else:
                yield self.value(node, scopes, module)

    def _value_Dict(self, node: ast.Dict, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        mapping: dict[Any, Any] = {}
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.value(part, scopes, module)
            if key is not None:
                mapping[self.value(key, scopes, module)] = value
            elif isinstance(value, dict):
                mapping |= value
        return mapping

    def _value_Subscript(self, node: ast.Subscript, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        owner, key = self.value(node.value, scopes, module), self.value(node.slice, scopes, module)
        if isinstance(owner, Outside) and isinstance(key, str):
            return Outside(f"{owner.name}.{key}")
        return owner[key] if isinstance(owner, list | tuple | dict | str) else self.unknown(node, module)

    def _value_Lambda(self, node: ast.Lambda, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        return PythonFunction(node, scopes, module)

    def _value_JoinedStr(self, node: ast.JoinedStr, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        parts = [self.value(part, scopes, module) for part in node.values]
        return self.unknown(node, module) if unknown_in(parts) else "".join(map(str, parts))

    def _value_FormattedValue(self, node: ast.FormattedValue, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        return self.value(node.value, scopes, module)

    def _value_ListComp(self, node: ast.ListComp, scopes: Scopes, module: Module) -> Any:  # noqa: N802
        return self._comprehended(node, node.elt, scopes, module)

    _value_GeneratorExp = _value_SetComp = _value_ListComp  # noqa: N815  named as their nodes

    def _comprehended(self, node: Any, element: ast.expr, scopes: Scopes, module: Module) -> Any:
        if len(node.generators) > 1:
            return self.unknown(node, module)
        part = node.generators[0]
        items = self.value(part.iter, scopes, module)
        if not isinstance(items, list | tuple | set | str):
            return self.unknown(node, module)
        result = []
        for item in items:
            own: tuple[dict[str, Any], ...] = ({}, *scopes)
            self.assign(part.target, item, own, module)
            truths = [self.truth(self.value(test, own, module)) for test in part.ifs]
            if None in truths:
                return self.unknown(node, module)
            if all(truths):
                result.append(self.value(element, own, module))
        return result

    def truth(self, value: Any) -> bool | None:
        """Whether a value counts as true; None where that is not known."""
        if isinstance(value, OpenValue | Outside | Method):
            return None
        if isinstance(value, Instance):
            # An object is true; a function defined elsewhere may return anything.
            made = value.defined is not None or value.kind.rpartition(".")[2][:1].isupper()
            return True if made else None
        return True if isinstance(value, Module | PythonFunction | Class) else bool(value)
