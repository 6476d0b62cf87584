"""Killing `simulate validate` mid-way leaves no process and no half-written row.

`SIMULATE_KILLS=20` repeats it twenty times for each signal; a test run does it once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.evidence.measurements.rows import COLUMNS
from simulator.lab.runner.campaign import RowsFile
from simulator.lab.runner.processes import with_package
from tests.runner.fakes import ROOT, TINY
from tests.runner.trees import PATIENCE_SECONDS, as_at_a_terminal, none_left, processes_with, until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
KILLS = int(os.environ.get("SIMULATE_KILLS", "1"))
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


def started(folder: Path) -> subprocess.Popen[str]:
    """Launch after launch of ranks that take a moment each, whose command lines hold the folder."""
    question = ["--model", str(TINY), "--hardware", "local-cpu", "--devices", "2", "--repeat", "50", "--steps", "1"]
    places = ["--work-folder", str(folder / "work"), "--output", str(folder / "rows.csv")]
    environment = with_package({**os.environ, "FAKE_SECONDS": "0.3"})
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runner.driver", "validate", *question, *places],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_at_a_terminal,  # noqa: PLW1509  no threads here
    )


def wait_for_rows(folder: Path, count: int) -> None:
    """Wait until so many launches have been recorded."""
    until(lambda: len(lines(folder)) > count, lambda: lines(folder))


def lines(folder: Path) -> list[str]:
    path = folder / "rows.csv"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.mark.parametrize("number", list(EXIT_CODES), ids=lambda number: number.name)
def test_nothing_is_left_behind(number: signal.Signals, tmp_path: Path) -> None:
    chance = random.Random(int(number))  # noqa: S311  moments of a test
    for attempt in range(1, KILLS + 1):
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        process = started(folder)
        wait_for_rows(folder, 1)
        # Any moment: ranks that start, run or end, and rows that are being written.
        time.sleep(chance.uniform(0.0, 1.2))
        assert processes_with(str(folder / "work")) != {}
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == EXIT_CODES[number], err
        assert "Traceback" not in err
        assert none_left(str(folder / "work")) == {}
        rows = RowsFile(folder / "rows.csv").rows()
        assert [row.row for row in rows] == list(range(1, len(rows) + 1))
        assert {row.outcome for row in rows} == {"ok"}
        assert lines(folder)[0] == ",".join(COLUMNS)
        assert len(lines(folder)) == 1 + len(rows)


def test_a_campaign_that_was_killed_is_resumed(tmp_path: Path) -> None:
    process = started(tmp_path)
    wait_for_rows(tmp_path, 2)
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert none_left(str(tmp_path / "work")) == {}
    before = RowsFile(tmp_path / "rows.csv").rows()
    places = ["--work-folder", str(tmp_path / "work"), "--output", str(tmp_path / "rows.csv"), "--format", "json"]
    question = ["--model", str(TINY), "--hardware", "local-cpu", "--devices", "2", "--steps", "1", "--resume"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.runner.driver", "validate", *question, *places],
        env=with_package(dict(os.environ)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    launched = sum(len(one["launches"]) for one in found["layouts"])
    assert launched == 3 - min(len(before), 3)
    after = RowsFile(tmp_path / "rows.csv").rows()
    assert after[: len(before)] == before
    assert len(after) == len(before) + launched
