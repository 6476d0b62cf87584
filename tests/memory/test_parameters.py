"""Parameters on a device: three classes with their own divisors, tied tables, and the sum over a whole model."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.memory.state import device_parameters, linear_by_class
from simulator.cost.operations.sums import total_parameters
from simulator.cost.stages import stage_contents
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from tests.memory.counted import mtp_parameters
from tests.scenario.cases import (
    block,
    by_stage,
    held_layers,
    layout_of,
    only,
    pricing,
    scenario_of,
    small_dense,
    small_mla,
    small_moe,
)

# A dense layer of h 64, q 64, k 32, f 160: q, k, v, o 64 (64 + 32 + 32 + 64) = 12288 and 3 x 64 x 160 = 30720 are
# split; two norms of 64 are not.
DENSE_SPLIT, DENSE_WHOLE = 43_008, 128
TABLE = 64_000
# A layer with experts: attention 12288 and the shared expert 3 x 64 x 48 = 9216 are split; norms 128 and the router
# 64 x 8 = 512 are not; 8 experts of 9216 are routed.
MOE_SPLIT, MOE_WHOLE, MOE_ROUTED = 21_504, 640, 73_728


def parameters(scenario: Scenario, **fields: object) -> tuple[list[float], list[float]]:
    here = pricing(scenario, **fields)
    found = device_parameters(here)
    return by_stage(found.dense, here.contents), by_stage(found.routed, here.contents)


def test_tensor_parallelism_divides_all_but_the_norms() -> None:
    scenario = scenario_of(small_dense())
    for t in (1, 2, 4):
        dense, routed = parameters(scenario, tensor_parallel=t)
        assert dense == [(4 * DENSE_SPLIT + 2 * TABLE) / t + 4 * DENSE_WHOLE + 64]
        assert routed == [0]


def test_pipeline_ranks_hold_their_layers_and_the_ends_a_table_each() -> None:
    dense, _ = parameters(scenario_of(small_dense()), pipeline_parallel=4, tensor_parallel=2)
    layer = DENSE_SPLIT / 2 + DENSE_WHOLE
    assert dense == [layer + TABLE / 2, layer, layer, layer + TABLE / 2 + 64]


def test_experts_are_divided_by_expert_parallelism_and_nothing_else() -> None:
    scenario = scenario_of(small_moe())
    for t, ep, etp in ((1, 1, 1), (2, 1, 1), (2, 4, 1), (4, 2, 1), (2, 2, 2), (4, 1, 4), (1, 8, 1)):
        dense, routed = parameters(scenario, tensor_parallel=t, expert_parallel=ep, expert_tensor_parallel=etp)
        assert routed == [3 * MOE_ROUTED / (ep * etp)]
        split, whole = DENSE_SPLIT + 3 * MOE_SPLIT + 2 * TABLE, DENSE_WHOLE + 3 * MOE_WHOLE + 64
        assert dense == [split / t + whole]


@given(
    tensor=st.sampled_from((1, 2, 4, 8)),
    expert=st.sampled_from((1, 2, 4, 8, 16, 32)),
    expert_tensor=st.sampled_from((1, 2, 4)),
    model=st.sampled_from(("deepseek-v3", "mixtral-8x7b-v0.1", "ernie-4.5-300b-a47b", "qwen3-30b-a3b")),
)
def test_the_routed_class_of_shipped_models(tensor: int, expert: int, expert_tensor: int, model: str) -> None:
    scenario = scenario_of(model, "h100-sxm-80g", devices=64)
    here = pricing(scenario, tensor_parallel=tensor, expert_parallel=expert, expert_tensor_parallel=expert_tensor)
    alone = pricing(scenario)
    spec = scenario.model
    routed = (
        3 * spec.hidden_size * spec.moe_intermediate_size * spec.num_experts * sum(kind.routed for kind in spec.layers)
    )
    found = device_parameters(here)
    assert only(found.routed) == routed / (expert * expert_tensor)
    whole = device_parameters(alone)
    assert only(whole.dense) + only(whole.routed) == total_parameters(spec)
    # What tensor parallelism divides is the rest; the undivided part is small in every model.
    assert only(whole.dense) / tensor <= only(found.dense) <= only(whole.dense)


def test_experts_are_not_divided_by_tensor_parallelism() -> None:
    scenario = scenario_of("deepseek-v3", "h100-sxm-80g", devices=64)
    _, one = parameters(scenario, tensor_parallel=1, expert_parallel=8)
    _, eight = parameters(scenario, tensor_parallel=8, expert_parallel=8)
    assert one == eight


def test_latent_down_projections_are_whole_on_every_rank() -> None:
    # Whole: q_a 64 x 40, kv_a 64 x (32 + 8), norms 64 + 64 + 40 + 32.
    # Split: q_b 40 x 96, kv_b 32 x 4 x 36, o 80 x 64, and the feed-forward network.
    whole = 2560 + 2560 + 200
    split = 3840 + 4608 + 5120 + 30_720
    dense, _ = parameters(scenario_of(small_mla()), tensor_parallel=4)
    assert dense == [4 * (split / 4 + whole) + 2 * TABLE / 4 + 64]


def test_tied_tables_live_once_on_one_rank_and_twice_on_a_pipeline() -> None:
    scenario = scenario_of(small_dense(tie_word_embeddings=True))
    alone, _ = parameters(scenario)
    assert alone == [4 * (DENSE_SPLIT + DENSE_WHOLE) + TABLE + 64]
    piped, _ = parameters(scenario, pipeline_parallel=2)
    half = 2 * (DENSE_SPLIT + DENSE_WHOLE) + TABLE
    assert piped == [half, half + 64]


@pytest.mark.parametrize(
    "name", ["llama3.1-8b", "llama3.2-1b", "qwen2.5-7b", "qwen3-4b", "mixtral-8x7b-v0.1", "deepseek-v3"]
)
@pytest.mark.parametrize("pipeline", [1, 2, 4, 8])
def test_the_stages_sum_to_the_model(name: str, pipeline: int) -> None:
    scenario = scenario_of(name, "h100-sxm-80g", devices=64)
    dense, routed = parameters(scenario, pipeline_parallel=pipeline)
    spec = scenario.model
    tied_copy = spec.vocab_size * spec.hidden_size if spec.tie_word_embeddings and pipeline > 1 else 0
    assert sum(dense) + sum(routed) == total_parameters(spec) + tied_copy


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen2.5-7b", "mixtral-8x7b-v0.1"])
def test_tensor_and_expert_ranks_sum_to_the_model_and_their_copies_of_the_norms(name: str) -> None:
    scenario = scenario_of(name, "h100-sxm-80g", devices=64)
    ep = 2 if scenario.model.is_moe else 1
    dense, routed = parameters(scenario, pipeline_parallel=4, tensor_parallel=4, expert_parallel=ep)
    spec = scenario.model
    norms = (2 * spec.num_hidden_layers + 1) * spec.hidden_size
    router = sum(kind.routed for kind in spec.layers) * spec.hidden_size * spec.num_experts
    assert 4 * sum(dense) + ep * sum(routed) == total_parameters(spec) + 3 * (norms + router)


def test_the_dense_layers_of_deepseek_v3_come_first() -> None:
    scenario = scenario_of("deepseek-v3", "h800-sxm-80g", devices=64)
    here = pricing(scenario, pipeline_parallel=4)
    assert held_layers(here.contents) == [3, 0, 0, 0]
    assert held_layers(here.contents, moe=True) == [12, 16, 15, 15]
    here = pricing(scenario, pipeline_parallel=4, stage_layers=(2, 4, 27, 28))
    assert held_layers(here.contents) == [2, 1, 0, 0]
    assert held_layers(here.contents, moe=True) == [0, 3, 27, 28]


def test_prediction_layers_live_on_the_last_rank_when_trained() -> None:
    without = scenario_of("deepseek-v3", "h800-sxm-80g", devices=64)
    trained = scenario_of("deepseek-v3", "h800-sxm-80g", devices=64, options={"mtp": "true"})
    plain = [sum(x) for x in zip(*parameters(without, pipeline_parallel=4), strict=True)]
    extra = [sum(x) for x in zip(*parameters(trained, pipeline_parallel=4), strict=True)]
    assert [b - a for a, b in zip(plain, extra, strict=True)] == [
        0,
        0,
        0,
        # The last rank embeds the next token: a copy of the table.
        mtp_parameters(without.model) + 129_280 * 7168,
    ]


def test_linear_parameters_are_what_fp8_caches() -> None:
    scenario = scenario_of(small_moe())
    here = pricing(scenario, tensor_parallel=2, expert_parallel=4)
    expected = DENSE_SPLIT / 2 + 3 * (MOE_SPLIT / 2 + 512 + MOE_ROUTED / 4)
    assert only(sum(linear_by_class(here))) == expected


def test_replica_groups() -> None:
    scenario = scenario_of(small_moe(), devices=64)
    here = block(scenario, tensor_parallel=4, context_parallel=2, pipeline_parallel=2, expert_parallel=8)
    # dp 4 x cp 2; the 4 x 2 x 4 = 32 ranks of a stage hold 4 copies of the 8 expert groups.
    assert only(here.replicas) == 8
    assert only(here.expert_replicas) == 4
    one = block(scenario, tensor_parallel=4, expert_parallel=8, expert_tensor_parallel=4)
    assert only(one.expert_replicas) == 2


def test_equal_ranks_are_one_kind() -> None:
    scenario = scenario_of("llama3.1-8b", devices=8)
    layout = layout_of(scenario, pipeline_parallel=8)
    has = stage_contents(scenario, block_of([layout]))
    assert list(has.kind) == [0, 1, 1, 1, 1, 1, 1, 2]
    assert list(has.ranks) == [1, 6, 1]
    uneven = stage_contents(scenario, block_of([replace(layout, stage_layers=(3, 5, 4, 4, 4, 4, 4, 4))]))
    assert list(uneven.kind) == [0, 1, 2, 2, 2, 2, 2, 3]
