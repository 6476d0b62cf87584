"""A probe from its request to its calibration: rates measured, launches planned and made, their rows fitted.

    >>> request = ProbeRequest(hardware="local-cpu", devices=2, folder=Path("mine"))
    >>> launch_all(prepare(request, print), print).calibration_file
    PosixPath('mine/cpu.yaml')

`outlook` returns the plan and starts nothing. The fit is that of `simulator.evidence.calibration`; rows that scatter
too much store nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError, UnsupportedError, one_line
from simulator.evidence.calibration.cluster import Known
from simulator.evidence.calibration.own import OwnFit, fit_own, known_memory
from simulator.evidence.calibration.sample import prepared
from simulator.evidence.calibration.store import calibration_text
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.files import write_file
from simulator.lab.probe.plan import (
    KINDS,
    NOISE,
    Candidate,
    Effort,
    Planned,
    ProbeDesign,
    candidates,
    plan,
    reach,
    write_shapes,
)
from simulator.lab.probe.rates import Rates, assumed_rates, from_rates, measured_spec, rates_job, rates_of, spec_text
from simulator.lab.runner.campaign import Campaign, LaunchPlan, Record, Tell, launches_of, run, run_folder
from simulator.lab.runner.diagnosis import diagnosis
from simulator.lab.runner.engine import LOG_NAME, Command, Engine, Launch, Launcher, Pick
from simulator.lab.runner.launchers import LocalLauncher
from simulator.lab.runner.processes import run_guarded
from simulator.lab.runner.reference import WORKER, ReferenceEngine
from simulator.lab.trainer.job import RATES_NAME, MeasuredRates, RatesJob, from_json, to_json
from simulator.question.coefficients import Coefficients, priors, replaced
from simulator.question.question import question_of
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.documents import validated
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.vocabulary import Precision
from simulator.search.build import estimate_layout

FOLDER: Final = "simulate-probe"
"""Default folder."""
_BUSY = 0.3
"""Load of a processor, per rank, from which timings are off."""
SPREAD: Final = 3.0
"""Factor on the priors' spreads in the fit: rates of single operations determine a step only roughly."""
TIMED_STEPS, WARM_UP_STEPS, COUNTED_STEPS = 8, 2, 1
"""Steps of each launch."""
_START_SECONDS: Final = (8.0, 25.0)
"""Time to start a launch on a processor and on an accelerator."""
_LONGEST_SECONDS: Final = (30.0, 120.0)
"""Longest launch on a processor and on an accelerator."""
UNDETERMINED: Final = 0.95
"""Smallest share of its prior's standard deviation with which a coefficient counts as undetermined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """Machine, folder and limits of a probe."""

    hardware: str
    """Name or path of the spec that the measured one is made from."""
    devices: int
    """Ranks of every launch, a count."""
    folder: Path
    model: str | None = None
    """Name or path of the only model to launch; None for shapes of several widths."""
    precision: Precision = "bf16"
    """Type of the matrix products."""
    backend: str = "cpu"
    """Kind of device, in torch's words."""
    launches: int = 20
    limit_seconds: float = 600.0
    """Longest time of one launch, and of measuring the rates."""
    resume: bool = False
    """Whether rates and rows of an earlier probe in the folder are reused."""

    @property
    def rows_file(self) -> Path:
        """File of the measured rows."""
        return self.folder / "rows.csv"

    @property
    def rates_folder(self) -> Path:
        """Folder of the measurement of the rates."""
        return self.folder / "rates"

    @property
    def launch_folder(self) -> Path:
        """Folder of the launches."""
        return self.folder / "launches"

    @property
    def model_folder(self) -> Path:
        """Folder of the specs of launched shapes."""
        return self.folder / "models"

    def check(self) -> None:
        """Raise InputError or UnsupportedError where nothing could be probed, before anything is started."""
        if os.name != "posix":
            raise UnsupportedError("simulate calibrate --probe: launches need Linux or another POSIX system")
        ReferenceEngine(backend=self.backend).check()
        LocalLauncher().check(1)
        if not self.resume and self.rows_file.exists():
            raise InputError(f"--output {self.folder}: holds an earlier probe; --resume continues it")


def rates_command(request: ProbeRequest) -> Command:
    """Return the command that measures the rates; write nothing."""
    job = request.rates_folder.absolute() / "job.json"
    ranks = ("--standalone", "--nproc-per-node", str(request.devices), "--max-restarts", "0")
    return Command(
        arguments=(sys.executable, "-m", "torch.distributed.run", *ranks, "-m", WORKER, "rates", str(job)),
        environment={"OMP_NUM_THREADS": "1"} if request.backend == "cpu" else {},
        folder=job.parent,
    )


