"""A campaign as one job of a real Slurm, on nodes that this machine plays: the script of `examples/validate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.lab.runner.campaign import RowsFile
from tests.cli.running import run
from tests.runner.fakes import ROOT, TINY, narrow_hardware
from tests.runner.slurm_cluster import Cluster, cluster, missing
from tests.runner.trees import none_left, processes_with, until

SCRIPT = ROOT / "examples" / "validate" / "slurm.sbatch"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm") / "c") as found:
        yield found


def queue(nodes: Cluster) -> str:
    return nodes.ask("squeue", "--noheader")


def submitted(nodes: Cluster, folder: Path, *more: str, count: int = 2, **environment: str) -> None:
    """Submit the script, with the tests' engine in place of the trainer, on nodes of one device each."""
    program = folder / "bin" / "simulate"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\nexec {sys.executable} -m tests.runner.driver "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    names = {"SIMULATE_BIN": str(program.parent), "PYTHONPATH": str(ROOT)} | environment
    exported = ",".join(["ALL", *(f"{name}={text}" for name, text in names.items())])
    question = ("--model", str(TINY), "--hardware", str(narrow_hardware(folder)), "--devices", str(count))
    said = nodes.ask(
        *("sbatch", f"--chdir={folder}", "--output=log.txt", f"--nodes={count}", f"--export={exported}", str(SCRIPT)),
        *(*question, "--allow-tp-across-nodes", *more),
    )
    assert "Submitted batch job" in said, said


def wait_until_empty(nodes: Cluster) -> None:
    until(lambda: not queue(nodes), lambda: queue(nodes), pause_seconds=0.2)  # each look is a process


def rows(folder: Path) -> list[str]:
    [file] = folder.glob("validate-*/*.csv")
    return [row.outcome for row in RowsFile(file).rows()]


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text(encoding="utf-8")


def test_two_nodes_run_a_campaign_and_leave_rows(nodes: Cluster, tmp_path: Path) -> None:
    submitted(nodes, tmp_path, "--top", "2")
    wait_until_empty(nodes)
    assert rows(tmp_path) == ["ok", "ok"], log(tmp_path)
    assert none_left(str(tmp_path)) == {}


def test_one_node_needs_no_endpoint(nodes: Cluster, tmp_path: Path) -> None:
    submitted(nodes, tmp_path, "--top", "1", count=1)
    wait_until_empty(nodes)
    assert rows(tmp_path) == ["ok"], log(tmp_path)


def test_a_cancelled_job_leaves_no_process(nodes: Cluster, tmp_path: Path) -> None:
    submitted(nodes, tmp_path, "--top", "1", FAKE_SECONDS="600")
    until(lambda: len([line for line in processes_with(str(tmp_path)).values() if "fake_worker.py" in line]) >= 2)
    nodes.ask("scancel", "--user=root")
    wait_until_empty(nodes)
    until(lambda: none_left(str(tmp_path)) == {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--launcher", "slurm"), "--launcher is gone: examples/validate/slurm.sbatch launches as one Slurm job"),
        (("--slurm-partition", "fast"), "--slurm-partition is gone: examples/validate/slurm.sbatch"),
        (("--slurm-option", "qos=high", "--slurm-option", "mem=8G"), "--slurm-option is gone"),
        (("--queue-limit", "5"), "--queue-limit is gone"),
    ],
)
def test_options_of_the_former_launcher_say_what_to_do(options: tuple[str, ...], said: str) -> None:
    result = run("validate", "--model", str(TINY), "--hardware", "local-cpu", "--devices", "2", *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_launcher_that_is_left_may_still_be_named(tmp_path: Path) -> None:
    more = ("--launcher", "local", "--top", "1", "--dry-run", "--work-folder", str(tmp_path))
    result = run("validate", "--model", str(TINY), "--hardware", "local-cpu", "--devices", "2", *more)
    assert result.exit_code == 0, json.dumps(result.stderr)
