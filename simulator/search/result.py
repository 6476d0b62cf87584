"""The result of a search: ranked estimates, and how many layouts were dropped and why. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.violation import Violation
from simulator.question.question import Question
from simulator.question.scenario.layout import layout_object
from simulator.question.vocabulary import StackName
from simulator.tabular import Tabular


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
                "step_seconds": estimate.throughput.step_seconds,
                "device_bytes": estimate.memory.device_bytes,
                "fit_probability": estimate.memory.fit_probability,
            }
            for rank, estimate in enumerate(self.estimates, start=1)
        ]
