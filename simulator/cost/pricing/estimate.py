"""Record `Estimate` of one layout: memory, throughput, broken rules, range and what it rests on, frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from simulator.cost.schedule.orders import OneForwardOneBackward
from simulator.cost.schedule.schedule import Schedule
from simulator.late import read_late
from simulator.question.question import Question
from simulator.question.scenario.inputs import Workload
from simulator.question.scenario.layout import Layout, sizes_text
from simulator.question.units import to_gib
from simulator.question.vocabulary import Batching
from simulator.records import NamedTuple, Record, field
from simulator.tabular import Tabular


class Violation(Record):
    """A rule that a layout breaks."""

    rule: str
    """Stable id, such as `heads`."""
    message: str
    """What is wrong."""
    fix: str
    """How to mend it."""


Verdict = Literal["fits", "depends", "starved", "does_not_fit", "refused"]
"""Whether a layout runs. `depends`: on what nobody said, or on a run. `starved`: so near capacity that the allocator
keeps freeing blocks; slow, if it runs."""
Coverage = Literal["measured", "between", "beyond", "never"]
"""Position of a question relative to the measured runs: among, between or beyond them, or where there are none."""


class Interval(Record):
    """A 90 % interval."""

    low: float
    """Lower end."""
    high: float
    """Upper end."""

    def half_width_of_ratio(self, other: Interval) -> float:
        """Return half the 90 % range of the logarithm of one figure over another that shares none of its errors."""
        return math.hypot(*(math.log(each.high / each.low) / 2.0 for each in (self, other)))


class StageMemory(Record, kw_only=True):
    """Peak memory of one pipeline rank."""

    stage: int
    """Pipeline rank, from 0."""
    layers: int
    """Number of layers."""
    device_bytes: float
    """Memory in use as the driver reports it."""
    reserved_bytes: float
    """Peak of the framework's allocator: `device_bytes` without context and communicators."""
    allocated_bytes: float
    """Tensors alive at the peak."""
    moment: str
    """Moment of the peak: backward, loss, embedding gradient or optimizer step."""
    parts_bytes: Mapping[str, float]
    """Named parts; they add up to `device_bytes`."""
    state_bytes: float = 0.0
    """Bytes allocated between two steps: training state and retained tensors."""
    hardware: str = ""
    """Device of the rank."""
    capacity_bytes: float = 0.0
    """Memory of the device that a framework can use."""


_TAIL = 0.05  # probability beyond each end of a 90 % interval


