"""Several nodes without Slurm: the same command on each, here on one machine that plays two."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.evidence.measurements.rows import read_rows
from simulator.lab.runner.engine import Launch, Launcher
from simulator.lab.runner.processes import with_package
from tests.cli.running import refusal
from tests.runner.fakes import ROOT, TINY, FakeEngine, narrow_hardware, pick, ranked
from tests.runner.ports import held_ports
from tests.runner.trees import PATIENCE_SECONDS, none_left


def arguments(folder: Path, endpoint: str, *more: str) -> list[str]:
    question = ["--model", str(TINY), "--hardware", str(narrow_hardware(folder)), "--devices", "2"]
    places = ["--work-folder", str(folder / "work"), "--output", str(folder / "rows.csv")]
    return ["validate", *question, *places, "--allow-tp-across-nodes", "--rdzv-endpoint", endpoint, *more]


def on_both(module: str, folder: Path, *more: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each node."""
    pipe = subprocess.PIPE
    with held_ports(4) as ports:  # each launch takes the next one
        endpoint = f"127.0.0.1:{ports[0]}"
        nodes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments(folder, endpoint, "--node-rank", str(rank), *more)],
                env=with_package(dict(os.environ)),
                cwd=ROOT,
                stdout=pipe,
                stderr=pipe,
                text=True,
            )
            for rank in range(2)
        ]
        told = [node.communicate(timeout=PATIENCE_SECONDS) for node in nodes]
    return [(node.returncode, *texts) for node, texts in zip(nodes, told, strict=True)]


def test_the_first_node_keeps_the_rows_of_all(tmp_path: Path) -> None:
    found = on_both("tests.runner.driver", tmp_path, "--top", "2", "--format", "json")
    assert [code for code, _, _ in found] == [0, 0], found
    for _, out, _ in found:
        assert [one["memory_mib"]["measured"] for one in json.loads(out)["layouts"]] == [61.0, 61.0]
    assert [row.row for row in read_rows(tmp_path / "rows.csv")] == [1, 2]
    [log, other] = sorted((tmp_path / "work").glob("1-*/log*.txt"))
    assert {log.name, other.name} == {"log.txt", "log-1.txt"}
    assert none_left(str(tmp_path / "work")) == {}


@pytest.mark.parametrize("left", ["rank-0.json", "log.txt"])
def test_a_work_folder_serves_once(left: str, tmp_path: Path) -> None:
    (tmp_path / "work" / "1-tiny").mkdir(parents=True)
    (tmp_path / "work" / "1-tiny" / left).write_text("{}", encoding="utf-8")
    said = refusal(*arguments(tmp_path, "127.0.0.1:1", "--dry-run"))
    assert "holds results of earlier launches; name a new one on all nodes" in said


@pytest.mark.launch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_two_nodes_train_together(tmp_path: Path) -> None:
    split = ("--pp", "2", "--vpp", "1", "--micro-batch-size", "1", "--top", "1", "--format", "json")
    found = on_both("simulator", tmp_path, *split, "--steps", "2", "--warmup", "1")
    assert [code for code, _, _ in found] == [0, 0], found
    for _, out, _ in found:
        [one] = json.loads(out)["layouts"]
        assert [rank["rank"] for rank in one["ranks"]] == [0, 1]
        assert [abs(rank["error"]) < 0.03 for rank in one["ranks"]] == [True, True], one["ranks"]
    [row] = read_rows(tmp_path / "rows.csv")
    assert (row.outcome, row.pipeline_parallel, row.step_samples, row.memory_kind) == ("ok", 2, 2, "allocated")
    assert "torch " in row.source_notes


def test_each_launch_takes_the_next_port(tmp_path: Path) -> None:
    command = FakeEngine().prepare(pick(layout=ranked()[0].layout), tmp_path)
    launch = Launch(title="tiny", pick=pick(), estimate=ranked()[0], command=command, repeat=1, limit_seconds=1.0)
    nodes = [Launcher(endpoint="a:29500")._node(replace(launch, number=number), 0) for number in (1, 2)]
    assert [node["MASTER_PORT"] for node in nodes] == ["29500", "29501"]
    assert [node["PET_RDZV_ENDPOINT"] for node in nodes] == ["a:29500", "a:29501"]


def test_nodes_must_know_of_each_other() -> None:
    with pytest.raises(InputError, match="this starts one node, the layouts take 2: start it on each"):
        Launcher().check(2)
    with pytest.raises(InputError, match="--node-rank 2: the layouts take 2 nodes, numbered from 0"):
        Launcher(endpoint="a:1", node_rank=2).check(2)
    with pytest.raises(InputError, match="--rdzv-endpoint: the layouts take one node"):
        Launcher(endpoint="a:1").check(1)


@pytest.mark.parametrize(
    ("endpoint", "options", "said"),
    [
        ("127.0.0.1:1", ("--resume",), "--rdzv-endpoint: without --resume"),
        ("here", (), "--rdzv-endpoint here: must be HOST:PORT"),
    ],
)
def test_what_nodes_cannot_do_alike_is_refused(
    endpoint: str, options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    assert said in refusal(*arguments(tmp_path, endpoint, *options))
