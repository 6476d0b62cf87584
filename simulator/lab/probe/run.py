"""The launches of a probe, and what is fitted to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from simulator.cost.pricing.estimate import Estimate
from simulator.evidence.calibration.run import FamilyFit, fit_family, prepared
from simulator.evidence.calibration.store import calibration_text
from simulator.evidence.measurements.row import MeasuredRow
from simulator.files import write_file
from simulator.lab.probe.plan import Planned
from simulator.lab.probe.pool import Candidate
from simulator.lab.probe.prepare import FREEDOM, TIMED_STEPS, WARM_UP_STEPS, Prepared
from simulator.lab.runner.campaign import Campaign, LaunchPlan, Tell, run, run_folder
from simulator.lab.runner.engine import Engine, Pick
from simulator.lab.runner.engines.launched import launched_row
from simulator.lab.runner.launch import Launch, Launcher
from simulator.lab.runner.local import LocalLauncher
from simulator.lab.runner.record import Record, identity
from simulator.lab.runner.reference import ReferenceEngine
from simulator.question.coefficients.values import Coefficients, priors
from simulator.search.build import estimate_layout

UNDETERMINED: Final = 0.95
"""Share of its prior's deviation from which nothing is said to be known of a coefficient beyond the prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One launch: its step time as predicted before, as measured, and as the fit has it."""

    planned: Planned
    measured_seconds: float | None
    """None where it did not end well."""
    before_seconds: float
    after_seconds: float | None
    """None without a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a probe found."""

    prepared: Prepared
    campaign: Campaign
    fitted: FamilyFit | None
    """None where no launch ended well."""
    compared: tuple[Compared, ...]
    """Every launch."""
    calibration_file: Path | None
    """None where nothing could be stored."""
    undetermined: tuple[str, ...]
    """Coefficients that stay at their priors, because no launch says anything about them."""


def launch_all(
    ready: Prepared, tell: Tell, *, engine: Engine | None = None, launcher: Launcher | None = None
) -> Probed:
    """Run the plan, fit what it measured, write the calibration; the reference trainer on this machine by default."""
    asked = ready.asked
    engine = engine or ReferenceEngine(backend=asked.backend)
    record = Record(asked.rows_file)
    record.check()
    campaign = run(launch_plan(ready, engine, record), launcher or LocalLauncher(), engine, record, tell)
    if campaign.unwritten:
        tell(campaign.unwritten)
    rows = [row for one in campaign.comparisons for row in one.ran]
    family = ready.hardware.family
    fitted = fit_family(family, prepared(rows), ready.base, FREEDOM) if rows else None
    stored = None
    if fitted is not None and (fitted.stored("time") or fitted.stored("memory")):
        stored = asked.folder / f"{family}.yaml"
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
    """The design's launches with what they read written; those that the record holds are not made again."""
    before = record.rows() if ready.asked.resume else ()
    folder = run_folder(ready.asked.launch_folder)
    layouts: list[tuple[str, Estimate]] = []
    launches: list[Launch] = []
    known: dict[str, list[MeasuredRow]] = {}
    for number, planned in enumerate(ready.design.launches, start=1):
        title = f"{number}-{planned.candidate.title}"
        pick = pick_of(ready, planned.candidate, record.table)
        estimate = estimate_layout(pick.scenario, pick.layout)
        layouts.append((title, estimate))
        known[title] = _held(pick, before)
        if known[title]:
            continue
        launches.append(
            Launch(
                title=title,
                pick=pick,
                estimate=estimate,
                command=engine.prepare(pick, (folder / title).absolute()),
                number=len(launches) + 1,
                limit_seconds=ready.asked.limit_seconds,
            )
        )
    return LaunchPlan(layouts=tuple(layouts), launches=tuple(launches), known=known, refused=())


def pick_of(ready: Prepared, candidate: Candidate, table: str) -> Pick:
    """What a launch is asked, with the names that its measured row will have."""
    return Pick(
        scenario=replace(candidate.scenario, coefficients=ready.base),
        layout=candidate.layout,
        model=candidate.model,
        hardware=str(ready.spec_file),
        steps=TIMED_STEPS,
        warmup_steps=WARM_UP_STEPS,
        table=table,
    )


def _held(pick: Pick, before: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    wanted = identity(launched_row(pick, "error"))
    return [row for row in before if identity(row) == wanted]


def _compared(ready: Prepared, campaign: Campaign, after: Coefficients | None) -> Iterator[Compared]:
    for planned, one in zip(ready.design.launches, campaign.comparisons, strict=True):
        candidate = planned.candidate
        fitted = None
        if after is not None:
            scenario = replace(candidate.scenario, coefficients=after)
            fitted = estimate_layout(scenario, candidate.layout).throughput.step_seconds
        step = one.step
        yield Compared(
            planned=planned,
            measured_seconds=None if step is None else step.measured,
            before_seconds=planned.step_seconds,
            after_seconds=fitted,
        )


def undetermined(fitted: FamilyFit, base: Coefficients) -> tuple[str, ...]:
    """Coefficients whose deviation after the fit is that of their prior."""
    found: list[str] = []
    for part in (fitted.memory, fitted.time):
        if part is None:
            continue
        known = priors(part.kind)
        values = getattr(base, part.kind)
        for name, error in zip(part.names, np.sqrt(np.diag(part.covariance)), strict=True):
            prior = FREEDOM.spread * known[name].spread * abs(float(getattr(values, name)))
            if error >= UNDETERMINED * prior:
                found.append(name)
    return tuple(found)
