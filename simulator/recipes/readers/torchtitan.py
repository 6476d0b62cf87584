"""torchtitan configuration files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.documents import Key, beside, keys_of, read_document
from simulator.frameworks.flags import Flag, flags_of, passed_of, read_of
from simulator.frameworks.megatron.special import ALLOCATOR
from simulator.frameworks.run import finished
from simulator.frameworks.torchtitan.flavors import shape_of
from simulator.frameworks.torchtitan.write import LAUNCH
from simulator.question.scenario.layout import Layout
from simulator.question.specs.documents import read_limited
from simulator.question.vocabulary import RecomputeMethod, RecomputeMode, ScheduleName
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.readers.command_line import add_words
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell.launch import TrainingCommand

SCHEDULES: Final[Mapping[str, ScheduleName]] = {
    "1f1b": "1f1b",
    "interleaved1f1b": "1f1b",
    "interleavedzerobubble": "zb_h1",
    "zbvzerobubble": "zb_v",
    "dualpipev": "dualpipev",
}
"""Names of torch.distributed.pipelining in small letters (`get_schedule_class` takes any)."""
FLAGS: Final = {
    **{name: Flag(flag.about) for name, flag in flags_of("torchtitan").items() if flag.effect == "priced"},
    "training.batch_size": Flag("as training.local_batch_size"),
    "training.mixed_precision_reduce": Flag("type of gradients; only float32"),
}
"""Those that its table has as priced, an older name, and a key that takes one value only and is not looked at."""
TABLE: Final = read_of("torchtitan") | FLAGS
"""Keys that are read, or have an effect that is not priced."""
KNOWN: Final = passed_of("torchtitan") - TABLE.keys()


def is_torchtitan(keys: Iterable[Key]) -> bool:
    """Whether a document is of torchtitan."""
    paths = {key.dotted for key in keys}
    return "model.flavor" in paths or {"training.seq_len", "model.name"} <= paths


def read_torchtitan(path: Path, keys: Iterable[Key]) -> Recipe:
    """The recipe of a configuration file."""
    given = Given(str(path), TABLE, KNOWN, complete=True)
    add_keys(given, str(path), keys)
    return _as_commented(torchtitan_recipe(given), path)


_COMMENT: Final = re.compile(rf"^# {LAUNCH}(.*)$", re.MULTILINE)


def _as_commented(recipe: Recipe, path: Path) -> Recipe:
    """The recipe with what the comment says that `simulate emit` writes: the allocator, and nodes that no key gives."""
    comment = _COMMENT.search(read_limited(path))
    if comment is None:
        return recipe
    options = dict(recipe.options)
    if any(f"{name}=expandable_segments:True" in comment[1] for name in ALLOCATOR):
        options["expandable_segments"] = "true"
    size = dict(re.findall(r"--(nnodes|nproc_per_node) ([1-9][0-9]{0,5})\b", comment[1]))
    if len(size) < 2 or "dp" in recipe.places:
        return dataclasses.replace(recipe, options=options)
    nodes, devices = int(size["nnodes"]), int(size["nproc_per_node"])
    return dataclasses.replace(recipe, options=options, nodes=nodes, devices_per_node=devices)


def read_torchtitan_launch(launch: TrainingCommand, file: str) -> Recipe:
    """The recipe of a launch, whose configuration file is read beside it; its flags count over the file's keys."""
    given = Given(file, TABLE, KNOWN, complete=True)
    add_words(given, launch.arguments)
    flags = given.entries
    given.entries = {}
    place = flags.pop("job.config_file")[-1]
    if place.causes:
        given.need(place.causes, "model")
    else:
        path = beside(file, place.text, place.value_line)
        add_keys(given, str(path), keys_of(path, read_document(path)))
    given.entries |= flags
    nodes, devices = cluster_of(launch, given)
    recipe = torchtitan_recipe(given)
    return dataclasses.replace(
        recipe,
        title=PurePath(launch.script.text).name,
        dialect="torchtitan-shell",
        nodes=nodes,
        devices_per_node=devices,
        unknowns=given.unknowns(),
    )


def add_keys(given: Given, file: str, keys: Iterable[Key]) -> None:
    """Take the keys of a configuration file, under the names of its newest version."""
    for key in keys:
        name = re.sub(r"^experimental\.(pipeline|context|tensor)", r"parallelism.\1", key.dotted)
        given.add(
            name.replace("training.tensor_parallel", "parallelism.tensor_parallel"),
            key.values,
            key.line,
            key.file or file,
        )


