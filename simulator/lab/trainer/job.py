"""Records that both sides of a launch or a trace read, without torch: jobs, measurements of ranks, timings."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

from pydantic import TypeAdapter

from simulator.errors import UnsupportedError
from simulator.question.scenario.layout import BY_NAME, Layout, model_chunks
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import Precision, RecomputeMode
from simulator.records import Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RESULT_NAME: Final = "rank-{rank}.json"
"""File, beside the job's, in which a rank leaves its result; written whole or not at all."""
RATES_NAME: Final = "rates.json"
"""File, beside the job's, in which the first rank writes the rates of all ranks."""
TRAINED_PRECISIONS: Final[tuple[Precision, ...]] = ("bf16", "fp32")
"""Precisions that the reference trainer computes in and a probe times."""
_RECOMPUTED: Final[tuple[RecomputeMode, ...]] = ("none", "selective", "operations", "full")
ProbedCollective = Literal["all_gather", "reduce_scatter", "all_reduce", "send"]
ProbedOperation = Literal["gemm", "attention", "add", "swiglu", "optimizer", "host_copy", ProbedCollective]
COLLECTIVES: Final[tuple[ProbedCollective, ...]] = get_args(ProbedCollective)
"""Operations that need two ranks."""
T = TypeVar("T", bound="DataclassInstance")


def to_json(value: object, *, indent: int | None = 2) -> str:
    """Return a dataclass as JSON; `from_json` reads it back."""
    return json.dumps(TypeAdapter(type(value)).dump_python(value, mode="json", by_alias=True), indent=indent)


def from_json(kind: type[T], text: str) -> T:
    """Return the value that `to_json` wrote. Raises ValueError for another text."""
    value = json.loads(text)
    known = TypeAdapter(kind).validate_python(value)
    unknown = sorted(set(value) - {field.name for field in fields(known)})
    if unknown:
        raise ValueError(f"unknown keys: {', '.join(unknown)}")
    return known


class TrainingJob(Record, kw_only=True):
    """Job of one launch. Sizes are those of the whole run; `devices` ranks take part, one device each."""

    model: ModelSpec
    """Shape of the decoder; already cut to the layers that are trained."""
    layout: Layout
    """Layout over the devices, with its cut (`stage_layers`)."""
    seq_length: int
    """Tokens per sequence."""
    global_batch_size: int
    """Sequences per optimizer step over all replicas."""
    precision: str = "bf16"
    """Compute type of the matrix products: bf16 (fp32 parameters, bf16 compute) or fp32."""
    steps: int = 8
    """Timed optimizer steps, a count."""
    warmup_steps: int = 2
    """Steps before them that are not timed, a count. One further step, not timed either, counts the live bytes."""
    backend: str = "cpu"
    """Kind of device, in torch's words: cpu (gloo), cuda (NCCL), npu (HCCL), or another one that torch knows."""
    communication: str = ""
    """ProbedCollective library in torch's words (gloo, nccl, hccl); empty for the usual one of `backend`."""
    threads: int = 1
    """Compute threads of each rank on a CPU."""
    memory_limit_bytes: int | None = None
    """On a CPU, bytes that a rank may take beyond those of Python and torch before training; None for all."""
    seed: int = 0
    """Seed of weights and data: equal jobs compute equal losses."""

    @classmethod
    def of(cls, scenario: Scenario, layout: Layout, **more: Any) -> TrainingJob:
        """Return the job that trains a scenario's model with a layout; `more` are its other fields."""
        fields = {name: getattr(scenario, name) for name in ("model", "seq_length", "global_batch_size", "precision")}
        return cls(layout=layout, **fields | more)

    @property
    def micro_batches(self) -> int:
        """Micro batches of one replica in a step."""
        return self.global_batch_size // (self.layout.micro_batch_size * self.layout.data_parallel)

    @property
    def mesh_shape(self) -> tuple[int, int, int]:
        """Ranks along the dimensions `pp`, `dp` and `tp`: neighbours share a layer, the busiest exchange."""
        return self.layout.pipeline_parallel, self.layout.data_parallel, self.layout.tensor_parallel

    def chunks(self, pipeline_rank: int) -> tuple[tuple[int, int], ...]:
        """Model chunks of a pipeline rank, each as its first layer and the number of its layers."""
        layout = self.layout
        return tuple(model_chunks(layout.stage_layers, layout.virtual_stages, layout.chunk_layers)[pipeline_rank])


