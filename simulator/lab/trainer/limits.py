"""Limits of the reference trainer: why a job, model or layout cannot run, before it is launched. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.errors import UnsupportedError
from simulator.lab.trainer.job import TrainingJob
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import Precision, RecomputeMode

TRAINED_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp32")
"""Precisions that the reference trainer computes in and a probe times."""
_RECOMPUTED: tuple[RecomputeMode, ...] = ("none", "selective", "operations", "full")


def refused(job: TrainingJob) -> str | None:
    """Return why the job cannot run, in one line; None where it can."""
    return next(_problems(job), None)


def check_job(job: TrainingJob) -> None:
    """Raise UnsupportedError for a job that cannot run."""
    _raise_first(_problems(job))


def micro_batches(job: TrainingJob) -> int:
    """Return the micro batches of one replica in a step, a count."""
    return job.global_batch_size // (job.layout.micro_batch_size * job.layout.data_parallel)


def check_model(model: ModelSpec) -> None:
    """Raise UnsupportedError for a model that the trainer has no layers for."""
    _raise_first(_model_problems(model))


def check_layout(layout: Layout) -> None:
    """Raise UnsupportedError for a layout that the trainer cannot run with any model."""
    _raise_first(_layout_problems(layout))


def _model_problems(model: ModelSpec) -> Iterator[str]:
    if model.is_moe:
        yield f"model {model.name}: the reference trainer has no mixture-of-experts layers; allowed are dense models"
    if model.extensions:
        yield f"model {model.name}: the reference trainer has plain layers only; it sets {model.extensions[0]}"
    if model.attention == "mla":
        yield f"model {model.name}: the reference trainer has no latent attention (mla); allowed is grouped-query (gqa)"


def _layout_problems(layout: Layout) -> Iterator[str]:
    for name in ("context_parallel", "expert_parallel"):
        if getattr(layout, name) != 1:
            yield f"{name} {getattr(layout, name)}: the reference trainer has 1 only"
    if layout.schedule != BY_NAME["schedule"].default:
        yield f"schedule {layout.schedule}: the reference trainer has 1f1b only"
    if layout.offload != "none":
        yield f"offload {layout.offload}: the reference trainer has none only"
    if layout.recompute not in _RECOMPUTED:
        yield f"recompute {layout.recompute}: the reference trainer has {', '.join(_RECOMPUTED)} only"
    if layout.recompute == "selective" and layout.recompute_modules != ("core_attn",):
        yield f"recompute_modules {','.join(layout.recompute_modules)}: the reference trainer has core_attn only"
    if layout.recompute == "full" and layout.recompute_method == "uniform" and layout.recompute_layers != 1:
        yield f"recompute_layers {layout.recompute_layers}: the reference trainer recomputes in units of 1 layer"


def _problems(job: TrainingJob) -> Iterator[str]:
    yield from _model_problems(job.model)
    yield from _layout_problems(job.layout)
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


def _raise_first(problems: Iterator[str]) -> None:
    problem = next(problems, None)
    if problem is not None:
        raise UnsupportedError(problem)


def _indivisible(job: TrainingJob) -> Iterator[str]:
    layout, model = job.layout, job.model
    tp = layout.tensor_parallel
    widths = {name: getattr(model, name) for name in ("num_attention_heads", "num_key_value_heads")}
    widths |= {name: getattr(model, name) for name in ("intermediate_size", "vocab_size")}
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
    m = micro_batches(job)
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
