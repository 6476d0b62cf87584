"""Run all benchmarks, one after the other, and put what they print into README.md here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.machine import say

PAGE = Path(__file__).with_name("README.md")
BENCHMARKS = ("price_layouts", "search_memory", "questions", "startup")


def printed(name: str) -> str:
    """What a benchmark prints."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603  this package


def quoted(page: str, name: str, output: str) -> str:
    """The page with the block of a benchmark replaced."""
    start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->\n"
    before, rest = page.split(start)
    return f"{before}{start}```\n{output}```\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Replace every block of the page."""
    page = PAGE.read_text(encoding="utf-8")
    for name in BENCHMARKS:
        output = printed(name)
        say(output)
        page = quoted(page, name, output)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
