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
    handled,
    layout_options,
    listed,
    output_format,
    question_options,
)

FOLDER = "simulate-validate"


def validate_command() -> click.Command:
    """Return the command."""
    return Sectioned(
        "validate",
        callback=_validate,
        params=[
            *_asked(),
            *layout_options(many=True),
            *listed("launch"),
            *_output_options(),
            *listed("general"),
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
    """Return the options of a question, without defaults that depend on engine and hardware."""
    helps = {
        "seq_length": "Tokens in a sequence; 256 on a processor, else 8192.",
        "global_batch_size": "Sequences in a step; 8 on a processor, else 1024.",
    }
    # The engine decides the framework profile of the prediction.
    options = [param for param in question_options() if param.name != "framework"]
    for param in options:
        if isinstance(param, click.Option) and param.name in helps:
            param.default, param.show_default, param.help = None, False, helps[param.name]
    return options


def _output_options() -> list[click.Parameter]:
    folder = f"Where launches leave jobs, logs and results.  [default: {FOLDER}]"
    rows = "Measured rows, added to those that are there.  [default: HARDWARE.csv in the work folder]"
    return [
        output_format("validation"),
        Option("--output", OUTPUT, rows, metavar="ROWS.csv"),
        Option("--work-folder", OUTPUT, folder, metavar="DIR"),
    ]


def _validate(**values: Any) -> None:
    """Plan, launch and compare; its imports exist on POSIX alone."""
    if os.name != "posix":
        raise UnsupportedError("simulate validate: launches need Linux or another POSIX system")
    handled("validate", "launches")(**values)
