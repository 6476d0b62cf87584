"""Reader of open-instruct's files and launches, in the words of Hugging Face's Trainer, which `frameworks.trl` reads.

Knows four scripts of commit e6c3044. They load 16-bit weights whatever a file says, and open-instruct's launchers start
them with accelerate and ZeRO 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from simulator.frameworks.accelerate.words import cluster
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked, started
from simulator.frameworks.trl.framework import purposed_run, take_words
from simulator.frameworks.trl.framework import read as read_trainer
from simulator.question.recipe import Recipe

_MARKS: Final = "model_name_or_path per_device_train_batch_size use_slow_tokenizer|with_tracking|dataset_mix_dir"
_STARTED: Final = ("bf16=true", "zero_optimization.stage=3", "torch_dtype=bfloat16")
"""`scripts/finetune_with_accelerate_config.sh`, `dpo_train_with_accelerate.sh`: `--mixed_precision bf16` and
`configs/ds_configs/stage3_no_offloading_accelerate.conf`."""
_PROGRAM: Final = r"(?:^|[./])open_instruct[./](?:finetune|dpo_tune(?:_cache)?|reward_modeling)(?:\.py)?"


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch."""
    adapters = ("lora_dropout=0.1",) if arguments.has("use_lora") else ()
    arguments.add_defaults(("torch_dtype=bfloat16", *adapters), launch.line)
    return read_trainer(arguments, launch)


def read(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    for key in keys:
        if key.path[0] not in ("dataset_mixer", "hf_metadata_dataset"):
            arguments.add(key.dotted, key.values, key.line, key.file)
    arguments.add_defaults(_STARTED, 1)
    message = "started as open-instruct's launchers start it: DeepSpeed ZeRO 3, bf16"
    arguments.remark_line("example-arguments", "warning", message, 1)
    pairs = arguments.has("loss_type", "beta") or "dpo" in PurePath(arguments.file).parts
    return purposed_run(arguments, "dpo" if pairs else "", deepspeed=True)


FRAMEWORK: Final = Framework(
    title="open-instruct",
    profile="torch",
    tables=("open_instruct", "transformers", "trl", "deepspeed"),
    launches=(
        LaunchForm("open-instruct-shell", 59, started(_PROGRAM), read_launch, take_words, cluster, complete=False),
    ),
    files=(FileForm("open-instruct-yaml", 30, marked(_MARKS), read, complete=False),),
)
