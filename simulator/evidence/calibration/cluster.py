"""Fit of the coefficients to one cluster's own measured rows, from what is known of such clusters on.

A `Sample` is a measured row prepared for a fit, with its figures predicted under many coefficient sets. Known is a
normal distribution of the coefficients' logarithms: what ships for the family, or the priors. The rows add an
information matrix and vector (`Message`). Around a point the model is linear, and the point moves to the solution
(Gauss-Newton). Rows far outside the scatter of the others are left out, by the median, which they do not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Literal

import numpy as np

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.timing.products import model_flops_per_token
from simulator.cost.timing.step import step_seconds
from simulator.errors import InputError
from simulator.evidence.calibration.store import FittedPart, coverage_of
from simulator.evidence.measurements.question import figures_devices, measured_tflops_per_device, question
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.question.arrays import Mask, Matrix, Vector
from simulator.question.coefficients import CoefficientKind, Coefficients, priors, replaced
from simulator.question.scenario.block import LayoutBlock
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import TERA
from simulator.records import Record, field, replace

DEVICE_TOLERANCE = 0.02
"""Relative disagreement of TFLOPS x time x devices that rounding cannot explain."""


class Sample(Record):
    """Measured row with the inputs of its prediction."""

    row: MeasuredRow
    scenario: Scenario
    layout: Layout
    block: LayoutBlock
    memory: MemoryByStage
    """Memory under the priors; time reads only what no coefficient moves."""

    @property
    def key(self) -> str:
        """Table and row number."""
        return self.row.key

    @property
    def measured_tflops(self) -> float | None:
        """Measured model TFLOP/s per device, in the convention of `model_flops_per_token`."""
        return measured_tflops_per_device(self.row)

    def figure(self, kind: CoefficientKind) -> float | None:
        """Return the measured figure: bytes, or model TFLOP/s per device; None where it was not measured."""
        return self.row.memory_bytes if kind == "memory" else self.measured_tflops

    def counts(self, kind: CoefficientKind) -> bool:
        """Tell whether the figure of a kind is a sample of the stated layout."""
        return self.row.memory_counts if kind == "memory" else self.row.speed_counts


def prepared(rows: Iterable[MeasuredRow]) -> tuple[Sample, ...]:
    """Return samples of the rows that ran and name a known model and hardware."""
    return tuple(sample_of(row) for row in rows if row.outcome == "ok" and row.asks)


def sample_of(row: MeasuredRow) -> Sample:
    """Return the sample of a row on the devices that its own figures give. Raises InputError without a layout."""
    scenario, layout = by_its_figures(row)
    pricing = pricing_of(scenario, layout)
    return Sample(row, scenario, layout, pricing.block, memory_by_stage(pricing))


def by_its_figures(row: MeasuredRow) -> tuple[Scenario, Layout]:
    """Return a row's scenario and layout, on other devices where TFLOPS and step time contradict the stated ones."""
    stated = question(replace(row, devices_from_figures=None))
    implied = figures_devices(row)
    if implied is None or abs(implied / row.devices - 1.0) <= DEVICE_TOLERANCE:
        return stated
    per_node = stated[0].hardware.devices_per_node
    devices = round(implied / per_node) * per_node
    if devices < per_node or abs(implied / devices - 1.0) > DEVICE_TOLERANCE:
        return stated
    try:
        scenario, layout = question(replace(row, devices_from_figures=devices))
    except InputError:
        return stated
    whole = scenario.global_batch_size % (layout.data_parallel * layout.micro_batch_size) == 0
    return (scenario, layout) if whole else stated


def predict(kind: CoefficientKind, sample: Sample, base: Coefficients, names: Sequence[str], values: Vector) -> Vector:
    """Return the predictions of a row, in bytes or model TFLOP/s, for `values` of shape (coefficients, sets)."""
    sets = values.shape[1]
    repeated = np.zeros(sets, dtype=np.intp)
    scenario = replace(sample.scenario, coefficients=replaced(base, kind, names, values))
    pricing = Pricing(scenario, sample.block.take(repeated))
    if kind == "memory":
        memory, row = memory_by_stage(pricing), sample.row
        kinds = {"allocated": memory.allocated, "reserved": memory.reserved, "device": memory.device}
        stages = kinds[row.compares_with or "device"]
        ranks = {"last": stages[-1], "mean": np.mean(stages, axis=0)}
        return np.asarray(ranks[row.memory_rank] if row.memory_rank in ranks else np.max(stages, axis=0))
    seconds = step_seconds(pricing, sample.memory).total
    flops = model_flops_per_token(scenario) * scenario.tokens_per_step
    return np.asarray(flops / seconds / scenario.devices / TERA)


def measured(kind: CoefficientKind, samples: Sequence[Sample]) -> Vector:
    """Return the measured figures of samples that have them: bytes, or TFLOP/s per device."""
    return np.array([sample.figure(kind) for sample in samples], dtype=np.float64)


class Gauss(Record):
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


class Message(Record):
    """Rows' information on coefficients: its matrix, and that matrix times the value that the rows ask for."""

    information: Matrix
    vector: Vector

    def __add__(self, other: Message) -> Message:
        return Message(self.information + other.information, self.vector + other.vector)


