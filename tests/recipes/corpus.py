"""The public recipes beside the checkout; run as a script, it prints how many of each family end in which verdict."""

import collections
import csv
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulator.answers.gates import OUTCOMES, Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("SIMULATE_SHARED") or ROOT.parent / "shared") / "corpus"


@dataclass(frozen=True)
class Public:
    """One recipe of the corpus."""

    family: str
    path: str
    file: Path

    @property
    def root(self) -> Path:
        """What is there of its repository."""
        return FOLDER / "files" / self.file.relative_to(FOLDER / "files").parts[0]


def corpus(family: str = "") -> list[Public]:
    """The recipes, of one family where one is named; skips the test where they are not at hand."""
    manifest = FOLDER / "manifest.csv"
    if not manifest.is_file():
        pytest.skip(f"needs {FOLDER.name}/ of the shared folder (SIMULATE_SHARED)")
    with manifest.open(encoding="utf-8", newline="") as stream:
        rows = [Public(row["family"], row["path"], FOLDER / row["file"]) for row in csv.DictReader(stream)]
    return [row for row in rows if family in ("", row.family)]


def public(family: str, end: str) -> Path:
    """The only recipe of a family whose path ends so."""
    (found,) = [row.file for row in corpus(family) if row.path.endswith(end)]
    return found


def verdict(results: tuple[Checked, ...]) -> str:
    """The verdict of a file: that of its launches, the least welcome first."""
    worst = (
        *("unreadable", "does_not_fit", "refused", "longest_does_not_fit", "not_modelled", "depends", "cannot_tell"),
        *("starved", "fits", "skipped"),
    )
    return min((result.outcome for result in results), key=worst.index)


def judged(hardware: str, nodes: int, family: str = "") -> Iterator[tuple[Public, tuple[Checked, ...]]]:
    """Every recipe of a family with what `simulate check` says of it."""
    for row in corpus(family):
        yield row, check_files([str(row.file)], question_of({"hardware": hardware, "nodes": nodes}), Gates())


def _main(hardware: str, nodes: str, family: str = "", *options: str) -> None:
    start, counts = time.process_time(), collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    for row, results in judged(hardware, int(nodes), family.strip("*")):
        counts[row.family][verdict(results)] += 1
        if options:
            sys.stdout.write(f"{row.family} {verdict(results)} {row.path}: {' | '.join(results[0].reasons)[:300]}\n")
    seconds = time.process_time() - start
    sys.stdout.write("| family | " + " | ".join(OUTCOMES) + " |\n|---" + "|---" * len(OUTCOMES) + "|\n")
    total = sum(counts.values(), collections.Counter())
    for name, found in (*sorted(counts.items()), ("all", total)):
        sys.stdout.write(f"| {name} | " + " | ".join(str(found[outcome]) for outcome in OUTCOMES) + " |\n")
    sys.stdout.write(
        f"{total.total()} files in {seconds:.1f} s of one processor: {total.total() / seconds:.0f} files per second\n"
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
