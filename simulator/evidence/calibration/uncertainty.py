"""Intervals: what the coefficients' covariance and the scatter of measured rows say about one estimate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.cost.memory.peak import memory_by_stage
from simulator.cost.pricing.estimate import Estimate, Interval, MemoryEstimate, ThroughputEstimate
from simulator.cost.stages import stage_contents
from simulator.cost.timing.step import step_seconds
from simulator.evidence.calibration.store import FittedPart
from simulator.question.coefficients.values import Kind, priors, replaced
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario

Vector = NDArray[np.float64]

NORMAL_90 = 1.6448536269514722
"""Standard deviations on each side that hold 90 % of a normal distribution."""


def relative_deviation(kind: Kind, scenario: Scenario, layout: Layout, part: FittedPart) -> float:
    """Relative standard deviation of a prediction: `sqrt(g' C g + noise^2)`, g the logarithmic slopes.

    The layout is priced once, in a block of as many copies as coefficients, each copy with one coefficient moved.
    """
    known = priors(kind)
    steps = np.array([1e-3 * (known[name].high - known[name].low) for name in part.names])
    centre = part.vector[:, None]
    figures = _figures(kind, scenario, layout, part, np.hstack([centre, centre + np.diag(steps)]))
    slopes = np.log(figures[1:] / figures[0]) / steps
    noise = part.noise_by.get(_sort(kind, scenario), part.noise)
    return math.sqrt(max(float(slopes @ part.covariance @ slopes), 0.0) + noise**2)


def _sort(kind: Kind, scenario: Scenario) -> str:
    """What a prediction scatters like; of memory the device's figure is given."""
    if kind == "memory":
        return "device"
    return "moe" if scenario.model.is_moe else "dense"


def _figures(kind: Kind, scenario: Scenario, layout: Layout, part: FittedPart, values: Vector) -> Vector:
    """Device bytes or step seconds of the layout under each column of coefficient values."""
    moved = replace(scenario, coefficients=replaced(scenario.coefficients, kind, part.names, values))
    one = block_of([layout])
    block = one.take(np.zeros(values.shape[1], dtype=np.intp))
    has = stage_contents(moved, one)
    if kind == "memory":
        return np.asarray(np.max(memory_by_stage(moved, block, has).device, axis=0))
    # Time reads of memory what no time coefficient moves: one copy serves all columns.
    return step_seconds(moved, block, memory_by_stage(scenario, one, has)).total


def memory_interval(scenario: Scenario, estimate: Estimate, part: FittedPart) -> MemoryEstimate:
    """The memory estimate with its 90 % interval and the probability that the worst rank fits."""
    spread = relative_deviation("memory", scenario, estimate.layout, part)
    need, capacity = estimate.memory.device_bytes, estimate.memory.capacity_bytes
    return replace(
        estimate.memory,
        interval_bytes=_interval(need, spread),
        fit_probability=_normal_below(math.log(capacity / need) / spread),
    )


def time_interval(scenario: Scenario, estimate: Estimate, part: FittedPart) -> ThroughputEstimate:
    """The throughput estimate with the 90 % interval of the step time."""
    spread = relative_deviation("time", scenario, estimate.layout, part)
    return replace(estimate.throughput, interval_seconds=_interval(estimate.throughput.step_seconds, spread))


def _normal_below(deviations: float) -> float:
    """Probability that a normal variable is below its mean plus so many standard deviations."""
    return 0.5 * math.erfc(-deviations / math.sqrt(2.0))


def _interval(value: float, relative: float) -> Interval:
    """90 % interval, symmetric in the logarithm: a figure is never negative."""
    return Interval(value * math.exp(-NORMAL_90 * relative), value * math.exp(NORMAL_90 * relative))
