"""Predictions of measured rows with the row, its source, family or stack left out of the fit. Writes no calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from benchmarks.accuracy.hierarchy import (
    MOST_ROWS,
    SORTS,
    Hierarchy,
    Labels,
    SourcesDesign,
    learned,
    scatter_of,
    unseen_scatter,
)
from benchmarks.accuracy.sizes import fitted_sizes, level_of
from simulator.evidence.calibration.cluster import Gauss, Sample
from simulator.evidence.calibration.store import (
    DIFFERENCE,
    RowsCoverage,
    Unit,
    coverage_of,
    difference_unit,
    features,
    memory_spread,
)
from simulator.question.arrays import Mask, Vector
from simulator.question.coefficients import CoefficientKind

NODES: Final = (64, 256)
"""Devices above which all rows are left out, to see how predictions widen with doublings."""
RELEARNED: Final = 3
"""Rounds of learning the spreads again without what is left out."""
_OTHERS: Final = 30.0
"""Weight, in rows, of a device family that is left out whole; largest weight of all predictions without one further
thing."""


class Held(NamedTuple):
    """Prediction of a row with part of the rows left out of the fit."""

    left_out: str
    """`source`, `organisation`, `device`, `stack`, `nodes N` or `layout FEATURE`; but for `organisation` and `device`
    its source too."""
    row: int
    """Index of the row in the design."""
    source: str
    organisation: str
    family: str
    error: float
    """Predicted over measured, in the logarithm."""
    unit: Unit


class _Part:
    """Fit to a part of the rows, with its results for each device family."""

    def __init__(self, state: Hierarchy) -> None:
        self.state = state
        self._families: dict[str, tuple[Gauss, RowsCoverage]] = {}

    def family(self, name: str) -> tuple[Gauss, RowsCoverage]:
        """Return the distribution of a family's cluster without own rows, and the coverage of the family's rows."""
        if name not in self._families:
            self._families[name] = (self.state.unseen(name), family_coverage(self.state, name))
        return self._families[name]


class PartialFits:
    """Cache of fits to parts of the rows."""

    def __init__(self, state: Hierarchy) -> None:
        self.state = state
        self._parts: dict[bytes, _Part] = {}

    def without(self, out: Mask) -> _Part:
        """Return the fit to the rows that are not left out."""
        key = out.tobytes()
        if key not in self._parts:
            self._parts[key] = _Part(learned(self.state.restricted(~out), RELEARNED))
        return self._parts[key]


def left_out(parts: PartialFits) -> tuple[Held, ...]:
    """Return every row predicted without its source, and without the rows that share each thing it has."""
    design = parts.state.design
    asked = [
        (name, index, parts.without(out))
        for name, out, judged in _holdouts(design)
        for index in np.flatnonzero(judged).tolist()
    ]
    points: dict[int, dict[int, Vector]] = {}
    for _, index, part in asked:
        points.setdefault(index, {})[id(part)] = parts.state.point(part.family(str(design.families[index]))[0])
    errors = {
        (index, part): error
        for index, by_part in points.items()
        for part, error in zip(by_part, design.errors(index, list(by_part.values())), strict=True)
    }
    return tuple(_prediction(parts.state, name, index, part, errors[index, id(part)]) for name, index, part in asked)


def _holdouts(design: SourcesDesign) -> Iterator[tuple[str, Mask, Mask]]:
    """Yield the name of each holdout, the rows that it leaves out, and those that it judges."""
    devices = np.array([sample.scenario.devices for sample in design.samples])
    frameworks = np.array([sample.scenario.framework.name for sample in design.samples])
    present = [features(sample.scenario, sample.layout) for sample in design.samples]
    for labels, name in (
        (design.sources, "source"),
        (design.organisations, "organisation"),
        (design.families, "device"),
    ):
        for label in _distinct(labels):
            yield name, labels == label, labels == label
    for source in _distinct(design.sources):
        mine = design.sources == source
        first = int(np.flatnonzero(mine)[0])
        same = (design.families == design.families[first]) & (frameworks == frameworks[first])
        yield "stack", mine | same, mine
        for most in NODES:
            if np.any(judged := mine & (devices > most)):
                yield f"nodes {most}", mine | (devices > most), judged
        for feature in sorted({name for i in np.flatnonzero(mine) for name in present[i]}):
            having = np.array([feature in names for names in present])
            yield f"layout {feature}", mine | (same & having), mine & having


def _distinct(labels: Labels) -> list[str]:
    return list(dict.fromkeys(labels.tolist()))


def _prediction(state: Hierarchy, name: str, index: int, part: _Part, error: float) -> Held:
    """Return the prediction of a row by a part of the rows, with its error."""
    design = state.design
    sample, family = design.samples[index], str(design.families[index])
    sort, slopes = design.sort(index), state.slopes[index]
    known, covered = part.family(family)
    return Held(
        left_out=name,
        row=index,
        source=str(design.sources[index]),
        organisation=str(design.organisations[index]),
        family=family,
        error=error,
        unit=Unit(
            sort=sort,
            coefficients=float(np.sqrt(slopes @ known.covariance @ slopes)),
            # A size of all speed's rows decides how wide their scatter is, so that one value serves for all.
            scatter=unseen_scatter(part.state if state.design.kind == "memory" else state, sort, family),
            distance=covered.distances(sample.scenario)(sample.layout),
            spread=_spread(sample) if design.kind == "memory" else 1.0,
        ),
    )


def _spread(sample: Sample) -> float:
    """Return the part of a row's memory that is uncertain far from measured runs."""
    binding = np.argmax(sample.memory.device[:, :1], axis=0)
    return float(memory_spread(sample.memory.state_share(binding, np.array([0])))[0])


