"""Samples: measured rows prepared for a fit, with their figures predicted under many coefficient sets.

`measurements.rows` reads the rows, `calibration.linear` has the algebra, `benchmarks.accuracy` fits all sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.timing.products import model_flops_per_token
from simulator.cost.timing.step import step_seconds
from simulator.errors import InputError
from simulator.evidence.measurements.question import figures_devices, measured_tflops_per_device, question
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.question.arrays import Vector
from simulator.question.coefficients import CoefficientKind, Coefficients, replaced
from simulator.question.scenario.block import LayoutBlock
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import TERA

DEVICE_TOLERANCE = 0.02
"""Relative disagreement of TFLOPS x time x devices that rounding cannot explain."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured row with the inputs of its prediction."""

    row: MeasuredRow
    scenario: Scenario
    layout: Layout
    block: LayoutBlock
    memory: MemoryByStage
    """Memory under the priors; time reads only what no coefficient moves."""

    @property
    def key(self) -> str:
        """Table and row number."""
        return self.row.key

    @property
    def measured_tflops(self) -> float | None:
        """Measured model TFLOP/s per device, in the convention of `model_flops_per_token`."""
        return measured_tflops_per_device(self.row)

    def figure(self, kind: CoefficientKind) -> float | None:
        """Return the measured figure: bytes, or model TFLOP/s per device; None where it was not measured."""
        return self.row.memory_bytes if kind == "memory" else self.measured_tflops

    def counts(self, kind: CoefficientKind) -> bool:
        """Tell whether the figure of a kind is a sample of the stated layout."""
        return self.row.memory_counts if kind == "memory" else self.row.speed_counts


def prepared(rows: Iterable[MeasuredRow]) -> tuple[Sample, ...]:
    """Return samples of the rows that ran and name a known model and hardware."""
    return tuple(sample_of(row) for row in rows if row.outcome == "ok" and row.asks)


def sample_of(row: MeasuredRow) -> Sample:
    """Return the sample of a row, with the devices that its own figures give.

    The annotation `devices_from_figures` is not read. Raises InputError when the row's layout is none.
    """
    scenario, layout = by_its_figures(row)
    pricing = pricing_of(scenario, layout)
    return Sample(row, scenario, layout, pricing.block, memory_by_stage(pricing))


def by_its_figures(row: MeasuredRow) -> tuple[Scenario, Layout]:
    """Return a row's scenario and layout, with the devices that its own figures give.

    The stated devices stay, unless TFLOPS and step time contradict them and give another whole number of nodes on which
    the layout is possible.
    """
    stated = question(replace(row, devices_from_figures=None))
    implied = figures_devices(row)
    if implied is None or abs(implied / row.devices - 1.0) <= DEVICE_TOLERANCE:
        return stated
    per_node = stated[0].hardware.devices_per_node
    devices = round(implied / per_node) * per_node
    if devices < per_node or abs(implied / devices - 1.0) > DEVICE_TOLERANCE:
        return stated
    try:
        scenario, layout = question(replace(row, devices_from_figures=devices))
    except InputError:
        return stated
    whole = scenario.global_batch_size % (layout.data_parallel * layout.micro_batch_size) == 0
    return (scenario, layout) if whole else stated


def predict(kind: CoefficientKind, sample: Sample, base: Coefficients, names: Sequence[str], values: Vector) -> Vector:
    """Return the predictions of one row under many coefficient sets.

    `values` has shape (coefficients, sets); the result one figure per set: bytes of the kind the row measured (tensors
    at the peak, or the device figure), or model TFLOP/s per device.
    """
    sets = values.shape[1]
    repeated = np.zeros(sets, dtype=np.intp)
    scenario = replace(sample.scenario, coefficients=replaced(base, kind, names, values))
    pricing = Pricing(scenario, sample.block.take(repeated))
    if kind == "memory":
        return _memory(sample.row, memory_by_stage(pricing))
    seconds = step_seconds(pricing, sample.memory).total
    flops = model_flops_per_token(scenario) * scenario.tokens_per_step
    return np.asarray(flops / seconds / scenario.devices / TERA)


def _memory(row: MeasuredRow, memory: MemoryByStage) -> Vector:
    """Return the predicted bytes of the kind and rank that the row measured."""
    kinds = {"allocated": memory.allocated, "reserved": memory.reserved, "device": memory.device}
    stages = kinds[row.compares_with or "device"]
    ranks = {"last": stages[-1], "mean": np.mean(stages, axis=0)}
    return np.asarray(ranks[row.memory_rank] if row.memory_rank in ranks else np.max(stages, axis=0))


def predict_device_memory(sample: Sample, coefficients: Coefficients) -> float:
    """Return the bytes that the device would show, whatever kind the row measured."""
    scenario = replace(sample.scenario, coefficients=coefficients)
    return float(np.max(memory_by_stage(Pricing(scenario, sample.block)).device))


def measured(kind: CoefficientKind, samples: Sequence[Sample]) -> Vector:
    """Return the measured figures of samples that have them: bytes, or TFLOP/s per device."""
    return np.array([sample.figure(kind) for sample in samples], dtype=np.float64)
