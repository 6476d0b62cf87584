"""How far off the fit of all sources is, row by row: with the row, its source or its organisation left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from simulator.evidence.calibration.hierarchy import (
    MOST_ROWS,
    Design,
    Gauss,
    Linearization,
    design,
    hierarchical,
    learned,
)
from simulator.evidence.calibration.sample import Sample
from simulator.evidence.calibration.uncertainty import NORMAL_90
from simulator.question.arrays import Vector
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind

SEED = 20240717
"""Of the random few rows; printed with what they give."""
FEW = 3
"""Own rows of the few-shot errors."""
DRAWS = 8
"""Random subsets of a source."""
RELEARNED = 3
"""Rounds of learning the spreads again without what is left out."""
LEAST_ROWS = 10
"""Rows from which a class sizes its own intervals."""
FACTORS = (0.5, 3.0)
"""Least and most that leaving sources out may change an interval by."""
PLATFORMS = {"hopper": "H-class", "ampere": "A100", "ascend-910": "Ascend", "blackwell": "Blackwell", "cdna3": "MI300"}
"""What the device families are called in reports."""


@dataclass(frozen=True, slots=True)
class Residual:
    """One prediction of a row: how far off in the logarithm, and what was expected."""

    error: float
    """Predicted over measured, in the logarithm."""
    deviation: float
    """Standard deviation expected of it."""

    @property
    def relative(self) -> float:
        """Predicted over measured, less one."""
        return float(np.expm1(self.error))

    @property
    def half_width(self) -> float:
        """Half of the 90 % interval, as a share."""
        return NORMAL_90 * self.deviation

    @property
    def inside(self) -> bool:
        """Whether the measured figure lies in the 90 % interval."""
        return abs(self.error) <= self.half_width


class Judged(Protocol):
    """How far off one row is under the refits that matter to it."""

    @property
    def source(self) -> str:
        """Table of the row."""

    @property
    def uncalibrated(self) -> float:
        """With the priors: predicted over measured, in the logarithm."""

    @property
    def fitted(self) -> Residual:
        """With all rows."""

    @property
    def known(self) -> Residual:
        """With the other rows of its source, and not itself."""

    @property
    def source_out(self) -> Residual:
        """Without its source."""

    @property
    def organisation_out(self) -> Residual:
        """Without all sources of its organisation."""

    @property
    def few(self) -> tuple[Residual, ...]:
        """With FEW other rows of its source, once for every draw that does not hold it."""


@dataclass(frozen=True, slots=True)
class RowJudged:
    """One row under the refits that matter to it."""

    sample: Sample
    sort: str
    """`dense` or `moe`; of memory the kind of figure."""
    uncalibrated: float
    """With the priors: predicted over measured, in the logarithm."""
    fitted: Residual
    known: Residual
    """With the other rows of its source, and not itself."""
    source_out: Residual
    organisation_out: Residual
    few: tuple[Residual, ...]
    """With FEW other rows of its source, once for every draw that does not hold it."""

    @property
    def source(self) -> str:
        """Table of the row."""
        return self.sample.row.table

    @property
    def platform(self) -> str:
        """Class of the device."""
        family = self.sample.scenario.hardware.family
        return PLATFORMS.get(family, family)

    def widened(self, factor: float) -> RowJudged:
        """The row with the interval it has when its source is left out sized anew."""
        apart = self.source_out
        return replace(self, source_out=Residual(apart.error, factor * apart.deviation))


@dataclass(frozen=True, slots=True)
class SourcesJudged:
    """All rows of one kind, judged."""

    kind: CoefficientKind
    state: Linearization
    rows: tuple[RowJudged, ...]


def judge_sources(kind: CoefficientKind, samples: Sequence[Sample], base: Coefficients | None = None) -> SourcesJudged:
    """Fit all levels to the samples of a kind and judge every row with its source, and its organisation, left out."""
    found = design(kind, samples, base)
    state = hierarchical(found)
    rows: list[RowJudged] = []
    random = np.random.default_rng(SEED)
    for source in dict.fromkeys(found.sources.tolist()):
        rows += _judged_source(state, source, random)
    # Each row's interval is sized by the rows of other sources.
    others = {source: [row for row in rows if row.source != source] for source in {row.source for row in rows}}
    rows = [row.widened(interval_factor(others[row.source], row.platform, row.sort)) for row in rows]
    return SourcesJudged(kind, state, tuple(rows))


def _judged_source(state: Linearization, source: str, random: np.random.Generator) -> Iterator[RowJudged]:
    found = state.design
    mine = np.flatnonzero(found.sources == source)
    family, organisation = str(found.families[mine[0]]), found.organisations[mine[0]]
    alone = learned(state, RELEARNED, {source})
    theirs = set(found.sources[found.organisations == organisation].tolist())
    without = alone if theirs == {source} else learned(state, RELEARNED, theirs)
    fitted, apart, strange = state.cluster(source), alone.unseen(family, {source}), without.unseen(family, theirs)
    few: dict[int, list[Gauss]] = {int(i): [] for i in mine}
    for _ in range(DRAWS if len(mine) > FEW else 0):
        chosen = np.isin(np.arange(len(found.samples)), random.choice(mine, FEW, replace=False))
        told = alone.cluster(source, chosen)
        for index in mine[~chosen[mine]]:
            few[int(index)].append(told)
    for index in mine.tolist():
        others = (found.sources == source) & (np.arange(len(found.samples)) != index)
        known = state.cluster(source, others)
        levels = [(state, fitted, True), (state, known, True), (alone, apart, False), (without, strange, False)]
        levels += [(alone, told, False) for told in few[index]]
        prior, *errors = _errors(found, index, [found.centre, *(state.point(by) for _, by, _ in levels)])
        residuals = [
            Residual(error, _deviation(level, by, index, known=seen))
            for error, (level, by, seen) in zip(errors, levels, strict=True)
        ]
        fitted_to, known_by, source_out, organisation_out, *with_few = residuals
        yield RowJudged(
            sample=found.samples[index],
            sort=found.sort(index),
            uncalibrated=prior,
            fitted=fitted_to,
            known=known_by,
            source_out=source_out,
            organisation_out=organisation_out,
            few=tuple(with_few),
        )


def _errors(found: Design, index: int, points: Sequence[Vector]) -> list[float]:
    """How far off a row is predicted at each point, in the logarithm."""
    errors: list[float] = (found.predicted(index, np.column_stack(points)) - found.logs[index]).tolist()
    return errors


def _deviation(state: Linearization, by: Gauss, index: int, *, known: bool) -> float:
    """Standard deviation expected of a row; a `known` source's rows scatter as they were seen to."""
    found = state.design
    return state.deviation(by, index, str(found.groups[index]) if known else found.sort(index))


