"""What pages quote of the fit; `python -m tests.calibration.pages` fits anew and writes all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.accuracy import shipped as shipping
from benchmarks.accuracy.coverage import coverage_sections
from benchmarks.accuracy.draws import draws_sections
from benchmarks.accuracy.kinds import KINDS as KINDS_OF_FAULT
from benchmarks.accuracy.kinds import kinds_section
from benchmarks.accuracy.missed import missed
from benchmarks.accuracy.plain import PlainRow, plain_rows, plain_sections
from benchmarks.accuracy.rows import KINDS, Judgement, judgement
from benchmarks.accuracy.tables import by_class, percent, strangers
from benchmarks.accuracy.targets import own_lines, target_lines
from simulator.evidence.calibration.own import summary
from simulator.evidence.calibration.store import Calibration, read_calibration
from simulator.show.report.calibration import TITLES
from simulator.show.report.presentation import Presentation, Section
from tests.docs import walk
from tests.docs.readme import accuracy_line
from tests.specs.test_public_configs import FOLDER as CONFIGURATIONS
from tests.specs.test_public_configs import counted

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "calibration"
SHIPPED = ("z2000", "hopper", "ampere", "ascend-910", "blackwell", "cdna3", "other")
"""Clusters and families with fitted coefficients."""
KNOWN = ("cpu",)
"""Families with coefficients that need no rows."""
ANEW_HINT = "python -m tools.regenerate coefficients writes it anew"
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


def shipped(family: str) -> Calibration:
    return read_calibration(FOLDER / f"{family}.yaml")


def blocks(found: Judgement, kinds: Collection[str] = KINDS_OF_FAULT.keys()) -> dict[Path, dict[str, str]]:
    """Everything quoted, by page and marker; of kinds of fault those that are asked."""
    page = {
        "targets": _targets(found),
        "classes": "\n\n".join(map(_table, by_class(found))),
        "coverage": _coverage(found),
        "draws": "\n\n".join(map(_table, draws_sections({kind: found.of_kind(kind) for kind in KINDS}))),
        "news": _news(found),
        "plain": "\n\n".join(map(_table, plain_sections(asked_plainly()))),
        "kinds": _table(kinds_section(kinds)),
    }
    return {ROOT / "docs" / "accuracy.md": page, ROOT / "README.md": {"accuracy": accuracy_line(found)}}


RECORD = Path(__file__).with_name("plain.jsonl")
"""Public rows asked without their switches, a line each: asking all takes a minute, so that a test asks some."""


@cache
def asked_plainly() -> tuple[PlainRow, ...]:
    """Public rows without their switches, as they are recorded."""
    lines = map(json.loads, RECORD.read_text(encoding="utf-8").splitlines())
    return tuple(PlainRow(**line | {"classes": tuple(line["classes"])}) for line in lines)


def recorded_plainly(rows: Iterator[PlainRow]) -> str:
    """The text of the record."""
    return "".join(f"{json.dumps(_rounded(asdict(row)))}\n" for row in rows)


def _rounded(value: Any) -> Any:
    """Numbers to the digits that machines agree on."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return round(value, 5) if isinstance(value, float) else value


def _news(found: Judgement) -> str:
    """A sentence for each figure: errors of sources whose organisation the fit knows, and of strangers'."""
    lines = []
    for kind, name in TITLES.items():
        alone, others = (summary(rows) for rows in strangers(found, kind))
        told = [
            f"{percent(one.source_out)} % ({one.rows} rows of {one.sources} sources, {100 * one.coverage:.0f} % inside "
            f"± {100 * one.half_width:.0f} %)"
            for one in (alone, others)
        ]
        without = f"{percent(others.organisation_out)} % without any of the organisation's"
        lines.append(f"- {name}: {told[0]} where it has nothing else, {told[1]} where it has, {without}.")
    return "\n".join(lines)


def _coverage(found: Judgement) -> str:
    """Classes with their source left out; of the wider levels all rows together."""
    sections = coverage_sections({kind: found.of_kind(kind) for kind in KINDS})
    short = (replace(one, rows=[row for row in one.rows if _shown(*row[:2])]) for one in sections)
    return "\n\n".join(map(_table, short))


def _shown(left_out: str, rows_of: str) -> bool:
    return left_out == "source" or (left_out in _WIDER and rows_of == "all")


_WIDER = ("organisation", "device", "stack")


def _targets(found: Judgement) -> str:
    lines = (*target_lines(found), *own_lines(found))
    met = sum(line.met is True for line in lines)
    shown = f"{met} of {len(lines)} targets are met; `python -m benchmarks.accuracy targets own` shows all."
    return f"{shown}\n\n{_table(missed(found))}"


def _table(section: Section) -> str:
    table = Presentation(style="markdown").grid(section.headers, section.rows, section.text_columns)
    return f"**{section.title}**\n\n{table}"


def quoted(page: str, name: str) -> str:
    """What stands between the markers of a name."""
    found = re.search(rf"<!-- {name}:start -->\n(.*?)\n?<!-- {name}:end -->", page, re.DOTALL)
    assert found, name
    return found[1].strip("\n")


def written_anew(page: str, name: str, text: str) -> str:
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    before, rest = page.split(start, 1)
    return f"{before}{start}\n{text}\n{end}{rest.split(end, 1)[1]}"


def differences(one: str, other: str) -> list[str]:
    """Lines that differ by more than the last digit of a fit; widths of tables do not count."""
    rows = [[re.sub(r"[ -]+", " ", line) for line in text.splitlines() if line] for text in (one, other)]
    if len(rows[0]) != len(rows[1]):
        return [f"{len(rows[0])} lines, {len(rows[1])} lines"]
    return [f"{a}\n{b}" for a, b in zip(*rows, strict=True) if not _same(a, b)]


def _same(one: str, other: str) -> bool:
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= 0.03 + 0.01 * abs(float(a)) for a, b in pairs)


def written(found: Judgement) -> Iterator[tuple[Path, str]]:
    """Every page with what it quotes."""
    for path, named in blocks(found).items():
        page = path.read_text(encoding="utf-8")
        for name, block in named.items():
            page = written_anew(page, name, block)
        yield path, page


if __name__ == "__main__":
    shipping.write({"configurations": counted()} if CONFIGURATIONS.is_dir() else {})
    RECORD.write_text(recorded_plainly(plain_rows()), encoding="utf-8")
    for file, text in written(judgement()):
        file.write_text(text, encoding="utf-8")
    walk.write()
