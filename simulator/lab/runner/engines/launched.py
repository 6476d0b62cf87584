"""The measured row of a launch: columns that are known before it starts, and its outcome."""

from __future__ import annotations

from typing import Any

from simulator.evidence.measurements.asked import asked_columns, cut_layers
from simulator.evidence.measurements.row import MeasuredRow, RunOutcome
from simulator.lab.runner.engine import Pick


def launched_row(pick: Pick, outcome: RunOutcome, error: str = "", **figures: Any) -> MeasuredRow:
    """The row of a launch: its model, workload and layout, how it ended, and what was measured."""
    columns: dict[str, Any] = {
        "table": pick.table,
        "row": pick.row,
        "source": "simulate validate",
        "model_as_stated": pick.model,
        "hardware_as_stated": pick.hardware,
        "hardware": pick.hardware,
        **asked_columns(
            pick.scenario,
            pick.layout,
            model=pick.model,
            options=pick.options,
            num_layers=cut_layers(pick.scenario, pick.model),
        ),
    }
    return MeasuredRow(**columns | figures, outcome=outcome, error=error)