def interval_factor(rows: Sequence[RowJudged], platform: str, sort: str) -> float:
    """Factor on the deviation of a cluster never seen by which intervals hold 90 % of such rows.

    Of the class where it has rows enough from sources left out, else of its sort on all platforms, else 1.
    """
    same_sort = [row for row in rows if row.sort == sort]
    for kept in ([row for row in same_sort if row.platform == platform], same_sort):
        if len(kept) >= LEAST_ROWS and len({row.source for row in kept}) > 1:
            weights = {source: sum(row.source == source for row in kept) for source in {row.source for row in kept}}
            each = sorted(
                (abs(row.source_out.error) / row.source_out.deviation, 1.0 / max(weights[row.source], MOST_ROWS))
                for row in kept
            )
            held = np.cumsum([weight for _, weight in each])
            at = float(each[int(np.searchsorted(held, 0.9 * held[-1]))][0]) / NORMAL_90
            return float(np.clip(at, *FACTORS))
    return 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """A group of judged rows; errors are mean absolute relative errors over its rows."""

    rows: int
    sources: int
    uncalibrated: float
    """With the priors."""
    fitted: float
    known: float
    """With the other rows of the source known."""
    source_out: float
    over_sources: float
    """The same, as the mean over sources of each one's mean."""
    bias: float
    """Mean error with the source left out, predicted over measured less one."""
    organisation_out: float
    few: float | None
    """None where no source of the group has more than FEW rows."""
    coverage: float
    """Share inside the 90 % interval with the source left out."""
    half_width: float
    """Mean half-width of that interval."""
    known_coverage: float
    """Share inside the 90 % interval with the other rows of the source known."""
    known_half_width: float


def summary(rows: Iterable[Judged]) -> Summary:
    """Means over some rows, at least one."""
    rows = list(rows)

    def mean(values: Collection[float]) -> float:
        return float(np.mean(list(values)))

    by_source: dict[str, list[float]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(abs(row.source_out.relative))
    few = [abs(judged.relative) for row in rows for judged in row.few]
    return Summary(
        rows=len(rows),
        sources=len(by_source),
        uncalibrated=mean([abs(float(np.expm1(row.uncalibrated))) for row in rows]),
        fitted=mean([abs(row.fitted.relative) for row in rows]),
        known=mean([abs(row.known.relative) for row in rows]),
        source_out=mean([abs(row.source_out.relative) for row in rows]),
        over_sources=mean([mean(errors) for errors in by_source.values()]),
        bias=mean([row.source_out.relative for row in rows]),
        organisation_out=mean([abs(row.organisation_out.relative) for row in rows]),
        few=mean(few) if few else None,
        coverage=mean([row.source_out.inside for row in rows]),
        half_width=mean([row.source_out.half_width for row in rows]),
        known_coverage=mean([row.known.inside for row in rows]),
        known_half_width=mean([row.known.half_width for row in rows]),
    )