@read_late("interval_bytes", "fit_probability", "parts_bytes", "outside_parts_bytes", "stages")
class MemoryEstimate(Record, kw_only=True):
    """Memory of a layout on its worst rank and on all ranks."""

    device_bytes: float
    """Memory in use on the worst rank as the driver reports it."""
    reserved_bytes: float
    """Memory of the framework's allocator there: `device_bytes` without context and communicators."""
    allocated_bytes: float
    """Tensors alive there at the peak."""
    capacity_bytes: float
    """Memory of the device that a framework can use."""
    interval_bytes: Interval | None
    """90 % interval of `device_bytes`; None without a calibration."""
    fit_probability: float | None
    """Probability that it fits; None without a calibration."""
    binding_stage: int
    """Worst pipeline rank, which needs the most of its device."""
    moment: str
    """Moment of its peak: backward, loss, embedding gradient or optimizer step."""
    parts_bytes: Mapping[str, float]
    """Parts of the binding rank; they add up to `device_bytes`."""
    outside_parts_bytes: Mapping[str, float]
    """Parts of `outside_allocator` of the binding rank: context, user buffers, ring buffers, fragmentation, streams."""
    stages: tuple[StageMemory, ...]
    """Every pipeline rank."""
    surest: float = 1.0
    """Highest probability to fit, however much room is left: less where no run is like it."""
    host_bytes_per_node: float = 0.0
    """Bytes of offload, or of loading if more, on the host of the fullest node; its own needs are not counted."""
    host_parts_bytes: Mapping[str, float] = field(default_factory=dict)
    """Its parts: optimizer, parameters, activations, gradient_buffers, parameter_buffers; or loading alone."""
    host_pinned_bytes: float = 0.0
    """Its pinned part: PyTorch rounds pinned blocks up to powers of two, so up to as much again is taken."""
    host_capacity_bytes: float | None = None
    """Memory of a node's host; None where the device's spec states none, which leaves it unjudged."""

    @property
    def fits_host(self) -> bool | None:
        """Whether the host has room for offload; None where its memory or the rounding is unknown."""
        if self.host_capacity_bytes is None:
            return None
        if self.host_bytes_per_node > self.host_capacity_bytes:
            return False
        return True if self.host_most_bytes <= self.host_capacity_bytes else None

    @property
    def host_most_bytes(self) -> float:
        """Upper bound on the host's bytes, whatever the rounding of pinned blocks."""
        return self.host_bytes_per_node + self.host_pinned_bytes

    @property
    def need_bytes(self) -> float:
        """Memory that must fit on the worst rank: all but blocks that the allocator can give back."""
        return self.device_bytes - sum(self.outside_parts_bytes.get(name, 0.0) for name in ("cached", "streams"))

    @property
    def state_bytes(self) -> float:
        """Parameters, gradients and optimizer state of the binding rank."""
        return sum(self.parts_bytes.get(name, 0.0) for name in ("parameters", "gradients", "optimizer"))

    @property
    def state_share(self) -> float:
        """Part of `need_bytes` that is state."""
        return self.state_bytes / self.need_bytes

    @property
    def fits(self) -> bool:
        """Whether the worst rank needs no more than a framework can use."""
        return self.device_bytes <= self.capacity_bytes

    @property
    def undecided(self) -> bool:
        """Whether the 90 % interval of the need straddles the capacity, so that only a run decides."""
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
    """Seconds of weight gradients in the backward pass, where the schedule separates them."""


class StageTime(Record, kw_only=True):
    """Work of one pipeline rank per micro batch."""

    stage: int
    """Pipeline rank, from 0."""
    forward_seconds: float
    """Forward pass of one micro batch."""
    backward_seconds: float
    """Its backward pass, with recompute."""
    chunk_seconds: tuple[ChunkTime, ...] = ()
    """Times of each model chunk where passes were run one by one; else chunks have equal shares."""


@read_late("interval_seconds", "parts_seconds", "stages")
class ThroughputEstimate(Record, kw_only=True):
    """Speed of one optimizer step."""

    step_seconds: float
    """One optimizer step."""
    flops_per_second_per_device: float
    """Model FLOP (3 x forward, non-causal attention, output layer but not input table) per second and device."""
    hardware_flops_per_second_per_device: float
    """The same with recompute counted."""
    tokens_per_second_per_device: float
    """Tokens of the step, per second and device."""
    mfu: float
    """Model FLOP per second over the device's dense peak at the training precision."""
    causal_mfu: float
    """The same without the scores that a causal mask hides."""
    bubble_fraction: float
    """Idle share of the pacing stage."""
    interval_seconds: Interval | None
    """90 % interval of the step time; None without a calibration."""
    parts_seconds: Mapping[str, float]
    """Named parts of the step; they add up to `step_seconds`."""
    model_flops_per_token: float
    """Model FLOP of one token."""
    stages: tuple[StageTime, ...]
    """Every pipeline rank."""
    schedule: Schedule = field(default=OneForwardOneBackward(), compare=False)
    """Schedule that the speed is computed for."""


class Contribution(Record):
    """One contribution to an interval; the squares of the half-widths add up."""

    figure: Literal["memory", "time"]
    """Interval that it belongs to."""
    name: str
    """`coefficients`, `scatter`, `sources`, `device`, `stack`, `nodes`, `layout`, or `unsaid`: what nobody said."""
    half_width: float
    """Half of the 90 % interval if it were the only contribution, in the logarithm of the figure."""
    because: str
    """What is unknown."""


class NextMeasurement(Record):
    """The measurement that would narrow the interval of the step time most."""

    run: str
    """What to run."""
    half_width: float
    """Half of the 90 % interval after it, in the logarithm; the result of the run itself is unknown."""


