"""The hierarchical fit: coefficients of all devices, how a device family deviates from them, and a cluster from both.

`ln(measured) = ln(predicted(x)) + noise` with `x = g + d(family) + u(source)`, x the logarithms of the coefficients:
`g` has the priors' spreads, `d` the same times one factor, `u` the same times a factor of each coefficient, both
learned from the rows: what sources differ in passes on little. Around a point the model is linear and everything is
Gaussian: a source says of its coefficients one information matrix and vector, which pass to its family and from there
to all. Leaving a source out is leaving its message out, and a few rows of one are a smaller message. The point is
moved to the solution until it stays (Gauss-Newton). A source counts for at most `MOST_ROWS` rows in what it says of
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
"""What own rows change: every coefficient that they tell, one direction that their mean tells, or nothing."""

MOST_ROWS = 15
"""Rows that a source counts for at most: its rows share whatever is odd about it."""
HUBER = 2.0
"""Deviations of a row's noise beyond which it pulls less."""
LEAST_NOISE = 0.003
"""Relative scatter below which no source's rows are believed: figures are printed with so many digits."""
FIRST_NOISE = 0.08
"""Relative scatter that learning starts from."""
HELPED: Mapping[CoefficientKind, float] = {"time": 2.33, "memory": 0.5}
"""Deviations of the scatter of a mean of own rows from which their gain is believed.

Of time, chance has it one time in 100. Memory is the same in every run of a layout: what rows show of it is no chance.
"""
OFFSET = 0.05
"""Least spread of one factor on all runs of a cluster, however well it is known: its software may have changed."""
_LEAST_OWN = 2
_STEP = 0.01
"""Change of a coefficient's logarithm by which slopes are taken."""
_SHARED = 8.0
"""Sources' worth of belief that a coefficient differs between clusters as the others do."""
_SHRINK = 4.0
"""Rows' worth of belief that a source scatters as the others do."""


@dataclass(frozen=True, slots=True)
class Design:
    """The rows of one kind with their place in the hierarchy."""

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
    """Who ran each row."""
    groups: Labels
    """Rows that scatter alike: those of one source and sort, `SOURCE/SORT`."""

    def sort(self, index: int) -> str:
        """What a row scatters like: `dense` or `moe`; of memory the kind of figure."""
        return str(self.groups[index]).rpartition("/")[2]

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


def design(kind: CoefficientKind, samples: Sequence[Sample], base: Coefficients | None = None) -> Design:
    """The design of the samples whose figure of this kind counts."""
    base = base or Coefficients()
    return design_of(kind, [s for s in samples if s.counts(kind)], names_of(kind, base), base)


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
        families=np.array([s.scenario.hardware.family for s in samples]),
        sources=np.array([s.row.table for s in samples]),
        organisations=np.array([s.row.organisation or s.row.table for s in samples]),
        groups=np.array([f"{s.row.table}/{sort_of(kind, s)}" for s in samples]),
    )


def sort_of(kind: CoefficientKind, sample: Sample) -> str:
    """What a row scatters like: `dense` or `moe`; of memory the kind of figure."""
    if kind == "memory":
        return sample.row.compares_with or "device"
    return "moe" if sample.scenario.model.is_moe else "dense"


SORTS: Mapping[CoefficientKind, tuple[str, ...]] = {
    "time": ("dense", "moe"),
    "memory": ("allocated", "reserved", "device"),
}
"""What scatters alike: of time the models, of memory the kinds of figure."""


@dataclass(frozen=True, slots=True)
class Hyper:
    """What the rows say of the spreads."""

    family: float
    """Spread of a device family's coefficients, in spreads of the priors."""
    cluster: float | Vector
    """The same for a cluster beside its family's, of each coefficient: what sources differ in most passes on least."""
    noise: Mapping[str, float]
    """Relative scatter by group of rows, `SOURCE/SORT`; of a source not seen under `FAMILY/SORT`, and of a family not
    seen under the sort alone."""


