"""One switch of a framework profile: its default, what it means, and what it may change of an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, get_args
from zlib import crc32

SwitchEffect = Literal["memory", "host", "passes", "step", "rules"]
"""What a switch may change of an answer: memory of a device or of a node's host, time of a micro batch's passes or of
what else a step has, rules."""
SWITCH_EFFECTS: tuple[SwitchEffect, ...] = get_args(SwitchEffect)


def switch(  # noqa: PLR0913  one per fact of a switch
    default: Any,
    about: str,
    *,
    choices: tuple[str, ...] = (),
    low: float = 0,
    high: float = 1,
    moves: tuple[SwitchEffect, ...] = SWITCH_EFFECTS,
    of: Literal["every", "experts", "fp8"] = "every",
) -> Any:
    """A profile field with its description, allowed words (for text) and range (for numbers).

    `moves` and `of` say what it changes at most, and of which questions: models with experts, or those in fp8.
    """
    meta = {"about": about, "choices": choices, "low": low, "high": high, "moves": moves, "of": of}
    return field(default=default, metadata=meta)


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
