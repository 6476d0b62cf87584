"""Reader of llama-cookbook's `finetuning.py`, by translation into the words of Hugging Face's Trainer.

Read at 0e003351, 0.0.5: `src/llama_cookbook/{finetuning,configs,policies,utils}`. Weights have their checkpoint's 16
bits and no autocast; FSDP 1 reduces every micro batch.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.models import load_model
from simulator.frameworks.transformers.read import trainer_run
from simulator.question.recipe import Recipe

_MODULE: Final = re.compile(r"llama_(?:cookbook|recipes)[./]finetuning(?:\.py)?$")
_SCRIPT: Final = re.compile(r"(?:^|/)(?:llama_)?finetuning\.py$")
_MARKS: Final = frozenset(["enable_fsdp", "use_peft", "peft_method", "batch_size_training", "dist_checkpoint_folder"])
_BITS: Final = {"4bit": "load_in_4bit", "8bit": "load_in_8bit", "true": "load_in_8bit"}


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts the program, by its module or by its name and flags."""
    script = launch.script.text
    return _MODULE.search(script) is not None or (_SCRIPT.search(script) is not None and bool(_MARKS & launch.flags))


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch, whose flags may name the section that they are of."""
    arguments.leave_sections("train_config", "fsdp_config", "lora_config", "quantization_config")
    shards, adapters = arguments.switch("zero_stage", "enable_fsdp"), arguments.switch("lora_rank", "use_peft")
    usual = ["per_device_train_batch_size=4", "torch_dtype=bfloat16"]
    usual += ["lora_dropout=0.05", "target_modules=q_proj v_proj"] if adapters else []
    packed = (arguments.text("seq_length", "batching_strategy") or "packing") == "packing"
    if packed:
        usual.append("max_length=4096")
    else:
        arguments.entries.pop("context_length", None)  # which cuts packed samples alone
    if shards:
        strategy = (arguments.text("zero_stage", "sharding_strategy") or "full_shard").rpartition(".")[2]
        again = arguments.switch("recompute", "fsdp_activation_checkpointing", default=True)
        usual += [f"fsdp={strategy}", f"gradient_checkpointing={str(again).lower()}"]
    bits = arguments.text("quantised_base", "quantization") or "none"
    if bits.lower() in _BITS and not (shards and bits.lower() != "4bit"):
        usual.append(f"{_BITS[bits.lower()]}=true")
    elif bits.lower() not in ("none", "false"):
        arguments.not_modelled(f"quantization {bits[:20]}: the program stops, or with FSDP where it is not 4bit")
    arguments.add_defaults(usual, launch.line)
    pure = arguments.switch("autocast", "pure_bf16")
    arguments.entries.pop("pure_bf16", None)  # LLaMA-Factory's, in the Trainer's words
    run = trainer_run(arguments, deepspeed=False)
    if run.model is not None and load_model(run.model).architecture != "llama":
        arguments.not_modelled("a model that is no Llama: the program stops", "model_name")
    options = dict(run.options)
    if "quantised_base" in options:
        options["widened_rest"] = "false"
    if packed:  # masks of ones are none
        options["dense_masks"] = "windows"
    if shards:
        # FSDP's type is that of what adapters keep, as under autocast; all else has 16 bits already.
        mixed = adapters and not pure and arguments.switch("autocast", "mixed_precision", default=True)
        options |= {"sync_each_batch": "true", "backward_prefetch": "true", "autocast": str(mixed).lower()}
    if "sharding_degree" in options and arguments.switch("sharding_degree", "hsdp"):
        options["sharding_degree"] = str(arguments.integer("sharding_degree", "sharding_group_size") or 1)
    return replace(run, options=options)


FRAMEWORK: Final = Framework(
    title="llama-cookbook",
    profile="torch",
    tables=("llama_cookbook", "transformers", "trl"),
    launches=(LaunchForm("llama-cookbook-shell", 11, is_launch, read, complete=False),),
)
