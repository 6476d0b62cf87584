"""Calibration by a user's own rows: which of them count, the fit, and their errors before and after."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

import numpy as np

from simulator._version import __version__
from simulator.evidence.calibration.apply import applied
from simulator.evidence.calibration.cluster import (
    DEVICE_TOLERANCE,
    ClusterFit,
    Known,
    Sample,
    fit_cluster,
    is_starved,
    measured,
    predict,
)
from simulator.evidence.calibration.store import KINDS, Calibration, FittedPart, range_of, shipped_calibration
from simulator.evidence.measurements.question import figures_devices
from simulator.evidence.measurements.rows import MeasuredRow, public_tables, read_rows, shipped_tables
from simulator.files import data_folder, read_table
from simulator.question.coefficients import CoefficientKind, Coefficients, replaced
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.units import GIB
from simulator.records import Record, replace

MOST_SCATTER = 0.20
"""Root mean square of relative errors above which a fitted part is not stored: it does not describe its rows."""
_OTHER_UNIT = 5.0  # ratio of predicted to measured figure from which a message asks about the unit
TEMPLATE = (
    "model,hardware,devices,seq_length,global_batch_size,micro_batch_size,tensor_parallel,pipeline_parallel,"
    "step_time_s,memory_gib\n"
    "llama3.1-8b,h100-sxm-80g,8,8192,128,1,2,1,14.6,61.2\n"
)
"""Columns that a run needs, with an example; step time and memory are made up."""


def template(hardware: HardwareSpec | None) -> str:
    """Return the table of a run's columns with an example, with `hardware` of one of its nodes and a framework."""
    if hardware is None:
        return TEMPLATE
    header, example = TEMPLATE.splitlines()
    model, _, _, *rest, _ = example.split(",")
    memory = f"{0.75 * hardware.usable_memory_bytes / GIB:.1f}"
    cells = ",".join((model, hardware.name, str(hardware.devices_per_node), *rest, memory, "megatron"))
    return f"{header},framework\n{cells}\n"


class OwnFit(Record):
    """Rows of one family's cluster, and the coefficients fitted to them."""

    family: str
    samples: tuple[Sample, ...]
    """Rows that ran."""
    fits: Mapping[CoefficientKind, ClusterFit]
    """Fits by kind; a kind without rows is missing."""
    starved: frozenset[str] = frozenset()
    """Keys of rows whose memory is the device's capacity and not their need: no samples."""
    known_memory: FittedPart | None = None
    """Memory coefficients that need no rows; memory is then not fitted."""

    def stored(self, kind: CoefficientKind) -> ClusterFit | None:
        """Return the fit of one kind if it describes its rows well enough and is better than none; else None."""
        fit = self.fits.get(kind)
        return None if fit is None or fit.scatter > MOST_SCATTER or fit.belief == "prior" else fit

    def coefficients(self, base: Coefficients | None = None) -> Coefficients:
        """Return the fitted set; coefficients that were not fitted come from `base`."""
        return self.calibration().coefficients(base)

    def calibration(self) -> Calibration:
        """Return the calibration that is stored."""
        parts = {kind: fit.part() for kind in KINDS if (fit := self.stored(kind)) is not None}
        used = {key for part in parts.values() for key in part.rows_used}
        rows = [s for s in self.samples if s.key in used] or self.samples
        return Calibration(
            family=self.family,
            tool_version=__version__,
            tables=tuple(sorted({sample.row.table for sample in self.samples})),
            memory=parts.get("memory", self.known_memory),
            time=parts.get("time"),
            range=range_of((s.scenario, s.layout) for s in rows),
        )

    def believed(self, kind: CoefficientKind) -> str:
        """Return a sentence on rows that only move one factor; empty elsewhere."""
        fit = self.stored(kind)
        if fit is None or fit.belief != "factor":
            return ""
        return (
            f"{kind} of family {self.family} is moved by one factor, the mean of its {len(fit.keys)} rows: left out "
            "one by one, the others predict them better so than by all that each says"
        )

    def not_stored(self, kind: CoefficientKind) -> str:
        """Return why the fit of one kind is not stored, in one sentence; empty where it is, or there is none."""
        fit = self.fits.get(kind)
        if fit is None or self.stored(kind) is not None:
            return ""
        if fit.scatter <= MOST_SCATTER:
            return (
                f"{kind} of family {self.family} is not stored: left out one by one, its {len(fit.keys)} rows are "
                "not predicted better by the others than without any; what was known before stays"
            )
        errors = fit.residuals
        used = [errors[key] for key in fit.keys]
        side = "" if min(used) < 0.0 < max(used) else ", all on one side"
        worst = max(fit.keys, key=lambda key: abs(math.log1p(errors[key])))
        times = 1.0 + errors[worst]
        unit = f"; {worst} is {times:.3g} times what was measured: is it in the column's unit?"
        return (
            f"{kind} of family {self.family} is not stored: after the fit its {len(used)} rows still scatter by "
            f"{100.0 * fit.scatter:.1f} % (at most {100.0 * MOST_SCATTER:.0f} %){side}, so they are not runs of the "
            "layouts they name, or the model lacks what they show"
            + (unit if max(times, 1.0 / times) > _OTHER_UNIT else "")
        )


