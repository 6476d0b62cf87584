"""DeepSeek-V4, Kimi-Linear, Gemma 4 and pruned layers: kept bytes and FLOPs of a token, worked by hand.

h 64, f 160, T = 64 (two sequences of 32). Where transformers 5.23.0 ran on the same shapes, what autograd saved is
beside the figure; kernels fuse the rest.
"""

from typing import Any

import pytest

from simulator.cost.memory.activations import layer_bytes
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Conditions, Operation
from simulator.cost.operations.sums import attended_share, total_parameters, weights_of
from simulator.cost.timing.products import forward_flops_per_token, layer_flops_per_token
from simulator.question.specs.model import LayerKind, ModelSpec
from simulator.search.rank import search
from simulator.search.space import Query, Space
from tests.scenario.cases import only, pricing, scenario_of, small_compressed, small_dense, small_mla

KIMI: dict[str, Any] = {
    "mixers": ("kimi_delta",),
    "linear_key_heads": 2,
    "linear_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "delta_gate_rank": 16,
    "convolution": 4,
    "chunk_tokens": 8,
}


def operation(model: ModelSpec, name: str, kind: LayerKind | None = None) -> Operation:
    listed = layer_operations(Conditions(model), kind or model.layer_kinds[0])
    return next(one for one in listed if one.name == name)


def saved_bytes(model: ModelSpec, kind: LayerKind | None = None) -> float:
    scenario = scenario_of(model, seq_length=32, global_batch_size=16)
    return only(layer_bytes(pricing(scenario, micro_batch_size=2), kind or model.layer_kinds[0])) / 64


def weights(*operations: Operation) -> int:
    return sum(weight.parameters for weight in weights_of(operations))


NETWORK = 2 * 64 + 4 + 2 * 64 + 2 * 2 * 160 + 2 * 160  # norm, gate and up, their product
NORM = 2 * 64 + 4 + 2 * 64


def test_a_window_over_one_tensor_of_keys_and_values() -> None:
    model = small_compressed("window_shared")
    # Latents 2 x (24 + 32), two statistics, the normed rank 48; queries 2 x 128 before their norm and behind it, a
    # number a head; keys 64; output 256 and row sums 16; both groups 2 x 24. Rotation is one kernel: no other output.
    attention = 112 + 8 + 48 + 256 + 16 + 256 + 64 + 256 + 16 + 48
    assert saved_bytes(model) == NORM + attention + NETWORK
    assert weights(*(operation(model, name) for name in ("shared_down", "shared_up"))) == (
        64 * 24 + 24 + 64 * 32 + 32 + 24 * 128
    )
    # Two groups of 64 features to 12 each, and both to h.
    assert weights(operation(model, "grouped_output"), operation(model, "output_projection")) == 64 * 24 + 24 * 64


def test_keys_that_an_indexer_chooses_from_every_fourth() -> None:
    model, plain = small_compressed("compressed_sparse"), small_compressed("window_shared")
    # 8 bytes of 2 x 32 features (autograd saves 1024 of 2 x 64), and 6 x 32 + 4 of every fourth token's key.
    keys, of_index = 8 * 64 + (6 * 32 + 4) / 4, 8 * 32 + (6 * 16 + 4) / 4
    # Queries of two heads of 16, their weights, and two choices.
    assert saved_bytes(model) == saved_bytes(plain) + keys + of_index + 2 * 32 + 4 * 2 + 4 * 2
    compressor = operation(model, "compressor")
    assert weights(compressor) == 2 * 64 * 64 + 4 * 64 + 32
    assert weights(operation(model, "index_compressor")) == 2 * 64 * 32 + 4 * 32 + 16
    assert weights(operation(model, "indexer")) == 24 * 32 + 64 * 2


def test_all_keys_of_sixteen_tokens() -> None:
    model, plain = small_compressed("heavily_compressed"), small_compressed("window_shared")
    # autograd saves 516 of 64 features and every 128th key; these formulas 515.
    assert saved_bytes(model) == saved_bytes(plain) + 8 * 32 + (6 * 32 + 4) / 16
    assert weights(operation(model, "compressor")) == 2 * 64 * 32 + 16 * 32 + 32


