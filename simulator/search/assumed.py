"""What an answer takes for granted: switches that nobody gave, each with what another value of it is worth."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from simulator.cost.derived import Pricing
from simulator.cost.pricing.estimate import AssumedSwitch, Estimate
from simulator.cost.pricing.price import price
from simulator.question.frameworks.stacks import DEFAULT, set_by_stacks
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import verdict_of
from simulator.search.rules import RULES

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
    block = block_of([estimate.layout])
    base = price(Pricing(scenario, block))
    for name, values in set_by_stacks(profile.name).items():
        value = getattr(profile, name)
        other = next((one for one in values if one != value), None)
        if name in given or other is None:
            continue
        otherwise = replace(scenario, framework=replace(profile, **{name: other}))
        changed = price(Pricing(otherwise, block))
        verdict = verdict_of(changed, 0, refused=any(rule.broken(changed.pricing).any() for rule in RULES))
        speed = float(changed.step.total[0] / base.step.total[0]) - 1.0
        memory = float(base.device_bytes[0] - changed.device_bytes[0])
        share = abs(memory) / estimate.memory.capacity_bytes
        if max(abs(speed), share) < LEAST_CHANGE and verdict == verdict_of(base, 0):
            continue
        yield AssumedSwitch(
            switch=name,
            value=_shown(value),
            other=_shown(other),
            because=because,
            speed_change=speed,
            memory_bytes=memory,
            verdict=verdict,
        )


def _shown(value: Any) -> str:
    """A value as `--option` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
