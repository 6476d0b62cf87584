"""Saved activations and parameters of every family's layers against numbers worked by hand.

h 64, f 160, 4 heads of 16 (q 64), 2 key-value heads (k 32), two sequences of 32 tokens: T = 64. A layer of that with
RMSNorm, rotation and SwiGLU keeps 2072 bytes per token: norms 520, q, k, v as projected 256, rotated q and k 192,
attention's output 128 and row sums 16, gate and up 640, their product 320.
"""

from typing import Any, get_args

import pytest

from simulator.cost.memory.activations import delayed_bytes, layer_bytes
from simulator.cost.operations.layer import MIXERS, layer_operations
from simulator.cost.operations.record import Conditions
from simulator.cost.operations.sums import total_parameters, weights_of
from simulator.errors import InputError
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import TRAITS, FeedForward, LayerKind, Mixer, ModelSpec
from tests.scenario.cases import only, pricing, scenario_of, small_dense, small_mla, small_moe

T = 64
PLAIN: dict[str, Any] = {
    "gated": False,
    "activation": "gelu",
    "norm": "layer_norm",
    "attention_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
}
DELTA: dict[str, Any] = {
    "linear_key_heads": 2,
    "linear_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "convolution": 4,
    "chunk_tokens": 8,
    "mixers": ("gated_delta",),
}
MAMBA: dict[str, Any] = {
    "mamba_heads": 4,
    "mamba_head_dim": 32,
    "mamba_groups": 2,
    "mamba_state": 16,
    "convolution": 4,
    "convolution_bias": True,
    "chunk_tokens": 16,
    "gated": False,
    "activation": "squared_relu",
    "rotary": False,
    "mixers": ("mamba", "none", "grouped_query"),
    "feed_forwards": ("none", "plain", "none"),
    "num_hidden_layers": 6,
}
INDEX: dict[str, Any] = {"index_heads": 2, "index_head_dim": 16, "index_topk": 8}


def saved_bytes(model: ModelSpec, kind: LayerKind | None = None, **fields: Any) -> float:
    """Bytes a layer keeps; the first kind unless told otherwise."""
    options = fields.pop("options", {})
    scenario = scenario_of(model, options=options, seq_length=32, global_batch_size=16)
    return only(layer_bytes(pricing(scenario, micro_batch_size=2, **fields), kind or model.layer_kinds[0]))


def weights(model: ModelSpec, mixer: Mixer, feed_forward: FeedForward) -> int:
    """Parameters of one layer."""
    operations = layer_operations(Conditions(model), LayerKind(mixer, feed_forward))
    return sum(weight.parameters for weight in weights_of(operations))


def test_gpt_with_learned_positions() -> None:
    model = small_dense(num_key_value_heads=4, rotary=False, learned_positions=32, **PLAIN)
    # LayerNorms 2 x (128 in + 8 + 128 out); q, k, v as projected 2 x 192, which attention reads; output 128; sums 16;
    # up 2 f and its GELU 2 f.
    assert saved_bytes(model) == T * (528 + 384 + 128 + 16 + 640)
    # Attention 4 h^2 + 4 h; network 2 h f + f + h; norms 4 h.
    assert weights(model, "grouped_query", "plain") == 4 * 64**2 + 4 * 64 + 2 * 64 * 160 + 160 + 64 + 4 * 64 == 37600
    # Four layers, table and output layer, 32 positions, last norm.
    assert total_parameters(model) == 4 * 37600 + 2 * 64000 + 32 * 64 + 128


def test_relu_keeps_what_it_makes_alone() -> None:
    plain = PLAIN | {"activation": "relu"}
    model = small_dense(num_key_value_heads=4, rotary=False, learned_positions=32, **plain)
    assert saved_bytes(model) == T * (528 + 384 + 128 + 16 + 320)


def test_alibi_norms_the_tokens_and_has_no_table() -> None:
    model = small_dense(num_key_value_heads=4, rotary=False, embedding_norm=True, **PLAIN)
    assert total_parameters(model) == 4 * 37600 + 2 * 64000 + 2 * 64 + 128