class Pair(NamedTuple):
    """Two rows of one source that ask the same of two layouts or stacks, predicted with the source left out."""

    source: str
    measured: float
    """Figure of the first over that of the second, in the logarithm."""
    predicted: float
    unit: Unit
    """Units of the difference, in which shared errors cancel."""


def pairs(parts: PartialFits, held: Sequence[Held]) -> Iterator[Pair]:
    """Yield every two rows of a source that ask the same question of two layouts or stacks."""
    state = parts.state
    design = state.design
    errors = {prediction.row: prediction.error for prediction in held if prediction.left_out == "source"}
    for source in _distinct(design.sources):
        mine = design.sources == source
        known, _ = parts.without(mine).family(str(design.families[mine][0]))
        for first, other in combinations(np.flatnonzero(mine).tolist(), 2):
            if _question(design.samples[first]) == _question(design.samples[other]):
                measured = float(design.logs[first] - design.logs[other])
                apart = state.slopes[first] - state.slopes[other]
                scatter = (scatter_of(state.hyper, design.sort(i)) for i in (first, other))
                unit = difference_unit(float(apart @ known.covariance @ apart), *scatter)
                yield Pair(source, measured, measured + errors[first] - errors[other], unit)


def _question(sample: Sample) -> tuple[object, ...]:
    scenario = sample.scenario
    model = (scenario.model.name, scenario.model.num_hidden_layers, scenario.hardware_name, scenario.devices)
    return (*model, scenario.seq_length, scenario.global_batch_size, scenario.precision, scenario.lora_rank)


def pair_sizes(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the sizes of the contributions to the difference of two predictions."""
    counts = Counter(pair.source for pair in pairs)
    weights = np.array([min(1.0, MOST_ROWS / counts[pair.source]) for pair in pairs])
    errors = np.array([pair.predicted - pair.measured for pair in pairs])
    levels = np.full(len(pairs), level_of(len(counts)))
    sizes = fitted_sizes((DIFFERENCE,), [pair.unit for pair in pairs], errors, weights, levels)
    return {name: size for name, size in sizes.items() if name.endswith(DIFFERENCE)}


def family_coverage(state: Hierarchy, family: str) -> RowsCoverage:
    """Return the coverage of a device family's rows; of a family without any, that of all rows."""
    design = state.design
    mine = design.families == family
    rows = np.flatnonzero(mine) if mine.any() else range(len(design.samples))
    sources = len(set(design.sources[mine].tolist()))
    return coverage_of(((design.samples[i].scenario, design.samples[i].layout) for i in rows), sources)


def sizes_of(kind: CoefficientKind, held: Sequence[Held]) -> dict[str, float]:
    """Return the sizes of a range's contributions, from predictions with rows left out."""
    errors = np.array([each.error for each in held])
    return fitted_sizes(SORTS[kind], [each.unit for each in held], errors, _weights(held), _levels(held))


def _levels(held: Sequence[Held]) -> np.ndarray:
    """Return the shares of predictions that ranges must hold, by how many sources or families were left out."""
    field = {"organisation": "organisation", "device": "family"}
    lacking = [each.left_out.partition(" ")[0] for each in held]
    groups: dict[str, set[str]] = {}
    for name, each in zip(lacking, held, strict=True):
        groups.setdefault(name, set()).add(getattr(each, field.get(name, "source")))
    return np.array([level_of(len(groups[name])) for name in lacking])


def _weights(held: Sequence[Held]) -> np.ndarray:
    """Return the weights of the predictions: in each holdout a source counts for `MOST_ROWS` rows at most."""
    names, sources, families = (
        np.array([getattr(each, field) for each in held]) for field in ("left_out", "source", "family")
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
