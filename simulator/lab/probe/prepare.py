"""Before the first launch: rates, the spec they make, and the plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, UnsupportedError
from simulator.evidence.calibration.fit import Freedom
from simulator.evidence.calibration.run import known_memory
from simulator.files import write_file
from simulator.lab.probe.asked import ProbeRequest
from simulator.lab.probe.hardware import measured_spec, spec_of, spec_text
from simulator.lab.probe.measure import known_rates, measured_rates
from simulator.lab.probe.models import reach, write_shapes
from simulator.lab.probe.plan import NOISE, Effort, ProbeDesign, plan
from simulator.lab.probe.pool import candidates
from simulator.lab.probe.priors import assumed_rates, from_rates
from simulator.lab.probe.rates import Rates, rates_of
from simulator.lab.runner.campaign import Tell
from simulator.lab.trainer.measured_rates import RATES_NAME, MeasuredRates, RatesJob
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import replaced
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.hardware import HardwareSpec

FREEDOM: Final = Freedom(spread=3.0, every=True, noise=NOISE["time"])
"""Of the fit: rates of single operations say only so much of a step, and the launches are chosen to decide."""
TIMED_STEPS, WARM_UP_STEPS, COUNTED_STEPS = 8, 2, 1
"""Steps of each launch."""
_START_SECONDS: Final = (8.0, 25.0)
"""Of a launch on a processor and on an accelerator."""
_LONGEST_SECONDS: Final = (30.0, 120.0)
"""Likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is known before the first launch."""

    asked: ProbeRequest
    hardware: HardwareSpec
    measured: MeasuredRates | None
    """None where the plan rests on the numbers of the spec that was given."""
    rates: Rates
    base: Coefficients
    """The rates as coefficients: where the fit starts, and what its priors are."""
    design: ProbeDesign

    @property
    def spec_file(self) -> Path:
        """The measured spec."""
        return self.asked.folder / f"{self.hardware.name}.yaml"


def prepare(asked: ProbeRequest, tell: Tell, job: RatesJob | None = None) -> Prepared:
    """Measure the rates, or take those of an earlier probe where that is resumed; write the spec, and plan."""
    asked.folder.mkdir(parents=True, exist_ok=True)
    measured = known_rates(asked) if asked.resume else None
    if measured is None:
        measured = measured_rates(asked, tell, job)
    prepared = _prepared(asked, measured)
    document = _document(asked, measured)
    if asked.model is None:
        write_shapes(asked.backend, asked.model_folder)
    write_file(prepared.spec_file, spec_text(document))
    return prepared


def outlook(asked: ProbeRequest) -> Prepared:
    """The plan without starting anything: from the rates in the folder, else from the spec's own numbers."""
    return _prepared(asked, known_rates(asked))


def _document(asked: ProbeRequest, measured: MeasuredRates) -> dict[str, Any]:
    made = datetime.fromtimestamp((asked.rates_folder / RATES_NAME).stat().st_mtime, UTC)
    return measured_spec(load_hardware(asked.hardware), measured, rates_of(measured), made.date().isoformat())


def _prepared(asked: ProbeRequest, measured: MeasuredRates | None) -> Prepared:
    template = load_hardware(asked.hardware)
    if measured is not None and measured.devices != asked.devices:
        raise InputError(
            f"--devices {asked.devices}: the rates in {asked.rates_folder} are of {measured.devices}; use another "
            "--output"
        )
    hardware, rates = template, assumed_rates(template)
    if measured is not None:
        rates = rates_of(measured)
        if asked.precision not in rates.attention:
            raise UnsupportedError(f"--precision {asked.precision}: the device has no attention kernel for it")
        hardware = spec_of(_document(asked, measured), f"--probe of {template.name}")
    base = Coefficients()
    known = known_memory(hardware.family)
    if known is not None:
        base = replaced(base, "memory", known.names, known.vector)
    base = from_rates(rates, asked.precision, base)
    found = candidates(hardware, asked.devices, asked.precision, reach(asked.backend, asked.model, asked.model_folder))
    kind = 0 if asked.backend == "cpu" else 1
    effort = Effort(
        launches=asked.launches,
        start_seconds=_START_SECONDS[kind],
        steps=TIMED_STEPS + WARM_UP_STEPS + COUNTED_STEPS,
        longest_seconds=_LONGEST_SECONDS[kind],
        freedom=FREEDOM,
    )
    design = plan(found, base, effort)
    if not design.launches:
        raise UnsupportedError(
            f"--probe: of {len(found)} launches that could be made, none fits {hardware.name} and lasts between "
            f"{effort.shortest_step_seconds:g} s a step and {effort.longest_seconds:g} s in all; give a --model of "
            "another size"
        )
    return Prepared(asked=asked, hardware=hardware, measured=measured, rates=rates, base=base, design=design)
