"""The answer for one layout, as frozen values in base units. Reports turn it into text; nothing here prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from simulator.cost.pricing.violation import Violation
from simulator.cost.schedule.one_forward_one_backward import OneForwardOneBackward
from simulator.cost.schedule.schedule import Schedule
from simulator.question.scenario.inputs import Workload
from simulator.question.scenario.layout import Layout, sizes_text
from simulator.question.units import to_gib
from simulator.tabular import Tabular

Verdict = Literal["fits", "starved", "does_not_fit", "refused"]
"""`starved`: so near capacity that the allocator keeps freeing and asking again; it may run, slowly."""
Coverage = Literal["measured", "between", "beyond", "never"]
"""Where a question lies beside the measured runs: among them, between them, beyond them, or where none is."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 90 % interval."""

    low: float
    """Lower end."""
    high: float
    """Upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Peak memory of one pipeline rank."""

    stage: int
    """Pipeline rank, from 0."""
    layers: int
    """Layers it holds, a count."""
    device_bytes: float
    """Everything the driver's tool shows."""
    reserved_bytes: float
    """What the framework's allocator holds at its peak: the device's figure less context and communicators."""
    allocated_bytes: float
    """Tensors alive at the peak."""
    moment: str
    """When the peak is reached: backward, loss, embedding gradient or optimizer step."""
    parts_bytes: Mapping[str, float]
    """Named parts; they add up to `device_bytes`."""
    state_bytes: float = 0.0
    """What is allocated between two steps: training state, and what else is kept."""
    hardware: str = ""
    """The device the rank is on."""
    capacity_bytes: float = 0.0
    """What a framework can use of it."""


_TAIL = 0.05
"""Probability beyond each end of a 90 % range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory of the layout: its worst rank, and all ranks."""

    device_bytes: float
    """What the driver's tool shows on the worst rank."""
    reserved_bytes: float
    """What the framework's allocator holds there: the device's figure less context and communicators."""
    allocated_bytes: float
    """Tensors alive there at the peak."""
    capacity_bytes: float
    """What a framework can use of the device."""
    interval_bytes: Interval | None
    """90 % interval of `device_bytes`; None without a calibration."""
    fit_probability: float | None
    """That it fits; None without a calibration."""
    binding_stage: int
    """Pipeline rank that needs most."""
    moment: str
    """When it needs most: backward, loss, embedding gradient or optimizer step."""
    parts_bytes: Mapping[str, float]
    """Parts of the binding rank; they add up to `device_bytes`."""
    outside_parts_bytes: Mapping[str, float]
    """Parts of `outside_allocator` of the binding rank: context, user buffers, ring buffers, fragmentation, streams."""
    stages: tuple[StageMemory, ...]
    """Every pipeline rank."""
    host_bytes_per_node: float = 0.0
    """What offload keeps on the host of the fullest node, buffers included; the host's own needs are not counted."""
    host_parts_bytes: Mapping[str, float] = field(default_factory=dict)
    """Parts of it: optimizer, parameters, activations, gradient_buffers, parameter_buffers."""
    host_pinned_bytes: float = 0.0
    """What of it is pinned: PyTorch rounds such a block up to a power of two, so that up to as much again is taken."""
    host_capacity_bytes: float | None = None
    """Memory of a node's host; None where the device's spec does not state it, and it is then not judged."""

    @property
    def fits_host(self) -> bool | None:
        """Whether the host has room for what offload keeps there; None where its memory or the rounding is unknown."""
        if self.host_capacity_bytes is None:
            return None
        if self.host_bytes_per_node > self.host_capacity_bytes:
            return False
        return True if self.host_most_bytes <= self.host_capacity_bytes else None

    @property
    def host_most_bytes(self) -> float:
        """What the host's part is below, however its pinned blocks are rounded."""
        return self.host_bytes_per_node + self.host_pinned_bytes

    @property
    def need_bytes(self) -> float:
        """What the worst rank must have room for: all but blocks that the allocator gives back."""
        return self.device_bytes - self.outside_parts_bytes.get("streams", 0.0)

    @property
    def fits(self) -> bool:
        """Whether the worst rank needs no more than a framework can use."""
        return self.device_bytes <= self.capacity_bytes

    @property
    def undecided(self) -> bool:
        """Whether the 90 % range of the need reaches over the capacity on both sides, so that only a run decides."""
        return self.fit_probability is not None and _TAIL < self.fit_probability < 1.0 - _TAIL

    @property
    def headroom_bytes(self) -> float:
        """Capacity less need; negative when it does not fit."""
        return self.capacity_bytes - self.device_bytes


class ChunkTime(NamedTuple):
    """Work of one model chunk of a pipeline rank per micro batch."""

    forward_seconds: float
    backward_seconds: float
    weight_seconds: float = 0.0
    """Of the backward pass, the gradients of weights where the schedule does them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Work of one pipeline rank per micro batch."""

    stage: int
    """Pipeline rank, from 0."""
    forward_seconds: float
    """Forward pass of one micro batch."""
    backward_seconds: float
    """Its backward pass, recomputation included."""
    chunk_seconds: tuple[ChunkTime, ...] = ()
    """Of each model chunk where the passes were run one by one; else a chunk has an equal share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputEstimate:
    """Speed of one optimizer step."""

    step_seconds: float
    """One optimizer step."""
    flops_per_second_per_device: float
    """Model FLOPs (3 x forward, non-causal attention, output layer but not input table) over time and devices."""
    hardware_flops_per_second_per_device: float
    """The same with recomputation counted."""
    tokens_per_second_per_device: float
    """Tokens of the step, per second and device."""
    mfu: float
    """Model FLOPs per second over the device's dense peak of the precision trained in."""
    bubble_fraction: float
    """Idle share of the pacing stage."""
    interval_seconds: Interval | None
    """90 % interval of the step time; None without a calibration."""
    parts_seconds: Mapping[str, float]
    """Named parts of the step; they add up to `step_seconds`."""
    model_flops_per_token: float
    """Model FLOPs of one token."""
    stages: tuple[StageTime, ...]
    """Every pipeline rank."""
    schedule: Schedule = field(default=OneForwardOneBackward(), compare=False)
    """The order of passes that it is the speed of."""


