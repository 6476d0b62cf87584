"""Choice of the launches that tell most about the coefficients: a greedy D-optimal design. Launches nothing.

A launch measures `ln(step time)`, whose slopes by the logarithms of the coefficients follow from pricing it under
coefficient sets a little apart, as the fit does. The coefficients' priors are the information there is before the first
launch. Every next launch is the one that adds most information, `ln(1 + s' C s / noise²)`, for each second that it
takes; on devices that keep bytes beside the tensors, the memory coefficients' information counts too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.memory.peak import memory_by_stage
from simulator.cost.pricing.price import FITS, verdicts
from simulator.cost.stages import usable_bytes
from simulator.cost.timing.step import step_seconds
from simulator.evidence.calibration.linear import names_of
from simulator.lab.probe.pool import Candidate
from simulator.question.arrays import Matrix, Vector
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, priors, replaced
from simulator.question.scenario.block import block_of

NOISE: dict[CoefficientKind, float] = {"time": 0.04, "memory": 0.01}
"""Expected relative scatter of a short launch."""
KINDS: tuple[CoefficientKind, ...] = ("time", "memory")
STEP = 0.02
"""Relative step of the finite differences."""
PINNED = 0.8
"""Largest share of its standard deviation that a launch leaves of a coefficient which it pins down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits of a plan: launches and their time."""

    launches: int = 20
    start_seconds: float = 8.0
    """Time to start the ranks and to end them."""
    steps: int = 8
    """Steps of a launch, warm-up included."""
    longest_seconds: float = 30.0
    """Longest launch."""
    shortest_step_seconds: float = 0.08
    """Shortest step: shorter ones are mostly noise."""
    spread: float = 1.0
    """Factor on the priors' spreads in the fit that the launches are for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Launch of a plan."""

    candidate: Candidate
    step_seconds: float
    """Step time predicted before any launch."""
    launch_seconds: float
    """Expected time of the launch."""
    pins: tuple[str, ...]
    """Coefficients whose uncertainty it reduces markedly, most first, after the launches before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDesign:
    """Launches in order, and the uncertainty that they leave."""

    launches: tuple[Planned, ...]
    """Launches in order."""
    left: dict[str, float]
    """Share of its prior's standard deviation that is left of every fitted coefficient."""

    @property
    def seconds(self) -> float:
        """Expected seconds of all launches."""
        return sum(planned.launch_seconds for planned in self.launches)


@dataclass(frozen=True, slots=True)
class _Priced:
    candidate: Candidate
    seconds: float
    slopes: dict[CoefficientKind, Vector]
    """Slopes of the logarithm of the kind's figure by those of the coefficients."""


def plan(candidates: Sequence[Candidate], base: Coefficients, effort: Effort) -> ProbeDesign:
    """Return the chosen launches; candidates that do not fit, or last too long or too short, are passed over."""
    moved = {kind: names_of(kind, base, every=True) for kind in KINDS}
    names = {kind: listed for kind, listed in moved.items() if listed}
    kinds = tuple(names)
    priced = [launch for candidate in candidates if (launch := _priced(candidate, base, names, effort)) is not None]
    known = {kind: effort.spread**2 * _prior_covariance(kind, names[kind]) for kind in kinds}
    before = {kind: np.sqrt(np.diag(known[kind])) for kind in kinds}
    chosen: list[Planned] = []
    while priced and len(chosen) < effort.launches:
        gains = [_gain(launch, known) / _launch_seconds(launch.seconds, effort) for launch in priced]
        best = priced.pop(int(np.argmax(gains)))
        after = {kind: _updated(known[kind], best.slopes[kind], NOISE[kind]) for kind in kinds}
        chosen.append(
            Planned(
                candidate=best.candidate,
                step_seconds=best.seconds,
                launch_seconds=_launch_seconds(best.seconds, effort),
                pins=tuple(_pinned(names, known, after)),
            )
        )
        known = after
    left = {
        name: float(share)
        for kind in kinds
        for name, share in zip(names[kind], np.sqrt(np.diag(known[kind])) / before[kind], strict=True)
    }
    return ProbeDesign(launches=tuple(chosen), left=left)


def _launch_seconds(step: float, effort: Effort) -> float:
    return effort.start_seconds + effort.steps * step


def _priced(
    candidate: Candidate, base: Coefficients, moved: dict[CoefficientKind, tuple[str, ...]], effort: Effort
) -> _Priced | None:
    """Return step time and slopes of a candidate; None where it does not fit or lasts too long or too short."""
    scenario, block = candidate.scenario, block_of([candidate.layout])
    figures: dict[CoefficientKind, Vector] = {}
    for kind, names in moved.items():
        values = np.array([float(getattr(getattr(base, kind), name)) for name in names])
        # One column for `base`, and two for each coefficient, a step to either side.
        sides = np.exp(STEP * np.hstack([np.zeros((len(names), 1)), np.eye(len(names)), -np.eye(len(names))]))
        sets = replace(scenario, coefficients=replaced(base, kind, names, values[:, None] * sides))
        several = Pricing(sets, block.take(np.zeros(sides.shape[1], dtype=np.intp)))
        memory = memory_by_stage(several)
        if kind == "memory":
            figures[kind] = np.asarray(np.max(memory.device, axis=0))
            continue
        figures[kind] = step_seconds(several, memory).total
        share = np.max(memory.need[:, :1] / usable_bytes(scenario, memory.contents), axis=0)
        if verdicts(scenario, share)[0] != FITS:
            return None
    seconds = float(figures["time"][0])
    if seconds < effort.shortest_step_seconds or _launch_seconds(seconds, effort) > effort.longest_seconds:
        return None
    return _Priced(candidate, seconds, {kind: _slopes(figure) for kind, figure in figures.items()})


def _slopes(figures: Vector) -> Vector:
    count = (len(figures) - 1) // 2
    return np.asarray(np.log(figures[1 : count + 1] / figures[count + 1 :]) / (2.0 * STEP))


def _prior_covariance(kind: CoefficientKind, names: Sequence[str]) -> Matrix:
    known = priors(kind)
    return np.diag([known[name].spread ** 2 for name in names])


def _gain(launch: _Priced, known: dict[CoefficientKind, Matrix]) -> float:
    return sum(
        float(np.log1p(slopes @ known[kind] @ slopes / NOISE[kind] ** 2)) for kind, slopes in launch.slopes.items()
    )


def _updated(covariance: Matrix, slopes: Vector, noise: float) -> Matrix:
    """Return the covariance after one more launch (Sherman and Morrison)."""
    reach = covariance @ slopes
    return np.asarray(covariance - np.outer(reach, reach) / (noise**2 + slopes @ reach))


def _pinned(
    names: dict[CoefficientKind, tuple[str, ...]],
    before: dict[CoefficientKind, Matrix],
    after: dict[CoefficientKind, Matrix],
) -> list[str]:
    shares = [
        (float(np.sqrt(after[kind][i, i] / before[kind][i, i])), name)
        for kind, listed in names.items()
        for i, name in enumerate(listed)
    ]
    return [name for share, name in sorted(shares) if share <= PINNED]