def fit_own(
    family: str,
    samples: Sequence[Sample],
    known: Mapping[CoefficientKind, Known] | None = None,
    base: Coefficients | None = None,
) -> OwnFit:
    """Fit one family's own rows, from the shipped calibration of their cluster or family, or `known` and `base`."""
    of_family = tuple(s for s in samples if s.scenario.hardware.family == family)
    if known is None or base is None:
        known, base = shipped_knowledge(family, of_family[0].scenario.hardware.name if of_family else None)
    certain = known_memory(family)
    if certain is not None:
        base = replaced(base, "memory", certain.names, certain.vector)
    memory, starved = (None, set[str]()) if certain is not None else _fit_memory(of_family, known["memory"], base)
    fits: dict[CoefficientKind, ClusterFit] = {} if memory is None else {"memory": memory}
    # A row whose memory is not that of its layout is no sample of that layout's speed either.
    wrong = starved | set(memory.left_out if memory is not None else ())
    timed = [s for s in of_family if s.measured_tflops is not None and s.key not in wrong]
    if timed:
        fits["time"] = fit_cluster(known["time"], timed, base)
    return OwnFit(family, of_family, fits, frozenset(starved), certain)


def shipped_knowledge(family: str, cluster: str | None) -> tuple[dict[CoefficientKind, Known], Coefficients]:
    """Return the shipped distribution of each kind, and the shipped coefficients, of a cluster or family."""
    used = applied(family, None, cluster)
    parts = ((kind, used.part(kind)) for kind in KINDS)
    return {kind: Known.of_part(kind, part) for kind, part in parts if part is not None}, used.coefficients()


def known_memory(family: str) -> FittedPart | None:
    """Return the memory coefficients of a family whose hardware leaves nothing to fit; None for most."""
    shipped = shipped_calibration(family)
    return None if shipped is None or shipped.memory is None or not shipped.memory.known else shipped.memory


def _fit_memory(samples: Sequence[Sample], known: Known, base: Coefficients) -> tuple[ClusterFit | None, set[str]]:
    """Fit memory, and name the starved rows, which hold the device's capacity and not their need."""
    rows = [s for s in samples if s.row.memory_bytes is not None]
    if not rows:
        return None, set()
    fit = fit_cluster(known, rows, base)
    so_far = replaced(base, "memory", fit.names, fit.values)
    starved = {s.key for s in rows if is_starved(s, so_far)}
    fed = [s for s in rows if s.key not in starved]
    return (fit_cluster(known, fed, base) if starved and fed else fit), starved


