"""One-line changes of the formulas, and whether a test notices: `python -m benchmarks.mutants [--count 400]`.

Draws changes of operators, comparisons, constants, choices and dropped terms from the files of ROOMS with a printed
seed. Each runs against the tests of its room and the arithmetic tests, in a copy of this checkout. Prints those that no
test noticed; exit code 1 where fewer than 95 % were noticed.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import judged, say
from benchmarks.mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[1]
ARITHMETIC = ("tests/pricing/test_memory_arithmetic.py", "tests/pricing/test_time_arithmetic.py")
"""Sums worked by hand: run with every room's tests, and first."""
AGREEMENT = ("tests/pricing/test_grid.py", "tests/pricing/test_properties.py")
"""A block against its layouts, parts against sums: run last, by what nothing else noticed."""
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "operations": (
        ("simulator/cost/operations/*.py", "simulator/cost/stages.py", "simulator/cost/elements.py"),
        ("tests/memory", "tests/timing"),
    ),
    "schedule": (
        ("simulator/cost/schedule/*.py", "simulator/cost/memory/schedule.py", "simulator/cost/timing/pipeline.py"),
        ("tests/timing", "tests/memory"),
    ),
    "memory": (("simulator/cost/memory/*.py",), ("tests/memory",)),
    "time": (("simulator/cost/timing/*.py",), ("tests/timing", "tests/memory/test_attention_recompute.py")),
    "pricing": (("simulator/cost/pricing/*.py", "simulator/search/build.py"), ("tests/pricing/test_acceptance.py",)),
    "rules": (("simulator/search/rules.py",), ("tests/rules",)),
}
"""By room: its files, and its tests. A file belongs to the first room that names it."""
TARGET = 0.95


@dataclass(frozen=True)
class Judged:
    """What became of a mutant."""

    mutant: Mutant
    room: str
    verdict: str
    """`noticed`, `hangs` (noticed too), or `survived`."""


def rooms() -> dict[str, str]:
    """The room of every file, by its path."""
    found: dict[str, str] = {}
    for room, (patterns, _) in ROOMS.items():
        files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
        missing = [pattern for pattern in patterns if not any(ROOT.glob(pattern))]
        if missing:
            sys.exit(f"room {room}: no file is called {missing[0]}; see ROOMS")
        for path in files:
            found.setdefault(path.relative_to(ROOT).as_posix(), room)
    return found


def tests_of(room: str) -> tuple[str, ...]:
    """What a room's mutants run against, the quickest first."""
    return ARITHMETIC + ROOMS[room][1] + AGREEMENT


def copied(folder: Path) -> Path:
    """A copy of what git knows of this checkout, and of what is new."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603  fixed
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def run_tests(copy: Path, tests: tuple[str, ...], limit_seconds: float) -> int | None:
    """Exit code of the tests in a copy; None where they did not end."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "SIMULATE_SHARED": os.environ.get("SIMULATE_SHARED", str(ROOT.parent / "shared"))}
    try:
        return subprocess.run(  # noqa: S603  fixed command
            command, cwd=copy, env=environment, capture_output=True, timeout=limit_seconds, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def judge(mutant: Mutant, room: str, copy: Path, limit_seconds: float) -> Judged:
    """Apply a mutant in a copy, run its tests, and take it back."""
    path = copy / mutant.path
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.applied(before), encoding="utf-8")
        code = run_tests(copy, tests_of(room), limit_seconds)
    finally:
        path.write_text(before, encoding="utf-8")
    return Judged(mutant, room, "hangs" if code is None else "survived" if code == 0 else "noticed")


def unchanged_seconds(copy: Path, room: str) -> float:
    """How long a room's tests take on what is not changed; raises SystemExit where they fail."""
    started = time.monotonic()
    if run_tests(copy, tests_of(room), 1800.0):
        sys.exit(f"room {room}: its tests fail on the checkout as it is")
    return time.monotonic() - started


def drawn(seed: int, count: int, only: tuple[str, ...]) -> list[tuple[Mutant, str]]:
    """So many mutants of the chosen rooms, with their rooms."""
    every = [
        (mutant, room)
        for name, room in rooms().items()
        if not only or room in only
        for mutant in mutants_of(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    say(f"{len(every):,} mutants of {len({mutant.path for mutant, _ in every})} files; seed {seed} draws {count}")
    chance = random.Random(seed)  # noqa: S311  a sample
    return chance.sample(every, min(count, len(every)))


def all_judged(chosen: list[tuple[Mutant, str]], workers: int, folder: Path) -> Iterator[Judged]:
    """What became of each, in the order drawn; each worker has a copy of its own."""
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for number in range(workers):
        copies.put(copied(folder / f"{number}"))
    with ThreadPoolExecutor(workers) as pool:

        def one(room: str) -> float:
            copy = copies.get()
            try:
                return unchanged_seconds(copy, room)
            finally:
                copies.put(copy)

        names = sorted({room for _, room in chosen})
        limits = {room: 60.0 + 5.0 * seconds for room, seconds in zip(names, pool.map(one, names), strict=True)}

        def judge_in_a_copy(drawn_one: tuple[Mutant, str]) -> Judged:
            copy = copies.get()
            try:
                return judge(*drawn_one, copy, limits[drawn_one[1]])
            finally:
                copies.put(copy)

        yield from pool.map(judge_in_a_copy, chosen)


def report(found: list[Judged]) -> int:
    """Print the share noticed by room, and return the exit code."""
    for room in ROOMS:
        here = [one for one in found if one.room == room]
        if here:
            left = sum(one.verdict == "survived" for one in here)
            say(f"  {room}: {len(here) - left} of {len(here)} noticed")
    share = 1.0 - sum(one.verdict == "survived" for one in found) / max(len(found), 1)
    say(f"{share:.1%} of {len(found)} noticed; target {TARGET:.0%} {judged(met=share >= TARGET)}")
    return 0 if share >= TARGET else 1


def main() -> None:
    """Draw, judge, report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) // 2, 1))
    parser.add_argument("--room", action="append", choices=ROOMS, default=[], help="only this one; may be repeated")
    asked = parser.parse_args()
    chosen = drawn(asked.seed, asked.count, tuple(asked.room))
    found: list[Judged] = []
    with tempfile.TemporaryDirectory() as folder:
        for one in all_judged(chosen, asked.workers, Path(folder)):
            found.append(one)
            if one.verdict != "noticed":
                say(f"{one.verdict}: {one.mutant}")
    sys.exit(report(found))


if __name__ == "__main__":
    main()
