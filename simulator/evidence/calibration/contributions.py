"""Contributions to the range of a prediction, by name, with the unit of each. Fits nothing.

The error of a prediction has a standard deviation, in the logarithm, whose square is the sum of those of its
contributions. Each is a size times a unit: of `coefficients` the deviation that their covariance gives the figure, of
`scatter` that of rows around their own source, of `sources` one over the root of the sources of the device family, of
`device` and `stack` one where no row is of the family or of the framework on it, of `nodes` the root of the doublings
of devices beyond the rows, of `layout` the root of the number of features beyond them. The sizes are those by which
ranges hold 90 % of the rows when each of these is left out in turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from simulator.evidence.calibration.coverage import Distance

CONTRIBUTIONS: Final = ("coefficients", "scatter", "sources", "device", "stack", "nodes", "layout")
"""Names of the contributions, in the order of a report."""
BEYOND: Final = ("stack", "nodes", "layout")
"""Contributions that also widen the ranges of a cluster with runs of its own."""


DIFFERENCE: Final = "difference"
"""Sort of the difference of two layouts' predictions."""


class Unit(NamedTuple):
    """Units of one prediction's contributions."""

    sort: str
    """Sort of the prediction, a word of `SORTS` or `DIFFERENCE`."""
    coefficients: float
    """Relative deviation by the covariance of the coefficients."""
    scatter: float
    """Relative scatter of rows around their own source."""
    distance: Distance
    """Distance of the question beyond the rows."""
    features: int | None = None
    """Number of features beyond the rows; None for those of `distance`."""

    def of(self, name: str) -> float:
        """Return the unit of a contribution, as a relative deviation."""
        distance = self.distance
        units: Mapping[str, float] = {
            "coefficients": self.coefficients,
            "scatter": self.scatter,
            "sources": math.sqrt(distance.share_of_source),
            "device": float(distance.device),
            "stack": float(distance.stack),
            "nodes": math.sqrt(distance.doublings),
            "layout": math.sqrt(len(distance.features) if self.features is None else self.features),
        }
        return units[name]

    def key(self, name: str) -> str:
        """Return the name of a contribution's size; coefficients and scatter have one per sort."""
        return f"{name} {self.sort}" if name in ("coefficients", "scatter") else name

    def deviations(self, sizes: Mapping[str, float]) -> dict[str, float]:
        """Return the relative deviation of each contribution; a missing size is 0, of coefficients and scatter 1."""
        without = {"coefficients": 1.0, "scatter": 1.0}
        return {name: sizes.get(self.key(name), without.get(name, 0.0)) * self.of(name) for name in CONTRIBUTIONS}

    def deviation(self, sizes: Mapping[str, float]) -> float:
        """Return the relative deviation of the prediction."""
        return math.hypot(*self.deviations(sizes).values())


def difference_unit(variance: float, *scatter: float) -> Unit:
    """Return the units of the difference of two predictions of one cluster, in which shared errors cancel.

    `variance` is that of the difference by the coefficients, from draws that both predictions share.
    """
    inside = Distance(device=False, share_of_source=0.0, stack=False, doublings=0.0, features=())
    return Unit(DIFFERENCE, math.sqrt(max(variance, 0.0)), math.hypot(*scatter), inside)
