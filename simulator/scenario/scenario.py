"""Everything that is the same for all layouts of one question."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.coefficients import Coefficients
from simulator.errors import InputError
from simulator.frameworks.profile import MEGATRON, FrameworkProfile
from simulator.specs.hardware import HardwareSpec
from simulator.specs.model import ModelSpec

MOST_DEVICES = 2**24
"""Largest cluster priced."""
PRECISIONS = ("bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Model, cluster and workload, with the framework and coefficients that price them."""

    model: ModelSpec
    hardware: HardwareSpec
    devices: int
    """Devices of the cluster; a whole number of nodes, or a part of one node."""
    seq_length: int = 8192
    """Tokens per sequence."""
    global_batch_size: int = 1024
    """Sequences per optimizer step over all replicas."""
    precision: str = "bf16"
    """Compute type of the matrix products. Weights stay 16 bit under fp8."""
    lora_rank: int | None = None
    """Train low-rank adapters of this rank on every linear layer instead of the weights; None trains everything."""
    framework: FrameworkProfile = MEGATRON
    coefficients: Coefficients = field(default_factory=Coefficients)

    def __post_init__(self) -> None:
        """Refuse what no layout could make valid. Raises InputError or UnsupportedError (precision)."""
        if self.precision not in PRECISIONS:
            raise InputError(f"precision '{self.precision}': allowed are {', '.join(PRECISIONS)}")
        self.hardware.peak(self.precision)
        for name, value, high in (
            ("devices", self.devices, MOST_DEVICES),
            ("seq_length", self.seq_length, 2**27),
            ("global_batch_size", self.global_batch_size, 2**27),
            ("lora_rank", 1 if self.lora_rank is None else self.lora_rank, 2**16),
        ):
            if not 1 <= value <= high:
                raise InputError(f"{name} {value}: must be from 1 to {high}")
        per_node = self.hardware.devices_per_node
        if self.devices > per_node and self.devices % per_node:
            raise InputError(
                f"devices {self.devices}: more than one node of {self.hardware.name} means a multiple of {per_node}"
            )

    @property
    def nodes(self) -> int:
        """Nodes the devices fill; a part of a node counts as one."""
        return -(-self.devices // self.hardware.devices_per_node)

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step."""
        return self.seq_length * self.global_batch_size
