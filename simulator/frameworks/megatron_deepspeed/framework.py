"""Reader of DeepSpeed's engine beside Megatron's flags: microsoft's Megatron-DeepSpeed f4157be, bigscience 8387ae17."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from simulator.frameworks.arguments import OFF, Arguments, LaunchCommand
from simulator.frameworks.configuration import SUFFIXES
from simulator.frameworks.deepspeed.configuration import UNDER_MEGATRON, add_deepspeed
from simulator.frameworks.flags import table_of
from simulator.frameworks.framework import Extension, Framework
from simulator.frameworks.values import Cause, known_value
from simulator.question.origin import Remark
from simulator.question.recipe import Recipe

_BATCHES: Final = {"train_micro_batch_size_per_gpu": "micro-batch-size", "train_batch_size": "global-batch-size"}
"""Keys of the engine, which counts micro batches by them, and the flags by which Megatron loads its samples.

Neither is compared with the other: megatron/training.py of 00caa0e, `_create_ds_config_dict`.
"""
_BY_EMBEDDINGS: Final = "type:transformer|embedding"
_STAGE: Final = re.compile(r"([0-3])(?:\.0*)?")


def prepare(arguments: Arguments) -> None:
    """Add the flags for the engine's differences from Megatron-LM: its own attention and its own cut."""
    engine = arguments.entry("deepspeed")
    if engine is None:
        return
    line = engine.place.line
    experts = arguments.entry("num-experts")
    if experts is None or experts.text == "1":
        # `--num-experts 1` is a dense model, without expert parallelism.
        arguments.entries.pop("moe_expert_parallel_size", None)
    if not arguments.has("use-flash-attn"):
        arguments.add("transformer-impl", [known_value("local", line)], line)
    method = arguments.text("stage_layers", "pp-partition-method")
    if method == _BY_EMBEDDINGS:
        # Embedding and head count as layers of the cut.
        arguments.add("account-for-embedding-in-pipeline-split", [], line)
        arguments.add("account-for-loss-in-pipeline-split", [], line)
    elif method not in (None, "type:transformer"):
        message = f"--pp-partition-method {method[:40]}: the cut of the layers is not modelled"
        arguments.not_modelled(message, "pp-partition-method")


def extended(arguments: Arguments, run: Recipe, launch: LaunchCommand | None) -> Recipe:
    """Return the run as the engine's configuration or `--zero-stage` sets it; runs without the engine unchanged."""
    if not arguments.has("deepspeed"):
        return run
    keys = _configuration(arguments, launch)
    stage = keys.integer("zero_stage", "zero_optimization.stage", low=0, high=3)
    stated = _stated_stage(arguments)
    entry = arguments.entry("deepspeed-config")
    written = launch.written(entry.text) if launch is not None and entry is not None else None
    bare = written is not None and not written.text.lstrip().startswith("{")
    causes = written.causes if written is not None else ()
    files = [cause for cause in causes if bare or cause.name.endswith(SUFFIXES)]
    files += entry.causes if entry is not None and written is None else ()
    # A generated file, one from an absent template or of an unknown name may state more than the stage: compression.
    arguments.note(files, ("zero_stage",))
    if stage is None and stated is None:
        waiting = (unknown for unknown in keys.unknowns() if "zero_stage" in unknown.affects)
        arguments.note([Cause(unknown.place.line, unknown.name) for unknown in waiting], ("zero_stage",))
    if files or (stage is None and stated is None and "zero_stage" in keys.incomplete):
        arguments.incomplete.add("zero_stage")
    stage = stated or 0 if stage is None else stage
    # Without sharding the 16-bit optimizer sums gradients in fp32, else in the type of the weights.
    kind = keys.text("gradient_dtype", "data_types.grad_accum_dtype") or ("fp32" if stage == 0 else "")
    wide = run.precision == "fp32" or (run.precision == "bf16" and kind == "fp32")
    # DeepSpeed-Ulysses: each rank has a part of every sequence, and in attention of the heads.
    split = arguments.integer("cp", "ds-sequence-parallel-size", high=2**16) or 1
    layout = run.layout
    if layout is not None:
        # BF16_Optimizer, the default without a stage, shards masters and moments over the replicas:
        # deepspeed/runtime/engine.py and bf16_optimizer.py of 0.16.5, partition_size.
        engine = keys.text("precision", "bf16.enabled", "bfloat16.enabled") or ""
        sharded = min(stage, 1) or int(run.precision == "bf16" and engine.lower() == "true")
        device = keys.text("offload", "zero_optimization.offload_optimizer.device") or "none"
        offload = "optimizer_tensorwise" if device.lower() not in OFF else layout.offload
        context = layout.context_parallel * split
        layout = dataclasses.replace(layout, zero_stage=sharded, offload=offload, context_parallel=context)
    for name, flag in _BATCHES.items():
        theirs, own = keys.entry(name), arguments.entry(flag)
        both = [entry.text for entry in (theirs, own) if entry is not None and not entry.causes]
        if len(set(both)) > 1 and all(map(str.isdecimal, both)):
            message = f"{name} {both[0]} of DeepSpeed's configuration beside --{flag} {both[1]} is not modelled"
            arguments.not_modelled(message, flag, fix=f"the same {name} and --{flag}")
    arguments.remarks += keys.remarks
    if stage > 1:
        message = (
            f"ZeRO stage {stage} beside Megatron's flags: what shards more than the optimizer is priced as stage 1"
        )
        arguments.remarks.append(Remark("device-bound", "warning", message, arguments.places.get("zero_stage")))
    # deepspeed/runtime/pipe/engine.py sends parts (`is_pipe_partitioned`); bf16_optimizer.py keeps both gradients.
    exchange = {"cp_communication": "all_to_all"} if split > 1 else {}
    options = {**run.options, **exchange, "gradient_dtype": "fp32" if wide else "bf16", "scattered_sends": "true"}
    if wide and run.precision == "bf16":
        options["gradient_copies"] = "true"
    elif stage:
        options |= UNDER_MEGATRON
    return dataclasses.replace(run, layout=layout, options=options)


def _configuration(arguments: Arguments, launch: LaunchCommand | None) -> Arguments:
    """Return the keys of the engine's configuration. Raises AbsentFileError if missing: it may compress."""
    keys = Arguments(arguments.file, table_of("deepspeed"))
    if launch is None:
        return keys
    named = ("deepspeed_config",)
    keys.entries = {name: arguments.entries[name] for name in named if name in arguments.entries}
    add_deepspeed(keys, launch)
    return keys


def _stated_stage(arguments: Arguments) -> int | None:
    """Return the stage of `--zero-stage`; None without it. Raises InputError for other text."""
    text = arguments.text("zero_stage", "zero-stage")
    match = _STAGE.fullmatch(text or "")
    if text is not None and match is None:
        raise arguments.refusal(arguments.entry("zero-stage"), f"'{text[:40]}' given; must be from 0 to 3")
    return int(match[1]) if match else None


FRAMEWORK: Final = Framework(
    title="Megatron-DeepSpeed",
    profile="megatron",
    extends="megatron",
    order=50,
    extension=Extension(prepare=prepare, extend=extended),
)
