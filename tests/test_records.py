"""Records and named tuples of the package do what those of Python's `dataclasses` and `typing` do."""

import copy
import dataclasses
import inspect
import pickle
import typing
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from simulator.late import late_pattern
from simulator.records import NamedTuple, Record


class Own(Record):
    first: int
    second: list[int] = dataclasses.field(default_factory=list)
    third: str = dataclasses.field(default="c", compare=False)
    fixed: list[int] = dataclasses.field(default_factory=list, init=False, repr=False)


class OwnBelow(Own, kw_only=True):
    named: int
    third: str = "d"
    kept: int = dataclasses.field(default=7, init=False)


class OwnOther(Own):
    second: list[int] = dataclasses.field(init=False, default_factory=list, compare=False)
    third: str = dataclasses.field(kw_only=True, default="e")
    fixed: list[int] | int = 3  # type: ignore[assignment]
    last: int = 4


@dataclasses.dataclass(frozen=True)
class Theirs:
    first: int
    second: list[int] = dataclasses.field(default_factory=list)
    third: str = dataclasses.field(default="c", compare=False)
    fixed: list[int] = dataclasses.field(default_factory=list, init=False, repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TheirsBelow(Theirs):
    named: int
    third: str = "d"
    kept: int = dataclasses.field(default=7, init=False)


@dataclasses.dataclass(frozen=True)
class TheirsOther(Theirs):
    second: list[int] = dataclasses.field(init=False, default_factory=list, compare=False)
    third: str = dataclasses.field(kw_only=True, default="e")
    fixed: list[int] | int = 3  # type: ignore[assignment]
    last: int = 4


@dataclasses.dataclass(frozen=True)
class OwnDecorated(Own):
    more: list[str] = dataclasses.field(default_factory=list)
    unseen: int = dataclasses.field(default=0, compare=False)
    kept: int = dataclasses.field(default=7, init=False)


@dataclasses.dataclass(frozen=True)
class TheirsDecorated(Theirs):
    more: list[str] = dataclasses.field(default_factory=list)
    unseen: int = dataclasses.field(default=0, compare=False)
    kept: int = dataclasses.field(default=7, init=False)


class OwnTuple(NamedTuple):
    first: int
    second: str = "b"


class TheirTuple(typing.NamedTuple):
    first: int
    second: str = "b"


def answer(call: Any) -> Any:
    """Return what a call returns, or the type of its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  whatever it raises
        return type(error)


PAIRS: list[tuple[Any, Any, dict[str, Any]]] = [
    (Own, Theirs, {}),
    (OwnBelow, TheirsBelow, {"named": 1}),
    (OwnOther, TheirsOther, {}),
    (OwnDecorated, TheirsDecorated, {}),
]


@pytest.mark.parametrize(("own", "theirs", "more"), PAIRS)
def test_records_are_as_dataclasses_are(own: Any, theirs: Any, more: dict[str, Any]) -> None:
    def facts(kind: Any) -> list[Any]:
        one, changed = kind(1, **more), kind(1, third="x", **more)
        told = [
            (each.name, each.type, each.init, each.repr, each.compare, each.kw_only)
            for each in dataclasses.fields(kind)
        ]
        return [
            told,
            (one == changed, one == kind(1, **more), one == kind(2, **more), one.__eq__(1), one != 1),
            one.second is kind(1, **more).second,
            dataclasses.asdict(one),
            repr(one).partition("(")[2],
            inspect.signature(kind),
            kind.__match_args__,
            answer(lambda: hash(kind(1, (), **more)) == hash(kind(1, (), third="x", **more))),
            dataclasses.replace(one, first=3) == kind(3, **more),
            answer(lambda: dataclasses.replace(one, nothing=3)),
            [each(one) == one for each in (copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it)))],  # noqa: S301
            *(answer(lambda it=it: dataclasses.asdict(kind(*it[0], **it[1]))) for it in CALLS),
        ]

    for mine, their in zip(facts(own), facts(theirs), strict=True):
        assert mine == their
    record = own(1, **more)
    assert record.__replace__(first=3) == own(3, **more)
    with pytest.raises(FrozenInstanceError):
        record.first = 2
    with pytest.raises(FrozenInstanceError):
        del record.first


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {"first": 1, "named": 1}),
    ((1,) * 9, {}),
    ((1,), {"fixed": 3, "named": 1}),
    ((1,), {"kept": 3, "named": 1}),
    ((1,), {"nothing": 3, "named": 1}),
    ((1, 2), {"named": 1}),
]


@pytest.mark.parametrize(
    ("unnamed", "named", "message"),
    [
        ((), {}, "missing required argument: 'first'"),
        ((1,), {"first": 1}, "got multiple values for argument 'first'"),
        ((1, [], "c", 4), {}, "takes 3 positional arguments but 4 were given"),
        ((1,), {"secnod": []}, "got an unexpected keyword argument 'secnod', did you mean 'second'?"),
        ((1,), {"fixed": []}, "got an unexpected keyword argument 'fixed'"),
        ((), {"xyz": 1}, "got an unexpected keyword argument 'xyz'; missing required argument: 'first'"),
    ],
)
def test_a_wrong_call_is_told_in_the_words_of_python(unnamed: Any, named: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        Own(*unnamed, **named)
    assert str(caught.value) == f"Own() {message}"


def test_records_match_by_place_and_show_their_fields_alone() -> None:
    match Own(1, [2]):
        case Own(first, [second]):
            assert (first, second) == (1, 2)
        case _:
            pytest.fail("no match")
    assert {name for name in dir(Own) if not name.startswith("_")} == {"second", "third", "fixed"}


def test_named_tuples_are_as_those_of_typing() -> None:
    for own, theirs in zip(
        *(
            (
                kind(1),
                kind(1)._replace(second="c"),
                kind(1)._asdict(),
                (kind._fields, kind._field_defaults, kind.__match_args__),
                repr(kind(1)).partition("(")[2],
                answer(lambda kind=kind: kind()),
                answer(lambda kind=kind: kind(1, third=2)),
                pickle.loads(pickle.dumps(kind(1))) == kind(1),  # noqa: S301
            )
            for kind in (OwnTuple, TheirTuple)
        ),
        strict=True,
    ):
        assert own == theirs
    changed: Any = OwnTuple(1)
    assert changed.__replace__(first=2) == (2, "b")
    with pytest.raises(TypeError, match="field second cannot follow default fields"):

        class Wrong(NamedTuple):
            first: int = 1
            second: str  # type: ignore[misc]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])  # noqa: S301
def test_a_late_pattern_is_copied(copied: Any) -> None:
    assert copied(late_pattern("a+")).fullmatch("aa")
