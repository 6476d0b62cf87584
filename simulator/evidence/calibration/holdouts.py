"""Predictions of measured rows with the row, its source, family or stack left out of the fit. Writes no calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from simulator.evidence.calibration.contributions import DIFFERENCE, Unit, difference_unit
from simulator.evidence.calibration.coverage import RowsCoverage, coverage_of, features
from simulator.evidence.calibration.hierarchy import (
    MOST_ROWS,
    SORTS,
    Design,
    Gauss,
    Labels,
    Linearization,
    learned,
    scatter_of,
    unseen_scatter,
)
from simulator.evidence.calibration.sample import Sample
from simulator.evidence.calibration.sizes import fitted_sizes, level_of
from simulator.question.arrays import Mask
from simulator.question.coefficients.values import CoefficientKind

NODES: Final = (64, 256)
"""Devices above which all rows are left out, to see how predictions widen with doublings."""
RELEARNED: Final = 3
"""Rounds of learning the spreads again without what is left out."""
_OTHERS: Final = 30.0
"""Weight of a device family that is left out whole, and most of the predictions that lack one further thing, in rows of
a source."""


class Held(NamedTuple):
    """A row predicted with something left out."""

    left_out: str
    """`source`, `organisation`, `device`, `stack`, `nodes N` or `layout FEATURE`; but for `organisation` and `device`
    its source too."""
    row: int
    """Of the row in the design."""
    source: str
    organisation: str
    family: str
    error: float
    """Predicted over measured, in the logarithm."""
    unit: Unit


class _Part:
    """A fit to a part of all rows, with what it says of each device family."""

    def __init__(self, state: Linearization) -> None:
        self.state = state
        self._families: dict[str, tuple[Gauss, RowsCoverage]] = {}

    def family(self, name: str) -> tuple[Gauss, RowsCoverage]:
        """What is known of a cluster of a family that gave no row, and what the family's rows cover."""
        if name not in self._families:
            self._families[name] = (self.state.unseen(name), family_coverage(self.state, name))
        return self._families[name]


def left_out(state: Linearization) -> tuple[Held, ...]:
    """Every row with its source left out, and with each thing that it has left out of all rows of its kind."""
    known: dict[bytes, _Part] = {}
    result: list[Held] = []
    for name, out, judged in _holdouts(state.design):
        key = out.tobytes()
        if key not in known:
            known[key] = _Part(learned(state.restricted(~out), RELEARNED))
        result += _predicted(state, name, judged, known[key])
    return tuple(result)


def _holdouts(found: Design) -> Iterator[tuple[str, Mask, Mask]]:
    """What is left out, the rows that are, and those that are judged."""
    devices = np.array([sample.scenario.devices for sample in found.samples])
    frameworks = np.array([sample.scenario.framework.name for sample in found.samples])
    present = [features(sample.scenario, sample.layout) for sample in found.samples]
    for labels, name in ((found.sources, "source"), (found.organisations, "organisation"), (found.families, "device")):
        for one in _distinct(labels):
            yield name, labels == one, labels == one
    for source in _distinct(found.sources):
        mine = found.sources == source
        first = int(np.flatnonzero(mine)[0])
        same = (found.families == found.families[first]) & (frameworks == frameworks[first])
        yield "stack", mine | same, mine
        for most in NODES:
            if np.any(judged := mine & (devices > most)):
                yield f"nodes {most}", mine | (devices > most), judged
        for feature in sorted({name for i in np.flatnonzero(mine) for name in present[i]}):
            having = np.array([feature in names for names in present])
            yield f"layout {feature}", mine | (same & having), mine & having


def _distinct(labels: Labels) -> list[str]:
    return list(dict.fromkeys(labels.tolist()))


def _predicted(state: Linearization, name: str, judged: Mask, part: _Part) -> Iterator[Held]:
    """Predictions of the judged rows by a part of all rows."""
    found = state.design
    for index in np.flatnonzero(judged).tolist():
        sample, family = found.samples[index], str(found.families[index])
        sort, slopes = found.sort(index), state.slopes[index]
        known, covered = part.family(family)
        yield Held(
            left_out=name,
            row=index,
            source=str(found.sources[index]),
            organisation=str(found.organisations[index]),
            family=family,
            error=found.error(index, state.point(known)),
            unit=Unit(
                sort=sort,
                coefficients=float(np.sqrt(slopes @ known.covariance @ slopes)),
                # A size of all speed's rows decides how wide their scatter is, so that one value serves for all.
                scatter=unseen_scatter(part.state if state.design.kind == "memory" else state, sort, family),
                distance=covered.distance(sample.scenario, sample.layout),
            ),
        )


