"""The question of a search and its answer for one layout, as values. `search.walk` visits the layouts.

A question about Mixtral on H100 may leave open how tokens reach their experts. It is then searched twice, as it stands
and with DeepEP's kernels overlapped; `chosen` of an answer names the selected kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simulator.question.question import Question
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.space import Space

MIN_FIT_PROBABILITY = 0.95
"""Default smallest probability to fit of a recommended layout."""
_EXCHANGE = ("expert_dispatch", "overlap_expert_exchange")
"""Switches of the experts' exchange; a question that sets one is searched as it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question whose layout is searched."""

    scenario: Scenario
    question: Question = field(default_factory=Question)
    """Values that were said; of the switches that it sets no other values are tried."""
    space: Space = field(default_factory=Space)
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Further switches that the search chose, as text."""
    min_fit_probability: float = 0.0
    """Smallest probability to fit of a recommended layout; 0 recommends all that fit."""

    @property
    def options(self) -> dict[str, str]:
        """Switches that the question sets, as text."""
        return self.question.options

    def alternatives(self) -> tuple[Query, ...]:
        """Return the question as it stands, and with overlapped expert exchange where kernels for it exist.

        Kernels that send a token once to each rank are never slower than those that send every copy, and overlap is
        never slower than none: one further search covers what a tuned run would choose.
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
    """A layout with the figures that searches compare."""

    query: Query
    """Question that it answers; its scenario prices it."""
    layout: Layout
    step_seconds: float
    """NaN where only its memory was priced."""
    device_bytes: float
    """Memory in use on the fullest device."""
