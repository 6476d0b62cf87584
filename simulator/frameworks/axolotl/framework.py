"""Reader of axolotl's files (067b021c8: `src/axolotl/{utils,loaders,core}`), in the words of the Trainer and TRL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from simulator.frameworks.accelerate.words import cluster as accelerate_cluster
from simulator.frameworks.accelerate.words import take_accelerate
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import take_files
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked
from simulator.frameworks.trl.framework import purposed_run
from simulator.frameworks.values import known_value
from simulator.question.recipe import Recipe

_DEFAULTS: Final = ("per_device_train_batch_size=1", "disable_gradient_checkpointing=true")
_LOSSES: Final = {"ipo": "dpo"}  # losses that need the same memory as another one, by that one's name
_PLUGINS: Final = ("liger", "cut_cross_entropy", "swanlab")
"""Modules of `axolotl.integrations` whose effects all have keys of their own."""
_FLASH: Final = frozenset(["flash_attention", "cut_cross_entropy"])
_PLAIN_ATTENTION: Final = ("eager", "sdpa")


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch is `axolotl train` or starts its module."""
    return (launch.program, launch.script.text) == ("axolotl", "train") or launch.script.text == "axolotl.cli.train"


def cluster(arguments: Arguments, launch: LaunchCommand) -> tuple[int | None, int | None]:
    """Return nodes and processes per node: those of `accelerate launch`, else one node with all its devices."""
    return accelerate_cluster(arguments, launch) if launch.launcher == "accelerate" else (1, None)


def _add_keys(arguments: Arguments, keys: Iterable[Key], file: str) -> None:
    for key in keys:
        text = key.values[0].text.lower() if key.values else ""
        if key.dotted == "gradient_checkpointing" and text.startswith("offload"):
            message = "gradient_checkpointing: checkpoints that move to the host are priced on the device"
            arguments.remark_key(key, message, "activations-bound", "warning")
            text = "auto"
        # `auto` depends on the hardware; every device priced here turns it on.
        values = (known_value("true", key.line),) if text == "auto" else key.values
        arguments.add(key.dotted, values, key.line, file)


def read_file(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    _add_keys(arguments, keys, arguments.file)
    return read(arguments, None)


def read(arguments: Arguments, launch: LaunchCommand | None) -> Recipe:
    """Return the run of a launch, or of a file's keys without one."""
    take_accelerate(arguments, launch)
    adapter = (arguments.text("lora_rank", "adapter") or "").lower()
    arguments.forget("lora_rank")
    if adapter not in ("", "none", "lora", "qlora"):
        arguments.not_modelled(f"adapter {adapter[:40]} is not modelled", "adapter")
    trained = "finetuning_type=lora" if adapter in ("lora", "qlora") else "finetuning_type=full"
    if trained.endswith("lora") and not any("lora_target" in name for name in arguments.entries):
        arguments.not_modelled("adapters without lora_target_modules or lora_target_linear: peft finds none, and stops")
    scales = ("use_bnb_nested_quant=false",) if adapter == "lora" else ()
    arguments.add_defaults((*_DEFAULTS, trained, *scales, f"torch_dtype={_stored(arguments)}"), 1)
    shards = _take_shards(arguments)
    plugins = arguments.entry("plugins")
    for plugin in plugins.values if plugins is not None else ():
        if not any(f".{name}." in plugin.text for name in _PLUGINS):
            arguments.not_modelled(f"plugin {plugin.text[:80]} is not modelled", "plugins")
    if plugins is not None and any(".cut_cross_entropy." in plugin.text for plugin in plugins.values):
        arguments.add_defaults(("cut_cross_entropy=true",), plugins.place.line)
    if arguments.switch("parameter_dtype", "model_quantization_config_kwargs.dequantize"):
        arguments.entries.pop("model_quantization_config", None)
    attention = (arguments.text("flash_attention", "attn_implementation") or "sdpa").lower()
    wide = attention in _PLAIN_ATTENTION and not any(arguments.switch("flash_attention", name) for name in _FLASH)
    arguments.forget("flash_attention")
    if wide and not shards and not adapter:
        arguments.not_modelled("embeddings and norms in fp32 beside weights of 16 bits are not priced")
    loss = (arguments.text("optim", "rl") or "").lower()
    if not loss and arguments.switch("optim", "reward_model"):
        loss = "reward"
    run = purposed_run(arguments, _LOSSES.get(loss, loss), deepspeed=add_deepspeed(arguments, launch))
    steps = _steps_of_older_files(arguments)
    return run if steps is None else replace(run, gradient_accumulation_steps=steps)


def _stored(arguments: Arguments) -> str:
    """Return the type that weights are loaded in (`resolve_dtype`)."""
    if arguments.any_switch("parameter_dtype", "bf16", "bfloat16"):
        return "bfloat16"
    return "float16" if arguments.any_switch("parameter_dtype", "fp16", "float16", "load_in_8bit") else "float32"


def _take_shards(arguments: Arguments) -> bool:
    """Add FSDP, which either key asks for, as the Trainer's word; whether it shards."""
    own = arguments.entries.pop("fsdp", [])
    if not own and not any(name.startswith("fsdp_config.") for name in arguments.entries):
        return False
    names = ("fsdp_config.sharding_strategy", "fsdp_config.fsdp_sharding_strategy")
    text = (arguments.text("zero_stage", *names) or " ".join(value.text for x in own for value in x.values)).lower()
    again = ("fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward")
    gathered = any(arguments.has(name) and not arguments.switch("zero_stage", name) for name in again)
    shards = "shard_grad_op" if gathered else text if "shard" in text else "full_shard"
    arguments.add_defaults((f"fsdp={shards}",), own[-1].place.line if own else 1)  # FSDP 1 (schemas/validation.py)
    return True


def _steps_of_older_files(arguments: Arguments) -> int | None:
    """Return the micro batches per step where only a replica's sequences are stated, else None."""
    if arguments.has("gradient_accumulation_steps"):
        return None
    batch = arguments.integer("gradient_accumulation_steps", "batch_size")
    size = arguments.integer("micro_batch_size", "per_device_train_batch_size")
    return max(batch // size, 1) if batch and size else None


FRAMEWORK: Final = Framework(
    title="axolotl",
    profile="torch",
    tables=("axolotl", "transformers", "trl", "deepspeed"),
    launches=(
        LaunchForm(
            "axolotl-shell", 10, is_launch, read, partial(take_files, take=_add_keys), cluster, is_named_by_program=True
        ),
    ),
    files=(FileForm("axolotl-yaml", 45, marked("base_model sequence_len|micro_batch_size|datasets"), read_file),),
)
