"""Records, the values of several fields that the simulator works with: dataclasses and named tuples that start quickly.

class Sizes(Record, kw_only=True):    Sizes(rows=2) == Sizes(rows=2)    replace(sizes, rows=3)
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields
from dataclasses import field as field  # noqa: PLC0414  other modules import it from here
from functools import cache
from itertools import repeat
from operator import attrgetter, itemgetter
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, dataclass_transform

B = TypeVar("B", bound="Bare")
_Makers = tuple[tuple[str, Callable[[], Any]], ...]


class _Shared(tuple[Any, ...]):
    """Methods that named tuples share."""

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]]

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        """Return the tuple of all values in order."""
        return cls(*values)

    def _asdict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **values: Any) -> Any:
        """Return the tuple with other values."""
        return type(self)(**dict(zip(self._fields, self, strict=True)) | values)

    __replace__ = _replace

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


class _TupleType(type):
    """Type of `NamedTuple`: it makes what Python's own does, of which each compiles its types and a function."""

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Any:
        """Return a class of tuples, whose function `__new__` is that of all others of its length, with its names."""
        if not bases:
            return super().__new__(cls, name, bases, space)
        names = tuple(space["__annotations__"])
        defaults = {each: space.pop(each) for each in names if each in space}
        late = [each for each in names[len(names) - len(defaults) :] if each not in defaults]
        if late:
            raise TypeError(f"non-default namedtuple field {late[0]} cannot follow default fields {[*defaults]}")
        space.update((each, _Element(index, "")) for index, each in enumerate(names))
        made = _maker(len(names))
        code = made.__code__.replace(co_varnames=("cls", *names), co_name="__new__", co_qualname=f"{name}.__new__")
        new = FunctionType(code, made.__globals__, "__new__", tuple(defaults.values()))
        space.update(__slots__=(), _fields=names, _field_defaults=defaults, __match_args__=names, __new__=new)
        return type(name, (_Shared,), space)


@cache
def _maker(count: int) -> FunctionType:
    """Return a function that makes a tuple of so many values."""
    names = ", ".join(f"_{index}" for index in range(count))
    made: FunctionType = eval(f"lambda cls, {names}: new(cls, ({names},))", {"new": tuple.__new__})  # noqa: S307
    return made


_Element: Any = type(vars(namedtuple("_Element", "value"))["value"])  # noqa: PYI024  what it makes is not used

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414  what other modules import
    from typing import Self
else:

    class NamedTuple(metaclass=_TupleType):
        """Base of named tuples."""


class _Fields(NamedTuple):
    """Fields of a record, as what fills it needs them."""

    own: Mapping[str, Any] = MappingProxyType({})
    """What the body of the class says of its own: a `Field`, a default, or that there is none."""
    kw_only: bool = False
    taken: Mapping[str, bool] = MappingProxyType({})
    """Whether a call has to name what it may give, by name."""
    defaults: dict[str, Any] = {}  # noqa: RUF012
    makers: Mapping[str, Callable[[], Any]] = MappingProxyType({})
    fixed: Mapping[str, Callable[[], Any]] = MappingProxyType({})
    """What makes the values that no call may give, by name."""
    compared: tuple[str, ...] = ()


def collect(kind: type[Bare], *, kw_only: bool, checked: bool = True) -> None:
    """Collect the fields of a class of records; `checked` calls its `__post_init__` on each that is made.

    What the body says stays on the class, where `dataclasses.dataclass` of a user's own class reads it.
    """
    before: _Fields = cast("Any", super(kind, kind))._fields_known
    body = vars(kind)
    own = {
        name: body.get(name, MISSING) for name, types in kind.__annotations__.items() if "ClassVar" not in str(types)
    }
    taken, defaults, makers, fixed = dict(before.taken), dict(before.defaults), dict(before.makers), dict(before.fixed)
    compared = dict.fromkeys(before.compared, True)
    for name, about in own.items():
        if about is not MISSING and name in compared:
            for known in (defaults, makers, fixed):
                known.pop(name, None)
        if not isinstance(about, Field):
            taken[name], compared[name] = kw_only, True
            if about is not MISSING:
                defaults[name] = about
            continue
        compared[name] = about.compare
        taken[name] = kw_only if about.kw_only is MISSING else about.kw_only
        if not about.init:
            del taken[name]
        if about.default_factory is not MISSING:
            (makers if about.init else fixed)[name] = about.default_factory
        elif about.default is not MISSING and about.init:
            defaults[name] = about.default
        elif about.default is not MISSING:
            fixed[name] = repeat(about.default).__next__
    needed = [name for name in taken if name not in defaults and name not in makers]
    counted = tuple(name for name, counts in compared.items() if counts)
    kind._fields_known = _Fields(own, kw_only, taken, defaults, makers, fixed, counted)
    names = tuple(name for name, named in taken.items() if not named)
    kind._filling = (
        names,
        itemgetter(*needed) if needed else len,
        defaults,
        tuple(makers.items()),
        tuple(fixed.items()),
        len(taken),
        checked and kind.__post_init__ is not Bare.__post_init__,
    )
    kind.__match_args__ = names  # type: ignore[misc]
    kind._values_of = attrgetter("__class__", *counted)


def names_taken(record: Bare | type[Bare]) -> Iterable[str]:
    """Return the names of the values that a call may give."""
    return record._fields_known.taken


