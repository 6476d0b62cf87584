"""Text to the value of a switch, with a one-line error for any other text."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from simulator.errors import InputError

_ON = ("true", "1", "on", "yes")
_OFF = ("false", "0", "off", "no")


NO_WORD = "none"
"""Text of a switch whose value is a set of words, for the empty set."""


def switch_value(spec: dataclasses.Field[Any], text: str, current: object) -> object:
    """Return `text` as the switch's own type, checked against its choices or range. Raises InputError."""
    if isinstance(current, bool):
        if text.lower() not in (*_ON, *_OFF):
            raise InputError(f"--option {spec.name}={text}: allowed are true and false")
        return text.lower() in _ON
    if isinstance(current, tuple):
        words = [word for word in text.split(",") if word and text != NO_WORD]
        if wrong := next((word for word in words if word not in spec.metadata["choices"]), None):
            raise InputError(f"--option {spec.name}={wrong}: allowed are {', '.join(spec.metadata['choices'])}")
        return tuple(word for word in spec.metadata["choices"] if word in words)
    if isinstance(current, str):
        if text not in spec.metadata["choices"]:
            raise InputError(f"--option {spec.name}={text}: allowed are {', '.join(spec.metadata['choices'])}")
        return text
    kind = int if isinstance(current, int) else float
    low, high = spec.metadata["low"], spec.metadata["high"]
    try:
        value: float = kind(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        expected = "a whole number" if kind is int else "a number"
        raise InputError(f"--option {spec.name}={text}: must be {expected} from {low} to {high}")
    return value
