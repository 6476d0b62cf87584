"""Shares of public recipes that set a switch, counted into the table of practice.

    python -m tools.practice [--check] [--jobs N]

Both corpora of `shared/` beside this checkout (`SIMULATE_SHARED`) are read by the readers of `simulate check`. Every
repository has one vote for each framework, shared by its launches; a launch votes for the row of a switch that names
most of what it sets. Rows that a document alone gives stay. `--check` writes nothing, with exit code 1 where a share
differs.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from simulator.question.frameworks.profile import switches
from simulator.question.frameworks.stacks import framework
from simulator.question.recipe import A_NODE, Recipe
from simulator.recipes.readers.read import read_recipe
from simulator.search.alternatives import option_text

_ROOT: Final = Path(__file__).resolve().parents[1]
SHARED: Final = Path(os.environ.get("SIMULATE_SHARED") or _ROOT.parent / "shared")
TABLE: Final = _ROOT / "simulator" / "question" / "specs" / "practice.csv"
_COUNTED: Final = "public recipes"
"""First words of the source of a row that is counted."""
_OTHERS: Final = ("nanotron",)
"""Dialects of programs that are priced as a framework which they do not run."""
_NUMBER: Final = re.compile(r"of \d+ ")


class Launch(NamedTuple):
    """Switches that a launch of a repository's recipe sets, as text."""

    repository: str
    framework: str
    options: Mapping[str, str]
    adapters: bool = False
    """Whether it trains adapters alone."""


def shares(rows: Sequence[Mapping[str, str]], launches: Iterable[Launch]) -> list[tuple[float, int]]:
    """Return the share of each row of the table, and the repositories of its framework, or of those with adapters."""
    by_repository: dict[tuple[str, str, str], list[Mapping[str, str]]] = defaultdict(list)
    for launch in launches:
        for method in ("", "lora") if launch.adapters else ("",):
            by_repository[launch.framework, method, launch.repository].append(launch.options)
    repositories = Counter(key[:2] for key in by_repository)
    votes = [0.0] * len(rows)
    for (kind, method, _), every in by_repository.items():
        for options in every:
            for chosen in _chosen(rows, (kind, method), options):
                votes[chosen] += 1.0 / len(every)
    counts = [repositories[row["framework"], row["method"]] for row in rows]
    return [(vote / max(count, 1), count) for vote, count in zip(votes, counts, strict=True)]


def _chosen(rows: Sequence[Mapping[str, str]], kind: tuple[str, str], options: Mapping[str, str]) -> Iterator[int]:
    """Yield the row of each switch that a launch votes for: of those that hold, the one that names most."""
    best: dict[str, tuple[int, int]] = {}
    for at, row in enumerate(rows):
        values = {row["switch"]: row["value"], **dict(pair.split("=") for pair in row["others"].split())}
        counted = row["source"].startswith(_COUNTED)
        if counted and (row["framework"], row["method"]) == kind and values.items() <= options.items():
            best[row["switch"]] = max(best.get(row["switch"], (0, -1)), (len(values), at))
    yield from (at for _, at in best.values())


def public_files() -> Iterator[tuple[str, str, str]]:
    """Yield repository, file and root of every public file."""
    with (SHARED / "corpus" / "manifest.csv").open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            yield row["repo"], str(SHARED / "corpus" / row["file"]), str(SHARED / "corpus/files" / row["family"])
    with (SHARED / "corpus2" / "index.csv").open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            root = SHARED / "corpus2" / row["repository"].replace("/", "+")
            if (root / row["file"]).exists():
                yield row["repository"], str(root / row["file"]), str(root)


def switches_of(recipe: Recipe) -> dict[str, str]:
    """Return every switch of a recipe's run as text: its stack's and its own over the framework's defaults."""
    options = {name: text for name, text in recipe.options.items() if text != A_NODE}
    profile = framework(recipe.framework, options, recipe.stack)
    return {field.name: option_text(getattr(profile, field.name)) for field in switches()}


def _read(job: tuple[str, str, str]) -> list[Launch]:
    repository, file, root = job
    try:
        recipes = [x for x in read_recipe(Path(file), {}, None, Path(root)) if not x.dialect.startswith(_OTHERS)]
        return [Launch(repository, each.framework, switches_of(each), bool(each.lora_rank)) for each in recipes]
    except Exception:  # noqa: BLE001  what cannot be read has no vote
        return []


def main() -> int:
    """Count, and write or compare the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.practice", description="Count shares of practice.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a share differs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    with TABLE.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        launches = [launch for read in pool.map(_read, public_files(), chunksize=40) for launch in read]
    counted = [
        row | {"share": f"{share:.2f}", "source": _NUMBER.sub(f"of {count} ", row["source"], count=1)}
        if row["source"].startswith(_COUNTED)
        else row
        for row, (share, count) in zip(rows, shares(rows, launches), strict=True)
    ]
    changed = [(old, new) for old, new in zip(rows, counted, strict=True) if old != new]
    for old, new in changed:
        print(f"{old['framework']} {old['switch']}={old['value']}: {old['share']} -> {new['share']}")  # noqa: T201
    if changed and not arguments.check:
        with TABLE.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(counted)
    return 1 if changed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
