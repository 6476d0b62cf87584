"""`simulate validate --calibrate`: rows of launches enter a calibration, and the next ranking uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simulator.evidence.calibration.store import read_calibration
from simulator.show.cli import lab
from tests.cli.running import refusal, run
from tests.runner.fakes import TINY, FakeEngine, ranked

ASKED = ("--model", str(TINY), "--hardware", "local-cpu", "--devices", "2")
LAUNCHED = ("validate", *ASKED, "--steps", "3", "--warmup", "0", "--calibrate")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lab, "_engine", lambda *_: FakeEngine())
    monkeypatch.setenv("FAKE_SLOPE", "0.0001")


def steps_take(monkeypatch: pytest.MonkeyPatch, factors: Mapping[str, float]) -> dict[str, float]:
    """Let the ranks of each split take so many times what was predicted; the last rank reports 0.1 s more a rank."""
    times: dict[str, float] = {}
    for estimate in ranked():
        layout = estimate.layout
        name = f"tp{layout.tensor_parallel}pp{layout.pipeline_parallel}dp{layout.data_parallel}"
        times.setdefault(name, factors.get(name, 1.0) * estimate.throughput.step_seconds - 0.1)
    monkeypatch.setenv("FAKE_STEPS", json.dumps(times))
    return times


def answer(*more: str) -> dict[str, Any]:
    result = run(*LAUNCHED, "--format", "json", *more)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_rows_enter_the_calibration_and_the_ranking_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, dict.fromkeys(("tp1pp1dp2", "tp2pp1dp1", "tp1pp2dp1"), 1.3))
    found = answer()["calibration"]
    assert found["file"] == "simulate-validate/local-cpu.yaml"
    assert found["rows_used"] == 3
    calibration = read_calibration(Path(found["file"]))
    assert calibration.family == "cpu"
    assert calibration.tables == ("local-cpu",)
    measured = [one for one in found["ranking"] if one["measured_step_time_s"] is not None]
    assert len(measured) == 3
    for one in measured:
        before, now = (
            abs(one[name] / one["measured_step_time_s"] - 1.0) for name in ("step_time_s_before", "step_time_s")
        )
        assert now < 0.5 * before
    # The next ranking of the folder starts from it, and says so; the question's own options still win.
    again = run(*LAUNCHED, "--top", "1")
    assert "ranked by simulate-validate/local-cpu.yaml, of earlier launches" in again.stderr
    assert "Ranking with what" in again.stdout
    assert "`--calibration simulate-validate/local-cpu.yaml` ranks and estimates by it" in again.stdout
    assert "of earlier launches" not in run(*LAUNCHED, "--top", "1", "--calibration", "none").stderr


def test_what_the_rows_say_moves_the_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split that runs far slower than predicted falls behind."""
    steps_take(monkeypatch, {"tp2pp1dp1": 1.6, "tp1pp1dp2": 1.3, "tp1pp2dp1": 1.3})
    found = answer()["calibration"]
    slow = [one for one in found["ranking"] if one["layout"]["tp"] == 2 and one["measured_step_time_s"] is not None]
    assert len(slow) == 1
    assert slow[0]["step_time_s"] > slow[0]["step_time_s_before"]
    ranked_now = [one["place"] for one in found["ranking"] if one["place"] is not None]
    assert ranked_now == sorted(ranked_now)
    # A ranking by hand uses the file.
    best = run(*ASKED, "--framework", "torch", "--calibration", found["file"], "--format", "json", "--top", "1")
    assert best.exit_code == 0, best.stderr
    assert "local-cpu" in json.loads(best.stdout)["estimates"][0]["provenance"]["calibration"]


def test_what_cannot_be_stored_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, {"tp2pp1dp1": 30.0, "tp1pp1dp2": 0.9, "tp1pp2dp1": 8.0})
    result = run(*LAUNCHED)
    assert result.exit_code == 0, result.stderr
    assert "scatter" in result.stdout or "not fitted" in result.stdout


def test_nothing_is_learned_without_launches() -> None:
    assert "--calibrate needs launches" in refusal(*LAUNCHED, "--dry-run")
