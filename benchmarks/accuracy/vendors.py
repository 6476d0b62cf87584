"""Where a search puts the layouts that vendors publish as tuned for speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.accuracy.order import kendall_tau
from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.pricing.price import FITS, price
from simulator.evidence.calibration.apply import applied
from simulator.evidence.calibration.cluster import Sample, predict
from simulator.question.scenario.layout import Layout
from simulator.search.rank import layouts_below, likely_to_fit, priced_layout
from simulator.search.space import MIN_FIT_PROBABILITY, PricedLayout, Query
from simulator.show.report.text import layout_text

WITHIN = 0.05
"""Of the predicted speed of the best layout: what a published layout may lack."""
LEAST_TAU = 0.8
"""Of three measured layouts and more: how far their order is kept."""
_ORDERED_LAYOUTS = 3


@dataclass(frozen=True, slots=True)
class PublishedLayout:
    """A question for which a vendor publishes a layout, and the order of those measured of it."""

    key: str
    """Table and number of the row measured fastest."""
    question: str
    layout: str
    best: str
    """What a search predicts to be fastest under the same switches."""
    error: float
    """Predicted over measured speed of the published layout, less one."""
    lacks: float
    """Predicted speed of the published layout, short of the best's, as a share."""
    faster: int
    """Layouts that are likely to fit, as a ranking asks, and are predicted faster."""
    fits: bool
    """Whether the need of the published layout fits."""
    layouts: int
    """Layouts and ways of running them that were measured."""
    tau: float | None
    """Kendall's rank correlation of their predicted with their measured speed; None for fewer than three."""

    @property
    def within(self) -> bool:
        """Whether the published layout is near the best."""
        return self.lacks <= WITHIN


def published_layouts(samples: Iterable[Sample]) -> Iterator[PublishedLayout]:
    """Judge every question with rows that are published as tuned, under the shipped coefficients."""
    groups: dict[tuple[object, ...], list[Sample]] = {}
    for sample in samples:
        if sample.row.tuned and sample.row.speed_counts and sample.measured_tflops is not None:
            groups.setdefault(_question(sample), []).append(sample)
    for key, members in groups.items():
        yield _judged(f"{key[1]}, {key[2]} x {key[3]}, {key[4]} tokens, batch {key[5]}, {key[6]}", members)


def _question(sample: Sample) -> tuple[object, ...]:
    scenario = sample.scenario
    return (
        *(sample.row.table, scenario.model.name, scenario.devices, scenario.hardware.name),
        *(scenario.seq_length, scenario.global_batch_size, scenario.precision),
    )


def _judged(name: str, members: Sequence[Sample]) -> PublishedLayout:
    first = max(members, key=lambda one: one.measured_tflops or 0.0)
    hardware = first.scenario.hardware
    known = applied(hardware.family, None, hardware.name)
    scenario = replace(first.scenario, coefficients=known.coefficients(), calibration=known)
    query = Query(scenario=scenario, min_fit_probability=MIN_FIT_PROBABILITY)
    faster, best, own = faster_than(query, first.layout)
    priced = price(pricing_of(scenario, first.layout))
    predicted = float(
        predict("time", replace(first, scenario=scenario), scenario.coefficients, (), np.zeros((0, 1)))[0]
    )
    return PublishedLayout(
        key=first.key,
        question=name,
        layout=layout_text(first.layout),
        best=layout_text(best.layout),
        error=predicted / (first.measured_tflops or predicted) - 1.0,
        lacks=1.0 - best.step_seconds / own.step_seconds,
        faster=faster,
        fits=bool(priced.verdict[0] == FITS),
        layouts=len({(one.layout, one.scenario.framework) for one in members}),
        tau=_order(members),
    )


def faster_than(query: Query, layout: Layout) -> tuple[int, PricedLayout, PricedLayout]:
    """How many fitting layouts are faster than `layout`, the fastest of them (or `layout`), and `layout`."""
    own = priced_layout(query, price(pricing_of(query.scenario, layout)), 0)
    count, best = 0, own
    for priced, where in layouts_below(query, lambda: own.step_seconds):
        before = np.flatnonzero(where)
        before = before[likely_to_fit(query, priced, before)] if len(before) else before
        count += len(before)
        if len(before):
            first = priced_layout(query, priced, int(before[np.argmin(priced.step.total[before])]))
            best = min(best, first, key=lambda one: one.step_seconds)
    return count, best, own


def _order(members: Sequence[Sample]) -> float | None:
    """Kendall's tau over ways of running that differ; of equal ones measured again the fastest counts."""
    fastest: dict[object, Sample] = {}
    for one in sorted(members, key=lambda one: -(one.measured_tflops or 0.0)):
        fastest.setdefault((one.layout, one.scenario.framework), one)
    if len(fastest) < _ORDERED_LAYOUTS:
        return None
    hardware = members[0].scenario.hardware
    coefficients = applied(hardware.family, None, hardware.name).coefficients()
    speeds = [
        (
            one.measured_tflops or 0.0,
            1.0 / float(price(Pricing(replace(one.scenario, coefficients=coefficients), one.block)).step.total[0]),
        )
        for one in fastest.values()
    ]
    return kendall_tau(speeds)
