"""The command `trace`: the bytes alive in one pipeline stage, counted without a device, beside the predicted ones."""

from __future__ import annotations

from typing import Any

import click

from simulator.show.cli.options import (
    CONTEXT_SETTINGS,
    LAYOUT,
    Option,
    Sectioned,
    general_options,
    layout_options,
    listing_options,
    question_options,
)
from simulator.show.cli.parameters import Whole
from simulator.show.cli.streams import verbosity_of, write

TRACE_FORMATS = ("table", "json", "markdown")
_NOT_ASKED = ("lora_rank", "framework", "option", "calibration")
"""Options of a question that a trace has no use for: it runs PyTorch, all weights, and counts tensors."""


def trace_command() -> click.Command:
    """Return the command."""
    return Sectioned(
        "trace",
        callback=_trace,
        params=[
            *(param for param in question_options() if param.name not in _NOT_ASKED),
            *layout_options(many=False),
            Option(
                "--stage",
                section=LAYOUT,
                type=Whole(0, 2**20),
                help="Pipeline rank to trace, from 0; the one that needs most where none is given.",
            ),
            *listing_options(TRACE_FORMATS),
            *general_options(),
        ],
        help=(
            "Run one pipeline stage of the reference trainer at full size on tensors that hold no data, and show the "
            "bytes alive at its peak beside the predicted ones. Needs PyTorch, no device, and some hundred MB."
        ),
        short_help="Count one stage's bytes without a device.",
        context_settings=CONTEXT_SETTINGS,
    )


def _trace(**values: Any) -> None:
    from simulator import api  # noqa: PLC0415  start-up time
    from simulator.lab.trace.run import trace  # noqa: PLC0415  start-up time
    from simulator.question.scenario.complete import OPTIONS  # noqa: PLC0415  start-up time
    from simulator.show.cli.layouts import check_cluster, given_layout  # noqa: PLC0415  start-up time
    from simulator.show.report.trace_table import TRACE_REPORTERS  # noqa: PLC0415  start-up time

    if not values["model"]:
        raise click.UsageError("missing option '--model'; `simulate models` lists the names")
    check_cluster(values)
    names = ("model", "hardware", "nodes", "devices", "seq_length", "global_batch_size", "precision", "num_layers")
    asked = {name: values[name] for name in names} | {"framework": "torch", "calibration": "none"}
    scenario, layout = api.resolved(asked, given_layout(values), OPTIONS, filled=True)
    compared = trace(scenario, layout, values["stage"])
    quiet = verbosity_of(click.get_current_context()) < 0
    write(TRACE_REPORTERS[values["format"]](compared, quiet), values["output"])
