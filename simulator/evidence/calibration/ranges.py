"""Explanation of a range: its contributions, and the measurement that would narrow it most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from simulator.cost.operations.sums import total_parameters
from simulator.cost.pricing.estimate import Contribution, Coverage, NextMeasurement
from simulator.evidence.calibration.apply import Unit
from simulator.evidence.calibration.uncertainty import NORMAL_90, RowsCoverage
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.frameworks.profile import FrameworkProfile, switches
from simulator.question.frameworks.stacks import PROFILES
from simulator.question.scenario.layout import Layout, sizes_text
from simulator.question.scenario.scenario import Scenario

_NEARLY: Final = 1.1
"""Ratio to the narrowest range up to which a smaller run is preferred."""
_SHOWN: Final = 0.0005
"""Half-width below which a contribution is not listed."""


def contributed(
    kind: CoefficientKind, unit: Unit, sizes: Mapping[str, float], scenario: Scenario
) -> list[Contribution]:
    """Return the contributions to a range, the largest first."""
    because = _because(unit, scenario)
    contributions = [
        Contribution(kind, name, NORMAL_90 * deviation, because[name])
        for name, deviation in unit.deviations(sizes).items()
        if NORMAL_90 * deviation >= _SHOWN
    ]
    return sorted(contributions, key=lambda contribution: -contribution.half_width)


def _because(unit: Unit, scenario: Scenario) -> dict[str, str]:
    """Return what is unknown behind each contribution."""
    family, framework, distance = scenario.hardware.family, scenario.framework.name, unit.distance
    sources = round(1.0 / distance.share_of_source) if distance.share_of_source else 0
    return {
        "coefficients": "rates and overheads that the measured runs leave open",
        "scatter": "how runs of one source scatter around it",
        "sources": f"runs of family {family} are from {sources} source{'' if sources == 1 else 's'}",
        "device": f"no run of family {family} was measured",
        "stack": f"no run of {framework} with these switches on family {family} was measured",
        "nodes": f"{scenario.devices} devices are {distance.doublings:.1f} doublings beyond the runs of {framework}",
        "layout": f"no run of {framework} on family {family} has {', '.join(distance.features)}",
    }


def next_measurement(unit: Unit, sizes: Mapping[str, float], scenario: Scenario) -> NextMeasurement:
    """Return the single measurement that narrows a range most, or a smaller run that narrows it nearly as much."""
    parts = unit.deviations(sizes)
    every = list(_measurements(unit, parts, scenario))
    return next(measurement for measurement in every if measurement.half_width <= _NEARLY * every[-1].half_width)


def _measurements(unit: Unit, parts: Mapping[str, float], scenario: Scenario) -> Iterator[NextMeasurement]:
    """Yield runs with the range that each leaves, the smallest run first and the layout itself last."""
    framework, hardware, beyond = scenario.framework.name, scenario.hardware.name, unit.distance.features
    cluster = ("sources", "device", "stack")
    # One run leaves as much uncertainty of the coefficients as its own scatter hides.
    learned = parts["coefficients"] * parts["scatter"] / max(math.hypot(parts["coefficients"], parts["scatter"]), 1e-12)
    one_node = f"with {framework} on one node of {hardware}"
    yield _after(parts, f"any layout {one_node}", cluster, learned)
    if beyond:
        yield _after(parts, f"a layout that has {', '.join(beyond)}, {one_node}", (*cluster, "layout"), learned)
    yield _after(parts, f"this layout on {scenario.devices} x {hardware}", (*cluster, "nodes", "layout"), learned)


def _after(parts: Mapping[str, float], run: str, without: tuple[str, ...], learned: float) -> NextMeasurement:
    """Return a run with the range that is left without some contributions."""
    remaining = {**parts, **dict.fromkeys(without, 0.0), "coefficients": learned}
    return NextMeasurement(run, NORMAL_90 * math.hypot(*remaining.values()))


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
