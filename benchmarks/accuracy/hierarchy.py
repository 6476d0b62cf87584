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
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.evidence.calibration.cluster import (
    HUBER,
    Design,
    Gauss,
    Linearization,
    Message,
    Sample,
    design_of,
    linearised,
    names_of,
    sort_of,
)
from simulator.question.arrays import Mask, Matrix, Vector
from simulator.question.coefficients import CoefficientKind, Coefficients

Labels = NDArray[np.str_]

MOST_ROWS = 15
"""Most rows that a source counts for: its rows share its peculiarities."""
LEAST_NOISE = 0.003
"""Smallest relative scatter of a source's rows, by the digits that figures are printed with."""
FIRST_NOISE = 0.08
"""Relative scatter that learning starts from."""
_SHARED = 8.0
"""Weight, in sources, of the belief that a coefficient differs between clusters as the others do."""
_SHRINK = 4.0
"""Weight, in rows, of the belief that a source scatters as the others do."""
SORTS: Mapping[CoefficientKind, tuple[str, ...]] = {
    "time": ("dense", "moe"),
    "memory": ("allocated", "reserved", "device"),
}
"""Sorts of rows that scatter alike: of time kinds of models, of memory kinds of figures."""


class SourcesDesign(Design):
    """Rows of many sources with their place in the hierarchy."""

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


def design(kind: CoefficientKind, samples: Sequence[Sample], base: Coefficients | None = None) -> SourcesDesign:
    """Return the design of the samples whose figure of this kind counts."""
    base = base or Coefficients()
    counted = [sample for sample in samples if sample.counts(kind)]
    rows = design_of(kind, counted, names_of(kind, base), base)
    return SourcesDesign(
        **{field.name: getattr(rows, field.name) for field in fields(rows)},
        families=np.array([s.scenario.hardware.family for s in counted]),
        sources=np.array([s.row.table for s in counted]),
        organisations=np.array([s.row.organisation or s.row.table for s in counted]),
        groups=np.array([f"{s.row.table}/{sort_of(kind, s)}" for s in counted]),
    )


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


def wider(known: Gauss, spread: float | Vector) -> Gauss:
    """Return the distribution with a deviation of `spread` added."""
    return Gauss(known.mean, known.covariance + np.diag(np.broadcast_to(np.square(spread), known.mean.shape)))


def lifted(message: Message, spread: float | Vector) -> Message:
    """Return the message to the level above, from which its coefficients deviate by `spread`."""
    # Information A and variances D: (A^-1 + D)^-1 = (1 + A D)^-1 A.
    scaled = message.information * np.broadcast_to(np.square(spread), message.vector.shape)
    sides = np.column_stack([message.information, message.vector])
    solved = np.asarray(np.linalg.solve(np.eye(len(message.vector)) + scaled, sides), dtype=np.float64)
    information = solved[:, :-1]
    return Message((information + information.T) / 2.0, solved[:, -1])


