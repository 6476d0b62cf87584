"""Reader of torchtitan's launches, TOML files and logs: what its table and `flavors.yaml` leave to code."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from simulator.cost.dtypes import FP32
from simulator.cost.operations.sums import total_parameters
from simulator.errors import UndecidedError
from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import configuration_path
from simulator.frameworks.documents import Key, keys_of, read_document
from simulator.frameworks.logs import StepLogForm, counts, parse_count
from simulator.frameworks.take import part, read_optimizer, take
from simulator.frameworks.values import PlainValue
from simulator.frameworks.write import WordPair
from simulator.question.frameworks.stacks import IN_16_BITS
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout, model_chunks, pipeline_shape, rank_layers
from simulator.question.specs.documents import read_limited, read_yaml, validated
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import RecomputeMethod, RecomputeMode, ScheduleName


@functools.cache
def _flavors() -> Mapping[str, Mapping[str, Any]]:
    content: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("flavors.yaml"))
    return content


def published() -> Mapping[str, tuple[str, str]]:
    """Return family and flavor by the name of a shipped model."""
    return {name: (family, flavor) for name, (family, flavor) in _flavors()["published"].items()}


def shape_of(name: str, *, with_table: bool) -> dict[str, object]:
    """Return the `ModelSpec` fields of an unpublished flavor, its vocabulary only `with_table`; else none."""
    shape: dict[str, object] = dict(_flavors()["own"].get(name, {}))
    if "feed_forwards" in shape:
        shape["feed_forwards"] = tuple(_flavors()["own"][name]["feed_forwards"])
    if not with_table:
        shape.pop("vocab_size", None)
    return shape


SCHEDULES: Final[Mapping[str, ScheduleName]] = {
    "1f1b": "1f1b",
    "interleaved1f1b": "1f1b",
    "interleavedzerobubble": "zb_h1",
    "zbvzerobubble": "zb_v",
    "dualpipev": "dualpipev",
}
"""Schedules by their name in torch.distributed.pipelining, in lower case (`get_schedule_class` ignores case)."""
_SEQUENCE: Final = 2048
_CONFIG: Final = "job.config_file"


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch names a configuration file of torchtitan, or by `--module` and `--config` a function of it."""
    by_name = "torchtitan" in launch.script.text and {"module", "config"} <= launch.flags
    return by_name or any(re.match(r"--job[.]config[-_]file(=|$)", text) for text in launch.texts)


def take_words(arguments: Arguments, launch: LaunchCommand, _: Sequence[PlainValue]) -> None:
    """Take the configuration file that the flags name, beside the script; flags override its keys.

    Raises UndecidedError where they name a function of its registry instead, as main does since b5bcd76 at the latest.
    """
    if not arguments.has(_CONFIG):
        named = {name: arguments.entries[name][-1].text[:60] for name in ("module", "config")}
        message = f"--config {named['config']} is a function of {named['module']}/config_registry.py, which is not run"
        raise UndecidedError(f"{arguments.file}:{launch.line}: {message}; give a file of keys (v0.1.0 to v0.2.2)")
    flags, arguments.entries = arguments.entries, {}
    place = flags.pop(_CONFIG)[-1]
    written = launch.written(place.text)
    if place.causes or written is not None:
        arguments.need(place.causes or (written.causes if written is not None else ()), "model")
    else:
        path = configuration_path(launch, arguments.file, place.text, place.value_line)
        add_keys(arguments, str(path), keys_of(path, read_document(path)))
    arguments.entries |= flags


