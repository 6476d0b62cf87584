"""What a calibration has seen: inside it predictions interpolate, outside they rest on the formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from simulator.cost.operations.sums import total_parameters
from simulator.cost.pricing.estimate import PredictionStatus
from simulator.question.frameworks.profile import FrameworkProfile, switches
from simulator.question.frameworks.profiles import PROFILES
from simulator.question.scenario.layout import Layout, sizes_text
from simulator.question.scenario.scenario import Scenario

_SIZES = (
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
    *("virtual_stages", "micro_batch_size"),
)
"""Sizes of a layout that a calibration has a range of; others follow from them and from the devices."""


def numbers(scenario: Scenario, layout: Layout) -> dict[str, float]:
    """Features with a size, by name."""
    return {
        "parameters": float(total_parameters(scenario.model)),
        "seq_length": float(scenario.seq_length),
        "devices": float(scenario.devices),
        **{name: float(getattr(layout, name)) for name in _SIZES},
    }


def words(scenario: Scenario, layout: Layout) -> dict[str, str]:
    """Features that are one of a few words, by name."""
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
    """Every switch that may do something in the layout."""
    every = dict(_switches(profile))
    if layout.tensor_parallel == 1:
        every.pop(f"{_SWITCH}tp_comm_overlap", None)
    return every


_SWITCH = "option "
"""In front of a switch's name, as a feature."""


@lru_cache(maxsize=64)
def _switches(profile: FrameworkProfile) -> Mapping[str, str]:
    return {f"{_SWITCH}{f.name}": str(getattr(profile, f.name)) for f in switches()}


@lru_cache(maxsize=256)
def usual_words(feature: str) -> tuple[str, ...]:
    """Of a switch, what the frameworks' defaults are, sorted: rows that have nothing else are not listed."""
    name = feature.removeprefix(_SWITCH)
    return () if name == feature else tuple(sorted({str(getattr(one, name)) for one in PROFILES.values()}))


def signature(scenario: Scenario, layout: Layout) -> str:
    """One line that two identical runs share."""
    sizes = f"{sizes_text(layout, 'tp', 'pp', 'cp', 'vpp', 'micro_batch_size')} gbs{scenario.global_batch_size}"
    usual = _switched(PROFILES[scenario.framework.name], layout)
    told = ((name, word) for name, word in words(scenario, layout).items() if usual.get(name) != word)
    described = {name: word if name not in usual else f"{name.removeprefix(_SWITCH)}={word}" for name, word in told}
    parts = (scenario.model.name, scenario.model.num_hidden_layers, scenario.devices, scenario.seq_length)
    return " ".join([*map(str, parts), sizes, *described.values()]).strip()


class CalibratedRange(NamedTuple):
    """Sizes and words of the rows a calibration used."""

    sizes: Mapping[str, tuple[float, float]]
    """Smallest and largest value by feature."""
    seen: Mapping[str, tuple[str, ...]]
    """Words seen by feature."""
    runs: tuple[str, ...]
    """Signatures of the rows used."""

    def outside(self, scenario: Scenario, layout: Layout) -> Iterator[str]:
        """Why a layout is not inside the range, one phrase a feature."""
        for name, value in numbers(scenario, layout).items():
            low, high = self.sizes.get(name, (0.0, 0.0))
            if not low <= value <= high:
                yield f"{name} {value:g} (calibrated {low:g} to {high:g})"
        for name, word in words(scenario, layout).items():
            seen = self.seen.get(name, usual_words(name))
            if word not in seen:
                yield f"{name} '{word}' (calibrated: {', '.join(w or 'none' for w in seen)})"

    def as_document(self) -> dict[str, Any]:
        """As written to a file."""
        return {
            "sizes": {name: [low, high] for name, (low, high) in self.sizes.items()},
            "seen": {name: list(found) for name, found in self.seen.items()},
            "runs": list(self.runs),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CalibratedRange:
        """Back from a file; raises KeyError, TypeError or ValueError for what is not one."""
        return cls(
            sizes={str(k): (_bound(v[0]), _bound(v[1])) for k, v in document["sizes"].items()},
            seen={str(k): tuple(str(x) for x in v) for k, v in document["seen"].items()},
            runs=tuple(str(x) for x in document["runs"]),
        )


def range_of(runs: Iterable[tuple[Scenario, Layout]]) -> CalibratedRange:
    """The range that some runs cover."""
    sizes: dict[str, tuple[float, float]] = {}
    seen: dict[str, set[str]] = {}
    signatures: set[str] = set()
    for scenario, layout in runs:
        signatures.add(signature(scenario, layout))
        for name, value in numbers(scenario, layout).items():
            low, high = sizes.get(name, (value, value))
            sizes[name] = (min(low, value), max(high, value))
        for name, word in words(scenario, layout).items():
            seen.setdefault(name, set()).add(word)
    return CalibratedRange(
        sizes=sizes,
        seen={name: tuple(sorted(found)) for name, found in seen.items() if not found <= set(usual_words(name))},
        runs=tuple(sorted(signatures)),
    )


def _bound(value: object) -> float:
    """A finite number of a file, not text that reads as one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is no finite number")
    return float(value)


def status_of(calibrated: CalibratedRange, family: str, scenario: Scenario, layout: Layout) -> PredictionStatus:
    """How well a layout is covered."""
    if any(hardware.family != family for hardware in scenario.kinds_of_device):
        return "assumed"
    if signature(scenario, layout) in calibrated.runs:
        return "measured"
    return "analytic" if any(calibrated.outside(scenario, layout)) else "interpolated"
