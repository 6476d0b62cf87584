"""Shipped measured runs with the errors of their predictions, as the fit of all sources recorded them. Fits nothing.

`python -m tools.regenerate coefficients` writes them anew with the coefficients.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np

from simulator.evidence.measurements.row import MeasuredRow
from simulator.evidence.measurements.rows import public_tables, read_rows, shipped_tables
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.specs.catalogue import data_folder

PLATFORMS: Final = {
    "hopper": "H-class",
    "ampere": "A100",
    "ascend-910": "Ascend",
    "blackwell": "Blackwell",
    "cdna3": "MI300",
}
"""Names of the device families in reports."""
LEFT_OUT: Final = ("priors", "fitted", "row_left_out", "source_left_out", "organisation_left_out")
"""Fits that predicted a row: none, to all rows, to all but itself, but its source, or but its organisation's."""
COLUMNS: Final = ("kind", "row", "family", "class", "measured", *LEFT_OUT, "half_width")
"""Header of `calibration/judged.csv`; errors are predicted over measured less one."""


class WithErrors(Protocol):
    """Errors of one row's predictions."""

    @property
    def source(self) -> str:
        """Table of the row."""

    @property
    def errors(self) -> Mapping[str, float]:
        """Predicted over measured less one, by a word of `LEFT_OUT`."""

    @property
    def half_width(self) -> float:
        """Half of the 90 % range with its source left out, in the logarithm."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """Figure of a shipped measured run with the errors of its predictions."""

    kind: CoefficientKind
    row: MeasuredRow
    family: str
    """Device family."""
    sort: str
    """`dense` or `moe`; of memory the kind of figure."""
    measured: float
    """TFLOP/s per device, or bytes."""
    errors: Mapping[str, float]
    """Predicted over measured less one, by a word of `LEFT_OUT`."""
    half_width: float
    """Half of the 90 % range with its source left out, in the logarithm."""

    @property
    def source(self) -> str:
        """Table of the row."""
        return self.row.table

    @property
    def platform(self) -> str:
        """Class of the device."""
        return PLATFORMS.get(self.family, self.family)


@lru_cache(maxsize=1)
def judged_runs() -> tuple[JudgedRun, ...]:
    """Return every figure of a shipped row that counts: speed, then memory."""
    rows = {row.key: row for path in (*shipped_tables(), *public_tables()) for row in read_rows(path)}
    with (data_folder("calibration") / "judged.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            JudgedRun(
                kind="time" if cells["kind"] == "time" else "memory",
                row=rows[cells["row"]],
                family=cells["family"],
                sort=cells["class"],
                measured=float(cells["measured"]),
                errors={name: float(cells[name]) for name in LEFT_OUT},
                half_width=float(cells["half_width"]),
            )
            for cells in csv.DictReader(file)
        )


def is_inside(row: WithErrors) -> bool:
    """Tell whether the measured figure lies in the 90 % range that the row gets with its source left out."""
    return abs(math.log1p(row.errors["source_left_out"])) <= row.half_width


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over a group of judged rows; errors are mean absolute relative errors."""

    rows: int
    sources: int
    uncalibrated: float
    """Error with the priors."""
    fitted: float
    known: float
    """Error with the other rows of the source known."""
    source_out: float
    over_sources: float
    """Error with the source left out, as the mean over sources of each one's mean."""
    bias: float
    """Mean error with the source left out, predicted over measured less one."""
    organisation_out: float
    coverage: float
    """Share inside the 90 % interval with the source left out."""
    half_width: float
    """Mean half-width of that interval."""


def summary(rows: Iterable[WithErrors]) -> Summary:
    """Return the means over rows, at least one."""
    rows = list(rows)
    errors = {name: np.array([row.errors[name] for row in rows]) for name in LEFT_OUT}
    missed = {name: float(np.mean(np.abs(values))) for name, values in errors.items()}
    by_source: dict[str, list[float]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(abs(row.errors["source_left_out"]))
    return Summary(
        rows=len(rows),
        sources=len(by_source),
        uncalibrated=missed["priors"],
        fitted=missed["fitted"],
        known=missed["row_left_out"],
        source_out=missed["source_left_out"],
        over_sources=float(np.mean([np.mean(values) for values in by_source.values()])),
        bias=float(np.mean(errors["source_left_out"])),
        organisation_out=missed["organisation_left_out"],
        coverage=float(np.mean([is_inside(row) for row in rows])),
        half_width=float(np.mean([row.half_width for row in rows])),
    )