class RankResult(Record, kw_only=True):
    """Measurements of one rank."""

    rank: int
    """Global rank."""
    stage: int
    """Pipeline rank it belongs to."""
    layers: int
    """Decoder layers it holds, a count."""
    base_bytes: int
    """Tensors alive between steps."""
    peak_bytes: int
    """Most bytes of tensors alive at once in a step: counted on a CPU, the allocator's own peak elsewhere."""
    peak_parts: dict[str, int]
    """Bytes at that peak by category; empty where not known. What is neither parameters, gradients, optimizer,
    activations nor gathered (whole parameters and gradients that sharding assembles) is other."""
    reserved_bytes: int | None
    """Most bytes the device's allocator held from the driver; None on a CPU."""
    device_bytes: int | None
    """Used memory by the device's own tool; None without one."""
    step_seconds: tuple[float, ...]
    """Seconds of each timed step."""
    losses: tuple[float, ...]
    """Loss of each step where the rank knows it (last stage), warm-up included; else empty."""
    forward_seconds: float | None
    """Median seconds of the rank's forward passes of one step, all micro batches; None where not measured."""
    backward_seconds: float | None
    """Median seconds of the rank's backward passes of one step; None where not measured."""
    device_name: str
    """Device in its driver's words."""
    versions: dict[str, str]
    """Versions of torch, the driver and the collective library."""


class Timing(Record, kw_only=True):
    """Operation at one size, which all ranks run at the same time, as in training."""

    operation: ProbedOperation
    sizes: Mapping[str, int]
    """Counts, by the name that the operation has for them:
    gemm `rows inner columns`, attention `batch heads kv_heads tokens head_dim`, add and swiglu `elements`,
    optimizer `parameters`, host_copy and the collectives `bytes` (of the whole, gathered tensor)."""
    precision: str = "bf16"
    """Type of the tensors: bf16 or fp32."""


class Timed(Record, kw_only=True):
    """Seconds of a timing."""

    timing: Timing
    forward_seconds: tuple[float, ...]
    """Seconds of each repeat on the slowest rank; of the whole operation where it has no backward pass."""
    backward_seconds: tuple[float, ...] = ()
    """Seconds of each repeat's backward pass, both gradients; empty where there is none."""

    @property
    def forward(self) -> float:
        """Median seconds."""
        return statistics.median(self.forward_seconds)

    @property
    def backward(self) -> float:
        """Median seconds of the backward pass; 0 where there is none."""
        return statistics.median(self.backward_seconds) if self.backward_seconds else 0.0


class RatesJob(Record, kw_only=True):
    """Job of timings for the ranks. Fields of the device are those of a training job."""

    timings: tuple[Timing, ...]
    devices: int
    repeats: int = 9
    """Repeats of each timing, a count; the first ones warm up and are not kept."""
    backend: str = "cpu"
    communication: str = ""
    threads: int = 1

    @property
    def layout(self) -> Layout:
        """Layout of one rank per device."""
        return Layout(data_parallel=self.devices)


class MeasuredRates(Record, kw_only=True):
    """Timings of all ranks, and the device they were made on."""

    device_name: str
    versions: Mapping[str, str]
    devices: int
    memory_bytes: int
    """Memory of one device as its driver lists it; on a CPU the machine's, shared evenly by the ranks."""
    usable_bytes: int
    """Memory of one device that was free before the first timing."""
    timed: tuple[Timed, ...]


class TraceRequest(Record, kw_only=True):
    """Stage to trace, and the job of the step."""

    job: TrainingJob
    """Training job with the fewest micro batches that show every moment of the step."""
    stage: int
    """Pipeline rank to trace."""
    micro_batches: int
    """Micro batches of the whole step: a pipeline has receive buffers for all of them."""


class Traced(Record, kw_only=True):
    """Bytes of tensors alive in one step of a pipeline rank whose optimizer has its states."""

    stage: int
    """Pipeline rank."""
    peak_bytes: int
    """Most bytes alive at once."""
    moment: str
    """Moment of the peak: forward, loss, backward, embedding gradient, gradient reduction or optimizer step."""
    parts_bytes: Mapping[str, int]
    """Bytes at the peak by category; they add up to it."""
    base_bytes: int
    """Bytes alive between steps."""
    micro_batches: int
    """Micro batches that the traced step ran, a count."""
    seconds: float
    """Duration of the trace."""
    resident_bytes: int
    """Peak memory of the tracing process on this machine."""
    torch_version: str
    """Version of PyTorch that ran it."""


