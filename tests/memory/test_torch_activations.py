"""The torch profile keeps, to the byte, what autograd saves for one decoder layer of a real implementation.

The figures are the saved tensors of a Llama layer at s = 8192, b = 1 in bf16 with fused RMSNorm, flash attention with
native grouped queries and a SwiGLU of three separate operations; parameters are not counted.
"""

from typing import Any

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import layer_input_bytes
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import estimate_layout
from tests.scenario.cases import MIB, block, layer_bytes, layout_of, only, pricing, scenario_of

TABLES = {"rope_tables_per_call": "true"}
ROW_A = 1_376_845_824


def torch(options: dict[str, str] | None = None, *, model: str = "llama3.1-8b", **fields: Any) -> Scenario:
    return scenario_of(model, profile="torch", options=options, **({"devices": 1} | fields))


def one_layer(scenario: Scenario, **fields: object) -> float:
    return layer_bytes(scenario, block(scenario, **fields), moe=False)


def test_the_layer_is_exact_to_the_byte() -> None:
    # 2 s b (6 h + 2 k + 4 f) + 4 s b a + 8 s b with h 4096, k 1024, f 14336, a 32.
    by_hand = 2 * 8192 * (6 * 4096 + 2 * 1024 + 4 * 14336) + 4 * 8192 * 32 + 8 * 8192
    assert one_layer(torch()) == by_hand == ROW_A


@pytest.mark.parametrize(
    ("options", "mib"),
    [
        ({}, 1313.0625),
        (TABLES, 1321.0625),
        (TABLES | {"repeat_kv": "true"}, 1417.0625),
        ({"repeat_kv": "true"}, 1409.0625),
        (TABLES | {"fused_rms_norm": "false"}, 1705.0625),
    ],
)
def test_switches_of_the_layer(options: dict[str, str], mib: float) -> None:
    assert one_layer(torch(options)) == mib * MIB


def test_full_recompute_keeps_the_layer_input() -> None:
    scenario = torch()
    assert only(layer_input_bytes(pricing(scenario, recompute="full"))) == 67_108_864


def test_half_the_sequence_keeps_half() -> None:
    scenario = torch(TABLES, seq_length=4096)
    assert one_layer(scenario) == 1321.0625 / 2 * MIB


def test_two_sequences_share_the_rotary_tables() -> None:
    # 2 x 1313.0625 and one set of tables of 8.
    assert one_layer(torch(TABLES), micro_batch_size=2) == 2634.125 * MIB


def test_a_wider_model() -> None:
    assert one_layer(torch(TABLES, model="llama3.1-70b")) == 2602.0625 * MIB


@pytest.mark.parametrize(("tensor_parallel", "mib"), [(8, 556.2578125), (4, 848.515625)])
def test_gathered_norm_outputs_stay_whole_beside_the_split_rest(tensor_parallel: int, mib: float) -> None:
    scenario = torch(TABLES, model="llama3.1-70b", devices=tensor_parallel)
    fields = {"tensor_parallel": tensor_parallel, "sequence_parallel": True}
    assert one_layer(scenario, **fields) == mib * MIB


def test_full_recompute_keeps_the_rank_s_part_of_the_input() -> None:
    scenario = torch(TABLES, model="llama3.1-70b", devices=8)
    here = block(scenario, tensor_parallel=8, sequence_parallel=True, recompute="full")
    assert only(layer_input_bytes(Pricing(scenario, here))) == 16 * MIB


@pytest.mark.parametrize(("recompute", "layer"), [("none", ROW_A), ("selective", ROW_A), ("full", 67_108_864)])
def test_the_estimate_shows_the_layer(recompute: str, layer: int) -> None:
    # One layer, one sequence per device and step: what the loss finds alive is what the layer keeps.
    model = scenario_of("llama3.1-8b").model.with_layers(1)
    scenario = scenario_of(model, devices=1, profile="torch", global_batch_size=1)
    answer = estimate_layout(scenario, layout_of(scenario, zero_stage=3, recompute=recompute))
    assert answer.memory.moment == "loss"
    assert answer.memory.parts_bytes["activations"] == layer
