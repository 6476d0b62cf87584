"""Memory of a process that answers many questions: it does not grow with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.lab.runner.processes import with_package
from tests.answers.sweeps import FEW, MANY, written

MOST_GROWTH_MIB = 40.0
"""What 72 further questions may add: a leak of a hundredth of one's arrays would be more."""
COLLECTS = """
import atexit, gc, sys
from simulator.__main__ import run
atexit.register(lambda: print(gc.isenabled(), file=sys.stderr))
sys.argv[0] = "simulate"
run()
"""


def peak_mib(folder: Path, questions: object) -> float:
    """Peak resident memory of a sweep on one worker, which prices in its own process."""
    folder.mkdir()
    arguments = ("sweep", str(written(folder, questions)), "--workers", "1", "--output", str(folder / "table.csv"))
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator", *arguments],
        env=with_package(dict(os.environ)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 2**10


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is told in KiB on Linux")
def test_memory_does_not_grow_with_the_questions_of_a_sweep(tmp_path: Path) -> None:
    few, many = peak_mib(tmp_path / "few", FEW), peak_mib(tmp_path / "many", MANY)
    assert many - few < MOST_GROWTH_MIB


@pytest.mark.parametrize(
    ("arguments", "collects"),
    [(("--model", "llama3.2-1b", "--hardware", "h20"), False), (("frameworks",), True), (("models",), True)],
)
def test_commands_collect_what_their_questions_leave(arguments: tuple[str, ...], collects: bool) -> None:
    answered = subprocess.run(
        [sys.executable, "-c", COLLECTS, *arguments],
        env=with_package(dict(os.environ)),
        check=True,
        capture_output=True,
        text=True,
    )
    assert answered.stderr.split()[-1] == str(collects)
