"""Switch of a framework profile: its default, meaning and effects on an answer. Prices nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, get_args
from zlib import crc32

SwitchEffect = Literal["memory", "host", "passes", "step", "rules"]
"""Part of an answer that a switch may change: memory of a device or of a node's host, time of a micro batch's passes or
of the rest of a step, rules."""
SWITCH_EFFECTS: tuple[SwitchEffect, ...] = get_args(SwitchEffect)


def switch(  # noqa: PLR0913  what is known of a switch
    *,
    default: Any,
    about: str,
    choices: tuple[Any, ...] = (),
    low: float = 0,
    high: float = 1,
    moves: tuple[SwitchEffect, ...] = SWITCH_EFFECTS,
    concerns: Literal["every", "experts", "fp8"] = "every",
) -> Any:
    """Return the profile field of a switch: its default, meaning, allowed words or range.

    `moves` lists the effects that it may have, `concerns` the questions that it applies to.
    """
    meta = {"about": about, "choices": choices, "low": low, "high": high, "moves": moves, "concerns": concerns}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Switches:
    """Record of many switches that serves as a cache key, with its hash stored.

    Classes that add switches are made with `eq=False`: code for each of a hundred fields takes long to start.
    """

    hashed: int = field(init=False, repr=False)
    """Hash of the switches, the same in every process."""

    def __post_init__(self) -> None:
        """Compute the hash."""
        kind: Any = type(self)
        object.__setattr__(self, "hashed", crc32(repr(_values(kind)(self)).encode()))

    def __hash__(self) -> int:
        """Hash by the switches."""
        return self.hashed

    def __eq__(self, other: object) -> bool:
        """Compare the hashes of the switches, then all fields."""
        if not isinstance(other, Switches):
            return NotImplemented
        kind: Any = type(self)
        return self.hashed == other.hashed and bool(_fields(kind)(self) == _fields(kind)(other))


@lru_cache(maxsize=4)
def _values(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter of a record's switch values."""
    return attrgetter(*(each.name for each in fields(kind) if "about" in each.metadata))


@lru_cache(maxsize=4)
def _fields(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter of all field values of a record."""
    return attrgetter(*(each.name for each in fields(kind)))
