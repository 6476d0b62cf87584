"""Verdicts on recipes for CI: JUnit XML, SARIF 2.1.0, and workflow commands of GitHub Actions.

    ::error file=train.sh,line=12,title=simulate check%3A does not fit::needs 161.2 of 79.6 GiB

`recipes.check` has titles of verdicts and of a reader's remarks; a rule of a layout or of a framework says its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from simulator._version import __version__
from simulator.answers.gates import FIRM
from simulator.answers.rules import FRAMEWORK_RULES
from simulator.question.origin import Place
from simulator.recipes.check.repository import CHANGED, rule_titles
from simulator.recipes.check.verdict import NOT_JUDGED, Checked, Checks
from simulator.show.report.check import change_lines, check_table, detail_lines, printable, reason, tally, verdict_line
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import dumps

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def check_junit(checks: Checks, _shown: Presentation) -> str:
    """Return a test suite with one case per recipe."""
    results = printable(checks).results
    failing = [result for result in results if not result.passed and not result.known]
    failures = sum(result.outcome not in NOT_JUDGED for result in failing)
    errors = len(failing) - failures
    counts = {"tests": str(len(results)), "failures": str(failures), "errors": str(errors)}
    skipped = sum(_is_skipped(result) for result in results)
    root = ET.Element("testsuites", {"name": "simulate check", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": "simulate check", **counts, "skipped": str(skipped)})
    for result in results:
        # Jenkins' schema has no attributes for file and line: they are in the text.
        names = {"classname": _xml(result.dialect or "recipe"), "name": _xml(result.name)}
        case = ET.SubElement(suite, "testcase", names)
        place = [] if result.blame is None else [f"at {result.blame.file}:{result.blame.line}"]
        details = _xml("\n".join([*place, *detail_lines(result)]))
        if not result.passed and not result.known:
            kind = "error" if result.outcome in NOT_JUDGED else "failure"
            attributes = {"message": _xml(verdict_line(result)), "type": result.outcome}
            ET.SubElement(case, kind, attributes).text = details
        elif _is_skipped(result):
            ET.SubElement(case, "skipped", {"message": _xml(verdict_line(result))})
        else:
            ET.SubElement(case, "system-out").text = details
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _is_skipped(result: Checked) -> bool:
    """Tell whether a passing recipe has no verdict."""
    return (result.passed or result.known) and result.outcome not in FIRM


def _xml(text: str) -> str:
    """Replace characters that XML cannot hold."""
    return "".join(
        mark if mark in "\t\n\r" or 0x20 <= ord(mark) < 0xD800 or ord(mark) >= 0xE000 else "?" for mark in text
    )


def check_sarif(checks: Checks, _shown: Presentation) -> str:
    """Return the failures and warnings as SARIF."""
    results = [item for result in printable(checks).results for item in _sarif_results(result)]
    ids = dict.fromkeys(item["ruleId"] for item in results)
    rules = [_sarif_rule(rule) for rule in ids]
    for item in results:
        item["ruleIndex"] = list(ids).index(item["ruleId"])
    driver = {"name": "simulate", "version": __version__, "semanticVersion": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


_PAGE = "docs/check.md"
_PARTS = ("what-frameworks-refuse", "verdicts")


def _sarif_rule(rule: str) -> dict[str, Any]:
    """Return a rule with what it is about, and where the documentation says more."""
    name = "".join(word.capitalize() for word in rule.replace("_", "-").split("-"))
    known = next((known for known in FRAMEWORK_RULES if known.id == rule), None)
    text = rule_text(rule)
    page = f"{_PAGE}#{_PARTS[known is None]}"
    source = "" if known is None else f" Fix: {known.fix}. Source: {known.source}."
    return {
        "id": rule,
        "name": name,
        "shortDescription": {"text": text},
        "fullDescription": {"text": f"{text[:1].upper()}{text[1:]}."},
        "help": {"text": f"{text}.{source} More: {page}", "markdown": f"{text}.{source} More: `{page}`"},
    }


def _sarif_results(result: Checked) -> Iterator[dict[str, Any]]:
    """Yield what a person must act on: the errors of a recipe that fails, or that its verdict is open, by a warning.

    A failure without a rule of its own is the verdict's; what passes with a verdict yields nothing but changed
    settings.
    """
    fails = not result.passed and not result.known
    is_open = result.outcome in NOT_JUDGED and not result.known
    level = "error" if fails and not is_open else "warning"
    errors = [remark for remark in result.remarks if remark.severity == "error"] if fails or is_open else []
    for remark in errors[:1] if is_open else errors:
        text = remark.message + (f" Fix: {remark.fix}" if remark.fix else "")
        yield _sarif(remark.rule, level, text, remark.place or Place(result.file, 1), result)
    if (fails or is_open) and not errors:
        text = "\n".join([verdict_line(result), *change_lines(result)])
        yield _sarif(result.outcome.replace("_", "-"), level, text, result.blame or Place(result.file, 1), result)
    for remark in result.remarks:
        if remark.rule == CHANGED:
            yield _sarif(remark.rule, "warning", remark.message, remark.place or Place(result.file, 1), result)


def _sarif(rule: str, level: str, text: str, place: Place, result: Checked) -> dict[str, Any]:
    file = _within(place.file)
    location = {
        "artifactLocation": {"uri": quote(file, errors="surrogateescape"), "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": max(place.line, 1)},
    }
    # Neither lines nor figures, which change with every edit: the same finding stays the same.
    same = "\0".join([rule, file, _within(result.file), result.title, _FIGURE.sub("", text.partition("\n")[0])])
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"simulateCheck/v1": sha256(same.encode("utf-8", "surrogatepass")).hexdigest()[:32]},
    }


_FIGURE = re.compile(r"[0-9][0-9.,]*")


def _within(file: str) -> str:
    """Return a path without steps up and down, from the working folder where that is above it."""
    if "\0" in file:
        return file
    path = os.path.normpath(file)
    beside = os.path.relpath(path) if os.path.isabs(path) else path  # noqa: PTH117  text alone
    return (path if beside.startswith("..") else beside).replace("\\", "/")


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
        place = f"file={_property(_within(self.file))},line={self.line}," if self.file else ""
        text = f"{self.message}\nso in {_names_text(more)}" if more else self.message
        return f"::{self.kind} {place}title={_property(self.title)}::{_data(text)}"


def check_github(checks: Checks, _shown: Presentation) -> str:
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
            lines.append(_Annotation(kind, "", 1, f"{len(hidden)} more", f"also: {_names_text(names)}", "").command())
    return "\n".join(lines) + "\n"


def _names_text(names: Collection[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more files" if len(names) > MOST_NAMES else ""
    return f"{', '.join(list(names)[:MOST_NAMES])}{more}"


def github_summary(checks: Checks, shown: Presentation) -> str:
    """Return the job summary as Markdown, cut to GitHub's limit."""
    text = f"## Recipes\n\n{check_table(checks, replace(shown, style='markdown'))}\n"
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
            alone = f": {remark.place}" if remark.rule == CHANGED else ""
            group = f"{remark.rule}{alone}"
            yield _Annotation("warning", remark.place.file, remark.place.line, remark.rule, message, group)


def _data(text: str) -> str:
    """Escape a message: percent signs and line ends."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property, with the separators of properties."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def rule_text(rule: str) -> str:
    """Return the subject of a rule; the rule's name as words where it is in no list."""
    return rule_titles().get(rule) or f"a remark of the recipe's reader: {rule.replace('-', ' ')}"
