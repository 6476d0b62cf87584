"""Ranges: how far off a figure may be, by contributions, and how often ranges hold rows that were left out.

The error of a prediction has a standard deviation, in the logarithm, whose square is the sum of those of its
contributions. Each is a size times a unit: of `coefficients` the deviation that their covariance gives the figure, of
`scatter` that of rows around their own source, of `sources` one over the root of the sources of the device family, of
`device` and `stack` one where no row is of the family or of the framework on it, of `nodes` the root of the doublings
of devices beyond the rows, of `layout` the root of the number of features beyond them. Of memory, these five count for
the part that is not parameters, gradients or optimizer state (`memory_spread`). The sizes are those by which ranges
hold 90 % of the rows when each of these is left out in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from simulator.cost.operations.sums import total_parameters
from simulator.cost.pricing.estimate import Coverage
from simulator.question.arrays import Vector
from simulator.question.frameworks.profile import FrameworkProfile, switches
from simulator.question.frameworks.stacks import PROFILES
from simulator.question.scenario.layout import Layout, sizes_text
from simulator.question.scenario.scenario import Scenario

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


CONTRIBUTIONS: Final = ("coefficients", "scatter", "sources", "device", "stack", "nodes", "layout")
"""Names of the contributions, in the order of a report."""
BEYOND: Final = ("stack", "nodes", "layout")
"""Contributions that also widen the ranges of a cluster with runs of its own."""


DIFFERENCE: Final = "difference"
"""Sort of the difference of two layouts' predictions."""


STATE_SPREAD: Final = 0.2
"""Relative error of parameters, gradients and optimizer state over that of the rest of the memory, far from measured
runs: of the values tried, one at which ranges hold rows left out with the narrowest mean (0.133 of 0.141 without)."""
_OF_ROWS: Final = ("coefficients", "scatter")
"""Contributions that the rows give for the whole figure."""


def memory_spread(state_share: float | Vector) -> Vector:
    """Return how much of the memory is uncertain far from measured runs; `state_share` is the state's part of it.

    State is arithmetic over a model's sizes; activations and what lies outside the tensors depend on software.
    """
    return np.asarray(np.hypot(1.0 - state_share, STATE_SPREAD * state_share))


class Unit(NamedTuple):
    """Units of one prediction's contributions."""

    sort: str
    """Sort of the prediction, a word of `SORTS` or `DIFFERENCE`."""
    coefficients: float
    """Relative deviation by the covariance of the coefficients."""
    scatter: float
    """Relative scatter of rows around their own source."""
    distance: Distance
    """Distance of the question beyond the rows."""
    features: int | None = None
    """Number of features beyond the rows; None for those of `distance`."""
    spread: float = 1.0
    """Part of the figure that contributions beyond the rows move: 1 for speed, `memory_spread` for memory."""

    def of(self, name: str) -> float:
        """Return the unit of a contribution, as a relative deviation."""
        distance = self.distance
        units: Mapping[str, float] = {
            "coefficients": self.coefficients,
            "scatter": self.scatter,
            "sources": math.sqrt(distance.share_of_source),
            "device": float(distance.device),
            "stack": float(distance.stack),
            "nodes": math.sqrt(distance.doublings),
            "layout": math.sqrt(len(distance.features) if self.features is None else self.features),
        }
        return units[name] * (1.0 if name in _OF_ROWS else self.spread)

    def key(self, name: str) -> str:
        """Return the name of a contribution's size; coefficients and scatter have one per sort."""
        return f"{name} {self.sort}" if name in ("coefficients", "scatter") else name

    def deviations(self, sizes: Mapping[str, float]) -> dict[str, float]:
        """Return the relative deviation of each contribution; a missing size is 0, of coefficients and scatter 1."""
        without = {"coefficients": 1.0, "scatter": 1.0}
        return {name: sizes.get(self.key(name), without.get(name, 0.0)) * self.of(name) for name in CONTRIBUTIONS}

    def deviation(self, sizes: Mapping[str, float]) -> float:
        """Return the relative deviation of the prediction."""
        return math.hypot(*self.deviations(sizes).values())


def difference_unit(variance: float, *scatter: float) -> Unit:
    """Return the units of the difference of two predictions of one cluster, in which shared errors cancel.

    `variance` is that of the difference by the coefficients, from draws that both predictions share.
    """
    inside = Distance(device=False, share_of_source=0.0, stack=False, doublings=0.0, features=())
    return Unit(DIFFERENCE, math.sqrt(max(variance, 0.0)), math.hypot(*scatter), inside)