class Hierarchy(Linearization):
    """A design of many sources with the spreads between them, linear around a point."""

    design: SourcesDesign
    hyper: Hyper

    def capped(self, rows: Mask) -> Message:
        """Return the message of one source's rows to others, weighed as MOST_ROWS rows at most."""
        message, share = self.message(rows), 1.0 / max(1.0, np.sum(rows) / MOST_ROWS)
        return Message(share * message.information, share * message.vector)

    def shared(self, without: Collection[str], family: str) -> Gauss:
        """Return the prior of a family from all others, its own deviation included, ignoring sources in `without`."""
        others = frozenset(without).difference(self._by_family.get(family, ()))
        if (family, others) not in self._shared:
            count = len(self.design.names)
            message = Message(np.zeros((count, count)), np.zeros(count))
            for other in self._by_family:
                if other != family:
                    message += self._lifted(other, others)
            known = Gauss(np.zeros(count), np.eye(count)).updated(message)
            self._shared[family, others] = wider(known, self.hyper.family)
        return self._shared[family, others]

    def family(self, name: str, without: Collection[str] = ()) -> Gauss:
        """Return the distribution of a family's coefficients, ignoring sources in `without`."""
        place = (name, frozenset(without))
        if place not in self._families:
            others = self.shared(without, name)
            known = others.updated(self._of_family(name, without)) if name in self._by_family else others
            self._families[place] = known
        return self._families[place]

    def unseen(self, family: str, without: Collection[str] = ()) -> Gauss:
        """Return the distribution of a cluster of a family without rows of its own."""
        place = (family, frozenset(without))
        if place not in self._unseen:
            self._unseen[place] = wider(self.family(family, without), self.hyper.cluster)
        return self._unseen[place]

    def cluster(self, source: str, rows: Mask | None = None, *, cap: bool = False) -> Gauss:
        """Return the distribution of a source's cluster, from its own rows (or only some of them) and all others."""
        if rows is None and (source, cap) in self._clusters:
            return self._clusters[source, cap]
        mine = self.design.sources == source
        family = str(self.design.families[mine][0])
        message = (self.capped if cap else self.message)(mine if rows is None else rows)
        known = self.unseen(family, {source}).updated(message)
        if rows is None:
            few = np.sum(mine) <= MOST_ROWS  # the cap changes nothing
            self._clusters.update(dict.fromkeys([(source, True), (source, False)] if few else [(source, cap)], known))
        return known

    def restricted(self, rows: Mask) -> Hierarchy:
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
        return Hierarchy(part, self.noise[at], self.slopes[at], self.target[at], self.pull[at], self.hyper)

    def shares(self, family: str) -> dict[str, Vector]:
        """Return the information of each source on a family's coefficients, in units of the priors'."""
        same = self._by_family.get(family, ())
        return {
            source: np.diag((message if source in same else lifted(message, 2.0**0.5 * self.hyper.family)).information)
            for source, message in self._source_messages.items()
        }

    @cached_property
    def _source_messages(self) -> dict[str, Message]:
        """Message of each source on its family."""
        sources = self.design.sources
        return {str(s): lifted(self.capped(sources == s), self.hyper.cluster) for s in dict.fromkeys(sources)}

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
    def _messages(self) -> dict[tuple[str, ...], Message]:
        return {}

    @cached_property
    def _lifted_messages(self) -> dict[tuple[str, ...], Message]:
        return {}

    @cached_property
    def _shared(self) -> dict[tuple[str, frozenset[str]], Gauss]:
        return {}

    @cached_property
    def _families(self) -> dict[tuple[str, frozenset[str]], Gauss]:
        return {}

    @cached_property
    def _unseen(self) -> dict[tuple[str, frozenset[str]], Gauss]:
        return {}

    @cached_property
    def _clusters(self) -> dict[tuple[str, bool], Gauss]:
        return {}

    def _of_family(self, family: str, without: Collection[str]) -> Message:
        """Return the message of a family's sources on the family."""
        asked = tuple(self.sources(family, without))
        if asked not in self._messages:
            count = len(self.design.names)
            message = Message(np.zeros((count, count)), np.zeros(count))
            for source in asked:
                message += self._source_messages[source]
            self._messages[asked] = message
        return self._messages[asked]

    def _lifted(self, family: str, without: Collection[str]) -> Message:
        """Return the message of a family's sources on the level above."""
        asked = tuple(self.sources(family, without))
        if asked not in self._lifted_messages:
            self._lifted_messages[asked] = lifted(self._of_family(family, without), self.hyper.family)
        return self._lifted_messages[asked]


def noises(design: SourcesDesign, hyper: Hyper) -> Vector:
    """Return the scatter of each row, by its group."""
    pairs = zip(design.groups, design.families, strict=True)
    return np.array([scatter_of(hyper, str(group), str(family)) for group, family in pairs])


def scatter_of(hyper: Hyper, group: str, family: str = "") -> float:
    """Return the relative scatter of a group of rows; of an unseen group, that of its family and sort, or its sort."""
    sort = group.rpartition("/")[2]
    known = (hyper.noise[name] for name in (group, f"{family}/{sort}", sort) if name in hyper.noise)
    return next(known, FIRST_NOISE)


def expected_deviation(state: Linearization, known: Gauss, index: int, scatter: float) -> float:
    """Return the relative standard deviation of a row predicted by `known`, its scatter included."""
    slopes = state.slopes[index]
    return float(np.sqrt(slopes @ known.covariance @ slopes + scatter**2))


def unseen_scatter(state: Hierarchy, sort: str, family: str) -> float:
    """Return the relative scatter of an unseen source.

    Memory beside the allocator is a matter of the devices' driver, and scatters by family. Speed scatters as the sort
    does everywhere: the few sources of a family say little of the next one's.
    """
    return scatter_of(state.hyper, sort, family if state.design.kind == "memory" else "")


def learned(state: Hierarchy, rounds: int, without: Collection[str] = ()) -> Hierarchy:
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
        noise = noises(state.design, hyper)
        state = replace(state, hyper=hyper, noise=noise, pull=np.maximum(1.0, np.abs(residuals) / noise / HUBER))
    return state


def _residuals(state: Hierarchy, without: Collection[str]) -> tuple[Vector, Vector]:
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


def _scatter(design: SourcesDesign, asked: Mask, squares: Vector) -> dict[str, float]:
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


def at_priors(design: SourcesDesign) -> tuple[Matrix, Vector]:
    """Return slopes and targets of all rows around the priors, where a fit starts."""
    return linearised(design, [design.centre] * len(design.samples))


def hierarchical(
    design: SourcesDesign, *, passes: int = 4, rounds: int = 8, start: tuple[Matrix, Vector] | None = None
) -> Hierarchy:
    """Fit all levels to all rows; `start` is `at_priors` where several fits share it."""
    sources = dict.fromkeys(design.sources.tolist())
    hyper = Hyper(0.5, np.full(len(design.names), 0.5), {})
    slopes, target = start or at_priors(design)
    state = Hierarchy(design, noises(design, hyper), slopes, target, np.ones(len(target)), hyper)
    for _ in range(passes):
        state = learned(state, rounds)
        by_source = {source: state.point(state.cluster(source)) for source in sources}
        slopes, target = linearised(design, [by_source[source] for source in design.sources.tolist()])
        state = replace(state, slopes=slopes, target=target)
    return learned(state, rounds)
