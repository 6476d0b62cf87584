"""Remarks on a run with their lines, and values that only its environment knows. Values; no rule decides here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    """Name of the file."""
    line: int
    """From 1."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only the run's environment knows: `$WORLD_SIZE`, `$1`, `$(command)`."""

    name: str
    """As given to `--set NAME=VALUE`."""
    place: Place
    affects: tuple[str, ...] = ()
    """Settings that need it; empty when nothing that matters does."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something a reader of the recipe should know: an unknown, repeated or contradictory flag, a rule broken."""

    rule: str
    """Stable id, such as `repeated-flag`."""
    severity: Severity
    """An error is a refusal or a missing value."""
    message: str
    """What is wrong, in one sentence."""
    place: Place | None = None
    fix: str = ""
    """What to do; empty where nothing is known."""
    source: str = ""
    """Where the framework checks it: repository, version, file and line."""


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """A flag as the recipe gives it."""

    spelled: str
    """Without the dashes in front."""
    text: str
    """Its values, joined; empty for a switch."""
    place: Place

    @property
    def name(self) -> str:
        """As the framework's own tables spell it, with underscores."""
        return self.spelled.replace("-", "_").lower()
