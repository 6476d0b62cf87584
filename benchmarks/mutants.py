"""One-line changes of the formulas, and whether a test notices: `python -m benchmarks.mutants [--count 400]`.

Draws changes of operators, comparisons, constants, choices and dropped terms from the files of ROOMS with a printed
seed. Each runs against the tests of its room and the arithmetic tests that call the changed function, in a copy of this
checkout: first those that noticed most so far, then the quickest. Prints what no test noticed; exit code 1 where fewer
than 95 % were noticed. With `--results FILE` what was judged is kept, and not judged again.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.forked import Child, Ordered, Recorded, first_ended, start
from benchmarks.machine import judged, say
from benchmarks.mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[1]
ARITHMETIC = (
    *("tests/pricing/test_memory_arithmetic.py", "tests/pricing/test_time_arithmetic.py"),
    *("tests/mixers", "tests/directions", "tests/pricing/test_defaults.py"),
)
"""Sums worked by hand, which way figures go, and what nobody gives: they judge every room but the search."""
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "operations": (
        (
            "simulator/cost/operations/*.py",
            "simulator/cost/stages.py",
            "simulator/cost/derived.py",
            "simulator/cost/dtypes.py",
        ),
        ("tests/memory", "tests/timing", "tests/specs/test_shipped_models.py"),
    ),
    "schedule": (
        (
            "simulator/cost/schedule/*.py",
            "simulator/cost/memory/activations.py",
            "simulator/cost/timing/step.py",
        ),
        ("tests/timing", "tests/memory"),
    ),
    "memory": (("simulator/cost/memory/*.py",), ("tests/memory",)),
    "time": (("simulator/cost/timing/*.py",), ("tests/timing", "tests/memory/test_attention_recompute.py")),
    "pricing": (("simulator/cost/pricing/*.py", "simulator/search/build.py"), ("tests/pricing",)),
    "rules": (("simulator/search/rules.py",), ("tests/rules",)),
    "search": (
        tuple(f"simulator/search/{name}.py" for name in ("query", "space", "rank", "fewest", "alternatives")),
        ("tests/search", "tests/pricing/test_defaults.py"),
    ),
}
"""By room: its files, and its tests. A file belongs to the first room that names it."""
SEARCHES = ("tests/timing/test_unequal_chunks.py::test_a_search_interleaves_layers_that_do_not_divide",)
"""They take as long as all others together, and judge no mutant: quicker tests hold each part of a search."""
TARGET = 0.95


@dataclass(frozen=True)
class Judged:
    """What became of a mutant."""

    mutant: Mutant
    room: str
    verdict: str
    """`noticed`, `hangs` (noticed too), or `survived`."""
    by: str
    """The test that noticed it."""
    tests: int
    """How many could have."""
    seconds: float


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
    """What a room's mutants run against."""
    return (() if room == "search" else ARITHMETIC) + ROOMS[room][1]


