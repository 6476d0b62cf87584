"""The error of the fit of all sources by row, with row, source or organisation left out. Writes no calibration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.hierarchy import (
    Hierarchy,
    design,
    expected_deviation,
    hierarchical,
    learned,
    scatter_of,
)
from benchmarks.accuracy.holdouts import (
    RELEARNED,
    Held,
    Pair,
    PartialFits,
    left_out,
    pair_sizes,
    pairs,
    sizes_of,
)
from simulator.evidence.calibration.apply import NORMAL_90
from simulator.evidence.calibration.cluster import Gauss, Sample
from simulator.evidence.calibration.own import LEFT_OUT, PLATFORMS
from simulator.question.coefficients import CoefficientKind, Coefficients

SEED = 20240717
"""Of the random few rows; printed with what they give."""
FEW = 3
"""Own rows of the few-shot errors."""
DRAWS = 8
"""Random subsets of a source."""


@dataclass(frozen=True, slots=True)
class Residual:
    """Error of one prediction of a row, with the deviation expected of it."""

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


@dataclass(frozen=True, slots=True)
class RowJudged:
    """Measured row with its errors under several refits."""

    sample: Sample
    sort: str
    """`dense` or `moe`; of memory the kind of figure."""
    uncalibrated: float
    """Error with the priors: predicted over measured, in the logarithm."""
    fitted: Residual
    known: Residual
    """With the other rows of its source, and not itself."""
    left_out: Mapping[str, Residual]
    """By what was left out, a word of `holdouts`; its range is sized by the other sources."""
    beyond: bool
    """Whether, with its source left out, it lies beyond the other rows' stacks, nodes or features."""
    few: Mapping[int, Residual]
    """With FEW other rows of its source, by the number of the draw, which does not hold it."""

    @property
    def source(self) -> str:
        """Table of the row."""
        return self.sample.row.table

    @property
    def organisation(self) -> str:
        """Organisation that ran it."""
        return self.sample.row.organisation or self.source

    @property
    def devices(self) -> int:
        """Devices of the run."""
        return self.sample.scenario.devices

    @property
    def platform(self) -> str:
        """Class of the device."""
        family = self.sample.scenario.hardware.family
        return PLATFORMS.get(family, family)

    @property
    def source_out(self) -> Residual:
        """Without its source."""
        return self.left_out["source"]

    @property
    def errors(self) -> Mapping[str, float]:
        """Predicted over measured less one, by what the row was predicted with."""
        return errors_of(self.uncalibrated, self.fitted, self.known, self.left_out)

    @property
    def half_width(self) -> float:
        """Half of the 90 % range with its source left out."""
        return self.source_out.half_width


def errors_of(
    uncalibrated: float, fitted: Residual, known: Residual, left_out: Mapping[str, Residual]
) -> Mapping[str, float]:
    """Predicted over measured less one, by a word of `LEFT_OUT`."""
    residuals = (fitted, known, left_out["source"], left_out["organisation"])
    errors = (float(np.expm1(uncalibrated)), *(residual.relative for residual in residuals))
    return dict(zip(LEFT_OUT, errors, strict=True))


@dataclass(frozen=True, slots=True)
class SourcesJudged:
    """All rows of one kind, judged."""

    kind: CoefficientKind
    state: Hierarchy
    rows: tuple[RowJudged, ...]
    held: tuple[Held, ...]
    """Every prediction with something left out, from which ranges are sized."""

    pairs: tuple[Pair, ...] = ()
    """Of speed, every two rows that a choice of layout or stack tells apart."""

    def sizes(self, without: Collection[str] = ()) -> dict[str, float]:
        """Return the sizes of a range's contributions, ignoring sources in `without`."""
        sizes = sizes_of(self.kind, [each for each in self.held if each.source not in without])
        pairs = [pair for pair in self.pairs if pair.source not in without]
        return sizes | (pair_sizes(pairs) if pairs else {})

    def judged_pairs(self) -> Iterator[tuple[Pair, float]]:
        """Yield every pair with the deviation expected of its difference, sized by other sources."""
        for source in dict.fromkeys(pair.source for pair in self.pairs):
            sizes = pair_sizes([pair for pair in self.pairs if pair.source != source])
            for pair in self.pairs:
                if pair.source == source:
                    yield pair, pair.unit.deviation(sizes)


