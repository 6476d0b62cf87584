"""What `simulate validate` says of rows that it left out, or could not write."""

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.lab.runner.campaign import RowsFile
from simulator.show.cli import lab
from tests.cli.running import run
from tests.runner.fakes import TINY, FakeEngine

QUESTION = ("validate", "--model", str(TINY), "--hardware", "local-cpu", "--devices", "2", "--top", "1")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "_engine", lambda *_: FakeEngine())


def places(folder: Path) -> tuple[str, ...]:
    return ("--work-folder", str(folder / "work"), "--output", str(folder / "rows.csv"))


def test_what_failed_earlier_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RANKS", '{"tp1pp1dp2": "crash", "tp1pp2dp1": "crash", "tp2pp1dp1": "crash"}')
    assert "failed earlier" not in run(*QUESTION, *places(tmp_path)).stderr
    again = run(*QUESTION, *places(tmp_path), "--resume")
    assert "layouts that failed earlier: 1; --retry-failed launches them again" in again.stderr
    retried = run(*QUESTION, *places(tmp_path), "--resume", "--retry-failed")
    assert "failed earlier" not in retried.stderr


def test_rows_that_cannot_be_written_are_shown_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RowsFile, row: MeasuredRow) -> MeasuredRow:
        raise InputError(f"--output {self.path}: cannot be written: row {row.row}: full")

    monkeypatch.setattr(RowsFile, "add", full)
    result = run(*QUESTION, *places(tmp_path), "--format", "json")
    assert result.exit_code == 2
    assert '"measured": 61.0' in result.stdout
    assert "full; rows left out: 1" in result.stderr
