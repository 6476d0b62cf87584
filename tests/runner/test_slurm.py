"""Launches as jobs of a real Slurm, on nodes that this machine plays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.errors import InputError, UnsupportedError
from simulator.lab.runner.campaign import Planner, Record, Wanted, run
from simulator.lab.runner.engine import Launch, SlurmLauncher
from simulator.lab.runner.processes import with_package
from simulator.question.specs.catalogue import load_hardware
from tests.runner.fakes import QUESTION, ROOT, TINY, FakeEngine, narrow_hardware, pick, ranked
from tests.runner.slurm_cluster import Cluster, cluster, missing
from tests.runner.trees import PATIENCE_SECONDS, as_at_a_terminal, none_left, processes_with, until, wait_for


def launch_of(folder: Path, **changes: object) -> Launch:
    """The launch of the fastest layout on two nodes of one device each."""
    engine, record = FakeEngine(), Record(folder / "own.csv")
    plan = Planner(engine=engine, pick=pick(), folder=folder, record=record, wanted=Wanted(top=1)).plan(ranked())
    [launch] = plan.launches
    narrow = replace(launch.pick.scenario, hardware=load_hardware(str(narrow_hardware(folder))))
    return replace(launch, pick=replace(launch.pick, scenario=narrow), **changes)  # type: ignore[arg-type]


def test_the_script_asks_for_what_the_launch_takes(tmp_path: Path) -> None:
    launch = launch_of(tmp_path / "a folder", limit_seconds=90.0)
    launcher = SlurmLauncher(partition="fast", account="us", options=("qos=high", "constraint=ib"), gpus=True)
    script = launcher.command_text(launch)
    for line in (
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --time=3",
        "#SBATCH --partition=fast",
        "#SBATCH --account=us",
        "#SBATCH --qos=high",
        "#SBATCH --constraint=ib",
        "#SBATCH --gpus-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        f"#SBATCH --chdir='{launch.folder}'",
        "export OMP_NUM_THREADS=1",
    ):
        assert line in script.splitlines()
    assert script.startswith("#!/bin/bash\n")
    assert str(launch.folder / "job.json") in script
    subprocess.run(["/bin/bash", "-n", "-c", script], check=True)


@pytest.mark.parametrize(
    ("option", "without"),
    [
        ("gres=gpu:h100:1", "gpus-per-node"),
        ("oversubscribe", "exclusive"),
        ("cpus-per-task=4", "exclusive"),
        ("mem=8G", "mem=0"),
    ],
)
def test_an_own_line_replaces_the_usual_one(option: str, without: str, tmp_path: Path) -> None:
    script = SlurmLauncher(options=(option,), gpus=True).command_text(launch_of(tmp_path))
    assert f"#SBATCH --{option}" in script.splitlines()
    assert f"--{without}" not in script


def test_a_program_that_starts_its_own_ranks_runs_once_a_node(tmp_path: Path) -> None:
    launch = launch_of(tmp_path)
    whole = replace(launch, command=replace(launch.command, rank_arguments=(), arguments=("bash", "recipe.sh")))
    scenario = replace(launch.pick.scenario, hardware=pick().scenario.hardware)
    script = SlurmLauncher().command_text(replace(whole, pick=replace(launch.pick, scenario=scenario)))
    assert "#SBATCH --nodes=1" in script
    assert "#SBATCH --ntasks-per-node=1" in script
    assert script.splitlines()[-1].endswith("rank bash recipe.sh")
    assert "LOCAL_RANK" not in script


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        (
            SlurmLauncher(options=("qos=high\ntouch injected",)),
            "--slurm-option 'qos=high touch injected': expected NAME",
        ),
        (SlurmLauncher(options=("comment=two words",)), "expected NAME or NAME=VALUE"),
        (SlurmLauncher(options=("comment='open",)), "expected NAME or NAME=VALUE"),
        (SlurmLauncher(options=("",)), "expected NAME or NAME=VALUE"),
        (SlurmLauncher(options=("output=elsewhere",)), "--slurm-option 'output=elsewhere': output follows from the"),
        (SlurmLauncher(partition="a b"), "--slurm-partition 'a b': expected a name"),
        (SlurmLauncher(account="us\ntouch injected"), "--slurm-account 'us touch injected': expected a name"),
    ],
)
def test_what_would_break_the_script_is_refused(launcher: SlurmLauncher, said: str) -> None:
    with pytest.raises(InputError, match=said):
        launcher.check(1)


def test_an_option_may_have_a_quoted_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", str)
    SlurmLauncher(partition="a,b-1.x", options=("comment='two words'", "gres=gpu:h100:8", "exclusive")).check(1)


def test_without_slurm_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="--launcher slurm: sbatch is not on PATH"):
        SlurmLauncher().check(1)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm") / "c") as found:
        yield found


@pytest.fixture
def slurm_here(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)
    return nodes


def queue(nodes: Cluster) -> str:
    return nodes.ask("squeue", "--noheader")


def wait_until_empty(nodes: Cluster) -> None:
    until(lambda: not queue(nodes), lambda: queue(nodes), pause_seconds=0.2)  # each look is a process


def arguments(folder: Path, *more: str) -> list[str]:
    question = ["--model", str(TINY), "--hardware", str(narrow_hardware(folder)), "--devices", "2"]
    places = ["--work-folder", str(folder / "work"), "--output", str(folder / "rows.csv")]
    return ["validate", *question, *places, "--launcher", "slurm", "--allow-tp-across-nodes", *more]


def started(module: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", module, *arguments(folder, *more)]
    return subprocess.Popen(
        command,
        env=with_package(dict(os.environ)),
        stdout=pipe,
        stderr=pipe,
        text=True,
        cwd=ROOT,
        preexec_fn=as_at_a_terminal,  # noqa: PLW1509  no threads here
    )


def test_two_nodes_run_a_launch_and_leave_rows(slurm_here: Cluster, tmp_path: Path) -> None:
    process = started("tests.runner.driver", tmp_path, "--top", "2", "--format", "json", "--slurm-partition", "test")
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, out + err
    found = json.loads(out)
    assert [one["memory_mib"]["measured"] for one in found["layouts"]] == [61.0, 61.0]
    assert [[rank["rank"] for rank in one["ranks"]] for one in found["layouts"]] == [[0, 1], [0, 1]]
    assert [row.outcome for row in Record(tmp_path / "rows.csv").rows()] == ["ok", "ok"]
    logs = [Path(one["launches"][0]["log"]).read_text(encoding="utf-8") for one in found["layouts"]]
    assert all("0: rank 0 of" in log and "1: rank 1 of" in log for log in logs)
    assert queue(slurm_here) == ""


@pytest.mark.parametrize("how", ["time limit", "queue"])
def test_a_job_that_does_not_end_is_cancelled(
    how: str, slurm_here: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launch_of(tmp_path, limit_seconds=2.0 if how == "time limit" else PATIENCE_SECONDS)
    layout = launch.pick.layout
    name = f"tp{layout.tensor_parallel}pp{layout.pipeline_parallel}dp{layout.data_parallel}"
    monkeypatch.setenv("FAKE_RANKS", json.dumps({name: "hang"}))
    waits = PATIENCE_SECONDS
    if how == "queue":
        waits = 2.0
        slurm_here.ask("sbatch", "--nodes=3", "--exclusive", "--output=none", "--wrap=sleep 600")
    ended = SlurmLauncher(queue_seconds=waits).run(launch)
    assert (ended.exit_code, ended.timed_out, ended.interrupted) == (None, True, False)
    outcome = FakeEngine().outcome(launch.pick, launch.folder, ended)
    assert outcome.kind == "timeout"
    if how == "queue":
        assert outcome.error.endswith("waited in the queue for 2 s")
        slurm_here.ask("scancel", "--user=root")
    wait_until_empty(slurm_here)
    assert none_left(str(launch.folder / "job.json")) == {}


def hanging(folder: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[str]:
    """`simulate validate` whose job's ranks have begun and do not end."""
    monkeypatch.setenv("FAKE_RANKS", json.dumps(dict.fromkeys(("tp1pp1dp2", "tp1pp2dp1", "tp2pp1dp1"), "hang")))
    process = started("tests.runner.driver", folder, "--top", "1")
    until(lambda: len([line for line in processes_with(str(folder)).values() if "fake_worker.py" in line]) >= 2)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_job_ends_with_an_interrupted_or_killed_simulate(
    number: signal.Signals, slurm_here: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = hanging(tmp_path, monkeypatch)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), err
    wait_until_empty(slurm_here)
    assert none_left(str(tmp_path)) == {}
    assert Record(tmp_path / "rows.csv").rows() == ()


