"""Reader of verl's finetuning by FSDP, in the words of Hugging Face's Trainer.

Read at v0.6.1 (`verl/trainer/fsdp_sft_trainer.py`, `verl/trainer/config/sft_trainer.yaml`): every sample is filled up
to the longest length, state keeps the type that weights are loaded in, and bf16 is computed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.trl.framework import purposed_run
from simulator.frameworks.values import PlainValue
from simulator.question.recipe import Recipe

_PROGRAMS: Final = ("verl.trainer.fsdp_sft_trainer", "verl/trainer/fsdp_sft_trainer.py")
_USUAL: Final = (
    *("data.train_batch_size=256", "data.micro_batch_size_per_gpu=4", "data.max_length=1024", "lora_rank=0"),
    *("gradient_checkpointing=true", "attn_implementation=flash_attention_2", "bf16=true", "fsdp=full_shard"),
)
_KEPT: Final = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"}
_STATE: Final = ("parameter_dtype", "gradient_dtype", "optimizer_dtype")


def take_words(arguments: Arguments, _: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take the keys that replace those of verl's own file: `a.b=c`, `+a.b=c`."""
    for word in words:
        name, equals, _text = word.text.partition("=")
        if equals:
            arguments.add(name.lstrip("+"), [word.after(len(name) + 1)], word.line)
        else:
            arguments.bags |= word.causes


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch."""
    arguments.add_defaults(_USUAL, launch.line)
    kept = arguments.text("parameter_dtype", "model.fsdp_config.model_dtype") or "fp32"
    if kept not in _KEPT:
        arguments.not_modelled(f"weights kept in {kept[:20]} are not priced", "model.fsdp_config.model_dtype")
    rank = arguments.entry("lora_rank")
    if rank is not None and rank.is_off:
        arguments.entries.pop(rank.name)
    run = purposed_run(arguments, "", deepspeed=False, padded=False)
    return replace(run, options={**run.options, **dict.fromkeys(_STATE, _KEPT.get(kept, "fp32"))})


FRAMEWORK: Final = Framework(
    title="verl",
    profile="torch",
    tables=("verl", "transformers", "trl"),
    launches=(LaunchForm("verl-shell", 9, lambda launch: launch.script.text.endswith(_PROGRAMS), read, take_words),),
)