def test_flops_of_compressed_attention() -> None:
    s = 32
    sparse, heavy = small_compressed("compressed_sparse"), small_compressed("heavily_compressed")
    plain = scenario_of(small_compressed("window_shared"), seq_length=s)
    kind = plain.model.layer_kinds[0]
    matmuls = 64 * 24 + 64 * 32 + 24 * 128 + 64 * 24 + 24 * 64 + 3 * 64 * 160
    window = (s * 8 - 8**2 / 2) / (s**2 / 2)
    # Scores and values over 128 features of all heads; Megatron's convention counts the whole square.
    assert layer_flops_per_token(plain, kind) == pytest.approx(2 * matmuls + 4 * s * 128 * window)
    # A token t meets t / 16 keys: a sixteenth of the square.
    more = 2 * 2 * 64 * 32 + 4 * s * 128 / 16
    heavy_layer = layer_flops_per_token(scenario_of(heavy, seq_length=s), heavy.layer_kinds[0])
    assert heavy_layer == pytest.approx(2 * matmuls + 4 * s * 128 * window + more)
    # Two of t / 4 keys: min(t / 4, 2) of them. The indexer scores all t / 4, one product of 32 features.
    chosen = sum(min(t / 4, 2) for t in range(s * 1000)) / (s * 1000)
    assert attended_share(s * 1000, operation(sparse, "compressed_attention").core_window) * s * 1000 / 2 / 4 == (  # type: ignore[arg-type]
        pytest.approx(chosen, rel=1e-3)
    )
    products = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 24 * 32 + 64 * 2)
    share = (s * 8 - 8**2 / 2) / (s**2 / 2)
    more = products + 4 * s * 128 / 4 * share + 4 * s * 16 / 4
    sparse_layer = layer_flops_per_token(scenario_of(sparse, seq_length=s), sparse.layer_kinds[0])
    assert sparse_layer == pytest.approx(2 * matmuls + 4 * s * 128 * window + more)


def test_four_residual_streams() -> None:
    one, four = small_compressed("window_shared"), small_compressed("window_shared", residual_streams=4)
    # Each block: the streams, twice 24 fp32 weights, and what the block put out. (Megatron compiles the norm away;
    # transformers keeps 8 bytes a feature of all streams more.)
    assert saved_bytes(four) == saved_bytes(one) + 2 * (2 * 4 * 64 + 2 * 4 * 24 + 2 * 64)
    # Their mix is read three times and writes the block's input; they are read and written six times behind the block.
    residuals = [one for one in layer_operations(Conditions(four), four.layer_kinds[0]) if one.group == "residual"]
    moved = [sum(amount.amount for amount in one.moved) for one in residuals]
    assert moved == [2 * (3 * 256 + 64), 2 * (6 * 256 + 64)] * 2
    mixing = 24 * 4 * 64 + 24 + 3
    last = 4 * 4 * 64 + 4 + 1
    assert total_parameters(four) - total_parameters(one) == 2 * one.num_hidden_layers * mixing + last
    flops = [forward_flops_per_token(scenario_of(model, seq_length=32)) for model in (one, four)]
    assert flops[1] - flops[0] == 2 * (2 * one.num_hidden_layers * 24 * 256 + 4 * 256)


def test_no_framework_cuts_compressed_attention() -> None:
    scenario = scenario_of(small_compressed("window_shared"), devices=8)
    for space in (Space(tensor_parallel=(2,)), Space(tensor_parallel=(1,), context_parallel=(2,))):
        assert set(search(Query(scenario=scenario, space=space)).rejected) == {"undivided_attention"}


