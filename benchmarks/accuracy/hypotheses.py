"""Rows of the user's own table that cannot be what they say, and the layouts that would explain their figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.accuracy.own import CLUSTER, OWN
from benchmarks.accuracy.rows import Judgement, samples
from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import price
from simulator.cost.timing.products import model_flops_per_token
from simulator.evidence.calibration.apply import applied
from simulator.evidence.calibration.cluster import Sample
from simulator.evidence.calibration.store import signature
from simulator.question.coefficients import Coefficients
from simulator.question.scenario.layout import SEARCHED_RECOMPUTE_MODES, Layout, sizes_text
from simulator.question.units import TERA
from simulator.search.rank import walk
from simulator.search.space import Space
from simulator.show.report.presentation import Section

MEMORY_TOLERANCE: Final = 0.03
"""Misfit of memory that an explanation may have."""
SPEED_TOLERANCE: Final = 0.04
"""Misfit of speed that an explanation may have."""
_FAR: Final = 0.04
"""Error from which a row is asked about."""
_MOST: Final = 6


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A layout that would explain a row's figures; errors are predicted over measured, less one."""

    layout: Layout
    memory_error: float
    speed_error: float

    @property
    def distance(self) -> float:
        """How far off both figures are together, in tolerances."""
        return float(np.hypot(self.memory_error / MEMORY_TOLERANCE, self.speed_error / SPEED_TOLERANCE))


def doubtful_rows(found: Judgement) -> Iterator[Section]:
    """Rows far off, each with the layouts on the same devices that explain both its memory and its speed."""
    coefficients = applied("hopper", None, CLUSTER).coefficients()
    errors = {(row.kind, row.key): row.fitted for row in found.own}
    far = {key for (_, key), error in errors.items() if abs(error) > _FAR}
    lines = []
    for sample in samples():
        if sample.row.table == OWN and sample.key in far:
            off = [f"{100 * errors[kind, sample.key]:+.1f}" if (kind, sample.key) in errors else "-" for kind in _KINDS]
            explained = "; ".join(map(_told, hypotheses(sample, coefficients))) or "nothing explains both figures"
            lines.append([sample.key, _sizes(sample.layout), *off, sample.row.status, explained])
    text = "Hypotheses stand beside a row and change nothing in it. Errors are in % of memory and of speed, as stated."
    headers = ("row", "as stated", "memory %", "speed %", "annotated", "would be explained by")
    yield Section("Doubtful rows", (text,), headers, lines, text_columns=(0, 1, 4, 5), wrapped=headers[-1:])


_KINDS: Final = ("memory", "time")


def hypotheses(sample: Sample, coefficients: Coefficients) -> list[Hypothesis]:
    """Layouts on the same devices that explain a row's memory and speed, nearest first."""
    scenario = replace(sample.scenario, coefficients=coefficients)
    space = Space(micro_batch_size=(sample.layout.micro_batch_size,), recompute=SEARCHED_RECOMPUTE_MODES)
    stated = signature(scenario, sample.layout)
    found: list[Hypothesis] = []
    for judged in walk(scenario, space):
        sized = judged.sized
        if sized is None:
            continue
        memory = sized.device_bytes / (sample.row.memory_bytes or np.nan) - 1.0
        near = np.abs(memory) <= MEMORY_TOLERANCE
        if not near.any():
            continue
        priced, memory = price(Pricing(scenario, sized.block.take(near))), memory[near]
        flops = model_flops_per_token(scenario) * scenario.tokens_per_step
        speed = flops / priced.step.total / scenario.devices / TERA / (sample.measured_tflops or np.nan) - 1.0
        for index in np.flatnonzero(np.abs(speed) <= SPEED_TOLERANCE):
            layout = priced.block.layout(int(index))
            if signature(scenario, layout) != stated:
                found.append(Hypothesis(layout, float(memory[index]), float(speed[index])))
    return sorted(found, key=lambda one: one.distance)[:_MOST]


def _told(one: Hypothesis) -> str:
    return f"{_sizes(one.layout)} ({100 * one.memory_error:+.1f}, {100 * one.speed_error:+.1f} %)"


def _sizes(layout: Layout) -> str:
    return sizes_text(layout, "tp", "pp", "cp", "vpp", "recompute")
