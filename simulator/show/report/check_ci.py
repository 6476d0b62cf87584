"""Verdicts for other machines: JUnit XML and SARIF 2.1.0. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from simulator import __version__
from simulator.answers.gates import FIRM
from simulator.answers.rules import FRAMEWORK_RULES
from simulator.question.origin import Place
from simulator.recipes.check.verdict import NOT_JUDGED, Checked, Checks
from simulator.show.report.as_json import dumps
from simulator.show.report.check_printable import printable
from simulator.show.report.check_text import change_lines, detail_lines, verdict_line
from simulator.show.report.presentation import Presentation
from simulator.show.report.rule_text import rule_text

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def check_junit(checks: Checks, _presentation: Presentation) -> str:
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


def check_sarif(checks: Checks, _presentation: Presentation) -> str:
    """Return the failures and warnings as SARIF."""
    results = [item for result in printable(checks).results for item in _sarif_results(result)]
    ids = dict.fromkeys(item["ruleId"] for item in results)
    rules = [_sarif_rule(rule) for rule in ids]
    for item in results:
        item["ruleIndex"] = list(ids).index(item["ruleId"])
    driver = {"name": "simulate", "version": __version__, "semanticVersion": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def _sarif_rule(rule: str) -> dict[str, Any]:
    name = "".join(word.capitalize() for word in rule.replace("_", "-").split("-"))
    source = next((f" Source: {known.source}." for known in FRAMEWORK_RULES if known.id == rule), "")
    text = rule_text(rule)
    return {"id": rule, "name": name, "shortDescription": {"text": text}, "help": {"text": f"{text}.{source}"}}


def _sarif_results(result: Checked) -> Iterator[dict[str, Any]]:
    """Yield errors and warnings of one recipe; the verdict itself where no rule reports it."""
    fails = not result.passed and not result.known
    named = False
    for remark in result.remarks:
        if remark.severity != "note":
            named = named or remark.severity == "error"
            text = remark.message + (f" Fix: {remark.fix}" if remark.fix else "")
            level = remark.severity if fails else "warning"
            yield _sarif(remark.rule, level, text, remark.place or Place(result.file, 1))
    if ((fails or result.outcome in NOT_JUDGED) and not named) or result.outcome == "starved":
        rule = result.outcome.replace("_", "-")
        text = "\n".join([verdict_line(result), *change_lines(result)])
        place = result.blame or Place(result.file, 1)
        yield _sarif(rule, "error" if fails else "warning", text, place)


def _sarif(rule: str, level: str, text: str, place: Place) -> dict[str, Any]:
    location = {
        "artifactLocation": {"uri": quote(place.file.replace("\\", "/"), errors="surrogateescape")},
        "region": {"startLine": max(place.line, 1)},
    }
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
    }
