"""Description of an input: name, option, check, search axis and column. `inputs` and `layout` hold the inputs."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, NamedTuple, get_args

from simulator.errors import InputError, did_you_mean

LARGEST_COUNT = 2**24

SettingGroup = Literal["size", "recompute", "other"]
"""Part of a layout that a field belongs to; answers list the parts in this order."""
GROUPS: tuple[SettingGroup, ...] = get_args(SettingGroup)
SettingKind = Literal["count", "number", "flag", "word", "words", "layers", "model", "hardware", "switches", "file"]
"""`count`: a whole number from 1. `number`: one of a few numbers. `flag`: on or off. `word`: one of a few words.
`words`: some of a few words, each once, in their order. `layers`: a list of whole numbers. `model`, `hardware`: the
name of a spec, or a path. `switches`: a framework's switches by name. `file`: a path."""
REQUIRED: Final = object()
"""Default of a required input."""
LISTS: tuple[SettingKind, ...] = ("words", "layers")
"""Kinds whose value is a list; a search takes one list, or tries its own."""


class InputSetting(NamedTuple):
    """Input of a question: a field of its layout or workload, or another."""

    name: str
    """Keyword of the API, key of a sweep."""
    key: str
    """Short name: key of JSON, column of CSV, keyword of the API, option."""
    kind: SettingKind
    default: Any
    """Default; None where leaving it out is a value of its own."""
    help: str
    """Help text of the command line."""
    label: str = ""
    """Label before the value in a text."""
    choices: tuple[Any, ...] = ()
    """All allowed values of a number or word."""
    named_choices: tuple[Any, ...] = ()
    """Choices that a user may name; the others follow from another field."""
    low: int = 1
    high: int = 2**20
    """Range that the command line takes."""
    of_tokens: bool = False
    """Whether it counts tokens or sequences, of which 8k are 8192."""
    searchable: bool = False
    """Whether a ranking may search it, with a text such as `auto` instead of a number."""
    group: SettingGroup = "other"
    split: bool = False
    """Whether it is one of the sizes by which a ranking groups layouts to show the best of each."""
    per_block: bool = False
    """Whether all layouts of a block share it; the others are columns, one number per layout."""
    of_work: bool = True
    """Whether the work of one layer depends on it; layouts that differ in other fields only share figures of layers."""
    searched: tuple[Any, ...] = ()
    """Values that a search tries by default; without any, the value follows from the scenario or is the default."""
    search: str = ""
    """`searched` in words."""

    @property
    def option(self) -> str:
        """Option of the command line."""
        return "--" + self.key.replace("_", "-")

    def check(self, value: object) -> None:
        """Raise InputError, naming the field, for a value that is not allowed."""
        kind = self.kind
        if kind == "count" and type(value) is int and 1 <= value <= LARGEST_COUNT:
            return  # most values of most layouts
        if value is None and self.default is None:
            return
        if kind == "count":
            check_count(self.name, value, max(self.high, LARGEST_COUNT))
        elif kind == "flag":
            check_choice(self.name, value, (False, True))
        elif kind == "words":
            for word in value if isinstance(value, tuple) else (value,):
                check_choice(self.name, word, self.choices)
        elif self.choices:
            check_choice(self.name, value, self.choices)

    def encoded(self, value: Any) -> float:
        """Return the value as a column's number: a word as its index into the choices, words as a sum of bits."""
        if self.kind == "words":
            return float(sum(2 ** self.choices.index(word) for word in value))
        return float(self.choices.index(value) if self.kind == "word" else value)

    def decoded(self, number: float) -> Any:
        """Return the value that a column's number encodes."""
        if self.kind == "word":
            return self.choices[int(number)]
        if self.kind == "words":
            return tuple(word for index, word in enumerate(self.choices) if int(number) >> index & 1)
        return bool(number) if self.kind == "flag" else int(number)


def input_field(default: Any, help: str, **about: Any) -> Any:  # noqa: A002  the word that click has for it
    """Return a dataclass field with `InputSetting` values as metadata; name, key and kind follow by default."""
    return dataclasses.field(default=default, metadata={"help": help, **about})


def settings_of(kind: type) -> tuple[InputSetting, ...]:
    """Return the settings of a dataclass whose fields are all an `input_field`, in order."""
    return tuple(
        InputSetting(
            **{
                "name": field.name,
                "key": field.name,
                "kind": _kind(field.default, field.metadata),
                "default": field.default,
                "named_choices": field.metadata.get("choices", ()),
                **field.metadata,
            }
        )
        for field in dataclasses.fields(kind)
    )


def _kind(default: object, about: Any) -> SettingKind:
    if isinstance(default, bool):
        return "flag"
    if isinstance(default, str):
        return "word"
    if isinstance(default, tuple):
        return "layers"
    return "number" if about.get("choices") else "count"


def check_count(name: str, value: object, largest: int = LARGEST_COUNT) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `largest`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise InputError(f"{name} {value!r}: must be a whole number from 1 to {largest}")


def check_share(name: str, value: object) -> None:
    """Raise InputError unless `value` is a number from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value <= 1.0:
        raise InputError(f"{name} {value!r}: must be a number from 0 to 1")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise InputError unless `value` is one of `choices`."""
    if value not in choices:
        allowed = ", ".join(str(choice) for choice in choices)
        raise InputError(
            f"{name} {value!r}: allowed are {allowed}{did_you_mean(str(value), [str(c) for c in choices])}"
        )
