"""The command `sweep`: a file of questions in, a table out. Reads options; `show.answers.sweep` prices."""

from __future__ import annotations

from typing import Any

import click

from simulator.show.cli.options import (
    GENERAL_OPTIONS,
    SURE,
    SWEPT,
    Sectioned,
    output_format,
)
from simulator.show.cli.streams import long_progress, note, presentation, verbosity_of, write
from simulator.show.forms import ANSWERS

_ASKED = ("output", "workers", "scheduler", "shard", "merge", "force", "min_fit_probability")


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
            *GENERAL_OPTIONS,
        ],
        help=(
            "Price the best layout of every question of a product of lists (models, hardware, nodes, sequence lengths, "
            "batches, precisions, stacks) into one table, on all cores, on a Dask cluster, or as a job array. A sweep "
            "that was killed goes on where it was; a question that cannot be answered is a row that says why."
        ),
    )


def _sweep(**values: Any) -> None:
    """Price the questions, and write how they ended."""
    from simulator.show.answers.sweep.run import sweep
    from simulator.show.answers.sweep.workers import check_workers
    from simulator.show.report.sweep import speed_line

    ctx = click.get_current_context()
    if not values["questions"]:
        raise click.UsageError("missing argument 'QUESTIONS.yaml': the lists to multiply (docs/sweep.md)")
    if not values["output"]:
        raise click.UsageError("missing option '--output', such as catalogue.csv or catalogue.parquet")
    quiet = verbosity_of(ctx) < 0
    if values["scheduler"]:
        check_workers(values["workers"], values["scheduler"])
        note(f"scheduler {values['scheduler']}: it and its first worker are waited for two minutes each", quiet=quiet)
    with long_progress(quiet=quiet, label="questions answered") as progress:
        asked = {name: values[name] for name in _ASKED}
        swept = sweep(values["questions"], **asked, progress=progress)
    note(speed_line(swept), quiet=quiet)
    write(ANSWERS["sweep"].write(swept, values["format"], presentation(ctx)), None)