def _misfit(record: Any, unnamed: tuple[Any, ...], values: Mapping[str, Any]) -> TypeError:
    """Return the error on a call that lacks values, gives too many or one twice, or names an unknown one."""
    from difflib import get_close_matches  # noqa: PLC0415  start-up time

    known: _Fields = record._fields_known
    order = record.__match_args__
    named = (*order[: len(unnamed)], *values)
    lacking = [name for name in known.taken if name not in (*named, *known.defaults, *known.makers)]
    wrong = [f"got multiple values for argument {name!r}" for name in values if named.count(name) > 1]
    for name in (each for each in values if each not in known.taken):
        near = "".join(f", did you mean {each!r}?" for each in get_close_matches(name, known.taken, n=1))
        wrong += [f"got an unexpected keyword argument {name!r}{near}"]
    if len(unnamed) > len(order):
        wrong.append(f"takes {len(order)} positional arguments but {len(unnamed)} were given")
    if lacking:
        wrong.append(f"missing required argument{'s' if len(lacking) > 1 else ''}: {', '.join(map(repr, lacking))}")
    return TypeError(f"{type(record).__name__}() {'; '.join(wrong)}")


def _dataclass(kind: type[Bare], types: dict[str, Any], said: Mapping[str, Any], **options: bool) -> Any:
    """Return a class that `dataclasses` makes of fields."""
    body = {**said, "__annotations__": types, "__module__": kind.__module__, "__doc__": "-"}
    return dataclass(repr=False, eq=False, **options)(type(kind.__name__, (), body))


@cache
def _dataclass_fields(kind: Any) -> dict[str, Field[Any]]:
    """Return the fields of a class of records, with those that it inherits, as `dataclasses` would."""
    about = kind._fields_known
    above = [each for each in kind.__mro__[1:] if issubclass(each, Bare)]
    inherited = _dataclass_fields(above[0]) if above else {}
    said = {name: value for name, value in about.own.items() if value is not MISSING}
    types = {name: kind.__annotations__[name] for name in about.own}
    made = _dataclass(kind, types, said, init=False, kw_only=about.kw_only)
    return {**inherited, **made.__dataclass_fields__}


@cache
def _signature(kind: Any) -> Any:
    """Return how a class of records is called, as `inspect` says it of one that `dataclasses` makes."""
    if vars(Bare)["__init__"] is not kind.__init__:
        raise AttributeError("__signature__")
    from inspect import signature  # noqa: PLC0415  start-up time

    about = _dataclass_fields(kind)
    return signature(_dataclass(kind, {name: each.type for name, each in about.items()}, about))


class _OnDemand:
    """Attribute of a class of records that is made when it is asked for."""

    def __init__(self, made: Callable[[Any], Any]) -> None:
        self._made = made

    def __get__(self, record: object, kind: type[Bare]) -> Any:
        return self._made(kind)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Bare:
    """Base of dataclasses that cannot be changed, compared by identity.

    Python compiles the methods of its own dataclasses as it imports them; these share theirs, which know the fields.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]] = cast("Any", _OnDemand(_dataclass_fields))
    __dataclass_params__: ClassVar[Any] = SimpleNamespace(frozen=True)
    __signature__: ClassVar[Any] = _OnDemand(_signature)
    __match_args__: ClassVar[tuple[str, ...]] = ()
    """Names of the values that a call need not name."""
    _fields_known: ClassVar[_Fields] = _Fields()
    _values_of: ClassVar[Any] = attrgetter("__class__")
    """What returns the class and the values that count."""

    _filling: ClassVar[tuple[tuple[str, ...], Callable[..., Any], dict[str, Any], _Makers, _Makers, int, bool]]
    """Names of what a call need not name; what fails without the values that have no default; defaults, what makes
    them anew, what makes values that no call may give, how many one may give, and whether a record is checked."""

    def __init_subclass__(cls, *, kw_only: bool = False, checked: bool = True) -> None:
        collect(cls, kw_only=kw_only, checked=checked)

    if not TYPE_CHECKING:

        def __init__(self, /, *unnamed: Any, **values: Any) -> None:
            names, needed, defaults, makers, fixed, count, checked = self._filling
            stated = dict(zip(names, unnamed, strict=False)) | values if unnamed else values
            held = defaults | stated
            for name, make in makers:
                if name not in held:
                    held[name] = make()
            try:
                needed(held)
            except KeyError:
                raise _misfit(self, unnamed, values) from None
            if len(held) != count or len(stated) != len(unnamed) + len(values):
                raise _misfit(self, unnamed, values)
            for name, make in fixed:
                held[name] = make()
            object.__setattr__(self, "__dict__", held)
            if checked:
                self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values, or add others."""

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field '{name}'")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field '{name}'")

    def __replace__(self, /, **values: Any) -> Self:
        return replace(self, **values)


class Record(Bare):
    """Base of records that are compared by the values of their fields, and show them as text."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or self._values_of(self) == self._values_of(other)

    def __hash__(self) -> int:
        return hash(self._values_of(self))

    def __repr__(self) -> str:
        texts = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__qualname__}({', '.join(texts)})"


def replace(record: B, **values: Any) -> B:
    """Return a record with other values, as `dataclasses.replace` does; deferred ones are left to be computed."""
    held, taken = vars(record), record._fields_known.taken
    said = held if len(held) == len(taken) else {name: held[name] for name in taken}
    return type(record)(**{**said, **values})
