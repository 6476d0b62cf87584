"""The hierarchical fit: coefficients of all devices, how a device family deviates from them, and a cluster from both.

`ln(measured) = ln(predicted(x)) + noise` with `x = g + d(family) + u(source)`, x the logarithms of the coefficients:
`g` has the priors' spreads, `d` the same times one factor, `u` the same times a factor of each coefficient, both
learned from the rows: a coefficient in which sources differ passes on little. Around a point the model is linear and
all is Gaussian: a source sends one information matrix and vector of its coefficients to its family, which sends them on
to all. Leaving a source out is leaving its message out, and a few rows of one are a smaller message. The model is
linearised anew at each solution (Gauss-Newton). A source counts for at most `MOST_ROWS` rows in what it says of
others, and a row beyond two deviations pulls less (Huber).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.evidence.calibration.gauss import Gauss, Message
from simulator.evidence.calibration.sample import Sample, measured, predict
from simulator.question.arrays import Mask, Matrix, Vector
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, priors

Labels = NDArray[np.str_]
Belief = Literal["posterior", "factor", "prior"]
"""Effect of own rows: they update every coefficient, one common factor, or nothing."""

MOST_ROWS = 15
"""Most rows that a source counts for: its rows share its peculiarities."""
HUBER = 2.0
"""Deviations of a row's noise beyond which its weight falls."""
LEAST_NOISE = 0.003
"""Smallest relative scatter of a source's rows, by the digits that figures are printed with."""
FIRST_NOISE = 0.08
"""Relative scatter that learning starts from."""
HELPED: Mapping[CoefficientKind, float] = {"time": 2.33, "memory": 0.5}
"""Gain of own rows from which they are believed, in deviations of the scatter of their mean.

Of time, chance reaches it one time in 100. Memory is the same in every run of a layout, so that less suffices.
"""
OFFSET = 0.05
"""Least spread of one factor on all runs of a cluster, however well it is known: its software may have changed."""
_LEAST_OWN = 2
_STEP = 0.01
"""Change of a coefficient's logarithm by which slopes are taken."""
_SHARED = 8.0
"""Weight, in sources, of the belief that a coefficient differs between clusters as the others do."""
_SHRINK = 4.0
"""Weight, in rows, of the belief that a source scatters as the others do."""


@dataclass(frozen=True, slots=True)
class Design:
    """Rows of one kind with their place in the hierarchy."""

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
    families: Labels
    """Device family of each row."""
    sources: Labels
    """Source of each row: its table."""
    organisations: Labels
    """Organisation that ran each row."""
    groups: Labels
    """Group of each row, `SOURCE/SORT`, within which rows scatter alike."""

    def sort(self, index: int) -> str:
        """Return the sort of a row: `dense` or `moe`; of memory the kind of figure."""
        return str(self.groups[index]).rpartition("/")[2]

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


def design(kind: CoefficientKind, samples: Sequence[Sample], base: Coefficients | None = None) -> Design:
    """Return the design of the samples whose figure of this kind counts."""
    base = base or Coefficients()
    return design_of(kind, [s for s in samples if s.counts(kind)], names_of(kind, base), base)


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
        families=np.array([s.scenario.hardware.family for s in samples]),
        sources=np.array([s.row.table for s in samples]),
        organisations=np.array([s.row.organisation or s.row.table for s in samples]),
        groups=np.array([f"{s.row.table}/{sort_of(kind, s)}" for s in samples]),
    )


def sort_of(kind: CoefficientKind, sample: Sample) -> str:
    """Return the sort of a row: `dense` or `moe`; of memory the kind of figure."""
    if kind == "memory":
        return sample.row.compares_with or "device"
    return "moe" if sample.scenario.model.is_moe else "dense"


SORTS: Mapping[CoefficientKind, tuple[str, ...]] = {
    "time": ("dense", "moe"),
    "memory": ("allocated", "reserved", "device"),
}
"""Sorts of rows that scatter alike: of time kinds of models, of memory kinds of figures."""


