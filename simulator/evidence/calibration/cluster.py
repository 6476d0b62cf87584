"""Fit of the coefficients to one cluster's own measured rows, from what is known of such clusters on.

Known is a normal distribution of the coefficients' logarithms: what ships for the family, or the priors. The rows add
an information matrix and vector (`calibration.linear`). Around a point the model is linear, and the point moves to the
solution (Gauss-Newton). Nobody annotated these rows: those far outside the scatter of the others are left out, by the
median, which they do not move. `calibration.own` chooses the rows and judges the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.evidence.calibration.linear import (
    HUBER,
    Belief,
    Design,
    Gauss,
    Linearization,
    design_of,
    linearised,
    names_of,
    sort_of,
)
from simulator.evidence.calibration.sample import Sample, predict_device_memory
from simulator.evidence.calibration.store import FittedPart, coverage_of
from simulator.question.arrays import Mask, Matrix, Vector
from simulator.question.coefficients import CoefficientKind, Coefficients, priors

NOISE: Mapping[CoefficientKind, float] = {"memory": 0.01, "time": 0.012}
"""Relative scatter of repeated runs."""
FEW_ROWS = 4.0
"""Weight, in rows, of the belief that own rows scatter as known ones do."""
OUTLIER = 6.0
"""Standard deviations of the rows' scatter beyond which a row is left out."""
FULL = 0.95
"""Smallest share of the usable memory that a starved run holds."""
_PASSES = 6
_ROUNDS = 8
_NAMED = 4
_SHARE = 0.05
"""Smallest share of the information on a coefficient for which a row is named."""
_MAD = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Known:
    """Distribution of a cluster's coefficients of one kind before its rows."""

    kind: CoefficientKind
    names: tuple[str, ...]
    values: Vector
    """Values in the coefficients' units."""
    covariance: Matrix
    """Covariance of their logarithms."""
    noise: Mapping[str, float]
    """Relative scatter of rows by `dense` and `moe`, or by kind of memory figure; the empty name is for any other."""

    @classmethod
    def of_part(cls, kind: CoefficientKind, part: FittedPart) -> Known:
        """Return the distribution that a calibration gives of a cluster without rows."""
        values = np.maximum(part.vector, 1e-12)
        noise = {"": part.noise, **part.noise_by}
        return cls(kind, part.names, values, part.covariance / np.outer(values, values), noise)

    @classmethod
    def of_priors(
        cls, kind: CoefficientKind, base: Coefficients, *, spread: float = 1.0, noise: float | None = None
    ) -> Known:
        """Return the priors around the values of `base`, their spreads times `spread`; every coefficient is free."""
        names, known, part = names_of(kind, base, every=True), priors(kind), getattr(base, kind)
        spreads = np.array([spread * known[name].spread for name in names])
        values = np.array([float(getattr(part, name)) for name in names])
        return cls(kind, names, values, np.diag(spreads**2), {"": noise or NOISE[kind]})

    def scatter(self, sort: str) -> float:
        """Return the relative scatter of the rows of a sort."""
        return self.noise.get(sort, self.noise[""])


@dataclass(frozen=True, slots=True)
class ClusterFit:
    """Coefficients of one kind with the rows behind them."""

    state: Linearization
    prior: Gauss
    """Distribution before the rows, in the units of the state's design."""
    known: Gauss
    """Distribution with the rows of `used`."""
    used: Mask
    noise: float
    """Relative scatter of the rows used."""
    belief: Belief = "posterior"
    """Belief in the rows, by whether they predict one another better than the prior does."""
    residuals: Mapping[str, float] = field(default_factory=dict)
    """Relative error, predicted over measured less one, of every row, left-out ones too."""

    @property
    def kind(self) -> CoefficientKind:
        """Kind of the coefficients."""
        return self.state.design.kind

    @property
    def names(self) -> tuple[str, ...]:
        """Coefficients in the order of `values`."""
        return self.state.design.names

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the rows used."""
        return tuple(s.key for s, used in zip(self.state.design.samples, self.used, strict=True) if used)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Keys of the rows outside the scatter of the others."""
        return tuple(s.key for s, used in zip(self.state.design.samples, self.used, strict=True) if not used)

    @property
    def values(self) -> Vector:
        """Coefficients, in their units and bounds."""
        return np.exp(self.state.design.bounded(self.state.point(self.known)))

    @property
    def covariance(self) -> Matrix:
        """Covariance of the values."""
        scale = self.values * self.state.design.spread
        return np.asarray(self.known.covariance * np.outer(scale, scale))

    @property
    def scatter(self) -> float:
        """Root mean square of the relative errors of the rows used."""
        return float(np.sqrt(np.mean([self.residuals[key] ** 2 for key in self.keys]))) if self.keys else 0.0

    def known_by(self, rows: Mask) -> Gauss:
        """Return the distribution with only `rows` of the rows used."""
        return self.state.posterior(self.prior, self.used & rows, self.belief)

    def error(self, index: int, by: Gauss) -> float:
        """Return the error of a row's prediction, in the logarithm."""
        return self.state.design.errors(index, [self.state.point(by)])[0]

    def part(self) -> FittedPart:
        """Return the fit as it is stored."""
        return FittedPart(
            values=dict(zip(self.names, self.values.tolist(), strict=True)),
            covariance=self.covariance,
            noise=self.noise,
            rows_used=self.keys,
            rows_left_out={key: self.residuals[key] for key in self.left_out},
            decided_by=self._decided_by(),
            coverage=coverage_of(((s.scenario, s.layout) for s in self._samples_used), sources=1),
        )

    @property
    def _samples_used(self) -> list[Sample]:
        return [s for s, used in zip(self.state.design.samples, self.used, strict=True) if used]

    def _decided_by(self) -> dict[str, tuple[str, ...]]:
        """Return the rows with the largest shares of the information on each coefficient, the prior's included."""
        # In deviations of the prior, whose own information is then 1.
        information = self.state.slopes[self.used] ** 2 / (self.noise**2 * self.state.pull[self.used])[:, None]
        shares = information / (1.0 + information.sum(axis=0))
        decided = {}
        for column, name in enumerate(self.names):
            order = np.argsort(-shares[:, column], kind="stable")[:_NAMED]
            decided[name] = tuple(self.keys[i] for i in order if shares[i, column] > _SHARE)
        return decided


