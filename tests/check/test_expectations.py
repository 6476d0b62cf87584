"""Verdicts on public recipes against what vendors, measured runs and plain formulas say of them."""

from collections import Counter

import pytest

from simulator.answers.gates import OUTCOMES
from tests.check.expectations import SHARED, Expectation, count_lines, expectations, range_table
from tests.project.tree import ROOT

ROWS = expectations()
CLAIMED = {"hf-trainer", "megatron-lm", "megatron-forks", "megatron-tests", "mindspeed", "nemo", "torchtitan"} | {
    *("paddlenlp", "paddleformers", "primus", "swift", "bigscience", "flagscale", "llamafactory"),
}


def params() -> list[object]:
    """A row each; one that waits for something must fail until it is there."""
    found: list[object] = []
    for row in ROWS:
        waits = [pytest.mark.xfail(strict=True, reason=row.pending)] if row.pending and row.file.is_file() else []
        found.append(pytest.param(row, marks=waits, id=f"{row.recipe.rpartition('files/')[2]} {row.options}"))
    return found


@pytest.mark.parametrize("row", params())
def test_a_recipe_comes_to_what_is_known_of_it(row: Expectation) -> None:
    if not row.file.is_file():
        pytest.skip(f"needs the corpus in {SHARED.name}/ beside the checkout (SIMULATE_SHARED)")
    assert row.holds, "run `python -m tests.check.expectations` for the counts"


def test_the_table_is_sound() -> None:
    assert len(ROWS) >= 150
    assert len({(row.recipe, row.options) for row in ROWS}) == len(ROWS)
    assert {row.family for row in ROWS} >= CLAIMED
    for row in ROWS:
        assert set(row.expected.split("|")) <= set(OUTCOMES), row
        assert row.evidence.partition(":")[0], row
        assert "\n" not in row.evidence
    assert list(ROWS) == sorted(ROWS, key=lambda row: (row.family, row.recipe, row.options))


def test_every_measured_run_on_64_gb_is_there() -> None:
    """They ran on devices of 64 GB: a verdict that says otherwise is wrong."""
    measured = [row for row in ROWS if row.evidence.startswith("measured") and "ascend-ci" in row.recipe]
    assert len(measured) == 56
    assert all(set(row.expected.split("|")) == {"fits", "starved"} for row in measured)


def test_the_counts_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    present = [row for row in ROWS if row.file.is_file()]
    if not present:
        pytest.skip("needs the corpus beside the checkout (SIMULATE_SHARED)")
    lines = list(count_lines(present))
    with capsys.disabled():
        print("\n" + "\n".join(lines))  # noqa: T201  what the run is told
    waiting = Counter(row.pending for row in present if row.pending)
    with capsys.disabled():
        print("\n".join(f"pending {count}: {what}" for what, count in waiting.most_common()))  # noqa: T201
    assert lines
    # Firm verdicts that ranges cost, of launches that are judged: as docs/check.md has them.
    page = (ROOT / "docs" / "check.md").read_text("utf-8").partition("<!-- ranges:start -->")[2].partition("<!--")[0]
    quoted, counted = (_last_figures(table) for table in (page, range_table(present)))
    assert counted == pytest.approx(quoted, abs=3), "python -m tests.check.expectations prints the table"
    assert counted[-1] <= 13


def _last_figures(table: str) -> list[int]:
    return [int(cell) for cell in table.strip().splitlines()[-1].split("|")[2:-1]]
