"""What a number per token is multiplied by on a device, spread by spread and layout by layout; islands reached.

T 64 tokens (two sequences of 32), 2 key-value heads, in sliding layers 3; 8 experts, 2 a token.
"""

import math
from typing import Any

import numpy as np
import pytest

from simulator.cost.operations.sums import expected_islands, extent, inner_context
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import load_model, only, pricing, scenario_of, small_dense, small_moe

T = 64
SPLIT: dict[str, Any] = {"tensor_parallel": 4, "sequence_parallel": True}
WHOLE: dict[str, Any] = {"tensor_parallel": 4, "sequence_parallel": False}
RING: dict[str, Any] = {"context_parallel": 4}
SLIDING: dict[str, Any] = {
    "num_attention_heads": 6,
    "mixers": ("sliding", "grouped_query"),
    "sliding_window": 4,
    "sliding_attention_heads": 6,
    "sliding_key_value_heads": 3,
}


def spread_over(spread: str, model: Any = None, options: dict[str, str] | None = None, **fields: Any) -> float:
    scenario = scenario_of(
        model or small_dense(**SLIDING), devices=16, seq_length=32, global_batch_size=64, options=options
    )
    return only(extent(pricing(scenario, micro_batch_size=2, **fields), spread))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spread", "alone", "split", "whole", "ring"),
    [
        ("whole", T, T, T, T / 4),
        ("sequence", T, T / 4, T, T / 4),
        # Only where there is something to scatter over.
        ("scattered", 0, T / 4, T, 0),
        ("tensor", T, T / 4, T / 4, T / 4),
        ("scores", 32 * T, 32 * T / 4, 32 * T / 4, 32 * T / 4),
        # Of one sequence, whatever the micro batch.
        ("positions", 32, 32, 32, 32 / 4),
        # Two heads on four ranks: a rank holds one.
        ("key_value", T, T / 2, T / 2, T / 4),
        ("projection", T, T, T, T / 4),
        ("gathered", 0, T, T, 0),
        ("ring", 0, 0, 0, T / 4),
        ("key_value_context", 0, 0, 0, T),
        ("sliding_key_value", T, T / 3, T / 3, T / 4),
        ("sliding_projection", T, T, T, T / 4),
        ("sliding_gathered", 0, T, T, 0),
        ("sliding_ring", 0, 0, 0, T / 4),
        ("sliding_key_value_context", 0, 0, 0, T),
        # Both sides of a window of four in both sequences: of one rank all, of four a third in each of three steps.
        ("window", 16, 16 / 3, 16 / 3, 16 / 3),
    ],
)
def test_tokens_and_heads(spread: str, alone: float, split: float, whole: float, ring: float) -> None:
    found = [spread_over(spread, **fields) for fields in ({}, SPLIT, WHOLE, RING)]
    assert found == pytest.approx([alone, split, whole, ring])


@pytest.mark.parametrize(
    ("spread", "split", "whole", "ring"),
    [
        ("whole", T, T, T / 2),
        ("sequence", T / 2, T, T / 2),
        ("scattered", T / 2, T, 0),
        ("tensor", T / 2, T / 2, T / 2),
        ("scores", 16 * T, 16 * T, 16 * T),
        ("positions", 32, 32, 16),
        # A head for each of two ranks.
        ("key_value", T / 2, T / 2, T / 2),
        ("projection", T / 2, T / 2, T / 2),
        ("gathered", 0, 0, 0),
        ("ring", 0, 0, T / 2),
        ("key_value_context", 0, 0, T),
        ("sliding_key_value", T / 2, T / 2, T / 2),
        ("sliding_ring", 0, 0, T / 2),
        ("sliding_key_value_context", 0, 0, T),
        ("window", 8, 8, 16),
    ],
)
def test_tokens_and_heads_of_two_ranks(spread: str, split: float, whole: float, ring: float) -> None:
    pairs: list[dict[str, Any]] = [{"tensor_parallel": 2, "sequence_parallel": word} for word in (True, False)]
    assert [spread_over(spread, **fields) for fields in (*pairs, {"context_parallel": 2})] == [split, whole, ring]


@pytest.mark.parametrize(("tensor", "expected"), [(1, (0, T)), (2, (0, T / 2)), (3, (T, T))])
def test_heads_are_gathered_where_ranks_are_more(tensor: int, expected: tuple[float, float]) -> None:
    """Two heads on two ranks are one each; a third rank has none of its own."""
    scenario = scenario_of(small_dense(), devices=tensor, seq_length=32, global_batch_size=64)
    extents = pricing(scenario, micro_batch_size=2, tensor_parallel=tensor)
    assert (only(extent(extents, "gathered")), only(extent(extents, "projection"))) == expected


@pytest.mark.parametrize(("context", "expected"), [(2, 16), (4, 16 / 3), (8, 16 / 7), (16, 16 / 15)])
def test_a_window_passes_no_more_than_a_rank_holds(context: int, expected: float) -> None:
    assert spread_over("window", context_parallel=context) == pytest.approx(expected)
    wide = SLIDING | {"sliding_window": 1000}
    assert spread_over("window", small_dense(**wide), context_parallel=context) == T / context


