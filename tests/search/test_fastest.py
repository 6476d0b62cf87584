"""A search for one finds what the whole search puts first, whatever it is told to try."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.api import scenario_of as question
from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import price
from simulator.cost.timing.step import min_step_seconds
from simulator.question.scenario.scenario import Scenario
from simulator.search import space as space_module
from simulator.search.rank import best_of, fastest_of, lawful, search
from simulator.search.rules import RULES
from simulator.search.space import Query, Space, blocks
from tests.scenario.cases import scenario_of, small_moe

LEAST = 0.95

QUESTIONS = [
    question(model="llama3.1-70b", nodes=4),
    question(model="deepseek-v2-lite", nodes=2, hardware="h100-sxm-80g", precision="fp8"),
    question(model="llama3.1-8b", hardware="h100-sxm-80g:1,h800-sxm-80g:1"),
    question(model="qwen3-30b-a3b", nodes=2, framework="torch"),
    scenario_of(small_moe(num_hidden_layers=3), devices=8, profile="paddle", global_batch_size=24),
]


def named(scenario: Scenario) -> str:
    """A question in a word."""
    return f"{scenario.model.name}-{scenario.hardware_name}"


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_it_is_the_first_of_a_search(scenario: Scenario) -> None:
    query = Query(scenario=scenario, min_fit_probability=LEAST)
    found = search(query, top=4)
    assert found.fastest
    assert best_of(query) == found.fastest[0]
    for near in (found.fastest[:1], found.fastest[2:], [*found.risky, *found.nearest]):
        assert best_of(query, near=[one.layout for one in near]) == found.fastest[0]


def test_a_faster_layout_of_another_space_hides_nothing() -> None:
    scenario = QUESTIONS[0]
    query = Query(scenario=scenario, min_fit_probability=LEAST)
    best, *slower = (one.layout for one in search(query).fastest)
    sizes = {layout.tensor_parallel for layout in slower} - {best.tensor_parallel}
    other = replace(query, space=Space(tensor_parallel=tuple(sizes)))
    (expected,) = search(other, top=1).fastest
    assert expected.layout != best
    assert fastest_of(other, near=[best]) == expected


@pytest.mark.parametrize("nodes", [2, 6, 16])
def test_what_is_fast_elsewhere_hides_nothing(nodes: int) -> None:
    here = Query(scenario=QUESTIONS[0], min_fit_probability=LEAST)
    near = [one.layout for one in search(here, top=3).fastest]
    there = replace(here, scenario=question(model="llama3.1-70b", nodes=nodes))
    assert fastest_of(there, near=near) == fastest_of(there)


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_a_rule_is_said_to_drop_what_no_earlier_one_did(scenario: Scenario) -> None:
    """Though later rules judge only what is left, masks are of the whole block."""
    for block in blocks(scenario, Space(tensor_parallel_across_nodes=True)):
        alive, expected = np.ones(len(block), dtype=bool), dict[str, list[bool]]()
        for rule in RULES:
            hit = alive & rule.broken(Pricing(scenario, block.block))
            expected |= {rule.id: hit.tolist()} if hit.any() else {}
            alive &= ~hit
        left, broken = lawful(Space(tensor_parallel_across_nodes=True), block)
        assert {rule.id: mask.tolist() for rule, mask in broken} == expected
        assert np.array_equal(left.block.tensor_parallel, block.block.tensor_parallel[alive])


def test_where_nothing_fits_nothing_is_found() -> None:
    scenario = scenario_of("llama3.1-405b", devices=8)
    (near,) = search(Query(scenario=scenario)).nearest
    assert fastest_of(Query(scenario=scenario), near=[near.layout]) is None


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_no_step_is_faster_than_its_bound(scenario: Scenario) -> None:
    for block in blocks(scenario, Space(offload=("none", "optimizer", "activations"))):
        least, step = min_step_seconds(block), price(block).step.total
        assert (least <= step * (1.0 + 1e-9)).all()


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_kinds_of_work_change_no_figure(scenario: Scenario) -> None:
    for block in blocks(scenario, Space()):
        assert block.work is not None
        shared, alone = price(block), price(Pricing(scenario, block.block))
        assert np.array_equal(shared.memory.device, alone.memory.device)
        assert np.array_equal(shared.step.total, alone.step.total)
        parts = alone.step.parts(alone.pricing)
        assert all(np.array_equal(part, parts[name]) for name, part in shared.step.parts(shared.pricing).items())


def test_many_kinds_of_work_are_worked_out_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = QUESTIONS[0]
    whole = search(Query(scenario=scenario, min_fit_probability=LEAST))
    monkeypatch.setattr(space_module, "CHUNK", 1)
    assert all(block.work is None for block in blocks(scenario, Space(), chunk=64))
    assert search(whole.fastest[0].query) == whole