class OwnError(Record):
    """Relative errors of one own row in one kind of figure, predicted over measured less one."""

    key: str
    kind: CoefficientKind
    before: float
    """Error with the shipped calibration."""
    after: float
    """Error with the chosen calibration, or with all own rows fitted."""
    left_out: float | None
    """Error with the other own rows fitted; None for a single row."""


def own_errors(samples: Sequence[Sample], choice: str | None = None) -> Iterator[OwnError]:
    """Yield the errors of own rows as shipped, with `choice` or all rows fitted, and left out one by one."""
    for family in dict.fromkeys(s.scenario.hardware.family for s in samples):
        of_family = [s for s in samples if s.scenario.hardware.family == family]
        name = of_family[0].scenario.hardware.name
        before, fitted = applied(family, None, name).coefficients(), fit_own(family, of_family)
        after = fitted.coefficients(before) if choice is None else applied(family, choice, name).coefficients()
        for kind in KINDS:
            counted = [s for s in of_family if s.counts(kind)]
            for sample in counted:
                yield OwnError(
                    key=sample.key,
                    kind=kind,
                    before=_error(kind, sample, before),
                    after=_error(kind, sample, after),
                    left_out=_left_out(fitted.fits.get(kind), sample, before) if len(counted) > 1 else None,
                )


def _left_out(fitted: ClusterFit | None, sample: Sample, before: Coefficients) -> float:
    """Return the error of a row predicted by the others; of one that was not used, by all."""
    if fitted is None:
        return _error("memory", sample, before)
    others = np.array([s.key != sample.key for s in fitted.state.design.samples])
    point = fitted.state.design.bounded(fitted.state.point(fitted.known_by(others)))
    return _error(fitted.kind, sample, replaced(before, fitted.kind, fitted.names, np.exp(point)))


def _error(kind: CoefficientKind, sample: Sample, coefficients: Coefficients) -> float:
    alone = replace(sample, scenario=replace(sample.scenario, coefficients=coefficients))
    return float(predict(kind, alone, coefficients, (), np.zeros((0, 1)))[0] / measured(kind, [sample])[0] - 1.0)


def unused(rows: Sequence[MeasuredRow], fits: Sequence[OwnFit]) -> Iterator[str]:
    """Yield a sentence for each row or figure that decides nothing, or is read otherwise than it states."""
    for row in rows:
        if row.outcome == "ok" and not row.model:
            yield f"{row.key}: not fitted: it names no model; give a shipped name or a spec's path in column model"
        elif row.outcome != "ok" or not row.asks:
            yield f"{row.key}: not fitted: outcome {row.outcome}, status {row.status}; only runs that ended well are"
    for fitted in fits:
        for sample in fitted.samples:
            implied, stated = figures_devices(sample.row), sample.row.devices
            if implied is not None and abs(implied / stated - 1.0) > DEVICE_TOLERANCE:
                read = f"; it is read with {sample.scenario.devices}" if sample.scenario.devices != stated else ""
                yield f"{sample.key}: its own TFLOPS and step time give {implied:.1f} devices, not {stated}{read}"
            yield from _not_fitted(fitted, sample)


def _not_fitted(fitted: OwnFit, sample: Sample) -> Iterator[str]:
    if sample.key in fitted.starved:
        why = "it needs more than the device has: it ran starved, and its figures are no sample of the layout"
        yield f"{sample.key}: not fitted: {why}"
        return
    memory = fitted.fits.get("memory")
    for kind, fit in fitted.fits.items():
        if sample.figure(kind) is None or sample.key in fit.keys:
            continue
        why = "it lies outside the scatter of the others"
        if kind == "time" and memory is not None and sample.key in memory.left_out:
            why = "its memory is not that of the layout it names"
        yield f"{sample.key}: {kind} not fitted: {why}; other figures or another layout would change that"


