"""Hugging Face's Trainer as a framework: scripts that train with it, with DeepSpeed or without."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.launch import LaunchCommand
from simulator.frameworks.names import plain
from simulator.frameworks.transformers.read import read

_MARKS: Final = frozenset(["model_name_or_path", "per_device_train_batch_size"])
_ENGINE: Final = frozenset(["deepspeed", "deepspeed_config", "zero_stage"])


def is_trainer(names: Iterable[str]) -> bool:
    """Whether flags are of Hugging Face's Trainer."""
    return {plain(name) for name in names} >= _MARKS


def _flags(launch: LaunchCommand) -> frozenset[str]:
    texts = (value.text.partition("=")[0] for value in launch.arguments if value.text.startswith("--"))
    return frozenset(map(plain, texts))


def _is_own(launch: LaunchCommand) -> bool:
    return launch.launcher not in ("accelerate", "other") and _flags(launch) >= _MARKS


def _is_with_engine(launch: LaunchCommand) -> bool:
    return _is_own(launch) and not _ENGINE.isdisjoint(_flags(launch))


FRAMEWORK: Final = Framework(
    title="Hugging Face Trainer",
    profile="torch",
    tables=("transformers", "deepspeed"),
    launches=(
        LaunchForm(dialect="deepspeed-shell", order=80, is_own=_is_with_engine, read=read, complete=False),
        LaunchForm(dialect="trainer-shell", order=81, is_own=_is_own, read=read, complete=False),
    ),
)
