"""The sweep of single-device layouts: its twin for processors runs, and its cases are ones that can be launched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cuda_sweep
from simulator.evidence.measurements.rows import read_rows
from simulator.lab.runner.engines import ReferenceEngine
from tests.check.bare import without_advice, without_open_switches
from tests.project.tree import ROOT
from tests.trainer.launches import LIMIT_SECONDS, NEEDS_TORCH, in_forked_ranks


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Outside frameworks' settings of this machine are none of a launch's.
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RANK", "WORLD_"))}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=usual, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


@pytest.mark.launch
@NEEDS_TORCH
def test_the_twin_for_processors_leaves_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("simulator.lab.runner.engine.run_guarded", in_forked_ranks)
    table = tmp_path / "sweep.csv"
    places = ("--output", str(table), "--work-folder", str(tmp_path / "work"))
    assert cuda_sweep.main(["--device", "cpu", "--cases", "1", *places]) == 0
    rows = read_rows(table)
    assert [(row.outcome, row.recompute) for row in rows] == [("ok", "none")]
    for row in rows:
        assert (row.source, row.framework, row.devices) == ("benchmarks/cuda_sweep.py", "torch", 1)
        assert "torch " in row.source_ref
        assert row.memory_counts
        assert row.speed_counts
    assert "predicted" in capsys.readouterr().out


@NEEDS_TORCH
def test_no_case_starts_once_the_time_is_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ("--output", str(tmp_path / "sweep.csv"), "--work-folder", str(tmp_path / "work"))
    assert cuda_sweep.main(["--device", "cpu", "--minutes", "0", *places]) == 1
    assert "3 cases left out" in capsys.readouterr().out


def test_every_case_for_an_accelerator_can_be_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_advice(monkeypatch)
    without_open_switches(monkeypatch)
    engine = ReferenceEngine(backend="cuda")
    picks = [(case, case.launch("h100-sxm-80g", engine, tmp_path, 1.0).pick) for case in cuda_sweep.cases("cuda")]
    shapes = {(c.seq_length, c.micro_batch_size, c.recompute, pick.scenario.model.name) for c, pick in picks}
    assert len(shapes) == len(picks) == 33
    assert {case.seq_length for case, _ in picks} == {2048, 4096, 8192, 16384}
    assert {case.micro_batch_size for case, _ in picks} == {1, 2, 4}
    assert {case.recompute for case, _ in picks} == {"none", "selective", "full"}
    assert {pick.layout.devices for _, pick in picks} == {1}


def test_the_device_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cuda_sweep.main(["--output", str(tmp_path / "sweep.csv")])
    assert left.value.code == 2
    assert "--hardware" in capsys.readouterr().err


def test_a_work_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    places = ("--output", str(tmp_path / "sweep.csv"), "--work-folder", str(tmp_path / "file" / "work"))
    assert cuda_sweep.main(["--device", "cpu", *places]) == 2
    assert f"error: --work-folder {tmp_path / 'file' / 'work'}: cannot be written: " in capsys.readouterr().out


SWEEP = """
import signal, sys
from dataclasses import replace
from pathlib import Path
from benchmarks import cuda_sweep
from simulator.lab.runner.processes import Ended
from simulator.lab.runner.engine import LaunchOutcome
from simulator.lab.runner.engine import launched_row
from simulator.lab.runner.engine import Launcher

class Engine(cuda_sweep.ReferenceEngine):
    def check(self): pass
    def outcome(self, pick, folder, ended):
        if ended.interrupted:
            return LaunchOutcome(kind="interrupted", row=None)
        return LaunchOutcome(kind="oom", row=launched_row(pick, "oom", "out of memory"))

class Stopped(Launcher):
    def run(self, launch):
        ended = Ended(exit_code=1, log=launch.log)
        if "case-1" in str(launch.folder):
            return ended
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return replace(ended, interrupted=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
cuda_sweep.ReferenceEngine, cuda_sweep.Launcher = Engine, Stopped
sys.exit(cuda_sweep.main(sys.argv[1:]))
"""


def test_an_interrupted_sweep_keeps_its_rows_and_says_so(tmp_path: Path) -> None:
    table, work = tmp_path / "sweep.csv", tmp_path / "work"
    for number in (1, 2):
        done = run("-c", SWEEP, "--device", "cpu", "--output", str(table), "--work-folder", str(work))
        assert done.returncode == 130, done.stderr
        # Each sweep has a folder of its own, which a row names where no device is known.
        assert [row.source_ref for row in read_rows(table)][-1] == f"run-{number}/case-1"
