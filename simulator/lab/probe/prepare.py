"""Preparation of a probe: rates measured or read, the spec written, the launches planned.

Launches no training; `launches` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, UnsupportedError
from simulator.evidence.calibration.own import known_memory
from simulator.files import write_file
from simulator.lab.probe.hardware import measured_spec, spec_of, spec_text
from simulator.lab.probe.measure import known_rates, measured_rates
from simulator.lab.probe.plan import Effort, ProbeDesign, plan
from simulator.lab.probe.pool import candidates
from simulator.lab.probe.priors import assumed_rates, from_rates
from simulator.lab.probe.request import ProbeRequest
from simulator.lab.probe.shapes import reach, write_shapes
from simulator.lab.probe.summary import Rates, rates_of
from simulator.lab.runner.campaign import Tell
from simulator.lab.trainer.measured_rates import RATES_NAME, MeasuredRates, RatesJob
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import replaced
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.hardware import HardwareSpec

SPREAD: Final = 3.0
"""Factor on the priors' spreads in the fit: rates of single operations determine a step only roughly."""
TIMED_STEPS, WARM_UP_STEPS, COUNTED_STEPS = 8, 2, 1
"""Steps of each launch."""
_START_SECONDS: Final = (8.0, 25.0)
"""Time to start a launch on a processor and on an accelerator."""
_LONGEST_SECONDS: Final = (30.0, 120.0)
"""Longest launch on a processor and on an accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """State of a probe before its first launch."""

    request: ProbeRequest
    hardware: HardwareSpec
    measured: MeasuredRates | None
    """Measured rates; None where the plan rests on the template's own numbers."""
    rates: Rates
    base: Coefficients
    """Rates as coefficients: start and priors of the fit."""
    design: ProbeDesign

    @property
    def spec_file(self) -> Path:
        """Path of the measured spec."""
        return self.request.folder / f"{self.hardware.name}.yaml"


def prepare(request: ProbeRequest, tell: Tell, job: RatesJob | None = None) -> Prepared:
    """Measure the rates, or read those of the resumed probe; write the spec and plan the launches."""
    request.folder.mkdir(parents=True, exist_ok=True)
    measured = known_rates(request) if request.resume else None
    if measured is None:
        measured = measured_rates(request, tell, job)
    prepared = _prepared(request, measured)
    document = _document(request, measured)
    if request.model is None:
        write_shapes(request.backend, request.model_folder)
    write_file(prepared.spec_file, spec_text(document))
    return prepared


def outlook(request: ProbeRequest) -> Prepared:
    """Return the plan without starting anything: from the rates in the folder, else from the spec's own numbers."""
    return _prepared(request, known_rates(request))


def _document(request: ProbeRequest, measured: MeasuredRates) -> dict[str, Any]:
    made = datetime.fromtimestamp((request.rates_folder / RATES_NAME).stat().st_mtime, UTC)
    return measured_spec(load_hardware(request.hardware), measured, rates_of(measured), made.date().isoformat())


def _prepared(request: ProbeRequest, measured: MeasuredRates | None) -> Prepared:
    template = load_hardware(request.hardware)
    if measured is not None and measured.devices != request.devices:
        raise InputError(
            f"--devices {request.devices}: the rates in {request.rates_folder} are of {measured.devices}; use another "
            "--output"
        )
    hardware, rates = template, assumed_rates(template)
    if measured is not None:
        rates = rates_of(measured)
        if request.precision not in rates.attention:
            raise UnsupportedError(f"--precision {request.precision}: the device has no attention kernel for it")
        hardware = spec_of(_document(request, measured), f"--probe of {template.name}")
    base = Coefficients()
    known = known_memory(hardware.family)
    if known is not None:
        base = replaced(base, "memory", known.names, known.vector)
    base = from_rates(rates, request.precision, base)
    sizes = reach(request.backend, request.model, request.model_folder)
    pool = candidates(hardware, request.devices, request.precision, sizes)
    kind = 0 if request.backend == "cpu" else 1
    effort = Effort(
        launches=request.launches,
        start_seconds=_START_SECONDS[kind],
        steps=TIMED_STEPS + WARM_UP_STEPS + COUNTED_STEPS,
        longest_seconds=_LONGEST_SECONDS[kind],
        spread=SPREAD,
    )
    design = plan(pool, base, effort)
    if not design.launches:
        raise UnsupportedError(
            f"--probe: of {len(pool)} launches that could be made, none fits {hardware.name} and lasts between "
            f"{effort.shortest_step_seconds:g} s a step and {effort.longest_seconds:g} s in all; give a --model of "
            "another size"
        )
    return Prepared(request=request, hardware=hardware, measured=measured, rates=rates, base=base, design=design)