def test_what_sbatch_refuses_is_a_failed_launch(slurm_here: Cluster, tmp_path: Path) -> None:
    del slurm_here
    launch = launch_of(tmp_path)
    ended = SlurmLauncher(partition="nowhere").run(launch)
    outcome = FakeEngine().outcome(launch.pick, launch.folder, ended)
    assert outcome.kind == "error"
    assert outcome.error.startswith("sbatch: ")
    assert "Invalid partition" in outcome.error


def test_a_job_that_others_cancel_is_a_failed_launch(
    slurm_here: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_RANKS", json.dumps({"tp1pp1dp2": "hang"}))
    launch = launch_of(tmp_path)

    def cancel() -> None:
        wait_for(str(launch.folder / "job.json"), 1)
        slurm_here.ask("scancel", "--user=root")

    thread = threading.Thread(target=cancel)
    thread.start()
    ended = SlurmLauncher().run(launch)
    thread.join()
    outcome = FakeEngine().outcome(launch.pick, launch.folder, ended)
    assert (outcome.kind, ended.exit_code) == ("error", None)
    assert "CANCELLED" in outcome.error


def test_a_failed_rank_stops_no_other_job(slurm_here: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del slurm_here
    monkeypatch.setenv("FAKE_RANKS", json.dumps({"tp1pp1dp2": "oom"}))
    engine, record = FakeEngine(), Record(tmp_path / "own.csv")
    planner = Planner(engine=engine, pick=pick(), folder=tmp_path / "run", record=record, wanted=Wanted(top=2))
    found = run(planner.plan(ranked()), SlurmLauncher(), engine, record, list[str]().append)
    assert sorted(row.outcome for row in record.rows()) == ["ok", "oom"]
    assert [one.contradiction for one in found.comparisons if one.failures] == ["predicted to fit, ran out of memory"]
    assert QUESTION["devices"] == 2