def test_a_parallel_residual_keeps_its_input_once() -> None:
    model = small_dense(num_key_value_heads=4, parallel_residual=True, **PLAIN)
    # Rotated q and k 2 x 128 more; the second norm reads the tensor that the first keeps.
    assert saved_bytes(model) == T * (528 - 128 + 384 + 256 + 128 + 16 + 640)
    shared = small_dense(num_key_value_heads=4, parallel_residual=True, shared_norm=True, **PLAIN)
    assert saved_bytes(shared) == T * (264 + 384 + 256 + 128 + 16 + 640)


def test_norms_behind_the_blocks() -> None:
    # The input of each block 2 h, the input of each norm 2 h + 4: as much as norms before; and the norm over all of q
    # and of k, one number each.
    model = small_dense(norm_placement="after", qk_norm=True, qk_norm_span="projection")
    assert saved_bytes(model) == T * (2072 + 8)
    assert weights(model, "grouped_query", "gated") == weights(small_dense(), "grouped_query", "gated") + 64 + 32


def test_norms_around_the_blocks() -> None:
    model = small_dense(norm_placement="around", activation="gelu")
    assert saved_bytes(model) == T * (2072 + 2 * (128 + 4))
    assert weights(model, "grouped_query", "gated") == weights(small_dense(), "grouped_query", "gated") + 2 * 64


def test_unweighted_norms() -> None:
    model = small_dense(qk_norm=True, qk_norm_span="unweighted")
    # fp32 per head of q and k: 4 x 6.
    assert saved_bytes(model) == T * (2072 + 24)
    assert total_parameters(model) == total_parameters(small_dense())


def test_gates_behind_attention() -> None:
    # Per feature: the gate in the projection's output, its sigmoid, and the product, 2 q each.
    model = small_dense(attention_gate="element")
    assert saved_bytes(model) == T * (2072 + 3 * 128)
    assert weights(model, "grouped_query", "gated") == weights(small_dense(), "grouped_query", "gated") + 64 * 64
    # Per head: the sigmoid 2 x 4 and the product.
    model = small_dense(attention_gate="head")
    assert saved_bytes(model) == T * (2072 + 8 + 128)
    assert weights(model, "grouped_query", "gated") == weights(small_dense(), "grouped_query", "gated") + 64 * 4


def test_values_of_another_width_than_keys() -> None:
    # v and output of 24 per head: 2 x (48 - 32) and 2 x (96 - 64) more.
    assert saved_bytes(small_dense(v_head_dim=24)) == T * (2072 + 32 + 64)


def test_experts_with_biases_and_sinks() -> None:
    model = small_moe(mlp_bias=True, router_bias=True, attention_sinks="all", first_k_dense_replace=0)
    plain = small_moe(first_k_dense_replace=0)
    # By expert 2 x 48 + 64; router 8; shared expert 2 x 48 + 64; sinks 4.
    more = 8 * (2 * 48 + 64) + 8 + (2 * 48 + 64) + 4
    assert total_parameters(model) - total_parameters(plain) == 4 * more
    assert saved_bytes(model) == saved_bytes(plain) == T * 2552


def test_a_shared_expert_of_its_own_width_behind_a_gate() -> None:
    own = {"shared_expert_intermediate_size": 80, "shared_expert_gate": True}
    model, plain = small_moe(first_k_dense_replace=0, **own), small_moe(first_k_dense_replace=0)
    # Inner tensors 6 x 80 instead of 6 x 48; the output 2 h and the gate 2 for the gate's product.
    assert saved_bytes(model) == T * (2552 + 6 * 32 + 128 + 2)
    assert total_parameters(model) - total_parameters(plain) == 4 * (3 * 64 * 32 + 64)


