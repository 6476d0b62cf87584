"""The question of a search, and its answer for one layout. Values only: `search.walk` goes over the layouts.

A question about Mixtral on H100 may leave open how tokens reach their experts. It is then searched twice, as it stands
and with DeepEP's kernels overlapped, and `chosen` of an answer names the kernels that it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.space import Space

MIN_FIT_PROBABILITY = 0.95
"""Least probability to fit of a layout that is recommended, unless a question gives another."""
_EXCHANGE = ("expert_dispatch", "overlap_expert_exchange")
"""Switches of how experts are exchanged; a question that gives one of them is searched as it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question whose layout is searched."""

    scenario: Scenario
    space: Space = field(default_factory=Space)
    options: Mapping[str, str] = field(default_factory=dict)
    """Switches that the question gives: no other value of them is tried."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Switches of the scenario that a search tries beside the question's, as text."""
    min_fit_probability: float = 0.0
    """Least probability to fit of what is recommended; 0 recommends all that fits."""

    def ways(self) -> tuple[Query, ...]:
        """The question as it stands, and where framework and devices have kernels for it the overlapped exchange.

        Kernels that send a token once to each rank are never slower than sending every copy, and what overlaps is never
        slower than what does not: one further search covers what a tuned run would choose.
        """
        scenario = self.scenario
        if not scenario.model.is_moe or not set(_EXCHANGE).isdisjoint(self.options):
            return (self,)
        kernels = set(scenario.framework.limits.expert_dispatches)
        for device in scenario.kinds_of_device:
            kernels &= set(device.expert_kernels)
        if not kernels:
            return (self,)
        dispatch = min(kernels)
        profile = replace(scenario.framework, expert_dispatch=dispatch, overlap_expert_exchange=True)
        chosen = {"expert_dispatch": dispatch, "overlap_expert_exchange": "true"}
        return (self, replace(self, scenario=replace(scenario, framework=profile), chosen=chosen))


class PricedLayout(NamedTuple):
    """A layout with the figures that searches compare; its estimate says all of it."""

    query: Query
    """What it is an answer to; its scenario prices it."""
    layout: Layout
    step_seconds: float
    """Not a number where only its memory was priced."""
    device_bytes: float
    """Of the fullest device."""
