"""Range of a prediction, from the coefficients' covariance and the scatter of rows, and how often ranges hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from simulator.cost.derived import Pricing, pricings_of
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.pricing.estimate import Estimate, Interval, MemoryEstimate, ThroughputEstimate
from simulator.cost.timing.step import step_seconds
from simulator.evidence.calibration.apply import Unit
from simulator.evidence.calibration.store import FittedPart
from simulator.question.arrays import Matrix, Vector
from simulator.question.coefficients.values import CoefficientKind, priors, replaced
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario

NORMAL_90 = 1.6448536269514722
"""Standard deviations on each side that hold 90 % of a normal distribution."""


def unit_of(kind: CoefficientKind, scenario: Scenario, layout: Layout, variance: float, part: FittedPart) -> Unit:
    """Return the units of a prediction's contributions; `variance` is that of `layout_variances`."""
    sort = sort_of_prediction(kind, scenario)
    inside = Distance(device=False, share_of_source=0.0, stack=False, doublings=0.0, features=())
    distance = inside if part.coverage is None else part.coverage.distance(scenario, layout)
    return Unit(sort, math.sqrt(variance), part.noise_by.get(sort, part.noise), distance)


def relative_variances(kind: CoefficientKind, pricing: Pricing, part: FittedPart) -> Vector:
    """Return the relative variance of each prediction of a block by the coefficients' covariance."""
    slopes, memory = _slopes(kind, pricing, part)
    variance = np.maximum(np.einsum("ni,ij,nj->n", slopes, part.covariance, slopes), 0.0)
    if kind == "memory" and pricing.scenario.hardware.communicator_buffer_bytes is not None:
        every = len(slopes[0]) + 1
        outside = np.max(memory.outside.total / memory.device, axis=0)[::every]  # of the fullest rank, unmoved
        variance = variance + (UNMEASURED_OUTSIDE * outside) ** 2
    return np.asarray(variance)


def time_slopes(scenario: Scenario, layouts: Sequence[Layout], part: FittedPart) -> Matrix:
    """Return the slopes of each layout's logarithmic step time by the coefficients, shape (layouts, coefficients)."""
    slopes = np.zeros((len(layouts), len(part.names)))
    for positions, pricing in pricings_of(scenario, layouts):
        slopes[positions] = _slopes("time", pricing, part)[0]
    return slopes


def _slopes(kind: CoefficientKind, pricing: Pricing, part: FittedPart) -> tuple[Matrix, MemoryByStage]:
    """Return the slopes of each logarithmic prediction by the coefficients, and the memory they were priced with.

    The block is priced once with as many copies of each layout as coefficients, each copy with one coefficient moved.
    """
    known, scenario, block = priors(kind), pricing.scenario, pricing.block
    steps = np.array([1e-3 * (known[name].high - known[name].low) for name in part.names])
    centre = part.vector[:, None]
    values = np.hstack([centre, centre + np.diag(steps)])
    copies = values.shape[1]
    moved = replace(
        scenario, coefficients=replaced(scenario.coefficients, kind, part.names, np.tile(values, len(block)))
    )
    # Every copy has its own coefficients, so none can be shared.
    each = np.repeat(np.arange(len(block), dtype=np.intp), copies)
    tiled = Pricing(moved, block.take(each))
    # Time reads only figures of memory that no time coefficient moves.
    memory = memory_by_stage(tiled) if kind == "memory" else memory_by_stage(pricing).take(each)
    figures = np.max(memory.device, axis=0) if kind == "memory" else step_seconds(tiled, memory).total
    figures = figures.reshape(len(block), copies)
    return np.log(figures[:, 1:] / figures[:, :1]) / steps, memory


UNMEASURED_OUTSIDE = 0.5
"""Relative deviation of memory outside the allocator that only documents give: no measured figure was published."""


