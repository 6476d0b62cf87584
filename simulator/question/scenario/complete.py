"""A layout from the sizes a user gives: what is left out follows from the scenario."""

from __future__ import annotations

from typing import Any

from simulator.errors import InputError
from simulator.question.scenario.layout import Layout, check_count, default_cut
from simulator.question.scenario.scenario import Scenario


def complete_layout(scenario: Scenario, **sizes: Any) -> Layout:
    """A layout with the given fields of `Layout`; fields given as None count as left out.

    Left out, data parallel fills the devices, sequence parallelism is on beside tensor parallelism, the ZeRO stage is
    the framework's usual one, and the layers get the default cut. A cut without a pipeline size gives it. Raises
    InputError for what no layout has.
    """
    given = {name: value for name, value in sizes.items() if value is not None and value != ()}
    unknown = sorted(set(given) - set(Layout.__dataclass_fields__))
    if unknown:
        raise InputError(f"layout: unknown field '{unknown[0]}'; allowed: {', '.join(Layout.__dataclass_fields__)}")
    cut = tuple(given.get("stage_layers", ()))
    if cut:
        given.setdefault("pipeline_parallel", len(cut))
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        check_count(name, given.setdefault(name, 1))
    taken = given["tensor_parallel"] * given["pipeline_parallel"] * given["context_parallel"]
    given.setdefault("data_parallel", max(scenario.devices // taken, 1))
    given.setdefault("sequence_parallel", given["tensor_parallel"] > 1)
    given.setdefault("zero_stage", scenario.framework.limits.default_zero_stage)
    pipeline, layers = given["pipeline_parallel"], scenario.model.num_hidden_layers
    if cut and len(cut) != pipeline:
        raise InputError(f"stage_layers names {len(cut)} stages, pipeline_parallel is {pipeline}")
    if pipeline > layers:
        raise InputError(
            f"pipeline_parallel {pipeline}: {scenario.model.name} has {layers} layers, allowed are 1 to {layers}"
        )
    return Layout(**(given | {"stage_layers": cut or default_cut(layers, pipeline)}))
