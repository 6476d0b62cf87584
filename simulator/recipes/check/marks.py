"""Marks of the code that a recipe starts, found in its text: its example, the framework's snapshot."""

from __future__ import annotations

import re
from pathlib import Path

from simulator.answers.rules import Mark

_MOST_BYTES = 2_000_000
_PATTERNS: dict[Mark, re.Pattern[str]] = {
    "llama3.1-example": re.compile(r"^[^#\n]*\bpretrain_llama\.py", re.MULTILINE),
    "megatron-240718": re.compile(r"^[^#\n]*Megatron-LM-240718", re.MULTILINE),
    # Snapshots are named by date; 0.12 dates from spring 2025.
    "megatron-before-0.12": re.compile(r"^[^#\n]*Megatron-LM-2([34]\d{4}|50[12]\d\d)\b", re.MULTILINE),
}
_NAMES = ("pretrain_llama.py", "Megatron-LM-2")
"""Texts without which no pattern matches."""


def marks_of(file: str) -> frozenset[Mark]:
    """Return the marks in a recipe's text, comments left out; empty where it cannot be read."""
    text = text_of(file)
    if not any(name in text for name in _NAMES):
        return frozenset()
    return frozenset(mark for mark, pattern in _PATTERNS.items() if pattern.search(text))


def text_of(file: str) -> str:
    """Return the recipe's text; empty where it cannot be read again."""
    try:
        with Path(file).open("rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
