"""Every layout that fits, or a choice of them that hides neither the front nor a split."""

from functools import cache
from typing import Any

import pytest

import simulator
from simulator.answers.ranking import feasible as feasible_layouts
from simulator.answers.ranking import query_of
from simulator.cost.pricing.estimate import Estimate
from simulator.question.question import question_of
from simulator.search.build import bare_estimate
from simulator.search.rank import fitting
from simulator.search.space import Space

QUESTION: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h20", "nodes": 2}
MOE: dict[str, Any] = {"model": "mixtral-8x7b-v0.1", "hardware": "h100-sxm-80g", "nodes": 4}
NARROW = Space(tensor_parallel=(1, 2), context_parallel=(1,), micro_batch_size=(1, 2))


def feasible(*, space: Space | None = None, most: int = 10**6, **inputs: Any) -> tuple[Estimate, ...]:
    return feasible_layouts(fitting(query_of(question_of(inputs, many=True), space)), most)


@cache
def every_fitting() -> tuple[Estimate, ...]:
    return feasible(most=10**6, **QUESTION)


@pytest.mark.parametrize("question", [QUESTION, MOE | {"space": NARROW}])
def test_every_layout_that_fits_is_found_once(question: dict[str, Any]) -> None:
    found = every_fitting() if question is QUESTION else feasible(most=10**6, **question)
    assert len(found) == simulator.rank(**question).counts.feasible
    assert len({(one.layout, tuple(one.options)) for one in found}) == len(found)
    assert all(one.verdict == "fits" for one in found)


def test_many_at_a_time_are_priced_as_one_alone() -> None:
    scenario = query_of(question_of(QUESTION)).scenario
    for one in every_fitting()[::37]:
        assert bare_estimate(scenario, one.layout) == one


def test_a_choice_keeps_the_front_and_the_best_of_each_split() -> None:
    every, chosen = every_fitting(), feasible(most=200, **QUESTION)
    assert len(chosen) == 200 < len(every)
    kept = {one.layout for one in chosen}
    front = [one for one in every if not any(_beats(other, one) for other in every)]
    assert {one.layout for one in front} <= kept
    best: dict[object, Estimate] = {}
    for one in every:
        best.setdefault(one.layout.split, one)
    assert {one.layout for one in best.values()} <= kept
    slowest = max(one.throughput.step_seconds for one in every)
    assert max(one.throughput.step_seconds for one in chosen) == slowest


def _beats(one: Estimate, other: Estimate) -> bool:
    a, b = ((e.throughput.step_seconds, e.memory.device_bytes) for e in (one, other))
    return a[0] <= b[0] and a[1] <= b[1] and a != b
