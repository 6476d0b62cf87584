"""What the calibrated model says of rows that ran, and of rows that ran out of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import DOES_NOT_FIT, STARVED, price
from simulator.evidence.calibration.sample import Sample, sample_of
from simulator.evidence.measurements.row import MeasuredRow
from simulator.question.coefficients import Coefficients

Said = Literal["fits", "starved", "does_not_fit"]


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """One row that ran or ran out of memory, and the verdict on it."""

    sample: Sample
    said: Said
    need_bytes: float
    capacity_bytes: float

    @property
    def ran(self) -> bool:
        """Whether the row ran."""
        return self.sample.row.outcome == "ok"

    @property
    def agrees(self) -> bool:
        """Whether verdict and outcome go together; a starved run may start or not."""
        return self.said == "starved" or (self.said == "fits") == self.ran


def row_verdicts(
    rows: Iterable[MeasuredRow], coefficients: Coefficients, family: str | None = None
) -> Iterator[RowVerdict]:
    """Verdicts on the rows of a family that ran or ran out of memory, as they are stated."""
    for row in rows:
        if row.outcome == "error" or not row.asks:
            continue
        sample = sample_of(row)
        if family is not None and sample.scenario.hardware.family != family:
            continue
        scenario = replace(sample.scenario, coefficients=coefficients)
        priced = price(Pricing(scenario, sample.block))
        code = int(priced.verdict[0])
        said: Said = "does_not_fit" if code == DOES_NOT_FIT else "starved" if code == STARVED else "fits"
        yield RowVerdict(sample, said, float(priced.device_bytes[0]), scenario.hardware.usable_memory_bytes)
