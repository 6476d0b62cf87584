"""One switch of a framework profile: its default, what it means, and what it may change of an answer."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, get_args

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
