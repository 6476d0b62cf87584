"""Rows that are kept whole, whoever else writes."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.evidence.measurements.rows import MeasuredRow, read_rows
from simulator.lab.runner.campaign import RowsFile, launches_of
from simulator.lab.runner.engine import launched_row
from simulator.lab.runner.processes import with_package
from simulator.question.scenario.layout import Layout
from tests.runner.fakes import pick

LAYOUT = Layout(tensor_parallel=2, stage_layers=(4,))


def row(**changes: object) -> MeasuredRow:
    return replace(launched_row(pick(layout=LAYOUT), "ok", step_time_s=1.0), **changes)  # type: ignore[arg-type]


def test_rows_are_numbered_on_and_named_after_the_file(tmp_path: Path) -> None:
    record = RowsFile(tmp_path / "mine.csv")
    assert [record.add(row()).key for _ in range(3)] == ["mine:1", "mine:2", "mine:3"]
    other = replace(row(), table="other", row=41)
    (tmp_path / "mine.csv").write_text(
        (tmp_path / "mine.csv").read_text(encoding="utf-8").replace("mine,3,", "other,41,"), encoding="utf-8"
    )
    assert other.key in [found.key for found in record.rows()]
    assert record.add(row()).key == "mine:3"
    assert [found.key for found in read_rows(record.path)] == ["mine:1", "mine:2", "other:41", "mine:3"]


def test_the_files_mode_is_kept_and_a_link_stays_one(tmp_path: Path) -> None:
    record = RowsFile(tmp_path / "mine.csv")
    record.add(row())
    record.path.chmod(0o640)
    link = tmp_path / "link.csv"
    link.symlink_to(record.path)
    RowsFile(link).add(row())
    assert link.is_symlink()
    assert record.path.stat().st_mode & 0o777 == 0o640
    assert [found.key for found in record.rows()] == ["mine:1", "link:1"]


WRITER = """
import sys
from pathlib import Path
from simulator.lab.runner.campaign import RowsFile, launches_of
from tests.runner.test_record import row
for _ in range(10):
    RowsFile(Path(sys.argv[1])).add(row())
"""


def test_two_writers_lose_no_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    environment = with_package(dict(os.environ))
    writers = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", WRITER, str(path)], env=environment) for _ in range(3)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    assert [found.row for found in read_rows(path)] == list(range(1, 31))


@pytest.mark.parametrize("text", ["no table\n", "table,row\n"])
def test_what_is_no_table_is_refused_before_a_launch(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.csv:1"):
        RowsFile(path).check()
    assert path.read_text(encoding="utf-8") == text


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"--output .*cannot be written"):
        RowsFile(tmp_path / "file" / "mine.csv").check()
    RowsFile(tmp_path / "new" / "mine.csv").check()
    assert (tmp_path / "new").is_dir()


def test_launches_are_told_by_question_and_layout() -> None:
    launched = pick(layout=LAYOUT)
    for same in (row(), row(step_time_s=2.0, row=9, table="x", source_notes="other"), launched_row(launched, "oom")):
        assert launches_of(launched, [same]) == [same]
    for name, value in (("seq_length", 512), ("precision", "fp32"), ("zero_stage", 0), ("options", (("a", "b"),))):
        assert launches_of(launched, [row(**{name: value})]) == []