def known_rates(request: ProbeRequest) -> MeasuredRates | None:
    """Return the rates of an earlier probe in the folder; None without. Raises UnsupportedError for another file."""
    path = request.rates_folder / RATES_NAME
    try:
        return from_json(MeasuredRates, path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{path}: not the rates of a probe: {one_line(str(error))}; remove it") from error


def measured_rates(request: ProbeRequest, tell: Tell, job: RatesJob | None = None) -> MeasuredRates:
    """Measure the rates. Raises UnsupportedError with the reason where that fails."""
    folder = request.rates_folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RATES_NAME).unlink(missing_ok=True)
    job = job or rates_job(request.devices, request.backend)
    (folder / "job.json").write_text(to_json(job), encoding="utf-8")
    busy = os.getloadavg()[0] / request.devices
    if request.backend == "cpu" and busy > _BUSY:
        tell(f"the machine is busy (load {os.getloadavg()[0]:.1f}): what is measured now will be too slow")
    tell(f"rates: {len(job.timings)} operations on {request.devices} ranks")
    command, log = rates_command(request), folder / LOG_NAME
    ended = run_guarded(
        command.arguments,
        folder=command.folder,
        environment=command.environment,
        log=log,
        limit_seconds=request.limit_seconds,
    )
    if ended.interrupted:
        raise KeyboardInterrupt
    tell(f"rates: after {ended.wall_seconds:.1f} s")
    measured = known_rates(request) if ended.exit_code == 0 else None
    if measured is None:
        raise UnsupportedError(f"--probe: rates could not be measured: {diagnosis(ended).error}; see {log}")
    return measured


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
        hardware = validated(f"--probe of {template.name}", HardwareSpec, _document(request, measured))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Step time of a launch as predicted before, as measured, and by the fit."""

    planned: Planned
    measured_seconds: float | None
    """Measured step time; None for a launch that failed."""
    before_seconds: float
    after_seconds: float | None
    """Step time by the fit; None without a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Result of a probe."""

    prepared: Prepared
    campaign: Campaign
    fitted: OwnFit | None
    """Fit; None where all launches failed."""
    compared: tuple[Compared, ...]
    """Comparison of every launch."""
    calibration_file: Path | None
    """Stored calibration; None where nothing could be stored."""
    undetermined: tuple[str, ...]
    """Coefficients that stay at their priors, as no launch depends on them."""


def launch_all(
    ready: Prepared, tell: Tell, *, engine: Engine | None = None, launcher: Launcher | None = None
) -> Probed:
    """Run the plan, fit its rows and write the calibration; by default with the reference trainer on this machine."""
    request = ready.request
    engine = engine or ReferenceEngine(backend=request.backend)
    record = Record(request.rows_file)
    record.check()
    campaign = run(launch_plan(ready, engine, record), launcher or LocalLauncher(), engine, record, tell)
    if campaign.unwritten:
        tell(campaign.unwritten)
    rows = [row for compared in campaign.comparisons for row in compared.ran]
    family = ready.hardware.family
    known = {kind: Known.of_priors(kind, ready.base, spread=SPREAD, noise=NOISE["time"]) for kind in KINDS}
    fitted = fit_own(family, prepared(rows), known, ready.base) if rows else None
    stored = None
    if fitted is not None and (fitted.stored("time") or fitted.stored("memory")):
        stored = request.folder / f"{family}.yaml"
        write_file(stored, calibration_text(fitted.calibration()))
    after = fitted.coefficients(ready.base) if fitted is not None and fitted.stored("time") else None
    return Probed(
        prepared=ready,
        campaign=campaign,
        fitted=fitted,
        compared=tuple(_compared(ready, campaign, after)),
        calibration_file=stored,
        undetermined=undetermined(fitted, ready.base) if fitted is not None else (),
    )


def launch_plan(ready: Prepared, engine: Engine, record: Record) -> LaunchPlan:
    """Return the design's launches, with their files written; those that the record holds are left out."""
    before = record.rows() if ready.request.resume else ()
    folder = run_folder(ready.request.launch_folder)
    layouts: list[tuple[str, Estimate]] = []
    launches: list[Launch] = []
    known: dict[str, list[MeasuredRow]] = {}
    for number, planned in enumerate(ready.design.launches, start=1):
        title = f"{number}-{planned.candidate.title}"
        pick = pick_of(ready, planned.candidate, record.table)
        estimate = estimate_layout(pick.scenario, pick.layout)
        layouts.append((title, estimate))
        known[title] = launches_of(pick, before)
        if known[title]:
            continue
        launches.append(
            Launch(
                title=title,
                pick=pick,
                estimate=estimate,
                command=engine.prepare(pick, (folder / title).absolute()),
                number=len(launches) + 1,
                limit_seconds=ready.request.limit_seconds,
            )
        )
    return LaunchPlan(layouts=tuple(layouts), launches=tuple(launches), known=known, refused=())


def pick_of(ready: Prepared, candidate: Candidate, table: str) -> Pick:
    """Return the launch of a candidate, with the names that its measured row will have."""
    return Pick(
        scenario=replace(candidate.scenario, coefficients=ready.base),
        layout=candidate.layout,
        question=question_of({"model": candidate.model, "hardware": str(ready.spec_file)}),
        steps=TIMED_STEPS,
        warmup_steps=WARM_UP_STEPS,
        table=table,
    )


def _compared(ready: Prepared, campaign: Campaign, after: Coefficients | None) -> Iterator[Compared]:
    for planned, comparison in zip(ready.design.launches, campaign.comparisons, strict=True):
        candidate = planned.candidate
        fitted = None
        if after is not None:
            scenario = replace(candidate.scenario, coefficients=after)
            fitted = estimate_layout(scenario, candidate.layout).throughput.step_seconds
        step = comparison.step
        yield Compared(
            planned=planned,
            measured_seconds=None if step is None else step.measured,
            before_seconds=planned.step_seconds,
            after_seconds=fitted,
        )


def undetermined(fitted: OwnFit, base: Coefficients) -> tuple[str, ...]:
    """Return the coefficients whose deviation after the fit is that of their prior."""
    reasons: list[str] = []
    for part in fitted.fits.values():
        known = priors(part.kind)
        values = getattr(base, part.kind)
        for name, error in zip(part.names, np.sqrt(np.diag(part.covariance)), strict=True):
            prior = SPREAD * known[name].spread * abs(float(getattr(values, name)))
            if error >= UNDETERMINED * prior:
                reasons.append(name)
    return tuple(reasons)