def judge_sources(kind: CoefficientKind, samples: Sequence[Sample], base: Coefficients | None = None) -> SourcesJudged:
    """Fit all levels to the samples of a kind and judge every row with its source, and more, left out."""
    rows_design = design(kind, samples, base)
    state = hierarchical(rows_design)
    parts = PartialFits(state)
    held = left_out(parts)
    random = np.random.default_rng(SEED)
    sized = _Sized(kind, held)
    rows: list[RowJudged] = []
    for source in dict.fromkeys(rows_design.sources.tolist()):
        rows += _judged_source(state, source, random, sized)
    return SourcesJudged(kind, state, tuple(rows), held, tuple(pairs(parts, held)) if kind == "time" else ())


class _Sized:
    """Residuals whose ranges are sized by other sources than what they lack."""

    def __init__(self, kind: CoefficientKind, held: Sequence[Held]) -> None:
        self._kind, self._held = kind, held
        self._sizes: dict[tuple[str, str], dict[str, float]] = {}
        self.by_row: dict[int, list[Held]] = {}
        for each in held:
            self.by_row.setdefault(each.row, []).append(each)

    def residual(self, prediction: Held) -> Residual:
        """Return the residual of a prediction, its range sized without the source, organisation or family."""
        level = prediction.left_out if prediction.left_out in ("organisation", "device") else "source"
        name = {"organisation": prediction.organisation, "device": prediction.family}.get(level, prediction.source)
        if (level, name) not in self._sizes:
            field = {"organisation": "organisation", "device": "family"}.get(level, "source")
            others = [other for other in self._held if getattr(other, field) != name]
            self._sizes[level, name] = sizes_of(self._kind, others)
        return Residual(prediction.error, prediction.unit.deviation(self._sizes[level, name]))


def _judged_source(state: Hierarchy, source: str, random: np.random.Generator, sized: _Sized) -> Iterator[RowJudged]:
    rows_design = state.design
    mine = np.flatnonzero(rows_design.sources == source)
    family = str(rows_design.families[mine[0]])
    alone = learned(state, RELEARNED, {source})
    fitted, apart = state.cluster(source), alone.unseen(family, {source})
    few: dict[int, dict[int, Gauss]] = {int(i): {} for i in mine}
    for draw in range(DRAWS if len(mine) > FEW else 0):
        chosen = np.isin(np.arange(len(rows_design.samples)), random.choice(mine, FEW, replace=False))
        known = alone.posterior(apart, chosen, alone.belief(apart, chosen))
        for index in mine[~chosen[mine]]:
            few[int(index)][draw] = known
    for index in mine.tolist():
        others = (rows_design.sources == source) & (np.arange(len(rows_design.samples)) != index)
        known = state.cluster(source, others)
        levels = [(state, fitted, True), (state, known, True)]
        levels += [(alone, by, False) for by in few[index].values()]
        prior, *errors = rows_design.errors(index, [rows_design.centre, *(state.point(by) for _, by, _ in levels)])
        residuals = [
            Residual(error, _deviation(level, by, index, known=seen))
            for error, (level, by, seen) in zip(errors, levels, strict=True)
        ]
        fitted_to, known_by, *with_few = residuals
        lacking = {prediction.left_out: prediction for prediction in sized.by_row[index]}
        left_out = {name: sized.residual(prediction) for name, prediction in lacking.items()}
        distance = lacking["source"].unit.distance
        yield RowJudged(
            sample=rows_design.samples[index],
            sort=rows_design.sort(index),
            uncalibrated=prior,
            fitted=fitted_to,
            known=known_by,
            left_out=left_out,
            beyond=bool(distance.device or distance.stack or distance.doublings or distance.features),
            few={
                # A draw of which nothing is learned leaves the row as its source left out does, to the last digit.
                draw: left_out["source"] if by is apart else residual
                for (draw, by), residual in zip(few[index].items(), with_few, strict=True)
            },
        )


def _deviation(state: Hierarchy, by: Gauss, index: int, *, known: bool) -> float:
    """Return the standard deviation expected of a row; `known` uses the scatter seen of its own source."""
    rows_design = state.design
    group = str(rows_design.groups[index]) if known else rows_design.sort(index)
    return expected_deviation(state, by, index, scatter_of(state.hyper, group, str(rows_design.families[index])))
