"""Whole-process time of the command against a process that imports its packages only, in alternation.

Both processes of a pair run in the same round, one after the other, so that what slows the machine slows both. Once as
a user runs them, and once with one BLAS thread, which spares both processes the start of numpy's threads.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import THREAD_SETTINGS
from benchmarks.machine import judged, say, say_machine

ROUNDS = 21
MAIN_TARGET, HELP_TARGET = 2.5, 1.4
"""Of the time that importing the packages alone takes."""


def simulate() -> list[str]:
    """The installed command beside this Python, else the package as a module."""
    script = Path(sys.executable).parent / "simulate"
    return [str(script)] if script.is_file() else [sys.executable, "-m", "simulator"]


def seconds(command: list[str], *, one_thread: bool) -> float:
    """Wall-clock seconds of one process."""
    left_out = {"PYTHONDONTWRITEBYTECODE"} | (set() if one_thread else set(THREAD_SETTINGS))
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)  # noqa: S603  fixed commands
    return time.perf_counter() - start


def compare(measured: list[str], reference: list[str], *, one_thread: bool) -> tuple[list[float], list[float]]:
    """Seconds of both over the rounds, after two that are not counted."""
    rounds = range(ROUNDS + 2)
    pairs = [[seconds(command, one_thread=one_thread) for command in (measured, reference)] for _ in rounds][2:]
    return [a for a, _ in pairs], [b for _, b in pairs]


def report(question: list[str], imports: str, target: float) -> None:
    """Print medians and their ratio, which is held to a target."""
    command = [*simulate(), *question]
    say(f'simulate {" ".join(question)}, against python -c "import {imports}"')
    for one_thread in (False, True):
        ours, theirs = compare(command, [sys.executable, "-c", f"import {imports}"], one_thread=one_thread)
        middle, reference = statistics.median(ours), statistics.median(theirs)
        say(f"  {'one BLAS thread' if one_thread else 'as a user runs it'}")
        say(f"    median {middle * 1e3:.0f} ms (fastest {min(ours) * 1e3:.0f}, slowest {max(ours) * 1e3:.0f})")
        say(f"    against {reference * 1e3:.0f} ms (fastest {min(theirs) * 1e3:.0f}, slowest {max(theirs) * 1e3:.0f})")
        say(
            f"    ratio of medians {middle / reference:.2f}, fastest {min(ours) / min(theirs):.2f}; "
            f"target {target:g} {judged(met=middle / reference <= target)}"
        )


def main() -> None:
    """Compare the main job and the help with their imports."""
    say_machine()
    say(f"{ROUNDS} rounds, command: {'installed script' if len(simulate()) == 1 else 'python -m simulator'}")
    report(["--model", "llama3.1-70b", "--nodes", "8"], "numpy, pydantic, click", MAIN_TARGET)
    # pydantic loads what it is made of when a name of it is first used.
    report(["--model", "llama3.1-70b", "--nodes", "8"], "numpy, click; from pydantic import BaseModel", MAIN_TARGET)
    report(["--help"], "click", HELP_TARGET)


if __name__ == "__main__":
    main()
