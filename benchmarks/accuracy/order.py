"""Whether predictions put runs in the order that was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np


def alike(one: float, other: float) -> bool:
    """Whether two predictions are one, but for rounding: either would be chosen."""
    return math.isclose(one, other, rel_tol=1e-9)


def kendall_tau(runs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's rank correlation of measured and predicted, over pairs measured apart; None without such a pair.

    A pair that is predicted alike counts as neither in order nor out of it.
    """
    signs = [
        np.sign(a[0] - b[0]) * (0.0 if alike(a[1], b[1]) else np.sign(a[1] - b[1]))
        for a, b in combinations(runs, 2)
        if a[0] != b[0]
    ]
    return float(np.mean(signs)) if signs else None