@dataclass(frozen=True, slots=True)
class Hyper:
    """Spreads and scatter learned from the rows."""

    family: float
    """Spread of a device family's coefficients, in spreads of the priors."""
    cluster: float | Vector
    """Spread of each coefficient of a cluster around its family's, in spreads of the priors."""
    noise: Mapping[str, float]
    """Relative scatter by group of rows, `SOURCE/SORT`; of a source not seen under `FAMILY/SORT`, and of a family not
    seen under the sort alone."""


@dataclass(frozen=True)
class Linearization:
    """Design with its spreads, linearised around a point."""

    design: Design
    hyper: Hyper
    slopes: Matrix
    """Slopes of the rows by the coefficients in spreads of the priors, shape (rows, coefficients)."""
    target: Vector
    """Logarithms measured, less those predicted under the priors by the linear model."""
    pull: Vector
    """Factor on each row's variance, above 1 for outliers."""

    def message(self, rows: Mask, *, cap: bool = True) -> Message:
        """Return the message of rows of one source on its coefficients; `cap` counts them as MOST_ROWS at most."""
        variance = self._variance[rows]
        if cap:
            variance = variance * max(1.0, np.sum(rows) / MOST_ROWS)
        weighted = self.slopes[rows].T / variance
        return Message(weighted @ self.slopes[rows], weighted @ self.target[rows])

    def shared(self, without: Collection[str], family: str) -> Gauss:
        """Return the prior of a family from all others, its own deviation included, ignoring sources in `without`."""
        others = frozenset(without).difference(self._by_family.get(family, ()))
        if (family, others) not in self._shared:
            count = len(self.design.names)
            message = Message(np.zeros((count, count)), np.zeros(count))
            for other in self._by_family:
                if other != family:
                    message += self._of_family(other, others)[1]
            prior = Gauss(np.zeros(count), np.eye(count))
            self._shared[family, others] = prior.updated(message).wider(self.hyper.family)
        return self._shared[family, others]

    def family(self, name: str, without: Collection[str] = ()) -> Gauss:
        """Return the distribution of a family's coefficients, ignoring sources in `without`."""
        place = (name, frozenset(without))
        if place not in self._families:
            others = self.shared(without, name)
            known = others.updated(self._of_family(name, without)[0]) if name in self._by_family else others
            self._families[place] = known
        return self._families[place]

    def unseen(self, family: str, without: Collection[str] = ()) -> Gauss:
        """Return the distribution of a cluster of a family without rows of its own."""
        return self.family(family, without).wider(self.hyper.cluster)

    def cluster(self, source: str, rows: Mask | None = None, *, cap: bool = False) -> Gauss:
        """Return the distribution of a source's cluster, from its own rows (or only some of them) and all others."""
        mine = self.design.sources == source
        family = str(self.design.families[mine][0])
        message = self.message(mine if rows is None else rows, cap=cap)
        return self.unseen(family, {source}).updated(message)

    def posterior(self, prior: Gauss, rows: Mask, belief: Belief) -> Gauss:
        """Return the distribution of a source's cluster with some of its rows, as far as they are believed."""
        if belief == "prior" or not rows.any():
            return prior
        slopes, variance = np.mean(self.slopes[rows], axis=0), np.mean(self._variance[rows]) / np.sum(rows)
        prior = self._movable(prior, slopes)
        if belief == "posterior":
            return prior.updated(self.message(rows, cap=False))
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
        mine = np.flatnonzero(rows)
        if len(mine) < _LEAST_OWN:
            return "posterior"
        needed = HELPED[self.design.kind] * np.sqrt(np.mean(noises(self.design, self.hyper)[rows] ** 2) / len(mine))
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

    def restricted(self, rows: Mask) -> Linearization:
        """Return the model with only some of the rows."""
        whole, at = self.design, np.flatnonzero(rows)
        part = replace(
            whole,
            samples=tuple(whole.samples[i] for i in at),
            logs=whole.logs[at],
            families=whole.families[at],
            sources=whole.sources[at],
            organisations=whole.organisations[at],
            groups=whole.groups[at],
        )
        return Linearization(part, self.hyper, self.slopes[at], self.target[at], self.pull[at])

    def point(self, known: Gauss) -> Vector:
        """Return the logarithms of the coefficients."""
        return np.asarray(self.design.centre + self.design.spread * known.mean)

    def shares(self, family: str) -> dict[str, Vector]:
        """Return the information of each source on a family's coefficients, in units of the priors'."""
        same = self._by_family.get(family, ())
        return {
            source: np.diag((message if source in same else message.lifted(2.0**0.5 * self.hyper.family)).information)
            for source, message in self._source_messages.items()
        }

    def deviation(self, known: Gauss, index: int, group: str) -> float:
        """Return the relative standard deviation of a row predicted by `known`, its scatter included."""
        slopes = self.slopes[index]
        scatter = scatter_of(self.hyper, group, str(self.design.families[index]))
        return float(np.sqrt(slopes @ known.covariance @ slopes + scatter**2))

    @cached_property
    def _variance(self) -> Vector:
        return np.asarray(noises(self.design, self.hyper) ** 2 * self.pull)

    @cached_property
    def _source_messages(self) -> dict[str, Message]:
        """Message of each source on its family."""
        sources = self.design.sources
        return {str(s): self.message(sources == s).lifted(self.hyper.cluster) for s in dict.fromkeys(sources)}

    @cached_property
    def _by_family(self) -> dict[str, list[str]]:
        """Sources of each family."""
        sources: dict[str, list[str]] = {}
        for source, family in dict(
            zip(self.design.sources.tolist(), self.design.families.tolist(), strict=True)
        ).items():
            sources.setdefault(family, []).append(source)
        return sources

    def sources(self, family: str, without: Collection[str] = ()) -> list[str]:
        """Return the sources of a family but those in `without`."""
        return [source for source in self._by_family[family] if source not in without]

    @cached_property
    def _messages(self) -> dict[tuple[str, ...], tuple[Message, Message]]:
        return {}

    @cached_property
    def _shared(self) -> dict[tuple[str, frozenset[str]], Gauss]:
        return {}

    @cached_property
    def _families(self) -> dict[tuple[str, frozenset[str]], Gauss]:
        return {}

    def _of_family(self, family: str, without: Collection[str]) -> tuple[Message, Message]:
        """Return the messages of a family's sources on the family and on the level above."""
        asked = tuple(self.sources(family, without))
        if asked not in self._messages:
            count = len(self.design.names)
            message = Message(np.zeros((count, count)), np.zeros(count))
            for source in asked:
                message += self._source_messages[source]
            self._messages[asked] = (message, message.lifted(self.hyper.family))
        return self._messages[asked]