_SIZES = (
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
    *("virtual_stages", "micro_batch_size"),
)
"""Sizes of a layout that a calibration has a range of; others follow from them and from the devices."""
PLACE = (*_SIZES, "recompute", "recompute_method", "offload", "zero_stage", "sequence_parallel")
"""Fields of a layout that decide its place beside measured runs: layouts with equal ones share a place."""


def numbers(scenario: Scenario, layout: Layout) -> dict[str, float]:
    """Return the numeric features of a run, by name."""
    return {
        "parameters": float(total_parameters(scenario.model)),
        "seq_length": float(scenario.seq_length),
        "devices": float(scenario.devices),
        **{name: float(getattr(layout, name)) for name in _SIZES},
    }


@lru_cache(maxsize=16)
def words(scenario: Scenario, layout: Layout) -> Mapping[str, str]:
    """Return the features of a run that are words, by name."""
    profile = scenario.framework
    return {
        "hardware": scenario.hardware_name,
        "framework": profile.name,
        "precision": scenario.precision,
        "attention": scenario.model.attention,
        "experts": "yes" if scenario.model.is_moe else "no",
        "training": "full" if scenario.lora_rank is None else "lora",
        "recompute": layout.recompute if layout.recompute != "full" else f"full {layout.recompute_method}",
        "offload": layout.offload,
        "zero_stage": str(layout.zero_stage),
        "sequence_parallel": str(layout.sequence_parallel == (layout.tensor_parallel > 1)),
        **_switched(profile, layout),
    }


def _switched(profile: FrameworkProfile, layout: Layout) -> dict[str, str]:
    """Return every switch that may have an effect in the layout."""
    every = dict(_switches(profile))
    if layout.tensor_parallel == 1:
        every.pop(f"{_SWITCH}tp_comm_overlap", None)
    return every


_SWITCH = "option "
"""Prefix of a switch's name as a feature."""


@lru_cache(maxsize=64)
def _switches(profile: FrameworkProfile) -> Mapping[str, str]:
    measured = (f.name for f in switches() if f.metadata["moves"] != ("host",))  # no row measures a host
    return {f"{_SWITCH}{name}": str(getattr(profile, name)) for name in measured}


@lru_cache(maxsize=256)
def usual_words(feature: str) -> tuple[str, ...]:
    """Return the frameworks' defaults of a switch, sorted, which ranges do not list; () for other features."""
    name = feature.removeprefix(_SWITCH)
    return () if name == feature else tuple(sorted({str(getattr(profile, name)) for profile in PROFILES.values()}))


@lru_cache(maxsize=16)
def signature(scenario: Scenario, layout: Layout) -> str:
    """Return one line that two identical runs share."""
    sizes = f"{sizes_text(layout, 'tp', 'pp', 'cp', 'vpp', 'micro_batch_size')} gbs{scenario.global_batch_size}"
    usual = _switched(PROFILES[scenario.framework.name], layout)
    unusual = ((name, word) for name, word in words(scenario, layout).items() if usual.get(name) != word)
    described = {name: word if name not in usual else f"{name.removeprefix(_SWITCH)}={word}" for name, word in unusual}
    parts = (scenario.model.name, scenario.model.num_hidden_layers, scenario.devices, scenario.seq_length)
    return " ".join([*map(str, parts), sizes, *described.values()]).strip()


def stack_text(scenario: Scenario, layout: Layout) -> str:
    """Return the framework with the switches that differ from its defaults."""
    usual, own = (_switched(profile, layout) for profile in (PROFILES[scenario.framework.name], scenario.framework))
    switched = (f"{name.removeprefix(_SWITCH)}={word}" for name, word in own.items() if usual.get(name) != word)
    return " ".join((scenario.framework.name, *switched))