def test_experts_without_a_gate_on_a_narrow_state() -> None:
    narrow = {"expert_latent_size": 24, "gated": False, "activation": "squared_relu", "num_shared_experts": 0}
    model = small_moe(first_k_dense_replace=0, **narrow)
    # Attention and norms 1112; router 64; two copies: in and out 2 x 2 x 2 x 24, up and product 2 x 2 x 2 x 48; what
    # is projected back 2 x 24.
    assert saved_bytes(model) == T * (1112 + 64 + 192 + 384 + 48)
    networks = 8 * 2 * 24 * 48 + 2 * 64 * 24
    assert weights(model, "grouped_query", "experts") == weights(small_dense(), "grouped_query", "gated") - (
        3 * 64 * 160 - 64 * 8 - networks
    )


def test_gated_delta_net() -> None:
    model = small_dense(**DELTA)
    # Projection 2 x (2 x 32 + 2 x 96 + 2 x 4); q and k of four heads 2 x 2 x 64; v 2 x 96; triangles 2 x 4 x 8;
    # numbers 4 x (12 + 2); output 2 x 96, its norm 4 x 4, gated output 2 x 96. Norms 520, network 960.
    mixer = 528 + 256 + 192 + 64 + 56 + 192 + 16 + 192
    assert saved_bytes(model) == T * (520 + mixer + 960)
    # Products h x 264 and 96 x h; convolution 4 x 160; decay and step 2 x 4; norm 24.
    assert weights(model, "gated_delta", "gated") == 64 * 264 + 96 * 64 + 640 + 8 + 24 + 2 * 64 + 3 * 64 * 160
    assert saved_bytes(model, tensor_parallel=2, sequence_parallel=True) == T * (520 + mixer + 960) / 2


def test_lightning_attention() -> None:
    model = small_dense(mixers=("lightning",), chunk_tokens=8)
    # q, k, v as projected and behind SiLU 2 x 384; output 128, norm 4, its output, the gate and the product 128 each.
    mixer = 2 * 384 + 128 + 4 + 3 * 128
    assert saved_bytes(model) == T * (520 + mixer + 960)
    assert weights(model, "lightning", "gated") == 5 * 64**2 + 64 + 2 * 64 + 3 * 64 * 160


def test_filtered_attention() -> None:
    model, plain = small_dense(mixers=("filtered",)), small_dense()
    # What the convolutions read, 2 x 64 and 2 x 32; the filter's norm as every other, 2 x 64 + 4 + 2 x 64.
    assert saved_bytes(model) - saved_bytes(plain) == T * (128 + 64 + 260)
    # Two tokens into half the width and back, their biases, the norm.
    filters = 2 * 64 * 32 + 32 + 2 * 32 * 64 + 64 + 64
    assert weights(model, "filtered", "gated") - weights(plain, "grouped_query", "gated") == filters


def test_layers_of_one_part_each() -> None:
    model = small_dense(**MAMBA)
    state, network, attention = model.layer_kinds
    assert [kind.mixer for kind in model.layers] == ["mamba", "none", "grouped_query"] * 2
    # One norm 260; projection 2 x (2 x 128 + 64 + 4); scan, gated scan and normed scan 2 x 128 each; norm 4 x 2.
    assert saved_bytes(model, state) == T * (260 + 648 + 3 * 256 + 8)
    assert saved_bytes(model, network) == T * (260 + 640)
    assert saved_bytes(model, attention) == T * (260 + 256 + 128 + 16)
    # Products h x 324 and 128 x h; convolution (4 + 1) x 192; decay, step and skip 3 x 4; norms 128 and h.
    assert weights(model, "mamba", "none") == 64 * 324 + 128 * 64 + 960 + 12 + 128 + 64
    assert weights(model, "none", "plain") == 2 * 64 * 160 + 64


def test_sparse_latent_attention() -> None:
    model = small_mla(mixers=("sparse_latent", "shared_sparse_latent"), **INDEX)
    own, shared = model.layer_kinds
    # Index queries and key 2 x (32 + 16), weights 4 x 2, eight choices of 4 bytes.
    assert saved_bytes(model, own) == T * (2512 + 96 + 8 + 32)
    assert saved_bytes(model, shared) == T * 2512
    # Queries from 40 compressed features, key and weights from h, scale and bias of the key's norm.
    index = 40 * 32 + 64 * 16 + 64 * 2 + 2 * 16
    assert weights(model, "sparse_latent", "gated") == weights(model, "shared_sparse_latent", "gated") + index