def torchtitan_recipe(given: Given) -> Recipe:
    """The recipe of torchtitan's keys."""
    model, shape = _model(given)
    layers = models.load_model(model).num_hidden_layers if model else _count(shape)
    layout, steps = _layout(given, layers)
    virtual = given.integer("layers_per_virtual_stage", "parallelism.pipeline_parallel_layers_per_stage")
    batch = given.integer("global_batch_size", "training.global_batch_size", low=-1, high=2**27)
    batch = batch if batch and batch > 0 else None
    optimizer = given.text("optimizer", "optimizer.name")
    if optimizer and not optimizer.lower().startswith("adam"):
        given.remark("not-modelled", "warning", f"optimizer {optimizer[:40]} is priced as AdamW", "optimizer.name")
    return finished(
        given,
        Recipe(
            file=given.file,
            framework="torch",
            dialect="torchtitan-toml",
            model=model,
            model_fields=shape,
            seq_length=given.integer("seq_length", "training.seq_len", high=2**27) or 2048,
            global_batch_size=batch,
            gradient_accumulation_steps=None if batch else steps,
            precision=_precision(given),
            options=_options(given, layout),
            layout=layout,
            virtual_stage_layers=virtual,
        ),
    )


def _count(shape: Mapping[str, object]) -> int | None:
    layers = shape.get("num_hidden_layers")
    return layers if isinstance(layers, int) else None


def _model(given: Given) -> tuple[str | None, dict[str, object]]:
    """The model of a name and a flavor: one that is shipped, or the shape of a flavor that is nobody's model."""
    name, flavor = given.text("model", "model.name"), given.text("model", "model.flavor")
    wanted = f"{name or ''}-{flavor or ''}".replace("_", "-")
    # v0.1.0 counts the entries of the tokenizer, whose path it names so.
    shape = shape_of(wanted.lower(), with_table=not given.has("model.tokenizer_path"))
    if shape:
        return None, shape
    model, guessed = models.by_name(wanted)
    if model is None or guessed:
        given.remark(
            "unknown-model",
            "warning",
            f"model '{wanted[:80]}' is not known",
            "model.flavor",
            "model.name",
            fix="--model NAME",
        )
        return None, {}
    return model, {}


def _layout(given: Given, layers: int | None) -> tuple[Layout, int]:
    def degree(option: str, name: str) -> int:
        return max(given.integer(option, f"parallelism.{name}_parallel_degree", low=-1, high=2**16) or 1, 1)

    pipeline, tensor = degree("pp", "pipeline"), degree("tp", "tensor")
    local = given.integer("micro_batch_size", "training.local_batch_size", "training.batch_size", high=2**20) or 8
    micro, steps = local, 1
    if pipeline > 1:
        micro = given.integer("micro_batch_size", "parallelism.pipeline_parallel_microbatch_size", high=2**16) or 1
        steps = max(local // micro, 1)
    replicas, shards = _data_parallel(given)
    mode, method, listed = _recompute(given, layers)
    schedule = given.text("schedule", "parallelism.pipeline_parallel_schedule") or "1F1B"
    chunks = 1 if schedule.lower() == "1f1b" else 2
    if pipeline > 1 and schedule.lower() not in SCHEDULES:
        given.not_modelled(
            f"pipeline schedule {schedule[:40]} is not modelled", "parallelism.pipeline_parallel_schedule"
        )
    virtual = given.integer("layers_per_virtual_stage", "parallelism.pipeline_parallel_layers_per_stage")
    if virtual and layers and layers % (pipeline * virtual) == 0:
        chunks = layers // (pipeline * virtual)
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        context_parallel=degree("cp", "context"),
        expert_parallel=degree("ep", "expert"),
        expert_tensor_parallel=degree("etp", "expert_tensor"),
        data_parallel=replicas * shards,
        virtual_stages=chunks if pipeline > 1 else 1,
        schedule=SCHEDULES.get(schedule.lower(), "1f1b") if pipeline > 1 else "1f1b",
        micro_batch_size=micro,
        sequence_parallel=tensor > 1,
        zero_stage=_zero_stage(given, pipeline),
        recompute=mode,
        recompute_method=method,
        recompute_layer_list=listed,
    ), steps


