"""Measured run: figures that its source states, with annotations, one field per column. Prices nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simulator.errors import InputError
from simulator.question.scenario.inputs import WORKLOAD
from simulator.question.scenario.layout import FIELDS
from simulator.question.units import GIB, MIB
from simulator.question.vocabulary import (
    FrameworkName,
    NamedRecomputeMethod,
    Offload,
    Precision,
    RecomputeMode,
    RecomputeModule,
    ScheduleName,
    StackName,
)

RunOutcome = Literal["ok", "oom", "error"]
MemoryKind = Literal["allocated", "reserved", "device", "unstated"]
MemoryRank = Literal["fullest", "last", "mean"]
RowStatus = Literal[
    "consistent",
    "assumed_layout",
    "borrowed_memory",
    "memory_only",
    "relabelled",
    "inactive_recompute",
    "unexplained",
    "starved",
    "failed",
    "no_spec",
    "duplicate",
    "unpriced",
]

STATUSES: Final[dict[RowStatus, str]] = {
    "consistent": "The row is what it says, as far as anyone can tell; all its figures count.",
    "assumed_layout": "The figures are as published; the layout is not in the published table and was read from a "
    "script or configuration of the same release. All figures count, with that reservation.",
    "borrowed_memory": "The speed was measured on this run, the memory on another one with fewer micro batches. The "
    "speed counts; the memory is that of another row.",
    "memory_only": "The steps are so short that they wait for the host, which is not priced. The memory counts.",
    "relabelled": "The figures fit another layout than the one stated; `evidence` names it. Nothing counts.",
    "inactive_recompute": "Memory and speed are those of a run without the stated recompute. Nothing counts.",
    "unexplained": "The memory figure, or the report that memory ran out, disagrees with every model of memory. "
    "The memory does not count; the speed, where the row has one, does.",
    "starved": "The run needed a little more memory than there is and ran slowly. It bounds the capacity; neither its "
    "memory nor its speed is a sample.",
    "failed": "The run ended for a reason other than memory. It says nothing about fit or speed.",
    "no_spec": "The model's shape is not shipped, so nothing can be predicted for the row.",
    "duplicate": "The run stands in another row already; `evidence` names it. Nothing counts.",
    "unpriced": "The run did something that cannot be priced, or its source leaves out what a question needs; "
    "`evidence` says what. Nothing counts.",
}
"""Meaning of each status, with the figures of such a row that count."""

_MEMORY_COUNTS: Final = frozenset({"consistent", "assumed_layout", "memory_only"})
_SPEED_COUNTS: Final = frozenset({"consistent", "assumed_layout", "borrowed_memory", "unexplained"})
_ASKS_NOTHING: Final = frozenset({"failed", "no_spec", "duplicate", "unpriced"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """Spread of the steps behind a median, in seconds."""

    samples: int
    """Steps the median was taken over, a count."""
    minimum: float
    """Shortest step, in seconds."""
    maximum: float
    """Longest step, in seconds."""
    interquartile: float
    """Distance of the upper from the lower quartile, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """Measured run. Each field is a column of the tables in `calibration/measured`; None and empty stand for blank."""

    table: str = ""
    """Short name of the table the row belongs to; with `row` it names the run."""
    row: int = 1
    """Number of the row in its source's table, from 1."""
    source: str = ""
    """Document or public page the row comes from."""
    source_ref: str = ""
    """Place within the source: section, file, case."""
    model_as_stated: str = ""
    """The model in the source's words."""
    hardware_as_stated: str = ""
    """The hardware in the source's words."""
    model: str = ""
    """Name or path of the model spec; blank when no spec has the shape."""
    num_layers: int | None = None
    """Decoder layers when the model was truncated, a count; blank for all its layers."""
    hardware: str
    """Name or path of the hardware spec."""
    framework: FrameworkName = "megatron"
    """Framework profile the run is priced with."""
    options: tuple[tuple[str, str], ...] = ()
    """Switches that differ from those of the stack, `NAME=VALUE` joined by `;`."""
    stack: StackName | None = None
    """Named stack of the run; blank for that of the hardware's spec, else the framework's own defaults."""
    devices: int
    """Devices of the run as stated, a count."""
    precision: Precision = "bf16"
    """Compute type of the matrix products."""
    seq_length: int
    """Tokens per sequence, a count."""
    micro_batch_size: int
    """Sequences per micro batch on one replica, a count."""
    global_batch_size: int
    """Sequences per optimizer step over all replicas, a count."""
    tensor_parallel: int = 1
    """Ranks that share every weight matrix, a count."""
    pipeline_parallel: int = 1
    """Pipeline ranks, a count."""
    context_parallel: int = 1
    """Ranks that share one sequence, a count."""
    expert_parallel: int = 1
    """Ranks over which routed experts are spread, a count."""
    expert_tensor_parallel: int | None = None
    """Ranks that share every routed expert, a count; blank for 1."""
    virtual_stages: int | None = None
    """Model chunks per pipeline rank, a count, where the source states chunks; blank for none."""
    layers_per_virtual_stage: int | None = None
    """Layers per model chunk, a count, where the source states that instead; blank for none."""
    schedule: ScheduleName = "1f1b"
    """Order of the passes of a pipeline, in the simulator's words."""
    stage_layers: tuple[int, ...] = ()
    """Layers on each pipeline rank, joined by `|`, where the source states an uneven cut."""
    chunk_layers: tuple[int, ...] = ()
    """Layers of every model chunk in the order of the layers, joined by `|`, where the source states uneven chunks."""
    zero_stage: int | None = None
    """What is sharded over data-parallel ranks, 0 to 3; blank for 1, the optimizer state."""
    sequence_parallel: bool | None = None
    """Whether the sequence is split over the tensor-parallel group; blank for yes when that has several ranks."""
    recompute: RecomputeMode = "none"
    """What the backward pass computes again, in the simulator's words."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """For selective recompute: parts of a layer, joined by `|`; blank for `core_attn`."""
    recompute_method: NamedRecomputeMethod | None = None
    """For full recompute: every layer in units, or the first layers of each chunk; blank for `uniform`."""
    recompute_layers: int | None = None
    """For full recompute: layers per unit or per chunk, a count; blank for 1."""
    offload: Offload = "none"
    """What is kept in host memory between uses."""
    lora_rank: int | None = None
    """Rank of the trained adapters, a count; blank when all weights are trained."""
    outcome: RunOutcome = "ok"
    """`ok`: it ran; `oom`: memory ran out; `error`: it ended for another reason."""
    error: str = ""
    """Error text of a run that did not end well, verbatim on one line."""
    tflops_per_device: float | None = None
    """Model FLOPs per second and device, attention counted in full, in TFLOP/s."""
    stated_tflops_per_device: float | None = None
    """TFLOP/s per device as the source counts them, where that is another way; never compared."""
    tokens_per_second_per_device: float | None = None
    """Tokens per second and device."""
    step_time_ms: float | None = None
    """Time of one optimizer step in milliseconds, where the source gives that unit."""
    step_time_s: float | None = None
    """Time of one optimizer step in seconds, where the source gives that unit."""
    step_samples: int | None = None
    """Steps the step time is the median of, a count; blank where the source gives one figure."""
    step_min_s: float | None = None
    """Shortest of those steps, in seconds."""
    step_max_s: float | None = None
    """Longest of those steps, in seconds."""
    step_iqr_s: float | None = None
    """Distance between the quartiles of those steps, in seconds."""
    memory_mib: float | None = None
    """Memory of the fullest device in MiB, where the source gives that unit."""
    memory_gib: float | None = None
    """Memory of the fullest device in GiB, where the source gives that unit."""
    memory_reserved_mib: float | None = None
    """Most memory the framework's allocator held from the driver, in MiB."""
    memory_reserved_gib: float | None = None
    """Most memory the framework's allocator held from the driver, in GiB."""
    memory_kind: MemoryKind | None = None
    """What `memory_*` is: `allocated` to tensors at the peak, `reserved` by the allocator, what the `device` tool
    shows, or `unstated`."""
    memory_rank: MemoryRank | None = None
    """Pipeline rank the memory is of; blank for the fullest."""
    source_notes: str = ""
    """Other notes of the source's table, verbatim."""
    layers_per_virtual_stage_from_script: int | None = None
    """Annotation: layers per model chunk that the run's script sets where the table leaves it blank, a count."""
    devices_from_figures: int | None = None
    """Annotation: devices that the row's own speed and time imply, a count, where they differ from `devices`."""
    status: RowStatus = "consistent"
    """Annotation: how far the row can be trusted."""
    evidence: str = ""
    """Annotation: one sentence with the reason for the annotations."""
    organisation: str = ""
    """Annotation: who ran it; blank for whoever the table is named after."""
    options_source: str = ""
    """Annotation: where the switches in `options` are documented; blank where they are a reading."""
    filled: tuple[str, ...] = ()
    """Annotation: columns that the source leaves blank and a reading fills, joined by `|`."""
    tuned: bool | None = None
    """Annotation: whether the source publishes the row, or the fastest of rows like it, as tuned for speed."""

    def __post_init__(self) -> None:
        """Raise InputError, naming row and column, for a row that contradicts itself."""
        problem = _problem(self)
        if problem:
            raise InputError(f"{self.key}: {problem}")

    @property
    def key(self) -> str:
        """Name of the run: table and row."""
        return f"{self.table}:{self.row}"

    @property
    def run_devices(self) -> int:
        """Devices of the run, a count: those that its figures imply if annotated, else the stated ones."""
        return self.devices_from_figures or self.devices

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step, a count."""
        return self.seq_length * self.global_batch_size

    @property
    def step_seconds(self) -> float | None:
        """Time of one optimizer step in seconds as measured; None when the source gives none."""
        return self.step_time_ms / 1000 if self.step_time_ms is not None else self.step_time_s

    @property
    def step_time_spread(self) -> StepSpread | None:
        """Spread of the steps behind the step time; None when the source gives one figure."""
        if self.step_samples is None or self.step_min_s is None or self.step_max_s is None:
            return None
        return StepSpread(
            samples=self.step_samples,
            minimum=self.step_min_s,
            maximum=self.step_max_s,
            interquartile=self.step_iqr_s or 0.0,
        )

    @property
    def memory_bytes(self) -> float | None:
        """Memory of the fullest device in bytes; None when the source gives none."""
        return _bytes(self.memory_mib, self.memory_gib)

    @property
    def reserved_bytes(self) -> float | None:
        """Most memory the allocator held, in bytes; None when the source gives none."""
        return _bytes(self.memory_reserved_mib, self.memory_reserved_gib)

    @property
    def asks(self) -> bool:
        """Whether the row is a question that can be priced."""
        return bool(self.model) and self.status not in _ASKS_NOTHING

    @property
    def compares_with(self) -> Literal["allocated", "reserved", "device"] | None:
        """Predicted figure the memory compares with; an unstated kind is read as the device's. None without memory."""
        if self.memory_bytes is None:
            return None
        if self.memory_kind is None or self.memory_kind == "unstated":
            return "device"
        return self.memory_kind

    @property
    def memory_counts(self) -> bool:
        """Whether the memory figure is a sample of its `memory_kind`."""
        return self.outcome == "ok" and self.memory_bytes is not None and self.status in _MEMORY_COUNTS

    @property
    def speed_counts(self) -> bool:
        """Whether the speed is a sample of the stated layout."""
        return self.outcome == "ok" and _has_speed(self) and self.status in _SPEED_COUNTS