@read_late("contributions", "next_measurement", "notes", "without_effect")
class Provenance(Record):
    """Basis of the numbers."""

    calibration: str
    """Name of the coefficient set."""
    status: Coverage
    """The worst of `device`, `stack` and `layout`."""
    notes: tuple[str, ...] = ()
    """Assumptions, one sentence each."""
    device: Coverage = "never"
    """`measured`: runs of this device; `beyond`: of its family; `never`: of neither."""
    stack: Coverage = "never"
    """`measured`: runs with these switches on the family; `between`: each switch in some run; `beyond`: the framework
    with other switches; `never`: another framework."""
    layout: Coverage = "never"
    """`measured`: this very run; `between`: inside the sizes and choices of the runs; `beyond`: outside of some;
    `never`: with a feature that no run of the framework on the family has."""
    contributions: tuple[Contribution, ...] = ()
    """Contributions to the intervals, the largest of each figure first; empty without a calibration."""
    next_measurement: NextMeasurement | None = None
    """None without a calibration of time."""
    assumed_peak: str = ""
    """Dense peaks at the training precision that no document states, with what is known of each; else empty."""
    cautions: tuple[str, ...] = ()
    """Parts of the model that are not priced, and lengths that it was not trained for, one sentence each."""
    release: str = ""
    """Release of the stack whose recipe sets the switches; empty for a stack without releases."""
    without_effect: tuple[str, ...] = ()
    """Settings that the user said and that change no figure, one sentence each; in a ranking, none of any layout."""


class LengthsEstimate(Record, kw_only=True):
    """What lengths that differ do to a run."""

    source: str
    """File or text that states them."""
    batching: Batching
    """How samples become sequences."""
    sample_tokens: float
    """Mean tokens of a sequence, without padding."""
    padding: float
    """Share of a step's tokens that is padding."""
    priced_tokens: int
    """Tokens of the sequence that memory is of: the longest in a share `survive` of the steps."""
    survive: float
    """Share of the steps whose fullest micro batch is no longer."""
    fits_to: int | None = None
    """Tokens of the longest sequence that fits; None where the longest sample does, or in a ranking."""
    failing_steps: float = 0.0
    """Share of the steps that hold a longer one."""
    shortest_step_seconds: float | None = None
    """Step if all samples had one token, where only the longest is known."""
    shortest_tokens_per_second_per_device: float | None = None
    """Tokens per second and device of that step."""


class AssumedSwitch(Record, kw_only=True):
    """A switch left unset that matters: its assumed value, and the effect of another value."""

    switch: str
    """Name of the switch, as `--option` takes it."""
    value: str
    """Assumed value."""
    other: str
    """Value it is compared with."""
    because: str
    """Origin of the value: a framework's default, or a named stack's."""
    speed_change: float
    """Tokens per second with `value` over those with `other`, less one."""
    memory_bytes: float
    """Bytes that the fullest device needs more with `value` than with `other`; negative for less."""
    verdict: Verdict
    """Verdict with `other`."""

    @property
    def other_speed_change(self) -> float:
        """Tokens per second with `other` over those with `value`, less one."""
        return 1.0 / (1.0 + self.speed_change) - 1.0


class OpenSwitch(Record, kw_only=True):
    """A switch that nobody said, and a value beside the present one that runs have."""

    switch: str
    """Name of the switch, as `--option` takes it."""
    value: str
    """Value that the answer is priced with."""
    other: str
    """Value that it may have."""
    share: float | None
    """Part of public repositories whose recipes set `other`; None where a document alone says it."""
    source: str
    """What was counted, or the document."""
    speed_change: float
    """Tokens per second with `other` over those with `value`, less one."""
    memory_bytes: float
    """Bytes that the fullest device needs more with `other`; negative for less."""
    need_bytes: float
    """The same of what must fit: without blocks that the allocator can give back."""
    verdict: Verdict
    """Verdict with `other`, by the need alone."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Further switches, with their values, that runs with `other` set: all are priced together."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The values as `--option` takes them."""
        return (f"{self.switch}={self.other}", *(f"{name}={text}" for name, text in self.others.items()))