def noises(design: Design, hyper: Hyper) -> Vector:
    """Return the scatter of each row, by its group."""
    pairs = zip(design.groups, design.families, strict=True)
    return np.array([scatter_of(hyper, str(group), str(family)) for group, family in pairs])


def scatter_of(hyper: Hyper, group: str, family: str = "") -> float:
    """Return the relative scatter of a group of rows; of an unseen group, that of its family and sort, or its sort."""
    sort = group.rpartition("/")[2]
    known = (hyper.noise[name] for name in (group, f"{family}/{sort}", sort) if name in hyper.noise)
    return next(known, FIRST_NOISE)


def unseen_scatter(state: Linearization, sort: str, family: str) -> float:
    """Return the relative scatter of an unseen source.

    Memory beside the allocator is a matter of the devices' driver, and scatters by family. Speed scatters as the sort
    does everywhere: the few sources of a family say little of the next one's.
    """
    return scatter_of(state.hyper, sort, family if state.design.kind == "memory" else "")


def learned(state: Linearization, rounds: int, without: Collection[str] = ()) -> Linearization:
    """Learn spreads, scatter and outliers by expectation maximisation from all sources but those in `without`."""
    for _ in range(rounds):
        residuals, about = _residuals(state, without)
        clusters, families = [], []
        for family in dict.fromkeys(state.design.families.tolist()):
            sources = state.sources(family, without)
            if not sources:
                continue
            above = state.shared(without, family)
            families.append(_second_moment(above, state.family(family, without), state.hyper.family))
            for source in sources:
                above = state.unseen(family, {source, *without})
                clusters.append(_second_moment(above, state.cluster(source, cap=True), state.hyper.cluster))
        asked = ~np.isin(state.design.sources, list(without))
        hyper = Hyper(
            family=float(np.sqrt(np.mean(families))),
            cluster=np.sqrt((np.sum(clusters, axis=0) + _SHARED * np.mean(clusters)) / (len(clusters) + _SHARED)),
            noise=_scatter(state.design, asked, (residuals**2 + about) / state.pull),
        )
        pull = np.maximum(1.0, np.abs(residuals) / noises(state.design, hyper) / HUBER)
        state = replace(state, hyper=hyper, pull=pull)
    return state


