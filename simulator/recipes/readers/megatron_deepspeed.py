"""DeepSpeed's engine beside Megatron's flags, as Megatron-DeepSpeed and its fork of BigScience start it.

Read at microsoft f4157be and bigscience 8387ae17: the configuration that `--deepspeed_config` names says how the state
is sharded, kept and offloaded.
"""

from __future__ import annotations

import dataclasses
from pathlib import PurePath
from typing import Final

from simulator.errors import InputError
from simulator.frameworks import registry
from simulator.frameworks.arguments import OFF
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.megatron.framework import is_megatron
from simulator.frameworks.values import known_value
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.readers.command_line import add_words
from simulator.recipes.readers.deepspeed import FLAGS, add_deepspeed
from simulator.recipes.recipe import Recipe, Remark, recipe_of
from simulator.recipes.shell.launch import TrainingCommand

_BY_EMBEDDINGS: Final = "type:transformer|embedding"


def is_engine(launch: TrainingCommand) -> bool:
    """Whether a launch has Megatron's flags and starts DeepSpeed's engine."""
    return is_megatron(launch) and any(value.text == "--deepspeed" for value in launch.arguments)


def read_engine(launch: TrainingCommand, file: str) -> Recipe:
    """The recipe of one launch."""
    given = Given(file, registry.table("megatron"), complete=True)
    add_words(given, launch.arguments)
    _prepare(given, launch.line)
    nodes, devices = cluster_of(launch, given)
    form = next(form for name, form in registry.launch_forms() if name == "megatron")
    run = registry.read_launch("megatron", form, given, launch)
    title = PurePath(launch.script.text).name
    recipe = recipe_of(run, file, title=title, dialect=form.dialect, nodes=nodes, devices_per_node=devices)
    return _with_engine(recipe, given, launch)


def _prepare(given: Given, line: int) -> None:
    """Take what the engine's stack has otherwise than Megatron-LM: its own attention, the cut that it makes itself."""
    if not given.has("use-flash-attn"):
        given.add("transformer-impl", [known_value("local", line)], line)
    method = given.text("stage_layers", "pp-partition-method")
    if method == _BY_EMBEDDINGS:
        # Token table and head are layers of the cut.
        given.add("account-for-embedding-in-pipeline-split", [], line)
        given.add("account-for-loss-in-pipeline-split", [], line)
    elif method not in (None, "type:transformer"):
        said = f"--pp-partition-method {method[:40]}: the cut of the layers is not modelled"
        given.remark("not-modelled", "error", said, "pp-partition-method")


def _with_engine(recipe: Recipe, given: Given, launch: TrainingCommand) -> Recipe:
    """The recipe with what the engine's configuration says, else `--zero-stage`."""
    aside = Given(given.file, FLAGS)
    aside.entries = {name: given.entries[name] for name in ("deepspeed_config",) if name in given.entries}
    try:
        add_deepspeed(aside, launch)
    except InputError:
        if not given.has("zero-stage"):
            raise
    stage = aside.integer("zero_stage", "zero_optimization.stage", low=0, high=3)
    told = given.integer("zero_stage", "zero-stage", low=0, high=3)
    if stage is None and told is None and "zero_stage" in aside.incomplete:
        given.need((cause for entry in aside.entries["deepspeed_config"] for cause in entry.causes), "zero_stage")
    stage = told or 0 if stage is None else stage
    device = aside.text("offload", "zero_optimization.offload_optimizer.device") or "none"
    host = given.switch("offload", "cpu-optimizer") or device.lower() not in OFF
    # Without sharding the 16-bit optimizer sums in fp32; the sharded ones sum in the type of the weights.
    kind = aside.text("gradient_dtype", "data_types.grad_accum_dtype") or ("fp32" if stage == 0 else "")
    wide = recipe.precision == "fp32" or (recipe.precision == "bf16" and kind == "fp32")
    # BF16_Optimizer, taken where no stage is asked for, keeps each replica's part of the masters and moments alone:
    # deepspeed/runtime/engine.py and bf16_optimizer.py of 0.16.5, partition_size.
    engine = aside.text("precision", "bf16.enabled", "bfloat16.enabled") or ""
    sharded = min(stage, 1) or int(recipe.precision == "bf16" and engine.lower() == "true")
    # DeepSpeed-Ulysses: each rank has a part of every sequence, and of the heads while it attends.
    split = given.integer("cp", "ds-sequence-parallel-size", high=2**16) or 1
    layout = recipe.layout
    if layout is not None:
        offload = "optimizer_tensorwise" if host else layout.offload
        layout = dataclasses.replace(
            layout, zero_stage=sharded, offload=offload, context_parallel=layout.context_parallel * split
        )
    if stage > 1:
        place = recipe.places.get("zero_stage")
        said = f"ZeRO stage {stage} beside Megatron's flags: what shards more than the optimizer is priced as stage 1"
        aside.remarks.append(Remark("upper-bound", "warning", said, place))
    # deepspeed/runtime/pipe/engine.py sends parts (`is_pipe_partitioned`); bf16_optimizer.py keeps both gradients.
    exchange = {"cp_communication": "all_to_all"} if split > 1 else {}
    options = {**recipe.options, **exchange, "gradient_dtype": "fp32" if wide else "bf16", "scattered_sends": "true"}
    if wide and recipe.precision == "bf16":
        options["gradient_copies"] = "true"
    return dataclasses.replace(recipe, layout=layout, options=options, remarks=(*recipe.remarks, *aside.remarks))
