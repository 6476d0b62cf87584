"""Measured row of a launch: columns known before it starts, and its outcome."""

from __future__ import annotations

from typing import Any

from simulator.evidence.measurements.columns import case_columns, cut_layers
from simulator.evidence.measurements.row import MeasuredRow, RunOutcome
from simulator.lab.runner.engine import Pick


def launched_row(pick: Pick, outcome: RunOutcome, error: str = "", **figures: Any) -> MeasuredRow:
    """Return the row of a launch: model, workload and layout, outcome, and measured `figures`."""
    columns: dict[str, Any] = {
        "table": pick.table,
        "row": pick.row,
        "source": "simulate validate",
        "model_as_stated": pick.model,
        "hardware_as_stated": pick.hardware,
        "hardware": pick.hardware,
        **case_columns(
            pick.scenario,
            pick.layout,
            model=pick.model,
            options=pick.options,
            num_layers=cut_layers(pick.scenario, pick.model),
        ),
    }
    return MeasuredRow(**columns | figures, outcome=outcome, error=error)
