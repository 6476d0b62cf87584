"""Reader of LitGPT's configuration files and command lines.

Read at 2685705, 0.5.13: `litgpt/{args,utils,model,lora,pretrain}.py`, `litgpt/finetune/{full,lora}.py`. Lightning turns
a model's outputs to fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import filled_keys, named_configuration
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked
from simulator.frameworks.logs import note_samples, with_longest_sample
from simulator.frameworks.models import known_model, load_model
from simulator.frameworks.take import part, read_optimizer, take
from simulator.frameworks.values import PlainValue
from simulator.question.frameworks.stacks import IN_16_BITS
from simulator.question.recipe import A_NODE, Recipe
from simulator.question.scenario.layout import Layout

_EAGER: Final = {
    "fused_rms_norm": "false",
    "composed_norm_bytes": "8",
    "repeat_kv": "true",
    "keep_qkv_output": "true",
    "release_grads": "true",
    "loss_bytes_per_logit": "12",
}
_CAPPED: Final = {"flash_attention": "false", "attention_matrix_bytes": "6"}  # tanh, and fp32 weights of scores
_MARKS: Final = "train.global_batch_size train.micro_batch_size checkpoint_dir|model_name"
_FLAT: Final = {"plain_module": "true", "flat_parameters": "true"}  # FSDP 1; adapters have FSDP 2
_PROGRAMS: Final = ("finetune", "finetune_lora", "finetune_full", "pretrain")
"""Subcommands that are read; `finetune` is `finetune_lora`."""


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts a program of LitGPT that is read."""
    return launch.program == "litgpt" and launch.script.text in _PROGRAMS


def take_words(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take the keys of the file that `--config` names, and the word before the flags; flags override them."""
    document = named_configuration(arguments, launch, "config") if "config" in launch.flags else None
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
    precision = arguments.text("precision", "precision") or "bf16-mixed"
    if adapters and not precision.endswith("-true"):
        arguments.not_modelled(f"adapters in {precision[:20]}: fp32 frozen weights are not priced", "precision")
    places = _places(arguments) | _quantised(arguments, several=several) if adapters else {}
    usual: dict[str, Any] = {"micro_batch_size": 4 if pretrains else 1}  # `setup` of each program
    usual |= {"zero_stage": 3, "recompute": "none" if pretrains else "full"} if several else {"zero_stage": 0}
    optimizer = "optimizer.class_path" if arguments.has("optimizer.class_path") else "optimizer"
    name = PurePath(arguments.text("model", "model_name" if pretrains else "checkpoint_dir") or "").name
    model = known_model(arguments, name, "model_name", "checkpoint_dir")
    run = Recipe(
        framework="torch",
        model=model,
        model_fields={"tie_word_embeddings": False} if model else {},
        seq_length=targets.get("workload.seq_length"),
        global_batch_size=targets.get("workload.global_batch_size", 512 if pretrains else 16),
        precision={"bf16": "bf16", "16": "fp16", "32": "fp32"}.get(precision.partition("-")[0]),
        lora_rank=targets.get("workload.lora_rank", 8) if adapters else None,
        options=_EAGER
        | (_CAPPED if model and load_model(model).logit_softcap else {})
        | places
        | (_FLAT if several and not adapters else {})
        | ({"sharding_degree": A_NODE} if several and pretrains else {})  # HYBRID_SHARD
        | part(targets, "option")
        | (IN_16_BITS if precision in {"bf16-true", "16-true"} else {})
        | read_optimizer(arguments, optimizer, "torch"),
        layout=Layout(**usual | part(targets, "layout")),
    )
    note_samples(arguments, "train.max_seq_length")
    data = arguments.text("longest", "data.class_path", "data") or ("TinyLlama" if pretrains else "Alpaca")
    return with_longest_sample(arguments, run, (data.rpartition(".")[2],))


def _places(arguments: Arguments) -> dict[str, str]:
    """Return the switches of adapters, at the layers that are priced or the next more.

    Over 16-bit weights there is no autocast, and fp32 logits outlive a step.
    """
    key = arguments.switch("adapter_targets", "lora_key")
    targets = "attention" if key or arguments.switch("adapter_targets", "lora_projection") else "query_value"
    targets = "all" if arguments.switch("adapter_targets", "lora_mlp") else targets
    joint = "whole" if key else "padded"
    return {"adapter_targets": targets, "joint_adapters": joint, "loss_bytes_per_logit": "10", "autocast": "false"}


def _quantised(arguments: Arguments, *, several: bool) -> dict[str, str]:
    """Return the switches of 4-bit weights, which Lightning 2.6.6 makes of all linear ones; their AdamW is paged."""
    word = arguments.text("quantised_base", "quantize") or ""
    if word and (several or word.removesuffix("-dq") not in ("bnb.nf4", "bnb.fp4")):
        arguments.not_modelled("priced are weights of 4 bits on one device", "quantize")
    four = {"quantised_base": "true", "quantised_head": "true", "optimizer": "paged_adamw"} if word else {}
    return four | ({"quantised_scale_bytes": "1.015625" if word.endswith("-dq") else "4.0"} if word else {})


FRAMEWORK: Final = Framework(
    title="LitGPT",
    profile="torch",
    launches=(LaunchForm("litgpt-shell", 10, is_launch, read, take_words, machines, is_named_by_program=True),),
    files=(FileForm("litgpt-yaml", 20, marked(_MARKS), read_file),),
)
