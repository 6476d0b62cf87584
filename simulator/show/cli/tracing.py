"""The command `trace` once its options are read. Imported when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from simulator import api
from simulator.lab.trace.tracing import trace as traced
from simulator.question.scenario.complete import OPTIONS
from simulator.show.cli.layouts import check_cluster, layout_values
from simulator.show.cli.streams import answer, presentation


def trace(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Count the bytes of a stage and show them beside the predicted ones."""
    if not values["model"]:
        raise click.UsageError("missing option '--model'; `simulate models` lists the names")
    check_cluster(values)
    names = ("model", "hardware", "nodes", "devices", "seq_length", "global_batch_size", "precision", "num_layers")
    asked = {name: values[name] for name in names} | {"framework": "torch", "calibration": "none"}
    scenario, layout = api.resolved(asked, layout_values(values), OPTIONS, filled=True)
    compared = traced(scenario, layout, values["stage"])
    answer(ctx, "trace", compared, presentation(ctx))
