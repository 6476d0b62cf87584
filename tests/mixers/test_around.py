"""What stands around a mixer and a network, and what each of them has beside its five figures, worked by hand.

The shapes of `by_hand`. A device has T = 32 tokens; norms, additions and residual streams are split over two ranks.
"""

from typing import Any

import pytest

from simulator.cost.operations.layer import FEED_FORWARDS, MIXERS, whole_operations
from simulator.cost.operations.record import Conditions, Operation, conditions_of, summed
from simulator.cost.operations.sums import layer_work, total
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import FeedForward, Mixer, ModelSpec
from tests.mixers import by_hand
from tests.mixers.by_hand import SPLIT, ByHand, T, W
from tests.scenario.cases import only, pricing, scenario_of, small_dense, small_moe

BESIDE_PRODUCTS = 0.5
"""Half of a layer's launches are a mixer's, half a network's (T12)."""


@pytest.mark.parametrize("name", [*MIXERS, *FEED_FORWARDS])
def test_a_mixer_and_a_network_have_half_of_a_layer_s_launches_each(name: Any) -> None:
    for registry, hand in ((MIXERS, by_hand.MIXERS), (FEED_FORWARDS, by_hand.FEED_FORWARDS)):
        if name in registry:
            operations = registry[name](Conditions(hand[name].model))
            assert sum(one.calls for one in operations) == (0.0 if name == "none" else BESIDE_PRODUCTS)


def question(hand: ByHand, precision: str) -> Scenario:
    return scenario_of(
        hand.model, seq_length=32, global_batch_size=16, devices=4 if hand.cut else 1, precision=precision
    )


def moved(hand: ByHand, operations: tuple[Operation, ...], precision: str) -> float:
    """Bytes of a forward pass on a device."""
    here = pricing(question(hand, precision), micro_batch_size=2, **(SPLIT if hand.cut else {}))
    return only(total(here, summed(amount for one in operations for amount in one.moved)))


OUTPUTS: dict[Mixer, float] = {
    **dict.fromkeys(("grouped_query", "sliding", "sparse", "filtered", "reused_grouped_query", "reused_sliding"), 64),
    **dict.fromkeys(("latent", "sparse_latent", "shared_sparse_latent"), 4 * 20),
    "gated_delta": 96,
    "lightning": 64,
    "mamba": 128,
    "selective_scan": 128,
    "kimi_delta": 32,
    **dict.fromkeys(("window_shared", "compressed_sparse", "heavily_compressed"), 2 * 12),
}
"""Features that go into a mixer's last product; `linear` has one product, and `none` none."""


@pytest.mark.parametrize("mixer", MIXERS)
def test_casts_of_a_mixer_s_products(mixer: Mixer) -> None:
    """fp8 writes an input and its transpose, a byte each, of 16-bit tensors that it reads: 4 of each number.

    Cast are the block's input, by tokens, and what goes into the last product, by heads.
    """
    hand = by_hand.MIXERS[mixer]
    wide, narrow = (
        moved(hand, MIXERS[mixer](conditions_of(question(hand, precision))), precision) for precision in ("bf16", "fp8")
    )
    tokens = T / 2 if hand.cut else W
    expected = 0.0 if mixer == "none" else 4 * 64 * tokens
    if mixer in OUTPUTS:
        expected += 4 * OUTPUTS[mixer] * tokens
    assert narrow - wide == expected
    assert set(OUTPUTS) == set(MIXERS) - {"linear", "none"}


WIDE = 160
CASTS: dict[FeedForward, float] = {
    # The input by tokens, f by width; of experts copies once for both passes, and what goes into each last product.
    "gated": T / 2 * 64 + T * WIDE / 2,
    "plain": T / 2 * 64 + T * WIDE / 2,
    "linear": T / 2 * 64,
    **dict.fromkeys(("experts", "hashed_experts"), by_hand.R * (2 / 3 * 64 + 48 / 2) + T * 48 / 2),
    "experts_beside": by_hand.R * (2 / 3 * 64 + 48 / 2) + T * 48 / 2 + T * WIDE / 2,
    "none": 0.0,
}


@pytest.mark.parametrize("network", FEED_FORWARDS)
def test_casts_of_a_network_s_products(network: FeedForward) -> None:
    hand = by_hand.FEED_FORWARDS[network]
    wide, narrow = (
        moved(hand, FEED_FORWARDS[network](conditions_of(question(hand, precision))), precision)
        for precision in ("bf16", "fp8")
    )
    assert narrow - wide == pytest.approx(4 * CASTS[network])


