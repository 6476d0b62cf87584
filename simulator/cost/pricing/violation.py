"""A broken rule as a value: its id, message and fix. `search.rules` has the rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a layout breaks."""

    rule: str
    """Stable id, such as `heads`."""
    message: str
    """What is wrong."""
    fix: str
    """How to mend it."""
