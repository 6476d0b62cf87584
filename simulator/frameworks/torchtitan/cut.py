"""Layers per pipeline stage (the cut) in torchtitan's keys, read and written, and torchtitan's logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.logs import StepLogForm, counts, parse_count
from simulator.frameworks.write import WordPair
from simulator.question.scenario.layout import Layout, model_chunks, pipeline_shape, rank_layers
from simulator.question.vocabulary import ScheduleName

_PARTS: Final = "parallelism.module_fqns_per_model_part"
_FIRST: Final = "parallelism.pipeline_parallel_first_stage_less_layers"
_LAST: Final = "parallelism.pipeline_parallel_last_stage_less_layers"
_PER_STAGE: Final = "parallelism.pipeline_parallel_layers_per_stage"
_POINTS: Final = "parallelism.pipeline_parallel_split_points"
RULE: Final = "torchtitan-stages"
"""Rule of stages that torchtitan cannot build."""
_LAYER: Final = re.compile(r"layers\.(\d{1,5})", re.ASCII)


def cut_of(
    arguments: Arguments, layers: int | None, pipeline: int, schedule: ScheduleName, *, interleaved: bool
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return chunks per rank, layers per rank, and layers per chunk; the latter two are empty where all are equal.

    An `interleaved` schedule has two stages per rank unless the keys state otherwise. Embedding and output layer count
    as that many layers each, one by default, and the remainder goes to the first stages (torchtitan 0.2.2,
    distributed/pipeline_parallel.py: generate_llm_fqn_per_model_part; so since 0.1.0).
    """
    chunks = 2 if interleaved else 1
    listed, points = (arguments.text("stage_layers", name) for name in (_PARTS, _POINTS))
    first, last = (_count(arguments, name, 1) for name in (_FIRST, _LAST))
    per_stage = _count(arguments, _PER_STAGE, 0)
    if pipeline == 1 or layers is None or arguments.incomplete & {"pp", "stage_layers"}:
        return (1 if pipeline == 1 else chunks), (), ()
    if listed:
        sizes = _listed(arguments, listed, layers)
    elif points:
        starts = [0, *map(int, _LAYER.findall(points)), layers]
        sizes = tuple(end - start for start, end in pairwise(starts))
    else:
        stages = -(-(layers + first + last) // per_stage) if per_stage else pipeline * chunks
        sizes = _spread(layers, stages, first, last)
    there_and_back = pipeline_shape(schedule, pipeline, 2) == "there_and_back"
    chunks = len(sizes) // pipeline
    if not sizes or len(sizes) % pipeline or (chunks != 2 if there_and_back else (chunks > 1) != interleaved):
        place = _PARTS if listed else _PER_STAGE if per_stage else "parallelism.pipeline_parallel_degree"
        several = "two" if there_and_back else "two or more" if interleaved else "one"
        made = (
            f"{layers} layers make {len(sizes)} stages on {pipeline} pipeline ranks"
            if sizes
            else (f"embedding and output layer, counted as {first} and {last} layers, are more than a stage")
        )
        arguments.remark(RULE, "error", f"{made}; the schedule takes {several} on a rank", place)
        return (2 if interleaved else 1), (), ()
    ranks = rank_layers(sizes, pipeline, schedule)
    if min(ranks) > 0 and model_chunks(ranks, chunks, (), schedule) == model_chunks(ranks, chunks, sizes, schedule):
        return chunks, ranks if len(set(ranks)) > 1 else (), ()
    return chunks, ranks, sizes


def _count(arguments: Arguments, name: str, default: int) -> int:
    number = arguments.integer("stage_layers", name, low=0, high=2**16)
    return default if number is None else number


def _spread(layers: int, stages: int, first: int, last: int) -> tuple[int, ...]:
    """Return the layers of every stage; empty where torchtitan refuses the cut."""
    share, left = divmod(layers + first + last, stages)
    if max(first, last) > share or share == 0:
        return ()
    sizes = [share + (stage < left) for stage in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return tuple(sizes)


def _listed(arguments: Arguments, text: str, layers: int) -> tuple[int, ...]:
    """Return the layers of every stage from a list of module names per stage. Raises InputError."""
    parts = re.findall(r"\[([^\[\]]*)\]", text) or [text]
    numbers = [[int(number) for number in _LAYER.findall(part)] for part in parts]
    if [number for part in numbers for number in part] != list(range(layers)):
        raise arguments.refusal(arguments.entry(_PARTS), f"must name the {layers} layers once each, in their order")
    return tuple(map(len, numbers))


def cut_words(layout: Layout) -> Iterator[WordPair]:
    """Yield the keys that cut the layers as a layout does."""
    chunks = layout.virtual_stages
    per_rank = model_chunks(layout.stage_layers, chunks, layout.chunk_layers, layout.schedule)
    sizes = [count for _, count in sorted(chunk for of_rank in per_rank for chunk in of_rank)]
    if len(set(sizes)) == 1:
        yield "pipeline_parallel_first_stage_less_layers", "0"
        yield "pipeline_parallel_last_stage_less_layers", "0"
        if chunks > 1:
            yield "pipeline_parallel_layers_per_stage", str(sizes[0])
        return
    yield "module_fqns_per_model_part", f"[{', '.join(_modules(sizes))}]"


def _modules(sizes: list[int]) -> Iterator[str]:
    start = 0
    for stage, count in enumerate(sizes):
        names = [f"layers.{layer}" for layer in range(start, start + count)]
        names = ["tok_embeddings"] * (stage == 0) + names + ["norm", "output"] * (stage == len(sizes) - 1)
        yield "[" + ", ".join(f'"{name}"' for name in names) + "]"
        start += count


def _columns(where: str, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the layout of a run from the lines on its mesh, batch and checkpointing."""
    names = {"pipeline_parallel": "pp", "context_parallel": "cp", "tensor_parallel": "tp", "expert_parallel": "ep"}
    columns = counts(where, facts, names)
    if "dp_shard" in facts:
        shard, replicas = (parse_count(where, name, facts[name]) for name in ("dp_shard", "dp_replicate"))
        columns = {"tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1} | columns
        copies = shard * replicas * columns["context_parallel"]
        columns["devices"] = copies * columns["tensor_parallel"] * columns["pipeline_parallel"]
        # Only a pipeline keeps gathered parameters from forward to backward (stage 2).
        sharded = shard * columns["context_parallel"] > 1
        columns["zero_stage"] = (3 if columns["pipeline_parallel"] == 1 else 2) if sharded else 0
    columns |= counts(where, facts, {"global_batch_size": "batch", "seq_length": "sequence"})
    if facts.get("local") and columns.get("pipeline_parallel", 1) == 1:
        columns["micro_batch_size"] = parse_count(where, "local batch size", facts["local"])
    checkpointing = facts.get("checkpointing", "").lower()
    columns["recompute"] = "full" if "full" in checkpointing else "selective" if checkpointing else None
    columns["precision"] = "fp8" if "float8" in facts else None
    return columns


STEP_LOG: Final = StepLogForm(
    name="torchtitan",
    framework="torch",
    order=10,
    begins=re.compile(r"\bstep:\s{0,8}\d+\s+loss:.{0,80}memory:|Building (?:\d-D )?device mesh with "),
    step=re.compile(
        r"\bstep:\s{0,8}(?P<at>\d{1,9})\s+loss:.{0,120}?memory:\s{0,4}(?P<reserved>[0-9.]{1,12})GiB"
        r".{0,20}?(?:tps|wps):\s{0,4}(?P<tokens>[0-9,]{1,15})"
    ),
    facts=(
        re.compile(
            r"parallelism: pp=(?P<pp>\d+), dp_replicate=(?P<dp_replicate>\d+), dp_shard=(?P<dp_shard>\d+), "
            r"cp=(?P<cp>\d+)(?:, tp=(?P<tp>\d+))?(?:, ep=(?P<ep>\d+))?"
        ),
        re.compile(
            r"local batch size (?P<local>\d+), global batch size (?P<batch>\d+), "
            r"(?:gradient accumulation steps \d+, )?sequence length (?P<sequence>\d+)"
        ),
        re.compile(r"Applied (?P<checkpointing>\w{1,20}) activation checkpointing to the model"),
        re.compile(r"(?P<float8>Float8) (?:\w+ \w+ )?training active|Swapped to (?P<float8_>Float8)Linear"),
        re.compile(r"\bModel (?P<family>\w{1,30}) \S{1,30} size: (?P<parameters>[0-9,]{1,20}) total parameters"),
    ),
    columns=_columns,
)