def _data_parallel(given: Given) -> tuple[int, int]:
    """Replicas, and ranks that share one; both 1 where the cluster decides the latter (-1)."""
    shards = given.integer("dp", "parallelism.data_parallel_shard_degree", low=-1, high=2**20)
    replicas = given.integer("dp", "parallelism.data_parallel_replicate_degree", low=-1, high=2**20) or 1
    if shards is None or shards < 1:
        given.places.pop("dp", None)
        return 1, 1
    return max(replicas, 1), shards


def _zero_stage(given: Given, pipeline: int) -> int:
    """Nothing is sharded over one rank; gathered weights stay after a forward pass where told, or beside a pipeline."""
    if given.integer("zero_stage", "parallelism.data_parallel_shard_degree", low=-1, high=2**20) == 1:
        return 0
    policy = given.text("zero_stage", "parallelism.fsdp_reshard_after_forward") or "default"
    return 2 if policy == "never" or (policy == "default" and pipeline > 1) else 3


def _recompute(given: Given, layers: int | None) -> tuple[RecomputeMode, RecomputeMethod, tuple[int, ...]]:
    mode = given.text("recompute", "activation_checkpoint.mode") or "selective"
    option = given.text("recompute", "activation_checkpoint.selective_ac_option") or "2"
    if mode == "full":
        return "full", "uniform", ()
    if mode == "none":
        return "none", "uniform", ()
    if mode == "selective" and re.fullmatch(r"[0-9]{1,4}", option, re.ASCII) and int(option) > 0 and layers:
        return "full", "list", tuple(range(int(option) - 1, layers, int(option)))
    if mode == "selective" and option == "op":
        return "operations", "uniform", ()
    said = f"activation checkpoint {mode[:20]} {option[:20]} is priced as none"
    given.remark("upper-bound", "warning", said, "activation_checkpoint.mode")
    return "none", "uniform", ()


def _compiled(given: Given) -> dict[str, str]:
    """Layers as compiled kernels, and the loss, of which the 16-bit logits and their gradient are left.

    torchtitan 0.1 compiles both with `training.compile`, later ones what `compile.components` lists.
    """
    older = given.switch("compiled", "training.compile")
    if not older and not given.switch("compiled", "compile.enable"):
        return {}
    parts = "model,loss" if older else given.text("compiled", "compile.components") or "model,loss"
    found = {"compiled": "true"} if "model" in parts else {}
    return found | ({"fused_cross_entropy": "true", "loss_bytes_per_logit": "4"} if "loss" in parts else {})


def _precision(given: Given) -> str | None:
    if "float8" in (given.text("precision", "model.converters") or ""):
        return "fp8"
    kind = given.text("precision", "training.mixed_precision_param") or "bfloat16"
    if kind == "float32":
        return "fp32"
    if kind != "bfloat16":
        given.not_modelled(f"mixed_precision_param {kind[:40]} is not modelled", "training.mixed_precision_param")
        return None
    return "bf16"


def _options(given: Given, layout: Layout) -> dict[str, str]:
    found: dict[str, str] = {}
    replicas = given.integer("sharding_replicas", "parallelism.data_parallel_replicate_degree", low=-1, high=2**20) or 1
    if replicas > 1 and layout.zero_stage:
        _, shards = _data_parallel(given)
        open_ended = {"sharding_replicas": str(replicas)}
        told = "dp" in given.places
        found |= {"sharding_degree": str(shards * layout.context_parallel)} if told else open_ended
    rotates = given.text("cp_communication", "parallelism.context_parallel_rotate_method")
    if rotates == "alltoall" and layout.context_parallel > 1:
        # Each rank sends what it holds to the next one.
        found["cp_communication"] = "ring"
    names = ("quantize.linear.float8", "float8")
    if any(given.switch("fp8_param_gather", f"{name}.enable_fsdp_float8_all_gather") for name in names):
        found["fp8_param_gather"] = "true"
    if given.text("parameter_dtype", "training.dtype") == "bfloat16":
        found |= {"parameter_dtype": "bf16", "gradient_dtype": "bf16", "optimizer_dtype": "bf16"}
    kind = given.text("foreach_optimizer", "optimizer.implementation") or "fused"
    found["foreach_optimizer"] = str(kind == "foreach").lower()
    if given.has("activation_checkpoint.early_stop"):
        stops = given.switch("recompute_stops_early", "activation_checkpoint.early_stop")
        found["recompute_stops_early"] = str(stops).lower()
    return found | _compiled(given)
