"""Layers per pipeline rank and model chunk (the cut), by Megatron's and MindSpeed's flags. Checks no rule."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from simulator.frameworks.arguments import Arguments
from simulator.question.scenario.layout import model_chunks, rank_layers
from simulator.question.vocabulary import ScheduleName

_MOST_SYMBOLS: Final = 100_000
_REPEATED: Final = re.compile(r"(?:\(([^()]*)\)|([A-Za-z|]))\*(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cut:
    """Layers per pipeline rank, and their model chunks."""

    stage_layers: tuple[int, ...] = ()
    """Layers per rank; empty where all are equal."""
    chunks: int = 1
    """Model chunks per rank."""
    layers_per_chunk: int | None = None
    """Layers per chunk, where the recipe states them and all chunks are equal."""
    chunk_layers: tuple[int, ...] = ()
    """Layers of every chunk in the order of the model, where they differ."""
    schedule: ScheduleName = "1f1b"


def idle_layers(arguments: Arguments) -> frozenset[int]:
    """Return the layers of MindSpeed's `--noop-layers`: without weights, but with a place in the pipeline."""
    return frozenset(arguments.integers("noop_layers", "noop-layers"))


def cut_of(arguments: Arguments, layers: int | None, pipeline: int, chunks: int) -> Cut:
    """Return the cut; `layers` include no-op layers, `chunks` are model chunks per rank as a flag states them."""
    per_chunk = arguments.integer("layers_per_virtual_stage", "num-layers-per-virtual-pipeline-stage", low=0) or None
    schedule = _schedule(arguments, pipeline)
    idle = idle_layers(arguments)
    if schedule == "dualpipev":
        chunks = 2
        sizes = _active_layers(idle, layers or 0, pipeline * chunks)
        return replace(_listed(sizes, pipeline, schedule) if sizes else Cut(chunks=chunks), schedule=schedule)
    if per_chunk and layers and layers % (pipeline * per_chunk) == 0:
        chunks = layers // (pipeline * per_chunk)
    text = arguments.text("stage_layers", "pipeline-model-parallel-layout")
    if text is not None:
        return _described(arguments, text, pipeline)
    listed = arguments.integers("stage_layers", "num-layer-list")
    if listed and "pp" not in arguments.incomplete:
        if len(listed) != pipeline or (layers is not None and sum(listed) != layers):
            problem = f"must list {pipeline} numbers that add up to the {layers} layers"
            raise arguments.refusal(arguments.entry("num-layer-list"), problem)
        return Cut(tuple(listed) if len(set(listed)) > 1 else (), chunks) if chunks > 1 else _listed(listed, pipeline)
    sizes = _active_layers(idle, layers or 0, pipeline * chunks)
    if idle and sizes:
        return _listed(sizes, pipeline)
    accounted = _accounted(arguments, layers, pipeline, chunks, per_chunk)
    return accounted or Cut(_ends(arguments, layers, pipeline), chunks, per_chunk)


def _schedule(arguments: Arguments, pipeline: int) -> ScheduleName:
    """Return MindSpeed's `--schedules-method`; 1F1B without it or without a pipeline."""
    method = arguments.text("schedule", "schedules-method")
    if method not in (None, "dualpipev"):
        arguments.not_modelled(f"--schedules-method {method}: MindSpeed has dualpipev", "schedules-method")
    return "dualpipev" if method == "dualpipev" and pipeline > 1 else "1f1b"


def _active_layers(idle: frozenset[int], layers: int, chunks: int) -> list[int]:
    """Return the active layers of each chunk; empty where layers, no-op ones included, do not divide evenly."""
    if not layers or layers % chunks:
        return []
    sizes = Counter(layer * chunks // layers for layer in range(layers) if layer not in idle)
    return [sizes[chunk] for chunk in range(chunks)]


def _described(arguments: Arguments, text: str, pipeline: int) -> Cut:
    """Parse `--pipeline-model-parallel-layout`: E embedding, t layer, m next-token layer, L loss, | between chunks."""
    name = "pipeline-model-parallel-layout"
    # Megatron-LM's own tests write the backslashes of a shell.
    chunks = _expanded(arguments, re.sub(r"[\\, ]", "", text.strip("\"' "))).split("|")
    if any(re.search(r"[^EtmL]", chunk) for chunk in chunks) or len(chunks) % pipeline:
        raise arguments.refusal(arguments.entry(name), f"must be E, t, m and L in a multiple of {pipeline} parts")
    if "E" not in chunks[0] or "L" not in chunks[-1] or any("m" in chunk for chunk in chunks[:-1]):
        arguments.not_modelled(f"--{name}: the cut of embedding, loss or next-token layers", name)
    return _listed([chunk.count("t") for chunk in chunks], pipeline)


def _expanded(arguments: Arguments, text: str) -> str:
    """Return the text with `x*3` and `(tt|)*3` expanded."""
    while match := _REPEATED.search(text):
        inner = match[1] if match[1] is not None else match[2]
        if len(inner) * int(match[3]) + len(text) > _MOST_SYMBOLS:
            raise arguments.refusal(arguments.entry("pipeline-model-parallel-layout"), "describes too many layers")
        text = text[: match.start()] + inner * int(match[3]) + text[match.end() :]
    return text


def _listed(sizes: list[int], pipeline: int, schedule: ScheduleName = "1f1b") -> Cut:
    """Return the cut of a list of chunks in the order of the model."""
    listed, chunks = tuple(sizes), len(sizes) // pipeline
    stages = rank_layers(listed, pipeline, schedule)
    equal = model_chunks(stages, chunks, (), schedule)
    if min(stages) > 0 and equal == model_chunks(stages, chunks, listed, schedule):
        return Cut(stages if len(set(stages)) > 1 else (), chunks)
    return Cut(stages, chunks, chunk_layers=listed)


def _accounted(
    arguments: Arguments, layers: int | None, pipeline: int, chunks: int, per_chunk: int | None
) -> Cut | None:
    """Return the cut where embedding or loss count as a layer, so that the first or last chunk holds one less."""
    names = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
    first, last = (arguments.switch("stage_layers", name) for name in names)
    if not (first or last) or layers is None or pipeline == 1 or "pp" in arguments.incomplete:
        return None
    items = layers + first + last
    if per_chunk:
        chunks = max(items // (pipeline * per_chunk), 1)
    size, left = divmod(items, pipeline * chunks)
    if left or size < 1 or (per_chunk and size != per_chunk):
        message = (
            f"{layers} layers, with {first + last} more for embedding and loss, do not divide over {pipeline} stages"
        )
        used = [name for name in names if arguments.has(name)]
        arguments.remark("no-even-share", "error", f"{message} of {chunks} chunks" if chunks > 1 else message, *used)
        return Cut((), chunks)
    sizes = [size] * (pipeline * chunks)
    sizes[0] -= first
    sizes[-1] -= last
    return _listed(sizes, pipeline)


def _ends(arguments: Arguments, layers: int | None, pipeline: int) -> tuple[int, ...]:
    """Return layers per stage where the first or the last has its own number; else empty."""
    names = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
    first, last = (arguments.integer("stage_layers", name, low=0) for name in names)
    if layers is None or (first is None and last is None):
        return ()
    inner = pipeline - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if inner <= 0 or rest < 0 or rest % inner or inner > 4096:
        message = f"{layers} layers on {pipeline} stages with {first} first and {last} last leaves no even share"
        arguments.remark("no-even-share", "error", message, *names)
        return ()
    ends = (() if first is None else (first,)), (() if last is None else (last,))
    return (*ends[0], *([rest // inner] * inner), *ends[1])
