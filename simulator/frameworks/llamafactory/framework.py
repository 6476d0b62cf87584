"""Reader of LLaMA-Factory's files (ff6d4d1, `src/llamafactory/hparams`) in the Trainer's words; no mcore_adapter."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Final

from simulator.frameworks.accelerate.words import cluster as accelerated
from simulator.frameworks.accelerate.words import take_accelerate
from simulator.frameworks.arguments import Arguments, LaunchCommand, counted_by
from simulator.frameworks.configuration import SUFFIXES, take_files
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.logs import note_samples
from simulator.frameworks.models import note_fewer_bits, of_parts
from simulator.frameworks.purpose import require_training_switches
from simulator.frameworks.transformers.read import note_unsharded, trainer_run
from simulator.question.recipe import Recipe

_OWN: Final = frozenset(["finetuning_type", "cutoff_len", "dataset_dir", "lora_target"])
_SECOND: Final = frozenset(["dist_config", "peft_config", "kernel_config", "model_class", "train_dataset"])
_DEFAULTS: Final = ("finetuning_type=lora", "cutoff_len=2048")
_OF_SECOND: Final = ("cutoff_len=2048", "per_device_train_batch_size=1", "bf16=true")
_OTHER_LOSS: Final = re.compile(r"(?<![a-z])(?:dpo|rm|reward)(?![a-z])")  # in a file's name
_PROGRAMS: Final = re.compile(r"(?:.*/)?src/(?:train|train_bash|llamafactory/launcher)\.py")


def is_file(names: Collection[str]) -> bool:
    """Whether keys belong to LLaMA-Factory, in its first format or in its second."""
    second = "model" in names and len(_SECOND.intersection(names)) >= 2
    return second or ("model_name_or_path" in names and not _OWN.isdisjoint(names))


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch is `llamafactory-cli train`, or `sft` for the second format."""
    return launch.program == "llamafactory-cli" and launch.script.text in ("train", "sft")


def starts_program(launch: LaunchCommand) -> bool:
    """Whether a launch starts the program itself, by a file or with flags of its own."""
    by_file = any(value.text.endswith(SUFFIXES) for value in launch.arguments[:1])
    return _PROGRAMS.fullmatch(launch.script.text) is not None and (by_file or not _OWN.isdisjoint(launch.flags))


def read_file(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    _add_keys(arguments, keys, arguments.file)
    return read(arguments, None)


def _add_keys(arguments: Arguments, keys: Sequence[Key], file: str) -> None:
    for key in keys:
        # A DeepSpeed configuration may stand in the file itself.
        name = ".".join(key.path[1:]) if key.path[0] == "deepspeed" and len(key.path) > 1 else key.dotted
        if key.values and key.values[0].text.lower() not in ("none", "null"):
            arguments.add(name, key.values, key.line, file)


def read(arguments: Arguments, launch: LaunchCommand | None) -> Recipe:
    """Return the run of a launch, or of a file's keys without one."""
    if arguments.has("model"):
        return _read_second(arguments, launch)
    take_accelerate(arguments, launch)
    require_training_switches(arguments)
    arguments.add_defaults(_DEFAULTS, 1)
    if (workers := arguments.integer("devices", "ray_num_workers") or 0) > 1:  # each has a device under Ray
        arguments.devices = workers
    deepspeed = add_deepspeed(arguments, launch)
    if launch is None and not deepspeed:
        note_unsharded(arguments)
    if not arguments.any_switch("packing", "packing", "neat_packing"):
        note_samples(arguments, "cutoff_len")
    frozen = arguments.switch("encoder", "freeze_vision_tower", default=True)
    projector = not arguments.switch("projector", "freeze_multi_modal_projector", default=True)
    run = trainer_run(arguments, deepspeed=deepspeed)
    run = of_parts(arguments, run, None if frozen else run.lora_rank or 0, projector=projector)
    note_fewer_bits(arguments, run)
    if not arguments.switch("precision", "fp8"):
        return run
    if arguments.text("fp8_recipe", "fp8_backend") == "te":
        arguments.not_modelled("fp8_backend te: TransformerEngine's fp8 below a trainer is not priced", "fp8_backend")
    arguments.forget("fp8_recipe")
    # ff6d4d1, src/llamafactory/train/fp8_utils.py: torchao; that weights shall travel in 8 bits is only logged.
    return replace(run, precision="fp8")


def _read_second(arguments: Arguments, launch: LaunchCommand | None) -> Recipe:
    """Return the run of the second format's own loop (ff6d4d1, `src/llamafactory/v1/core/base_trainer.py`).

    What is trained is fp32 (`core/model_engine.py`) in units of FSDP 2 that compute in bf16 and reduce in fp32, without
    autocast. At the loss stand 16-bit logits, two fp32 copies (of one sequence, the shifted is the whole one's) and
    logarithms of probabilities, or three fp32 tensors in the backward pass.
    """
    if launch is None and _OTHER_LOSS.search(PurePath(arguments.file).name.lower()):
        arguments.not_modelled("the command says which loss a file of this format trains with; sft is read")
    tuned, engine = arguments.text("lora_rank", "peft_config.name"), arguments.text("zero_stage", "dist_config.name")
    if engine not in ("fsdp2", "deepspeed"):
        arguments.not_modelled(f"dist_config {engine}: only fsdp2 and deepspeed are priced", "dist_config.name")
    shards = ("fsdp=full_shard", "fsdp_config.version=2") if engine == "fsdp2" else ()
    method = f"finetuning_type={tuned or 'full'}", f"lora_dropout={0.05 if tuned else 0}"
    arguments.add_defaults((*_OF_SECOND, *method, *shards), 1)
    note_samples(arguments, "cutoff_len")
    run = trainer_run(arguments, deepspeed=add_deepspeed(arguments, launch))
    run = of_parts(arguments, run, run.lora_rank or 0, projector=True)
    own = {} if engine == "deepspeed" else {"autocast": "false", "plain_module": "false"}
    alone = run.layout is not None and run.layout.micro_batch_size == 1
    own |= {"loss_bytes_per_logit": "12" if alone else "14", "adapter_copies": "false"}
    return replace(run, options={**run.options, **own})


_form = partial(LaunchForm, "llamafactory-shell", read=read, take_words=partial(take_files, take=_add_keys))
FRAMEWORK: Final = Framework(
    title="LLaMA-Factory",
    profile="torch",
    tables=("llamafactory", "transformers", "deepspeed"),
    launches=(
        _form(10, is_launch, cluster=partial(counted_by, processes=None), is_named_by_program=True),
        _form(10, lambda launch: launch.launcher == "accelerate" and starts_program(launch), cluster=accelerated),
        _form(11, starts_program),
    ),
    files=(FileForm("llamafactory-yaml", 50, is_file, read_file),),
)