Belief = Literal["posterior", "factor", "prior"]
"""Effect of own rows: they update every coefficient, one common factor, or nothing."""

HUBER = 2.0
"""Deviations of a row's noise beyond which its weight falls."""
HELPED: Mapping[CoefficientKind, float] = {"time": 1.75, "memory": 0.5}
"""Gain of own rows from which they are believed, in deviations of the scatter of their mean.

Of time, chance reaches it one time in 25. Memory is the same in every run of a layout, so that less suffices.
"""
OFFSET = 0.05
"""Least spread of one factor on all runs of a cluster, however well it is known: its software may have changed."""
_LEAST_OWN = 2
_STEP = 0.01  # change of a coefficient's logarithm by which slopes are taken


class Design(Record):
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


UNFITTED = tuple(name for name, prior in priors("time").items() if not prior.fitted)
"""Time coefficients that no shipped row decides apart from others; they stay at their priors unless launches planned to
decide them are fitted."""


def names_of(kind: CoefficientKind, base: Coefficients | None = None, *, every: bool = False) -> tuple[str, ...]:
    """Return the coefficients above 0 in `base` that a fit moves; `every` adds those that shipped rows leave open."""
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


class Linearization(Record):
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
        # Widened, by the priors' spreads, until the mean of such runs deviates by `OFFSET` at least.
        spreads = np.array([priors(self.design.kind)[name].spread for name in self.design.names])
        free = np.square(spreads / self.design.spread) * slopes
        unknown = max(OFFSET**2 - float(slopes @ prior.covariance @ slopes), 0.0)
        moves = np.sqrt(unknown) * free / max(float(slopes @ free), 1e-12)
        prior = Gauss(prior.mean, prior.covariance + np.outer(moves, moves))
        if belief == "posterior":
            return prior.updated(self.message(rows))
        information = np.outer(slopes, slopes) / variance
        return prior.updated(Message(information, slopes * np.mean(self.target[rows]) / variance))

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
_SHARE = 0.05  # smallest share of the information on a coefficient for which a row is named
_MAD = 1.4826  # standard deviation over median absolute deviation, of a normal distribution


class Known(Record):
    """Distribution of a cluster's coefficients of one kind before its rows."""

    kind: CoefficientKind
    names: tuple[str, ...]
    values: Vector
    """Values in the coefficients' units."""
    covariance: Matrix
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


class ClusterFit(Record):
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

    def part(self) -> FittedPart:
        """Return the fit as it is stored."""
        # The rows' shares of the information on each coefficient, in deviations of the prior, whose own is then 1.
        information = self.state.slopes[self.used] ** 2 / (self.noise**2 * self.state.pull[self.used])[:, None]
        shares = information / (1.0 + information.sum(axis=0))
        used = compress(self.state.design.samples, self.used)
        decided = {}
        for column, name in enumerate(self.names):
            order = np.argsort(-shares[:, column], kind="stable")[:_NAMED]
            decided[name] = tuple(self.keys[i] for i in order if shares[i, column] > _SHARE)
        return FittedPart(
            values=dict(zip(self.names, self.values.tolist(), strict=True)),
            covariance=self.covariance,
            noise=self.noise,
            rows_used=self.keys,
            rows_left_out={key: self.residuals[key] for key in self.left_out},
            decided_by=decided,
            coverage=coverage_of(((s.scenario, s.layout) for s in used), sources=1),
        )


def fit_cluster(known: Known, samples: Sequence[Sample], base: Coefficients) -> ClusterFit:
    """Fit one kind of coefficients to the rows of a cluster; the others come from `base`."""
    spread = np.maximum(np.sqrt(np.diag(known.covariance)), 1e-9)
    design = replace(design_of(known.kind, samples, known.names, base), centre=np.log(known.values), spread=spread)
    prior = Gauss(np.zeros(len(spread)), known.covariance / np.outer(spread, spread))
    # The scatter expected of the rows is the geometric mean of that of their sorts.
    expected = float(np.exp(np.mean([np.log(known.scatter(sort_of(known.kind, sample))) for sample in samples])))
    count = len(design.samples)
    shape = np.zeros((count, len(design.names)))
    state = Linearization(design, np.full(count, expected), shape, np.zeros(count), np.ones(count))
    fit = ClusterFit(state, prior, prior, np.ones(count, dtype=np.bool_), expected)
    for _ in range(_PASSES):
        at = design.bounded(fit.state.point(fit.known))
        slopes, target = linearised(design, [at] * len(samples))
        fit = replace(fit, state=replace(fit.state, slopes=slopes, target=target))
        for _ in range(_ROUNDS):
            fit = _refined(fit, expected)
    fit = replace(fit, belief=fit.state.belief(prior, fit.used))
    if fit.belief == "factor":
        fit = replace(fit, known=fit.known_by(fit.used))
    at = fit.state.point(fit.known)
    errors = (design.errors(index, [at])[0] for index in range(len(samples)))
    residuals = {s.key: float(np.expm1(error)) for s, error in zip(design.samples, errors, strict=True)}
    return replace(fit, residuals=residuals)


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
    predicted = memory_by_stage(Pricing(replace(sample.scenario, coefficients=coefficients), sample.block)).device
    return bool(np.max(predicted) > coefficients.memory.starved_from * usable)
