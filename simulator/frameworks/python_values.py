"""Values of Python files that are read without running them: objects with fields, functions, names of other packages.

An `Instance` is an object of which only the fields are known, each with the line that set it. An `Outside` is a name
that is defined elsewhere (`torch.bfloat16`), an `OpenValue` a value that reading alone cannot determine.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.question.origin import Place


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
    """The function being read returns."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class LeftError(Exception):
    """The loop being read breaks (`whole`) or continues with its next item."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole = whole


TEXT_METHODS: Final = frozenset(
    [
        *(
            "upper",
            "lower",
            "strip",
            "lstrip",
            "rstrip",
            "replace",
            "split",
            "rsplit",
            "startswith",
            "endswith",
            "join",
        ),
        *("format", "count", "title", "removeprefix", "removesuffix", "index", "find"),
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
