"""Algebra of the fit: normal distributions of coefficients, and the messages of measured rows on them.

`calibration.sample` makes the messages, `calibration.cluster` uses them for own rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from simulator.evidence.calibration.sample import Sample, measured, predict
from simulator.question.arrays import Mask, Matrix, Vector
from simulator.question.coefficients import CoefficientKind, Coefficients, priors


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


Belief = Literal["posterior", "factor", "prior"]
"""Effect of own rows: they update every coefficient, one common factor, or nothing."""

HUBER = 2.0
"""Deviations of a row's noise beyond which its weight falls."""
HELPED: Mapping[CoefficientKind, float] = {"time": 2.33, "memory": 0.5}
"""Gain of own rows from which they are believed, in deviations of the scatter of their mean.

Of time, chance reaches it one time in 100. Memory is the same in every run of a layout, so that less suffices.
"""
OFFSET = 0.05
"""Least spread of one factor on all runs of a cluster, however well it is known: its software may have changed."""
_LEAST_OWN = 2
_STEP = 0.01
"""Change of a coefficient's logarithm by which slopes are taken."""


@dataclass(frozen=True, slots=True)
class Design:
    """Rows of one kind, and the coefficients that they move."""

    kind: CoefficientKind
    names: tuple[str, ...]
    samples: tuple[Sample, ...]
    base: Coefficients
    centre: Vector
    """Logarithms of the priors' values."""
    spread: Vector
    """Standard deviations of the logarithms before any row."""
    logs: Vector
    """Logarithms of the measured figures."""

    def bounded(self, logarithms: Matrix) -> Matrix:
        """Return logarithms of coefficients clipped to their bounds, shape (coefficients,) or (coefficients, sets)."""
        known = priors(self.kind)
        low = np.log([max(known[name].low, 1e-12) for name in self.names])
        high = np.log([known[name].high for name in self.names])
        return np.asarray(np.clip(logarithms.T, low, high).T)

    def predicted(self, index: int, logarithms: Matrix) -> Vector:
        """Return the logarithms of a row's predictions; `logarithms` has one column per coefficient set."""
        values = np.exp(self.bounded(logarithms))
        return np.log(predict(self.kind, self.samples[index], self.base, self.names, values))

    def errors(self, index: int, points: Sequence[Vector]) -> list[float]:
        """Return the error of a row's prediction at each point, in the logarithm."""
        errors: list[float] = (self.predicted(index, np.column_stack(points)) - self.logs[index]).tolist()
        return errors

    def slopes(self, index: int, at: Vector) -> tuple[float, Vector]:
        """Return the logarithm of a row's prediction and its slopes by the coefficients' logarithms, at a point."""
        steps = _STEP * np.eye(len(at))
        predicted = self.predicted(index, np.hstack([at[:, None], at[:, None] + steps, at[:, None] - steps]))
        count = len(at)
        return float(predicted[0]), np.asarray((predicted[1 : count + 1] - predicted[count + 1 :]) / (2.0 * _STEP))


UNFITTED = (
    "captured_launch_share",
    "link_efficiency",
    "expert_exposed",
    "attention_score_width",
    "attention_tile_tokens",
    "attention_tile_tokens_flash_3",
    "attention_backward_slowdown",
    "tensor_overhead_seconds",
    "tensor_ends_overhead_seconds",
    "reduce_slowdown",
    "collective_slowdown",
    "shard_overhead_seconds",
    "optimizer_slowdown",
)
"""Time coefficients that no shipped row decides apart from others; they stay at their priors unless launches planned to
decide them are fitted."""


def names_of(kind: CoefficientKind, base: Coefficients | None = None, *, every: bool = False) -> tuple[str, ...]:
    """Return the coefficients that a fit moves from `base`; `every` adds those that shipped rows leave open.

    A coefficient of 0 in `base` stays 0: its spread is a share of its value.
    """
    values = getattr(base or Coefficients(), kind)
    return tuple(name for name in priors(kind) if getattr(values, name) != 0.0 and (every or name not in UNFITTED))


def design_of(kind: CoefficientKind, samples: Sequence[Sample], names: tuple[str, ...], base: Coefficients) -> Design:
    """Return the design of samples and coefficients, around the priors."""
    known, part = priors(kind), getattr(base, kind)
    return Design(
        kind=kind,
        names=names,
        samples=tuple(samples),
        base=base,
        centre=np.log([float(getattr(part, name)) for name in names]),
        spread=np.array([known[name].spread for name in names]),
        logs=np.log(measured(kind, samples)),
    )