class CalibratedRange(NamedTuple):
    """Features of the rows that a calibration used."""

    sizes: Mapping[str, tuple[float, float]]
    """Smallest and largest value by feature."""
    seen: Mapping[str, tuple[str, ...]]
    """Words seen by feature."""
    runs: tuple[str, ...]
    """Signatures of the rows used."""
    stacks: tuple[str, ...] = ()
    """Stacks of the rows used, see `stack_text`."""

    def __hash__(self) -> int:
        """Hash by the fields that differ most often."""
        return hash((len(self.runs), self.stacks))

    def outside(self, scenario: Scenario, layout: Layout) -> Iterator[str]:
        """Return why a layout is outside the range, one phrase per feature."""
        return (phrase for _, phrase in self.outside_by_feature(scenario, layout))

    def outside_by_feature(self, scenario: Scenario, layout: Layout) -> Iterator[tuple[str, str]]:
        """Yield the features in which a layout is outside the range, with a phrase each."""
        for name, value in numbers(scenario, layout).items():
            low, high = self.sizes.get(name, (0.0, 0.0))
            if not low <= value <= high:
                yield name, f"{name} {value:g} (calibrated {low:g} to {high:g})"
        for name, word in words(scenario, layout).items():
            seen = self.seen.get(name, usual_words(name))
            if word not in seen:
                yield name, f"{name} '{word}' (calibrated: {', '.join(w or 'none' for w in seen)})"

    def as_document(self) -> dict[str, Any]:
        """Return the plain values of a file."""
        return {
            "sizes": {name: [low, high] for name, (low, high) in self.sizes.items()},
            "seen": {name: list(seen_words) for name, seen_words in self.seen.items()},
            "runs": list(self.runs),
            "stacks": list(self.stacks),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CalibratedRange:
        """Return the range of a file's values. Raises KeyError, TypeError or ValueError for others."""
        return cls(
            sizes={str(k): (_bound(v[0]), _bound(v[1])) for k, v in document["sizes"].items()},
            seen={str(k): tuple(str(x) for x in v) for k, v in document["seen"].items()},
            runs=tuple(str(x) for x in document["runs"]),
            stacks=tuple(str(x) for x in document.get("stacks", ())),
        )


def range_of(runs: Iterable[tuple[Scenario, Layout]]) -> CalibratedRange:
    """Return the range that runs cover."""
    sizes: dict[str, tuple[float, float]] = {}
    seen: dict[str, set[str]] = {}
    signatures, stacks = set[str](), set[str]()
    for scenario, layout in runs:
        signatures.add(signature(scenario, layout))
        stacks.add(stack_text(scenario, layout))
        for name, value in numbers(scenario, layout).items():
            low, high = sizes.get(name, (value, value))
            sizes[name] = (min(low, value), max(high, value))
        for name, word in words(scenario, layout).items():
            seen.setdefault(name, set()).add(word)
    return CalibratedRange(
        sizes=sizes,
        seen={
            name: tuple(sorted(seen_words))
            for name, seen_words in seen.items()
            if not seen_words <= set(usual_words(name))
        },
        runs=tuple(sorted(signatures)),
        stacks=tuple(sorted(stacks)),
    )


def _bound(value: object) -> float:
    """Return a finite number of a file. Raises ValueError for anything else, text of a number included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is no finite number")
    return float(value)


WORST: tuple[Coverage, ...] = ("measured", "between", "beyond", "never")
"""Words of coverage, from the best known to the least."""


class RangeWords(NamedTuple):
    """Coverage of a question by the measured runs, for device, stack and layout."""

    device: Coverage
    stack: Coverage
    layout: Coverage

    @property
    def worst(self) -> Coverage:
        """Worst of the three words."""
        return max(self, key=WORST.index)


@lru_cache(maxsize=16)
def places_beside(
    calibrated: CalibratedRange, covered: RowsCoverage | None, family: str, scenario: Scenario
) -> Callable[[Layout], RangeWords]:
    """Return a function from a question's layouts to their coverage by a calibration of `family`, cached by place."""
    known: dict[tuple[object, ...], RangeWords] = {}

    def words_of(layout: Layout) -> RangeWords:
        place = _place(layout)
        if place not in known:
            known[place] = _words_of(calibrated, covered, family, scenario, layout)
        return known[place]

    return words_of


_place = attrgetter(*PLACE)


def _words_of(
    calibrated: CalibratedRange, covered: RowsCoverage | None, family: str, scenario: Scenario, layout: Layout
) -> RangeWords:
    if signature(scenario, layout) in calibrated.runs:
        return RangeWords("measured", "measured", "measured")
    outside = {feature for feature, _ in calibrated.outside_by_feature(scenario, layout)}
    distance = None if covered is None else covered.distance(scenario, layout)
    if any(hardware.family != family for hardware in scenario.kinds_of_device):
        device: Coverage = "never"
    else:
        device = "beyond" if "hardware" in outside else "measured"
    if (distance.stack if distance else "framework" in outside) or device == "never":
        stack: Coverage = "never"
    elif any(feature.startswith(_SWITCH) for feature in outside):
        stack = "beyond"
    else:
        stack = "measured" if stack_text(scenario, layout) in calibrated.stacks else "between"
    if distance is not None and distance.features:
        return RangeWords(device, stack, "never")
    of_layout = {f for f in outside if f not in ("hardware", "framework") and not f.startswith(_SWITCH)}
    return RangeWords(device, stack, "beyond" if of_layout else "between")
