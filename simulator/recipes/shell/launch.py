"""A command that starts training: its launcher's options, its script and the script's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from simulator.frameworks.launch import LaunchCommand, LauncherName
from simulator.recipes.shell.values import Cause, Value
from simulator.recipes.shell.wrappers import WRAPPERS

_PROGRAMS: Final[Mapping[str, LauncherName]] = {
    "torchrun": "torch",
    "deepspeed": "deepspeed",
    "msrun": "msrun",
    "accelerate": "accelerate",
    "erniekit": "paddle",
    "paddleformers-cli": "paddle",
    "llamafactory-cli": "other",
    "colossalai": "other",
    "horovodrun": "other",
    "swift": "other",
    "megatron": "other",
    "xtuner": "other",
    "axolotl": "other",
    "composer": "other",
    "litgpt": "other",
    "trl": "other",
    "tune": "other",
}
_TRAINING: Final = {
    "swift": ("pt", "sft", "rlhf"),
    "megatron": ("pt", "sft", "rlhf"),
    "llamafactory-cli": ("train",),
    "axolotl": ("train",),
    "litgpt": ("pretrain", "finetune", "finetune_full", "finetune_lora", "finetune_adapter"),
    "trl": ("sft", "dpo", "kto", "grpo", "reward"),
    "tune": ("run",),
}
"""Subcommands that train, of programs that do other things too."""
_MODULES: Final[Mapping[str, LauncherName]] = {
    "torch.distributed.run": "torch",
    "torch.distributed.launch": "torch",
    "paddle.distributed.launch": "paddle",
    "paddle.distributed.fleet.launch": "paddle",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate",
}
_UNREAD: Final = frozenset(["axolotl", "colossalai", "composer", "litgpt", "trl", "tune", "xtuner"])
_UNREAD_MODULES: Final = re.compile(
    r"axolotl\.cli\.train|openrlhf\.cli\.train_\w+|verl\.trainer\.(main_ppo|\w*sft_trainer)\w*"
    r"|trl\.scripts\.(sft|dpo|kto|grpo|reward|rloo)"
)
"""Programs, and modules that `python -m` starts, that train by themselves: their flags are not read."""
_PYTHON: Final = re.compile(r"python[0-9.]*")
_WITHOUT_VALUE: Final = frozenset(
    [
        "standalone",
        "no_python",
        "use_env",
        "run_path",
        "module",
        "m",
        "no_ssh",
        "no_local_rank",
        "enable_each_rank_log",
        "save_pid",
    ]
)


@dataclass(frozen=True, slots=True)
class TrainingCommand(LaunchCommand):
    """A command that starts training, with what its launcher and its script say of how."""

    arguments: tuple[Value, ...]
    options: Mapping[str, Value] = field(default_factory=dict)
    """The launcher's own, by name with underscores."""
    conditions: frozenset[Cause] = field(default_factory=frozenset)
    """What decides whether the command runs at all."""
    spread: Mapping[str, Value] = field(default_factory=dict)
    """How `srun` or `mpirun` spreads it: `starter`, `nodes`, `tasks`, `tasks_per_node`."""


def find_launch(argv: Sequence[Value], environment: Mapping[str, Value], line: int) -> TrainingCommand | None:
    """The launch a command is, or None."""
    start = _program(argv)
    if start is None:
        return None
    program = PurePath(argv[start].text).name
    rest = list(argv[start + 1 :])
    launcher = _PROGRAMS.get(program)
    if launcher is None:
        found = _module(rest)
        if found is None:
            return _plain_python(program, rest, environment, line)
        launcher, rest = found
    if program in ("erniekit", "paddleformers-cli") or launcher in ("accelerate", "other"):
        if not rest or rest[0].text not in _TRAINING.get(program, (rest[0].text,)):
            return None
        return TrainingCommand(launcher, program, line, rest[0], tuple(rest[1:]), environment)
    options, script, arguments = _options(rest)
    if script is None:
        return None
    return TrainingCommand(launcher, program, line, script, tuple(arguments), environment, options=options)


def other_trainer(launch: TrainingCommand) -> str:
    """The program or module of a trainer whose flags are not read, whatever they look like; empty for all others."""
    if _UNREAD_MODULES.fullmatch(launch.script.text):
        return launch.script.text
    return launch.program if launch.program in _UNREAD else ""


def _program(argv: Sequence[Value]) -> int | None:
    """Place of the program that launches, past `nohup`, `srun -N 4`, `env A=B`."""
    wrapped = False
    for number, value in enumerate(argv[:64]):
        name = PurePath(value.text).name
        if name in _PROGRAMS or _PYTHON.fullmatch(name):
            return number
        if number == 0 and not value.known and len(argv) > 2 and argv[1].text == "-m":
            return number
        wrapped = wrapped or name in WRAPPERS
        if not wrapped:
            return None
    return None


def _module(rest: Sequence[Value]) -> tuple[LauncherName, list[Value]] | None:
    """Launcher named by `python -m`, and what follows it."""
    for number, value in enumerate(rest):
        if value.text == "-m" and number + 1 < len(rest):
            module = rest[number + 1].text
            if _UNREAD_MODULES.fullmatch(module):
                return "other", list(rest[number + 1 :])
            launcher = _MODULES.get(module)
            return (launcher, list(rest[number + 2 :])) if launcher else None
        if not value.text.startswith("-"):
            return None
    return None


def _plain_python(
    program: str, rest: Sequence[Value], environment: Mapping[str, Value], line: int
) -> TrainingCommand | None:
    """`python train.py ...` without a launcher: one device."""
    number = next((i for i, value in enumerate(rest) if not value.text.startswith("-")), None)
    if number is None or not rest[number].text.endswith(".py"):
        return None
    return TrainingCommand("python", program, line, rest[number], tuple(rest[number + 1 :]), environment)


def _options(rest: Sequence[Value]) -> tuple[dict[str, Value], Value | None, list[Value]]:
    """The launcher's options, the script, and the script's arguments."""
    options: dict[str, Value] = {}
    position = 0
    while position < len(rest):
        value = rest[position]
        text = value.text
        if not text.startswith("-") or not value.pieces[0].known:
            if not value.known and not text.endswith(".py") and position + 1 < len(rest):
                position += 1  # options in a variable that nobody gave
                continue
            return options, value, list(rest[position + 1 :])
        name, equals, _ = text.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if equals:
            options[key] = value.after(len(name) + 1)
            position += 1
        elif key in _WITHOUT_VALUE or position + 1 >= len(rest):
            options[key] = value
            position += 1
        else:
            options[key] = rest[position + 1]
            position += 2
    return options, None, []
