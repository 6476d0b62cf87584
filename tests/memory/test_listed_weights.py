"""Every weight of every kind of layer: what goes in, what comes out, how it is cut, worked out from its block's widths.

h 64, f 160, 4 heads of 16, 2 key-value heads. A vector is 1 x its length and multiplied with nothing.
"""

from typing import Any

import pytest

from simulator.cost.operations.blocks import embedding, inputs, output_layer, prediction
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Conditions, Operation
from simulator.cost.operations.sums import Product, layer_work, weights_of
from simulator.question.frameworks.stacks import framework
from simulator.question.specs.model import ModelSpec
from tests.memory.test_families import DELTA, INDEX, MAMBA
from tests.scenario.cases import small_dense, small_mla, small_moe

Row = tuple[int, int, str]
"""Inputs, outputs, cut."""
BIASED = {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True}


def listed(operations: tuple[Operation, ...], *, matmul: bool) -> dict[str, Row]:
    return {one.name: (one.inputs, one.outputs, one.split) for one in weights_of(operations) if one.matmul is matmul}


def columns(**outputs: int) -> dict[str, Row]:
    return {name: (64, width, "column") for name, width in outputs.items()}


def vectors(split: str = "column", **lengths: int) -> dict[str, Row]:
    return {name: (1, length, split) for name, length in lengths.items()}


NETWORK = columns(gate=160, up=160) | {"down": (160, 64, "row")}
NORMS = vectors("replicated", input_norm=64, post_attention_norm=64)
LATENT: dict[str, Row] = {
    "q_a": (64, 40, "replicated"),
    "kv_a": (64, 32 + 8, "replicated"),
    "q_b": (40, 4 * 24, "column"),
    "kv_b": (32, 4 * (16 + 20), "column"),
    "o": (4 * 20, 64, "row"),
}
ROUTED: dict[str, Row] = {
    "router": (64, 8, "replicated"),
    "expert_gate": (64, 48, "expert_column"),
    "expert_up": (64, 48, "expert_column"),
    "expert_down": (48, 64, "expert_row"),
}
SHARED = columns(shared_gate=48, shared_up=48) | {"shared_down": (48, 64, "row")}
QUERIES = columns(q=64, k=32, v=32) | {"o": (64, 64, "row")}


@pytest.mark.parametrize(
    ("model", "products", "others"),
    [
        (small_dense(), QUERIES | NETWORK, NORMS),
        (
            small_dense(**BIASED),
            QUERIES | NETWORK,
            NORMS
            | vectors(q_bias=64, k_bias=32, v_bias=32, gate_bias=160, up_bias=160)
            | vectors("replicated", o_bias=64, down_bias=64),
        ),
        # A gate for each head has no bias, one for each feature has.
        (
            small_dense(attention_gate="head", attention_bias=True),
            QUERIES | columns(g=4) | NETWORK,
            NORMS | vectors(q_bias=64, k_bias=32, v_bias=32),
        ),
        (
            small_dense(attention_gate="element", attention_bias=True),
            QUERIES | columns(g=64) | NETWORK,
            NORMS | vectors(q_bias=64, k_bias=32, v_bias=32, g_bias=64),
        ),
        (small_dense(qk_norm=True), QUERIES | NETWORK, NORMS | vectors("replicated", q_norm=16, k_norm=16)),
        (
            small_dense(qk_norm=True, qk_norm_span="projection", attention_sinks="all"),
            QUERIES | NETWORK,
            NORMS | vectors(q_norm=64, k_norm=32, sinks=4),
        ),
        (
            small_dense(norm="layer_norm", gated=False, activation="gelu"),
            QUERIES | columns(up=160) | {"down": (160, 64, "row")},
            NORMS | vectors("replicated", input_norm_bias=64, post_attention_norm_bias=64),
        ),
        (small_dense(norm="layer_norm_unweighted"), QUERIES | NETWORK, {}),
        (small_mla(), LATENT | NETWORK, NORMS | vectors("replicated", kv_a_norm=32, q_a_norm=40)),
        (
            small_mla(q_lora_rank=None),
            {name: row for name, row in LATENT.items() if name not in ("q_a", "q_b")} | columns(q=4 * 24) | NETWORK,
            NORMS | vectors("replicated", kv_a_norm=32),
        ),
        (
            small_mla(mixers=("sparse_latent",), **INDEX),
            LATENT
            | NETWORK
            | {"index_q": (40, 32, "replicated"), "index_k": (64, 16, "replicated")}
            | {"index_weights": (64, 2, "replicated")},
            NORMS | vectors("replicated", kv_a_norm=32, q_a_norm=40, index_k_norm=16, index_k_norm_bias=16),
        ),
        (
            small_mla(mixers=("sparse_latent",), q_lora_rank=None, **INDEX),
            {name: row for name, row in LATENT.items() if name not in ("q_a", "q_b")}
            | columns(q=4 * 24)
            | NETWORK
            | {"index_q": (64, 32, "replicated"), "index_k": (64, 16, "replicated")}
            | {"index_weights": (64, 2, "replicated")},
            NORMS | vectors("replicated", kv_a_norm=32, index_k_norm=16, index_k_norm_bias=16),
        ),
        (
            small_dense(mixers=("sparse",), **INDEX),
            QUERIES | NETWORK | {"index_q": (64, 32, "replicated"), "index_k": (64, 16, "replicated")},
            NORMS | vectors("replicated", index_q_norm=16, index_k_norm=16),
        ),
        (small_moe(first_k_dense_replace=0), QUERIES | ROUTED | SHARED, NORMS),
        (
            small_moe(first_k_dense_replace=0, mlp_bias=True, router_bias=True, shared_expert_gate=True),
            QUERIES | ROUTED | SHARED | {"shared_expert_gate": (64, 1, "replicated")},
            NORMS
            | vectors(shared_gate_bias=48, shared_up_bias=48)
            | vectors("expert_column", expert_gate_bias=48, expert_up_bias=48)
            | vectors("expert_row", expert_down_bias=64)
            | vectors("replicated", router_bias=8, shared_down_bias=64),
        ),
        # Experts on a state of 24: projected into it and back, each with a bias of its output.
        (
            small_moe(
                first_k_dense_replace=0, num_shared_experts=0, expert_latent_size=24, gated=False, activation="relu"
            ),
            QUERIES
            | {"router": (64, 8, "replicated"), "latent_into": (64, 24, "replicated")}
            | {"latent_back": (24, 64, "replicated")}
            | {"expert_up": (24, 48, "expert_column"), "expert_down": (48, 24, "expert_row")},
            NORMS,
        ),
        (
            small_moe(
                first_k_dense_replace=0,
                num_shared_experts=0,
                expert_latent_size=24,
                gated=False,
                activation="relu",
                mlp_bias=True,
            ),
            QUERIES
            | {"router": (64, 8, "replicated"), "latent_into": (64, 24, "replicated")}
            | {"latent_back": (24, 64, "replicated")}
            | {"expert_up": (24, 48, "expert_column"), "expert_down": (48, 24, "expert_row")},
            NORMS
            | vectors("replicated", latent_into_bias=24, latent_back_bias=64)
            | vectors("expert_column", expert_up_bias=48)
            | vectors("expert_row", expert_down_bias=24),
        ),
        (
            small_dense(**DELTA),
            columns(q=32, k=32, v=96, z=96, a=4, b=4) | {"o": (96, 64, "row")} | NETWORK,
            NORMS
            | vectors(decay=4, step_bias=4)
            | {"convolution": (4, 32 + 32 + 96, "column")}
            | vectors("replicated", scan_norm=24),
        ),
        (
            small_dense(mixers=("lightning",), chunk_tokens=8),
            columns(q=64, k=64, v=64, g=64) | {"o": (64, 64, "row")} | NETWORK,
            NORMS | vectors(scan_norm=64),
        ),
        (
            small_dense(**MAMBA),
            columns(z=128, x=128, b=32, c=32, step=4) | {"o": (128, 64, "row")},
            vectors("replicated", input_norm=64)
            | {"convolution": (4, 192, "column")}
            | vectors(convolution_bias=192, decay=4, step_bias=4, skip=4, scan_norm=128),
        ),
    ],
)
def test_a_layer_s_weights(model: ModelSpec, products: dict[str, Row], others: dict[str, Row]) -> None:
    operations = layer_operations(Conditions(model), model.layer_kinds[0])
    assert listed(operations, matmul=True) == products
    assert listed(operations, matmul=False) == others
    copies = {one.copies for one in weights_of(operations) if one.routed}
    assert copies <= {8}
    assert all(one.copies == 1 for one in weights_of(operations) if not one.routed)
    assert len(weights_of(operations)) == len(products) + len(others)


