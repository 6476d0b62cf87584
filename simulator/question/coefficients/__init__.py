"""Coefficients: numbers that first principles do not give, such as efficiencies, overheads and exposed shares.

Each has a physical meaning, a unit and a prior. A calibration replaces values; the formulas do not change.
"""

from simulator.question.coefficients.values import Coefficients, MemoryCoefficients, TimeCoefficients

__all__ = ["Coefficients", "MemoryCoefficients", "TimeCoefficients"]
