"""Command `sweep`: its options, and the way from a file of questions to a table of rows.

    simulate sweep catalogue.yaml --output catalogue.csv --workers 8

`answers.sweep` prices the questions, `show.report.sweep` writes the summary.
"""

from __future__ import annotations

from typing import Any

import click

from simulator.show.cli.options import (
    SURE,
    SWEPT,
    Sectioned,
    output_format,
)
from simulator.show.cli.streams import long_progress, note, presentation, verbosity_of, write
from simulator.show.forms import ANSWERS

_PASSED_ON = ("output", "workers", "scheduler", "force", "min_fit_probability")
_GONE = ("--shard", "--merge")
"""Options of sweeps that were shared out by hand; named until 0.7, so that old scripts are told what to do."""


def sweep_command() -> click.Command:
    """Return the command that prices the product of lists."""
    return Sectioned(
        "sweep",
        callback=_sweep,
        params=[
            click.Argument(["questions"], required=False, type=str, metavar="QUESTIONS.yaml"),
            *SWEPT,
            SURE,
            output_format("sweep"),
            click.Option([_GONE[0]], hidden=True, help="Gone."),
            click.Option([_GONE[1]], hidden=True, help="Gone.", is_flag=True),
        ],
        help=(
            "Price the best layout of every question of a product of lists (models, hardware, nodes, sequence lengths, "
            "batches, precisions, stacks) into one table, on all cores or on a Dask cluster. A sweep that was killed "
            "goes on where it was; a question that cannot be answered is a row that says why."
        ),
    )


def _sweep(**values: Any) -> None:
    """Price the questions, and write how they ended."""
    from simulator.answers.sweep import check_workers, sweep
    from simulator.show.report.sweep import speed_line

    ctx = click.get_current_context()
    for option in _GONE:
        if values[option.strip("-")]:
            raise click.UsageError(
                f"{option} is gone: one command with --scheduler uses all machines (examples/sweep/dask.sbatch does so "
                "as one Slurm job)"
            )
    if not values["questions"]:
        raise click.UsageError("missing argument 'QUESTIONS.yaml': the lists to multiply (docs/sweep.md)")
    if not values["output"]:
        raise click.UsageError("missing option '--output', such as catalogue.csv")
    quiet = verbosity_of(ctx) < 0
    if values["scheduler"]:
        check_workers(values["workers"], values["scheduler"])
        note(f"scheduler {values['scheduler']}: it and its first worker are waited for two minutes each", quiet=quiet)
    with long_progress(quiet=quiet, label="questions answered") as progress:
        swept = sweep(values["questions"], **{name: values[name] for name in _PASSED_ON}, progress=progress)
    note(speed_line(swept), quiet=quiet)
    write(ANSWERS["sweep"].write(swept, values["format"], presentation(ctx)), None)
