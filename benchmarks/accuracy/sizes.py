"""Sizes of a range's contributions, learned from predictions with rows left out. Moves no prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from simulator.evidence.calibration.apply import NORMAL_90
from simulator.evidence.calibration.store import Unit
from simulator.question.arrays import Matrix, Vector

_FIRST: Final[Mapping[str, float]] = {
    "coefficients": 1.0,
    "scatter": 1.0,
    "sources": 0.1,
    "device": 0.15,
    "stack": 0.08,
    "nodes": 0.03,
    "layout": 0.05,
}
"""Initial sizes, which stay where no row tells."""
_HELD: Final = 0.90
"""Share of unseen rows that ranges are to hold."""
_MOST_HELD: Final = 0.99
"""Largest share of the rows at hand that ranges are sized to hold."""
_SMOOTH: Final = 0.003
"""Relative error within which the two sides of the pinball loss meet."""
_BELIEF: Final = 2e-5
"""Weight of the first sizes beside the rows."""


def level_of(groups: int) -> float:
    """Return the share of the rows of `groups` groups that ranges must hold to hold 90 % of the next group's.

    Conformal prediction: of n groups that are as good as the next one, the quantile is `0.9 (n + 1) / n` (V. Vovk, A.
    Gammerman and G. Shafer, *Algorithmic Learning in a Random World*, 2005).
    """
    return min(_MOST_HELD, _HELD * (groups + 1) / groups)


CONTRIBUTIONS: Final = ("coefficients", "scatter", "sources", "device", "stack", "nodes", "layout")
"""Names of a unit's contributions."""


def fitted_sizes(
    sorts: Sequence[str], units: Sequence[Unit], errors: Vector, weights: Vector, levels: Vector
) -> dict[str, float]:
    """Return the sizes with which ranges hold the share `levels` of some errors, no wider than that needs.

    They minimise the pinball loss of the half-widths as quantiles of the absolute errors. Coefficients and scatter have
    a size for each of the `sorts`.
    """
    from scipy.optimize import minimize  # noqa: PLC0415  each worker of the tests imports this module

    names = [f"{name} {sort}" for name in CONTRIBUTIONS[:2] for sort in sorts] + list(CONTRIBUTIONS[2:])
    variances = np.array([_variances(unit, tuple(names)) for unit in units]).reshape(-1, len(names))
    first = np.log([_FIRST[name.split(maxsplit=1)[0]] for name in names])
    shares = weights / max(weights.sum(), 1.0)
    minimum = minimize(_loss, first, (variances, np.abs(errors), shares, levels, first), jac=True)
    return dict(zip(names, np.exp(minimum.x).tolist(), strict=True))


@lru_cache(maxsize=8192)  # the same predictions are asked again without each source
def _variances(unit: Unit, keys: tuple[str, ...]) -> tuple[float, ...]:
    names, units = [key.split(maxsplit=1)[0] for key in keys], unit.units()
    return tuple(units[name] ** 2 if unit.key(name) == key else 0.0 for name, key in zip(names, keys, strict=True))


def _loss(  # noqa: PLR0913, PLR0917  what scipy passes
    logs: Vector, variances: Matrix, errors: Vector, weights: Vector, levels: Vector, first: Vector
) -> tuple[float, Vector]:
    """Return the pinball loss of the half-widths and its slopes by the logarithms of the sizes."""
    squares = np.exp(2.0 * logs)
    deviations = np.sqrt(variances @ squares + 1e-8)
    left = (errors - NORMAL_90 * deviations) / _SMOOTH
    loss = _SMOOTH * (levels * left + np.logaddexp(0.0, -left))
    slope = -NORMAL_90 * (levels - 1.0 / (1.0 + np.exp(np.clip(left, -50.0, 50.0))))
    by_size = (weights * slope / deviations) @ variances * squares
    away = 2.0 * (logs - first)
    return float(weights @ loss + _BELIEF * away @ away), np.asarray(by_size + 4.0 * _BELIEF * away)