def sort_of_prediction(kind: CoefficientKind, scenario: Scenario) -> str:
    """Return the sort of a prediction: `dense` or `moe`; of memory `device`, the figure that is estimated."""
    if kind == "memory":
        return "device"
    return "moe" if scenario.model.is_moe else "dense"


def layout_variances(
    kind: CoefficientKind, scenario: Scenario, layouts: Sequence[Layout], part: FittedPart
) -> list[float]:
    """Return `relative_variances` of any layouts, in their order."""
    variances = [0.0] * len(layouts)
    for positions, pricing in pricings_of(scenario, layouts):
        for start in range(0, len(pricing), _AT_ONCE):
            some = np.arange(start, min(start + _AT_ONCE, len(pricing)))
            members = pricing if len(some) == len(pricing) else pricing.take(some)
            for index, variance in zip(some, relative_variances(kind, members, part), strict=True):
                variances[positions[index]] = float(variance)
    return variances


_AT_ONCE = 256
"""Layouts whose copies with moved coefficients are priced together: their arrays stay within tens of megabytes."""


def memory_interval(estimate: Estimate, deviation: float) -> MemoryEstimate:
    """Return the memory estimate with its 90 % interval and the probability that the worst rank fits."""
    memory = estimate.memory
    return replace(
        memory,
        interval_bytes=_interval(memory.device_bytes, deviation),
        fit_probability=0.0
        if memory.fits_host is False  # offloaded bytes are counted, not estimated
        else normal_below(math.log(memory.capacity_bytes / memory.need_bytes) / deviation),
    )


def time_interval(estimate: Estimate, deviation: float) -> ThroughputEstimate:
    """Return the throughput estimate with the 90 % interval of the step time."""
    return replace(estimate.throughput, interval_seconds=_interval(estimate.throughput.step_seconds, deviation))


def normal_below(deviations: float) -> float:
    """Return the probability that a normal variable is below its mean plus so many standard deviations."""
    return 0.5 * math.erfc(-deviations / math.sqrt(2.0))


@lru_cache(maxsize=16)
def least_deviations(probability: float) -> float:
    """Return the fewest standard deviations for which `normal_below` is at least `probability`.

    Halved until two numbers stand side by side, so that it decides as `normal_below` does, at a probability of 1 too.
    """
    low, high = -_FAR, _FAR
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (low, middle) if normal_below(middle) >= probability else (middle, high)
    return high


_FAR = 40.0
"""Standard deviations beyond which a float tells nothing apart."""


def _interval(value: float, relative: float) -> Interval:
    """Return the 90 % interval, symmetric in the logarithm: a figure is never negative."""
    return Interval(value * math.exp(-NORMAL_90 * relative), value * math.exp(NORMAL_90 * relative))


LONG_CONTEXT_TOKENS = 8192
"""Sequence length above which a run is one of long context."""
_SIXTEEN_BITS = frozenset({"bf16", "fp16", "fp32"})


FEATURES: Final = (
    *("precision", "tensor_parallel", "pipeline_parallel", "context_parallel", "zero_stage 3", "offload"),
    *("experts", "lora", "long context"),
)
"""Names of features; a precision appears under its own name, such as `fp8`."""


def features(scenario: Scenario, layout: Layout) -> tuple[str, ...]:
    """Return the features of a run that many runs lack; formulas alone price one that no run has."""
    present = {
        scenario.precision: scenario.precision not in _SIXTEEN_BITS,
        "tensor_parallel": layout.tensor_parallel > 1,
        "pipeline_parallel": layout.pipeline_parallel > 1,
        "context_parallel": layout.context_parallel > 1,
        "zero_stage 3": layout.zero_stage == 3,
        "offload": layout.offload != "none",
        "experts": scenario.model.is_moe,
        "lora": scenario.lora_rank is not None,
        "long context": scenario.seq_length > LONG_CONTEXT_TOKENS,
        # No run of any source has it.
        "selective_scan": any(kind.mixer == "selective_scan" for kind in scenario.model.layer_kinds),
    }
    return tuple(name for name, there in present.items() if there)


