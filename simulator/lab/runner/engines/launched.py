"""What a launch is, as the columns of a measured row: known before it starts."""

from __future__ import annotations

from typing import Any, cast

from simulator.evidence.measurements.row import Framework, MeasuredRow, Outcome, Precision
from simulator.lab.runner.engine import Pick
from simulator.question.scenario.layout import default_cut
from simulator.question.specs.catalogue import load_model


def launched_row(pick: Pick, outcome: Outcome, error: str = "", **figures: Any) -> MeasuredRow:
    """The row of a launch: its model, workload and layout, how it ended, and what was measured."""
    scenario, layout = pick.scenario, pick.layout
    layers = scenario.model.num_hidden_layers
    chunked = layout.virtual_stages > 1
    full = layout.recompute == "full"
    moe = scenario.model.is_moe
    columns: dict[str, Any] = {
        "table": pick.table,
        "row": pick.row,
        "source": "simulate validate",
        "model_as_stated": pick.model,
        "hardware_as_stated": pick.hardware,
        "model": pick.model,
        "num_layers": None if layers == load_model(pick.model).num_hidden_layers else layers,
        "hardware": pick.hardware,
        "framework": cast("Framework", scenario.framework.name),
        "options": tuple(pick.options.items()),
        "devices": scenario.devices,
        "precision": cast("Precision", scenario.precision),
        "seq_length": scenario.seq_length,
        "micro_batch_size": layout.micro_batch_size,
        "global_batch_size": scenario.global_batch_size,
        "tensor_parallel": layout.tensor_parallel,
        "pipeline_parallel": layout.pipeline_parallel,
        "context_parallel": layout.context_parallel,
        "expert_parallel": layout.expert_parallel,
        "expert_tensor_parallel": layout.expert_tensor_parallel if moe else None,
        "virtual_stages": layout.virtual_stages if chunked else None,
        "stage_layers": ()
        if layout.stage_layers == default_cut(layers, layout.pipeline_parallel)
        else layout.stage_layers,
        "zero_stage": layout.zero_stage,
        "sequence_parallel": layout.sequence_parallel,
        "recompute": layout.recompute,
        "recompute_method": layout.recompute_method if full else None,
        "recompute_layers": layout.recompute_layers if full else None,
        "offload": layout.offload,
        "lora_rank": scenario.lora_rank,
    }
    return MeasuredRow(**columns | figures, outcome=outcome, error=error)
