"""Reader of LitGPT's configuration files and command lines.

Read at 2685705, 0.5.13: `litgpt/{args,utils,model,lora,pretrain}.py`, `litgpt/finetune/{full,lora}.py`. Lightning turns
a model's outputs to fp32: logits, their logarithms and gradients are fp32, and the gradients 16 bits again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Any, Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import filled_keys, named_configuration
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.logs import note_samples, with_longest_sample
from simulator.frameworks.models import known_model
from simulator.frameworks.take import part, read_optimizer, take
from simulator.frameworks.values import PlainValue
from simulator.question.frameworks.stacks import IN_16_BITS
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout

_EAGER: Final = {
    "fused_rms_norm": "false",
    "composed_norm_bytes": "8",
    "repeat_kv": "true",
    "release_grads": "true",
    "loss_bytes_per_logit": "14",
}  # `RMSNorm` keeps its input and its normalised input in fp32; keys and values are repeated for their heads
_PROGRAMS: Final = ("finetune", "finetune_lora", "finetune_full", "pretrain")
"""Subcommands that are read; `finetune` is `finetune_lora`."""


def is_file(names: Collection[str]) -> bool:
    """Whether keys belong to LitGPT."""
    stated = {"train.global_batch_size", "train.micro_batch_size"} <= set(names)
    return stated and not {"checkpoint_dir", "model_name"}.isdisjoint(names)


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts a program of LitGPT that is read, with a configuration file."""
    return launch.program == "litgpt" and launch.script.text in _PROGRAMS and "config" in launch.flags


def take_words(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take the keys of the file that `--config` names, and the word before the flags; flags override them."""
    document = named_configuration(arguments, launch, "config")
    flags, arguments.entries = arguments.entries, {}
    arguments.add_keys(filled_keys(arguments, document.keys) if document is not None else ())
    if words:
        arguments.add("checkpoint_dir", tuple(words[:1]), words[0].line)
    arguments.entries |= flags


def machines(arguments: Arguments, launch: LaunchCommand | None = None) -> tuple[int | None, int | None]:
    """Return nodes and devices of each; None for all that there are, which pretraining takes where none are said."""
    usual = "auto" if _pretrains(arguments, launch) else "1"
    every = (arguments.text("devices", "devices") or usual) in {"auto", "-1"}
    each = None if every else arguments.integer("devices", "devices", high=2**16) or 1
    return arguments.integer("nodes", "num_nodes", high=2**20) or 1, each


def _pretrains(arguments: Arguments, launch: LaunchCommand | None) -> bool:
    return launch.script.text == "pretrain" if launch is not None else arguments.has("model_name")


def read_file(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    arguments.add_keys(keys)
    arguments.nodes, arguments.devices_per_node = machines(arguments)
    return read(arguments)


def read(arguments: Arguments, launch: LaunchCommand | None = None) -> Recipe:
    """Return the run of keys; a launch's subcommand says what is trained, else the keys do."""
    targets, program = take(arguments), launch.script.text if launch is not None else ""
    pretrains = _pretrains(arguments, launch)
    adapters = not pretrains and (program in _PROGRAMS[:2] if program else arguments.has("lora_r"))
    several = machines(arguments, launch) != (1, 1)
    if several and not adapters:
        message = "FSDP of blocks, and of what is beside them as one unit, is not modelled"
        arguments.not_modelled(message, "devices", "num_nodes")
    precision = arguments.text("precision", "precision") or "bf16-mixed"
    if adapters and not precision.endswith("-true"):
        arguments.not_modelled(f"adapters in {precision[:20]}: fp32 frozen weights are not priced", "precision")
    places = {"adapter_targets": _targets(arguments), "shared_adapters": "true"} if adapters else {}
    usual: dict[str, Any] = {"micro_batch_size": 4 if pretrains else 1}  # `setup` of each program
    usual |= {"zero_stage": 3, "recompute": "full"} if several else {"zero_stage": 0}  # FSDP2 on several devices
    optimizer = "optimizer.class_path" if arguments.has("optimizer.class_path") else "optimizer"
    folder = PurePath(arguments.text("model", "checkpoint_dir") or "").name
    name = (arguments.text("model", "model_name") or "") if pretrains else folder
    run = Recipe(
        framework="torch",
        model=known_model(arguments, name, "model_name", "checkpoint_dir"),
        seq_length=targets.get("workload.seq_length"),
        global_batch_size=targets.get("workload.global_batch_size", 512 if pretrains else 16),
        precision={"bf16": "bf16", "16": "fp16", "32": "fp32"}.get(precision.partition("-")[0]),
        lora_rank=targets.get("workload.lora_rank", 8) if adapters else None,
        options=_EAGER
        | places
        | part(targets, "option")
        | (IN_16_BITS if precision in {"bf16-true", "16-true"} else {})
        | read_optimizer(arguments, optimizer, "torch"),
        layout=Layout(**usual | part(targets, "layout")),
    )
    note_samples(arguments, "train.max_seq_length")
    data = arguments.text("longest", "data.class_path", "data") or ("TinyLlama" if pretrains else "Alpaca")
    return with_longest_sample(arguments, run, (data.rpartition(".")[2],))


def _targets(arguments: Arguments) -> str:
    """Return which layers have adapters: those that are priced, or the next more."""
    if arguments.switch("adapter_targets", "lora_mlp"):
        return "all"
    return "attention" if arguments.any_switch("adapter_targets", "lora_key", "lora_projection") else "query_value"


FRAMEWORK: Final = Framework(
    title="LitGPT",
    profile="torch",
    tables=("litgpt",),
    launches=(LaunchForm("litgpt-shell", 10, is_launch, read, take_words, machines, is_named_by_program=True),),
    files=(FileForm("litgpt-yaml", 20, is_file, read_file),),
)
