"""Arrays by their shape and type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""Numbers, shape (n,)."""
Matrix = NDArray[np.float64]
"""Numbers, shape (n, m)."""
Mask = NDArray[np.bool_]
"""Which, shape (n,)."""
Index = NDArray[np.intp]
"""Positions, shape (n,)."""
