"""Which questions are searched a second time: mixtures whose exchange is open, on devices with kernels for it."""

from dataclasses import replace
from typing import Any

import pytest

import simulator
from simulator.question.question import question_of
from simulator.question.scenario.scenario import NodeGroup, Scenario
from simulator.search.alternatives import suits
from simulator.search.space import Query, Space
from tests.scenario.cases import load_hardware, scenario_of, small_dense, small_moe

OVERLAPPED = {"expert_dispatch": "deepep", "overlap_expert_exchange": "true"}


def query(scenario: Scenario, options: dict[str, str] | None = None, **more: Any) -> Query:
    return Query(scenario=scenario, question=question_of({"options": options or {}}), **more)


def chosen(scenario: Scenario, **more: Any) -> list[dict[str, str]]:
    return [dict(one.chosen) for one in query(scenario, **more).alternatives()]


def experts(hardware: str = "h100-sxm-80g", **fields: Any) -> Scenario:
    return scenario_of(small_moe(), hardware, devices=8, **fields)


def test_a_switch_concerns_mixtures_or_narrow_precisions() -> None:
    dense = scenario_of(small_dense(), devices=8, precision="fp8")
    switches = {"expert_dispatch": "alltoall", "fp8_recipe": "delayed", "fused_rotary": True}
    assert [suits(dense, name, value) for name, value in switches.items()] == [False, True, True]
    assert [suits(experts(), name, value) for name, value in switches.items()] == [True, False, True]


def test_magnitudes_of_adapters_leave_no_merged_experts_open() -> None:
    """peft 0.21, ParamWrapper: a value that no scenario may have is not proposed."""
    options = {"decomposed_adapters": "apart"}
    shape: Any = {"model": "mixtral-8x7b", "hardware": "h100-sxm-80g", "devices": 8, "stack": "peft", "method": "lora"}
    estimate = simulator.estimate(**shape, options=options, zero_stage=3, micro_batch_size=1, recompute="full")
    assert {"adapter_targets", "decomposed_adapters"}.isdisjoint(each.switch for each in estimate.assumed)


def test_a_mixture_is_searched_with_the_kernels_too() -> None:
    first = query(experts(), options={"fp8_recipe": "delayed"})
    plain, overlapped = first.alternatives()
    assert plain is first
    assert overlapped.chosen == OVERLAPPED
    profile = overlapped.scenario.framework
    assert (profile.expert_dispatch, profile.overlap_expert_exchange) == ("deepep", True)
    undone = replace(profile, expert_dispatch="alltoall", overlap_expert_exchange=False)
    assert replace(overlapped.scenario, framework=undone) == first.scenario


@pytest.mark.parametrize("option", ["expert_dispatch", "overlap_expert_exchange"])
def test_one_that_sets_either_switch_is_searched_as_it_stands(option: str) -> None:
    assert chosen(experts(), options={option: "true"}) == [{}]


def test_without_experts_kernels_or_a_framework_that_uses_them_there_is_one_search() -> None:
    assert chosen(scenario_of(small_dense(), "h100-sxm-80g", devices=8)) == [{}]
    assert chosen(experts("a100-sxm-80g")) == [{}]
    assert chosen(experts(profile="torch")) == [{}]


def test_every_kind_of_device_needs_the_kernels() -> None:
    h100, a100 = load_hardware("h100-sxm-80g"), load_hardware("a100-sxm-80g")
    later = replace(h100, expert_kernels=("hybridep",))
    for kinds, expected in (
        ((h100, h100), [{}, OVERLAPPED]),
        ((h100, later), [{}, OVERLAPPED | {"expert_dispatch": "hybridep"}]),
        ((h100, a100), [{}]),
    ):
        groups = tuple(NodeGroup(kind, 8) for kind in kinds)
        assert chosen(replace(experts(), devices=16, groups=groups)) == expected


def test_what_a_question_leaves_open_is_every_layout_that_fits() -> None:
    query = Query(scenario=experts())
    assert (query.space, query.min_fit_probability, dict(query.options), dict(query.chosen)) == (Space(), 0.0, {}, {})


def test_assumed_switches_stand_by_their_effect_on_speed() -> None:
    assumed = simulator.estimate(
        model="llama3.1-70b", hardware="h100-sxm-80g", devices=64, tp=8, pp=2, stack="default"
    ).assumed
    effects = [abs(switch.speed_change) for switch in assumed]
    assert len(set(effects)) > 2
    assert effects == sorted(effects, reverse=True)