def test_sparse_grouped_query_attention() -> None:
    model = small_dense(mixers=("sparse",), **INDEX)
    assert saved_bytes(model) == T * (2072 + 96 + 8 + 32)
    index = 64 * 32 + 64 * 16 + 2 * 16
    assert weights(model, "sparse", "gated") == weights(small_dense(), "grouped_query", "gated") + index


def test_sliding_layers_with_heads_of_their_own() -> None:
    own = {"sliding_attention_heads": 6, "sliding_key_value_heads": 3}
    model = small_dense(mixers=("sliding", "grouped_query"), sliding_window=8, attention_sinks="sliding", **own)
    sliding, full = model.layer_kinds
    # q 96 and k, v 48: projected 2 x 192, rotated 2 x 144, output 2 x 96, sums 4 x 6; norms 520, network 960.
    assert saved_bytes(model, sliding) == T * (520 + 384 + 288 + 192 + 24 + 960)
    assert saved_bytes(model, full) == T * 2072
    assert weights(model, "sliding", "gated") == weights(model, "grouped_query", "gated") + 64 * (2 * 32 + 2 * 16) + 6


def test_fewer_key_value_heads_than_ranks() -> None:
    # Four ranks, two key-value heads: the projection's output is gathered whole, 256; a rank's key is one head, 2 x 16;
    # all else is a quarter.
    whole, key = 256, 32
    expected = (2072 - whole - 64) / 4 + whole + key
    assert saved_bytes(small_dense(), tensor_parallel=4, sequence_parallel=True) == T * expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixers": ("sliding",)}, "mixer 'sliding' needs sliding_window of at least 1"),
        ({"sliding_window": 8}, "mixer 'sliding' is what sliding_window is for; this model has none"),
        ({"mixers": ("latent",)}, "mixer 'latent' needs attention 'mla'"),
        ({"feed_forwards": ("experts",)}, "feed_forwards and num_experts must agree"),
        ({"mixers": ("none",), "feed_forwards": ("none",)}, "is empty"),
        ({"mixers": ("sliding",), "sliding_window": 8, "sliding_key_value_heads": 3}, "4 sliding heads must be"),
    ],
)
def test_what_does_not_fit_together_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_dense(**changes)


def test_a_pattern_goes_on_when_layers_are_added() -> None:
    model = small_dense(**MAMBA)
    assert model.with_layers(8).layers == (*model.layers, *model.layers[:2])
    assert model.with_layers(2).layers == model.layers[:2]


def test_every_mixer_says_what_rules_ask_of_it() -> None:
    assert set(TRAITS) == set(get_args(Mixer)) == set(MIXERS)


def test_weight_gradients_computed_later() -> None:
    """Output gradients of every product, 2 bytes: q, k, v and the output, gate and up, down; of experts by copies."""
    dense, moe = (scenario_of(model, seq_length=32, global_batch_size=16) for model in (small_dense(), small_moe()))
    attention = 64 + 2 * 32 + 64

    def delayed(scenario: Scenario) -> float:
        return only(delayed_bytes(pricing(scenario, micro_batch_size=2), scenario.model.layer_kinds[-1]))

    assert delayed(dense) == T * 2 * (attention + 2 * 160 + 64)
    # Two of 8 experts each token, a shared one, the router; two copies of routed tokens wait for their exchange.
    of_copies = 2 * 48 + 64 + 2 * 64
    assert delayed(moe) == T * 2 * (attention + 8 + 2 * 48 + 64 + 2 * of_copies)


def test_share_of_listed_layers_by_kind() -> None:
    layers = {"recompute": "full", "recompute_method": "list", "recompute_layer_list": (0,)}
    assert pricing(scenario_of(small_moe()), **layers).contents.listed_shares.tolist() == [1.0, 0.0]
