"""What a notebook shows of an answer: one line, a table, a data frame."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import InputError
from simulator.tabular import Tabular

RECIPE = str(Path(__file__).parents[1] / "examples" / "recipes" / "llama3-8b-megatron.sh")


@cache
def answers() -> dict[str, Tabular]:
    question = {"model": "llama3.2-1b", "hardware": "h20"}
    return {
        "Estimate": simulator.estimate(model="llama3.2-1b", hardware="h20", tp=2, pp=2),
        "Ranking": simulator.rank(model="llama3.2-1b", hardware="h20"),
        "Explanation": simulator.explain(model="llama3.1-8b", hardware="h20"),
        "Checks": simulator.check(RECIPE, hardware="h20"),
        "Comparison": simulator.compare({**question, "tp": 2}, {**question, "tp": 4}),
        "Plan": simulator.plan(model=question["model"], train_tokens=10**9, offers=["h20:1,2@1"], deadline_days=1.0),
    }


@pytest.mark.parametrize("kind", ["Estimate", "Ranking", "Plan"])
def test_an_answer_is_one_short_line(kind: str) -> None:
    line = repr(answers()[kind])
    assert line.startswith(f"<{kind} llama3.2-1b")
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("Estimate", ("GiB usable", "Memory by stage, GiB", "device")),
        ("Ranking", ("tokens/s", "MFU", "GiB")),
        ("Plan", ("Book: ", "days", "cost")),
        ("Explanation", ("Why", "% of usable")),
        ("Checks", ("1 recipe: ", "verdict")),
        ("Comparison", ("B less A", "Time of one step")),
    ],
)
def test_a_notebook_shows_the_terminal_s_table(kind: str, says: tuple[str, ...]) -> None:
    shown = answers()[kind]._repr_html_()
    assert all(text in shown for text in says)
    assert shown.count("<table>") == shown.count("</table>") >= 1
    assert shown.count("<tr>") == shown.count("</tr>")
    assert not re.search(r"[a-z]_bytes|\d{9}", shown)


def test_bars_are_shares_of_the_fastest_and_of_what_is_usable() -> None:
    ranking = simulator.rank(model="llama3.2-1b", hardware="h20", top=3)
    shares = [float(end) for end in re.findall(r"#56b4e955 (\d+)%", ranking._repr_html_())]
    speeds = [e.throughput.tokens_per_second_per_device for e in ranking.estimates]
    needs = [e.memory.device_bytes / e.memory.capacity_bytes for e in ranking.estimates]
    expected = [share for pair in zip((s / speeds[0] for s in speeds), needs, strict=True) for share in pair]
    assert shares == pytest.approx([100 * share for share in expected], abs=0.51)


@pytest.mark.parametrize("kind", ["Estimate", "Ranking", "Plan", "Explanation", "Checks", "Comparison"])
def test_an_answer_has_a_figure(kind: str) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figure = answers()[kind].plot()
    assert isinstance(figure, graph_objects.Figure)
    assert len(figure.data)
    with pytest.raises(InputError, match="figure 'speed'"):
        answers()[kind].plot("speed")


def test_memory_over_the_step_peaks_at_the_estimate() -> None:
    pytest.importorskip("plotly")
    estimate = simulator.estimate(model="llama3.2-1b", hardware="h20", tp=2, pp=2)
    peaks = [max(line.y) for line in estimate.plot("memory over the step").data]
    assert peaks == pytest.approx([stage.device_bytes / 2**30 for stage in estimate.memory.stages], abs=0.001)


@pytest.mark.parametrize("kind", ["Estimate", "Ranking", "Plan"])
def test_a_frame_has_the_rows(kind: str) -> None:
    pytest.importorskip("pandas")
    answer = answers()[kind]
    frame, rows = answer.to_frame(), answer.rows()
    assert list(frame.columns) == list(rows[0])
    assert len(frame) == len(rows)
    name = "nodes" if kind == "Plan" else "device_bytes"
    assert list(frame[name]) == [row[name] for row in rows]


def test_a_comparison_of_two_questions_is_rows_too() -> None:
    first = {"model": "llama3.2-1b", "hardware": "h20", "tp": 2}
    found = simulator.compare(first, {**first, "tp": 4, "recompute": "full"})
    for of, total in (("memory_bytes", "device_bytes"), ("step_seconds", "step_seconds")):
        parts = [row["difference"] for row in found.rows() if row["of"] == of]
        ends = [getattr(e.memory if of == "memory_bytes" else e.throughput, total) for e in (found.first, found.second)]
        assert sum(parts) == pytest.approx(ends[1] - ends[0])
    assert {one.name for one in found.inputs} == {"tensor_parallel", "recompute"}
    assert repr(found).startswith("<Comparison llama3.2-1b: tensor_parallel, recompute differs, memory ")


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


def test_the_example_runs_from_top_to_bottom_and_every_answer_is_shown() -> None:
    pytest.importorskip("pandas")
    book = json.loads((Path(__file__).parents[1] / "examples" / "booking.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    for cell in cells:
        *lines, last = ast.parse(cell).body
        assert isinstance(last, ast.Expr)
        exec(compile(ast.Module(lines, []), "booking.ipynb", "exec"), names)  # noqa: S102  the project's own cells
        shown = eval(compile(ast.Expression(last.value), "booking.ipynb", "eval"), names)  # noqa: S307
        html = shown._repr_html_()
        assert "<table" in html or "plotly" in html
        assert not any(cell.get("outputs") for cell in book["cells"])  # what it prints is the reader's own version's


def test_pandas_is_imported_for_a_frame_only() -> None:
    code = (
        "import simulator, sys; simulator.rank(model='llama3.2-1b', hardware='h20'); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
