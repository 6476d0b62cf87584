"""The command `simulate validate`, with ranks that train nothing; those of `test_nodes` train."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from simulator.errors import UnsupportedError
from simulator.evidence.measurements.rows import read_rows
from simulator.lab.runner import engines
from simulator.lab.runner.engines import Device
from simulator.lab.runner.processes import with_package
from simulator.show.cli import lab
from tests.cli.running import refusal, run
from tests.runner.fakes import TINY, FakeEngine

QUESTION = ("validate", "--model", str(TINY), "--hardware", "local-cpu", "--devices", "2")
SHORT = ("--steps", "2", "--warmup", "1")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "_engine", lambda *_: FakeEngine())


def ranks_do(monkeypatch: pytest.MonkeyPatch, **does: str) -> None:
    monkeypatch.setenv("FAKE_RANKS", json.dumps(does))


@pytest.mark.usefixtures("fake")
def test_the_table_shows_predicted_and_measured() -> None:
    result = run(*QUESTION, "-v")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "tiny on 2 devices of local-cpu: bf16, sequence 256, global batch 8, torch"
    memory = [line for line in lines if "memory MiB" in line]
    assert len(memory) == 3
    assert all(" 61.0 " in line and line.endswith("1  ran") for line in memory)
    assert len([line for line in lines if " step ms " in line and " 635.0 " in line]) == 3
    assert "Not launched: TP1 PP1 CP2" in result.stdout
    assert result.stdout.count("peak of every rank, and its passes in a step") == 3
    assert result.stdout.count("8 steps, median 635.0 ms, 600.0 to 670.0, quartiles 35.0 apart") == 3
    assert "Assumed: memory: a processor's memory" in result.stdout
    assert "Error is predicted over measured, less one." in result.stdout
    assert lines[-1].startswith("Rows: simulate-validate/local-cpu.csv; `simulate calibrate ")
    assert result.stderr.count("simulate: note: launch ") == 3


@pytest.mark.usefixtures("fake")
def test_quiet_shows_the_table_alone() -> None:
    result = run(*QUESTION, "-q")
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 10


@pytest.mark.usefixtures("fake")
def test_rows_are_added_and_calibrate_takes_them() -> None:
    for _ in range(2):
        assert run(*QUESTION, "--output", "mine.csv").exit_code == 0
    rows = read_rows(Path("mine.csv"))
    assert [row.key for row in rows] == [f"mine:{number}" for number in range(1, 7)]
    assert {(row.model, row.hardware, row.framework, row.seq_length, row.global_batch_size) for row in rows} == {
        (str(TINY), "local-cpu", "torch", 256, 8)
    }
    assert sorted(path.name for path in Path("simulate-validate").iterdir()) == ["run-1", "run-2"]
    result = run("calibrate", "mine.csv")
    assert result.exit_code == 0, result.stderr
    assert "Not fitted: a processor's memory" in result.stdout
    # Times of ranks that train nothing fit no layout: a row is used, or named among the doubtful ones.
    said = result.stdout + result.stderr
    assert any(
        words in said for words in ("6 rows used", "mine:6", "rows still scatter", "its 6 rows are not predicted")
    )


@pytest.mark.usefixtures("fake")
def test_json_holds_all_that_was_measured() -> None:
    result = run(*QUESTION, "--format", "json", "--top", "2", "--repeat", "2", *SHORT)
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["all_well"], found["interrupted_by_signal"]) == (True, None)
    assert found["rows_file"] == "simulate-validate/local-cpu.csv"
    assert len(found["layouts"]) == 2
    for one in found["layouts"]:
        assert one["memory_mib"]["measured"] == 61.0
        assert one["memory_mib"]["predicted"] == max(
            stage["allocated_mib"] for stage in one["estimate"]["memory"]["stages"]
        )
        interval = one["memory_mib"]["interval"]
        assert one["memory_mib"]["inside_interval"] == (interval["low"] <= 61.0 <= interval["high"])
        assert one["step_time_s"]["measured"] == pytest.approx(0.605)
        assert (one["runs"], one["failures"], one["contradiction"]) == (2, [], None)
        stage = one["estimate"]["throughput"]["stages"][0]
        sizes = one["estimate"]["layout"]
        count = sizes["global_batch_size"] // (sizes["micro_batch_size"] * sizes["dp"])
        assert one["ranks"][0]["predicted_forward_s"] == pytest.approx(count * stage["forward_s"])
        assert [row["step_spread_s"]["samples"] for row in one["rows"]] == [2, 2]
        assert [launch["repeat"] for launch in one["launches"]] == [1, 2]
        assert [rank["peak_bytes"] for rank in one["launches"][0]["ranks"]] == [60 * 2**20, 61 * 2**20]
    assert {one["reason"] for one in found["refused"]} == {"context_parallel 2: the reference trainer has 1 only"}


@pytest.mark.usefixtures("fake")
def test_a_launch_that_fails_is_shown_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks_do(monkeypatch, tp1pp1dp2="oom", tp2pp1dp1="crash")
    result = run(*QUESTION)
    assert result.exit_code == 1
    assert "predicted to fit, ran out of memory" in result.stdout
    assert "    simulate-trainer: rank 1: out-of-memory: OutOfMemoryError: tried to allocate 2 GiB" in result.stdout
    assert "    RuntimeError: a rank broke" in result.stdout
    assert "log.txt" in result.stdout
    assert len([line for line in result.stdout.splitlines() if line.endswith("1  ran")]) == 1
    again = run(*QUESTION, "--resume")
    assert again.exit_code == 1
    assert "launch 1" not in again.stderr
    assert "predicted to fit, ran out of memory" in again.stdout
    ranks_do(monkeypatch)
    retried = run(*QUESTION, "--resume", "--retry-failed")
    assert retried.exit_code == 0
    assert retried.stderr.count("note: launch ") == 2


@pytest.mark.usefixtures("fake")
def test_an_own_calibration_predicts() -> None:
    priors = json.loads(run(*QUESTION, "--top", "1", "--format", "json", "--calibration", "none").stdout)
    [one] = priors["layouts"]
    assert one["memory_mib"]["interval"] is None
    assert one["memory_mib"]["inside_interval"] is None
    assert one["estimate"]["provenance"]["calibration"] == "priors"


@pytest.mark.usefixtures("fake")
def test_fewer_splits_than_asked_for_are_noted() -> None:
    result = run(*QUESTION, "--tp", "2", "--top", "3")
    assert result.exit_code == 0
    assert "note: --top 3: the ranking has 1 of different splits that can be launched" in result.stderr


@pytest.mark.usefixtures("fake")
def test_earlier_figures_are_told_from_new_ones() -> None:
    assert run(*QUESTION, "--top", "1").exit_code == 0
    shown = run(*QUESTION, "--top", "2", "--resume").stdout
    assert [line.rpartition("  ")[2] for line in shown.splitlines() if "memory MiB" in line] == ["ran earlier", "ran"]
    again = run(*QUESTION, "--top", "1", "--repeat", "2", "--resume").stdout
    assert "2  ran, 1 of 2 earlier" in again


@pytest.mark.usefixtures("fake")
def test_steps_that_scatter_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "scatter" not in run(*QUESTION, "--top", "1").stdout
    monkeypatch.setenv("FAKE_SLOPE", "0.2")
    # Eight steps, 0.6 to 2.0 s: quartiles 0.7 apart, median 1.3.
    assert "its steps scatter, quartiles 53.8 % of the median apart" in run(*QUESTION, "--top", "1").stdout


@pytest.mark.usefixtures("fake")
def test_one_step_has_no_spread() -> None:
    assert run(*QUESTION, "--top", "1", "--steps", "1", "--output", "one.csv").exit_code == 0
    [row] = read_rows(Path("one.csv"))
    assert row.step_seconds == pytest.approx(0.6)
    assert (row.step_samples, row.step_iqr_s, row.step_time_spread) == (None, None, None)


@pytest.mark.usefixtures("fake")
def test_the_devices_own_figure_stands_beside_its_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "device MiB" not in run(*QUESTION, "--top", "1", "-v").stdout
    monkeypatch.setenv("FAKE_DEVICE_MIB", "77")
    lines = run(*QUESTION, "--top", "1", "-v").stdout.splitlines()
    assert any(line.rstrip().endswith("device MiB") for line in lines)
    assert len([line for line in lines if line.endswith(" 77.0")]) == 2
    [one] = json.loads(run(*QUESTION, "--top", "1", "--format", "json").stdout)["layouts"]
    stages = one["estimate"]["memory"]["stages"]
    assert [(rank["predicted_device_mib"], rank["device_mib"]) for rank in one["ranks"]] == [
        (stages[rank["stage"]]["device_mib"], 77.0) for rank in one["ranks"]
    ]


@pytest.mark.usefixtures("fake")
def test_a_layout_is_named_with_its_sharding() -> None:
    for stage in ("1", "2"):
        shown = run(*QUESTION, "--top", "1", "--tp", "1", "--pp", "1", "--zero-stage", stage).stdout
        assert f"recompute none, ZeRO {stage}  memory MiB" in shown


@pytest.mark.usefixtures("fake")
def test_rows_of_failures_alone_are_not_for_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks_do(monkeypatch, tp1pp1dp2="crash")
    assert "simulate calibrate" not in run(*QUESTION, "--top", "1").stdout


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    said = refusal(*QUESTION, code=3)
    assert said == "torch is not installed: pip install '.[runner]' in a checkout brings it, else pip install torch"
    assert list(Path().iterdir()) == []


def dry(*more: str) -> Result:
    result = run(*QUESTION, "--dry-run", *more)
    assert result.exit_code == 0, result.stderr
    return result


def test_a_dry_run_starts_nothing_and_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    found = dry("--tp", "2").stdout
    [job] = Path().absolute().glob("simulate-validate/run-1/1-tiny-tp2-pp1-dp1-*/job.json")
    assert f"cd {job.parent}\n" in found
    assert "-m torch.distributed.run --standalone --nnodes 1 --nproc-per-node 2 --max-restarts 0" in found
    assert f"-m simulator.lab.trainer {job}\n" in found
    assert json.loads(job.read_text(encoding="utf-8"))["steps"] == 8
    assert list(Path().glob("**/*.csv")) == []
    assert list(Path().glob("**/log.txt")) == []


@pytest.mark.parametrize(
    ("hardware", "backend", "sizes"),
    [("local-cpu", "cpu", (256, 8)), ("h20", "cuda", (8192, 1024)), ("ascend-910b-64g-8", "npu", (8192, 1024))],
)
def test_backend_and_sizes_follow_from_the_hardware(hardware: str, backend: str, sizes: tuple[int, int]) -> None:
    question = ("--model", "llama3.2-1b" if backend != "cpu" else str(TINY), "--hardware", hardware, "--top", "1")
    result = run("validate", *question, "--devices", "8" if backend != "cpu" else "2", "--dry-run")
    assert result.exit_code == 0, result.stderr
    [path] = Path().glob("**/job.json")
    job = json.loads(path.read_text(encoding="utf-8"))
    assert (job["backend"], job["seq_length"], job["global_batch_size"]) == (backend, *sizes)
    limited = job["memory_limit_bytes"] is not None
    assert limited == (backend == "cpu")


def test_the_collective_library_reaches_the_job() -> None:
    dry("--communication", "mine", "--top", "1")
    [path] = Path().glob("**/job.json")
    assert json.loads(path.read_text(encoding="utf-8"))["communication"] == "mine"


def test_a_machine_without_the_device_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(backend: str) -> Device:
        raise UnsupportedError(f"nothing to launch on: backend {backend}")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(engines, "ask", ask)
    question = ("validate", "--model", "llama3.2-1b", "--hardware", "h20", "--top", "1")
    assert refusal(*question, code=3) == "nothing to launch on: backend cuda"
    assert list(Path().glob("**/*.csv")) == []


@pytest.mark.usefixtures("fake")
def test_a_crowded_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "crowded", lambda ranks: f"{ranks} ranks are many")
    assert "simulate: note: 2 ranks are many\n" in run(*QUESTION, "--top", "1").stderr


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--cp", "2"), 3, "nothing to launch: engine reference can run none of the"),
        (("--num-layers", "4000"), 3, "nothing to launch: no layout fits"),
        (("--devices", "16"), 2, "this starts one node, the layouts take 2"),
        (("--engine-path", "there"), 2, "--engine-path: the reference trainer comes with the simulator"),
        (("--hardware", "local-cpu:2,h20:2"), 3, "--hardware: launches run on one kind of device"),
        (("--option", "flash_attention=false"), 3, "--option flash_attention: the reference trainer"),
        (("--engine", "pytorch"), 2, "'pytorch' is not one of reference, megatron, paddle"),
        (("--output", "there/"), 2, "there"),
        (("--output", "there"), 2, "--output there: is a folder"),
        (("--hardware", "h20", "--backend", "cpu"), 2, "--backend cpu: the hardware h20 is of family hopper"),
        (("--backend", "cuda"), 2, "--backend cuda: the hardware local-cpu is of family cpu"),
        (("--engine", "megatron", "--backend", "cuda"), 2, "--backend needs --engine reference"),
        (("--engine", "paddle", "--communication", "nccl"), 2, "--communication needs --engine reference"),
        (("--retry-failed",), 2, "--retry-failed needs --resume"),
        (("--engine", "megatron"), 2, "--engine megatron: the folder of Megatron-LM is not known"),
    ],
)
def test_what_cannot_be_launched_is_refused(
    options: tuple[str, ...], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.delenv("MEGATRON_PATH", raising=False)
    Path("there").mkdir()
    pairs = zip(QUESTION[1::2], QUESTION[2::2], strict=True)
    asked = [word for pair in pairs if pair[0] not in options for word in pair]
    assert said in refusal(QUESTION[0], *asked, *options, code=code)
    assert list(Path().glob("**/run-*")) == []


def test_the_model_must_be_named() -> None:
    assert refusal("validate").startswith("missing option '--model'")


def test_what_starts_processes_imports_no_torch() -> None:
    code = (
        "import importlib, pkgutil, sys, simulator.lab.runner as runner, simulator.show.report.lab\n"
        "for module in pkgutil.walk_packages(runner.__path__, runner.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=with_package(dict(os.environ)), check=True)
