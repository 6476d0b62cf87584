"""Own rows: fitted from what ships for their hardware, and how far off they are before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.evidence.calibration.apply import Applied, applied
from simulator.evidence.calibration.fit import Freedom, Start
from simulator.evidence.calibration.run import FamilyFit, fit_family
from simulator.evidence.calibration.sample import Sample, measured, predict
from simulator.evidence.calibration.store import KINDS
from simulator.evidence.measurements.row import MeasuredRow
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.units import GIB

TEMPLATE = (
    "model,hardware,devices,seq_length,global_batch_size,micro_batch_size,tensor_parallel,pipeline_parallel,"
    "step_time_s,memory_gib\n"
    "llama3.1-8b,h100-sxm-80g,8,8192,128,1,2,1,14.6,61.2\n"
)
"""The columns that a run needs, with an example; step time and memory are made up."""


def template(hardware: HardwareSpec | None) -> str:
    """The table of a run's columns with an example: of one node of `hardware`, with its framework told, where given.

    A framework decides what a device holds, and on few platforms is the usual one Megatron.
    """
    if hardware is None:
        return TEMPLATE
    header, example = TEMPLATE.splitlines()
    model, _, _, *rest, _ = example.split(",")
    memory = f"{0.75 * hardware.usable_memory_bytes / GIB:.1f}"
    cells = ",".join((model, hardware.name, str(hardware.devices_per_node), *rest, memory, "megatron"))
    return f"{header},framework\n{cells}\n"


@dataclass(frozen=True, slots=True)
class OwnError:
    """Relative errors of one own row in one kind of figure, predicted over measured less one."""

    key: str
    kind: CoefficientKind
    before: float
    """With what ships."""
    after: float
    """With the calibration given, or with all own rows fitted."""
    left_out: float | None
    """Fitted to the other own rows; None for a single row."""


def fit_own(family: str, samples: Sequence[Sample]) -> FamilyFit:
    """Fit one family's own rows, starting from what ships for their cluster or family."""
    mine = [s for s in samples if s.scenario.hardware.family == family]
    used = applied(family, None, mine[0].scenario.hardware.name if mine else None)
    return fit_family(family, samples, used.coefficients(), Freedom(start=starts(used)))


def starts(used: Applied) -> dict[CoefficientKind, Start]:
    """How far the coefficients of a calibration may be off, and how its rows scatter."""
    found: dict[CoefficientKind, Start] = {}
    for kind in KINDS:
        part = used.part(kind)
        if part is not None and not part.known:
            errors = np.sqrt(np.diag(part.covariance)).tolist()
            found[kind] = Start(dict(zip(part.names, errors, strict=True)), part.noise)
    return found


def own_errors(samples: Sequence[Sample], choice: str | None = None) -> Iterator[OwnError]:
    """Errors of own rows with what ships, with `choice` or all rows fitted, and left out one by one."""
    for family in dict.fromkeys(s.scenario.hardware.family for s in samples):
        mine = [s for s in samples if s.scenario.hardware.family == family]
        name = mine[0].scenario.hardware.name
        before = applied(family, None, name).coefficients()
        after = (
            fit_own(family, mine).coefficients(before)
            if choice is None
            else applied(family, choice, name).coefficients()
        )
        for kind in KINDS:
            counted = [s for s in mine if s.counts(kind)]
            for sample in counted:
                others = [s for s in mine if s is not sample]
                apart = fit_own(family, others).coefficients(before) if len(counted) > 1 else None
                yield OwnError(
                    key=sample.key,
                    kind=kind,
                    before=_error(kind, sample, before),
                    after=_error(kind, sample, after),
                    left_out=None if apart is None else _error(kind, sample, apart),
                )


def _error(kind: CoefficientKind, sample: Sample, coefficients: Coefficients) -> float:
    alone = replace(sample, scenario=replace(sample.scenario, coefficients=coefficients))
    return float(predict(kind, alone, coefficients, (), np.zeros((0, 1)))[0] / measured(kind, [sample])[0] - 1.0)


def unused(rows: Sequence[MeasuredRow], fits: Sequence[FamilyFit]) -> Iterator[str]:
    """Why a row, or one of its figures, decides nothing: one sentence for each, with what would change it."""
    for row in rows:
        if row.outcome == "ok" and not row.model:
            yield f"{row.key}: not fitted: it names no model; give a shipped name or a spec's path in column model"
        elif row.outcome != "ok" or not row.asks:
            yield f"{row.key}: not fitted: outcome {row.outcome}, status {row.status}; only runs that ended well are"
    for fitted in fits:
        doubts = {doubt.key: doubt for doubt in fitted.doubts}
        for kind in KINDS:
            fit = fitted.fit(kind)
            for sample in fitted.samples if fit else ():
                if sample.figure(kind) is not None and fit is not None and sample.key not in fit.keys:
                    why = (
                        doubts[sample.key].says if sample.key in doubts else "it lies outside the scatter of the others"
                    )
                    yield f"{sample.key}: {kind} not fitted: {why}; other figures or another layout would change that"
