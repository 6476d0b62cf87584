"""Remarks on a run with their lines, and values that only its environment knows. No rule is decided here."""

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
    """Line number, from 1."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only the run's environment knows: `$WORLD_SIZE`, `$1`, `$(command)`."""

    name: str
    """Name as in `--set NAME=VALUE`."""
    place: Place
    affects: tuple[str, ...] = ()
    """Settings that depend on it; empty where none that matters does."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A fact about a recipe that its reader should know: an unknown, repeated or contradictory flag, a broken rule."""

    rule: str
    """Stable id, such as `repeated-flag`."""
    severity: Severity
    """How serious it is; an `error` is a refusal or a missing value."""
    message: str
    """The problem, in one sentence."""
    place: Place | None = None
    fix: str = ""
    """What to do about it; empty where nothing is known."""
    source: str = ""
    """Where the framework checks it: repository, version, file and line."""


@dataclass(frozen=True, slots=True)
class RecipeFlag:
    """A flag as it stands in the recipe."""

    spelled: str
    """Name as in the recipe, without leading dashes."""
    text: str
    """Its values, joined by blanks; empty for a switch."""
    place: Place

    @property
    def name(self) -> str:
        """Name as in the framework's tables, with underscores."""
        return self.spelled.replace("-", "_").lower()
