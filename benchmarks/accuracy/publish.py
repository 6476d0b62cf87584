"""Shipped calibrations from the hierarchical fit. Run by `tools.regenerate`, never by a question."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from benchmarks.accuracy.hierarchy import SORTS, Hierarchy, unseen_scatter
from benchmarks.accuracy.holdouts import family_coverage
from benchmarks.accuracy.judge import SourcesJudged
from simulator._version import __version__
from simulator.evidence.calibration.cluster import Gauss, Sample
from simulator.evidence.calibration.store import OTHER_FAMILY, Calibration, FittedPart, range_of
from simulator.question.coefficients import priors

_SHARE = 0.05
"""Smallest share of the information on a coefficient for which a source is named."""


def published(judged: Sequence[SourcesJudged]) -> tuple[Calibration, ...]:
    """Return the calibrations of all families with rows, and the one for families without."""
    families = dict.fromkeys(f for sources in judged for f in sources.state.design.families.tolist())
    return tuple(_calibration(judged, name) for name in (*sorted(families), OTHER_FAMILY))


def _calibration(judged: Sequence[SourcesJudged], family: str) -> Calibration:
    parts = {each.kind: unseen_part(each, family) for each in judged}
    samples = [s for each in judged for s in _samples(each.state, family)]
    sources = {s.row.table for each in judged for s in (samples or each.state.design.samples)}
    return Calibration(
        family=family,
        tool_version=__version__,
        tables=tuple(sorted(sources)),
        memory=parts.get("memory"),
        time=parts.get("time"),
        range=range_of((s.scenario, s.layout) for s in {s.key: s for s in samples}.values()),
    )


def _samples(state: Hierarchy, family: str) -> Iterator[Sample]:
    """Yield the samples of a family."""
    for sample, name in zip(state.design.samples, state.design.families, strict=True):
        if family == name:
            yield sample


def unseen_part(judged: SourcesJudged, family: str, without: Collection[str] = ()) -> FittedPart:
    """Return the coefficients of a family's cluster without rows of its own, ignoring sources in `without`."""
    state = judged.state
    asked = state.restricted(~np.isin(state.design.sources, list(without)))
    known = state.unseen(family, without)
    usual, *others = SORTS[judged.kind] if judged.kind == "time" else tuple(reversed(SORTS[judged.kind]))
    values = _values(judged, known)
    scale = values * state.design.spread
    noise = {sort: unseen_scatter(state, sort, family) for sort in (usual, *others)}
    return FittedPart(
        values=dict(zip(state.design.names, values.tolist(), strict=True)),
        covariance=known.covariance * np.outer(scale, scale),
        noise=noise[usual],
        rows_used=tuple(sample.key for sample in _samples(state, family)),
        rows_left_out={},
        decided_by=dict(zip(state.design.names, _decided(state, family), strict=True)),
        noise_by=noise,
        sizes=judged.sizes(without),
        coverage=family_coverage(asked, family),
    )


def _values(judged: SourcesJudged, known: Gauss) -> np.ndarray:
    bounds = [priors(judged.kind)[name] for name in judged.state.design.names]
    values = np.exp(judged.state.point(known))
    return np.clip(values, [max(b.low, 1e-12) for b in bounds], [b.high for b in bounds])


def _decided(state: Hierarchy, family: str) -> Iterator[tuple[str, ...]]:
    """Yield, for each coefficient, the sources with the largest shares of the information on it."""
    shares = state.shares(family)
    for column in range(len(state.design.names)):
        by_source = {source: float(share[column]) for source, share in shares.items()}
        total = 1.0 + sum(by_source.values())
        deciding = sorted((s for s in by_source if by_source[s] > _SHARE * total), key=lambda s: (-by_source[s], s))
        yield tuple(deciding[:4])