PLATFORMS: Final = {
    "hopper": "H-class",
    "ampere": "A100",
    "ascend-910": "Ascend",
    "blackwell": "Blackwell",
    "cdna3": "MI300",
}
"""Names of the device families in reports."""
LEFT_OUT: Final = ("priors", "fitted", "row_left_out", "source_left_out", "organisation_left_out")
"""Fits that predicted a row: none, to all rows, to all but itself, but its source, or but its organisation's."""
COLUMNS: Final = ("kind", "row", "family", "class", "measured", *LEFT_OUT, "half_width")
"""Header of `calibration/judged.csv`; errors are predicted over measured less one."""


class WithErrors(Protocol):
    """Errors of one row's predictions."""

    @property
    def source(self) -> str:
        """Table of the row."""

    @property
    def errors(self) -> Mapping[str, float]:
        """Predicted over measured less one, by a word of `LEFT_OUT`."""

    @property
    def half_width(self) -> float:
        """Half of the 90 % range with its source left out, in the logarithm."""


class JudgedRun(Record):
    """Figure of a shipped measured run with the errors of its predictions."""

    kind: CoefficientKind
    row: MeasuredRow
    family: str
    """Device family."""
    sort: str
    """`dense` or `moe`; of memory the kind of figure."""
    measured: float
    """TFLOP/s per device, or bytes."""
    errors: Mapping[str, float]
    """Predicted over measured less one, by a word of `LEFT_OUT`."""
    half_width: float
    """Half of the 90 % range with its source left out, in the logarithm."""

    @property
    def source(self) -> str:
        """Table of the row."""
        return self.row.table

    @property
    def platform(self) -> str:
        """Class of the device."""
        return PLATFORMS.get(self.family, self.family)


@lru_cache(maxsize=1)
def judged_runs() -> tuple[JudgedRun, ...]:
    """Return every figure of a shipped row that counts: speed, then memory."""
    rows = {row.key: row for path in (*shipped_tables(), *public_tables()) for row in read_rows(path)}
    return tuple(
        JudgedRun(
            kind="time" if cells["kind"] == "time" else "memory",
            row=rows[cells["row"]],
            family=cells["family"],
            sort=cells["class"],
            measured=float(cells["measured"]),
            errors={name: float(cells[name]) for name in LEFT_OUT},
            half_width=float(cells["half_width"]),
        )
        for cells in read_table(str(data_folder("calibration") / "judged.csv"), "judged")
    )


def is_inside(row: WithErrors) -> bool:
    """Tell whether the measured figure lies in the 90 % range that the row gets with its source left out."""
    return abs(math.log1p(row.errors["source_left_out"])) <= row.half_width


class Summary(Record):
    """Means over a group of judged rows; errors are mean absolute relative errors."""

    rows: int
    sources: int
    uncalibrated: float
    """Error with the priors."""
    fitted: float
    known: float
    """Error with the other rows of the source known."""
    source_out: float
    over_sources: float
    """Error with the source left out, as the mean over sources of each one's mean."""
    bias: float
    """Mean error with the source left out, predicted over measured less one."""
    organisation_out: float
    coverage: float
    """Share inside the 90 % interval with the source left out."""
    half_width: float
    """Mean half-width of that interval."""


def summary(rows: Iterable[WithErrors]) -> Summary:
    """Return the means over rows, at least one."""
    rows = list(rows)
    errors = {name: np.array([row.errors[name] for row in rows]) for name in LEFT_OUT}
    missed = {name: float(np.mean(np.abs(values))) for name, values in errors.items()}
    by_source: dict[str, list[float]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(abs(row.errors["source_left_out"]))
    return Summary(
        rows=len(rows),
        sources=len(by_source),
        uncalibrated=missed["priors"],
        fitted=missed["fitted"],
        known=missed["row_left_out"],
        source_out=missed["source_left_out"],
        over_sources=float(np.mean([np.mean(values) for values in by_source.values()])),
        bias=float(np.mean(errors["source_left_out"])),
        organisation_out=missed["organisation_left_out"],
        coverage=float(np.mean([is_inside(row) for row in rows])),
        half_width=float(np.mean([row.half_width for row in rows])),
    )
