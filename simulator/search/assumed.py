"""What an answer takes for granted: switches that nobody gave, each with what another value of it is worth."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from simulator.cost.pricing.estimate import AssumedSwitch, Estimate
from simulator.question.frameworks.stacks import DEFAULT, set_by_stacks
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import bare_estimate

LEAST_CHANGE = 0.005
"""Change of the speed, or of the memory as a share of the device's, from which a switch matters."""


def with_assumed(scenario: Scenario, estimate: Estimate, given: Collection[str]) -> Estimate:
    """The estimate with the switches that were not `given` and that move its speed, its memory or its verdict."""
    found = sorted(_assumed(scenario, estimate, given), key=lambda one: -abs(one.speed_change))
    return replace(estimate, assumed=tuple(found))


def _assumed(scenario: Scenario, estimate: Estimate, given: Collection[str]) -> Iterator[AssumedSwitch]:
    if estimate.verdict == "refused":
        return
    profile = scenario.framework
    because = f"{profile.version}'s default" if profile.stack == DEFAULT else f"stack {profile.stack}"
    base = bare_estimate(scenario, estimate.layout)
    for name, values in set_by_stacks(profile.name).items():
        value = getattr(profile, name)
        other = next((one for one in values if one != value), None)
        if name in given or other is None:
            continue
        changed = bare_estimate(replace(scenario, framework=replace(profile, **{name: other})), estimate.layout)
        speed = changed.throughput.step_seconds / base.throughput.step_seconds - 1.0
        memory = base.memory.device_bytes - changed.memory.device_bytes
        share = abs(memory) / base.memory.capacity_bytes
        if max(abs(speed), share) < LEAST_CHANGE and changed.verdict == base.verdict:
            continue
        yield AssumedSwitch(
            switch=name,
            value=_shown(value),
            other=_shown(other),
            because=because,
            speed_change=speed,
            memory_bytes=memory,
            verdict=changed.verdict,
        )


def _shown(value: Any) -> str:
    """A value as `--option` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
