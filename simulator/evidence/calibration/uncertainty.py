"""Range of one prediction, from the coefficients' covariance and the scatter of rows; its contributions by name.

`calibration.ranges` sizes the contributions from rows that were left out; `calibration.apply` gives them to estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from simulator.cost.derived import Pricing, derived, pricings_of
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.pricing.estimate import (
    Contribution,
    Estimate,
    Interval,
    MemoryEstimate,
    NextMeasurement,
    ThroughputEstimate,
)
from simulator.cost.timing.step import step_seconds
from simulator.evidence.calibration.ranges import Distance, Unit
from simulator.evidence.calibration.store import FittedPart
from simulator.question.arrays import Matrix, Vector
from simulator.question.coefficients import CoefficientKind, priors, replaced
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario

NORMAL_90 = 1.6448536269514722
"""Standard deviations on each side that hold 90 % of a normal distribution."""


def unit_of(  # noqa: PLR0913, PLR0917  what decides a range
    kind: CoefficientKind, scenario: Scenario, layout: Layout, variance: float, part: FittedPart, spread: float = 1.0
) -> Unit:
    """Return the units of a prediction's contributions; `variance` is that of `layout_variances`."""
    sort = sort_of_prediction(kind, scenario)
    inside = Distance(device=False, share_of_source=0.0, stack=False, doublings=0.0, features=())
    distance = inside if part.coverage is None else part.coverage.distance(scenario, layout)
    return Unit(sort, math.sqrt(variance), part.noise_by.get(sort, part.noise), distance, spread=spread)


def relative_variances(kind: CoefficientKind, pricing: Pricing, part: FittedPart) -> Vector:
    """Return the relative variance of each prediction of a block by the coefficients' covariance."""
    slopes, memory = _slopes(kind, pricing, part)
    variance = np.maximum(np.einsum("ni,ij,nj->n", slopes, part.covariance, slopes), 0.0)
    if kind == "memory" and pricing.scenario.hardware.communicator_buffer_bytes is not None:
        need = memory.need
        fullest = (np.argmax(need, axis=0), np.arange(need.shape[1]))
        outside = memory.outside.total[fullest] / need[fullest]
        variance = variance + (UNMEASURED_OUTSIDE * outside) ** 2
    return np.asarray(variance)


def time_slopes(scenario: Scenario, layouts: Sequence[Layout], part: FittedPart) -> Matrix:
    """Return the slopes of each layout's logarithmic step time by the coefficients, shape (layouts, coefficients)."""
    slopes = np.zeros((len(layouts), len(part.names)))
    for positions, pricing in pricings_of(scenario, layouts):
        slopes[positions] = _slopes("time", pricing, part)[0]
    return slopes


def _slopes(kind: CoefficientKind, pricing: Pricing, part: FittedPart) -> tuple[Matrix, MemoryByStage]:
    """Return the slopes of each logarithmic prediction by the coefficients, and the memory at the coefficients."""
    return _slopes_at(pricing, kind, tuple(part.values.items()))


@derived
def _slopes_at(
    pricing: Pricing, kind: CoefficientKind, fitted: tuple[tuple[str, float], ...]
) -> tuple[Matrix, MemoryByStage]:
    """Return `_slopes` at the fitted coefficients.

    The block is priced once with as many copies of each layout as coefficients, each copy with one coefficient moved.
    """
    known, scenario, block, names = priors(kind), pricing.scenario, pricing.block, [name for name, _ in fitted]
    steps = np.array([1e-3 * (known[name].high - known[name].low) for name in names])
    centre = np.array([[value] for _, value in fitted])
    values = np.hstack([centre, centre + np.diag(steps)])
    copies = values.shape[1]
    moved = replace(scenario, coefficients=replaced(scenario.coefficients, kind, names, np.tile(values, len(block))))
    # Every copy has its own coefficients, so none can be shared.
    each = np.repeat(np.arange(len(block), dtype=np.intp), copies)
    tiled = Pricing(moved, block.take(each))
    # Time reads only figures of memory that no time coefficient moves. Idle blocks fill what a device leaves.
    memory = memory_by_stage(tiled) if kind == "memory" else memory_by_stage(pricing).take(each)
    memory_at = memory.take(np.arange(0, len(each), copies)) if kind == "memory" else memory_by_stage(pricing)
    figures = np.max(memory.need, axis=0) if kind == "memory" else step_seconds(tiled, memory).total
    figures = figures.reshape(len(block), copies)
    return np.log(figures[:, 1:] / figures[:, :1]) / steps, memory_at


UNMEASURED_OUTSIDE = 0.5
"""Relative deviation of memory outside the allocator that only documents give: no measured figure was published."""


def sort_of_prediction(kind: CoefficientKind, scenario: Scenario) -> str:
    """Return the sort of a prediction: `dense` or `moe`; of memory `device`, the figure that is estimated."""
    if kind == "memory":
        return "device"
    return "moe" if scenario.model.is_moe else "dense"


def layout_variances(
    kind: CoefficientKind, scenario: Scenario, layouts: Sequence[Layout], part: FittedPart
) -> list[float]:
    """Return `relative_variances` of any layouts, in their order."""
    variances = [0.0] * len(layouts)
    for positions, pricing in pricings_of(scenario, layouts):
        for start in range(0, len(pricing), _AT_ONCE):
            some = np.arange(start, min(start + _AT_ONCE, len(pricing)))
            members = pricing if len(some) == len(pricing) else pricing.take(some)
            for index, variance in zip(some, relative_variances(kind, members, part), strict=True):
                variances[positions[index]] = float(variance)
    return variances


