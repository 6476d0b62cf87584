"""Which calibration serves which hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.cost.pricing.estimate import Estimate, PredictionStatus
from simulator.cost.pricing.price import Sized
from simulator.cost.stages import usable_bytes
from simulator.evidence.calibration.ranges import status_of
from simulator.evidence.calibration.store import (
    KINDS,
    OTHER_FAMILY,
    Calibration,
    FittedPart,
    read_calibration,
    shipped_calibration,
)
from simulator.evidence.calibration.uncertainty import (
    layout_variances,
    memory_interval,
    normal_below,
    relative_variances,
    time_interval,
    with_noise,
)
from simulator.question.arrays import Index
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, replaced
from simulator.question.scenario.block import Mask
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import StackName

PRIMARY_FAMILY = "hopper"
"""The family of the main table, whose targets are held."""

_WORST: tuple[PredictionStatus, ...] = ("measured", "interpolated", "analytic", "assumed")
_COVERED: tuple[PredictionStatus, ...] = ("measured", "interpolated")


class Applied(NamedTuple):
    """The calibrations behind the two kinds of figures; None leaves the priors."""

    memory: Calibration | None
    time: Calibration | None

    def part(self, kind: CoefficientKind) -> FittedPart | None:
        """The coefficients of one kind."""
        calibration = self.memory if kind == "memory" else self.time
        return None if calibration is None else calibration.part(kind)

    def coefficients(self) -> Coefficients:
        """The set that the formulas take."""
        result = Coefficients()
        for kind in KINDS:
            if (part := self.part(kind)) is not None:
                result = replaced(result, kind, part.names, part.vector)
        return replace(result, name=self.name)

    @property
    def name(self) -> str:
        """Shown in provenance."""
        if self.memory is None and self.time is None:
            return "priors"
        if self.memory is self.time and self.time is not None:
            return self.time.name
        memory, time = (c.name if c else "priors" for c in (self.memory, self.time))
        return f"memory: {memory}; time: {time}"

    @property
    def stack(self) -> StackName | None:
        """The named stack that the rows ran, where the calibration names one."""
        return next((one.stack for one in (self.time, self.memory) if one is not None and one.stack), None)

    def judged(self, scenario: Scenario, estimates: Sequence[Estimate]) -> list[Estimate]:
        """Estimates with intervals, the probability that they fit, and where their numbers come from."""
        layouts = [estimate.layout for estimate in estimates]
        memory, time = (
            layout_variances(kind, scenario, layouts, part) if (part := self.part(kind)) else [0.0] * len(layouts)
            for kind in KINDS
        )
        return [
            with_calibration(scenario, estimate, self, {"memory": of_memory, "time": of_time})
            for estimate, of_memory, of_time in zip(estimates, memory, time, strict=True)
        ]

    def likely_to_fit(self, scenario: Scenario, priced: Sized, index: Index, least: float) -> Mask:
        """Which layouts of a priced block fit with a probability of at least `least`, as estimates state it.

        Without a calibration of memory nothing tells, and all pass.
        """
        if self.memory is None or self.memory.memory is None:
            return np.ones(len(index), dtype=np.bool_)
        block, part = priced.block.take(index), self.memory.memory
        capacity = usable_bytes(scenario, priced.memory.contents)[priced.binding_stage[index], 0]
        margins = np.log(capacity / priced.need_bytes[index])
        variances = relative_variances("memory", scenario, block, part)

        def likely(known: FittedPart) -> Mask:
            spread = with_noise("memory", scenario, variances, known)
            return np.array([normal_below(float(margin)) >= least for margin in margins / spread], dtype=np.bool_)

        outside, inside = likely(_own(self.memory, part, "memory", "analytic")), likely(part)
        for i in np.flatnonzero(outside != inside):  # only there it matters which of them a layout is
            covered = _status("memory", self.memory, scenario, block.layout(int(i))) in _COVERED
            outside[i] = inside[i] if covered else outside[i]
        return outside


def applied(family: str, choice: str | None = None, cluster: str | None = None) -> Applied:
    """The calibrations for a hardware family, and for the `cluster` where its spec has one of its own.

    `choice` is None for the shipped ones, `none` for the priors, or the path of a calibration file. A kind that a file
    has no coefficients of comes from what ships for the cluster, the family, and else from what all families say.
    """
    if choice == "none":
        return Applied(None, None)
    # Another network between the same devices leaves what was fitted to them.
    names = [name for name in ((cluster or "").partition("@")[0], family, OTHER_FAMILY) if name]
    own = [read_calibration(Path(choice))] if choice else []

    def nearest(kind: CoefficientKind) -> Calibration | None:
        # A file behind the one that has the kind is not read.
        return next((one for one in chain(own, map(shipped_calibration, names)) if one and one.part(kind)), None)

    return Applied(nearest("memory"), nearest("time"))


def with_calibration(
    scenario: Scenario, estimate: Estimate, used: Applied, variances: Mapping[CoefficientKind, float]
) -> Estimate:
    """`Applied.judged` of one estimate; `variances` are those of `layout_variances`."""
    result, notes = estimate, list(estimate.provenance.notes)
    statuses: list[PredictionStatus] = []
    for kind, calibration in (("memory", used.memory), ("speed", used.time)):
        if calibration is None:
            statuses.append("analytic")
            continue
        status = _status(kind, calibration, scenario, estimate.layout)
        if kind == "memory" and calibration.memory is not None and calibration.memory.known:
            # Nothing was fitted, so there is no range to be outside of: the status is that of the speed.
            notes.append(f"memory: {calibration.memory.known}")
            result = replace(result, memory=memory_interval(scenario, result, calibration.memory, variances["memory"]))
            continue
        statuses.append(status)
        notes += _notes(kind, scenario, estimate, calibration, status)
        if kind == "memory" and calibration.memory is not None:
            own = _own(calibration, calibration.memory, "memory", status)
            result = replace(result, memory=memory_interval(scenario, result, own, variances["memory"]))
        elif calibration.time is not None:
            own = _own(calibration, calibration.time, "time", status)
            result = replace(result, throughput=time_interval(scenario, result, own, variances["time"]))
    worst = max(statuses, key=_WORST.index)
    rests_on = replace(result.provenance, calibration=used.name, status=worst, notes=tuple(dict.fromkeys(notes)))
    return replace(result, provenance=rests_on)


def _own(calibration: Calibration, part: FittedPart, kind: CoefficientKind, status: PredictionStatus) -> FittedPart:
    """A part as it serves a layout: outside the range of own rows, these scatter as the family's sources do."""
    family = shipped_calibration(calibration.family) or shipped_calibration(OTHER_FAMILY)
    others = None if family is None else family.part(kind)
    if others is None or part.noise_by or status in _COVERED:
        return part
    return replace(part, noise=max(part.noise, others.noise), noise_by=dict(others.noise_by))


def _status(kind: str, calibration: Calibration, scenario: Scenario, layout: Layout) -> PredictionStatus:
    """How well a layout is covered; memory of which nothing was fitted has no range to be outside of."""
    if kind == "memory" and calibration.memory is not None and calibration.memory.known:
        return "measured"
    return status_of(calibration.range, calibration.family, scenario, layout)


def _notes(
    kind: str, scenario: Scenario, estimate: Estimate, calibration: Calibration, status: PredictionStatus
) -> list[str]:
    """What a reader must know of the status, in one sentence."""
    if status == "assumed":
        family = scenario.hardware.family
        where = f"{kind}: no measured run of family {family}; coefficients as shares of this device's peaks"
        return [f"{where} from the families that have some, and the interval as wide as families differ"]
    if status == "analytic":
        reasons = "; ".join(calibration.range.outside(scenario, estimate.layout))
        return [f"outside the calibrated range: {reasons}"]
    return []
