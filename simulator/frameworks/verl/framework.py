"""Reader of verl's finetuning by FSDP, in the words of Hugging Face's Trainer.

Read at v0.6.1 (`verl/trainer/fsdp_sft_trainer.py`, `verl/trainer/config/sft_trainer.yaml`): every sample is filled up
to the longest length, state keeps the type that weights are loaded in, and bf16 is computed in.
"""

from __future__ import annotations

from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import taking_files
from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.trl.framework import purposed_run
from simulator.question.recipe import Recipe

_PROGRAMS: Final = ("verl.trainer.fsdp_sft_trainer", "verl/trainer/fsdp_sft_trainer.py")
_USUAL: Final = (
    *("data.train_batch_size=256", "data.micro_batch_size_per_gpu=4", "data.max_length=1024", "lora_rank=0"),
    *("gradient_checkpointing=true", "attn_implementation=flash_attention_2", "bf16=true", "fsdp=full_shard"),
    "model.fsdp_config.model_dtype=fp32",
)


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch, whose words replace keys of verl's own file."""
    arguments.add_defaults(_USUAL, launch.line)
    return purposed_run(arguments, "", deepspeed=False, padded=False)


_FORM: Final = LaunchForm(
    *("verl-shell", 9, lambda launch: launch.script.text.endswith(_PROGRAMS), read, taking_files(Arguments.add_keys))
)
FRAMEWORK: Final = Framework(title="verl", profile="torch", tables=("verl", "transformers", "trl"), launches=(_FORM,))
