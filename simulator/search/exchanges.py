"""A search over how experts are exchanged too, where the question leaves that to the stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from simulator.cost.pricing.estimate import Estimate
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import bare_estimates, with_intervals
from simulator.search.rank import MOST_RISKY, Found, Progress, fastest_of, search
from simulator.search.space import Space

SWITCHES = ("expert_dispatch", "overlap_expert_exchange")
"""What says how experts are exchanged; a question that gives one of them is searched as it stands."""


class Exchange(NamedTuple):
    """A question with one way of exchanging experts."""

    scenario: Scenario
    options: Mapping[str, str]
    """Switches that differ from the question's, as text."""


class Searched(NamedTuple):
    """A search over all ways of exchanging experts, the best of each split over all of them."""

    asked: Found
    """As the question stands."""
    counts: Found
    """The counts of all, and what was dropped."""
    best: tuple[tuple[Scenario, Estimate], ...]
    """The fastest that fit, each with the scenario it was priced in."""
    risky: tuple[Estimate, ...]


def exchanges(scenario: Scenario, told: Collection[str]) -> tuple[Exchange, ...]:
    """The question as it stands, and where framework and devices have kernels for it the overlapped exchange.

    Kernels that send a token once to each rank are never slower than sending every copy, and what overlaps is never
    slower than what does not: one further search covers what a tuned run would choose.
    """
    as_asked = Exchange(scenario, {})
    if not scenario.model.is_moe or not set(SWITCHES).isdisjoint(told):
        return (as_asked,)
    kernels = set(scenario.framework.limits.expert_dispatches)
    for device in scenario.kinds_of_device:
        kernels &= set(device.expert_kernels)
    if not kernels:
        return (as_asked,)
    dispatch = min(kernels)
    profile = replace(scenario.framework, expert_dispatch=dispatch, overlap_expert_exchange=True)
    options = {"expert_dispatch": dispatch, "overlap_expert_exchange": "true"}
    return (as_asked, Exchange(replace(scenario, framework=profile), options))


def searched(  # noqa: PLR0913  a question, and how much of the answer to keep
    scenario: Scenario,
    told: Collection[str],
    space: Space,
    *,
    top: int,
    variants: bool = False,
    least: float = 0.0,
    progress: Progress | None = None,
) -> Searched:
    """`search` over all ways of exchanging experts that the question leaves open."""
    ways = exchanges(scenario, told)
    found = [search(way.scenario, space, top=top, variants=variants, least=least, progress=progress) for way in ways]
    best = _sorted(_priced(way, one.fastest) for way, one in zip(ways, found, strict=True))
    risky = _sorted(_priced(way, one.risky) for way, one in zip(ways, found, strict=True))
    kept: dict[object, tuple[Scenario, Estimate]] = {}
    for priced in best:
        layout = priced[1].layout
        kept.setdefault((layout, tuple(priced[1].options)) if variants else layout.split, priced)
    return Searched(
        asked=found[0],
        counts=_together(found),
        best=tuple(_judged(tuple(kept.values())[:top])),
        risky=tuple(estimate for _, estimate in _judged(risky[:MOST_RISKY])),
    )


def best_of(
    scenario: Scenario, told: Collection[str], space: Space, *, least: float, near: Collection[Layout] = ()
) -> tuple[Scenario, Estimate] | None:
    """The first of `searched`, without counts; `near` as in `fastest_of`."""
    found: list[tuple[Scenario, Estimate]] = []
    for way in exchanges(scenario, told):
        found += _priced(way, fastest_of(way.scenario, space, least=least, near=near))
        near = [*near, *(estimate.layout for _, estimate in found)]
    return _judged([min(found, key=_step_seconds)])[0] if found else None


def _step_seconds(one: tuple[Scenario, Estimate]) -> float:
    return one[1].throughput.step_seconds


def _priced(way: Exchange, layouts: list[Layout]) -> Iterator[tuple[Scenario, Estimate]]:
    for estimate in bare_estimates(way.scenario, layouts):  # what a search keeps breaks no rule
        yield way.scenario, replace(estimate, options=way.options)


def _judged(kept: Sequence[tuple[Scenario, Estimate]]) -> list[tuple[Scenario, Estimate]]:
    """With intervals, which only what is kept gets; all of a scenario at a time."""
    scenarios = {id(scenario): scenario for scenario, _ in kept}
    of = {key: iter(with_intervals(one, [e for s, e in kept if s is one])) for key, one in scenarios.items()}
    return [(scenario, next(of[id(scenario)])) for scenario, _ in kept]


def _sorted(found: Iterator[Iterator[tuple[Scenario, Estimate]]]) -> list[tuple[Scenario, Estimate]]:
    return sorted(chain.from_iterable(found), key=_step_seconds)


def _together(found: list[Found]) -> Found:
    """The searches' counts added up; an example of a rule is the first one's."""
    rejected: Counter[str] = Counter()
    for one in found:
        rejected.update(one.rejected)
    return found[0]._replace(
        evaluated=sum(one.evaluated for one in found),
        feasible=sum(one.feasible for one in found),
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
    )
