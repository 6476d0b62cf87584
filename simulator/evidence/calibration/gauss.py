"""Normal distributions of coefficients, and messages of rows on them: the algebra of the fit.

Knows no row, no device and no formula.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.question.arrays import Matrix, Vector


@dataclass(frozen=True, slots=True)
class Gauss:
    """Normal distribution of the coefficients' logarithms, in the priors' spreads from the priors' values."""

    mean: Vector
    covariance: Matrix

    def updated(self, message: Message) -> Gauss:
        """Return the distribution after a message: the posterior of Bayes' rule."""
        inner = np.eye(len(self.mean)) + self.covariance @ message.information
        sides = np.column_stack([self.covariance, self.mean + self.covariance @ message.vector])
        solved = np.asarray(np.linalg.solve(inner, sides), dtype=np.float64)
        covariance = solved[:, :-1]
        return Gauss(solved[:, -1], (covariance + covariance.T) / 2.0)


@dataclass(frozen=True, slots=True)
class Message:
    """Rows' information on coefficients: its matrix, and that matrix times the value that the rows ask for."""

    information: Matrix
    vector: Vector

    def __add__(self, other: Message) -> Message:
        return Message(self.information + other.information, self.vector + other.vector)
