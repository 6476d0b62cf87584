"""Versions of Megatron's core, recognised by the path of its code, and the cut of layers over pipeline stages."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.flags import table_of
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import model_chunks, rank_layers
from simulator.question.vocabulary import ScheduleName

_CORE: Final = re.compile(r"(?<![A-Za-z0-9])core[-_]([rv])0\.([0-9]{1,2})(?:\.([0-9]{1,2}))?(?![0-9])", re.ASCII)
"""Names of Megatron-LM's branches and tags: core_r0.8.0, core_v0.12.1."""
_TIP: Final = 99
"""PATCH of a branch, which is at least its last release."""
_SNAPSHOT: Final = re.compile(r"/(?:PAI-)?Megatron-LM-(23\.04|[0-9]{6})(?![\w.-])", re.ASCII)
_MINORS: Final = (
    *((1, "23.04 230512"), (4, "231007 231221 240126"), (6, "240322 240405"), (8, "240612"), (9, "240718")),
    *((10, "241113"), (11, "250213"), (12, "250217 250310 250314 250328"), (14, "250624"), (15, "250908")),
)
_SNAPSHOTS: Final[Mapping[str, int]] = MappingProxyType({name: n for n, names in _MINORS for name in names.split()})
"""Core 0.MINOR (megatron/core/package_info.py) in Pai-Megatron-Patch's folders of Megatron-LM, by snapshot.

Commits are those of its submodules (alibaba/Pai-Megatron-Patch a098ca5 and its history). 240718 is the fork's up to
September 2025 (jerryli1981/PAI-Megatron-LM-240718 8dfa137), for which its scripts were written.
"""
_WHOLE_BATCH_UNTIL: Final = 9
"""Last core with it: pipeline_parallel/schedules.py of core_v0.9.0, line 664; removed before 0.10
(NVIDIA/Megatron-LM 4295be1)."""
_PROBABILITIES_SINCE: Final = (12, 1)
"""First core with `permuted_probs` in transformer/moe/experts.py: core_v0.12.1, not core_v0.12.0."""
_CONNECTIONS_SINCE: Final = 12
"""First core that refuses one connection to a device, see `_remark_connections`."""


def core_of(launch: LaunchCommand) -> tuple[int, int] | None:
    """Return (MINOR, PATCH) of a launch's megatron-core, by the paths that Python searches; None if unknown."""
    paths = [launch.script.text]
    if "PYTHONPATH" in launch.environment:
        paths += launch.environment["PYTHONPATH"].text.split(":")
    for path in paths:
        if core := _CORE.search(path):
            return int(core[2]), _TIP if core[1] == "r" else int(core[3] or 0)
        if (snapshot := _SNAPSHOT.search(path)) and snapshot[1] in _SNAPSHOTS:
            return _SNAPSHOTS[snapshot[1]], 0
    return None


def _needed(arguments: Arguments) -> int:
    """Return the MINOR of the oldest core that has the flags of a launch."""
    own = table_of("megatron")
    releases = [_CORE.match(own[name].first) for name in arguments.entries if name in own]
    return max((int(core[2]) for core in releases if core), default=0)


def with_core(arguments: Arguments, run: Recipe, launch: LaunchCommand | None) -> Recipe:
    """Return the run with the behaviour of an older core; MindSpeed's releases have their own."""
    if launch is None or run.stack is not None:
        return run
    core = core_of(launch)
    _remark_connections(arguments, launch, core)
    if core is None:
        return run
    older = {"warm_up_whole_batch": "true"} if core[0] <= _WHOLE_BATCH_UNTIL else {}
    if arguments.has("num-experts") and core < _PROBABILITIES_SINCE:
        older["probabilities_in_experts"] = "false"
    return dataclasses.replace(run, options={**run.options, **older})


def _remark_connections(arguments: Arguments, launch: LaunchCommand, core: tuple[int, int] | None) -> None:
    """Remark FSDP with one connection to a device, which cores from 0.12 on refuse.

    Megatron-LM core_v0.12.0, megatron/training/arguments.py:527 and 567; cores 0.10 and 0.11 only warn.
    """
    number = launch.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    names = ("use-torch-fsdp2", "use-megatron-fsdp")
    if number is None or not number.known or number.text != "1" or not arguments.has(*names):
        return
    if (_needed(arguments) if core is None else core[0]) >= _CONNECTIONS_SINCE:
        message, fix = "CUDA_DEVICE_MAX_CONNECTIONS is 1", "unset CUDA_DEVICE_MAX_CONNECTIONS"
        arguments.remark("one-connection", "error", message, *names, fix=fix)


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
    # Return MindSpeed's `--schedules-method`; 1F1B without it or without a pipeline.
    method = arguments.text("schedule", "schedules-method")
    if method not in (None, "dualpipev"):
        arguments.not_modelled(f"--schedules-method {method}: MindSpeed has dualpipev", "schedules-method")
    schedule: ScheduleName = "dualpipev" if method == "dualpipev" and pipeline > 1 else "1f1b"
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
