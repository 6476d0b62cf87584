"""Rules at the edges of their cases, and the words of a refused schedule, by hand."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.derived import pricing_of
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import estimate_layout
from simulator.search.rules import RULES
from tests.scenario.cases import layout_of, scenario_of, small_dense, small_moe


def broken(name: str, scenario: Scenario, **fields: Any) -> bool:
    (rule,) = [rule for rule in RULES if rule.id == name]
    (found,) = rule.broken(pricing_of(scenario, layout_of(scenario, **fields))).tolist()
    return bool(found)


@pytest.mark.parametrize(("hardware", "own", "other"), [("b200-sxm", "nvfp4", "mxfp4"), ("mi355x", "mxfp4", "nvfp4")])
def test_fp4_has_the_recipe_of_its_device(hardware: str, own: str, other: str) -> None:
    """Blocks of 16 with NVIDIA's scales; OCP's of 32 elsewhere."""
    for recipe, foreign in ((own, False), (other, True)):
        for precision, refused in (("fp4", foreign), ("bf16", False)):
            scenario = scenario_of(
                small_dense(), hardware, precision=precision, options={"fp4_recipe": recipe}, global_batch_size=64
            )
            assert broken("fp4_recipe", scenario) == refused


@pytest.mark.parametrize(
    ("offloaded", "again", "refused"),
    [
        ("expert_fc1", ("moe",), True),
        ("expert_fc1", ("core_attn",), False),
        ("expert_fc1", ("core_attn", "moe"), True),
        ("core_attn", ("moe",), False),
    ],
)
def test_modules_are_offloaded_or_made_again(offloaded: str, again: tuple[str, ...], refused: bool) -> None:
    """Megatron-LM d98e8a6, fine_grained_activation_offload.py: not experts of a layer that makes them again."""
    scenario = scenario_of(small_moe(), options={"offloaded_modules": offloaded}, global_batch_size=64)
    fields: dict[str, Any] = {"recompute": "selective", "recompute_modules": again}
    assert broken("offloaded_modules", scenario, **fields) == refused
    assert not broken("offloaded_modules", scenario)


@pytest.mark.parametrize(("stack", "named"), [("default", "megatron"), ("mine", "megatron (mine)")])
def test_a_schedule_that_is_absent_is_refused_by_framework_and_stack(stack: str, named: str) -> None:
    scenario = scenario_of(small_dense(), devices=8, global_batch_size=64)
    scenario = replace(scenario, framework=replace(scenario.framework, stack=stack))
    layout = layout_of(scenario, pipeline_parallel=2, schedule="zb_h1")
    (said,) = [one.message for one in estimate_layout(scenario, layout).violations if one.rule == "schedule"]
    assert f"schedule zb_h1: {named} has 1f1b" in said


@pytest.mark.parametrize(("batch", "micro", "count"), [(8, 2, 2), (16, 2, 4), (8, 1, 4), (4, 4, 0.5)])
def test_a_schedule_without_enough_micro_batches_is_told_how_many_there_are(
    batch: int, micro: int, count: float
) -> None:
    """Global batch over micro batch and two replicas; DualPipeV on four ranks needs eight."""
    scenario = scenario_of(small_dense(num_hidden_layers=8), profile="torch", devices=8, global_batch_size=batch)
    layout = layout_of(
        scenario, pipeline_parallel=4, virtual_stages=2, schedule="dualpipev", micro_batch_size=micro, data_parallel=2
    )
    (said,) = [one.message for one in estimate_layout(scenario, layout).violations if one.rule == "schedule"]
    assert said.endswith(f"virtual stages 2, {count:g} micro batches")
    assert not broken(
        "schedule", replace(scenario, global_batch_size=16 * micro), pipeline_parallel=4, virtual_stages=2
    )