def around(model: ModelSpec, **fields: Any) -> tuple[float, float]:
    """Saved bytes of a token, and bytes moved in a forward pass, of a layer without its mixer and its network."""
    conditions = conditions_of(scenario_of(model, **fields))
    kind = model.layers[0]
    mixer, network = MIXERS[kind.mixer](conditions), FEED_FORWARDS[kind.feed_forward](conditions)
    inside = {one.name for one in (*mixer, *network)}
    outside = [one for one in whole_operations(conditions, kind) if one.name not in inside]
    saved = sum(tensor.amount for one in outside for tensor in one.saved)
    return saved, sum(amount.amount for one in outside for amount in one.moved)


NORM, ADDED = (2 * 64 + 4 + 2 * 64, 4 * 64), (0, 6 * 64)


@pytest.mark.parametrize(
    ("changes", "saved", "moves"),
    [
        # A norm saves input, number and output; it reads one tensor and writes one. An addition reads two.
        ({}, 2 * NORM[0], 2 * NORM[1] + 2 * ADDED[1]),
        ({"norm": "layer_norm"}, 2 * (NORM[0] + 4), 2 * NORM[1] + 2 * ADDED[1]),
        # Behind the blocks a norm's output is added and not kept; each block's input is.
        ({"norm_placement": "after"}, 2 * (2 * 64 + 2 * 64 + 4), 2 * NORM[1] + 2 * ADDED[1]),
        ({"norm_placement": "around"}, 2 * (NORM[0] + 2 * 64 + 4), 4 * NORM[1] + 2 * ADDED[1]),
        # One input of both blocks; its sum with both is two additions.
        ({"parallel_residual": True}, 2 * NORM[0] - 2 * 64, 2 * NORM[1] + 2 * ADDED[1]),
        ({"parallel_residual": True, "shared_norm": True}, NORM[0], NORM[1] + 2 * ADDED[1]),
        # transformers 5.23.0, models/deepseek_v4, DeepseekV4HyperConnection. Each of two blocks keeps its four streams,
        # 4 + 4 + 16 weights before and behind the Sinkhorn steps, and what it puts out; norm, product and sum read the
        # streams, the mix reads and writes them, the expansion writes, and their sum reads two and writes one.
        (
            {"residual_streams": 4},
            2 * (NORM[0] + 2 * 256 + 2 * 4 * 24 + 2 * 64),
            2 * (NORM[1] + 2 * (3 * 256 + 64) + 2 * (6 * 256 + 64)),
        ),
        # Megatron-Bridge 067f987, models/kimi/kimi_k3_layers.py: four layers in blocks of two. A bank of one or two
        # rows, one and a half on average, is read twice by score and sum beside the stream; the norm reads and writes.
        (
            {"residual_block": 2, "num_hidden_layers": 4},
            2 * (NORM[0] + 2 * 64 + 2 * 64 * (1 + 2) / (2 * 4) + 2 * 4 * (1.5 + 1)),
            2 * (NORM[1] + 2 * 64 * (2 * 1.5 + 3) + ADDED[1]),
        ),
        # Five layers are three blocks: two rows on average, six over all in ten passes.
        (
            {"residual_block": 2, "num_hidden_layers": 5},
            2 * (NORM[0] + 2 * 64 + 2 * 64 * (1 + 2 + 3) / (2 * 5) + 2 * 4 * (2 + 1)),
            2 * (NORM[1] + 2 * 64 * (2 * 2 + 3) + ADDED[1]),
        ),
        # transformers 5.23.0, models/gemma4, Gemma4TextDecoderLayer. The stream, four narrow tensors of 12, and the
        # norm of what is added. The stream is read for the gate and the sum, what is added written and read; the
        # activation reads and writes one narrow tensor, their product reads two and writes one, and the part is read.
        (
            {"layer_embedding_size": 12, "layer_embedding_rows": 100},
            2 * NORM[0] + 2 * 64 + 4 * 2 * 12 + 2 * 64 + 4,
            2 * NORM[1] + 2 * ADDED[1] + 2 * (4 * 64 + 6 * 12) + NORM[1],
        ),
    ],
)
def test_around_the_blocks(changes: dict[str, Any], saved: float, moves: float) -> None:
    assert list(around(small_dense(**changes))) == pytest.approx([saved, moves])


