"""Runs that ran, asked without their switches: answers do not say no to them, decide, and their ranges hold."""

from statistics import fmean
from typing import Final

from benchmarks.accuracy.plain import PlainRow
from tests.calibration.pages import asked_plainly

FEWEST: Final = 16
"""Rows of a class that is judged by itself."""


def _of(name: str) -> list[PlainRow]:
    return [row for row in asked_plainly() if name in row.classes]


def test_runs_that_ran_are_rarely_called_unlikely() -> None:
    rows = asked_plainly()
    assert len(rows) > 400
    for limit, most in ((0.05, 0.02), (0.005, 0.007)):
        assert fmean(row.probability < limit for row in rows) <= most
    assert fmean(row.verdict == "does_not_fit" for row in rows) <= 0.02


def test_answers_decide() -> None:
    assert fmean(row.verdict != "depends" for row in asked_plainly()) >= 0.55
    for name in ("dense", "mixture", "ampere", "hopper", "megatron", "torch"):
        assert fmean(row.verdict != "depends" for row in _of(name)) >= 0.4, name


def test_ranges_hold_of_what_is_open() -> None:
    for kind, inside, widest in (("time", 0.87, 0.31), ("memory", 0.86, 0.38)):
        rows = [row for row in asked_plainly() if kind in row.plain]
        assert fmean(row.inside[kind] for row in rows) >= inside
        assert fmean(row.half_widths[kind] for row in rows) <= widest
    for name in {each for row in asked_plainly() for each in row.classes}:
        rows = [row for row in _of(name) if "time" in row.plain]
        if len(rows) >= FEWEST:
            assert fmean(row.inside["time"] for row in rows) >= 0.82, name
