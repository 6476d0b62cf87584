"""Explanation of a range: its contributions, and the measurement that would narrow it most. Computes no range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from simulator.cost.pricing.estimate import Contribution, NextMeasurement
from simulator.evidence.calibration.contributions import Unit
from simulator.evidence.calibration.uncertainty import NORMAL_90
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.scenario.scenario import Scenario

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
