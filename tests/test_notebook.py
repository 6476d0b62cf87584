"""What a notebook shows of an answer: one line, a table, a data frame."""

import subprocess
import sys
from functools import cache

import pytest

import simulator
from simulator.tabular import Tabular


@cache
def answers() -> dict[str, Tabular]:
    question = {"model": "llama3.2-1b", "hardware": "h20"}
    return {
        "Estimate": simulator.estimate(model="llama3.2-1b", hardware="h20", tp=2, pp=2),
        "Ranking": simulator.rank(model="llama3.2-1b", hardware="h20"),
        "Plan": simulator.plan(model=question["model"], train_tokens=10**9, offers=["h20:1,2@1"], deadline_days=1.0),
    }


@pytest.mark.parametrize("kind", ["Estimate", "Ranking", "Plan"])
def test_an_answer_is_one_short_line(kind: str) -> None:
    line = repr(answers()[kind])
    assert line.startswith(f"<{kind} llama3.2-1b")
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize("kind", ["Estimate", "Ranking", "Plan"])
def test_a_notebook_shows_its_rows(kind: str) -> None:
    answer = answers()[kind]
    shown = answer._repr_html_()
    assert shown.count("<tr>") == len(answer.rows()) + 1
    assert all(f"<th>{name}</th>" in shown for name in answer.rows()[0])


@pytest.mark.parametrize("kind", ["Estimate", "Ranking", "Plan"])
def test_a_frame_has_the_rows(kind: str) -> None:
    pytest.importorskip("pandas")
    answer = answers()[kind]
    frame, rows = answer.to_frame(), answer.rows()
    assert list(frame.columns) == list(rows[0])
    assert len(frame) == len(rows)
    name = "nodes" if kind == "Plan" else "device_bytes"
    assert list(frame[name]) == [row[name] for row in rows]


def test_rows_are_the_figures() -> None:
    estimate = simulator.estimate(model="llama3.2-1b", hardware="h20", tp=2, pp=2)
    for row, stage in zip(estimate.rows(), estimate.memory.stages, strict=True):
        parts = sum(row[f"{name}_bytes"] for name in stage.parts_bytes)
        assert parts == pytest.approx(row["device_bytes"])


def test_what_a_user_names_is_escaped() -> None:
    class Named(Tabular):
        def __repr__(self) -> str:
            return "<b>"

        def rows(self) -> list[dict[str, str]]:
            return [{"<i>": "<script>"}]

    assert "<script>" not in Named()._repr_html_()
    assert "<b>" not in Named()._repr_html_()


def test_pandas_is_imported_for_a_frame_only() -> None:
    code = (
        "import simulator, sys; simulator.rank(model='llama3.2-1b', hardware='h20'); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
