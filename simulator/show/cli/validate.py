"""The command `validate`: the best layouts of a ranking, launched for real and compared with what was predicted."""

from __future__ import annotations

import os
from typing import Any

import click

from simulator.errors import UnsupportedError
from simulator.show.cli.options import (
    CONTEXT_SETTINGS,
    OUTPUT,
    Option,
    Sectioned,
    general_options,
    handled,
    layout_options,
    question_options,
)
from simulator.show.cli.parameters import Whole, Word

LAUNCH = "Launch"
ENGINES = ("reference", "megatron", "paddle")
LAUNCHERS = ("local", "slurm")
VALIDATE_FORMATS = ("table", "json")
FOLDER = "simulate-validate"
_LONGEST_SECONDS = 10**6


def validate_command() -> click.Command:
    """Return the command."""
    return Sectioned(
        "validate",
        callback=_validate,
        params=[
            *_asked(),
            *layout_options(many=True),
            *_launch_options(),
            *_output_options(),
            *general_options(),
        ],
        help=(
            "Launch the best layouts of a ranking for a few steps, and compare memory and speed with what was "
            "predicted. Options of the question and the layout are those of a ranking."
        ),
        short_help="Launch the best layouts and compare.",
        epilog=(
            "Exit code: 0 all launches ran, 1 one failed or contradicts its verdict, 2 bad input, 3 nothing can be "
            "launched."
        ),
        context_settings=CONTEXT_SETTINGS,
    )


def _asked() -> list[click.Parameter]:
    """The options of a question; what depends on engine and hardware has no default of its own."""
    helps = {
        "seq_length": "Tokens in a sequence; 256 on a processor, else 8192.",
        "global_batch_size": "Sequences in a step; 8 on a processor, else 1024.",
    }
    # What trains decides the profile to predict with.
    found = [param for param in question_options() if param.name != "framework"]
    for param in found:
        if isinstance(param, click.Option) and param.name in helps:
            param.default, param.show_default, param.help = None, False, helps[param.name]
    return found


def _launch_options() -> list[click.Parameter]:
    seconds = Whole(1, _LONGEST_SECONDS)
    words: list[tuple[str, dict[str, Any]]] = [
        ("--top", {"type": Whole(1, 1000), "default": 3, "help": "Layouts to launch, the best of each split."}),
        ("--engine", {"type": Word(ENGINES), "default": "reference", "help": "What trains."}),
        ("--engine-path", {"type": str, "metavar": "DIR", "help": "Folder of the engine's own code."}),
        ("--launcher", {"type": Word(LAUNCHERS), "default": "local", "help": "What starts the ranks."}),
        (
            "--backend",
            {
                "type": str,
                "metavar": "NAME",
                "help": "Kind of device in torch's words; follows from the hardware: cpu, npu (Ascend) or cuda.",
            },
        ),
        (
            "--communication",
            {
                "type": str,
                "metavar": "NAME",
                "help": "Collective library in torch's words (gloo, nccl, hccl); the usual one of the backend.",
            },
        ),
        ("--steps", {"type": Whole(1, 10_000), "default": 8, "help": "Timed steps of a launch."}),
        ("--warmup", {"type": Whole(0, 10_000), "default": 2, "help": "Steps before them."}),
        ("--repeat", {"type": Whole(1, 100), "default": 1, "help": "Launches of each layout."}),
        ("--time-limit", {"type": seconds, "default": 600, "help": "Seconds that a launch may take."}),
        ("--resume", {"is_flag": True, "default": False, "help": "Leave out what the rows hold already."}),
        ("--retry-failed", {"is_flag": True, "default": False, "help": "With --resume: but not what failed."}),
        (
            "--calibrate",
            {
                "is_flag": True,
                "default": False,
                "help": "Let all rows of the file enter a calibration beside it, say what that changes in the ranking, "
                "and rank by it from then on.",
            },
        ),
        ("--dry-run", {"is_flag": True, "default": False, "help": "Show what would be started, and start nothing."}),
        *_elsewhere(),
    ]
    return [
        Option(
            name,
            section=LAUNCH,
            show_default="default" in attributes and not attributes.get("is_flag"),
            **attributes,
        )
        for name, attributes in words
    ]


def _elsewhere() -> list[tuple[str, dict[str, Any]]]:
    """The options of launches on other machines."""
    slurm, several = "With --launcher slurm: ", "Several nodes without Slurm, started alike: "
    return [
        ("--rdzv-endpoint", {"type": str, "metavar": "HOST:PORT", "help": several + "where the first node waits."}),
        ("--node-rank", {"type": Whole(0, 2**20), "default": 0, "help": several + "which of them this is."}),
        ("--slurm-partition", {"type": str, "metavar": "NAME", "help": slurm + "the partition."}),
        ("--slurm-account", {"type": str, "metavar": "NAME", "help": slurm + "the account."}),
        (
            "--slurm-option",
            {
                "type": str,
                "metavar": "NAME[=VALUE]",
                "multiple": True,
                "help": slurm + "a further #SBATCH line; repeatable.",
            },
        ),
        (
            "--queue-limit",
            {"type": Whole(1, _LONGEST_SECONDS), "default": 3600, "help": slurm + "seconds that a job may wait."},
        ),
    ]


def _output_options() -> list[click.Parameter]:
    folder = f"Where launches leave jobs, logs and results.  [default: {FOLDER}]"
    rows = "Measured rows, added to those that are there.  [default: HARDWARE.csv in the work folder]"
    return [
        Option(
            "--format",
            section=OUTPUT,
            type=Word(VALIDATE_FORMATS),
            default="table",
            show_default=True,
            help="Form of the answer.",
        ),
        Option("--output", section=OUTPUT, type=str, metavar="ROWS.csv", help=rows),
        Option("--work-folder", section=OUTPUT, type=str, metavar="DIR", help=folder),
    ]


def _validate(**values: Any) -> None:
    """Plan, launch, compare; what that imports is there on POSIX alone."""
    if os.name != "posix":
        raise UnsupportedError("simulate validate: launches need Linux or another POSIX system")
    handled("validate", "launches")(**values)
