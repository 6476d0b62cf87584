"""Launches of a probe's plan, and the fit to their rows.

The fit is that of `evidence.calibration`, no other; rows that scatter too much store nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from simulator.cost.pricing.estimate import Estimate
from simulator.evidence.calibration.cluster import Known
from simulator.evidence.calibration.own import OwnFit, fit_own
from simulator.evidence.calibration.sample import prepared
from simulator.evidence.calibration.store import calibration_text
from simulator.evidence.measurements.row import MeasuredRow
from simulator.files import write_file
from simulator.lab.probe.plan import KINDS, NOISE, Planned
from simulator.lab.probe.pool import Candidate
from simulator.lab.probe.prepare import SPREAD, TIMED_STEPS, WARM_UP_STEPS, Prepared
from simulator.lab.runner.campaign import Campaign, LaunchPlan, Tell, run, run_folder
from simulator.lab.runner.engine import Engine, Pick
from simulator.lab.runner.engines.launched import launched_row
from simulator.lab.runner.launch import Launch, Launcher
from simulator.lab.runner.local import LocalLauncher
from simulator.lab.runner.record import Record, identity
from simulator.lab.runner.reference import ReferenceEngine
from simulator.question.coefficients.values import Coefficients, priors
from simulator.question.question import question_of
from simulator.search.build import estimate_layout

UNDETERMINED: Final = 0.95
"""Smallest share of its prior's standard deviation with which a coefficient counts as undetermined."""


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
        known[title] = _recorded(pick, before)
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


def _recorded(pick: Pick, before: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    launched = identity(launched_row(pick, "error"))
    return [row for row in before if identity(row) == launched]


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
