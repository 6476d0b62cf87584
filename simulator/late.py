"""What is worked out when it is first read: regular expressions, modules, and fields of records."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

T = TypeVar("T")


class _LatePattern:
    """Regular expression that is not compiled yet, which takes Python long."""

    def __init__(self, text: str, flags: int) -> None:
        self._said = text, flags

    def __getattr__(self, name: str) -> Any:
        """Return what compiled expressions have, and keep it."""
        value = getattr(re.compile(*self._said), name)
        setattr(self, name, value)
        return value

    def __reduce__(self) -> Any:
        return late_pattern, self._said


def late_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a regular expression that is compiled when it is first used."""
    return cast("re.Pattern[str]", _LatePattern(text, flags))


class Lazy:
    """A module of the package that is imported when a name of it is first read.

    Beside each stands an import under TYPE_CHECKING, which type checkers and import contracts follow.
    """

    def __init__(self, name: str) -> None:
        self._name = f"simulator.{name}"

    def __getattr__(self, name: str) -> Any:
        """Return what the module holds under a name."""
        return getattr(import_module(self._name), name)


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
    """Field whose deferred value is computed by the first who reads it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: object, kind: type | None = None) -> Any:
        value = self if record is None else vars(record)[self.name]
        return value.value() if isinstance(value, _Deferred) else value

    def __set__(self, record: object, value: object) -> None:
        vars(record)[self.name] = value


def read_late(*names: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class of records so that fields may be `deferred`; pickles and copies hold their values."""

    def with_late_fields(kind: Any) -> type[T]:
        for name in names:
            setattr(kind, name, _LateField(name))
        kind.__getstate__ = lambda record: {name: getattr(record, name) for name in vars(record)}
        return kind  # type: ignore[no-any-return]

    return with_late_fields