def _residuals(state: Linearization, without: Collection[str]) -> tuple[Vector, Vector]:
    """Return each row's residual under its source's coefficients, and its variance by them."""
    residuals, about = state.target.copy(), np.zeros_like(state.target)
    for source in dict.fromkeys(state.design.sources.tolist()):
        if source not in without:
            mine = state.design.sources == source
            known = state.cluster(source)
            residuals[mine] -= state.slopes[mine] @ known.mean
            about[mine] = np.einsum("rc,cd,rd->r", state.slopes[mine], known.covariance, state.slopes[mine])
    return residuals, about


def _second_moment(above: Gauss, below: Gauss, spread: float | Vector) -> Vector:
    """Return E[v^2] of each coefficient's deviation v of `below` from the level above; `above` includes its spread."""
    variance = np.broadcast_to(np.square(spread), above.mean.shape)
    gain = variance[:, None] * np.linalg.inv(above.covariance)
    mean = gain @ (below.mean - above.mean)
    covariance = np.diag(variance) - gain @ (above.covariance - below.covariance) @ gain.T
    return np.asarray(np.square(mean) + np.diag(covariance))


def _scatter(design: Design, asked: Mask, squares: Vector) -> dict[str, float]:
    """Return the scatter of each group of rows, and the usual one of each family and sort, and of each sort."""
    families = dict(zip(design.groups[asked].tolist(), design.families[asked].tolist(), strict=True))
    mine = {group: squares[(design.groups == group) & asked] for group in families}
    result = {}
    for sort in SORTS[design.kind]:
        groups = [group for group in mine if group.endswith(f"/{sort}")]
        usual = _usual([mine[group] for group in groups], FIRST_NOISE**2)
        result[sort] = float(np.sqrt(usual))
        for family in dict.fromkeys(families[group] for group in groups):
            same = [group for group in groups if families[group] == family]
            # As if one more source of the family scattered as all do.
            typical = _usual([*(mine[group] for group in same), np.array([usual])], usual)
            result[f"{family}/{sort}"] = float(np.sqrt(typical))
            for group in same:
                shrunk = (mine[group].sum() + _SHRINK * typical) / (len(mine[group]) + _SHRINK)
                result[group] = max(float(np.sqrt(shrunk)), LEAST_NOISE)
    return result


def _usual(squares: Sequence[Vector], without: float) -> float:
    """Return the geometric mean of the groups' mean squares; `without` where there is no group."""
    return float(np.exp(np.mean([np.log(np.mean(values)) for values in squares]))) if squares else without


def linearised(design: Design, by_source: Mapping[str, Vector]) -> tuple[Matrix, Vector]:
    """Return slopes and targets of all rows around each source's coefficients."""
    slopes, target = np.zeros((len(design.samples), len(design.names))), np.zeros(len(design.samples))
    for index, source in enumerate(design.sources):
        at = by_source[str(source)]
        value, by_logarithm = design.slopes(index, at)
        target[index] = design.logs[index] - value + by_logarithm @ (at - design.centre)
        slopes[index] = by_logarithm * design.spread
    return slopes, target


def hierarchical(design: Design, *, passes: int = 4, rounds: int = 8) -> Linearization:
    """Fit all levels to all rows."""
    sources = dict.fromkeys(design.sources.tolist())
    slopes, target = linearised(design, dict.fromkeys(sources, design.centre))
    state = Linearization(design, Hyper(0.5, np.full(len(design.names), 0.5), {}), slopes, target, np.ones(len(target)))
    for _ in range(passes):
        state = learned(state, rounds)
        by_source = {source: state.point(state.cluster(source)) for source in sources}
        slopes, target = linearised(design, by_source)
        state = replace(state, slopes=slopes, target=target)
    return learned(state, rounds)
