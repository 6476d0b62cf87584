"""A block of many layouts and the layouts one by one give the same numbers, to the last bit."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing, pricing_of, pricings_of
from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced, price, size, timed
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import estimate_layout
from simulator.search.space import Space, blocks
from tests.scenario.cases import load_model, scenario_of

CODES = {"fits": FITS, "starved": STARVED, "does_not_fit": DOES_NOT_FIT}
SPACE = Space(
    zero_stage=(0, 1, 2, 3),
    offload=("none", "optimizer", "optimizer_tensorwise", "activations"),
    recompute_method=("uniform", "block"),
    recompute_layers=(1, 2),
    sequence_parallel=(True, False),
)
QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama3.1-8b", "z2000", {"devices": 32}),
    ("llama3.1-8b", "z2000", {"devices": 32, "precision": "fp8", "lora_rank": 16}),
    ("qwen2.5-0.5b", "a100-sxm-80g", {"devices": 16, "precision": "fp16", "profile": "paddle"}),
    ("qwen3-4b", "b200-sxm", {"devices": 8, "profile": "torch", "options": {"rope_tables_per_call": "true"}}),
    ("mixtral-8x7b-v0.1", "z2000", {"devices": 32, "precision": "fp8"}),
    ("qwen3-30b-a3b", "bi150-64g", {"devices": 32, "profile": "paddle"}),
    ("deepseek-v2-lite", "ascend-910b-64g", {"devices": 32, "profile": "torch"}),
    ("deepseek-v3", "h800-sxm-80g", {"devices": 64, "options": {"mtp": "true", "expert_imbalance": "1.3"}}),
    ("ernie-4.5-300b-a47b", "ascend-910b-64g", {"devices": 64, "options": {"flash_attention": "false"}}),
]
SAMPLES = 10
LAYERS = 12
"""Of each model, so many: its kinds of layers and every number of ranks that divides them, quickly."""


def question_of(model: str, hardware: str, question: dict[str, Any]) -> Scenario:
    return scenario_of(load_model(model).with_layers(LAYERS), hardware, **question)


@cache
def _drawn(scenario: Scenario) -> tuple[Pricing, ...]:
    found = list(blocks(scenario, SPACE, chunk=512))
    return tuple(found[:: max(len(found) // 6, 1)])


def drawn(scenario: Scenario) -> list[Pricing]:
    """Whole blocks of the space, spread over it; different pipeline shapes. Nothing of them is priced yet."""
    return [replace(pricing) for pricing in _drawn(scenario)]


def assert_same(scenario: Scenario, grid: Priced, index: int) -> None:
    alone = estimate_layout(scenario, grid.block.layout(index))
    memory, throughput = alone.memory, alone.throughput
    assert memory.device_bytes == grid.device_bytes[index]
    assert memory.binding_stage == grid.binding_stage[index]
    assert throughput.step_seconds == grid.step.total[index]
    assert alone.verdict in ("refused", *(name for name, code in CODES.items() if code == grid.verdict[index]))
    parts = grid.memory.parts()
    for stage in memory.stages:
        assert stage.device_bytes == grid.memory.device[stage.stage, index]
        assert stage.allocated_bytes == grid.memory.allocated[stage.stage, index]
        assert stage.parts_bytes == {name: value[stage.stage, index] for name, value in parts.items()}
    times = grid.step.parts(grid.pricing)
    assert throughput.parts_seconds == {name: value[index] for name, value in times.items()}
    for stage_time, kind in zip(throughput.stages, grid.memory.contents.kind, strict=True):
        assert stage_time.forward_seconds == grid.step.work.forward[kind, index]
        assert stage_time.backward_seconds == grid.step.work.backward[kind, index]


@pytest.mark.parametrize(("model", "hardware", "question"), QUESTIONS)
def test_a_block_and_its_layouts_agree(model: str, hardware: str, question: dict[str, Any]) -> None:
    scenario = question_of(model, hardware, question)
    for block in drawn(scenario):
        grid = price(block)
        step = max(len(block) * 6 // SAMPLES, 1)
        for index in range(0, len(block), step):
            assert_same(scenario, grid, index)


@pytest.mark.parametrize(("model", "hardware", "question"), QUESTIONS)
def test_a_part_of_a_block_is_priced_like_the_block(model: str, hardware: str, question: dict[str, Any]) -> None:
    scenario = question_of(model, hardware, question)
    for all_layouts in filter(len, drawn(scenario)):
        kinds = len(all_layouts.contents.ranks)
        # As many layouts as kinds of ranks: what is told of either must not be taken for the other.
        for block in (all_layouts, all_layouts.take(np.arange(len(all_layouts)) < kinds)):
            whole, keep = price(block), np.flatnonzero(np.arange(len(block)) % 7 == len(block) // 2 % 7)
            for part in (price(block.take(keep)), timed(size(block).take(keep))):
                assert (part.device_bytes == whole.device_bytes[keep]).all()
                assert (part.verdict == whole.verdict[keep]).all()
                assert (part.step.total == whole.step.total[keep]).all()
                for name, value in part.memory.parts().items():
                    assert (value == whole.memory.parts()[name][:, keep]).all(), name


def test_layouts_of_mixed_shapes_keep_their_places() -> None:
    scenario = scenario_of("llama3.1-8b", devices=32)
    layouts = [drawn_block.block.layout(index) for drawn_block in drawn(scenario) for index in (0, 5, 3)]
    shuffled = layouts[1::2] + layouts[::2]
    seen: dict[int, float] = {}
    for places, pricing in pricings_of(scenario, shuffled):
        assert [pricing.block.layout(i) for i in range(len(pricing))] == [shuffled[place] for place in places]
        seen |= dict(zip(places, price(pricing).device_bytes, strict=True))
    expected = [estimate_layout(scenario, layout).memory.device_bytes for layout in shuffled]
    assert [seen[place] for place in range(len(shuffled))] == expected


def test_the_answer_does_not_depend_on_the_other_layouts() -> None:
    # A neighbour that binds at another moment or stage must not change the first.
    scenario = replace(scenario_of("llama3.1-8b", devices=32), seq_length=4096)
    block = drawn(scenario)[0].block
    first = block.layout(0)
    others = [block_of([first, block.layout(i)]) for i in range(1, len(block), 37)]
    answers = {float(price(Pricing(scenario, pair)).step.total[0]) for pair in others}
    assert answers == {float(price(pricing_of(scenario, first)).step.total[0])}