def test_a_layer_of_adapters_keeps_their_inner_tensors() -> None:
    """Of rank 8 two bytes each: of q, k and v together, the output, gate and up, and down.

    Of attention's two alone, the network's products are frozen: nobody reads what its norm puts out.
    """
    plain = around(small_dense())[0]
    assert around(small_dense(), lora_rank=8)[0] - plain == 4 * 2 * 8
    attention = around(small_dense(), lora_rank=8, options={"adapter_targets": "attention"})[0]
    assert attention - plain == 2 * 2 * 8 - 2 * 64


def saved_of(model: ModelSpec, **options: str) -> dict[str, float]:
    conditions = conditions_of(scenario_of(model, options=options))
    return {one.name: one.amount for part in FEED_FORWARDS["experts"](conditions) for one in part.saved}


def test_experts_of_a_narrow_state_with_a_norm() -> None:
    """Before the way back the norm keeps its input, 2 of each of 24 features, and an fp32 number a token."""
    plain = small_moe(first_k_dense_replace=0, expert_latent_size=24)
    normed = small_moe(first_k_dense_replace=0, expert_latent_size=24, expert_latent_norm=True)
    without, with_norm = saved_of(plain), saved_of(normed)
    assert without["latent_output"] == with_norm["latent_output"] == 2 * 24
    more = {name: size for name, size in with_norm.items() if name not in without}
    assert more == {"latent_norm_input": 2 * 24, "expert_norm_statistics": 4}


@pytest.mark.parametrize(
    ("options", "router", "outputs"),
    [
        # fp32 logits and probabilities of eight; weighted behind the experts, which keep 2 h for each copy.
        ({"probabilities_in_experts": "false"}, 2 * 4 * 8, {"expert_outputs": 2 * 64}),
        # Logits and a map of a byte, and of the two chosen six numbers (megatron-core 0.13, transformer/moe/router.py).
        ({"probabilities_in_experts": "true"}, (4 + 1) * 8 + 6 * 4 * 2, {}),
        # index_add_ keeps what it adds; scatter_add_ does not.
        (
            {"probabilities_in_experts": "true", "deterministic_kernels": "all"},
            (4 + 1) * 8 + 6 * 4 * 2,
            {"expert_outputs": 2 * 64},
        ),
    ],
)
def test_what_routing_keeps(options: dict[str, str], router: float, outputs: dict[str, float]) -> None:
    found = saved_of(small_moe(), **options)
    assert found["router"] == router
    assert {name: size for name, size in found.items() if name == "expert_outputs"} == outputs


@pytest.mark.parametrize(
    ("fields", "options", "kept"),
    [
        # Kernels of gated networks and of squared ReLU weigh what they put out; GELU's output is kept for the weights.
        ({}, {}, False),
        ({}, {"fused_swiglu": "false"}, True),
        ({"gated": False, "activation": "squared_relu"}, {}, False),
        ({"gated": False, "activation": "gelu"}, {}, True),
        ({"gated": False, "activation": "gelu"}, {"probabilities_in_experts": "false"}, False),
    ],
)
def test_what_no_kernel_weighs_is_kept(fields: dict[str, Any], options: dict[str, str], kept: bool) -> None:
    found = saved_of(small_moe(**fields), **({"probabilities_in_experts": "true"} | options))
    assert found.get("experts_unweighted", 0) == (found["experts_product"] if kept else 0)


def test_pooled_tokens_keep_every_token_s_choices() -> None:
    """All-gather: probabilities in fp32 and a mask for each expert, and another mask, of each token of all ranks."""
    found = saved_of(small_moe(), expert_dispatch="allgather")
    assert found["pooled_choices"] == (4 + 1 + 1) * 8


@pytest.mark.parametrize(
    ("graphs", "dense", "routed"),
    [
        # Half of a layer's launches are attention's; of a dense layer the network's are the other half, of one with
        # experts the router's (Megatron-LM core_v0.16.1, `--cuda-graph-scope`: attn, moe_router, mlp).
        ("none", 0.0, 0.0),
        ("attention", 0.5, 0.5),
        ("attention_router", 0.5, 1.0),
        ("network", 0.5, 0.0),
        ("layers", 1.0, 1.0),
        ("full_iteration", 1.0, 1.0),
    ],
)
def test_the_launches_that_graphs_hold(graphs: str, dense: float, routed: float) -> None:
    for model, captured in ((small_dense(), dense), (small_moe(first_k_dense_replace=0), routed)):
        conditions = conditions_of(scenario_of(model, options={"cuda_graphs": graphs}))
        found = layer_work(conditions, model.layer_kinds[-1])
        assert (found.calls, found.captured) == (1.0, captured)
