"""The result of a search: ranked estimates, counts of what was dropped and why. A value; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.violation import Violation
from simulator.question.scenario.layout import layout_object
from simulator.question.vocabulary import StackName
from simulator.tabular import Tabular


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many layouts were looked at and what became of them."""

    evaluated: int
    """All candidates: `feasible` plus every number in `rejected`."""
    feasible: int
    """Candidates with verdict `fits`."""
    rejected: Mapping[str, int]
    """By the first rule a candidate breaks, or `memory` (does not fit) or `near_capacity` (starved)."""
    elapsed_seconds: float
    """What the search took."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that would make the nearest miss fit."""

    change: str
    """The change in words, such as `--recompute full`."""
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
    """What a search for the fewest nodes ended with."""

    nodes: int | None
    """The fewest nodes that do: whose best layout fits and, with a deadline, is in time; None where none do."""
    ranked_nodes: int
    """Nodes that the ranking is of: these, else those that come nearest."""
    fitting_nodes: int | None
    """The fewest nodes that fit, in time or not; None where none do."""
    most_nodes: int
    """Nodes up to which was searched."""
    deadline_days: float | None
    """Days that the run may take; None without a deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Tabular):
    """Layouts of one question, fastest first."""

    query: Mapping[str, object]
    """Every input with its value, defaults included, by option name."""
    defaults: tuple[str, ...]
    """Names in `query` that the user left to their default."""
    counts: Counts
    estimates: tuple[Estimate, ...]
    """Layouts that fit with at least the probability asked for, best first."""
    risky: tuple[Estimate, ...] = ()
    """The fastest layouts that fit on the estimate, with less than the least probability asked for."""
    starved: tuple[Estimate, ...]
    """The fastest layout too near capacity to recommend, if any."""
    nearest: Estimate | None
    """The layout that needs least memory over capacity, when nothing fits."""
    remedies: tuple[Remedy, ...]
    """What would make it fit, when nothing fits."""
    reasons: tuple[Violation, ...]
    """When nothing fits: for each rule that dropped layouts, what it says of one of them."""
    fp8: Estimate | None
    """The best layout in fp8 among the splits of the best few, where bf16 or fp16 was asked for and the device has fp8.

    Of all layouts where none of those is likely to fit."""
    equal: tuple[int, ...] = ()
    """Positions in `estimates`, from 0, of those that may be as fast as the first: their difference is within its 90 %
    range. None without a calibration."""
    surer: int | None = None
    """Position of the one of `equal` whose step time has the smallest upper end, or that is likelier to fit where the
    first may not; None where that is the first."""
    stacks: tuple[StackBest, ...] = ()
    """The best layout, found as `fp8` is, under the framework's defaults, or what is tuned for it."""
    fewest: FewestNodes | None = None
    """What was found of the number of nodes, where it was searched."""

    def __repr__(self) -> str:
        """One line: the question, how many layouts fit, the best."""
        question = f"{self.query.get('model')} on {self.query.get('devices')} x {self.query.get('hardware')}"
        shown = f"{len(self.estimates)} of {self.counts.feasible} layouts that fit"
        best = f", best {self.estimates[0]!r}" if self.estimates else ""
        return f"<Ranking {question}: {shown}{best}>"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layout, best first: its fields by key, speed and memory."""
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