def fit_cluster(known: Known, samples: Sequence[Sample], base: Coefficients) -> ClusterFit:
    """Fit one kind of coefficients to the rows of a cluster; the others come from `base`."""
    spread = np.maximum(np.sqrt(np.diag(known.covariance)), 1e-9)
    design = replace(design_of(known.kind, samples, known.names, base), centre=np.log(known.values), spread=spread)
    prior = Gauss(np.zeros(len(spread)), known.covariance / np.outer(spread, spread))
    expected = _expected(known, samples)
    fit = _unfitted(design, prior, expected)
    for _ in range(_PASSES):
        at = design.bounded(fit.state.point(fit.known))
        slopes, target = linearised(design, [at] * len(samples))
        fit = replace(fit, state=replace(fit.state, slopes=slopes, target=target))
        for _ in range(_ROUNDS):
            fit = _refined(fit, expected)
    fit = replace(fit, belief=fit.state.belief(prior, fit.used))
    if fit.belief == "factor":
        fit = replace(fit, known=fit.known_by(fit.used))
    errors = (fit.error(index, fit.known) for index in range(len(samples)))
    residuals = {s.key: float(np.expm1(error)) for s, error in zip(design.samples, errors, strict=True)}
    return replace(fit, residuals=residuals)


def _expected(known: Known, samples: Sequence[Sample]) -> float:
    """Return the scatter expected of the rows: the geometric mean of that of their sorts."""
    return float(np.exp(np.mean([np.log(known.scatter(sort_of(known.kind, sample))) for sample in samples])))


def _unfitted(design: Design, prior: Gauss, expected: float) -> ClusterFit:
    count = len(design.samples)
    shape = np.zeros((count, len(design.names)))
    state = Linearization(design, np.full(count, expected), shape, np.zeros(count), np.ones(count))
    return ClusterFit(state, prior, prior, np.ones(count, dtype=np.bool_), expected)


def _refined(fit: ClusterFit, expected: float) -> ClusterFit:
    """Return the fit with the linear model solved, then scatter, pull and use of the rows computed anew."""
    state = fit.state
    known = fit.known_by(fit.used)
    missed = state.target - state.slopes @ known.mean
    rows = float(np.sum(fit.used)) - 1.0
    # An error that all rows share is the cluster's, not a row's: rows scatter about the median error.
    errors, scatter = np.abs(missed), np.abs(missed - (np.median(missed[fit.used]) if rows else 0.0))
    about = np.einsum("rc,cd,rd->r", state.slopes, known.covariance, state.slopes)
    seen = np.sqrt((_MAD * float(np.median(scatter[fit.used]))) ** 2 + np.mean(about[fit.used]))
    rows = max(rows, 1.0)
    noise = float(np.exp((rows * np.log(seen) + FEW_ROWS * np.log(expected)) / (rows + FEW_ROWS)))
    usual = max(noise, _MAD * float(np.median(errors[fit.used])))
    state = replace(state, noise=np.full(len(errors), noise), pull=np.maximum(1.0, errors / usual / HUBER))
    return replace(fit, state=state, known=known, used=errors <= OUTLIER * usual, noise=noise)


def is_starved(sample: Sample, coefficients: Coefficients) -> bool:
    """Tell whether a run was short of memory, by its prediction and by its own figure.

    A prediction alone decides nothing: its coefficients may be wrong.
    """
    usable = sample.scenario.hardware.usable_memory_bytes
    memory = sample.row.memory_bytes if sample.row.compares_with == "device" else None
    if memory is None or memory < FULL * usable:
        return False
    return predict_device_memory(sample, coefficients) > coefficients.memory.starved_from * usable
