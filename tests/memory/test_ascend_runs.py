"""MindSpeed-LLM's own runs against the bytes that every rank had allocated: targets, and what is recorded of them."""

import pytest

from benchmarks.accuracy.record import recorded
from benchmarks.ascend_runs import FOLDER, runs, summed_up, told
from tests.calibration.pages import ANEW_HINT

LEAST_PRICED, LEAST_WITHIN_1, LEAST_WITHIN_3, MOST_PEAK_ERROR = 48, 0.91, 1.0, 0.053


def test_state_and_peak_of_the_scripts_that_ran() -> None:
    if not FOLDER.exists():
        pytest.skip("needs measured/public/ascend-ci of the shared folder (SIMULATE_SHARED)")
    found = runs()
    now = summed_up(found)
    print("\n".join(map(told, found)))  # noqa: T201  for a reader of the test
    assert now["not_fit_or_refused"] == 0
    assert now["priced"] >= LEAST_PRICED
    assert now["state_within_1"] >= LEAST_WITHIN_1
    assert now["state_within_3"] >= LEAST_WITHIN_3
    assert now["peak_mean"] <= MOST_PEAK_ERROR
    assert now == pytest.approx(recorded("ascend_runs"), rel=0.01), ANEW_HINT
