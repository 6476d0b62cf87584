"""`simulate calibrate --probe` from the command line; one probe that measures and trains."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.evidence.measurements.rows import read_rows
from simulator.lab.probe import rates
from simulator.lab.probe import run as plan
from simulator.lab.probe.rates import Sizes
from simulator.question.specs.catalogue import load_hardware
from simulator.show.cli.main import cli
from tests.cli.running import refusal, run
from tests.probe import machine
from tests.trainer.launches import in_forked_ranks

QUESTION = ("calibrate", "--probe", "--hardware", "local-cpu", "--devices", "2")
TINY = str(Path(__file__).resolve().parents[2] / "examples" / "models" / "tiny.yaml")
SMALL = Sizes(
    rows=(32,),
    widths=((32, 64), (64, 64)),
    tokens=(32, 64),
    heads=2,
    head_dims=(8, 16),
    elements=(2**10, 2**12),
    parameters=(2**10,),
    copies=(),
    messages=(2**10, 2**12),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "MOST_CANDIDATES", 60)  # pricing all of them takes seconds a test


def test_a_dry_run_shows_the_plan_and_leaves_nothing() -> None:
    result = run(*QUESTION, "--dry-run", "--launches", "3")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "Plan"
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "3"]
    assert "Plan from the numbers of the spec" in result.stdout
    assert "-m torch.distributed.run --standalone --nproc-per-node 2 " in result.stdout
    assert "-m simulator.lab.trainer rates" in result.stdout
    assert list(Path().iterdir()) == []


def test_a_dry_run_takes_the_rates_that_are_there() -> None:
    machine.leave_rates(machine.request_in(Path("mine")))
    result = run(*QUESTION, "--dry-run", "--launches", "3", "--output", "mine", "--format", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["rates_measured"] is True
    assert found["rates"]["peak_flops"]["bf16"] == pytest.approx(machine.PEAK["bf16"] / 0.98)
    assert len(found["launches"]) == 3
    assert all(launch["predicted_step_s"] > 0.0 for launch in found["launches"])
    assert sorted(path.name for path in Path("mine").iterdir()) == ["rates"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--hardware", "local-cpu", "--launches", "3"), "--launches needs --probe"),
        (("--dry-run",), "--dry-run needs --probe"),
        (("--probe",), "--probe needs --hardware"),
        (("--probe", "--hardware", "local-cpu", "--rows-only"), "--probe and --rows-only"),
        (("--probe", "--hardware", "local-cpu", "rows.csv"), "--probe and FILES"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: tuple[str, ...], said: str) -> None:
    assert refusal("calibrate", *options).startswith(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "yaml"), "--format yaml and --probe: allowed are table, json, markdown"),
        (("--model", "llama3.1-405b"), "--probe: of "),
    ],
)
def test_what_cannot_be_probed_is_refused(options: tuple[str, ...], said: str) -> None:
    assert refusal(*QUESTION, *options, "--dry-run", code=3).startswith(said)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "torch is not installed" in refusal(*QUESTION, code=3)
    assert list(Path().iterdir()) == []


def test_every_option_is_told_of() -> None:
    text = run("calibrate", "--help").stdout
    for option in ("--probe", "--devices", "--launches", "--backend", "--resume", "--dry-run", "--time-limit"):
        assert option in text
    assert "calibrate" in cli.commands


@pytest.mark.launch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_launch_is_measured_and_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "PROCESSOR", SMALL)
    monkeypatch.setattr("simulator.lab.runner.engine.run_guarded", in_forked_ranks)
    monkeypatch.setattr("simulator.lab.probe.run._LONGEST_SECONDS", (300.0, 300.0))  # a busy machine's rates are low
    options = (*QUESTION, "--model", TINY, "--launches", "1", "--output", "mine", "--format", "json")
    result = run(*options)
    # A single row seldom makes a calibration worth storing; what was measured is kept.
    assert result.exit_code in (0, 1), result.stderr
    spec = load_hardware("mine/local-cpu.yaml")
    assert spec.peak_flops.bf16 is not None
    assert spec.peak_flops.bf16.status == "measured"
    assert len(read_rows(Path("mine/rows.csv"))) == 1
    found = json.loads(result.stdout)
    assert [launch["measured_step_s"] > 0.0 for launch in found["launches"]] == [True]
    assert "context_exposed" in found["undetermined"]
    # Resumed, the rates and the row are there: nothing is launched.
    again = run(*options, "--resume")
    assert "simulate: note: launch " not in again.stderr
    assert "rates:" not in again.stderr
