"""A broken rule as a value: its id, message and fix. The rules themselves stand in `search.rules`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that the layout breaks."""

    rule: str
    """Stable id, such as `heads`."""
    message: str
    """What is wrong."""
    fix: str
    """What to do about it."""
