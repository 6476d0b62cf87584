"""CPU time and memory of `simulate check` on files made to take long, each in a process of its own.

Usage: python -m benchmarks.hostile_files [FILE...]; by default the files of tests/recipes/hostile.py.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import say
from tests.recipes.hostile import FILES

LIMIT_SECONDS, LIMIT_BYTES = 2.0, 300_000_000
"""Most CPU time of one core, start of the interpreter included, and most resident memory."""


def measured(file: Path) -> tuple[int, float, int]:
    """Exit code, CPU seconds and resident bytes of checking one file."""
    command = [sys.executable, "-m", "simulator", "check", "--hardware", "h20", "--format", "json", "--", str(file)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603  our own command
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main(files: list[Path]) -> int:
    """Print one line a file; return 1 where one is over a limit."""
    resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
    over = 0
    say(f"{'file':28} exit  CPU s    MB")
    for file in files:
        code, seconds, size = measured(file)
        wrong = seconds > LIMIT_SECONDS or size > LIMIT_BYTES or code not in (0, 1, 2, 3)
        over += wrong
        say(f"{file.name:28} {code:4} {seconds:6.2f} {size / 1e6:5.0f}{'  over' if wrong else ''}")
    say(f"{len(files)} files, {over} over {LIMIT_SECONDS:g} s or {LIMIT_BYTES / 1e6:.0f} MB")
    return 1 if over else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main([Path(name) for name in sys.argv[1:]]))
    with tempfile.TemporaryDirectory() as home:
        for name, (text, _) in FILES.items():
            (Path(home) / name).write_text(text, encoding="utf-8")
        sys.exit(main(sorted(Path(home).iterdir())))
