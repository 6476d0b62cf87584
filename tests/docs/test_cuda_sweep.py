"""The sweep of single-device layouts: its twin for processors runs, and its cases are ones that can be launched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.evidence.measurements.rows import read_rows
from tests.project.tree import ROOT
from tests.trainer.launches import LIMIT_SECONDS, NEEDS_TORCH

PREPARE = """
import sys
from pathlib import Path
from benchmarks.cuda_sweep import cases
from simulator.lab.runner.reference import ReferenceEngine
folder = Path(sys.argv[1])
for case in cases("cuda"):
    launch = case.launch("h100-sxm-80g", ReferenceEngine(backend="cuda"), folder, 1.0)
    model = launch.pick.scenario.model.name
    print(case.seq_length, case.micro_batch_size, case.recompute, launch.pick.layout.devices, model)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Outside frameworks' settings of this machine are none of a launch's.
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RANK", "WORLD_"))}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=usual, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


@pytest.mark.launch
@NEEDS_TORCH
def test_the_twin_for_processors_leaves_rows(tmp_path: Path) -> None:
    table = tmp_path / "sweep.csv"
    places = ("--output", str(table), "--work-folder", str(tmp_path / "work"))
    done = run("-m", "benchmarks.cuda_sweep", "--device", "cpu", "--cases", "1", *places)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_rows(table)
    assert [(row.outcome, row.recompute) for row in rows] == [("ok", "none")]
    for row in rows:
        assert (row.source, row.framework, row.devices) == ("benchmarks/cuda_sweep.py", "torch", 1)
        assert "torch " in row.source_ref
        assert row.memory_counts
        assert row.speed_counts
    assert "predicted" in done.stdout


@NEEDS_TORCH
def test_no_case_starts_once_the_time_is_up(tmp_path: Path) -> None:
    places = ("--output", str(tmp_path / "sweep.csv"), "--work-folder", str(tmp_path / "work"))
    done = run("-m", "benchmarks.cuda_sweep", "--device", "cpu", "--minutes", "0", *places)
    assert done.returncode == 1
    assert "3 cases left out" in done.stdout


def test_every_case_for_an_accelerator_can_be_launched(tmp_path: Path) -> None:
    done = run("-c", PREPARE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == len(set(map(tuple, found))) == 33
    assert {line[0] for line in found} == {"2048", "4096", "8192", "16384"}
    assert {line[1] for line in found} == {"1", "2", "4"}
    assert {line[2] for line in found} == {"none", "selective", "full"}
    assert {line[3] for line in found} == {"1"}


def test_the_device_must_be_named(tmp_path: Path) -> None:
    done = run("-m", "benchmarks.cuda_sweep", "--output", str(tmp_path / "sweep.csv"))
    assert done.returncode == 2
    assert "--hardware" in done.stderr


def test_a_work_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = ("--output", str(tmp_path / "sweep.csv"), "--work-folder", str(tmp_path / "file" / "work"))
    done = run("-m", "benchmarks.cuda_sweep", "--device", "cpu", *places)
    assert done.returncode == 2
    assert f"error: --work-folder {tmp_path / 'file' / 'work'}: cannot be written: " in done.stdout


SWEEP = """
import signal, sys
from dataclasses import replace
from pathlib import Path
from benchmarks import cuda_sweep
from simulator.lab.runner.engine import Ended, LaunchOutcome
from simulator.lab.runner.engines.launched import launched_row
from simulator.lab.runner.local import LocalLauncher

class Engine(cuda_sweep.ReferenceEngine):
    def check(self): pass
    def outcome(self, pick, folder, ended):
        if ended.interrupted:
            return LaunchOutcome(kind="interrupted", row=None)
        return LaunchOutcome(kind="oom", row=launched_row(pick, "oom", "out of memory"))

class Launcher(LocalLauncher):
    def run(self, launch):
        ended = Ended(exit_code=1, log=launch.log)
        if "case-1" in str(launch.folder):
            return ended
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return replace(ended, interrupted=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
cuda_sweep.ReferenceEngine, cuda_sweep.LocalLauncher = Engine, Launcher
sys.exit(cuda_sweep.main(sys.argv[1:]))
"""


def test_an_interrupted_sweep_keeps_its_rows_and_says_so(tmp_path: Path) -> None:
    table, work = tmp_path / "sweep.csv", tmp_path / "work"
    for number in (1, 2):
        done = run("-c", SWEEP, "--device", "cpu", "--output", str(table), "--work-folder", str(work))
        assert done.returncode == 130, done.stderr
        # Each sweep has a folder of its own, which a row names where no device is known.
        assert [row.source_ref for row in read_rows(table)][-1] == f"run-{number}/case-1"
