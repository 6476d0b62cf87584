"""Lines of Python of each wing and room, beside another checkout's: `python -m benchmarks.sizes [BEFORE_CHECKOUT]`.

All lines count, blank ones and docstrings too; tables, YAML and tests do not. The last lines sum up what says the words
of frameworks (profiles, readers, writers, rules, log readers), and the package.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from tabulate import tabulate

from benchmarks.machine import say

ROOT: Final = Path(__file__).resolve().parents[1]
WORDS: Final = (
    *("question/frameworks", "frameworks", "recipes/readers", "recipes/emit", "recipes/rules"),
    *("evidence/measurements/*log*", "evidence/measurements/steady", "evidence/measurements/shapes"),
    "evidence/measurements/completed",
)
"""Rooms and files that say what frameworks' words mean."""


def lines_of(checkout: Path, pattern: str) -> int:
    """Lines of the modules of a room, or of the files of a pattern, of the package of a checkout."""
    folder = checkout / "simulator"
    files = {*folder.glob(f"{pattern}.py"), *folder.glob(f"{pattern}/**/*.py")}
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def rooms(checkout: Path) -> list[str]:
    """Wings, and the rooms of each, by their paths in the package."""
    folder = checkout / "simulator"
    found = [path for path in (*folder.glob("*/"), *folder.glob("*/*/")) if any(path.glob("*.py"))]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description="Lines of Python by room.")
    parser.add_argument("before", nargs="?", type=Path, help="another checkout")
    before = parser.parse_args().before
    checkouts = [ROOT] if before is None else [before, ROOT]
    names = sorted({room for checkout in checkouts for room in rooms(checkout)})
    rows = [[name, *(lines_of(checkout, name) for checkout in checkouts)] for name in names]
    rows += [
        ["words of frameworks", *(sum(lines_of(checkout, room) for room in WORDS) for checkout in checkouts)],
        ["package", *(lines_of(checkout, "**/*") for checkout in checkouts)],
    ]
    say(tabulate(rows, headers=["room", "before", "lines"] if before else ["room", "lines"]))


if __name__ == "__main__":
    main()
