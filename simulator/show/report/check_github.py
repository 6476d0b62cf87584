"""Verdicts as workflow commands of GitHub Actions: annotations at the line to blame, and a job summary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.recipes.check.verdict import NOT_JUDGED, Checked
from simulator.recipes.recipe import Place
from simulator.show.report.check_answer import Answer, printable
from simulator.show.report.check_table import check_table
from simulator.show.report.check_text import change_lines, tally, verdict_line

MOST_ANNOTATIONS = 10
"""GitHub shows this many of a kind for a step."""
MOST_NAMES = 50
"""Files that an annotation names."""
MOST_SUMMARY_BYTES = 1_000_000
"""GitHub refuses a step's summary above 1 MiB."""


@dataclass(frozen=True, slots=True)
class _Annotation:
    kind: str
    file: str
    line: int
    title: str
    message: str

    def command(self) -> str:
        place = f"file={_property(self.file)},line={self.line}," if self.file else ""
        return f"::{self.kind} {place}title={_property(self.title)}::{_data(self.message)}"


def check_github(answer: Answer) -> str:
    """Return the tally and the annotations, at most ten of a kind."""
    lines = [tally(answer.results)]
    for kind in ("error", "warning", "notice"):
        found = [item for result in answer.results for item in _annotations(result) if item.kind == kind]
        shown = found if len(found) <= MOST_ANNOTATIONS else found[: MOST_ANNOTATIONS - 1]
        lines += [item.command() for item in shown]
        if len(shown) < len(found):
            rest = found[len(shown) :]
            names = list(dict.fromkeys(item.file for item in rest))
            more = f" and {len(names) - MOST_NAMES} more files" if len(names) > MOST_NAMES else ""
            said = f"also: {', '.join(names[:MOST_NAMES])}{more}"
            lines.append(_Annotation(kind, "", 1, f"{len(rest)} more", said).command())
    return "\n".join(lines) + "\n"


def github_summary(answer: Answer) -> str:
    """Return the job summary as Markdown, cut to what GitHub takes."""
    text = f"## Recipes\n\n{check_table(printable(answer), 'markdown')}\n"
    data = text.encode()
    if len(data) <= MOST_SUMMARY_BYTES:
        return text
    return data[:MOST_SUMMARY_BYTES].decode("utf-8", "ignore").rpartition("\n")[0] + "\n\n(cut)\n"


def _annotations(result: Checked) -> Iterator[_Annotation]:
    """What a reader of the change must see of one recipe: a failure, a warning, or that it was not judged."""
    failed = not result.passed and not result.known
    if failed or result.outcome == "starved" or result.outcome in NOT_JUDGED:
        place = result.blame or Place(result.file, 1)
        text = [verdict_line(result), *change_lines(result)]
        text += [f"fix: {remark.fix}" for remark in result.remarks if remark.severity == "error" and remark.fix]
        kind = "error" if failed else "notice" if result.outcome in NOT_JUDGED else "warning"
        title = f"simulate check: {result.outcome.replace('_', ' ')}"
        yield _Annotation(kind, place.file, place.line, title, "\n".join(text))
    for remark in result.remarks:
        if remark.severity == "warning" and remark.place is not None:
            message = remark.message + (f"\nfix: {remark.fix}" if remark.fix else "")
            yield _Annotation("warning", remark.place.file, remark.place.line, remark.rule, message)


def _data(text: str) -> str:
    """Escape a message: percent signs and line ends."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property: also what separates properties."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
