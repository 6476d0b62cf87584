"""Registration of scripts on Hugging Face's Trainer or TRL: their launches and files. `read` interprets them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePath
from typing import Final

from simulator.frameworks.accelerate.words import cluster
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.configuration import SUFFIXES
from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.launch import LaunchCommand
from simulator.frameworks.trl.log import STEP_LOG
from simulator.frameworks.trl.read import OWN_MODULES, as_accelerate, read, read_file, take_words

_MARKS: Final = frozenset(["model_name_or_path", "per_device_train_batch_size"])
_SCRIPT: Final = re.compile(r"(?<![a-z])(?:sft|dpo|kto|orpo|reward_model|reward_modeling|reward)(?![a-z]).*\.py$")
"""Names of TRL's scripts and of scripts modelled on them, which take a file in place of flags."""
_ENGINE: Final = frozenset(["deepspeed", "deepspeed_config", "zero_stage"])


def _is_command(launch: LaunchCommand) -> bool:
    """Whether a launch is the command `trl`, or starts one of TRL's scripts as a module."""
    return launch.program == "trl" or launch.script.text.startswith(OWN_MODULES)


def _command_cluster(arguments: Arguments, launch: LaunchCommand) -> tuple[int | None, int | None]:
    return (1, 1) if launch.launcher == "python" else cluster(arguments, as_accelerate(launch))


def _is_trainer(launch: LaunchCommand) -> bool:
    marked = launch.flags >= _MARKS or "train_args_file" in launch.flags
    return launch.launcher != "other" and (marked or _takes_file(launch))


def _takes_file(launch: LaunchCommand) -> bool:
    """Whether a script of TRL's kind is configured by a file."""
    script = PurePath(launch.script.text).name
    return _SCRIPT.search(script) is not None and any(value.text.endswith(SUFFIXES) for value in launch.arguments)


def _is_with_engine(launch: LaunchCommand) -> bool:
    return _is_trainer(launch) and not _ENGINE.isdisjoint(launch.flags)


def _is_accelerate(launch: LaunchCommand) -> bool:
    return launch.launcher == "accelerate" and _is_trainer(launch)


def _is_file(names: Collection[str]) -> bool:
    return set(names) >= _MARKS


_TABLES: Final = ("transformers", "trl", "deepspeed")
FRAMEWORK: Final = Framework(
    title="Hugging Face Trainer",
    profile="torch",
    tables=_TABLES,
    launches=(
        LaunchForm(
            dialect="trl-shell",
            order=10,
            is_own=_is_command,
            read=read,
            take_words=take_words,
            cluster=_command_cluster,
            is_named_by_program=True,
        ),
        LaunchForm(
            dialect="accelerate-shell",
            order=60,
            is_own=_is_accelerate,
            read=read,
            complete=False,
            take_words=take_words,
            cluster=cluster,
        ),
        LaunchForm(
            dialect="deepspeed-shell",
            order=80,
            is_own=_is_with_engine,
            read=read,
            complete=False,
            take_words=take_words,
        ),
        LaunchForm(
            dialect="trainer-shell", order=81, is_own=_is_trainer, read=read, complete=False, take_words=take_words
        ),
    ),
    step_log=STEP_LOG,
    files=(FileForm(dialect="trl-yaml", order=60, is_own=_is_file, read=read_file, complete=False),),
)
