"""The fit: robust least squares on relative errors, held by the priors.

A residual is `ln(predicted / measured)` over the expected noise. A prior adds one residual per coefficient,
`(value - prior) / (spread x prior)`, so that what no row decides stays where the prior puts it. Rows far outside the
noise of the others are left out and the rest is fitted again, until the set is stable: a row that is not what it says
must not bend a coefficient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from simulator.evidence.calibration.sample import Sample, measured, predict
from simulator.question.arrays import Matrix, Vector
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, priors

NOISE: dict[CoefficientKind, float] = {"memory": 0.01, "time": 0.012}
"""Expected relative scatter of a measured figure around the model."""
OUTLIER = 6.0
"""Standard deviations beyond which a row is left out: of the scatter seen, and no less than the one expected."""
FEW_ROWS = 4.0
"""Rows' worth of belief that own rows scatter as known ones do."""
UNFITTED = (
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


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients of one kind with what supports them."""

    kind: CoefficientKind
    names: tuple[str, ...]
    values: Vector
    covariance: Matrix
    """Of the values, from the curvature at the solution, priors included."""
    keys: tuple[str, ...]
    """Rows used."""
    left_out: tuple[str, ...]
    """Rows outside the noise of the others."""
    residuals: dict[str, float]
    """Relative error, predicted / measured - 1, of every row offered, left-out ones too."""
    noise: float
    """Relative scatter of the rows used, the degrees of freedom that the fit took allowed for."""
    influence: Matrix
    """Share of each row used in what is known of each coefficient, shape (rows, coefficients)."""

    @property
    def scatter(self) -> float:
        """Root mean square of the relative errors of the rows used."""
        return float(np.sqrt(np.mean([self.residuals[key] ** 2 for key in self.keys]))) if self.keys else 0.0


def names_of(kind: CoefficientKind, base: Coefficients | None = None, *, every: bool = False) -> tuple[str, ...]:
    """The coefficients that a fit of this kind moves from `base`: with `every` also those that shipped rows leave open.

    One that is 0 in `base` stays so, for its spread is a share of its value.
    """
    values = getattr(base or Coefficients(), kind)
    return tuple(name for name in priors(kind) if getattr(values, name) != 0.0 and (every or name not in UNFITTED))


@dataclass(frozen=True, slots=True)
class Problem:
    """A set of rows to fit, with the measured figures and the priors."""

    kind: CoefficientKind
    samples: tuple[Sample, ...]
    base: Coefficients
    """Supplies priors' values and everything that is not fitted."""
    names: tuple[str, ...]
    scale: Vector
    """Spread of each prior in the coefficient's unit; the fit works in these steps."""

    def predicted(self, values: Vector) -> Vector:
        """Predictions of all samples."""
        return self.predicted_sets(values[:, None])[:, 0]

    def predicted_sets(self, values: Matrix) -> Matrix:
        """Predictions of all samples under many coefficient sets, shape (samples, sets)."""
        rows = [predict(self.kind, sample, self.base, self.names, values) for sample in self.samples]
        return np.array(rows).reshape(len(self.samples), values.shape[1])

    @property
    def measured(self) -> Vector:
        """Measured figures of all samples."""
        return measured(self.kind, self.samples)

    def slopes(self, values: Vector) -> Matrix:
        """D ln(prediction) / d coefficient, by central differences of a thousandth of the prior's spread."""
        steps = np.diag(self.scale * 1e-3)
        both = self.predicted_sets(np.hstack([values[:, None] + steps, values[:, None] - steps]))
        count = len(values)
        return np.asarray(np.log(both[:, :count] / both[:, count:]) / (2.0 * self.scale * 1e-3))

    def kept(self, keep: NDArray[np.bool_]) -> Problem:
        """The problem with only the rows of `keep`."""
        return dataclasses.replace(self, samples=tuple(s for s, k in zip(self.samples, keep, strict=True) if k))

    @property
    def prior_values(self) -> Vector:
        """Prior value of each coefficient."""
        part = getattr(self.base, self.kind)
        return np.array([float(getattr(part, name)) for name in self.names])


@dataclass(frozen=True, slots=True)
class Start:
    """What is known of one kind of coefficients before a fit."""

    errors: Mapping[str, float]
    """Standard errors of the values that the fit starts from, in their units."""
    noise: float
    """Relative scatter of such rows, believed as that of FEW_ROWS rows."""

    def scatter(self, seen: float, rows: int) -> float:
        """The scatter of some rows: what is seen of them, and what is known of others."""
        return float(np.sqrt((rows * seen**2 + FEW_ROWS * self.noise**2) / (rows + FEW_ROWS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Freedom:
    """How far a fit may go from where it starts."""

    spread: float = 1.0
    """Widens the priors."""
    every: bool = False
    """Whether coefficients that shipped rows leave open are moved too."""
    noise: float | None = None
    """Expected relative scatter of the rows; None for the usual one of their kind."""
    start: Mapping[CoefficientKind, Start] = field(default_factory=dict)
    """For each kind, what is known of the values that the fit starts from; else the priors' spreads hold."""


def problem(
    kind: CoefficientKind, samples: Sequence[Sample], base: Coefficients | None = None, freedom: Freedom | None = None
) -> Problem:
    """A fit's problem from rows that have the figure of this kind."""
    base = base or Coefficients()
    freedom = freedom or Freedom()
    names = names_of(kind, base, every=freedom.every)
    known = priors(kind)
    part = getattr(base, kind)
    start = freedom.start.get(kind)
    errors = start.errors if start is not None else {}
    wide = {n: freedom.spread * known[n].spread * max(abs(float(getattr(part, n))), 1e-12) for n in names}
    scale = np.array([errors.get(n, wide[n]) for n in names])
    return Problem(kind, tuple(samples), base, names, scale)


def solve(
    task: Problem,
    keep: NDArray[np.bool_],
    *,
    noise: float,
    start: Vector | None = None,
    evaluations: int = 60,
) -> Vector:
    """Values that fit the kept rows; `start` and few evaluations serve refits that differ by a row or two."""
    known = priors(task.kind)
    low = np.array([known[n].low for n in task.names])
    high = np.array([known[n].high for n in task.names])
    centre = task.prior_values
    kept = task.kept(keep)
    logs = np.log(kept.measured)

    def residuals(steps: Vector) -> Vector:
        errors = np.log(kept.predicted(centre + steps * task.scale)) - logs
        return np.concatenate([errors / noise, steps])

    def residual_slopes(steps: Vector) -> Matrix:
        return np.vstack([kept.slopes(centre + steps * task.scale) * task.scale / noise, np.eye(len(steps))])

    first = np.zeros(len(centre)) if start is None else (start - centre) / task.scale
    bounds = ((low - centre) / task.scale, (high - centre) / task.scale)
    first = np.clip(first, bounds[0] + 1e-9, bounds[1] - 1e-9)
    result = least_squares(residuals, first, jac=residual_slopes, bounds=bounds, loss="soft_l1", max_nfev=evaluations)
    return np.asarray(centre + result.x * task.scale, dtype=np.float64)


def fit(
    kind: CoefficientKind, samples: Sequence[Sample], base: Coefficients | None = None, freedom: Freedom | None = None
) -> Fit:
    """Fit one kind of coefficients to rows, leaving out those that do not belong."""
    task = problem(kind, samples, base, freedom)
    expected = (freedom and freedom.noise) or NOISE[kind]
    start = freedom.start.get(kind) if freedom is not None else None
    keep = np.ones(len(task.samples), dtype=np.bool_)
    values = task.prior_values
    errors = np.zeros(len(task.samples))
    noise = expected if start is None else start.noise
    for _ in range(8):
        values = solve(task, keep, noise=noise, start=values)
        errors = np.log(task.predicted(values) / task.measured)
        scatter = max(robust_scatter(errors[keep]), expected)
        if start is not None:
            scatter = start.scatter(scatter, int(np.sum(keep)))
        inside = np.abs(errors) <= OUTLIER * scatter
        if (inside == keep).all() and abs(min(scatter, 5.0 * expected) - noise) <= 0.1 * noise:
            break
        # A platform whose rows scatter widely must still be able to move the priors.
        keep, noise = inside, min(scatter, 5.0 * expected)
    found = _result(task, keep, values, errors)
    return found if start is None else dataclasses.replace(found, noise=start.scatter(found.noise, len(found.keys)))


def robust_scatter(errors: Vector) -> float:
    """Standard deviation from the median absolute error (1.4826 for a normal distribution)."""
    return float(1.4826 * np.median(np.abs(errors))) if len(errors) else 0.0


def posterior(task: Problem, keep: NDArray[np.bool_], values: Vector) -> tuple[Matrix, float]:
    """Covariance of the coefficients, from the curvature at the solution and the priors; and the rows' scatter.

    The scatter is corrected for the degrees of freedom that the fit took from the rows: the trace of the share of the
    information that is theirs and not the priors'.
    """
    kept = task.kept(keep)
    errors = np.log(kept.predicted(values) / kept.measured)
    seen = max(robust_scatter(errors), float(np.sqrt(np.mean(errors**2))) if len(errors) else 0.0)
    slopes = kept.slopes(values)
    prior = np.diag(1.0 / task.scale**2)
    noise = seen
    for _ in range(3):
        information = slopes.T @ slopes / max(noise, 0.25 * NOISE[task.kind]) ** 2
        taken = float(np.trace(np.linalg.solve(information + prior, information)))
        noise = seen * float(np.sqrt(len(errors) / max(len(errors) - taken, 1.0)))
    return np.asarray(np.linalg.inv(information + prior)), noise


def _result(task: Problem, keep: NDArray[np.bool_], values: Vector, errors: Vector) -> Fit:
    kept = task.kept(keep)
    covariance, noise = posterior(task, keep, values)
    slopes = kept.slopes(values)
    squares = (slopes * task.scale) ** 2
    total = squares.sum(axis=0, keepdims=True)
    influence = np.divide(squares, total, out=np.zeros_like(squares), where=total > 0.0)
    return Fit(
        kind=task.kind,
        names=task.names,
        values=values,
        covariance=covariance,
        keys=tuple(s.key for s in kept.samples),
        left_out=tuple(s.key for s, k in zip(task.samples, keep, strict=True) if not k),
        residuals={s.key: float(np.expm1(e)) for s, e in zip(task.samples, errors, strict=True)},
        noise=noise,
        influence=influence,
    )
