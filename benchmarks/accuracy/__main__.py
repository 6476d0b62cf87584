"""Print reports on the accuracy of predictions: `python -m benchmarks.accuracy [REPORT...]`.

Without a name `targets`, `coverage` and `class`. `coverage` says how many rows lie inside their ranges, by what was
left out; `news` tells sources of whose organisation the fit has others from those of whose it has none; `own` is the
user's own table, `doubts` and `thumb` its rows that cannot be what they say and the rules of thumb that came with it.
With `--json` the targets and the judged rows as JSON. `--kinds` judges each kind of fault of memory without its rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from benchmarks.accuracy.against import against
from benchmarks.accuracy.coverage import coverage_sections
from benchmarks.accuracy.frameworks import by_framework
from benchmarks.accuracy.hypotheses import doubtful_rows
from benchmarks.accuracy.kinds import kinds_section
from benchmarks.accuracy.missed import missed, worse_sources
from benchmarks.accuracy.own import CLUSTER
from benchmarks.accuracy.plain import plain_rows, plain_sections
from benchmarks.accuracy.record import recorded
from benchmarks.accuracy.rows import KINDS, Judgement, judgement
from benchmarks.accuracy.tables import by_class, by_news, by_organisation, by_source, every_row, of_choices, of_vendors
from benchmarks.accuracy.targets import own_lines, target_lines, target_table
from benchmarks.accuracy.thumb import check
from benchmarks.machine import say
from simulator.errors import InputError
from simulator.evidence.calibration.apply import applied
from simulator.show.report.presentation import Presentation, Section


def _targets(found: Judgement) -> Iterator[Section]:
    own = [line for line in own_lines(found) if line.id in ("own_memory", "own_memory_worst", "own_time")]
    yield target_table((*target_lines(found), *own), "Targets")


def _coverage(found: Judgement) -> Iterator[Section]:
    yield from coverage_sections({kind: found.of_kind(kind) for kind in KINDS})


def _missed(found: Judgement) -> Iterator[Section]:
    yield from (missed(found), worse_sources(found))


def _own(found: Judgement) -> Iterator[Section]:
    yield target_table(own_lines(found), "The user's own table")


def _frameworks(found: Judgement) -> Iterator[Section]:
    yield from by_framework(found, recorded("ascend_runs"), recorded("configurations"))


def _thumb(_: Judgement) -> Iterator[Section]:
    for checked in check(applied("hopper", None, CLUSTER).coefficients()):
        title = f"Rule of thumb: {checked.rule}: {checked.outcome}"
        yield Section(title, tuple(f"{text}." for text in checked.findings))


REPORTS: Final[Mapping[str, Callable[[Judgement], Iterator[Section]]]] = {
    "targets": _targets,
    "missed": _missed,
    "coverage": _coverage,
    "class": by_class,
    "source": by_source,
    "organisation": by_organisation,
    "news": by_news,
    "framework": _frameworks,
    "choices": of_choices,
    "vendors": of_vendors,
    "own": _own,
    "doubts": doubtful_rows,
    "thumb": _thumb,
    "rows": every_row,
}


def main() -> None:
    """Print the reports asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("report", nargs="*", help=", ".join(REPORTS))
    parser.add_argument("--source", help="only rows of one source")
    parser.add_argument("--markdown", action="store_true", help="tables as a page has them")
    parser.add_argument("--plain", action="store_true", help="rows without their switches and stacks, by class")
    parser.add_argument(
        "--kinds", action="store_true", help="memory by kind of fault, each without the rows of its kind"
    )
    parser.add_argument("--against", metavar="REVISION", help="only what became better and worse since, by source")
    parser.add_argument("--json", action="store_true", help="targets and judged rows as JSON")
    asked = parser.parse_args()
    shown = Presentation(style="markdown" if asked.markdown else "table")
    for name in asked.report:
        if name not in REPORTS:
            parser.error(f"{name}: no such report; there are {', '.join(REPORTS)}")
    if asked.plain or asked.kinds:
        sections = plain_sections(plain_rows()) if asked.plain else (kinds_section(),)
        say(shown.sections(sections))
        return
    found = judgement()
    if asked.json:
        lines = [dataclasses.asdict(line) for line in (*target_lines(found), *own_lines(found))]
        say(json.dumps({"targets": lines, "rows": [dataclasses.asdict(row) for row in found.rows]}, indent=1))
        return
    if asked.against is not None:
        try:
            say(shown.sections(against(found, asked.against)))
        except InputError as error:
            parser.error(str(error))
        return
    if asked.source is not None:
        found = replace(found, rows=tuple(row for row in found.rows if row.source == asked.source))
        if not found.rows:
            parser.error(f"--source {asked.source}: no such source")
    for name in asked.report or (("class", "rows") if asked.source else ("targets", "coverage", "class")):
        say(shown.sections(REPORTS[name](found)))


if __name__ == "__main__":
    main()
