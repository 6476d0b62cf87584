"""Sweeps over Dask's scheduler and workers, in processes by hand and as jobs of a real Slurm."""

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import simulator
from simulator.answers.sweep import read_table
from tests.answers.sweeps import FEW, MANY, NEEDS_DASK, answered, dask, scheduler_address, started, swept, written
from tests.cli.running import run
from tests.project.tree import ROOT
from tests.runner.slurm_cluster import Cluster, cluster, missing
from tests.runner.trees import PATIENCE_SECONDS, none_left, until

WORKER = ("--nthreads", "1", "--nworkers", "1", "--no-nanny")


@pytest.fixture(scope="module")
def local_rows() -> list[object]:
    return list(simulator.sweep(MANY, workers=1).rows())


@pytest.fixture(scope="module")
def few_rows() -> list[object]:
    return list(simulator.sweep(FEW, workers=1).rows())


@NEEDS_DASK
def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path, local_rows: list[object]) -> None:
    file, table = written(tmp_path, MANY), tmp_path / "rows.csv"
    with ExitStack() as stack:
        stack.enter_context(dask(tmp_path, "scheduler", "--port", "0"))
        workers = [stack.enter_context(dask(tmp_path, "worker", *WORKER)) for _ in range(2)]
        address = scheduler_address(tmp_path)
        process = started(tmp_path, str(file), "--output", str(table), "--scheduler", address)
        until(lambda: answered(table) >= 5, lambda: (tmp_path / "worker.log").read_text(encoding="utf-8"))
        workers[0].send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, err
    assert read_table(table) == local_rows
    assert none_left(str(tmp_path)) == {}


@NEEDS_DASK
def test_where_the_scheduler_dies_what_is_done_is_kept(tmp_path: Path, local_rows: list[object]) -> None:
    file, table = written(tmp_path, MANY), tmp_path / "rows.csv"
    with ExitStack() as stack:
        scheduler = stack.enter_context(dask(tmp_path, "scheduler", "--port", "0"))
        stack.enter_context(dask(tmp_path, "worker", *WORKER))
        scheduler_address(tmp_path)
        process = started(tmp_path, str(file), "--output", str(table), "--scheduler", str(tmp_path / "dask.json"))
        until(lambda: answered(table) >= 5, lambda: (tmp_path / "worker.log").read_text(encoding="utf-8"))
        scheduler.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    last = err.splitlines()[-1]
    assert process.returncode == 3, err
    assert last.startswith(f"simulate: error: scheduler {tmp_path / 'dask.json'}")
    assert "run again to go on" in last
    assert answered(table) >= 5
    swept(tmp_path, str(file), "--output", str(table), "--workers", "2")
    assert read_table(table) == local_rows


@NEEDS_DASK
def test_a_scheduler_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.answers.sweep.WAIT_SECONDS", 1.0)
    file = written(tmp_path, {"model": "llama3.2-1b"})
    result = run("sweep", str(file), "--output", str(tmp_path / "x.csv"), "--scheduler", "tcp://127.0.0.1:1")
    waits, error = result.stderr.splitlines()
    assert result.exit_code == 3
    assert waits.startswith("simulate: note: scheduler tcp://127.0.0.1:1: ")
    assert error.startswith("simulate: error: scheduler tcp://127.0.0.1:1: ")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm") / "c", nodes=2) as found:
        yield found


def submitted(nodes: Cluster, folder: Path, script: str, *options: str) -> None:
    """Run an example's script as a job, until it is done."""
    shutil.copy(ROOT / "examples" / "sweep" / script, folder)
    written(folder, FEW)
    environment = f"--export=ALL,SIMULATE_BIN={Path(sys.executable).parent},PYTHONPATH={ROOT}"
    said = nodes.ask(
        *("sbatch", f"--chdir={folder}", "--output=job-%a.log", environment, *options),
        *(str(folder / script), "questions.yaml", "rows.csv"),
    )
    assert "Submitted batch job" in said, said
    until(lambda: not nodes.ask("squeue", "--noheader"), pause_seconds=0.2)


@NEEDS_DASK
@pytest.mark.skipif(not (Path(sys.executable).parent / "dask").exists(), reason="dask's command is not installed")
def test_scheduler_workers_and_sweep_are_one_slurm_job(nodes: Cluster, tmp_path: Path, few_rows: list[object]) -> None:
    submitted(nodes, tmp_path, "dask.sbatch", "--nodes=2")
    assert read_table(tmp_path / "rows.csv") == few_rows, (tmp_path / "job-0.log").read_text(encoding="utf-8")
    assert none_left(str(tmp_path)) == {}
