"""What a launch is, as the columns of a measured row: known before it starts."""

from __future__ import annotations

from typing import Any

from simulator.evidence.measurements.row import LAYOUT_COLUMNS, MeasuredRow, Outcome
from simulator.lab.runner.engine import Pick
from simulator.question.frameworks.stacks import stack_for
from simulator.question.scenario.layout import BY_NAME, default_cut
from simulator.question.specs.catalogue import load_model


def launched_row(pick: Pick, outcome: Outcome, error: str = "", **figures: Any) -> MeasuredRow:
    """The row of a launch: its model, workload and layout, how it ended, and what was measured."""
    scenario, layout = pick.scenario, pick.layout
    layers, profile = scenario.model.num_hidden_layers, scenario.framework
    usual = stack_for(profile.name, None, scenario.hardware.stack)
    columns: dict[str, Any] = {
        "table": pick.table,
        "row": pick.row,
        "source": "simulate validate",
        "model_as_stated": pick.model,
        "hardware_as_stated": pick.hardware,
        "model": pick.model,
        "num_layers": None if layers == load_model(pick.model).num_hidden_layers else layers,
        "hardware": pick.hardware,
        "framework": profile.name,
        "options": tuple(pick.options.items()),
        "stack": None if profile.stack == usual else profile.stack,
        "devices": scenario.devices,
        "precision": scenario.precision,
        "seq_length": scenario.seq_length,
        "global_batch_size": scenario.global_batch_size,
        "lora_rank": scenario.lora_rank,
        **{name: getattr(layout, name) for name in LAYOUT_COLUMNS},
    }
    # What says nothing of the run stays blank.
    if not scenario.model.is_moe:
        columns["expert_tensor_parallel"] = None
    if layout.virtual_stages == 1:
        columns["virtual_stages"] = None
    if layout.stage_layers == default_cut(layers, layout.pipeline_parallel):
        columns["stage_layers"] = ()
    if layout.recompute_modules == BY_NAME["recompute_modules"].default:
        columns["recompute_modules"] = ()
    if layout.recompute != "full":
        columns |= {"recompute_method": None, "recompute_layers": None}
    return MeasuredRow(**columns | figures, outcome=outcome, error=error)
