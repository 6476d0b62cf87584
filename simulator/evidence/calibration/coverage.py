"""Coverage of a question by measured rows of its device family. Reads rows; judges no error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from simulator.question.scenario.layout import Layout
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
