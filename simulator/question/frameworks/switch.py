"""One switch of a framework profile: its default, meaning, and what of an answer it may change. Prices nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, get_args
from zlib import crc32

from simulator.question.specs.tables import TableRow, number_of, value_of, words_of

SwitchEffect = Literal["memory", "host", "passes", "step", "rules"]
"""What a switch may change of an answer: memory of a device or of a node's host, time of a micro batch's passes or of
what else a step has, rules."""
SWITCH_EFFECTS: tuple[SwitchEffect, ...] = get_args(SwitchEffect)


def switch_of_row(row: TableRow, annotation: str) -> Any:
    """A profile field of a type, from its row of `switches.csv`: default, meaning, allowed words or range.

    `moves` says what of an answer it changes at most, `of` of which questions (`experts`, `fp8`); where they are empty
    it may change everything, of every question.
    """
    meta = {
        "about": row["about"],
        "choices": words_of(row["choices"]),
        "low": number_of(row["low"] or "0"),
        "high": number_of(row["high"] or "1"),
        "moves": words_of(row["moves"]) or SWITCH_EFFECTS,
        "of": row["of"] or "every",
    }
    return field(default=value_of(row["default"], annotation), metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Switches:
    """A record of many switches that derived values are looked up by: its hash, kept, tells switched ones apart.

    Classes that add switches are made with `eq=False`: code for each of a hundred fields takes long to start.
    """

    hashed: int = field(init=False, repr=False)
    """Hash of the switches, the same in every process."""

    def __post_init__(self) -> None:
        """Work the hash out."""
        kind: Any = type(self)
        object.__setattr__(self, "hashed", crc32(repr(_values(kind)(self)).encode()))

    def __hash__(self) -> int:
        """Hash by the switches."""
        return self.hashed

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal: told by the hash where switches differ."""
        if not isinstance(other, Switches):
            return NotImplemented
        kind: Any = type(self)
        return self.hashed == other.hashed and bool(_fields(kind)(self) == _fields(kind)(other))


@lru_cache(maxsize=4)
def _values(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of a record's switches."""
    return attrgetter(*(each.name for each in fields(kind) if "about" in each.metadata))


@lru_cache(maxsize=4)
def _fields(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of all fields of a record."""
    return attrgetter(*(each.name for each in fields(kind)))