class StackCoverage(NamedTuple):
    """Coverage of the rows of one framework on a device family."""

    devices: int
    """Most devices of a row."""
    tokens: int
    """Longest sequence of a row."""
    features: tuple[str, ...]
    """Features that some row has, sorted."""


class Distance(NamedTuple):
    """Distance of a question beyond the rows; all zero and empty inside."""

    device: bool
    """Whether no row is of the device family."""
    share_of_source: float
    """Inverse of the number of sources of the family; 0 without any."""
    stack: bool
    """Whether no row of the family ran the framework, or none ran its operations on the same runtime."""
    doublings: float
    """Doublings of the devices beyond the rows of the framework."""
    features: tuple[str, ...]
    """Features that no row of the framework on the family has."""


@dataclass(frozen=True, slots=True)
class RowsCoverage:
    """Coverage of the rows of one kind on a device family; of a family without any, that of all rows."""

    sources: int
    """Sources with rows of the family; 0 where it was never measured."""
    stacks: Mapping[str, StackCoverage]
    """Coverage by framework."""

    def __hash__(self) -> int:
        """Hash by the fields that differ most often."""
        return hash((self.sources, *self.stacks))

    def distance(self, scenario: Scenario, layout: Layout) -> Distance:
        """Return the distance of a question beyond the rows."""
        name = scenario.framework.name
        same = [self.stacks[name]] if name in self.stacks else list(self.stacks.values())
        seen = {feature for stack in same for feature in stack.features}
        tokens, devices = (max((getattr(stack, field) for stack in same), default=0) for field in ("tokens", "devices"))
        beyond = [feature for feature in features(scenario, layout) if feature not in seen]
        if scenario.seq_length > max(tokens, LONG_CONTEXT_TOKENS) and "long context" not in beyond:
            beyond.append("long context")
        return Distance(
            device=self.sources == 0,
            share_of_source=1.0 / self.sources if self.sources else 0.0,
            stack=name not in self.stacks or scenario.framework.unmeasured_runtime,
            doublings=max(0.0, math.log2(scenario.devices / devices)) if devices else 0.0,
            features=tuple(beyond),
        )

    def __or__(self, other: RowsCoverage) -> RowsCoverage:
        """Return the coverage of both."""
        stacks = [(name, stack) for coverage in (self, other) for name, stack in coverage.stacks.items()]
        return RowsCoverage(max(self.sources, other.sources), _stacks(stacks))

    def as_document(self) -> dict[str, Any]:
        """Return the plain values of a file."""
        stacks = {name: {**stack._asdict(), "features": list(stack.features)} for name, stack in self.stacks.items()}
        return {"sources": self.sources, "stacks": stacks}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RowsCoverage:
        """Return the coverage of a file's values. Raises KeyError, TypeError or ValueError for others."""
        stacks = {
            str(name): StackCoverage(
                int(stack["devices"]), int(stack["tokens"]), tuple(str(word) for word in stack["features"])
            )
            for name, stack in document["stacks"].items()
        }
        return cls(int(document["sources"]), stacks)


def coverage_of(runs: Iterable[tuple[Scenario, Layout]], sources: int) -> RowsCoverage:
    """Return the coverage of runs of `sources` sources of the family."""
    stacks = [
        (scenario.framework.name, StackCoverage(scenario.devices, scenario.seq_length, features(scenario, layout)))
        for scenario, layout in runs
    ]
    return RowsCoverage(sources, _stacks(stacks))


def _stacks(stacks: Iterable[tuple[str, StackCoverage]]) -> dict[str, StackCoverage]:
    """Return the union by framework."""
    result: dict[str, StackCoverage] = {}
    for name, stack in sorted(stacks):
        known = result.get(name, StackCoverage(0, 0, ()))
        result[name] = StackCoverage(
            devices=max(known.devices, stack.devices),
            tokens=max(known.tokens, stack.tokens),
            features=tuple(sorted({*known.features, *stack.features})),
        )
    return result