def copied(folder: Path) -> Path:
    """A copy of what git knows of this checkout, and of what is new."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603  fixed
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for part in ("simulator", "tests"):  # once, and not in every child
        compileall.compile_dir(folder / part, quiet=2)
    return folder


def recorded(copy: Path, names: set[str], seed: int) -> dict[str, dict[str, Any]]:
    """Seconds and calls of every test of these rooms; raises SystemExit where one fails on what is not changed."""
    files = sorted({file for room in names for file in tests_of(room)})
    deselected = [option for name in SEARCHES for option in ("--deselect", name)]
    child = start(copy, [*files, *deselected], Recorded(copy, seed), 3600.0)
    code, found = first_ended([child]).ended() or (None, {})
    if code != 0:
        failed = ", ".join(name for name, one in found.items() if one["failed"])
        sys.exit(f"tests fail on the checkout as it is, or in another order: {failed or 'while they are collected'}")
    say(f"{len(found):,} tests, {sum(one['seconds'] for one in found.values()):.0f} s with their calls noted")
    return found


class Judge:
    """Mutants against tests, some at a time, each in a copy of an unchanged `root`."""

    def __init__(self, root: Path, copies: list[Path], tests: dict[str, dict[str, Any]], kills: Counter[str]) -> None:
        self.root, self.free, self.tests, self.kills = root, copies, tests, kills
        self.running: dict[int, tuple[Mutant, str, Path, int, float]] = {}
        self.children: list[Child] = []

    def tests_for(self, mutant: Mutant, room: str) -> list[str]:
        """The tests of the room that call the function, those that noticed most in their time first."""
        path = mutant.path.removeprefix("simulator/")
        first, last = mutant.within or (0, 0)
        found = [
            name
            for name, one in self.tests.items()
            if name.startswith(tests_of(room))
            and (mutant.within is None or any(file == path and first <= line <= last for file, line in one["calls"]))
        ]
        cost = {name: self.tests[name]["seconds"] + 0.05 for name in found}
        return sorted(found, key=lambda name: (-self.kills[name] / cost[name], cost[name]))

    def start(self, mutant: Mutant, room: str) -> None:
        """Begin with one, in a copy that is free."""
        copy, names = self.free.pop(), self.tests_for(mutant, room)
        path = copy / mutant.path
        path.write_text(mutant.applied(path.read_text(encoding="utf-8")), encoding="utf-8")
        seconds = {name: self.tests[name]["seconds"] for name in names}
        limit = 120.0 + 40.0 * sum(seconds.values())
        files = sorted({name.split("::")[0] for name in names} or ARITHMETIC)
        child = start(copy, files, Ordered(names, seconds), limit)
        self.children.append(child)
        self.running[child.pid] = mutant, room, copy, len(names), time.monotonic()

    def finish(self) -> Judged:
        """Wait for the next that is judged."""
        child = first_ended(self.children)
        self.children.remove(child)
        mutant, room, copy, count, began = self.running.pop(child.pid)
        ended = child.ended()
        shutil.copy2(self.root / mutant.path, copy / mutant.path)
        self.free.append(copy)
        code, by = ended or (None, "")
        self.kills[by] += bool(by)
        verdict = "hangs" if code is None else "survived" if code in {0, 5} else "noticed"  # 5: no test calls it
        return Judged(mutant, room, verdict, by, count, time.monotonic() - began)

    def all(self, chosen: list[tuple[Mutant, str]]) -> Iterator[Judged]:
        """What became of each, as they are judged."""
        for one in chosen:
            if not self.free:
                yield self.finish()
            self.start(*one)
        while self.running:
            yield self.finish()


def drawn(seed: int, count: int, only: tuple[str, ...]) -> list[tuple[Mutant, str]]:
    """So many mutants of the chosen rooms, with their rooms."""
    every = [
        (mutant, room)
        for name, room in rooms().items()
        if not only or room in only
        for mutant in mutants_of(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    say(f"{len(every):,} mutants of {len({mutant.path for mutant, _ in every})} files; seed {seed} draws {count}")
    # By what each changes: a change of one file leaves the mutants drawn of the others.
    return sorted(every, key=lambda one: hashlib.sha256(f"{seed} {one[0].key}".encode()).digest())[:count]


Key = tuple[str, str, str, int]


def kept(results: Path | None) -> dict[Key, Judged]:
    """What an earlier run has judged, the last verdict of each."""
    lines = results.read_text(encoding="utf-8").splitlines() if results and results.exists() else []
    found: dict[Key, Judged] = {}
    for line in lines:
        read = json.loads(line)
        mutant = Mutant(**read.pop("mutant"))
        found[mutant.key] = Judged(mutant, **read)
    return found


def report(found: list[Judged]) -> int:
    """Print what survived and the share noticed by room, and return the exit code."""
    for one in found:
        if one.verdict != "noticed":
            say(f"{one.verdict} {one.tests} tests: {one.mutant}")
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
    parser.add_argument("--results", type=Path, help="where verdicts are added as they come; what stands there is kept")
    parser.add_argument("--again", action="store_true", help="judge once more what survived in the results")
    asked = parser.parse_args()
    os.environ.setdefault("SIMULATE_SHARED", str(ROOT.parent / "shared"))
    chosen = drawn(asked.seed, asked.count, tuple(asked.room))
    known = kept(asked.results)
    left = {key for key, one in known.items() if asked.again and one.verdict == "survived"}
    open_ones = [one for one in chosen if one[0].key not in known or one[0].key in left]
    with tempfile.TemporaryDirectory() as folder:
        copies = [copied(Path(folder) / f"{number}") for number in range(asked.workers)]
        tests = recorded(copies[0], {room for _, room in open_ones}, asked.seed) if open_ones else {}
        judge = Judge(
            copied(Path(folder) / "unchanged"), copies, tests, Counter(one.by for one in known.values() if one.by)
        )
        for one in judge.all(open_ones):
            known[one.mutant.key] = one
            if asked.results:
                with asked.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    sys.exit(report([known[mutant.key] for mutant, _ in chosen]))


if __name__ == "__main__":
    main()
