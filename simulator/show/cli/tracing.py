"""The command `trace` once its options are read. Imported when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from simulator.answers.cases import case_of, priceable
from simulator.lab.trace.tracing import trace as traced
from simulator.question.origin import OPTION
from simulator.show.cli.question import question_on_line, require_model
from simulator.show.cli.streams import answer, presentation


def trace(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Count the bytes of a stage and show them beside the predicted ones."""
    require_model(values)
    case = priceable(case_of(question_on_line(ctx).changed(OPTION, framework="torch", calibration="none")))
    compared = traced(case.scenario, case.layout, values["stage"])
    answer(ctx, "trace", compared, presentation(ctx))
