"""Print reports on the accuracy of predictions: `python -m benchmarks.accuracy [REPORT...]`.

Reports: `targets` and `class` (both without a name), `source`, `organisation`, `news` (sources of whose organisation
the fit has others, or none), `choices`, `rows`. With `--json` the judged rows and the targets as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from benchmarks.accuracy.rows import JudgedRow, judged_rows
from benchmarks.accuracy.tables import by_class, by_news, by_organisation, by_source, every_row, of_choices
from benchmarks.accuracy.targets import target_lines, target_table
from benchmarks.machine import say
from simulator.show.report.sections import Section, sections_text


def _targets(rows: Sequence[JudgedRow]) -> Iterator[Section]:
    yield target_table(rows)


REPORTS: Final[Mapping[str, Callable[[Sequence[JudgedRow]], Iterator[Section]]]] = {
    "targets": _targets,
    "class": by_class,
    "source": by_source,
    "organisation": by_organisation,
    "news": by_news,
    "choices": of_choices,
    "rows": every_row,
}


def main() -> None:
    """Print the reports asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("report", nargs="*", help=", ".join(REPORTS))
    parser.add_argument("--source", help="only rows of one source")
    parser.add_argument("--markdown", action="store_true", help="tables as a page has them")
    parser.add_argument("--json", action="store_true", help="judged rows and targets as JSON")
    asked = parser.parse_args()
    for name in asked.report:
        if name not in REPORTS:
            parser.error(f"{name}: no such report; there are {', '.join(REPORTS)}")
    rows = [row for row in judged_rows() if asked.source in (None, row.source)]
    if not rows:
        parser.error(f"--source {asked.source}: no such source")
    if asked.json:
        lines = [dataclasses.asdict(line) for line in target_lines(rows)]
        say(json.dumps({"targets": lines, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1))
        return
    for name in asked.report or ("targets", "class"):
        say(sections_text(REPORTS[name](rows), "markdown" if asked.markdown else "table"))


if __name__ == "__main__":
    main()
