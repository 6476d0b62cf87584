"""As few recomputed layers as fit: solved from memory, against every number tried in turn."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator import api
from simulator.cost.derived import pricings_of
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import price
from simulator.search.build import estimate_layout
from simulator.search.rank import _raisable
from simulator.search.space import MIN_FIT_PROBABILITY, Query, Space
from tests.scenario.cases import layout_of, scenario_of
from tests.search.layouts_found import search
from tests.search.test_recommended import probability, split

pytestmark = pytest.mark.usefixtures("bare", "closed_switches")

TIGHT: dict[str, Any] = {
    "model": "llama3.1-70b",
    "hardware": "z2000",
    "nodes": 4,
    "seq_length": 16384,
    "global_batch_size": 384,
}


def test_where_only_some_layers_have_to_be_recomputed_that_is_fastest() -> None:
    first = api.rank(**TIGHT).estimates[0]
    layout = first.layout
    assert (layout.recompute, layout.recompute_method) == ("full", "block")
    assert layout.recompute_layers < min(layout.stage_layers) / layout.virtual_stages
    whole = api.rank(**TIGHT, space=Space(recompute_method=("uniform",))).estimates[0]
    assert whole.layout.recompute == "full"
    assert first.throughput.step_seconds < 0.95 * whole.throughput.step_seconds
    again = api.estimate(**TIGHT, layout=layout)
    assert again.throughput == first.throughput
    assert again.memory == first.memory


def test_one_layer_fewer_is_not_likely_enough_to_fit() -> None:
    layout = api.rank(**TIGHT).estimates[0].layout
    fewer = api.estimate(**TIGHT, layout=replace(layout, recompute_layers=layout.recompute_layers - 1))
    assert probability(fewer) < MIN_FIT_PROBABILITY


def questions(count: int) -> list[dict[str, Any]]:
    """Random small questions, always the same."""
    draw = random.Random(20)  # noqa: S311  the same questions every time
    return [
        {
            "model": draw.choice(("llama3.1-8b", "qwen3-8b", "llama-13b", "qwen3-30b-a3b")),
            "hardware": draw.choice(("a100-sxm-40g", "bi150-32g", "z2000", "ascend-910b-64g-8")),
            "nodes": draw.choice((1, 2)),
            "seq_length": draw.choice((4096, 8192, 16384)),
            "global_batch_size": 96,
            "num_layers": draw.choice((8, 14, 24, 32)),
        }
        for _ in range(count)
    ]


def by_number(question: dict[str, Any]) -> list[Estimate]:
    """The best of each split with every number of recomputed leading layers tried in turn, and with none or all."""
    numbers = tuple(range(1, question["num_layers"] + 1))
    counted = Space(recompute=("full",), recompute_method=("block",), recompute_layers=numbers)
    spaces = (Space(recompute_method=("uniform",)), counted)
    found = [e for space in spaces for e in api.rank(**question, space=space, top=100).estimates]
    best: dict[tuple[int, ...], Estimate] = {}
    for estimate in sorted(found, key=lambda e: e.throughput.step_seconds):
        best.setdefault(split(estimate), estimate)
    return list(best.values())


QUESTIONS = questions(4)


@cache
def ranked(number: int) -> tuple[Estimate, ...]:
    return api.rank(**QUESTIONS[number], top=100).estimates


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_the_number_is_the_best_of_every_number(number: int) -> None:
    assert [e.layout for e in ranked(number)] == [e.layout for e in by_number(QUESTIONS[number])]


def test_the_random_questions_have_answers_of_both_kinds() -> None:
    methods = {estimate.layout.recompute_method for number in range(len(QUESTIONS)) for estimate in ranked(number)}
    assert methods == {"uniform", "block"}


def test_a_layout_is_solved_where_all_layers_fit_and_none_does_not() -> None:
    """Counts hold one more for each, and each has the fewest layers that fit."""
    scenario = scenario_of("llama3.1-8b", "a100-sxm-40g", devices=8, seq_length=8192)
    uniform = Space(recompute_method=("uniform",))
    plain, found = (search(scenario, space, top=10_000, variants=True) for space in (uniform, Space()))
    some = [layout for layout in found.fastest if layout.recompute_method == "block"]
    assert some
    assert found.evaluated == plain.evaluated + len(some)
    assert found.feasible == plain.feasible + len(some)
    assert found.rejected == plain.rejected
    for layout in some:
        # One layer fewer, and every eighth number below: the need only grows with fewer.
        verdicts = [
            estimate_layout(scenario, replace(layout, recompute_layers=layout.recompute_layers - fewer)).verdict
            for fewer in (0, *range(1, layout.recompute_layers, 8))
        ]
        none = replace(layout, recompute="none", recompute_method="uniform", recompute_layers=1)
        assert verdicts[0] == "fits"
        assert "fits" not in {*verdicts[1:], estimate_layout(scenario, none).verdict}


@pytest.mark.parametrize("profile", ["paddle", "torch"])
def test_only_megatron_counts_leading_layers(profile: str) -> None:
    found = search(
        scenario_of("llama3.1-8b", "a100-sxm-40g", devices=8, profile=profile), Space(), top=500, variants=True
    )
    assert found.fastest
    assert not [layout for layout in found.fastest if layout.recompute_method == "block"]


def test_layouts_without_recompute_or_of_whole_blocks_can_be_raised() -> None:
    """Uniform recompute repeats every layer already; what repeats parts of layers is another choice."""
    scenario = scenario_of("llama3.1-8b", "a100-sxm-40g", devices=8, seq_length=8192)
    uniform = layout_of(scenario, tensor_parallel=2, recompute="full")
    layouts = [
        replace(uniform, recompute="none"),
        replace(uniform, recompute="selective"),
        uniform,
        replace(uniform, recompute_method="block", recompute_layers=3),
    ]
    ((_, pricing),) = pricings_of(scenario, layouts)
    raisable = _raisable(Query(scenario=scenario), price(pricing), np.arange(len(layouts)))
    raised = [pricing.block.layout(at) for pricing, _ in raisable for at in range(len(pricing))]
    assert sorted(layouts.index(layout) for layout in raised) == [0, 3]
    assert not _raisable(Query(scenario=scenario), price(pricing), np.arange(0))
