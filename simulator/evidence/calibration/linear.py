"""Measured rows as a linear model of the coefficients' logarithms around a point, and how far own rows are believed.

`ln(measured) = ln(predicted(x)) + noise`: what is known of `x` is a normal distribution, and rows add an information
matrix and vector to it. Moves no point: `cluster` does, until it stays (Gauss-Newton).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from simulator.evidence.calibration.gauss import Gauss, Message
from simulator.evidence.calibration.sample import Sample, measured, predict
from simulator.question.arrays import Mask, Matrix, Vector
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, priors

Belief = Literal["posterior", "factor", "prior"]
"""What own rows change: every coefficient that they tell, one direction that their mean tells, or nothing."""

HUBER = 2.0
"""Deviations of a row's noise beyond which it pulls less."""
HELPED: Mapping[CoefficientKind, float] = {"time": 2.33, "memory": 0.5}
"""Deviations of the scatter of a mean of own rows from which their gain is believed.

Of time, chance has it one time in 100. Memory is the same in every run of a layout: what rows show of it is no chance.
"""
OFFSET = 0.05
"""Least spread of one factor on all runs of a cluster, however well it is known: its software may have changed."""
_LEAST_OWN = 2
_STEP = 0.01
"""Change of a coefficient's logarithm by which slopes are taken."""


@dataclass(frozen=True, slots=True)
class Design:
    """The rows of one kind, and the coefficients that they move."""

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
        """Logarithms of the coefficients, kept within their bounds; shape (coefficients,) or (coefficients, sets)."""
        known = priors(self.kind)
        low = np.log([max(known[name].low, 1e-12) for name in self.names])
        high = np.log([known[name].high for name in self.names])
        return np.asarray(np.clip(logarithms.T, low, high).T)

    def predicted(self, index: int, logarithms: Matrix) -> Vector:
        """Logarithms of the predictions of a row; `logarithms` has one column per coefficient set."""
        values = np.exp(self.bounded(logarithms))
        return np.log(predict(self.kind, self.samples[index], self.base, self.names, values))

    def errors(self, index: int, points: Sequence[Vector]) -> list[float]:
        """How far off a row is predicted at each point, in the logarithm."""
        errors: list[float] = (self.predicted(index, np.column_stack(points)) - self.logs[index]).tolist()
        return errors

    def slopes(self, index: int, at: Vector) -> tuple[float, Vector]:
        """Logarithm of a row's prediction and its slopes by the coefficients' logarithms, at a point."""
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
    """The coefficients that a fit of this kind moves from `base`: with `every` also those that shipped rows leave open.

    One that is 0 in `base` stays so, for its spread is a share of its value.
    """
    values = getattr(base or Coefficients(), kind)
    return tuple(name for name in priors(kind) if getattr(values, name) != 0.0 and (every or name not in UNFITTED))


def design_of(kind: CoefficientKind, samples: Sequence[Sample], names: tuple[str, ...], base: Coefficients) -> Design:
    """The design of samples and coefficients, around the priors."""
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
    """What a row scatters like: `dense` or `moe`; of memory the kind of figure."""
    if kind == "memory":
        return sample.row.compares_with or "device"
    return "moe" if sample.scenario.model.is_moe else "dense"


@dataclass(frozen=True)
class Linearization:
    """A design with the scatter of its rows, linear around a point."""

    design: Design
    noise: Vector
    """Relative scatter of each row."""
    slopes: Matrix
    """By the coefficients in spreads of the priors, shape (rows, coefficients)."""
    target: Vector
    """Logarithms measured, less those predicted under the priors by the linear model."""
    pull: Vector
    """Factor on a row's variance, for rows far off."""

    def message(self, rows: Mask) -> Message:
        """What some rows say of their cluster's coefficients."""
        weighted = self.slopes[rows].T / self.variance[rows]
        return Message(weighted @ self.slopes[rows], weighted @ self.target[rows])

    def posterior(self, prior: Gauss, rows: Mask, belief: Belief) -> Gauss:
        """What is known of a source's cluster with some of its rows, as far as they are believed."""
        if belief == "prior" or not rows.any():
            return prior
        slopes, variance = np.mean(self.slopes[rows], axis=0), np.mean(self.variance[rows]) / np.sum(rows)
        prior = self._movable(prior, slopes)
        if belief == "posterior":
            return prior.updated(self.message(rows))
        information = np.outer(slopes, slopes) / variance
        return prior.updated(Message(information, slopes * np.mean(self.target[rows]) / variance))

    def _movable(self, prior: Gauss, slopes: Vector) -> Gauss:
        """What was known, no surer than `OFFSET` of the mean of runs with such slopes; the priors' spreads share it."""
        spreads = np.array([priors(self.design.kind)[name].spread for name in self.design.names])
        free = np.square(spreads / self.design.spread) * slopes
        unknown = max(OFFSET**2 - float(slopes @ prior.covariance @ slopes), 0.0)
        moves = np.sqrt(unknown) * free / max(float(slopes @ free), 1e-12)
        return Gauss(prior.mean, prior.covariance + np.outer(moves, moves))

    def belief(self, prior: Gauss, rows: Mask) -> Belief:
        """How far some rows of one source are believed: what predicts each of them better by the others than the prior.

        The mean gain, in absolute error, has to be more than the scatter of a mean of so many rows explains; a single
        row is weighed by its scatter alone.
        """
        mine = np.flatnonzero(rows)
        if len(mine) < _LEAST_OWN:
            return "posterior"
        needed = HELPED[self.design.kind] * np.sqrt(np.mean(self.noise[rows] ** 2) / len(mine))
        ways: tuple[Belief, ...] = ("posterior", "factor")
        return next((way for way in ways if self._gain(prior, rows, way) > needed), "prior")

    def _gain(self, prior: Gauss, rows: Mask, belief: Belief) -> float:
        """Mean by which rows left out one by one are predicted better by the others than by the prior."""
        gains = []
        for index in np.flatnonzero(rows):
            others = rows.copy()
            others[index] = False
            learned = self.posterior(prior, others, belief)
            before, after = map(abs, self.design.errors(int(index), [self.point(by) for by in (prior, learned)]))
            gains.append(before - after)
        return float(np.mean(gains))

    def point(self, known: Gauss) -> Vector:
        """The coefficients' logarithms."""
        return np.asarray(self.design.centre + self.design.spread * known.mean)

    @cached_property
    def variance(self) -> Vector:
        """Of each row, those far off pulling less."""
        return np.asarray(self.noise**2 * self.pull)


def linearised(design: Design, points: Sequence[Vector]) -> tuple[Matrix, Vector]:
    """Slopes and targets of all rows, each around its own point."""
    slopes, target = np.zeros((len(design.samples), len(design.names))), np.zeros(len(design.samples))
    for index, at in enumerate(points):
        value, by_logarithm = design.slopes(index, at)
        target[index] = design.logs[index] - value + by_logarithm @ (at - design.centre)
        slopes[index] = by_logarithm * design.spread
    return slopes, target