class Pair(NamedTuple):
    """Two rows of one source that ask the same of two layouts or stacks, predicted with the source left out."""

    source: str
    measured: float
    """Figure of the first over that of the second, in the logarithm."""
    predicted: float
    unit: Unit
    """Of the difference; what the two share is in neither."""


def pairs(state: Linearization) -> Iterator[Pair]:
    """Every two rows of a source that ask the same question and were measured apart."""
    found = state.design
    for source in _distinct(found.sources):
        mine = found.sources == source
        part = _Part(learned(state.restricted(~mine), RELEARNED))
        known, _ = part.family(str(found.families[mine][0]))
        at = state.point(known)
        errors = {index: found.error(index, at) for index in np.flatnonzero(mine).tolist()}
        for one, other in combinations(errors, 2):
            if _question(found.samples[one]) == _question(found.samples[other]):
                measured = float(found.logs[one] - found.logs[other])
                apart = state.slopes[one] - state.slopes[other]
                scatter = (scatter_of(state.hyper, found.sort(i)) for i in (one, other))
                unit = difference_unit(float(apart @ known.covariance @ apart), *scatter)
                yield Pair(source, measured, measured + errors[one] - errors[other], unit)


def _question(sample: Sample) -> tuple[object, ...]:
    scenario = sample.scenario
    model = (scenario.model.name, scenario.model.num_hidden_layers, scenario.hardware_name, scenario.devices)
    return (*model, scenario.seq_length, scenario.global_batch_size, scenario.precision, scenario.lora_rank)


def pair_sizes(found: Sequence[Pair]) -> dict[str, float]:
    """Sizes of what the difference of two predictions is made of."""
    counts = Counter(pair.source for pair in found)
    weights = np.array([min(1.0, MOST_ROWS / counts[pair.source]) for pair in found])
    errors = np.array([pair.predicted - pair.measured for pair in found])
    levels = np.full(len(found), level_of(len(counts)))
    sizes = fitted_sizes((DIFFERENCE,), [pair.unit for pair in found], errors, weights, levels)
    return {name: size for name, size in sizes.items() if name.endswith(DIFFERENCE)}


def family_coverage(state: Linearization, family: str) -> RowsCoverage:
    """What the rows of a device family cover; of a family without any, what all rows do."""
    found = state.design
    mine = found.families == family
    rows = np.flatnonzero(mine) if mine.any() else range(len(found.samples))
    sources = len(set(found.sources[mine].tolist()))
    return coverage_of(((found.samples[i].scenario, found.samples[i].layout) for i in rows), sources)


def sizes_of(kind: CoefficientKind, held: Sequence[Held]) -> dict[str, float]:
    """Sizes of a range's contributions by predictions with something left out."""
    errors = np.array([one.error for one in held])
    return fitted_sizes(SORTS[kind], [one.unit for one in held], errors, _weights(held), _levels(held))


def _levels(held: Sequence[Held]) -> np.ndarray:
    """Share of the predictions that their ranges hold, by how many sources, organisations or families were left out."""
    field = {"organisation": "organisation", "device": "family"}
    lacking = [one.left_out.partition(" ")[0] for one in held]
    groups: dict[str, set[str]] = {}
    for name, one in zip(lacking, held, strict=True):
        groups.setdefault(name, set()).add(getattr(one, field.get(name, "source")))
    return np.array([level_of(len(groups[name])) for name in lacking])


def _weights(held: Sequence[Held]) -> np.ndarray:
    """Weights of the predictions: with each thing left out a source counts for `MOST_ROWS` rows at most."""
    names, sources, families = (
        np.array([getattr(one, field) for one in held]) for field in ("left_out", "source", "family")
    )
    weights = np.zeros(len(held))
    for name in _distinct(names):
        same = names == name
        for source in _distinct(sources[same]):
            mine = same & (sources == source)
            weights[mine] = min(1.0, MOST_ROWS / np.sum(mine))
        if name == "device":
            for family in _distinct(families[same]):
                mine = same & (families == family)
                weights[mine] *= _OTHERS / weights[mine].sum()
        elif name != "source":
            weights[same] *= min(1.0, _OTHERS / weights[same].sum())
    return weights
