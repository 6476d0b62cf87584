"""Records of a search: its query and its result, a ranking.

A question about Mixtral on H100 may leave open how tokens reach their experts. It is then searched twice, as it stands
and with DeepEP's kernels overlapped; `chosen` of an answer names the selected kernels. `search.rank` searches,
`show.report.ranking` writes the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from simulator.cost.pricing.estimate import Estimate, Violation
from simulator.question.question import Question
from simulator.question.scenario.layout import Layout, layout_object
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import StackName
from simulator.search.space import Space
from simulator.tabular import Tabular

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of layouts visited, by outcome."""

    evaluated: int
    """All candidates: `feasible` plus every number in `rejected`."""
    feasible: int
    """Candidates with verdict `fits`."""
    rejected: Mapping[str, int]
    """By the first rule a candidate breaks, or `memory` (does not fit) or `near_capacity` (starved)."""
    elapsed_seconds: float
    """Duration of the search."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that would make the nearest miss fit."""

    change: str
    """Change in words, such as `--recompute full`."""
    estimate: Estimate
    """The fastest layout after it."""


@dataclass(frozen=True, slots=True)
class StackBest:
    """The best layout under another named stack."""

    stack: StackName
    """Name of the stack, as `--stack` takes it."""
    estimate: Estimate | None
    """None where nothing fits."""


@dataclass(frozen=True, slots=True)
class NodeCount:
    """Fastest layout on a number of nodes."""

    nodes: int
    """Number of whole nodes."""
    layout: Layout
    """Fastest layout on them that is likely enough to fit."""
    tokens_per_second_per_device: float
    """Its speed."""


@dataclass(frozen=True, slots=True)
class FewestNodes:
    """Result of a search for the fewest nodes."""

    nodes: int | None
    """Fewest nodes whose best layout fits and meets the deadline, if any; None if there are none."""
    ranked_nodes: int
    """Nodes of the ranking: `nodes`, else the number that comes nearest."""
    fitting_nodes: int | None
    """Fewest nodes that fit, in time or not; None if there are none."""
    most_nodes: int
    """Upper limit of the search."""
    deadline_days: float | None
    """Longest duration of the run in days; None without a deadline."""
    counts: tuple[NodeCount, ...] = ()
    """The ranked number of nodes and the next powers of two, within the limit, each with its fastest layout."""

    @property
    def knee(self) -> NodeCount | None:
        """Fewest of `counts` whose tokens cost nearly the least device time; None where none was priced."""
        best = max((count.tokens_per_second_per_device for count in self.counts), default=0.0)
        return next((count for count in self.counts if count.tokens_per_second_per_device >= _NEARLY * best), None)


_NEARLY: Final = 0.95
"""Part of the best speed of a device from which more nodes save next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Tabular):
    """Layouts of one question, fastest first."""

    query: Mapping[str, object]
    """Every input by option name, defaults included."""
    question: Question = field(default_factory=Question, repr=False, compare=False)
    """Values that were said of the question, with who said each."""
    defaults: tuple[str, ...]
    """Names in `query` that the user left unset."""
    counts: Counts
    estimates: tuple[Estimate, ...]
    """Layouts that fit with at least the requested probability, best first."""
    risky: tuple[Estimate, ...] = ()
    """The fastest layouts that fit, with less than the requested probability."""
    starved: tuple[Estimate, ...]
    """The fastest layout too near capacity to recommend, if any."""
    nearest: Estimate | None
    """If nothing fits, the layout with the least memory over capacity."""
    remedies: tuple[Remedy, ...]
    """If nothing fits, changes that make a layout fit."""
    reasons: tuple[Violation, ...]
    """If nothing fits, one violation of each rule that dropped layouts."""
    fp8: Estimate | None
    """Best layout in fp8, of the best few splits or else of all; None for questions in fp8 or devices without."""
    equal: tuple[int, ...] = ()
    """Positions in `estimates` whose difference to the first is within its 90 % interval; empty if uncalibrated."""
    surer: int | None = None
    """Position among `equal` of the layout whose step time has the smallest upper end, or that is likelier to fit.

    None where that is the first.
    """
    stacks: tuple[StackBest, ...] = ()
    """Best layout, searched as for `fp8`, under the framework's defaults or tuned stacks."""
    fewest: FewestNodes | None = None
    """Result of the search for nodes, if requested."""

    def __repr__(self) -> str:
        """Return one line: the question, how many layouts fit, the best."""
        question = f"{self.query.get('model')} on {self.query.get('devices')} x {self.query.get('hardware')}"
        listed = f"{len(self.estimates)} of {self.counts.feasible} layouts that fit"
        best = f", best {self.estimates[0]!r}" if self.estimates else ""
        return f"<Ranking {question}: {listed}{best}>"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each layout, best first: its fields by key, speed and memory."""
        return [
            {
                "rank": rank,
                **layout_object(estimate.layout),
                "tokens_per_second": estimate.throughput.tokens_per_second_per_device * estimate.devices,
                "mfu": estimate.throughput.mfu,
                "causal_mfu": estimate.throughput.causal_mfu,
                "step_seconds": estimate.throughput.step_seconds,
                "device_bytes": estimate.memory.device_bytes,
                "fit_probability": estimate.memory.fit_probability,
            }
            for rank, estimate in enumerate(self.estimates, start=1)
        ]
