"""All that a report of verdicts shows."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.recipes.check.baseline import Changed
from simulator.recipes.check.verdict import Checked, Gates, exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Verdicts with what they were held against."""

    results: tuple[Checked, ...]
    gates: Gates
    changed: tuple[Changed, ...] | None = None
    """What differs from the baseline; None where none was given."""
    verbosity: int = 0
    colour: bool = False
    diff: bool = False
    """Show patches of the recipes."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return exit_code(self.results, self.gates)