@pytest.mark.parametrize(
    ("fields", "copies", "inside"),
    [
        ({}, 2 * T, 2 * T),
        ({"expert_parallel": 2}, 2 * T, 2 * T),
        ({"expert_parallel": 4}, 2 * T, 2 * T),
        (SPLIT, 2 * T / 4, 2 * T / 4),
        # Four ranks of an expert gather the copies of each other's tokens, and work on a quarter of its width.
        (SPLIT | {"expert_tensor_parallel": 4}, 2 * T, 2 * T / 4),
        # Without sequence parallelism all four have the same tokens already.
        (WHOLE, 2 * T, 2 * T),
        (WHOLE | {"expert_tensor_parallel": 4}, 2 * T, 2 * T / 4),
        ({"expert_tensor_parallel": 4}, 8 * T, 2 * T),
    ],
)
def test_copies_of_tokens(fields: dict[str, Any], copies: float, inside: float) -> None:
    model = small_moe()
    for options, times in (({}, 1.0), ({"expert_imbalance": "1.5"}, 1.5)):
        assert spread_over("copies", model, options, **fields) == times * copies
        assert spread_over("copies_tensor", model, options, **fields) == times * inside
        exchanged = copies if fields.get("expert_parallel", 1) > 1 else 0
        assert spread_over("copies_exchanged", model, options, **fields) == times * exchanged
        ranks = fields.get("expert_parallel", 1) * fields.get("expert_tensor_parallel", 1)
        # Both of two experts of eight on one of n islands of 8 / n: C(8 - 8 / n, 2) / C(8, 2) miss one.
        reached = ranks * (1 - math.comb(8 - 8 // ranks, 2) / math.comb(8, 2))
        own = T / 4 if fields.get("sequence_parallel") else T
        assert spread_over("reached", model, options, **fields) == pytest.approx(times * own * reached)


def test_pairs_of_sequences_are_twice_as_many_tokens() -> None:
    options = {"sequences_per_sample": "2"}
    for spread, times in (("whole", 2), ("scores", 2), ("positions", 1), ("window", 2)):
        assert spread_over(spread, None, options, context_parallel=8) == times * spread_over(spread, context_parallel=8)


V3 = load_model("deepseek-v3")
"""256 experts, 8 a token, of four of eight groups."""


@pytest.mark.parametrize(
    ("islands", "expected"),
    [
        # As many islands as groups or fewer: four of eight groups are used.
        (1, 1.0),
        (2, 2 * (1 - math.comb(4, 4) / math.comb(8, 4))),
        (4, 4 * (1 - math.comb(6, 4) / math.comb(8, 4))),
        (8, 4.0),
        # More: of the 128 experts in the chosen groups, which half of the islands hold.
        (16, 8 * (1 - math.comb(112, 8) / math.comb(128, 8))),
        (64, 32 * (1 - math.comb(124, 8) / math.comb(128, 8))),
        (256, 8.0),
    ],
)
def test_groups_limit_the_islands_that_a_token_reaches(islands: int, expected: float) -> None:
    assert only(expected_islands(V3, np.array([float(islands)]))) == pytest.approx(expected)


def test_islands_of_several_layouts_are_each_their_own() -> None:
    sizes = [8.0, 2.0, 64.0, 2.0, 1.0]
    together = expected_islands(V3, np.array(sizes)).tolist()
    assert together == [only(expected_islands(V3, np.array([one]))) for one in sizes]
    # More experts asked for than there are outside an island: none is missed.
    few = small_moe(num_experts=4, num_experts_per_tok=3)
    assert only(expected_islands(few, np.array([2.0]))) == 2.0


@pytest.mark.parametrize(
    ("kind", "inner", "tensor", "context", "expected"),
    [
        ("ring", "0", 1, 4, 1),
        ("all_gather", "0", 1, 4, 1),
        ("all_to_all", "0", 1, 4, 4),
        # Eight devices a node: what tensor parallelism leaves, one at least, and no more than there are.
        ("all_to_all_ring", "0", 1, 16, 8),
        ("all_to_all_ring", "0", 2, 8, 4),
        ("all_to_all_ring", "0", 1, 4, 4),
        ("all_to_all_ring", "0", 16, 1, 1),
        ("all_to_all_ring", "2", 1, 16, 2),
        ("all_to_all_ring", "8", 1, 4, 4),
    ],
)
def test_ranks_that_exchange_tokens_for_heads(kind: str, inner: str, tensor: int, context: int, expected: int) -> None:
    options = {"cp_communication": kind, "cp_inner_degree": inner}
    scenario: Scenario = scenario_of(small_dense(), devices=16, options=options)
    assert only(inner_context(pricing(scenario, tensor_parallel=tensor, context_parallel=context))) == expected
