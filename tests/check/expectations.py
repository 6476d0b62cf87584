"""What public recipes are expected to come to, and what says so: the rows of expectations.csv.

Run as a script, it prints how many hold by family; with `--settle` it also clears what is no longer pending.
"""

import csv
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from simulator.answers.gates import FIRM
from simulator.show.report.presentation import Presentation
from tests.check.bare import no_advice
from tests.cli.running import run

TABLE = Path(__file__).with_name("expectations.csv")
LEFT_TO_A_RUN = "cannot_tell: range"
"""Outcome of a launch that would be judged but for a range of its need that reaches the capacity."""
SHARED = Path(os.environ.get("SIMULATE_SHARED") or Path(__file__).resolve().parents[3] / "shared")


@dataclass(frozen=True)
class Expectation:
    """One recipe with its options, and the verdicts that are right."""

    recipe: str
    """Path below the folder that the corpus stands in."""
    family: str
    options: str
    expected: str
    """Verdicts with bars between them; of a file with several launches, of each."""
    evidence: str
    """The document, the measured run or the formula that says so."""
    pending: str
    """What is missing before it can hold; empty where it holds."""

    @property
    def file(self) -> Path:
        """Where the recipe stands."""
        return SHARED / self.recipe

    @property
    def holds(self) -> bool:
        """Whether every launch has one of the verdicts, or a need whose range reaches the capacity."""
        return set(outcomes(self)) <= {*self.expected.split("|"), LEFT_TO_A_RUN}


def expectations() -> tuple[Expectation, ...]:
    """Every row, as the table has it."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return tuple(Expectation(**row) for row in csv.DictReader(stream))


@cache
def outcomes(row: Expectation) -> tuple[str, ...]:
    """The verdict on each launch of a row's recipe."""
    with no_advice():
        answer = run("check", str(row.file), *shlex.split(row.options), "--format", "json")
    return tuple(map(_outcome, json.loads(answer.stdout)["results"]))


def _outcome(result: dict[str, Any]) -> str:
    """The verdict, apart from others where a range alone keeps it from being firm."""
    errors = {remark["rule"] for remark in result["remarks"] if remark["severity"] == "error"}
    return LEFT_TO_A_RUN if errors == {"interval-reaches-capacity"} else str(result["outcome"])


def range_table(rows: Iterable[Expectation]) -> str:
    """What ranges cost by family: launches that are judged, and those whose range reaches the capacity."""
    launches = [(row.family, outcome) for row in rows for outcome in outcomes(row)]
    counts = Counter(launches)
    judged = (*FIRM, LEFT_TO_A_RUN)
    cells = []
    for family in sorted({family for family, _ in launches}):
        every = sum(counts[family, outcome] for outcome in judged)
        if every:
            left = counts[family, LEFT_TO_A_RUN]
            cells.append([family, str(every), str(left), f"{100 * left / every:.0f}"])
    total, left = (sum(int(row[column]) for row in cells) for column in (1, 2))
    cells.append(["all", str(total), str(left), f"{100 * left / total:.0f}"])
    headers = ("family", "launches judged", "range reaches the capacity", "%")
    return Presentation(style="markdown").grid(headers, cells)


def count_lines(rows: Iterable[Expectation]) -> Iterator[str]:
    """How many rows hold, wait and fail, by family."""
    count = Counter((row.family, "holds" if row.holds else "pending" if row.pending else "fails") for row in rows)
    for family in sorted({family for family, _ in count}):
        yield f"{family}: " + ", ".join(
            f"{count[family, kind]} {kind}" for kind in ("holds", "pending", "fails") if count[family, kind]
        )


def settle(rows: Iterable[Expectation]) -> None:
    """Write the table anew, with nothing pending where a row holds."""
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        names = [field.name for field in fields(Expectation)]
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow("" if name == "pending" and row.holds else getattr(row, name) for name in names)


if __name__ == "__main__":
    present = [row for row in expectations() if row.file.is_file()]
    print("\n".join(count_lines(present)), range_table(present), sep="\n\n")  # noqa: T201  a script
    if "--settle" in sys.argv and len(present) == len(expectations()):
        settle(present)
