"""Traces on the page of measuring: its figures are near the traced ones, and cover what it says."""

from collections.abc import Mapping

import pytest

from tests.docs.pages import page
from tests.docs.traced import predicted_mib, rows

PAGE = " ".join(page("measure.md").split())
ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row.values()))
def test_a_prediction_is_within_one_percent_of_the_trace(row: Mapping[str, str]) -> None:
    assert predicted_mib(row) == pytest.approx(float(row["traced_mib"]), rel=0.01)


def test_the_table_covers_what_the_page_says() -> None:
    assert f"[traced.csv](traced.csv) holds {len(ROWS)} stages" in PAGE
    assert {row["tensor_parallel"] for row in ROWS} == {"1", "4", "8"}
    assert {row["zero_stage"] for row in ROWS} == {"2", "3"}
    assert {row["recompute"] for row in ROWS} == {"none", "selective", "full"}
    assert {row["stage"] for row in ROWS if row["pipeline_parallel"] == "4"} == {"0", "1", "3"}
    worst = max(abs(float(row["difference_percent"])) for row in ROWS)
    assert f"the largest difference is {worst:.2f} %" in PAGE
