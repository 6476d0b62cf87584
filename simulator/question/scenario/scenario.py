"""Everything that is the same for all layouts of one question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simulator.errors import InputError
from simulator.question.coefficients import Coefficients
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.frameworks.profiles import MEGATRON
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import PRECISIONS, Precision, StackName

MOST_DEVICES = 2**24
"""Largest cluster priced."""
MOST_TOKENS = 2**27
"""Longest sequence and largest global batch priced."""


class Calibrated(Protocol):
    """What is known of a set of coefficients beside their values: how far off estimates made with them are."""

    @property
    def name(self) -> str:
        """Shown in provenance."""

    def coefficients(self) -> Coefficients:
        """The set that the formulas take."""

    def judged(self, scenario: Scenario, estimates: Sequence[Any]) -> Any:
        """Estimates of layouts with intervals, the probability that they fit, and where their numbers come from."""

    def likely_to_fit(self, scenario: Scenario, priced: Any, index: Any, least: float) -> Any:
        """Which layouts of a priced block, by position, fit with at least a probability, as estimates state it."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes inside a cluster of several kinds."""

    hardware: HardwareSpec
    devices: int
    """Devices used of these nodes, all together."""
    coefficients: Coefficients = field(default_factory=Coefficients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a scenario needs to know of the machines."""

    hardware: HardwareSpec
    """The only kind of device, or the kind of the first group."""
    devices: int
    groups: tuple[NodeGroup, ...] = ()
    """Empty for a uniform cluster."""
    coefficients: Coefficients = field(default_factory=Coefficients)
    calibration: Calibrated | None = None
    """What stands behind the coefficients, of the first group's family; None where nothing was fitted."""
    stacks: tuple[StackName, ...] = ()
    """Named stacks that its calibration and its hardware say its runs have, the nearer one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Model, cluster and workload, with the framework and coefficients that price them."""

    model: ModelSpec
    hardware: HardwareSpec
    """The only kind of device, or the kind of the first group."""
    devices: int
    """Devices of the cluster; a whole number of nodes, or a part of one node."""
    groups: tuple[NodeGroup, ...] = ()
    """Node groups of a cluster of several kinds, in rank order; empty where all devices are `hardware`."""
    seq_length: int = 8192
    """Tokens per sequence."""
    global_batch_size: int = 1024
    """Sequences per optimizer step over all replicas."""
    precision: Precision = "bf16"
    """Compute type of the matrix products. Weights stay 16 bit under fp8; under fp32 everything is fp32."""
    lora_rank: int | None = None
    """Train low-rank adapters of this rank on every linear layer instead of the weights; None trains everything."""
    framework: FrameworkProfile = MEGATRON
    coefficients: Coefficients = field(default_factory=Coefficients)
    """All that the formulas see of a calibration."""
    calibration: Calibrated | None = field(default=None, compare=False)
    """What stands behind the coefficients; with it an estimate has intervals."""

    def __post_init__(self) -> None:
        """Refuse what no layout could make valid. Raises InputError or UnsupportedError (precision)."""
        if self.precision not in PRECISIONS:
            raise InputError(f"precision '{self.precision}': allowed are {', '.join(PRECISIONS)}")
        for hardware in self.kinds_of_device:
            hardware.peak(self.precision)
        for name, value, high in (
            ("devices", self.devices, MOST_DEVICES),
            ("seq_length", self.seq_length, MOST_TOKENS),
            ("global_batch_size", self.global_batch_size, MOST_TOKENS),
            ("lora_rank", 1 if self.lora_rank is None else self.lora_rank, 2**16),
        ):
            if not 1 <= value <= high:
                raise InputError(f"{name} {value}: must be from 1 to {high}")
        if self.lora_rank is not None and self.lora_rank > self.model.hidden_size:
            raise InputError(f"lora_rank {self.lora_rank}: must be at most the hidden size {self.model.hidden_size}")
        if self.groups and sum(group.devices for group in self.groups) != self.devices:
            raise InputError(f"devices {self.devices}: the node groups add up to another number")
        per_node = self.hardware.devices_per_node
        if not self.groups and self.devices > per_node and self.devices % per_node:
            raise InputError(
                f"devices {self.devices}: more than one node of {self.hardware.name} means a multiple of {per_node}"
            )

    @property
    def kinds_of_device(self) -> tuple[HardwareSpec, ...]:
        """The hardware of every node group; of a uniform cluster, its only one."""
        return tuple(group.hardware for group in self.groups) or (self.hardware,)

    @property
    def hardware_name(self) -> str:
        """The hardware's name, or the names and devices of the node groups."""
        if not self.groups:
            return self.hardware.name
        return ",".join(f"{g.hardware.name}:{g.devices}" for g in self.groups)

    @property
    def members(self) -> tuple[Scenario, ...]:
        """One uniform scenario per node group: what a stage on that group is priced by."""
        if not self.groups:
            return (self,)
        return tuple(
            replace(
                self, hardware=g.hardware, coefficients=g.coefficients, groups=(NodeGroup(g.hardware, self.devices),)
            )
            for g in self.groups
        )

    def group_of(self, first_device: int) -> int:
        """Index of the node group that holds a device."""
        end = 0
        for index, group in enumerate(self.groups):
            end += group.devices
            if first_device < end:
                return index
        return max(len(self.groups) - 1, 0)

    @property
    def nodes(self) -> int:
        """Nodes the devices fill; a part of a node counts as one."""
        groups = self.groups or (NodeGroup(self.hardware, self.devices),)
        return sum(-(-group.devices // group.hardware.devices_per_node) for group in groups)

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step, of every sequence of a sample."""
        return self.seq_length * self.global_batch_size * self.framework.sequences_per_sample

    @property
    def outputs_per_token(self) -> int:
        """Numbers that the model puts out for a token: logits, or one score."""
        return 1 if self.framework.score_head else self.model.vocab_size
