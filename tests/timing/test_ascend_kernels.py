"""What MindSpeed's kernels do to the time of a layer, worked by hand and held to what its documents say."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.timing.layers import Parts, layer_seconds, sum_parts
from simulator.cost.timing.products import memory_rate
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from tests.scenario.cases import load_model, only, pricing, scenario_of

MIXTRAL = load_model("mixtral-8x7b-v0.1")
SEQUENCE = 4096


def ascend(model: ModelSpec | str, options: dict[str, str], **layout: int) -> tuple[Scenario, Parts, Parts]:
    """A scenario on 8 devices, and both passes of its first layer by part, seconds."""
    scenario = scenario_of(model, "ascend-910b-64g-8", options=options, seq_length=SEQUENCE, global_batch_size=64)
    tensor = layout.get("tensor_parallel", 1) > 1
    timer = pricing(scenario, sequence_parallel=tensor, micro_batch_size=1, **layout)
    found = layer_seconds(timer, scenario.model.layer_kinds[0])
    return scenario, found.forward, found.backward


def seconds(parts: Parts) -> float:
    return only(sum_parts(parts))


def both(model: ModelSpec | str, options: dict[str, str], **layout: int) -> float:
    _, forward, backward = ascend(model, options, **layout)
    return seconds(forward) + seconds(backward)


def test_a_whole_mask_is_read_once_a_pass() -> None:
    scenario, *without = ascend("llama3.1-8b", {"attention_mask": "compressed"})
    _, *masked = ascend("llama3.1-8b", {"attention_mask": "sequence"})
    more = sum(map(seconds, masked)) - sum(map(seconds, without))
    # A byte for each score of the causal half of 32 heads, forward and backward.
    assert more * memory_rate(scenario) == pytest.approx(2 * 32 * SEQUENCE**2 / 2)


@pytest.mark.parametrize(("hardware", "narrow", "wide"), [("ascend-910b-64g-8", 1.0, 2.0), ("h100-sxm-80g", 0.5, 2.0)])
def test_scores_of_narrow_heads_cost_as_much_on_vector_cores(hardware: str, narrow: float, wide: float) -> None:
    """Heads of 64 and 256 against 128: what is done for a score sets the pace of CANN's kernel below 128."""

    def attention(head: int) -> float:
        model = replace(load_model("llama3.1-8b"), head_dim=head)
        scenario = scenario_of(model, hardware, seq_length=SEQUENCE, global_batch_size=64)
        timer = pricing(scenario, micro_batch_size=1)
        return only(layer_seconds(timer, scenario.model.layer_kinds[0]).forward["attention"])

    assert attention(64) == pytest.approx(narrow * attention(128))
    assert attention(256) == pytest.approx(wide * attention(128))


def test_an_overlapped_collective_hides_behind_its_own_product_alone() -> None:
    def left(model: str, word: str) -> float:
        _, forward, backward = ascend(model, {"tp_comm_overlap": word}, tensor_parallel=8)
        return only(forward["tensor_parallel"]) + only(backward["tensor_parallel"])

    # Attention's products of a model of hidden size 4096 are shorter than what they run beside, of 16,384 not.
    shown = [left(model, "true") / left(model, "false") for model in ("llama3.1-8b", "llama3.1-405b")]
    assert 1.01 * shown[1] < shown[0] < 1.0


def test_experts_one_by_one_cost_part_of_what_grouped_products_are_said_to_gain() -> None:
    """MindSpeed, megatron-moe-gmm.md, table 2: 18 % with 8 experts of Mixtral on TP 4, EP 2, 44 % with 16."""
    gains = []
    for experts in (8, 16):
        model = replace(MIXTRAL, num_experts=experts)
        layout = {"tensor_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 4}
        grouped, sliced = (both(model, {"sliced_experts": word}, **layout) for word in ("false", "true"))
        gains.append(sliced / grouped - 1.0)
    assert 0.04 < gains[0] < 0.18
    assert 1.5 * gains[0] < gains[1] < 0.44


def test_slices_are_copied_whole_by_every_expert() -> None:
    scenario, *grouped = ascend(MIXTRAL, {})
    _, *sliced = ascend(MIXTRAL, {"sliced_experts": "true"})
    more = [(seconds(one) - seconds(other)) * memory_rate(scenario) for one, other in zip(sliced, grouped, strict=True)]
    outputs = 2.0 * SEQUENCE * 2 * 4096
    assert np.allclose(more, [3 * outputs, 6 * 8 * outputs])


def test_gathers_by_element_move_six_times_what_gathers_by_row_do() -> None:
    scenario, *rows = ascend(MIXTRAL, {"indexed_dispatch": "false"})
    _, *elements = ascend(MIXTRAL, {"indexed_dispatch": "true"})
    more = (sum(map(seconds, elements)) - sum(map(seconds, rows))) * memory_rate(scenario)
    # Both passes of dispatch and combine: 92 bytes a feature for three passes of 5.
    assert more == pytest.approx(2 * (92 - 3 * 5) * SEQUENCE * 2 * 4096)
