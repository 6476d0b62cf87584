"""The answer that every report of verdicts shows, with names and values in one spelling."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.errors import one_line
from simulator.recipes.check.baseline import Changed
from simulator.recipes.check.verdict import Checked, Gates, exit_code
from simulator.recipes.recipe import Place, Remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Verdicts with what they were held against."""

    results: tuple[Checked, ...]
    gates: Gates
    changed: tuple[Changed, ...] | None = None
    """What differs from the baseline; None where none was given."""
    verbosity: int = 0
    width: int | None = None
    """Characters in a line of a table; None is no limit."""
    colour: bool = False
    diff: bool = False
    """Show patches of the recipes."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return exit_code(self.results, self.gates)


def printable(answer: Answer) -> Answer:
    """Return the answer with every text of a file or its name on one line, without control marks or lone surrogates.

    A runner of GitHub takes a line of any output for a command that begins with two colons, or that holds the older
    mark; no name or value begins a line so, or holds it.
    """
    changed = answer.changed and tuple(_changed(change) for change in answer.changed)
    return replace(answer, results=tuple(_result(result) for result in answer.results), changed=changed)


def _text(text: str) -> str:
    return one_line(text).replace("##[", "# #[")


def _name(text: str) -> str:
    """A name that may begin a line; one that would be a command gets the folder in front."""
    found = _text(text)
    return f"./{found}" if found.startswith("::") else found


def _place(place: Place | None) -> Place | None:
    return None if place is None else replace(place, file=_name(place.file))


def _remark(remark: Remark) -> Remark:
    return replace(remark, message=_text(remark.message), fix=_text(remark.fix), place=_place(remark.place))


def _result(result: Checked) -> Checked:
    estimate = result.estimate
    return replace(
        result,
        file=_name(result.file),
        title=_text(result.title),
        reasons=tuple(_text(reason) for reason in result.reasons),
        remarks=tuple(_remark(remark) for remark in result.remarks),
        blame=_place(result.blame),
        estimate=None if estimate is None else replace(estimate, model=_name(estimate.model)),
    )


def _changed(change: Changed) -> Changed:
    return replace(change, file=_text(change.file), title=_text(change.title))