WORKLOAD_COLUMNS: Final = tuple(field.name for field in WORKLOAD if field.name in MeasuredRow.__dataclass_fields__)
"""Columns that are fields of the workload."""
LAYOUT_COLUMNS: Final = tuple(field.name for field in FIELDS if field.name in MeasuredRow.__dataclass_fields__)
"""Columns that are fields of the layout."""


def _bytes(mib: float | None, gib: float | None) -> float | None:
    if mib is not None:
        return mib * MIB
    return None if gib is None else gib * GIB


_ONE_OF: Final = (
    ("step_time_ms", "step_time_s"),
    ("memory_mib", "memory_gib"),
    ("memory_reserved_mib", "memory_reserved_gib"),
    ("virtual_stages", "layers_per_virtual_stage"),
)


def _problem(row: MeasuredRow) -> str:
    """Return how the row contradicts itself, or an empty text."""
    for first, second in _ONE_OF:
        if getattr(row, first) is not None and getattr(row, second) is not None:
            return f"{first} and {second} are both given; leave one blank"
    spread = (row.step_min_s, row.step_max_s, row.step_iqr_s)
    stages, pipeline = len(row.stage_layers), row.pipeline_parallel
    chunks = len(row.chunk_layers)
    checks = (
        (
            row.memory_bytes is None and row.memory_kind is not None,
            "memory_kind must be given with memory_mib or memory_gib only",
        ),
        (stages not in (0, pipeline), f"stage_layers has {stages} stages; pipeline_parallel is {pipeline}"),
        (chunks % pipeline != 0, f"chunk_layers has {chunks} chunks; pipeline_parallel is {pipeline}"),
        (row.outcome == "ok" and row.error != "", "error must be blank when outcome is ok"),
        (
            row.outcome == "ok" and row.memory_bytes is None and not (_has_speed(row) or row.stated_tflops_per_device),
            "outcome ok needs a speed, a step time or a memory figure",
        ),
        (
            len({value is None for value in (row.step_samples, *spread)}) > 1,
            "step_samples must be given with step_min_s, step_max_s and step_iqr_s",
        ),
    )
    return next((text for wrong, text in checks if wrong), "")


def _has_speed(row: MeasuredRow) -> bool:
    figures = (row.tflops_per_device, row.tokens_per_second_per_device, row.step_seconds)
    return any(figure is not None for figure in figures)
