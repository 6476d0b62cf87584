"""The widest moment of a layer's backward pass, operation by operation, in numbers worked by hand.

h 64, f 160, 4 heads of 16, 2 key-value heads. A dense layer keeps 2072 bytes per token, 960 of them inside the
feed-forward network and 260 for the norm before attention; the residual stream is 128. W and Q are a weight of
the feed-forward width and one of the queries' width, in bytes.
"""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.moments import layer_backward_bytes
from simulator.question.specs.model import LayerKind, ModelSpec
from tests.memory.test_families import DELTA, MAMBA
from tests.scenario.cases import block, layer_kind, only, pricing, scenario_of, small_dense, small_moe

W, Q = 2 * 64 * 160, 2 * 64 * 64


def widest(model: ModelSpec, kind: LayerKind, tokens: int, *, keeps: bool, **fields: Any) -> float:
    scenario = scenario_of(model, seq_length=tokens, global_batch_size=16)
    return only(layer_backward_bytes(pricing(scenario, **fields), kind, np.array([float(keeps)])))


@pytest.mark.parametrize("keeps", [True, False])
def test_many_tokens_meet_at_the_product_of_gate_and_up(keeps: bool) -> None:
    """Gradients of product, silu and up, where the product is gone; the down projection's weight where it stays."""
    model = small_dense()
    found = widest(model, model.layer_kinds[0], 64, keeps=keeps)
    assert found == 64 * (2072 + 128 + 2 * 320) + W * keeps if keeps else 64 * (2072 + 128 + 320) + W


def test_a_split_stream_is_gathered_at_the_down_projection() -> None:
    """Two ranks: gathered 2 h beside half the product's gradient and half a weight's."""
    model = small_dense()
    split = {"tensor_parallel": 2, "sequence_parallel": True}
    found = widest(model, model.layer_kinds[0], 64, keeps=False, **split)
    assert found == 64 * (2072 + 128) / 2 + 64 * (128 + 160) + W / 2


def test_few_tokens_meet_at_the_last_of_three_projections() -> None:
    """Weights' gradients: those of the network and of the output projection, and of q with k and v on top of it.

    Of activations the norm's input and output, two gradients of its output, and the queries'.
    """
    model = small_dense()
    found = widest(model, model.layer_kinds[0], 4, keeps=True)
    assert found == 4 * (260 + 128 + 2 * 128 + 128) + 3 * W + Q + 2 * Q
    # Added to accumulated ones at once, only q's and those of k and v are alive: less than a product's three tensors.
    found = widest(model, model.layer_kinds[0], 4, keeps=False)
    assert found == 4 * (2072 + 128 + 320) + W


def test_tensor_parallel_ranks_halve_all_but_the_stream() -> None:
    """Few tokens: the norm and the stream are the rank's half of the tokens, what is gathered for products is whole."""
    model = small_dense()
    split = {"tensor_parallel": 2, "sequence_parallel": True}
    found = widest(model, model.layer_kinds[0], 4, keeps=True, **split)
    assert found == 4 * (260 + 128) / 2 + 4 * (2 * 128 + 128 / 2) + (3 * W + Q + 2 * Q) / 2


def test_a_network_alone() -> None:
    """Without a gate one product reads the input; nothing is rotated or scanned."""
    model = small_dense(**MAMBA)
    alone = model.layer_kinds[1]
    assert widest(model, alone, 64, keeps=True) == 64 * (260 + 640 + 128 + 2 * 320) + W
    # Few tokens: its input's gradient and the second weight's, when both inner tensors are gone.
    assert widest(model, alone, 4, keeps=True) == 4 * (260 + 640 + 128 + 128 + 320 - 640) + 2 * W


def test_attention_alone() -> None:
    """Without a network the gradients of its weights are missing: the output projection's, q's, those of k and v."""
    model = small_dense(**MAMBA)
    found = widest(model, model.layer_kinds[2], 4, keeps=True)
    assert found == 4 * (260 + 128 + 2 * 128 + 128) + 3 * Q
    # Many tokens: three products in fp32 and the gradients of keys and values, beside the output projection's.
    found = widest(model, model.layer_kinds[2], 64, keeps=True)
    assert found == 64 * (260 + 128 + 3 * 256 + 128) + Q


def test_a_scan_alone() -> None:
    """Gradients of all that the projection made, of its gathered input, and of its weight."""
    model = small_dense(**MAMBA)
    kept = 260 + 648 + 768 + 8
    for tokens in (4, 64):
        found = widest(model, model.layer_kinds[0], tokens, keeps=True)
        assert found == tokens * (kept + 128 + 648 + 128) + 2 * 64 * 324


def test_a_scan_before_a_network() -> None:
    """The wider of both: with many tokens the scan, with few the network's three weights."""
    model = small_dense(**DELTA)
    mixer = 528 + 256 + 192 + 64 + 56 + 192 + 16 + 192
    kept = 520 + mixer + 960
    assert widest(model, model.layer_kinds[0], 64, keeps=True) == 64 * (kept + 128 + 448 + 128) + 2 * 64 * 264
    few = widest(model, model.layer_kinds[0], 4, keeps=True)
    assert few == 4 * (kept + 128 + 2 * 128 + 320 - 960) + 3 * W


@pytest.mark.parametrize(("experts", "biased"), [(1, False), (2, False), (1, True)])
def test_experts(experts: int, biased: bool) -> None:
    """Two copies a token: gradients of gate and up and of what goes in and out; the largest weight, all of a rank's."""
    model = small_moe(mlp_bias=biased)
    kind = layer_kind(model, moe=True)
    found = widest(model, kind, 64, keeps=True, expert_parallel=experts)
    assert found == 64 * (2552 + 128 + 2 * 2 * (2 * 48 + 2 * 64)) + 2 * 8 * 64 * 48 / experts


def test_scores_done_again_are_back_beside_all_that_the_layer_kept() -> None:
    """Two bytes for each of 512 scores of four heads, and attention's output; their gradient with the network gone."""
    model, options = small_dense(), {"flash_attention": "false"}
    scenario = scenario_of(model, seq_length=512, global_batch_size=16, options=options)
    here = block(scenario, recompute="selective")
    found = only(layer_backward_bytes(Pricing(scenario, here), model.layer_kinds[0], np.array([1.0])))
    kept, back = 2072 - 16 - 128, 2 * 4 * 512 + 128
    network, weights = 640 + 320, 2 * 3 * 64 * 160
    assert found == 512 * (kept + back + 128 + 2 * 4 * 512 - network) + weights


@pytest.mark.parametrize(
    ("kind", "gathered"),
    [
        # Keys and values of all ranks and the gradients of both, before rotation.
        ("all_gather", 8 * 2 * 128),
        # No gradients of all: three fp32 tensors of a rank's own, 16-bit keys and values joined, the queries' in fp32.
        ("gathered_ring", 8 * 128 + (3 * 4 + 2) * 64 + 4 * 64),
    ],
)
def test_gathered_keys_and_values_meet_their_gradients(kind: str, gathered: int) -> None:
    """Eight ranks share a sequence (PyTorch 2.13, `_templated_ring_attention_backward`: gradients go round)."""
    model = small_dense()
    scenario = scenario_of(model, seq_length=512, global_batch_size=16, options={"cp_communication": kind})
    here = block(scenario, context_parallel=8)
    found = only(layer_backward_bytes(Pricing(scenario, here), model.layer_kinds[0], np.array([0.0])))
    core = 3 * 128 + 128 + gathered
    assert found == 64 * (260 + 128 + core)
