"""Columns of a measured row from the question of a launch, a recipe or an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.evidence.measurements.row import LAYOUT_COLUMNS, WORKLOAD_COLUMNS
from simulator.question.frameworks.stacks import stack_for
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import BY_NAME, Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_model


def case_columns(
    scenario: Scenario, layout: Layout, *, model: str, options: Mapping[str, str], num_layers: int | None
) -> dict[str, Any]:
    """Return the columns of workload and layout; `model` is the spec's name, `num_layers` its layers if they are cut.

    Columns that say nothing of the run stay blank.
    """
    profile = scenario.framework
    usual = stack_for(profile.name, None, scenario.hardware.stack)
    cut = default_cut(scenario.model.num_hidden_layers, layout.pipeline_parallel)
    return {
        "model": model,
        "num_layers": num_layers,
        "framework": profile.name,
        "options": tuple(options.items()),
        "stack": None if profile.stack == usual else profile.stack,
        **{name: getattr(scenario, name) for name in ("devices", *WORKLOAD_COLUMNS)},
        **layout_columns(layout, is_moe=scenario.model.is_moe, usual_cut=cut),
    }


def recipe_columns(run: Recipe, devices: int | None, *, is_moe: bool) -> dict[str, Any]:
    """Return the columns that a logged run's words ask for, without its model."""
    columns = {name: getattr(run, name) for name in ("framework", "stack", *WORKLOAD_COLUMNS)} | {"devices": devices}
    layout = run.layout
    if layout is None:
        return columns
    columns |= layout_columns(layout, is_moe=is_moe)
    if run.virtual_stage_layers and layout.virtual_stages == 1:
        columns["layers_per_virtual_stage"] = run.virtual_stage_layers
    return columns


def layout_columns(layout: Layout, *, is_moe: bool, usual_cut: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the columns of a layout; those that say nothing of the run stay blank."""
    columns: dict[str, Any] = {name: getattr(layout, name) for name in LAYOUT_COLUMNS}
    if not is_moe:
        columns["expert_tensor_parallel"] = None
    if layout.virtual_stages == 1:
        columns["virtual_stages"] = None
    if layout.stage_layers == usual_cut:
        columns["stage_layers"] = ()
    if columns["chunk_layers"]:
        # Chunks determine the layers of the ranks, and the chunks of each.
        columns |= {"stage_layers": (), "virtual_stages": None}
    if layout.recompute_modules == BY_NAME["recompute_modules"].default:
        columns["recompute_modules"] = ()
    if layout.recompute != "full":
        columns |= {"recompute_method": None, "recompute_layers": None}
    return columns


def cut_layers(scenario: Scenario, model: str) -> int | None:
    """Return the layers of a model that is cut or extended; None where it has its spec's."""
    layers = scenario.model.num_hidden_layers
    return None if layers == load_model(model).num_hidden_layers else layers