def test_kimi_delta_attention() -> None:
    model = small_dense(**KIMI)
    # q, k, v and two strengths 2 x 98, narrow inputs 2 x 32, the output gate 64; q and k 128, v 64, decays (4 + 2) x
    # 32, triangles 2 x 2 x 2 x 8, numbers 2 x 10; behind it output, gated output and a number a head.
    attention = 196 + 64 + 64 + 128 + 64 + 192 + 64 + 20 + 64 + 64 + 8
    assert saved_bytes(model) == NORM + attention + NETWORK
    products = 3 * 64 * 32 + 64 * 2 + 2 * 64 * 16 + 2 * 16 * 32 + 32 * 64
    vectors = 4 * 96 + 2 + 32 + 16
    block = [one for one in layer_operations(Conditions(model), model.layer_kinds[0]) if one.group != "norm"]
    assert weights(*block) == products + vectors + 3 * 64 * 160
    # Chunks of 8: 6 C k + 4 C v + 2 C^2 / 3 + 6 k v of every head.
    core = 2 * (6 * 8 * 16 + 4 * 8 * 16 + 2 * 64 / 3 + 6 * 256)
    flops = layer_flops_per_token(scenario_of(model, seq_length=32), model.layer_kinds[0])
    assert flops == pytest.approx(2 * (products + 3 * 64 * 160) + core)
    full = small_dense(**KIMI | {"delta_output_gate": "full"})
    assert total_parameters(full) - total_parameters(model) == full.num_hidden_layers * (64 * 32 - 64 * 16 - 16 * 32)


MAMBA: dict[str, Any] = {"mixers": ("selective_scan",), "feed_forwards": ("none",), "rotary": False, "convolution": 4}


def test_mamba_1() -> None:
    model = small_dense(**MAMBA, mamba_heads=128, mamba_state=16)
    # x and z 4 x 128; rank 4, B and C twice 2 x (4 + 4 x 16); the scan's output 256; 2 x 4 x 16 x 128 for 2048 tokens.
    assert saved_bytes(model) == NORM + 512 + 136 + 256 + 8
    scan = operation(model, "selective_scan")
    assert weights(scan) == 128 * (4 + 32) + 4 * 128 + 16 * 128 + 2 * 128
    assert scan.core_flops == 9 * 16 * 128


def test_the_parameters_of_a_published_mamba() -> None:
    """state-spaces/mamba-1.4b-hf: 48 layers of 2048 and 50,280 entries, 1,372,178,432 parameters."""
    sizes = {"num_hidden_layers": 48, "hidden_size": 2048, "vocab_size": 50280, "tie_word_embeddings": True}
    model = small_dense(**MAMBA, **sizes, mamba_heads=4096, mamba_state=16, convolution_bias=True)
    assert total_parameters(model) == 1_372_178_432


def test_latent_attention_without_positions_behind_a_gate() -> None:
    plain, gated = small_mla(), small_mla(rotary=False, attention_gate="element")
    width = plain.value_width
    assert saved_bytes(gated) - saved_bytes(plain) == 2 * width + 2 * width
    layers = plain.num_hidden_layers
    assert total_parameters(gated) - total_parameters(plain) == layers * plain.hidden_size * width
    moved = [operation(model, "rotation").moved for model in (plain, gated)]
    assert moved[0]
    assert not moved[1]


def test_residual_blocks_that_attention_reads() -> None:
    plain, blocks = small_dense(num_hidden_layers=4), small_dense(num_hidden_layers=4, residual_block=2)
    # Two a layer and one behind all: a norm and a score of h each.
    assert total_parameters(blocks) - total_parameters(plain) == (2 * 4 + 1) * (64 + 64)
    # The stream beside what is read of it; two blocks' banks of 1 and 2 rows over 4 layers; statistics of 2.5 rows.
    assert saved_bytes(blocks) - saved_bytes(plain) == 2 * (2 * 64 + 2 * 64 * 3 / 8 + 2 * 4 * 2.5)


