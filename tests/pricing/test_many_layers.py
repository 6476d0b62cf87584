"""Layers of a kind are counted once for a model; no layout walks them again."""

from collections import Counter

import pytest

from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import price
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind, ModelSpec
from simulator.search.rules import RULES
from tests.scenario.cases import scenario_of, small_sliding

LAYERS = 10_000
STAGES = (6_000, 4_000)


@pytest.fixture
def scenario() -> Scenario:
    return scenario_of(small_sliding(num_hidden_layers=LAYERS), devices=4)


def layout(tensor_parallel: int) -> Layout:
    return Layout(tensor_parallel=tensor_parallel, pipeline_parallel=2, stage_layers=STAGES)


def test_counts_are_those_of_the_layers(scenario: Scenario) -> None:
    model, contents = scenario.model, pricing_of(scenario, layout(1)).contents
    assert len(model.layer_counts) > 1
    assert model.layer_counts == Counter(model.layers)
    assert list(model.layer_counts) == list(dict.fromkeys(model.layers))
    counts = dict(zip(contents.layer_kinds, contents.over_ranks(contents.layers), strict=True))
    assert counts == {kind: model.layer_counts[kind] for kind in contents.layer_kinds}
    for first in (0, 1, 7, 4_000, 6_000):
        begin = Counter(model.layers[:first])
        for position, kind in enumerate(contents.layer_kinds):
            assert contents.leading[0, position, contents.kind[0], first] == begin[kind]


def test_no_layout_walks_the_layers(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    price(pricing_of(scenario, layout(1)))

    def walked(_: ModelSpec) -> tuple[LayerKind, ...]:
        raise AssertionError("the layers of a model were walked again")

    monkeypatch.setattr(ModelSpec, "layers", property(walked))
    for tensor_parallel in (1, 2):
        pricing = pricing_of(scenario, layout(tensor_parallel))
        assert price(pricing).step.total > 0.0
        assert [rule.broken(pricing).shape for rule in RULES] == [(1,)] * len(RULES)
