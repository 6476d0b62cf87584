"""Verdicts made safe to print: names and values on one line, with nothing that a terminal or a CI runner would obey."""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import one_line
from simulator.question.origin import Place, Remark
from simulator.recipes.check.verdict import Changed, Checked, Checks


def printable(checks: Checks) -> Checks:
    """Return the verdicts with every text of a file or its name on one line, without control marks or lone surrogates.

    A runner of GitHub takes a line of any output for a command that begins with two colons, or that holds the older
    mark; no name or value begins a line so, or holds it.
    """
    changed = checks.changed and tuple(_changed(change) for change in checks.changed)
    return replace(checks, results=tuple(_result(result) for result in checks.results), changed=changed)


def _text(text: str) -> str:
    return one_line(text).replace("##[", "# #[")


def _name(text: str) -> str:
    """Return a name that may begin a line; one that would be a command gets the folder in front."""
    shown = _text(text)
    return f"./{shown}" if shown.startswith("::") else shown


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
