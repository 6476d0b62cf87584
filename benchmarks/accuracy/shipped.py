"""Fit anew and write what ships: `python -m benchmarks.accuracy.shipped`.

Written are the coefficients of the families and of the user's own cluster (`calibration/*.yaml`), and the figures that
must not get worse (`calibration/accuracy.json`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from benchmarks.accuracy.own import CLUSTER, OWN, OWN_FAMILY, own_fit
from benchmarks.accuracy.record import RECORD, figures, recorded
from benchmarks.accuracy.rows import ROOT, fitted_sources, judgement, samples
from benchmarks.ascend_runs import FOLDER as ASCEND_RUNS
from benchmarks.ascend_runs import runs, summed_up
from simulator.evidence.calibration.publish import published, unseen_part
from simulator.evidence.calibration.store import Calibration, calibration_text, shipped_calibration
from simulator.show.report.as_json import dumps

FOLDER: Final = ROOT / "calibration"


def calibrations() -> Iterator[tuple[str, Calibration]]:
    """Name of the file and calibration of every family, and of the user's own cluster."""
    judged = fitted_sources()
    for one in published(judged):
        yield one.family, one
    without = {one.kind: unseen_part(one, OWN_FAMILY, {OWN}) for one in judged}
    yield CLUSTER, own_fit(without, samples()).calibration()


def write(outside: Mapping[str, Mapping[str, float]]) -> None:
    """Write the files; `outside` are parts of the record that were found in files outside the project."""
    for name, calibration in calibrations():
        (FOLDER / f"{name}.yaml").write_text(calibration_text(calibration), encoding="utf-8")
    shipped_calibration.cache_clear()  # what follows starts from what was just written
    judgement.cache_clear()
    runs_found = dict(summed_up(runs())) if ASCEND_RUNS.exists() else recorded("ascend_runs")
    parts = {"ascend_runs": runs_found, "configurations": recorded("configurations"), **outside}
    RECORD.write_text(dumps({"figures": figures(judgement()), **parts}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write({})
