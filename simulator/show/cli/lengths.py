"""The command `lengths`: a file of texts in, a histogram of their lengths out, without a tokenizer."""

from __future__ import annotations

from typing import Any

import click

from simulator.show.cli.options import OUTPUT, Option, Parsed, Sectioned, amount
from simulator.show.cli.streams import note, verbosity_of, write


def lengths_command() -> click.Command:
    """Return the command that counts the lengths of a data set."""
    ratio: Parsed = amount("NUMBER")
    return Sectioned(
        "lengths",
        callback=_lengths,
        params=[
            click.Argument(["file"], type=str, metavar="DATA.jsonl"),
            Option("--field", "Field of each line that holds the text, or a list of messages.", metavar="NAME"),
            Option("--chars-per-token", "Characters that a token stands for.", ratio, default=3.6),
            Option("--output", "Write the histogram there.", metavar="FILE", section=OUTPUT),
        ],
        help="Count the lengths of a data set's samples, one JSON object a line, as a histogram for --lengths.",
    )


def _lengths(**values: Any) -> None:
    """Count the samples by length, and say how far the characters may be from tokens."""
    from simulator.answers.lengths import measured_lengths

    ctx = click.get_current_context()
    measured = measured_lengths(values["file"], values["field"] or "text", float(values["chars_per_token"]))
    write(measured.histogram, values["output"])
    for line in measured.remarks:
        note(line, quiet=verbosity_of(ctx) < 0)
