"""The accuracy report of the shipped rows with targets and rules of thumb: `python -m benchmarks.own_table`."""

from __future__ import annotations

from benchmarks.machine import say
from benchmarks.targets import held
from simulator.evidence.calibration.assessment import Assessment, assess
from simulator.evidence.measurements.rows import read_rows, shipped_tables
from simulator.show.report.accuracy import accuracy_text


def assessed() -> Assessment:
    """The report of the shipped rows, held to the targets."""
    return held(assess([row for path in shipped_tables() for row in read_rows(path)]))


if __name__ == "__main__":
    say(accuracy_text(assessed(), "markdown"))