def refused(job: TrainingJob) -> str | None:
    """Return why the job cannot run, in one line; None where it can."""
    return next(_problems(job), None)


def check_job(job: TrainingJob) -> None:
    """Raise UnsupportedError for a job that cannot run."""
    if (problem := refused(job)) is not None:
        raise UnsupportedError(problem)


def _model_problems(model: ModelSpec) -> Iterator[str]:
    if model.is_moe:
        yield f"model {model.name}: the reference trainer has no mixture-of-experts layers; allowed are dense models"
    if model.extensions:
        yield f"model {model.name}: the reference trainer has plain layers only; it sets {model.extensions[0]}"
    if model.attention == "mla":
        yield f"model {model.name}: the reference trainer has no latent attention (mla); allowed is grouped-query (gqa)"


def _problems(job: TrainingJob) -> Iterator[str]:
    yield from _model_problems(job.model)
    layout = job.layout
    for name in ("context_parallel", "expert_parallel", "schedule", "offload"):
        if getattr(layout, name) != BY_NAME[name].default:
            yield f"{name} {getattr(layout, name)}: the reference trainer has {BY_NAME[name].default} only"
    if layout.recompute not in _RECOMPUTED:
        yield f"recompute {layout.recompute}: the reference trainer has {', '.join(_RECOMPUTED)} only"
    if layout.recompute == "selective" and layout.recompute_modules != ("core_attn",):
        yield f"recompute_modules {','.join(layout.recompute_modules)}: the reference trainer has core_attn only"
    if layout.recompute == "full" and layout.recompute_method == "uniform" and layout.recompute_layers != 1:
        yield f"recompute_layers {layout.recompute_layers}: the reference trainer recomputes in units of 1 layer"
    if job.precision not in TRAINED_PRECISIONS:
        allowed = " and ".join(TRAINED_PRECISIONS)
        yield f"precision {job.precision}: the reference trainer computes in {allowed}"
    model = job.model
    if job.backend == "cuda" and job.precision == "fp32" and model.num_key_value_heads != model.num_attention_heads:
        # Kernels that share key-value heads take 16 bits, the one for fp32 does not share them.
        yield (
            f"precision fp32: cuda has no attention kernel for {model.num_attention_heads} heads on "
            f"{model.num_key_value_heads} key-value heads that keeps the scores out of memory; allowed is bf16"
        )
    yield from _indivisible(job)
    yield from _pipeline(job)


def _indivisible(job: TrainingJob) -> Iterator[str]:
    layout, model = job.layout, job.model
    tp = layout.tensor_parallel
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    widths = {name: getattr(model, name) for name in names}
    if layout.sequence_parallel:
        widths["seq_length"] = job.seq_length
    for name, width in widths.items():
        if width % tp:
            yield f"{name} {width} does not divide by tensor_parallel {tp}"
    sequences = layout.micro_batch_size * layout.data_parallel
    if job.global_batch_size % sequences:
        yield (
            f"global_batch_size {job.global_batch_size} does not divide by micro_batch_size x data_parallel {sequences}"
        )


def _pipeline(job: TrainingJob) -> Iterator[str]:
    layout = job.layout
    cut, p, v = layout.stage_layers, layout.pipeline_parallel, layout.virtual_stages
    if len(cut) != p or sum(cut) != job.model.num_hidden_layers:
        yield f"stage_layers {list(cut)}: must cut {job.model.num_hidden_layers} layers over {p} pipeline ranks"
        return
    m = job.micro_batches
    if v > 1 and p == 1:
        yield f"virtual_stages {v}: need pipeline_parallel of at least 2"
    if layout.chunk_layers and min(layout.chunk_layers) < 1:
        yield f"chunk_layers {list(layout.chunk_layers)}: every chunk needs a layer"
    if v > 1 and not layout.chunk_layers and any(layers % v for layers in cut):
        yield f"virtual_stages {v}: stage_layers {list(cut)} do not divide into equal chunks"
    if p > 1 and m < p:
        yield f"{m} micro batches per replica: a pipeline of {p} ranks needs at least as many"
    if v > 1 and m >= p and m % (m // p):
        yield f"{m} micro batches per replica: virtual stages on {p} pipeline ranks need a multiple of {m // p}"
