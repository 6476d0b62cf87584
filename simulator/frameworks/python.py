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
from simulator.records import Record


class OpenValue(Record):
    """A value that only a run would know."""

    name: str
    """Expression that it depends on."""
    place: Place


class Outside(Record):
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


class Method(Record):
    """A method of an object, a text or a list."""

    owner: Any
    name: str


class RaisedError(Exception):
    """The code being read raises an exception."""


class ReturnedError(Exception):
    """The function being read returns; it holds the value."""


class LeftError(Exception):
    """The loop being read breaks, or continues with its next item; it holds whether it breaks."""


_OF_LISTS: Final = ("append", "extend", "copy", "index", "count", "insert", "pop")
METHODS: Final[Mapping[type, tuple[str, ...]]] = {
    str: (
        *("upper", "lower", "strip", "lstrip", "rstrip", "replace", "split", "rsplit", "startswith", "endswith"),
        *("join", "format", "count", "title", "removeprefix", "removesuffix", "index", "find"),
    ),
    list: _OF_LISTS,
    tuple: _OF_LISTS,
    dict: ("get", "items", "keys", "values", "update", "copy", "pop", "setdefault"),
}
"""Methods of built-in types that are followed."""
_READ: Final = 100  # units of work of one node of a file
STEP: Final = 400
"""Units of work of one expression or statement."""
_DEEPEST: Final = 40  # most nested calls
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
}  # built-in functions that are evaluated if all their arguments are known
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
        self.scopes: Scopes = ()
        """Scopes of the code being read."""
        self.file = Module(Path())
        """File of the code being read."""

    @contextlib.contextmanager
    def _within(self, scopes: Scopes, file: Module) -> Iterator[None]:
        """Read code of a file in its scopes, then go on where it was left."""
        outer = self.scopes, self.file
        self.scopes, self.file = scopes, file
        try:
            yield
        finally:
            self.scopes, self.file = outer

    def _place(self, node: ast.AST) -> Place:
        return Place(str(self.file.path), getattr(node, "lineno", 1))

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
        with contextlib.suppress(RaisedError, ReturnedError, LeftError), self._within((result.names,), result):
            self.run(tree.body)
        return result

    def _file(self, name: str) -> Path | None:
        """Return the file of a module, searched in the folders above the importing file; None without one."""
        parts = name.split(".")
        if not self.follows(name) or not all(part.isidentifier() for part in parts):
            return None
        near = self.file.path
        root = root_of(near).absolute()
        for folder in near.absolute().parents:
            for start in (folder, folder / "src"):
                for file in (start.joinpath(*parts).with_suffix(".py"), start.joinpath(*parts, "__init__.py")):
                    if file.is_file():
                        return file
            if folder == root:
                break
        return None

    def imported(self, name: str) -> Module | Outside:
        """Return a module by its dotted name, or an `Outside` where it is not in the checkout."""
        file = self._file(name)
        return Outside(name) if file is None else self.module(file)

    def _import_from(self, node: ast.ImportFrom) -> None:
        base, names = node.module or "", self.scopes[0]
        if node.level:
            folder = self.file.path.parents[node.level - 1]
            file = folder.joinpath(*base.split(".")) if base else folder
            files = (file.with_suffix(".py"), file / "__init__.py")
            known = next((path for path in files if path.is_file()), None)
            source: Module | Outside = self.module(known) if known else Outside(base)
        else:
            source = self.imported(base)
        for alias in node.names:
            if alias.name == "*":
                if isinstance(source, Module):
                    names |= {name: value for name, value in source.names.items() if not name.startswith("_")}
                continue
            value = source.names.get(alias.name) if isinstance(source, Module) else None
            if value is None:
                inner = self.imported(f"{base}.{alias.name}") if base and not node.level else None
                value = inner if isinstance(inner, Module) else Outside(f"{base}.{alias.name}")
            names[alias.asname or alias.name] = value

    # Statements.

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Run statements; kinds that are not listed are skipped."""
        for statement in body:
            charge(STEP)
            self._run(statement)

    def _run(self, node: ast.stmt) -> None:  # noqa: C901, PLR0912  one per kind of statement
        names = self.scopes[0]
        match node:
            case ast.Import():
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    names[alias.asname or name] = Outside(name)
            case ast.ImportFrom():
                self._import_from(node)
            case ast.FunctionDef():
                names[node.name] = PythonFunction(node, self.scopes, self.file, node.name)
            case ast.ClassDef():
                names[node.name] = Class(node, self.file, tuple(map(self.value, node.bases)))
            case ast.Expr():
                self.value(node.value)
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self.assign(target, value, self._origin(node.value))
            case ast.AnnAssign(value=ast.expr() as stated):
                self.assign(node.target, self.value(stated))
            case ast.AugAssign():
                left = self.value(node.target)
                self.assign(node.target, self._combined(node.op, left, self.value(node.value), node))
            case ast.Return():
                value = None if node.value is None else self.value(node.value)
                raise ReturnedError(self.unknown(node) if self.unsure and not isinstance(value, Instance) else value)
            case ast.Raise():
                raise RaisedError
            case ast.Break() | ast.Continue():
                raise LeftError(isinstance(node, ast.Break))
            case ast.If():
                self._run_if(node)
            case ast.For():
                self._run_for(node)
            case ast.While():
                self._run_unsure(node.body)
            case ast.With():
                self.run(node.body)
            case ast.Try():
                try:
                    self.run(node.body)
                except RaisedError:
                    for handler in node.handlers[:1]:
                        self.run(handler.body)
                else:
                    self.run(node.orelse)
                self.run(node.finalbody)

    def _run_if(self, node: ast.If) -> None:
        truth = self.truth(self.value(node.test))
        if truth is not None:
            self.run(node.body if truth else node.orelse)
            return
        for branch in (node.body, node.orelse):
            self._run_unsure(branch)

    def _run_unsure(self, body: Sequence[ast.stmt]) -> None:
        """Run statements that may not be reached: everything that they set is unknown."""
        self.unsure += 1
        try:
            with contextlib.suppress(RaisedError, LeftError, ReturnedError):
                self.run(body)
        finally:
            self.unsure -= 1

    def _run_for(self, node: ast.For) -> None:
        items = self.value(node.iter)
        items = list(items) if isinstance(items, dict | set) else items
        if not isinstance(items, list | tuple | str):
            self._run_unsure(node.body)
            return
        for item in items:
            self.assign(node.target, item)
            try:
                self.run(node.body)
            except LeftError as left:
                if left.args[0]:
                    return

    def assign(self, target: ast.expr, value: Any, origin: Place | None = None) -> None:
        """Set a name, field or item; `origin` is where the value, passed on from a field, was first set."""
        if self.unsure and not isinstance(value, Instance | Module | PythonFunction | Class):
            value = self.unknown(target)
        match target:
            case ast.Name():
                self.scopes[0][target.id] = value
            case ast.Attribute():
                owner = self.value(target.value)
                if isinstance(owner, Instance):
                    owner.put(target.attr, value, origin or self._place(target))
            case ast.Subscript():
                owner, key = self.value(target.value), self.value(target.slice)
                with contextlib.suppress(*WRONG):
                    if isinstance(owner, dict) or (isinstance(owner, list) and isinstance(key, int)):
                        owner[key] = value
            case ast.Tuple() | ast.List():
                several = isinstance(value, list | tuple) and len(value) == len(target.elts)
                for index, part in enumerate(target.elts):
                    self.assign(part, value[index] if several else self.unknown(target))

    def _origin(self, node: ast.expr) -> Place | None:
        """Return where the field was set whose value an expression passes on; None for other expressions."""
        owner = self.value(node.value) if isinstance(node, ast.Attribute) else None
        return owner.places.get(node.attr) if isinstance(node, ast.Attribute) and isinstance(owner, Instance) else None

    # Expressions.

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression, `OpenValue` where it is not known."""
        charge(STEP)
        if self.nested > _MOST_NESTED:
            return self.unknown(node)
        self.nested += 1
        try:
            return self._value(node)
        except WRONG:
            return self.unknown(node)
        finally:
            self.nested -= 1

    def unknown(self, node: ast.AST) -> OpenValue:
        """Return the unknown value that stands for an expression."""
        named = node.func if isinstance(node, ast.Call) else node
        plain = isinstance(named, ast.Name) or (isinstance(named, ast.Attribute) and self.nested < _MOST_NESTED)
        text = ast.unparse(named) if plain else "an expression"
        return OpenValue(text[:60], self._place(node))

    def _value(self, node: ast.expr) -> Any:  # noqa: C901, PLR0911, PLR0912  one per kind of expression
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return next((scope[node.id] for scope in self.scopes if node.id in scope), Outside(node.id))
            case ast.Attribute():
                return self.attribute(self.value(node.value), node.attr, node)
            case ast.Call():
                function = self._function(node.func)
                return self._call(function, tuple(self._items(node.args)), self._named(node.keywords), node)
            case ast.BinOp():
                return self._combined(node.op, self.value(node.left), self.value(node.right), node)
            case ast.UnaryOp():
                return self._signed(node)
            case ast.BoolOp():
                return self._joined(node)
            case ast.Compare():
                return self._compared(node)
            case ast.IfExp():
                truth = self.truth(self.value(node.test))
                return self.unknown(node) if truth is None else self.value(node.body if truth else node.orelse)
            case ast.List():
                return list(self._items(node.elts))
            case ast.Tuple():
                return tuple(self._items(node.elts))
            case ast.Set():
                return set(self._items(node.elts))
            case ast.Dict():
                return self._mapping(node)
            case ast.Subscript():
                owner, key = self.value(node.value), self.value(node.slice)
                if isinstance(owner, Outside) and isinstance(key, str):
                    return Outside(f"{owner.name}.{key}")
                return owner[key] if isinstance(owner, list | tuple | dict | str) else self.unknown(node)
            case ast.Lambda():
                return PythonFunction(node, self.scopes, self.file)
            case ast.JoinedStr():
                parts = [self.value(part) for part in node.values]
                return self.unknown(node) if unknown_in(parts) else "".join(map(str, parts))
            case ast.FormattedValue():
                return self.value(node.value)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self._comprehended(node)
        return self.unknown(node)

    def attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        """Return a field, property or method of an object, or a name of a module."""
        if isinstance(owner, Instance):
            if name in owner.fields:
                return owner.fields[name]
            own = self._own(owner.defined, name)
            return self._call(own, (owner,), {}, node) if isinstance(own, PythonFunction) else self.default(name)
        if isinstance(owner, Module):
            return owner.names.get(name, Outside(name))
        if isinstance(owner, Outside):
            return Outside(f"{owner.name}.{name}")
        if name in METHODS.get(type(owner), ()):
            return Method(owner, name)
        return self.unknown(node)

    def _own(self, kind: Any, name: str) -> Any:
        """Return a property of a class or its bases; None without one."""
        if not isinstance(kind, Class):
            return None
        for part in kind.node.body:
            if isinstance(part, ast.FunctionDef) and part.name == name:
                marked = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in part.decorator_list)
                return PythonFunction(part, (kind.module.names,), kind.module, name) if marked else None
        return next((result for base in kind.bases if (result := self._own(base, name))), None)

    def _named(self, keywords: Sequence[ast.keyword]) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for word in keywords:
            value = self.value(word.value)
            if word.arg is not None:
                named[word.arg] = value
            elif isinstance(value, dict):
                named |= {str(key): item for key, item in value.items()}
        return named

    def _function(self, node: ast.expr) -> Any:
        """Return the callee; for an object without that field or property, a `Method`."""
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if isinstance(owner, Instance) and not (node.attr in owner.fields or self._own(owner.defined, node.attr)):
                return Method(owner, node.attr)
        return self.value(node)

    def call(self, function: PythonFunction, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the value of a call from outside of the files. Raises RaisedError where the called code raises."""
        with self._within((), function.module):
            return self._call(function, values, named, function.node)

    def _call(self, function: Any, values: tuple[Any, ...], named: dict[str, Any], node: ast.AST) -> Any:
        """Return the value of a call. Raises RaisedError where the called code raises."""
        match function:
            case PythonFunction():
                return self._called(function, values, named, node)
            case Class():
                instance = Instance(function.name, defined=function)  # default fields, then the arguments
                self._defaults(instance, function)
                for name, value in (*zip([*instance.fields], values, strict=False), *named.items()):
                    instance.put(name, value, self._place(node))
                return instance
            case Method():
                return self._method(function, values, named, node)
            case Outside():
                return self._outside(function.name, values, named, node)
        return self.unknown(node)

    def _called(self, function: PythonFunction, values: tuple[Any, ...], named: dict[str, Any], node: ast.AST) -> Any:
        if self.depth >= _DEEPEST:
            place = self._place(node)
            raise InputError(f"{place.file}:{place.line}: calls more than {_DEEPEST} functions deep")
        with self._within((self._parameters(function, values, named), *function.scopes), function.module):
            self.depth += 1
            try:
                if isinstance(function.node, ast.Lambda):
                    return self.value(function.node.body)
                self.run(function.node.body)
            except ReturnedError as returned:
                return returned.args[0]
            finally:
                self.depth -= 1
        return None

    def _parameters(self, function: PythonFunction, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        parameters = function.node.args
        places = [*parameters.posonlyargs, *parameters.args]
        names: dict[str, Any] = {}
        with self._within(function.scopes, function.module):
            first = len(places) - len(parameters.defaults)
            for word, default in zip(places[first:], parameters.defaults, strict=True):
                names[word.arg] = self.value(default)
            for word, usual in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
                names[word.arg] = None if usual is None else self.value(usual)
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

    def _defaults(self, instance: Instance, kind: Class) -> None:
        for base in kind.bases:
            if isinstance(base, Class):
                self._defaults(instance, base)
        with self._within((kind.module.names,), kind.module):
            for part in kind.node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.value is not None:
                    value = self.value(part.value)
                    if isinstance(value, Instance) and value.kind.rpartition(".")[2] == "field":
                        value = self._of_field(value, part)
                    instance.put(part.target.id, value, self._place(part))

    def _of_field(self, instance: Instance, node: ast.AST) -> Any:
        """Return the default that `dataclasses.field` states."""
        if "default" in instance.fields:
            return instance.fields["default"]
        factory = instance.fields.get("default_factory")
        return self.unknown(node) if factory is None else self._call(factory, (), {}, node)

    def _method(self, method: Method, positional: Any, named: dict[str, Any], node: ast.AST) -> Any:
        owner, name = method.owner, method.name
        if isinstance(owner, Instance):
            made = Instance(f"{owner.kind}.{name}", arguments=(*owner.arguments, *positional))
            for word, value in named.items():
                made.put(word, value, self._place(node))
            return made
        if unknown_in(positional) and not isinstance(owner, list | dict):
            return self.unknown(node)
        if isinstance(owner, str) and name == "join" and positional:
            positional = (list(map(str, positional[0])),)
        charge(STEP + len(owner))
        answer = getattr(owner, name)(*positional, **named)
        return list(answer) if name in ("items", "keys", "values") else answer

    def _outside(self, name: str, values: Any, named: dict[str, Any], node: ast.AST) -> Any:
        """Return the value of a call of a name that is not read: a built-in function's, else an `Instance`."""
        if name in _COPIES and values and isinstance(values[0], Instance):
            copied = values[0].copy()
            for word, value in named.items():
                copied.put(word, value, self._place(node))
            return copied
        if name in ("getattr", "hasattr", "setattr", "isinstance"):
            return self._reflected(name, values, node)
        if name == _MODULE and values and isinstance(values[0], str):
            return self.imported(values[0])
        if name in _CALLED:
            return self.unknown(node) if unknown_in(values) else _CALLED[name](*values, **named)
        made = Instance(name, arguments=tuple(values))
        words = {keyword.arg: keyword for keyword in getattr(node, "keywords", ())}
        for word, value in named.items():
            made.put(word, value, self._place(words.get(word, node)))
        return made

    def _reflected(self, name: str, values: Sequence[Any], node: ast.AST) -> Any:
        """Evaluate `getattr`, `hasattr`, `setattr` or `isinstance`."""
        owner, word = values[0], values[1]
        if name == "isinstance":
            return self._is_a(owner, word, node)
        if not isinstance(word, str):
            return self.unknown(node)
        if name == "setattr":
            if isinstance(owner, Instance):
                owner.put(word, values[2], self._place(node))
            return None
        fields = owner.names if isinstance(owner, Module) else owner.fields if isinstance(owner, Instance) else {}
        if name == "hasattr":
            return word in fields or not isinstance(owner, Module)
        if word in fields:
            return fields[word]
        own = self.attribute(owner, word, node) if isinstance(owner, Instance) else Outside(word)
        return values[2] if isinstance(own, Outside | Method) and len(values) > 2 else own

    def _is_a(self, value: Any, kinds: Any, node: ast.AST) -> Any:
        several = kinds if isinstance(kinds, tuple) else (kinds,)
        names = [getattr(kind, "name", "").rpartition(".")[2] for kind in several]
        if isinstance(value, OpenValue | Outside) or not all(names):
            return self.unknown(node)
        return (value.kind.rpartition(".")[2] if isinstance(value, Instance) else type(value).__name__) in names

    def _combined(self, kind: ast.operator, left: Any, right: Any, node: ast.AST) -> Any:
        combine = _BINARY.get(type(kind))
        if combine is None or isinstance(left, OpenValue | Outside) or isinstance(right, OpenValue | Outside):
            return self.unknown(node)
        sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple | dict)]
        if sum(sizes) > _MOST_ITEMS:
            return self.unknown(node)
        charge(sum(sizes))
        counts = [side for side in (left, right) if isinstance(side, int)]
        if sizes and isinstance(kind, ast.Mult | ast.Mod) and max(sizes) * max(counts, default=1) > _MOST_ITEMS:
            return self.unknown(node)
        return combine(left, right)

    def _signed(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return self.unknown(node) if truth is None else not truth
        if isinstance(value, int | float):
            return -value if isinstance(node.op, ast.USub) else value
        return self.unknown(node)

    def _joined(self, node: ast.BoolOp) -> Any:
        """Return the value of `a and b`, `a or b`."""
        value, open_part = None, False
        for part in node.values:
            value = self.value(part)
            truth = self.truth(value)
            if truth is isinstance(node.op, ast.Or):
                return value
            open_part = open_part or truth is None
        return self.unknown(node) if open_part else value

    def _compared(self, node: ast.Compare) -> Any:
        left = self.value(node.left)
        for kind, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other)
            if isinstance(left, OpenValue) or isinstance(right, OpenValue):
                return self.unknown(node)
            elsewhere = isinstance(left, Outside) != isinstance(right, Outside) or isinstance(left, Instance)
            # A name defined elsewhere may equal any value except None.
            if elsewhere and not (right is None and isinstance(left, Instance | Outside)):
                return self.unknown(node)
            if not _COMPARED[type(kind)](left, right):
                return False
            left = right
        return True

    def _items(self, nodes: Sequence[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                several = self.value(node.value)
                yield from several if isinstance(several, list | tuple) else (self.unknown(node),)
            else:
                yield self.value(node)

    def _mapping(self, node: ast.Dict) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.value(part)
            if key is not None:
                mapping[self.value(key)] = value
            elif isinstance(value, dict):
                mapping |= value
        return mapping

    def _comprehended(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Any:
        part = node.generators[0]
        items = self.value(part.iter) if len(node.generators) == 1 else None
        if not isinstance(items, list | tuple | set | str):
            return self.unknown(node)
        result = []
        for item in items:
            with self._within(({}, *self.scopes), self.file):
                self.assign(part.target, item)
                truths = [self.truth(self.value(test)) for test in part.ifs]
                if None in truths:
                    return self.unknown(node)
                if all(truths):
                    result.append(self.value(node.elt))
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
