"""Verdicts as workflow commands of GitHub Actions: annotations at the line to blame, a summary. Judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from simulator.question.origin import Place
from simulator.recipes.check.verdict import NOT_JUDGED, Checked, Checks
from simulator.show.report.check_printable import printable
from simulator.show.report.check_table import check_table
from simulator.show.report.check_text import change_lines, reason, tally, verdict_line
from simulator.show.report.presentation import Presentation

MOST_ANNOTATIONS = 10
"""Most annotations of a kind that GitHub shows for a step."""
MOST_NAMES = 50
"""Most files that an annotation names."""
MOST_SUMMARY_BYTES = 1_000_000
"""Largest summary of a step: GitHub refuses one above 1 MiB."""


@dataclass(frozen=True, slots=True)
class _Annotation:
    kind: str
    file: str
    line: int
    title: str
    message: str
    group: str
    """Common part of annotations that are shown as one: the reason for a verdict, the rule of a warning."""

    def command(self, more: Collection[str] = ()) -> str:
        """Return the workflow command; `more` are the other files of the group."""
        place = f"file={_property(self.file)},line={self.line}," if self.file else ""
        text = f"{self.message}\nso in {_listed(more)}" if more else self.message
        return f"::{self.kind} {place}title={_property(self.title)}::{_data(text)}"


def check_github(checks: Checks, _presentation: Presentation) -> str:
    """Return the tally and the annotations, at most ten of a kind: each failure, and each reason for anything else."""
    results = printable(checks).results
    lines = [tally(results)]
    annotations = [item for result in results for item in _annotations(result)]
    for kind in ("error", "warning", "notice"):
        groups: dict[str, list[_Annotation]] = {}
        for item in annotations:
            if item.kind == kind:
                groups.setdefault(item.group, []).append(item)
        ordered = sorted(groups.values(), key=lambda group: -len(group))
        shown = ordered if len(ordered) <= MOST_ANNOTATIONS else ordered[: MOST_ANNOTATIONS - 1]
        for first, *others in shown:
            lines.append(first.command(dict.fromkeys(item.file for item in others if item.file != first.file)))
        if hidden := [item for group in ordered[len(shown) :] for item in group]:
            names = list(dict.fromkeys(item.file for item in hidden))
            lines.append(_Annotation(kind, "", 1, f"{len(hidden)} more", f"also: {_listed(names)}", "").command())
    return "\n".join(lines) + "\n"


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more files" if len(names) > MOST_NAMES else ""
    return f"{', '.join(list(names)[:MOST_NAMES])}{more}"


def github_summary(checks: Checks, presentation: Presentation) -> str:
    """Return the job summary as Markdown, cut to GitHub's limit."""
    text = f"## Recipes\n\n{check_table(checks, presentation, 'markdown')}\n"
    data = text.encode()
    if len(data) <= MOST_SUMMARY_BYTES:
        return text
    return data[:MOST_SUMMARY_BYTES].decode("utf-8", "ignore").rpartition("\n")[0] + "\n\n(cut)\n"


def _annotations(result: Checked) -> Iterator[_Annotation]:
    """Yield the annotations of one recipe: a failure, a warning, or that it was not judged."""
    failed = not result.passed and not result.known
    if failed or result.outcome == "starved" or result.outcome in NOT_JUDGED:
        place = result.blame or Place(result.file, 1)
        text = [verdict_line(result), *change_lines(result)]
        text += [f"fix: {remark.fix}" for remark in result.remarks if remark.severity == "error" and remark.fix]
        kind = "error" if failed else "notice" if result.outcome in NOT_JUDGED else "warning"
        title = f"simulate check: {result.outcome.replace('_', ' ')}"
        why = reason(result) if kind == "notice" else f"{place.file}:{place.line}: {text[0]}"
        group = f"{result.outcome}: {why}"
        yield _Annotation(kind, place.file, place.line, title, "\n".join(text), group)
    for remark in result.remarks:
        if remark.severity == "warning" and remark.place is not None:
            message = remark.message + (f"\nfix: {remark.fix}" if remark.fix else "")
            yield _Annotation("warning", remark.place.file, remark.place.line, remark.rule, message, remark.rule)


def _data(text: str) -> str:
    """Escape a message: percent signs and line ends."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property, with the separators of properties."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
