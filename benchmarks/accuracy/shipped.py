"""Fit anew and write what ships: `python -m benchmarks.accuracy.shipped`.

Written are the coefficients of the families and of the user's own cluster (`calibration/*.yaml`), and the figures that
must not get worse (`calibration/accuracy.json`), and the errors of every row (`calibration/judged.csv`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.accuracy.judge import SourcesJudged
from benchmarks.accuracy.own import CLUSTER, OWN, OWN_FAMILY, own_fit
from benchmarks.accuracy.publish import published, unseen_part
from benchmarks.accuracy.record import RECORD, figures, recorded
from benchmarks.accuracy.rows import ROOT, fitted_sources, judgement, samples
from benchmarks.ascend_runs import FOLDER as ASCEND_RUNS
from benchmarks.ascend_runs import runs, summed_up
from simulator.evidence.calibration.own import COLUMNS
from simulator.evidence.calibration.store import Calibration, calibration_text, shipped_calibration
from simulator.show.report.text import dumps

FOLDER: Final = ROOT / "calibration"
JUDGED: Final = FOLDER / "judged.csv"


def calibrations() -> Iterator[tuple[str, Calibration]]:
    """Name of the file and calibration of every family, and of the user's own cluster."""
    judged = fitted_sources()
    for one in published(judged):
        yield one.family, one
    without = {one.kind: unseen_part(one, OWN_FAMILY, {OWN}) for one in judged}
    yield CLUSTER, own_fit(without, samples()).calibration()


def judged_text(judged: Sequence[SourcesJudged]) -> str:
    """Every judged row as CSV, which `simulate accuracy` shows."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for sources in judged:
        for row in sources.rows:
            family = row.sample.scenario.hardware.family
            measured = f"{row.sample.figure(sources.kind) or 0.0:.6g}"
            errors = (f"{round(value, 4):g}" for value in (*row.errors.values(), row.half_width))
            writer.writerow((sources.kind, row.sample.key, family, row.sort, measured, *errors))
    return stream.getvalue()


def write(outside: Mapping[str, Mapping[str, float]]) -> None:
    """Write the files; `outside` are parts of the record that were found in files outside the project."""
    for name, calibration in calibrations():
        (FOLDER / f"{name}.yaml").write_text(calibration_text(calibration), encoding="utf-8")
    shipped_calibration.cache_clear()  # what follows starts from what was just written
    judgement.cache_clear()
    JUDGED.write_text(judged_text(fitted_sources()), encoding="utf-8")
    runs_found = dict(summed_up(runs())) if ASCEND_RUNS.exists() else recorded("ascend_runs")
    parts = {"ascend_runs": runs_found, "configurations": recorded("configurations"), **outside}
    RECORD.write_text(dumps({"figures": figures(judgement()), **parts}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write({})