@dataclass(frozen=True)
class Linearization:
    """A design with the spreads, linear around a point."""

    design: Design
    hyper: Hyper
    slopes: Matrix
    """By the coefficients in spreads of the priors, shape (rows, coefficients)."""
    target: Vector
    """Logarithms measured, less those predicted under the priors by the linear model."""
    pull: Vector
    """Factor on a row's variance, for rows far off."""

    def message(self, rows: Mask, *, cap: bool = True) -> Message:
        """What some rows of one source say of its coefficients; `cap` counts them as MOST_ROWS at most."""
        variance = self._variance[rows]
        if cap:
            variance = variance * max(1.0, np.sum(rows) / MOST_ROWS)
        weighted = self.slopes[rows].T / variance
        return Message(weighted @ self.slopes[rows], weighted @ self.target[rows])

    def shared(self, without: Collection[str], family: str) -> Gauss:
        """What all other families say of one, deviation included; sources in `without` are not asked."""
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
        """What is known of a family."""
        place = (name, frozenset(without))
        if place not in self._families:
            others = self.shared(without, name)
            known = others.updated(self._of_family(name, without)[0]) if name in self._by_family else others
            self._families[place] = known
        return self._families[place]

    def unseen(self, family: str, without: Collection[str] = ()) -> Gauss:
        """What is known of a cluster of a family that gave no row."""
        return self.family(family, without).wider(self.hyper.cluster)

    def cluster(self, source: str, rows: Mask | None = None, *, cap: bool = False) -> Gauss:
        """What is known of a source's cluster, from its own rows (or only some of them) and all others."""
        mine = self.design.sources == source
        family = str(self.design.families[mine][0])
        message = self.message(mine if rows is None else rows, cap=cap)
        return self.unseen(family, {source}).updated(message)

    def posterior(self, prior: Gauss, rows: Mask, belief: Belief) -> Gauss:
        """What is known of a source's cluster with some of its rows, as far as they are believed."""
        if belief == "prior" or not rows.any():
            return prior
        slopes, variance = np.mean(self.slopes[rows], axis=0), np.mean(self._variance[rows]) / np.sum(rows)
        prior = self._movable(prior, slopes)
        if belief == "posterior":
            return prior.updated(self.message(rows, cap=False))
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
        needed = HELPED[self.design.kind] * np.sqrt(np.mean(noises(self.design, self.hyper)[rows] ** 2) / len(mine))
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

    def restricted(self, rows: Mask) -> Linearization:
        """The model with only some of the rows."""
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
        """The coefficients' logarithms."""
        return np.asarray(self.design.centre + self.design.spread * known.mean)

    def shares(self, family: str) -> dict[str, Vector]:
        """Information of each source on a family's coefficients, in units of the priors'."""
        same = self._by_family.get(family, ())
        return {
            source: np.diag((message if source in same else message.lifted(2.0**0.5 * self.hyper.family)).information)
            for source, message in self._source_messages.items()
        }

    def deviation(self, known: Gauss, index: int, group: str) -> float:
        """Relative standard deviation of a row predicted by `known`, its scatter included."""
        slopes = self.slopes[index]
        scatter = scatter_of(self.hyper, group, str(self.design.families[index]))
        return float(np.sqrt(slopes @ known.covariance @ slopes + scatter**2))

    @cached_property
    def _variance(self) -> Vector:
        return np.asarray(noises(self.design, self.hyper) ** 2 * self.pull)

    @cached_property
    def _source_messages(self) -> dict[str, Message]:
        """What each source says of its family."""
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
        """Sources of a family that are asked."""
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
        """What the sources of a family say of it, and of the level above."""
        asked = tuple(self.sources(family, without))
        if asked not in self._messages:
            count = len(self.design.names)
            message = Message(np.zeros((count, count)), np.zeros(count))
            for source in asked:
                message += self._source_messages[source]
            self._messages[asked] = (message, message.lifted(self.hyper.family))
        return self._messages[asked]


def noises(design: Design, hyper: Hyper) -> Vector:
    """Scatter of each row by its group."""
    pairs = zip(design.groups, design.families, strict=True)
    return np.array([scatter_of(hyper, str(group), str(family)) for group, family in pairs])


def scatter_of(hyper: Hyper, group: str, family: str = "") -> float:
    """Relative scatter of a group of rows; of one not seen, the usual one of its family and sort, or of its sort."""
    sort = group.rpartition("/")[2]
    known = (hyper.noise[name] for name in (group, f"{family}/{sort}", sort) if name in hyper.noise)
    return next(known, FIRST_NOISE)


def unseen_scatter(state: Linearization, sort: str, family: str) -> float:
    """Relative scatter of a source that was not seen.

    Memory beside the allocator is a matter of the devices' driver, and scatters by family. Speed scatters as the sort
    does everywhere: the few sources of a family say little of the next one's.
    """
    return scatter_of(state.hyper, sort, family if state.design.kind == "memory" else "")


def learned(state: Linearization, rounds: int, without: Collection[str] = ()) -> Linearization:
    """Learn the spreads and the scatter from the sources asked: expectation maximisation, and who is far off."""
    for _ in range(rounds):
        left, about = _left(state, without)
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
            noise=_scatter(state.design, asked, (left**2 + about) / state.pull),
        )
        pull = np.maximum(1.0, np.abs(left) / noises(state.design, hyper) / HUBER)
        state = replace(state, hyper=hyper, pull=pull)
    return state


def _left(state: Linearization, without: Collection[str]) -> tuple[Vector, Vector]:
    """What is left of each row under its own source's coefficients, and that one's variance."""
    left, about = state.target.copy(), np.zeros_like(state.target)
    for source in dict.fromkeys(state.design.sources.tolist()):
        if source not in without:
            mine = state.design.sources == source
            known = state.cluster(source)
            left[mine] -= state.slopes[mine] @ known.mean
            about[mine] = np.einsum("rc,cd,rd->r", state.slopes[mine], known.covariance, state.slopes[mine])
    return left, about


def _second_moment(above: Gauss, below: Gauss, spread: float | Vector) -> Vector:
    """E[v^2] of each coefficient's deviation v of `below` from the level above, whose spread `above` includes."""
    variance = np.broadcast_to(np.square(spread), above.mean.shape)
    gain = variance[:, None] * np.linalg.inv(above.covariance)
    mean = gain @ (below.mean - above.mean)
    covariance = np.diag(variance) - gain @ (above.covariance - below.covariance) @ gain.T
    return np.asarray(np.square(mean) + np.diag(covariance))


def _scatter(design: Design, asked: Mask, squares: Vector) -> dict[str, float]:
    """Scatter of each group of rows, and the usual one of each family and sort, and of each sort."""
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
    """Geometric mean over groups of the mean square of their rows; `without` any group, that."""
    return float(np.exp(np.mean([np.log(np.mean(values)) for values in squares]))) if squares else without


def linearised(design: Design, by_source: Mapping[str, Vector]) -> tuple[Matrix, Vector]:
    """Slopes and targets of all rows around each source's coefficients."""
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
