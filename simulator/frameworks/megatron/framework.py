"""Registration of Megatron-LM: how its launches and logs are recognised, and its writer. `read` interprets them."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.framework import Extension, Framework, LaunchForm, RecipeWriter
from simulator.frameworks.logs import LogForm
from simulator.frameworks.megatron import log
from simulator.frameworks.megatron.core import with_core
from simulator.frameworks.megatron.read import read
from simulator.frameworks.megatron.write import megatron_script, megatron_words
from simulator.frameworks.purpose import encoder_task
from simulator.question.recipe import Recipe

_NO_DECODER: Final = re.compile(r"bert|t5|retro|vision|vlm|multimodal|mimo|biencoder|ict\b")
"""Parts of the names of Megatron's scripts that train more than a decoder."""
_MARKS: Final = ("--tensor-model-parallel-size", "--num-layers", "--micro-batch-size")
"""Flags of which every run of Megatron has at least one."""


def is_megatron(launch: LaunchCommand) -> bool:
    """Whether a launch has one of the flags that every Megatron run has."""
    flags = " ".join(value.text for value in launch.arguments)
    return launch.launcher not in ("accelerate", "other") and any(mark in flags for mark in _MARKS)


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch."""
    script = PurePath(launch.script.text)
    folder = script.parent.name
    other = no_decoder(script.name) or (no_decoder(folder) if _NO_DECODER.fullmatch(folder) else "")
    if reason := other or encoder_task(launch):
        arguments.not_modelled(reason)
    task = arguments.entry("task") if script.name == "main.py" else None
    if task is not None and task.causes:
        arguments.need(task.causes, "model")
    try:
        return read(arguments, launch.environment, own=True)
    except InputError as error:
        if reason:
            raise UnsupportedError(f"{arguments.file}:{launch.line}: {reason}") from error
        raise


def no_decoder(title: str) -> str:
    """Return the remark on a script or configuration named after a model with an encoder; else empty."""
    kind = _NO_DECODER.search(title.lower())
    return f"{title[:60]}: models with an encoder are not modelled ({kind[0]})" if kind else ""


FRAMEWORK: Final = Framework(
    title="Megatron-LM",
    profile="megatron",
    tables=("megatron",),
    extends="megatron",
    order=10,
    launches=(LaunchForm(dialect="megatron-shell", order=70, is_own=is_megatron, read=read_launch),),
    log=LogForm(is_own=log.is_megatron, runs=log.runs_of, read=log.read_dump, rate="tflops", tables=("megatron_dump",)),
    writer=RecipeWriter(
        text=megatron_script, words=megatron_words, dialects=("megatron-shell", "nemo-yaml", "nemo-shell")
    ),
    extension=Extension(extend=with_core),
)