_AT_ONCE = 256
"""Layouts whose copies with moved coefficients are priced together: their arrays stay within tens of megabytes."""


UNFORESEEN = 0.02
"""Probability that a run like no other needs memory that no formula counts, as when it loads a model or falls back to
another kernel. Of 50 such runs in public threads four failed on a device more than a third free; threads tell of
failures first."""


def memory_interval(estimate: Estimate, deviation: float, surest: float = 1.0) -> MemoryEstimate:
    """Return the memory estimate with its 90 % interval and the probability, at most `surest`, that it fits."""
    memory = estimate.memory
    return replace(
        memory,
        interval_bytes=_interval(memory.device_bytes, deviation),
        surest=surest,
        fit_probability=0.0
        if memory.fits_host is False  # offloaded bytes are counted, not estimated
        else min(surest, normal_below(math.log(memory.capacity_bytes / memory.need_bytes) / deviation)),
    )


def time_interval(estimate: Estimate, deviation: float) -> ThroughputEstimate:
    """Return the throughput estimate with the 90 % interval of the step time."""
    return replace(estimate.throughput, interval_seconds=_interval(estimate.throughput.step_seconds, deviation))


def normal_below(deviations: float) -> float:
    """Return the probability that a normal variable is below its mean plus so many standard deviations."""
    return 0.5 * math.erfc(-deviations / math.sqrt(2.0))


@lru_cache(maxsize=16)
def least_deviations(probability: float) -> float:
    """Return the fewest standard deviations for which `normal_below` is at least `probability`.

    Halved until two numbers stand side by side, so that it decides as `normal_below` does, at a probability of 1 too.
    """
    low, high = -_FAR, _FAR
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (low, middle) if normal_below(middle) >= probability else (middle, high)
    return high


_FAR = 40.0
"""Standard deviations beyond which a float tells nothing apart."""


def _interval(value: float, relative: float) -> Interval:
    """Return the 90 % interval, symmetric in the logarithm: a figure is never negative."""
    return Interval(value * math.exp(-NORMAL_90 * relative), value * math.exp(NORMAL_90 * relative))


_NEARLY: Final = 1.1
"""Ratio to the narrowest range up to which a smaller run is preferred."""
_SHOWN: Final = 0.0005
"""Half-width below which a contribution is not listed."""


def contributed(
    kind: CoefficientKind, unit: Unit, sizes: Mapping[str, float], scenario: Scenario
) -> list[Contribution]:
    """Return the contributions to a range, the largest first."""
    because = _because(unit, scenario)
    contributions = [
        Contribution(kind, name, NORMAL_90 * deviation, because[name])
        for name, deviation in unit.deviations(sizes).items()
        if NORMAL_90 * deviation >= _SHOWN
    ]
    return sorted(contributions, key=lambda contribution: -contribution.half_width)


def _because(unit: Unit, scenario: Scenario) -> dict[str, str]:
    """Return what is unknown behind each contribution."""
    family, framework, distance = scenario.hardware.family, scenario.framework.name, unit.distance
    sources = round(1.0 / distance.share_of_source) if distance.share_of_source else 0
    return {
        "coefficients": "rates and overheads that the measured runs leave open",
        "scatter": "how runs of one source scatter around it",
        "sources": f"runs of family {family} are from {sources} source{'' if sources == 1 else 's'}",
        "device": f"no run of family {family} was measured",
        "stack": f"no run of {framework} with these switches on family {family} was measured",
        "nodes": f"{scenario.devices} devices are {distance.doublings:.1f} doublings beyond the runs of {framework}",
        "layout": f"no run of {framework} on family {family} has {', '.join(distance.features)}",
    }


def next_measurement(unit: Unit, sizes: Mapping[str, float], scenario: Scenario) -> NextMeasurement:
    """Return the single measurement that narrows a range most, or a smaller run that narrows it nearly as much."""
    parts = unit.deviations(sizes)
    every = list(_measurements(unit, parts, scenario))
    return next(measurement for measurement in every if measurement.half_width <= _NEARLY * every[-1].half_width)


def _measurements(unit: Unit, parts: Mapping[str, float], scenario: Scenario) -> Iterator[NextMeasurement]:
    """Yield runs with the range that each leaves, the smallest run first and the layout itself last."""
    framework, hardware, beyond = scenario.framework.name, scenario.hardware.name, unit.distance.features
    cluster = ("sources", "device", "stack")
    # One run leaves as much uncertainty of the coefficients as its own scatter hides.
    learned = parts["coefficients"] * parts["scatter"] / max(math.hypot(parts["coefficients"], parts["scatter"]), 1e-12)
    one_node = f"with {framework} on one node of {hardware}"
    yield _after(parts, f"any layout {one_node}", cluster, learned)
    if beyond:
        yield _after(parts, f"a layout that has {', '.join(beyond)}, {one_node}", (*cluster, "layout"), learned)
    yield _after(parts, f"this layout on {scenario.devices} x {hardware}", (*cluster, "nodes", "layout"), learned)


def _after(parts: Mapping[str, float], run: str, without: tuple[str, ...], learned: float) -> NextMeasurement:
    """Return a run with the range that is left without some contributions."""
    remaining = {**parts, **dict.fromkeys(without, 0.0), "coefficients": learned}
    return NextMeasurement(run, NORMAL_90 * math.hypot(*remaining.values()))