class OpenRange(Record, kw_only=True):
    """Switches that nobody said, and figures of the layout at their ends."""

    switches: tuple[OpenSwitch, ...]
    """Values that move speed or memory, the largest effect first."""
    least_bytes: float
    """What must fit on the fullest device (`need_bytes`) with every switch at its thriftiest value."""
    most_bytes: float
    """The same with every switch at its most costly value."""
    least_device_bytes: float
    """Memory of the fullest device with every switch at its thriftiest value."""
    most_device_bytes: float
    """The same with every switch at its most costly value."""
    fastest_seconds: float
    """Step with every switch at its fastest value."""
    slowest_seconds: float
    """Step with every switch at its slowest value."""
    usual_verdict: Verdict
    """Verdict by the need with every switch at the framework's own value."""
    favourable_probability: float | None = None
    """Probability to fit with every switch at its thriftiest value; None without a calibration."""

    @property
    def names(self) -> tuple[str, ...]:
        """Switches by name, the largest effect first, each once."""
        return tuple(dict.fromkeys(switch.switch for switch in self.switches))

    @property
    def decisive(self) -> OpenSwitch | None:
        """Switch that alone turns the usual verdict from or to `fits`, by the most memory; None if none does."""
        usual = self.usual_verdict == "fits"
        turning = [switch for switch in self.switches if (switch.verdict == "fits") != usual]
        return max(turning, key=lambda switch: abs(switch.memory_bytes), default=None)


class OtherMemory(NamedTuple):
    """Answer on another memory that the name of the hardware leaves open."""

    hardware: str
    """Hardware that the name means too, as `--hardware` takes it."""
    verdict: Verdict
    memory: MemoryEstimate


@read_late("assumed", "other_memories", "throughput")
class Estimate(Workload, Tabular, kw_only=True):
    """One layout, priced."""

    model: str
    """Name of the model."""
    hardware: str
    """Name of the hardware, or of its kinds in a mixed cluster."""
    devices: int
    """Number of devices."""
    framework: str
    """Name of the framework."""
    layout: Layout
    options: Mapping[str, str] = field(default_factory=dict)
    """Switches that a search chose beside the layout, by `--option` name; empty where the question set all."""
    verdict: Verdict
    """Whether it runs; `starved` may, slowly, near capacity; `refused` breaks a rule."""
    memory: MemoryEstimate
    throughput: ThroughputEstimate
    violations: tuple[Violation, ...]
    """Rules that the layout breaks."""
    provenance: Provenance
    stack: str = "default"
    """Named stack of the switches."""
    lengths: LengthsEstimate | None = None
    """Lengths that differ; None where every sequence has `seq_length` tokens."""
    question: Question = field(default_factory=Question, compare=False)
    """Values that were said of the question, with who said each; empty in estimates of a bare scenario."""
    assumed: tuple[AssumedSwitch, ...] = field(default=(), compare=False)
    """Unset switches that matter, the largest effect on speed first; only in answers on a single layout."""
    open: OpenRange | None = field(default=None, compare=False)
    """What nobody said of a run that exists; None where its stack is said, or the layout is recommended."""
    other_memories: tuple[OtherMemory, ...] = field(default=(), compare=False)
    """Answers on each other memory that the name of the hardware leaves open; figures are of the hardware taken."""
    other_memory: str = field(default="", compare=False)
    """The first of them that gives another verdict, as a caution says; empty where none does."""

    def __repr__(self) -> str:
        """Return one line: the question, the layout, the verdict."""
        question = f"{self.model} on {self.devices} x {self.hardware}, {self.precision}, {self.framework}"
        need = f"{to_gib(self.memory.device_bytes):.1f} of {to_gib(self.memory.capacity_bytes):.1f} GiB"
        step = f"{self.throughput.step_seconds:.4g} s a step"
        return f"<Estimate {question}: {layout_sizes(self.layout)}, {self.verdict}, {need}, {step}>"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each pipeline rank: its layers, and its bytes by part."""
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
    """Return the sizes of a layout on one line."""
    sizes = sizes_text(layout, "tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch_size")
    return sizes if layout.recompute == "none" else f"{sizes} recompute {layout.recompute}"
