"""Rows that cannot be what they say: found by the fit, and searched for what they could be instead.

Three signs. A row's own TFLOPS, step time and devices contradict each other. A row lies outside the noise of the
others. A row's need exceeds the device: it ran starved, and its speed says nothing about the layout. For the second,
every layout of the same model on the same devices that would explain both its memory and its speed is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import price
from simulator.cost.timing.flops import model_flops_per_token
from simulator.evidence.calibration.fit import Fit
from simulator.evidence.calibration.ranges import signature
from simulator.evidence.calibration.sample import DEVICE_TOLERANCE, Sample, predict_device_memory
from simulator.evidence.measurements.question import figures_devices
from simulator.question.coefficients import Coefficients
from simulator.question.scenario.layout import SEARCHED_RECOMPUTE_MODES, Layout, sizes_text
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import TERA
from simulator.search.space import Space
from simulator.search.walk import walk

Finding = Literal["devices", "relabelled", "ambiguous", "unexplained", "starved", "stands_out"]
"""`devices`: the figures give another number of devices. `relabelled`: one kind of layout explains memory and speed.
`ambiguous`: several do. `unexplained`: none does. `starved`: it needs more than the device has. `stands_out`: further
off than the others, and used all the same."""

MEMORY_TOLERANCE = 0.03
"""Misfit of memory that an explanation may have."""
SPEED_TOLERANCE = 0.04
"""Misfit of speed that an explanation may have."""
FULL = 0.95
"""Share of the usable memory that a starved run holds at least."""
STANDS_OUT = 3.0
"""Standard deviations of the rows' scatter beyond which a row that is used is pointed at."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A layout that would explain a row's figures."""

    layout: Layout
    memory_error: float
    """Predicted over measured, less one."""
    speed_error: float

    @property
    def distance(self) -> float:
        """How far off both figures are together, in tolerances."""
        return float(np.hypot(self.memory_error / MEMORY_TOLERANCE, self.speed_error / SPEED_TOLERANCE))


@dataclass(frozen=True, slots=True)
class Doubt:
    """One row that is not what it says, or cannot be used as it stands."""

    key: str
    finding: Finding
    memory_error: float | None
    """Of the row as stated."""
    speed_error: float | None
    devices: float | None
    """What its figures give, where they contradict the stated number."""
    hypotheses: tuple[Hypothesis, ...]
    """Best first; beside the row, never instead of it."""
    stated_devices: int | None = None
    read_devices: int | None = None
    """The number of devices the row is read with, where that is not the stated one."""

    @property
    def says(self) -> str:
        """The finding in one sentence."""
        if self.finding == "devices":
            read = f"; it is read with {self.read_devices}" if self.read_devices else ""
            return f"its own TFLOPS and step time give {self.devices:.1f} devices, not {self.stated_devices}{read}"
        if self.finding == "starved":
            return "it needs more than the device has: it ran starved, its speed is no sample of the layout"
        if not self.hypotheses and None in (self.memory_error, self.speed_error):
            return self._kept() + "with one figure measured, no layout can be told from it: unexplained"
        if not self.hypotheses:
            return self._kept() + "no other layout explains both its memory and its speed: unexplained"
        best = self.hypotheses[0]
        where = describe(best.layout)
        more = len(self.hypotheses) - 1
        also = f" (and {more} more)" if more else ""
        fits = f"memory {100 * best.memory_error:+.1f} %, speed {100 * best.speed_error:+.1f} %"
        leads = {"relabelled": "reads as", "ambiguous": "several layouts explain it, the nearest"}
        return f"{self._kept()}{leads.get(self.finding, 'it would be explained by')} {where}{also}: {fits}"

    def _kept(self) -> str:
        return "stands out, and is used all the same; " if self.finding == "stands_out" else ""


def describe(layout: Layout) -> str:
    """A layout in a few words."""
    return sizes_text(layout, "tp", "pp", "cp", "vpp", "recompute")


def device_doubts(samples: Sequence[Sample]) -> Iterator[Doubt]:
    """Rows whose TFLOPS, time and devices contradict each other."""
    for sample in samples:
        implied = figures_devices(sample.row)
        if implied is not None and abs(implied / sample.row.devices - 1.0) > DEVICE_TOLERANCE:
            read = sample.scenario.devices
            yield Doubt(
                key=sample.key,
                finding="devices",
                memory_error=None,
                speed_error=None,
                devices=implied,
                hypotheses=(),
                stated_devices=sample.row.devices,
                read_devices=read if read != sample.row.devices else None,
            )


def is_starved(sample: Sample, coefficients: Coefficients) -> bool:
    """Whether a row that ran needs more than a framework can comfortably use, by prediction and by its own figure.

    A prediction alone calls no run starved: the coefficients may be those that are wrong.
    """
    usable = sample.scenario.hardware.usable_memory_bytes
    held = sample.row.memory_bytes if sample.row.compares_with == "device" else None
    if held is None or held < FULL * usable:
        return False
    return predict_device_memory(sample, coefficients) > coefficients.memory.starved_from * usable


def misfits(samples: Sequence[Sample], memory: Fit | None, time: Fit | None, fitted: Coefficients) -> Iterator[Doubt]:
    """Rows outside the noise of the others, each with what would explain it."""
    out = set(memory.left_out if memory else ()) | set(time.left_out if time else ())
    for sample in samples:
        if is_starved(sample, fitted):
            yield _misfit(sample, "starved", memory, time)
        elif sample.key in out:
            found = tuple(hypotheses(sample, fitted))
            yield _misfit(sample, _finding(found), memory, time, found)


def standing_out(
    samples: Sequence[Sample], memory: Fit | None, time: Fit | None, fitted: Coefficients
) -> Iterator[Doubt]:
    """Rows that were used and yet lie more than three times the scatter off, each with what would explain it."""
    far = {
        key
        for fit in (memory, time)
        if fit is not None
        for key in fit.keys
        if abs(np.log1p(fit.residuals[key])) > STANDS_OUT * fit.noise
    }
    for sample in samples:
        if sample.key in far:
            yield _misfit(sample, "stands_out", memory, time, tuple(hypotheses(sample, fitted)))


def _misfit(
    sample: Sample, finding: Finding, memory: Fit | None, time: Fit | None, found: tuple[Hypothesis, ...] = ()
) -> Doubt:
    memory_error, speed_error = (fit.residuals.get(sample.key) if fit else None for fit in (memory, time))
    return Doubt(sample.key, finding, memory_error, speed_error, None, found)


def _finding(found: tuple[Hypothesis, ...]) -> Finding:
    """One split (whatever its chunks) is an explanation; several are not."""
    if not found:
        return "unexplained"
    near = [h for h in found if h.distance <= found[0].distance + 0.5]
    splits = {(h.layout.tensor_parallel, h.layout.pipeline_parallel, h.layout.context_parallel) for h in near}
    return "relabelled" if len(splits) == 1 else "ambiguous"


def hypotheses(sample: Sample, fitted: Coefficients, most: int = 6) -> list[Hypothesis]:
    """Layouts on the same devices that explain a row's memory and speed, nearest first."""
    scenario = replace(sample.scenario, coefficients=fitted)
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
        speed = _tflops(scenario, priced.step.total) / (sample.measured_tflops or np.nan) - 1.0
        for index in np.flatnonzero(np.abs(speed) <= SPEED_TOLERANCE):
            layout = priced.block.layout(int(index))
            if signature(scenario, layout) != stated:
                found.append(Hypothesis(layout, float(memory[index]), float(speed[index])))
    return sorted(found, key=lambda h: h.distance)[:most]


def _tflops(scenario: Scenario, seconds: np.ndarray) -> np.ndarray:
    return model_flops_per_token(scenario) * scenario.tokens_per_step / seconds / scenario.devices / TERA
