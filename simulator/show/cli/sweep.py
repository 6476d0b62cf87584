"""The command `sweep`: a file of questions in, a table out. Reads options; `show.answers.sweep` prices."""

from __future__ import annotations

import re
from typing import Any

import click

from simulator.errors import InputError
from simulator.show.cli.options import (
    OUTPUT,
    Option,
    Sectioned,
    general_options,
    min_fit_probability_option,
    output_format,
)
from simulator.show.cli.parameters import Read, Whole, shown
from simulator.show.cli.streams import long_progress, note, presentation, verbosity_of, write
from simulator.show.report.formats import ANSWERS

WORK = "Work"
_ASKED = ("output", "workers", "scheduler", "shard", "merge", "force", "min_fit_probability")
_SHARD = re.compile(r"([0-9]{1,7})/([0-9]{1,7})", re.ASCII)


class Shard(Read):
    """A share of the work: ``3/64``."""

    name = "K/N"

    def read(self, text: str) -> Any:
        """Return which of how many."""
        match = _SHARD.fullmatch(text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"{shown(text)} is not K/N with K from 1 to N, such as 3/64")
        return int(match[1]), int(match[2])


def sweep_command() -> click.Command:
    """Return the command that prices the product of lists."""
    output = "Table to write, .csv or .parquet; FILE.parts beside it keeps what is done."
    scheduler = "Workers of a Dask scheduler instead: tcp://HOST:PORT, or its scheduler file."
    shard = "Do only this share of the parts, such as 3/64, and write no table."
    merge = "Price nothing: write the table from what all shards did."
    return Sectioned(
        "sweep",
        callback=_sweep,
        params=[
            click.Argument(["questions"], required=False, type=str, metavar="QUESTIONS.yaml"),
            Option("--workers", WORK, "Processes on this machine; one for each core by default.", type=Whole(1, 4096)),
            Option("--scheduler", WORK, scheduler, metavar="ADDRESS"),
            Option("--shard", WORK, shard, type=Shard()),
            Option("--merge", WORK, merge, is_flag=True),
            Option("--force", WORK, "Replace a table that answers other questions.", is_flag=True),
            Option("--output", OUTPUT, output, metavar="FILE"),
            min_fit_probability_option(),
            output_format(ANSWERS["sweep"].formats),
            *general_options(),
        ],
        help=(
            "Price the best layout of every question of a product of lists (models, hardware, nodes, sequence lengths, "
            "batches, precisions, stacks) into one table, on all cores, on a Dask cluster, or as a job array. A sweep "
            "that was killed goes on where it was; a question that cannot be answered is a row that says why."
        ),
    )


def _sweep(**values: Any) -> None:
    """Work through the questions, and say how they ended."""
    from simulator.show.answers.sweep.run import sweep  # noqa: PLC0415  start-up time
    from simulator.show.answers.sweep.workers import check_workers  # noqa: PLC0415  start-up time
    from simulator.show.report.sweep import speed_line  # noqa: PLC0415  start-up time

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
