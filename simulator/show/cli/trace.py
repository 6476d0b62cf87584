"""The command `trace`: the bytes alive in one pipeline stage, counted without a device, beside the predicted ones."""

from __future__ import annotations

import click

from simulator.show.cli.options import (
    Sectioned,
    answer_options,
    handled,
    layout_options,
    listed,
    question_options,
)

_NOT_ASKED = ("lora_rank", "framework", "option", "stack", "calibration")
"""Options of a question that a trace does not take: it runs PyTorch with all weights and counts tensors."""


def trace_command() -> click.Command:
    """Return the command."""
    return Sectioned(
        "trace",
        callback=handled("trace", "tracing"),
        params=[
            *(param for param in question_options() if param.name not in _NOT_ASKED),
            *layout_options(many=False),
            *listed("stage"),
            *answer_options("trace"),
            *listed("general"),
        ],
        help=(
            "Run one pipeline stage of the reference trainer at full size on tensors that hold no data, and show the "
            "bytes alive at its peak beside the predicted ones. Needs PyTorch, no device, and some hundred MB."
        ),
    )
