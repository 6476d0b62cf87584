"""The command `validate`: the best layouts of a ranking, launched for real and compared with their predictions.

Defines options alone; `launches` acts on them.
"""

from __future__ import annotations

import os
from typing import Any

import click

from simulator.errors import UnsupportedError
from simulator.show.cli.options import (
    OUTPUT,
    Option,
    Sectioned,
    general_options,
    handled,
    layout_options,
    output_format,
    question_options,
)
from simulator.show.cli.parameters import Whole, Word
from simulator.show.cli.probe import LONGEST_SECONDS, backend_option
from simulator.show.report.formats import ANSWERS

LAUNCH = "Launch"
ENGINES = ("reference", "megatron", "paddle")
LAUNCHERS = ("local", "slurm")
FOLDER = "simulate-validate"


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
        epilog=(
            "Exit code: 0 all launches ran, 1 one failed or contradicts its verdict, 2 bad input, 3 nothing can be "
            "launched."
        ),
    )


def _asked() -> list[click.Parameter]:
    """The options of a question; what depends on engine and hardware has no default of its own."""
    helps = {
        "seq_length": "Tokens in a sequence; 256 on a processor, else 8192.",
        "global_batch_size": "Sequences in a step; 8 on a processor, else 1024.",
    }
    # What trains decides the profile to predict with.
    options = [param for param in question_options() if param.name != "framework"]
    for param in options:
        if isinstance(param, click.Option) and param.name in helps:
            param.default, param.show_default, param.help = None, False, helps[param.name]
    return options


def _launch_options() -> list[click.Parameter]:
    communication = "Collective library in torch's words (gloo, nccl, hccl); the usual one of the backend."
    limit, seconds = "Seconds that a launch may take.", Whole(1, LONGEST_SECONDS)
    calibrate = (
        "Let all rows of the file enter a calibration beside it, say what that changes in the ranking, and rank by it "
        "from then on."
    )
    return [
        Option("--top", LAUNCH, "Layouts to launch, the best of each split.", type=Whole(1, 1000), default=3),
        Option(
            "--engine",
            LAUNCH,
            "What trains; megatron and paddle are experimental.",
            type=Word(ENGINES),
            default="reference",
        ),
        Option("--engine-path", LAUNCH, "Folder of the engine's own code.", metavar="DIR"),
        Option("--launcher", LAUNCH, "What starts the ranks.", type=Word(LAUNCHERS), default="local"),
        backend_option(LAUNCH),
        Option("--communication", LAUNCH, communication, metavar="NAME"),
        Option("--steps", LAUNCH, "Timed steps of a launch.", type=Whole(1, 10_000), default=8),
        Option("--warmup", LAUNCH, "Steps before them.", type=Whole(0, 10_000), default=2),
        Option("--repeat", LAUNCH, "Launches of each layout.", type=Whole(1, 100), default=1),
        Option("--time-limit", LAUNCH, limit, type=seconds, default=600),
        Option("--resume", LAUNCH, "Leave out what the rows hold already.", is_flag=True),
        Option("--retry-failed", LAUNCH, "With --resume: but not what failed.", is_flag=True),
        Option("--calibrate", LAUNCH, calibrate, is_flag=True),
        Option("--dry-run", LAUNCH, "Show what would be started, and start nothing.", is_flag=True),
        *_elsewhere(),
    ]


def _elsewhere() -> list[click.Parameter]:
    """The options of launches on other machines."""
    slurm, several = "With --launcher slurm: ", "Several nodes without Slurm, started alike: "
    further, wait = f"{slurm}a further #SBATCH line; repeatable.", f"{slurm}seconds that a job may wait."
    return [
        Option("--rdzv-endpoint", LAUNCH, f"{several}where the first node waits.", metavar="HOST:PORT"),
        Option("--node-rank", LAUNCH, f"{several}which of them this is.", type=Whole(0, 2**20), default=0),
        Option("--slurm-partition", LAUNCH, f"{slurm}the partition.", metavar="NAME"),
        Option("--slurm-account", LAUNCH, f"{slurm}the account.", metavar="NAME"),
        Option("--slurm-option", LAUNCH, further, metavar="NAME[=VALUE]", multiple=True),
        Option("--queue-limit", LAUNCH, wait, type=Whole(1, LONGEST_SECONDS), default=3600),
    ]


def _output_options() -> list[click.Parameter]:
    folder = f"Where launches leave jobs, logs and results.  [default: {FOLDER}]"
    rows = "Measured rows, added to those that are there.  [default: HARDWARE.csv in the work folder]"
    return [
        output_format(ANSWERS["validation"].formats),
        Option("--output", OUTPUT, rows, metavar="ROWS.csv"),
        Option("--work-folder", OUTPUT, folder, metavar="DIR"),
    ]


def _validate(**values: Any) -> None:
    """Plan, launch, compare; what that imports is there on POSIX alone."""
    if os.name != "posix":
        raise UnsupportedError("simulate validate: launches need Linux or another POSIX system")
    handled("validate", "launches")(**values)