class Contribution(NamedTuple):
    """One part of what a range is made of; the squares of the half-widths add up."""

    figure: Literal["memory", "time"]
    """The range that it is a part of."""
    name: str
    """`coefficients`, `scatter`, `sources`, `device`, `stack`, `nodes` or `layout`."""
    half_width: float
    """Half of the 90 % range if it were the only part, in the logarithm of the figure."""
    because: str
    """What is not known."""


class NextMeasurement(NamedTuple):
    """The one measurement that would narrow the range of the step time most."""

    run: str
    """What to run."""
    half_width: float
    """Half of the 90 % range after it, in the logarithm; what the run itself shows is not known before."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the numbers rest on."""

    calibration: str
    """Name of the coefficient set."""
    status: Coverage
    """The worst of `device`, `stack` and `layout`."""
    notes: tuple[str, ...] = ()
    """What was assumed, one sentence each."""
    device: Coverage = "never"
    """`measured`: runs of this device; `beyond`: of its family; `never`: of neither."""
    stack: Coverage = "never"
    """`measured`: runs with these switches on the family; `between`: each switch in some run; `beyond`: the framework
    with other switches; `never`: another framework."""
    layout: Coverage = "never"
    """`measured`: this very run; `between`: inside the sizes and choices of the runs; `beyond`: outside of some;
    `never`: with a feature that no run of the framework on the family has."""
    contributions: tuple[Contribution, ...] = ()
    """What the ranges are made of, the largest of each figure first; none without a calibration."""
    next_measurement: NextMeasurement | None = None
    """None without a calibration of time."""
    assumed_peak: str = ""
    """The dense peaks of the precision trained in that no document states, with what is known of each; else empty."""
    release: str = ""
    """The release of the stack with the recipe whose switches are taken; empty for a stack without releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedSwitch:
    """A switch that nobody gave and that matters: what it is taken as, and what another value of it is worth."""

    switch: str
    """Name of the switch, as `--option` takes it."""
    value: str
    """What is assumed."""
    other: str
    """The value it is compared with."""
    because: str
    """Whose value it is: a framework's default, or a named stack's."""
    speed_change: float
    """Tokens per second with what is assumed over those with the other value, less one."""
    memory_bytes: float
    """What the fullest device needs more with what is assumed than with the other value; negative for less."""
    verdict: Verdict
    """With the other value."""

    @property
    def other_speed_change(self) -> float:
        """Tokens per second with the other value over those with what is assumed, less one."""
        return 1.0 / (1.0 + self.speed_change) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Workload, Tabular):
    """One layout, priced."""

    model: str
    """Name of the model."""
    hardware: str
    """Name of the hardware, or of its kinds."""
    devices: int
    """Devices that train it, a count."""
    framework: str
    """What trains it."""
    layout: Layout
    options: Mapping[str, str] = field(default_factory=dict)
    """Switches that a search chose beside the layout, as `--option` takes them; none where the question gave all."""
    verdict: Verdict
    """Whether it runs: `starved` is so near capacity that it may, slowly; `refused` breaks a rule."""
    memory: MemoryEstimate
    throughput: ThroughputEstimate
    violations: tuple[Violation, ...]
    """Rules that the layout breaks."""
    provenance: Provenance
    stack: str = "default"
    """Named stack of the switches."""
    assumed: tuple[AssumedSwitch, ...] = field(default=(), compare=False)
    """Switches that nobody gave and that matter, what weighs most on the speed first; of single answers only."""

    def __repr__(self) -> str:
        """One line: the question, the layout, the verdict."""
        question = f"{self.model} on {self.devices} x {self.hardware}, {self.precision}, {self.framework}"
        need = f"{to_gib(self.memory.device_bytes):.1f} of {to_gib(self.memory.capacity_bytes):.1f} GiB"
        step = f"{self.throughput.step_seconds:.4g} s a step"
        return f"<Estimate {question}: {layout_sizes(self.layout)}, {self.verdict}, {need}, {step}>"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each pipeline rank: its layers, and its bytes by part."""
        return [
            {
                "stage": stage.stage,
                "layers": stage.layers,
                **{f"{name}_bytes": size for name, size in stage.parts_bytes.items()},
                "allocated_bytes": stage.allocated_bytes,
                "reserved_bytes": stage.reserved_bytes,
                "device_bytes": stage.device_bytes,
                "moment": stage.moment,
            }
            for stage in self.memory.stages
        ]


def layout_sizes(layout: Layout) -> str:
    """The sizes of a layout on one line."""
    sizes = sizes_text(layout, "tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch_size")
    return sizes if layout.recompute == "none" else f"{sizes} recompute {layout.recompute}"
