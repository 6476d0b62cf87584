"""Which layouts are launched, and what becomes of them when some fail."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError, UnsupportedError
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.lab.runner import engines
from simulator.lab.runner.campaign import (
    Campaign,
    LaunchPlan,
    LayoutComparison,
    Planner,
    RowsFile,
    run,
    run_folder,
    shared_folder,
)
from simulator.lab.runner.engine import Launch, Launcher, LaunchOutcome, Pick
from simulator.lab.runner.processes import Ended, with_package
from tests.runner.fakes import ROOT, FakeEngine, pick, ranked
from tests.runner.trees import PATIENCE_SECONDS, processes_with, wait_for

ENGINE = FakeEngine()


def plan(folder: Path, **wanted: Any) -> LaunchPlan:
    record = RowsFile(folder / "own.csv")
    planner = Planner(engine=ENGINE, pick=pick(), folder=folder / "run", record=record, **wanted)
    return planner.plan(ranked())


def launch(folder: Path, does: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, **wanted: Any) -> Campaign:
    monkeypatch.setenv("FAKE_RANKS", json.dumps(dict(does)))
    return run(plan(folder, **wanted), Launcher(), ENGINE, RowsFile(folder / "own.csv"), list[str]().append)


def by_split(campaign: Campaign) -> dict[str, LayoutComparison]:
    sizes = {one.title: one.estimate.layout for one in campaign.comparisons}
    return {
        f"tp{sizes[one.title].tensor_parallel}pp{sizes[one.title].pipeline_parallel}": one
        for one in campaign.comparisons
    }


def test_the_fastest_of_each_split_that_can_run_is_chosen(tmp_path: Path) -> None:
    found = plan(tmp_path)
    splits = [(e.layout.tensor_parallel, e.layout.pipeline_parallel, e.layout.data_parallel) for _, e in found.layouts]
    assert sorted(splits) == [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    for _, chosen in found.layouts:
        same = [
            e
            for e in ranked()
            if (e.layout.tensor_parallel, e.layout.pipeline_parallel, e.layout.context_parallel)
            == (chosen.layout.tensor_parallel, chosen.layout.pipeline_parallel, 1)
        ]
        assert chosen.layout == same[0].layout
    assert {one.layout.context_parallel for one in found.refused} == {2}
    assert {one.reason for one in found.refused} == {"context_parallel 2: the reference trainer has 1 only"}
    assert [launch.title for launch in found.launches] == [title for title, _ in found.layouts]


def test_a_ranking_of_which_nothing_can_run_is_told(tmp_path: Path) -> None:
    planner = Planner(engine=ENGINE, pick=pick(), folder=tmp_path, record=RowsFile(tmp_path / "own.csv"))
    only = [e for e in ranked() if e.layout.context_parallel == 2]
    with pytest.raises(UnsupportedError, match=r"nothing to launch: engine reference can run none of the \d+ best"):
        planner.plan(only)


def test_repeats_go_round_the_layouts(tmp_path: Path) -> None:
    found = plan(tmp_path, repeats=2, top=2)
    titles = [title for title, _ in found.layouts]
    assert [(one.title, one.repeat) for one in found.launches] == [(t, r) for r in (1, 2) for t in titles]
    assert len({one.folder for one in found.launches}) == 4


def test_launches_are_recorded_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = launch(tmp_path, {}, monkeypatch, repeats=2)
    assert found.all_well
    rows = RowsFile(tmp_path / "own.csv").rows()
    assert [row.row for row in rows] == list(range(1, 7))
    assert {(row.outcome, row.memory_mib, row.memory_kind, row.step_samples) for row in rows} == {
        ("ok", 61.0, "allocated", 3)
    }
    # A step takes as long as its slowest rank: 0.6, 0.61 and 0.62 s on rank 1.
    assert {(row.step_time_s, row.step_min_s, row.step_max_s, row.step_iqr_s) for row in rows} == {
        (0.61, 0.6, 0.62, 0.01)
    }
    assert rows[0].source_ref == f"run/{found.plan.launches[0].folder.name}"
    assert rows[0].source_notes == "backend cpu; a processor; torch none"
    for one in found.comparisons:
        assert one.memory is not None
        assert one.memory.measured == 61 * 2**20
        assert one.memory.predicted == max(stage.allocated_bytes for stage in one.estimate.memory.stages)
        assert one.memory.error == one.memory.predicted / one.memory.measured - 1
        assert one.step is not None
        assert one.step.measured == 0.61
        assert one.step.predicted == one.estimate.throughput.step_seconds
        assert [(rank.rank, rank.measured) for rank in one.ranks] == [(0, 60 * 2**20), (1, 61 * 2**20)]
        stages = one.estimate.memory.stages
        assert [rank.predicted for rank in one.ranks] == [stages[rank.stage].allocated_bytes for rank in one.ranks]


@pytest.mark.parametrize(
    ("does", "outcome", "says"),
    [
        ("hang", "error", "did not end within the time limit"),
        ("crash", "error", "RuntimeError: a rank broke"),
        ("half", "error", "the result of rank 1 cannot be read"),
        ("nothing", "error", "rank 1 left no result"),
        ("oom", "oom", "out-of-memory: OutOfMemoryError: tried to allocate 2 GiB"),
        ("killed", "error", "killed, perhaps out of the host's memory"),
    ],
)
def test_one_that_fails_stops_no_other(
    does: str, outcome: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ARRIVE_SECONDS", 0.5)
    monkeypatch.setenv("FAKE_RANKS", json.dumps({"tp1pp1dp2": does}))
    planned = plan(tmp_path, top=2, repeats=2, limit_seconds=PATIENCE_SECONDS)
    if does == "hang":  # the limit is that of the launch that hangs alone, so that no load makes another late
        launches = (
            replace(one, limit_seconds=1.0) if one.estimate.layout.data_parallel == 2 else one
            for one in planned.launches
        )
        planned = replace(planned, launches=tuple(launches))
    found = run(planned, Launcher(), ENGINE, RowsFile(tmp_path / "own.csv"), list[str]().append)
    rows = RowsFile(tmp_path / "own.csv").rows()
    assert sorted(row.outcome for row in rows) == sorted([outcome, "ok", "ok"])
    [failed] = [row for row in rows if row.outcome != "ok"]
    assert says in failed.error
    assert (failed.tensor_parallel, failed.pipeline_parallel) == (1, 1)
    assert not found.all_well
    one = by_split(found)["tp1pp1"]
    assert (one.ran, one.memory, one.step, len(one.failures)) == ((), None, None, 1)
    assert one.contradiction == ("predicted to fit, ran out of memory" if outcome == "oom" else "")
    assert processes_with(str(tmp_path)) == {}


def test_a_layout_that_was_said_not_to_fit_and_ran_contradicts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = launch(tmp_path, {}, monkeypatch, top=1).comparisons[0]
    verdicts = {v: replace(one, estimate=replace(one.estimate, verdict=v)) for v in ("fits", "starved", "does_not_fit")}
    said = {verdict: other.contradiction for verdict, other in verdicts.items()}
    assert said == {"fits": "", "starved": "", "does_not_fit": "predicted not to fit, ran"}


def test_resumed_what_was_measured_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(tmp_path, {"tp2pp1dp1": "oom"}, monkeypatch)
    again = launch(tmp_path, {}, monkeypatch, resume=True)
    assert (again.plan.launches, again.plan.failed_before) == ((), 1)
    assert [len(one.rows) for one in again.comparisons] == [1, 1, 1]
    assert not again.all_well
    assert by_split(again)["tp1pp2"].memory is not None
    retried = launch(tmp_path, {}, monkeypatch, resume=True, retry_failed=True)
    assert [one.pick.layout.tensor_parallel for one in retried.plan.launches] == [2]
    assert retried.plan.failed_before == 0
    assert retried.all_well
    more = launch(tmp_path, {}, monkeypatch, resume=True, retry_failed=True, repeats=2)
    assert [one.repeat for one in more.plan.launches] == [2, 2, 2]
    assert len(RowsFile(tmp_path / "own.csv").rows()) == 7


INTERRUPTED = """
import json, sys
from pathlib import Path
from simulator.lab.runner.campaign import run
from simulator.lab.runner.engine import Launcher
from simulator.lab.runner.campaign import RowsFile
from tests.runner.test_campaign import ENGINE, plan
from tests.runner.trees import as_at_a_terminal
as_at_a_terminal()
folder = Path(sys.argv[1])
found = run(plan(folder), Launcher(), ENGINE, RowsFile(folder / "own.csv"), list[str]().append)
[stopped] = found.comparisons[1].launched
outcome = [stopped.outcome.kind, stopped.outcome.error, list(stopped.outcome.tail)]
rows = [len(one.rows) for one in found.comparisons]
print(json.dumps([found.interrupted_by, rows, outcome, found.all_well]))
"""


def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    first, second = (e.layout for _, e in plan(tmp_path, top=2).layouts)
    assert first != second
    name = f"tp{second.tensor_parallel}pp{second.pipeline_parallel}dp{second.data_parallel}"
    environment = with_package({**os.environ, "FAKE_RANKS": json.dumps({name: "hang"})})
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as campaign:
        wait_for(f"{tmp_path}/run/2-", 3)
        campaign.send_signal(signal.SIGTERM)
        told, _ = campaign.communicate(timeout=PATIENCE_SECONDS)
    assert json.loads(told) == [signal.SIGTERM, [1, 0, 0], ["interrupted", "", []], False]
    assert [row.outcome for row in RowsFile(tmp_path / "own.csv").rows()] == ["ok"]
    assert processes_with(str(tmp_path)) == {}


class BrokenLauncher(Launcher):
    def run(self, launch: Launch) -> Ended:
        raise OSError(f"no more processes for {launch.title}")


def test_a_launcher_that_fails_is_a_failed_launch(tmp_path: Path) -> None:
    found = run(plan(tmp_path), BrokenLauncher(), ENGINE, RowsFile(tmp_path / "own.csv"), list[str]().append)
    assert [one.failures[0].split(" for")[0] for one in found.comparisons] == ["failed: no more processes"] * 3


class FullDisk(RowsFile):
    """Refuses its first row."""

    def add(self, row: MeasuredRow) -> MeasuredRow:
        if not self.path.exists() and not self.path.with_suffix(".full").exists():
            self.path.with_suffix(".full").touch()
            raise InputError(f"--output {self.path}: cannot be written: full")
        return RowsFile.add(self, row)


def test_rows_that_cannot_be_written_are_compared_and_tried_again(tmp_path: Path) -> None:
    record = FullDisk(tmp_path / "own.csv")
    one = run(plan(tmp_path, top=1), Launcher(), ENGINE, record, list[str]().append)
    assert one.unwritten == f"--output {record.path}: cannot be written: full; rows left out: 1"
    assert [len(found.rows) for found in one.comparisons] == [1]
    record.path.with_suffix(".full").unlink()
    two = run(plan(tmp_path / "two", top=2), Launcher(), ENGINE, record, list[str]().append)
    assert two.unwritten == ""
    assert [row.row for row in record.rows()] == [1, 2]


class SignalledEngine(FakeEngine):
    """Is interrupted while it reads what a launch left."""

    def outcome(self, pick: Pick, folder: Path, ended: Ended) -> LaunchOutcome:
        signal.raise_signal(signal.SIGTERM)
        return FakeEngine.outcome(self, pick, folder, ended)


def test_a_launch_that_has_ended_is_kept_when_a_signal_comes(tmp_path: Path) -> None:
    found = run(plan(tmp_path), Launcher(), SignalledEngine(), RowsFile(tmp_path / "own.csv"), list[str]().append)
    assert found.interrupted_by == signal.SIGTERM
    assert [row.outcome for row in RowsFile(tmp_path / "own.csv").rows()] == ["ok"]
    assert [len(one.rows) for one in found.comparisons] == [1, 0, 0]


def test_folders_that_cannot_be_made_are_told(tmp_path: Path) -> None:
    work = tmp_path / "file" / "work"
    (tmp_path / "file").touch()
    for make in (run_folder, lambda folder: shared_folder(folder, 0), plan):
        with pytest.raises(InputError, match=rf"--work-folder {work}.*: cannot be written: "):
            make(work)


def test_what_is_told_names_the_launch_and_its_end(tmp_path: Path) -> None:
    lines: list[str] = []
    run(plan(tmp_path, top=1), Launcher(), ENGINE, RowsFile(tmp_path / "own.csv"), lines.append)
    assert lines[0].startswith("launch 1 of 1: 1-tiny-tp")
    assert lines[1].startswith("ok after ")


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert [run_folder(tmp_path).name for _ in range(3)] == ["run-1", "run-2", "run-3"]
    (tmp_path / "run-x").mkdir()
    (tmp_path / "run-2").rmdir()
    assert run_folder(tmp_path).name == "run-4"
