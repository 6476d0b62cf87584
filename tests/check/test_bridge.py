"""Megatron-Bridge's performance recipes get verdicts on their devices, and runs of them are said to fit.

Reads a checkout that SIMULATE_BRIDGE names, and published rows of the folder that SIMULATE_SHARED names.
"""

import os
from pathlib import Path

import pytest

from benchmarks.bridge_recipes import judged
from benchmarks.bridge_rows import FILES, answer, published_rows

CHECKOUT = Path(os.environ.get("SIMULATE_BRIDGE") or "absent")


@pytest.mark.skipif(not CHECKOUT.is_dir(), reason="needs a checkout of Megatron-Bridge v0.6.0 (SIMULATE_BRIDGE)")
def test_fifty_files_of_performance_recipes_get_a_verdict() -> None:
    found = list(judged(CHECKOUT))
    assert len(found) >= 59
    assert sum(file.is_firm for file in found) >= 50, [file.name for file in found if not file.is_firm]


NO_ROWS = not all(file.is_file() for file in FILES)


@pytest.mark.skipif(NO_ROWS, reason="needs NVIDIA's published rows (SIMULATE_SHARED)")
def test_every_published_row_is_asked_where_all_are() -> None:
    rows = list(published_rows(every=True))
    assert len(rows) == 145
    assert {row.question.get("lora_rank") for row in rows if " LoRA " in row.label} == {16}
    assert sum("zero_stage" in row.question for row in rows) == 8


@pytest.mark.skipif(NO_ROWS, reason="needs NVIDIA's published rows (SIMULATE_SHARED)")
def test_no_published_run_of_its_containers_recipe_is_said_not_to_fit() -> None:
    rows = list(published_rows())
    assert len(rows) == 72
    # Three rows of 26.02.01 print sizes that no recipe of that container has.
    others = [row for row in rows if not row.is_recipe]
    assert {row.question["stack"] for row in others} == {"megatron-bridge@26.02.01"}
    assert len(others) == 3
    dense = [row for row in rows if row.is_recipe and row.question["model"] == "llama3-70b"]
    found = [answer(row, row.sizes, lambda scenario: scenario) for row in dense]
    assert {each.verdict for each in found} == {"fits"}
    assert max(abs(each.error) for each in found) < 0.15