def sort_of(kind: CoefficientKind, sample: Sample) -> str:
    """Return the sort of a row, whose rows scatter alike: `dense` or `moe`; of memory the kind of figure."""
    if kind == "memory":
        return sample.row.compares_with or "device"
    return "moe" if sample.scenario.model.is_moe else "dense"


@dataclass(frozen=True)
class Linearization:
    """Design with the scatter of its rows, linearised around a point."""

    design: Design
    noise: Vector
    """Relative scatter of each row."""
    slopes: Matrix
    """Slopes by the coefficients in spreads of the priors, shape (rows, coefficients)."""
    target: Vector
    """Logarithms measured, less those predicted under the priors by the linear model."""
    pull: Vector
    """Factor on each row's variance, above 1 for outliers."""

    def message(self, rows: Mask) -> Message:
        """Return the message of rows on their cluster's coefficients."""
        weighted = self.slopes[rows].T / self.variance[rows]
        return Message(weighted @ self.slopes[rows], weighted @ self.target[rows])

    def posterior(self, prior: Gauss, rows: Mask, belief: Belief) -> Gauss:
        """Return the distribution of a source's cluster with some of its rows, as far as they are believed."""
        if belief == "prior" or not rows.any():
            return prior
        slopes, variance = np.mean(self.slopes[rows], axis=0), np.mean(self.variance[rows]) / np.sum(rows)
        prior = self._movable(prior, slopes)
        if belief == "posterior":
            return prior.updated(self.message(rows))
        information = np.outer(slopes, slopes) / variance
        return prior.updated(Message(information, slopes * np.mean(self.target[rows]) / variance))

    def _movable(self, prior: Gauss, slopes: Vector) -> Gauss:
        """Return `prior` widened, by the priors' spreads, until the mean of such runs deviates by `OFFSET` at least."""
        spreads = np.array([priors(self.design.kind)[name].spread for name in self.design.names])
        free = np.square(spreads / self.design.spread) * slopes
        unknown = max(OFFSET**2 - float(slopes @ prior.covariance @ slopes), 0.0)
        moves = np.sqrt(unknown) * free / max(float(slopes @ free), 1e-12)
        return Gauss(prior.mean, prior.covariance + np.outer(moves, moves))

    def belief(self, prior: Gauss, rows: Mask) -> Belief:
        """Return the belief in rows of one source: the first that predicts each by the others better than the prior.

        The mean gain in absolute error must exceed what the scatter of a mean of so many rows explains; a single row is
        weighed by its scatter alone.
        """
        indices = np.flatnonzero(rows)
        if len(indices) < _LEAST_OWN:
            return "posterior"
        needed = HELPED[self.design.kind] * np.sqrt(np.mean(self.noise[rows] ** 2) / len(indices))
        beliefs: tuple[Belief, ...] = ("posterior", "factor")
        return next((belief for belief in beliefs if self._gain(prior, rows, belief) > needed), "prior")

    def _gain(self, prior: Gauss, rows: Mask, belief: Belief) -> float:
        """Return the mean gain in absolute error of predicting each row by the others instead of the prior."""
        gains = []
        for index in np.flatnonzero(rows):
            others = rows.copy()
            others[index] = False
            learned = self.posterior(prior, others, belief)
            before, after = map(abs, self.design.errors(int(index), [self.point(by) for by in (prior, learned)]))
            gains.append(before - after)
        return float(np.mean(gains))

    def point(self, known: Gauss) -> Vector:
        """Return the logarithms of the coefficients."""
        return np.asarray(self.design.centre + self.design.spread * known.mean)

    @cached_property
    def variance(self) -> Vector:
        """Variance of each row, `pull` included."""
        return np.asarray(self.noise**2 * self.pull)


def linearised(design: Design, points: Sequence[Vector]) -> tuple[Matrix, Vector]:
    """Return slopes and targets of all rows, each around its own point."""
    slopes, target = np.zeros((len(design.samples), len(design.names))), np.zeros(len(design.samples))
    for index, at in enumerate(points):
        value, by_logarithm = design.slopes(index, at)
        target[index] = design.logs[index] - value + by_logarithm @ (at - design.centre)
        slopes[index] = by_logarithm * design.spread
    return slopes, target