def test_keys_for_values_and_heads_of_another_size() -> None:
    fields: dict[str, Any] = {"mixers": ("sliding", "grouped_query"), "sliding_window": 8, "qk_norm": True}
    fields |= {"head_dim": 32, "num_key_value_heads": 1, "sliding_head_dim": 16, "sliding_key_value_heads": 2}
    model = small_dense(**fields, keys_as_values=True, value_norm=True)
    sliding, full = model.layer_kinds
    assert weights(operation(model, "query_key_value", sliding)) == 64 * (64 + 2 * 32)
    assert weights(operation(model, "query_key_value", full)) == 64 * (128 + 32)
    # q and k as projected, the normed v, rotated q and k, numbers of 4 + 2 x 1 heads, output and row sums.
    attention = 2 * 160 + 2 * 32 + 2 * 160 + 4 * 6 + 2 * 128 + 16
    assert saved_bytes(model, full) == NORM + attention + NETWORK


def test_layers_that_reuse_keys_and_values() -> None:
    fields: dict[str, Any] = {"mixers": ("grouped_query", "reused_grouped_query"), "qk_norm": True}
    model = small_dense(**fields)
    reusing = model.layer_kinds[1]
    # q before its norm and rotated, a number a head, output and row sums.
    assert saved_bytes(model, reusing) == NORM + 128 + 128 + 16 + 128 + 16 + NETWORK
    assert weights(operation(model, "query", reusing), operation(model, "query_norm", reusing)) == 64 * 64 + 16


def test_an_embedding_that_every_layer_reads() -> None:
    plain = small_dense()
    model = small_dense(layer_embedding_size=12, layer_embedding_rows=100)
    layers = plain.num_hidden_layers
    assert total_parameters(model) - total_parameters(plain) == 100 * 12 * layers + 12 + layers * (3 * 64 * 12 + 64)
    # The stream, four narrow tensors, what goes into the norm and its number.
    assert saved_bytes(model) - saved_bytes(plain) == 2 * 64 + 8 * 12 + 2 * 64 + 4


def test_experts_beside_a_network() -> None:
    fields: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    model = small_dense(**fields, feed_forwards=("experts_beside",))
    plain = small_dense(**fields)
    assert all(kind.routed for kind in model.layers)
    assert model.num_dense_layers == model.num_hidden_layers
    # The network, three norms of h, the router's scales.
    more = 3 * 64 * 160 + 3 * 64 + 64 + 4
    assert total_parameters(model) - total_parameters(plain) == model.num_hidden_layers * more
    # The network's tensors; the norms keep input and number, that before the experts its output too.
    assert saved_bytes(model) - saved_bytes(plain) == 6 * 160 + 3 * (2 * 64 + 4) + 2 * 64


def test_pruned_layers() -> None:
    model = small_dense(
        num_hidden_layers=4,
        mixers=("grouped_query", "none", "linear", "grouped_query"),
        feed_forwards=("gated", "gated", "gated", "none"),
        intermediate_sizes=(160, 32, 48, 0),
    )
    assert [kind.width for kind in model.layers] == [160, 32, 48, 0]
    assert [model.of_kind(kind).intermediate_size for kind in model.layers] == [160, 32, 48, 160]
    whole, narrow, linear, bare = model.layers
    assert saved_bytes(model, narrow) == 2 * 64 + 4 + 2 * 64 + 6 * 32
    assert saved_bytes(model, whole) - saved_bytes(model, bare) == NETWORK
    assert weights(operation(model, "linear", linear)) == 64 * 64
    attention = 64 * 64 * 2 + 2 * 64 * 32
    table = 2 * model.vocab_size * 64
    # Six norms of parts that are there, and the last.
    assert total_parameters(model) == table + 2 * attention + 64 * 64 + 3 * 64 * (160 + 32 + 48) + 7 * 64


def test_experts_that_a_table_chooses_need_no_correction() -> None:
    fields: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    hashed = small_dense(**fields, router_bias=True, feed_forwards=("hashed_experts", "experts"), num_hidden_layers=4)
    plain = small_dense(**fields, router_bias=True, num_hidden_layers=4)
    assert total_parameters(plain) - total_parameters(hashed) == 2 * 4
