"""What a change made better and worse: sources of rows that both revisions judged, and which of them need a reason."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.accuracy import against
from benchmarks.accuracy.against import compared, judged_at
from benchmarks.accuracy.judge import Residual
from benchmarks.accuracy.rows import Judgement


def row(source: str, number: int, error: float) -> Any:
    residual = Residual(float(np.log1p(error)), 0.05)
    return SimpleNamespace(kind="time", key=f"{source}:{number}", source=source, source_out=residual)


def judgement(*rows: Any) -> Judgement:
    return cast("Judgement", SimpleNamespace(rows=rows))


@pytest.mark.parametrize(
    ("rows", "before", "now", "verdict"),
    [
        (3, 0.05, 0.08, "WORSE"),
        (3, 0.05, 0.06, "worse"),
        (2, 0.05, 0.08, "worse"),
        (3, -0.05, 0.05, "same"),
        (3, 0.08, 0.05, "better"),
    ],
)
def test_a_source_of_three_rows_that_is_two_points_worse_needs_a_reason(
    rows: int, before: float, now: float, verdict: str
) -> None:
    mine = [row("mine", number, now) for number in range(rows)]
    (source,) = compared(judgement(*mine), {("time", each.key): before for each in mine})
    assert (source.rows, source.verdict) == (rows, verdict)
    assert (source.before, source.now) == pytest.approx((abs(before), abs(now)))


def test_rows_of_one_side_only_count_nowhere() -> None:
    (source,) = compared(
        judgement(row("mine", 1, 0.1), row("new", 1, 0.5)), {("time", "mine:1"): 0.1, ("time", "old:1"): 9.0}
    )
    assert (source.name, source.rows) == ("mine", 1)


@pytest.mark.parametrize(("module", "asks"), [("benchmarks/accuracy.py", "-c"), ("benchmarks/accuracy/rows.py", "-m")])
def test_a_revision_whose_package_judged_rows_is_asked_in_its_own_words(
    module: str, asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], _folder: Path, _revision: str) -> str:
        commands.append(command)
        if command[2] == "add":
            file = Path(command[-2]) / module
            file.parent.mkdir(parents=True)
            file.touch()
        return '{"rows": [{"kind": "time", "key": "mine:1", "source_out": {"error": 0.0, "deviation": 0.1}}]}'

    monkeypatch.setattr(against, "_run", run)
    assert judged_at("abc") == {("time", "mine:1"): 0.0}
    assert [command[1] for command in commands] == ["worktree", asks, "worktree"]