def read(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    add_keys(arguments, arguments.file, keys)
    run = torchtitan_run(arguments)
    comment = _COMMENT.search(read_limited(Path(arguments.file)))
    if comment is None:
        return run
    size = dict(re.findall(r"--(nnodes|nproc_per_node) ([1-9][0-9]{0,5})\b", comment[1]))
    if len(size) == 2 and "dp" not in arguments.places:
        arguments.nodes, arguments.devices_per_node = int(size["nnodes"]), int(size["nproc_per_node"])
    if "ALLOC_CONF=expandable_segments:True" not in comment[1]:
        return run
    return replace(run, options={**run.options, "expandable_segments": "true"})


LAUNCH: Final = "Launch: "
"""Start of the comment with the launch command, which holds the environment and the size of the cluster."""
_COMMENT: Final = re.compile(rf"^# {LAUNCH}(.*)$", re.MULTILINE)


def add_keys(arguments: Arguments, file: str, keys: Iterable[Key]) -> None:
    """Add the keys of a configuration file, under the names of torchtitan's newest version."""
    for key in keys:
        name = re.sub(r"^experimental\.(pipeline|context|tensor)", r"parallelism.\1", key.dotted)
        name = name.replace("training.tensor_parallel", "parallelism.tensor_parallel")
        arguments.add(name, key.values, key.line, key.file or file)


def torchtitan_run(arguments: Arguments, layers: int | None = None) -> Recipe:
    """Return the run of torchtitan's keys; `layers` overrides the model's number of layers."""
    targets = take(arguments)
    model, shape = _model(arguments)
    count = models.load_model(model).num_hidden_layers if model else shape.get("num_hidden_layers")
    layers = layers or (count if isinstance(count, int) else None)
    layout, steps = _layout(arguments, layers)
    batch = arguments.integer("global_batch_size", "training.global_batch_size", low=-1, high=2**27)
    batch = batch if batch and batch > 0 else None
    return Recipe(
        framework="torch",
        model=model,
        model_fields=shape,
        seq_length=targets.get("workload.seq_length", _SEQUENCE),
        global_batch_size=batch,
        gradient_accumulation_steps=None if batch else steps,
        precision=_precision(arguments),
        options=_options(arguments, layout)
        | read_optimizer(arguments, "optimizer.name", "torch", bound=True)
        | part(targets, "option"),
        layout=layout,
        unpriced_bytes=_outer_bytes(arguments, model, shape),
    )


def _outer_bytes(arguments: Arguments, model: str | None, shape: Mapping[str, object]) -> float:
    """Return the most bytes that fault tolerance keeps on a device: four unsharded fp32 numbers per parameter.

    torchft 73dafea, local_sgd.py: momentum of the outer optimizer, local parameters, the change since the last exchange
    and the buffer that averages it. Backup parameters stay on the host.
    """
    if not arguments.switch("fault_tolerance", "fault_tolerance.enable") or not (model or "vocab_size" in shape):
        return 0.0
    named: dict[str, Any] = {"name": "flavor", "architecture": "llama", "tie_word_embeddings": False, **shape}
    spec = models.load_model(model) if model else validated(arguments.file, ModelSpec, named)
    return 4.0 * FP32 * total_parameters(spec)


def _model(arguments: Arguments) -> tuple[str | None, dict[str, object]]:
    """Return the shipped model of a name and a flavor, or the shape of an unpublished flavor."""
    name, flavor = arguments.text("model", "model.name"), arguments.text("model", "model.flavor")
    full_name = f"{name or ''}-{flavor or ''}".replace("_", "-")
    # v0.1.0, which has this key, sizes the vocabulary by the tokenizer.
    shape = shape_of(full_name.lower(), with_table=not arguments.has("model.tokenizer_path"))
    if shape:
        return None, shape
    model, guessed = models.by_name(full_name)
    if model is None or guessed:
        names, message = ("model.flavor", "model.name"), f"model '{full_name[:80]}' is not known"
        arguments.remark("unknown-model", "warning", message, *names, fix="--model NAME")
        return None, {}
    return model, {}


def _layout(arguments: Arguments, layers: int | None) -> tuple[Layout, int]:
    def degree(option: str, name: str) -> int:
        return max(arguments.integer(option, name, low=-1, high=2**16) or 1, 1)

    pipeline = degree("pp", "parallelism.pipeline_parallel_degree")
    tensor = degree("tp", "parallelism.tensor_parallel_degree")
    local = arguments.integer("micro_batch_size", "training.local_batch_size", "training.batch_size", high=2**20) or 8
    micro, steps = local, 1
    if pipeline > 1:
        micro = arguments.integer("micro_batch_size", "parallelism.pipeline_parallel_microbatch_size", high=2**16) or 1
        steps = max(local // micro, 1)
    replicas, shards = _data_parallel(arguments)
    mode, method, listed = _recompute(arguments, layers)
    schedule = arguments.text("schedule", name := "parallelism.pipeline_parallel_schedule") or "1F1B"
    if pipeline > 1 and schedule.lower() not in SCHEDULES:
        arguments.not_modelled(f"pipeline schedule {schedule[:40]} is not modelled", name)
    order = SCHEDULES.get(schedule.lower(), "1f1b") if pipeline > 1 else "1f1b"
    chunks, stages, unequal = cut_of(arguments, layers, pipeline, order, interleaved=schedule.lower() != "1f1b")
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        context_parallel=degree("cp", "parallelism.context_parallel_degree"),
        expert_parallel=degree("ep", "parallelism.expert_parallel_degree"),
        expert_tensor_parallel=degree("etp", "parallelism.expert_tensor_parallel_degree"),
        data_parallel=replicas * shards,
        stage_layers=stages,
        chunk_layers=unequal,
        virtual_stages=chunks,
        schedule=order,
        micro_batch_size=micro,
        sequence_parallel=tensor > 1,
        zero_stage=_zero_stage(arguments, pipeline),
        recompute=mode,
        recompute_method=method,
        recompute_layer_list=listed,
    ), steps


def _data_parallel(arguments: Arguments) -> tuple[int, int]:
    """Return replicas and ranks per replica; both 1 where the latter depend on the cluster (-1)."""
    shards = arguments.integer("dp", "parallelism.data_parallel_shard_degree", low=-1, high=2**20)
    replicas = arguments.integer("dp", "parallelism.data_parallel_replicate_degree", low=-1, high=2**20) or 1
    if shards is None or shards < 1:
        arguments.places.pop("dp", None)
        return 1, 1
    return max(replicas, 1), shards


def _zero_stage(arguments: Arguments, pipeline: int) -> int:
    """Return the ZeRO stage: 0 over one rank, 2 where gathered weights stay after the forward pass, else 3."""
    if arguments.integer("zero_stage", "parallelism.data_parallel_shard_degree", low=-1, high=2**20) == 1:
        return 0
    policy = arguments.text("zero_stage", "parallelism.fsdp_reshard_after_forward") or "default"
    return 2 if policy == "never" or (policy == "default" and pipeline > 1) else 3


def _recompute(arguments: Arguments, layers: int | None) -> tuple[RecomputeMode, RecomputeMethod, tuple[int, ...]]:
    mode = arguments.text("recompute", "activation_checkpoint.mode") or "selective"
    option = arguments.text("recompute", "activation_checkpoint.selective_ac_option") or "2"
    if mode == "full":
        return "full", "uniform", ()
    if mode == "none":
        return "none", "uniform", ()
    if mode == "selective" and re.fullmatch(r"[0-9]{1,4}", option, re.ASCII) and int(option) > 0 and layers:
        return "full", "list", tuple(range(int(option) - 1, layers, int(option)))
    if mode == "selective" and option == "op":
        return "operations", "uniform", ()
    message = f"activation checkpoint {mode[:20]} {option[:20]} is priced as none"
    arguments.remark("upper-bound", "warning", message, "activation_checkpoint.mode")
    return "none", "uniform", ()


def _compiled(arguments: Arguments) -> dict[str, str]:
    """Return the switches of compiled layers, and of a compiled loss, which keeps 16-bit logits and their gradient.

    torchtitan 0.1 compiles both with `training.compile`, later versions the parts that `compile.components` lists.
    """
    older = arguments.switch("compiled", "training.compile")
    if not older and not arguments.switch("compiled", "compile.enable"):
        return {}
    parts = "model,loss" if older else arguments.text("compiled", "compile.components") or "model,loss"
    options = {"compiled": "true"} if "model" in parts else {}
    return options | ({"fused_cross_entropy": "true", "loss_bytes_per_logit": "4"} if "loss" in parts else {})


def _precision(arguments: Arguments) -> str | None:
    converters = arguments.text("precision", "model.converters") or ""
    if re.search(r"\bmx\b", converters):
        arguments.not_modelled("converters: products in MX formats are not priced", "model.converters")
    if "float8" in converters:
        return "fp8"
    kind = arguments.text("precision", "training.mixed_precision_param") or "bfloat16"
    if kind == "float32":
        return "fp32"
    if kind != "bfloat16":
        arguments.not_modelled(f"mixed_precision_param {kind[:40]} is not modelled", "training.mixed_precision_param")
        return None
    return "bf16"


def _options(arguments: Arguments, layout: Layout) -> dict[str, str]:
    options: dict[str, str] = {}
    name = "parallelism.data_parallel_replicate_degree"
    replicas = arguments.integer("sharding_replicas", name, low=-1, high=2**20) or 1
    if replicas > 1 and layout.zero_stage:
        _, shards = _data_parallel(arguments)
        open_ended = {"sharding_replicas": str(replicas)}
        stated = "dp" in arguments.places
        options |= {"sharding_degree": str(shards * layout.context_parallel)} if stated else open_ended
    rotates = arguments.text("cp_communication", "parallelism.context_parallel_rotate_method")
    if rotates == "alltoall" and layout.context_parallel > 1:
        # Each rank passes its keys and values to the next.
        options["cp_communication"] = "ring"
    if arguments.text("parameter_dtype", "training.dtype") == "bfloat16":
        options |= IN_16_BITS
    return options | _compiled(arguments)


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