def test_what_stands_before_and_behind_the_layers() -> None:
    """The table is looked up, the output layer multiplied, whether or not both are one storage."""
    for tied in (False, True):
        given = Conditions(small_dense(tie_word_embeddings=tied, num_nextn_predict_layers=2))
        assert listed((embedding(given),), matmul=False) == {"embedding": (1000, 64, "vocabulary")}
        assert listed(output_layer(given), matmul=True) == {"head": (64, 1000, "vocabulary")}
        assert listed(output_layer(given), matmul=False) == vectors("replicated", final_norm=64)
        assert listed(prediction(given), matmul=True) == {"eh_proj": (128, 64, "column")}
        names = {f"mtp_{name}_norm": 64 for name in ("embedding", "hidden", "final")}
        assert listed(prediction(given), matmul=False) == vectors("replicated", **names)
    assert inputs(Conditions(small_dense())) == prediction(Conditions(small_dense())) == ()
    first = Conditions(small_dense(rotary=False, learned_positions=32, embedding_norm=True))
    assert listed(inputs(first), matmul=False) == {"positions": (32, 64, "replicated")} | vectors(
        "replicated", embedding_norm=64
    )


def products(model: ModelSpec, **options: str) -> tuple[list[Product], list[Product]]:
    work = layer_work(Conditions(model, framework("megatron", options)), model.layer_kinds[0])
    return list(work.shapes), list(work.grouped)


@pytest.mark.parametrize("fused", [True, False])
def test_products_that_read_one_input_and_are_cut_alike_are_one(fused: bool) -> None:
    """Queries, keys and values; gate and up, of routed experts apart; not the router, which is whole on every rank."""
    option = {"fused_projections": str(fused).lower()}
    joined: list[Any] = [128] if fused else [64, 32, 32]
    attention = [*(Product(64, width, "column") for width in joined), Product(64, 64, "row")]
    inner = [Product(64, 320, "column")] if fused else [Product(64, 160, "column")] * 2
    assert products(small_dense(), **option) == ([*attention, *inner, Product(160, 64, "row")], [])
    shared = [Product(64, 96, "column")] if fused else [Product(64, 48, "column")] * 2
    routed = [Product(64, 96, "expert_column")] if fused else [Product(64, 48, "expert_column")] * 2
    assert products(small_moe(first_k_dense_replace=0), **option) == (
        [*attention, Product(64, 8, "replicated"), *shared, Product(48, 64, "row")],
        [*routed, Product(48, 64, "expert_row")],
    )
