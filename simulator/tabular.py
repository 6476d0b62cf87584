"""Base class of answers, `Tabular`: rows, a data frame, a table and a figure of each; records, fields read late.

    estimate.rows()    estimate.to_frame()    estimate.plot("step")

An answer has its rows; `show.pages.figures` draws them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, ClassVar, Protocol, TypeVar, cast, dataclass_transform

Row = Mapping[str, Any]
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(*, kw_only: bool = False, slots: bool = True, by_value: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes an inner dataclass: frozen for type checkers alone, compared by identity or value.

    Python compiles the methods of a dataclass as it is imported, and longest those of a frozen one: these are left to
    what users hold in their hands. Others share methods, which know a class's fields.
    """

    def made(kind: type[T]) -> type[T]:
        kind = dataclass(kw_only=kw_only, slots=slots, eq=False, repr=False)(kind)
        return compared(kind) if by_value else kind

    return made


def compared(kind: Any) -> Any:
    """Return a record with equality, hash and text of its fields, where it has none of its own."""
    kind.values_of = attrgetter("__class__", *(each.name for each in fields(kind) if each.compare))
    for name, method in (("__eq__", _equal), ("__hash__", _hash), ("__repr__", _shown)):
        if getattr(kind, name) is getattr(object, name):
            setattr(kind, name, method)
    return kind


def _equal(self: Any, other: Any) -> bool:
    return self is other or (type(self) is type(other) and self.values_of(self) == self.values_of(other))


def _hash(self: Any) -> int:
    return hash(self.values_of(self))


def _shown(self: Any) -> str:
    texts = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(texts)})"


class Drawing(Protocol):
    """What draws answers."""

    def html(self, answer: Tabular) -> str:
        """Return the terminal's table as HTML."""

    def json(self, answer: Tabular) -> str:
        """Return the answer as JSON. Raises as `Tabular.to_json` does."""

    def figure(self, answer: Tabular, name: str) -> Any:
        """Return the figure of this name, or the first. Raises as `Tabular.plot` does."""


class Tabular:
    """Answer with rows, each a mapping of column to value in base units."""

    __slots__ = ()

    drawing: ClassVar[Drawing]

    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """Return the rows, all with the same columns."""

    def to_frame(self) -> Any:
        """Return the rows as a pandas.DataFrame. Raises ImportError without pandas."""
        from pandas import DataFrame  # noqa: PLC0415  only who asks for a frame needs pandas

        return DataFrame(list(self.rows()))

    def to_json(self) -> str:
        """Return the answer as `--format json` writes it; `simulator.from_json` asks it again.

        Raises UnsupportedError for rows that are no answer of a command.
        """
        return self.drawing.json(self)

    def plot(self, figure: str = "") -> Any:
        """Return the figure of this name, or the first, as a `plotly.graph_objects.Figure`.

        Raises UnsupportedError without plotly, and InputError for an unknown name.
        """
        return self.drawing.figure(self, figure)

    def _repr_html_(self) -> str:
        """Return the terminal's table as HTML, for notebooks."""
        return self.drawing.html(self)


class _Deferred:
    """Value of a field, computed once when it is first read."""

    __slots__ = ("_known",)

    def __init__(self, compute: Callable[[], object]) -> None:
        self._known: tuple[object, Callable[[], object] | None] = None, compute

    def value(self) -> object:
        """Return the value, and let go of what it is computed from."""
        if self._known[1] is not None:
            self._known = self._known[1](), None
        return self._known[0]


def deferred(compute: Callable[[], T]) -> T:
    """Return what stands for a value in a field that `read_late` names, until it is read."""
    return cast("T", _Deferred(compute))


class _LateField:
    """Field of a frozen record with slots, whose deferred value is computed by the first who reads it."""

    def __init__(self, slot: Any) -> None:
        self.slot = slot

    def __get__(self, record: object, owner: type | None = None) -> Any:
        if record is None:
            return self
        value = self.slot.__get__(record, owner)
        return value.value() if isinstance(value, _Deferred) else value

    def __set__(self, record: object, value: object) -> None:
        self.slot.__set__(record, value)


def read_late(*names: str) -> Callable[[type[T]], type[T]]:
    """Decorate a frozen dataclass with slots so that fields may be `deferred`; pickles and copies hold their values."""

    def with_late_fields(record: type[T]) -> type[T]:
        for name in names:
            setattr(record, name, _LateField(vars(record)[name]))
        return record

    return with_late_fields


def replaced(record: T, **values: Any) -> T:
    """Return `dataclasses.replace` of a record, with deferred values left to be computed."""
    late = {name: field.slot.__get__(record) for name, field in vars(type(record)).items() if type(field) is _LateField}
    changed: T = replace(record, **{**late, **values})  # type: ignore[type-var]  # a dataclass, as `read_late` says
    return changed
