"""Files of samples: lengths with their counts, line by line. `scenario.lengths` makes a distribution of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, quoted
from simulator.late import late_pattern
from simulator.question.specs.documents import read_limited

_MOST_BYTES: Final = 2**28
_PAIR: Final = late_pattern(r"([0-9.eE+-]+)[,:;\s]+([0-9.eE+-]+)")
_HEAD: Final = late_pattern(r"[A-Za-z_]*(?:len|token)[A-Za-z_]*|[A-Za-z_]+[,;\t ]+[A-Za-z_]+", re.IGNORECASE)
_GROUPED: Final = late_pattern(r"[0-9]{1,3}(?:,[0-9]{3})*,0[0-9]{2}(?:,[0-9]{3})*")
"""A length with thousands separators that no count can be: a group begins with 0."""
_KEYS: Final = ("length", "tokens", "num_tokens", "count", "weight")


def counted_lines(file: str) -> Iterator[tuple[int, Any, Any]]:
    """Yield line, length and weight of a file: one length a line, a length and its count, or JSON with either."""
    path = Path(file)
    try:
        exists = path.exists()
    except (OSError, ValueError):
        exists = False
    if not file or not exists:
        raise InputError(f"lengths {quoted(file)}: no such file; write one, or percentiles such as p50=900,max=16k")
    for number, line in enumerate(read_limited(path, _MOST_BYTES).splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#") or (number == 1 and _HEAD.fullmatch(text)):
            continue
        if text.startswith(("{", "[", '"')):
            yield (number, *_json(text))
            continue
        if _GROUPED.fullmatch(text):
            raise InputError(f"{file}:{number}: {text}: write {text.replace(',', '')}; behind a comma stands a count")
        pair = _PAIR.fullmatch(text)
        if pair and not (pair[2].isdecimal() and int(pair[2][:20])):
            raise InputError(f"{file}:{number}: {text}: {quoted(pair[2])} is no count: a whole number from 1")
        yield (number, pair[1], pair[2]) if pair else (number, text, 1)


def _json(text: str) -> tuple[Any, Any]:
    """Return length and weight of a line of JSON; what is no length is returned as text."""
    import json  # noqa: PLC0415  start-up time

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text, 1
    if not isinstance(value, dict):
        return text, 1
    length = next((value[key] for key in _KEYS[:3] if key in value), text)
    return length, next((value[key] for key in _KEYS[3:] if key in value), 1)
