"""What the tensors of a layer are spread over, where mixers and stacks differ in it; and shares of launches."""

from typing import Any

import pytest

from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Amount, Collective, Conditions, Operation, Saved
from simulator.cost.operations.sums import layer_work
from simulator.question.frameworks.stacks import framework
from simulator.question.specs.model import LayerKind, ModelSpec
from tests.memory.test_families import DELTA, INDEX, MAMBA
from tests.scenario.cases import small_dense, small_mla, small_moe

BOTH: dict[str, Any] = {"mixers": ("sliding", "grouped_query"), "sliding_window": 8}
BOTH |= {"sliding_attention_heads": 6, "sliding_key_value_heads": 3}
COMMON = {"whole", "sequence", "scattered", "tensor", "scores", "positions"}


def listed(model: ModelSpec, kind: LayerKind, **options: str) -> tuple[Operation, ...]:
    return layer_operations(Conditions(model, framework("megatron", options)), kind)


def by_heads(operations: tuple[Operation, ...]) -> dict[str, float]:
    """Bytes a token of everything that goes by key-value heads, by spread; twice what is kept and sent alike."""
    found: dict[str, float] = {}
    for one in operations:
        every: tuple[Saved | Amount | Collective, ...] = (*one.saved, *one.temporary, *one.collectives)
        for each in every:
            if each.spread not in COMMON:
                found[each.spread] = found.get(each.spread, 0.0) + each.amount
    return found


@pytest.mark.parametrize(
    ("options", "full", "sliding"),
    [
        # k and v of 32 and of 48 features, in a ring within a window; q, k and v as projected, gathered where heads
        # are few; k rotated, v on its own.
        (
            {"keep_qkv_output": "true", "cp_communication": "ring"},
            {"projection": 256, "gathered": 256, "key_value": 64 + 128, "ring": 128},
            {"sliding_projection": 384, "sliding_gathered": 384, "sliding_key_value": 96, "window": 192}
            | {"sliding_ring": 192},
        ),
        (
            {"keep_qkv_output": "false", "cp_communication": "all_gather"},
            {"gathered": 256, "key_value": 64 + 64 + 128, "key_value_context": 2 * 128},
            {"sliding_gathered": 384, "sliding_key_value": 96 + 96, "window": 192}
            | {"sliding_key_value_context": 2 * 192},
        ),
        (
            {"keep_qkv_output": "false", "cp_communication": "all_to_all"},
            {"gathered": 256, "key_value": 64 + 64, "tensor_exchanged": 128},
            {"sliding_gathered": 384, "sliding_key_value": 96 + 96, "tensor_exchanged": 192},
        ),
        # Keys and values are repeated to all heads.
        (
            {"keep_qkv_output": "false", "repeat_kv": "true", "cp_communication": "ring"},
            {"gathered": 256, "key_value": 128 + 128 + 128, "ring": 256},
            {"sliding_gathered": 384, "sliding_key_value": 192 + 192, "window": 192, "sliding_ring": 384},
        ),
    ],
)
def test_key_value_heads_are_those_of_the_mixer(
    options: dict[str, str], full: dict[str, float], sliding: dict[str, float]
) -> None:
    model = small_dense(**BOTH)
    of_sliding, of_full = model.layer_kinds
    assert of_sliding.mixer == "sliding"
    assert by_heads(listed(model, of_full, **options)) == full
    assert by_heads(listed(model, of_sliding, **options)) == sliding


KEYS, ALL = 2 * (32 + 32), 2 * (64 + 64 + 32 + 32)
"""Bytes a token of keys and values, and of queries and outputs besides."""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ring", [("context", "ring", KEYS, "core_attention")]),
        ("gathered_ring", [("context", "gather_each", KEYS, "first_block")]),
        ("all_gather", [("context", "gather_each", KEYS, "attention_apart")]),
        ("all_to_all", [("context", "all_to_all", ALL, "attention_apart")]),
        (
            "all_to_all_ring",
            [
                ("context_inner", "all_to_all", ALL, "attention_apart"),
                ("context_outer", "ring", KEYS, "core_attention"),
            ],
        ),
    ],
)
def test_what_ranks_of_a_context_exchange(kind: str, expected: list[tuple[str, str, float, str]]) -> None:
    """Twice as much backward, with gradients. A scan's projections go there and its output back, in either pass."""
    model = small_dense()
    [exchange] = [
        one for one in listed(model, model.layer_kinds[0], cp_communication=kind) if one.group == "context_exchange"
    ]
    assert [(one.group, one.pattern, one.amount, one.beside) for one in exchange.collectives] == expected
    assert {one.backward for one in exchange.collectives} == {2.0}
    linear = small_dense(mixers=("lightning",), chunk_tokens=8)
    [exchange] = [
        one for one in listed(linear, linear.layer_kinds[0], cp_communication=kind) if one.group == "context_exchange"
    ]
    [scan] = exchange.collectives
    assert (scan.pattern, scan.amount, scan.backward) == ("all_to_all", 2 * 4 * 64, 1.0)


@pytest.mark.parametrize("dispatch", ["alltoall", "allgather", "deepep", "hybridep"])
def test_what_ranks_of_experts_exchange(dispatch: str) -> None:
    """A copy of 64 features in 16 bits there and back, and the same backward."""
    model = small_moe(first_k_dense_replace=0)
    found = [
        [(one.group, one.pattern, one.spread) for one in each.collectives]
        for each in listed(model, model.layer_kinds[0], expert_dispatch=dispatch)
        if each.group == "dispatch"
    ]
    there: dict[str, list[tuple[str, str, str]]] = {
        "alltoall": [("expert", "all_to_all", "copies_tensor"), ("expert_tensor", "gather", "copies")],
        "allgather": [("expert_ranks", "gather_each", "sequence")],
        "deepep": [("expert_ranks", "once", "sequence")],
        "hybridep": [("expert_ranks", "once", "sequence")],
    }
    back = [(group, pattern.replace("gather", "reduce"), spread) for group, pattern, spread in there[dispatch]]
    assert found == [there[dispatch], back]


@pytest.mark.parametrize(
    ("model", "calls"),
    [
        (small_dense(), 1.0),
        (small_mla(), 1.0),
        (small_moe(first_k_dense_replace=0), 1.0),
        (small_dense(**DELTA), 1.0),
        (small_dense(mixers=("lightning",), chunk_tokens=8), 1.0),
        # A layer of one part has half of both parts' launches.
        (small_dense(**MAMBA), 0.5),
    ],
)
def test_a_layer_is_one_of_launches(model: ModelSpec, calls: float) -> None:
    given = Conditions(model)
    assert [layer_work(given, kind).calls for kind in model.layer_kinds] == [calls] * len(model.layer_kinds)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_what_is_done_again_in_part_is_kept_in_part(share: float) -> None:
    """Of the activation silu and the product, not gate and up; of a norm what it makes, not what goes in."""
    model = small_dense()
    options = {"fused_swiglu": "false", "recomputed_activation_share": str(share), "recomputed_norm_share": str(share)}
    saved = {one.name: one.amount for each in listed(model, model.layer_kinds[0], **options) for one in each.saved}
    assert saved["ffn_gate_up"] == 4 * 160
    assert (saved["ffn_silu"], saved["ffn_product"]) == ((1 - share) * 2 * 160, (1 - share) * 2 * 160)
    for name in ("attention_norm", "ffn_norm"):
        assert (saved[f"{name}_input"], saved[f"{name}_statistics"]) == (2 * 64, 4)
        assert saved[f"{name}_output"] == (1 - share) * 2 * 64
    plain = small_dense(gated=False, activation="gelu")
    saved = {one.name: one.amount for each in listed(plain, plain.layer_kinds[0], **options) for one in each.saved}
    assert (saved["ffn_up"], saved["ffn_product"]) == (2 * 160, (1 - share) * 2 * 160)


@pytest.mark.parametrize(("sinks", "of_sliding", "of_full"), [("none", 0, 0), ("all", 6, 4), ("sliding", 6, 0)])
def test_sinks_of_each_mixer(sinks: str, of_sliding: int, of_full: int) -> None:
    model = small_dense(**BOTH, attention_sinks=sinks)
    for kind, expected in zip(model.layer_kinds, (of_sliding, of_full), strict=True):
        found = [one.outputs for each in listed(model, kind) for one in each.weights if one.name == "sinks"]
        assert found == ([expected] if expected else [])


def test_only_some_latent_layers_choose_their_keys() -> None:
    model = small_mla(mixers=("sparse_latent", "shared_sparse_latent", "latent"), num_hidden_layers=3, **INDEX)
    own, shared, whole = (listed(model, kind) for kind in model.layer_kinds)
    windows = [{one.core_window for one in each if one.group == "core_attention"} for each in (own, shared, whole)]
    assert [one.pop() for one in windows] == [(8, False), (8, False), None]
    assert ["indexer" in {one.name for one in each} for each in (own, shared, whole)] == [True, False, False]


@pytest.mark.parametrize("stack", ["fused", "composed"])
def test_kernels_in_parts_move_more(stack: str) -> None:
    """Rotation 4 bytes a number of q and k in one kernel, 20 in parts; RMSNorm 4 or 36 a feature, SwiGLU 6 or 10."""
    word = str(stack == "fused").lower()
    options = {"fused_rotary": word, "fused_rms_norm": word, "fused_swiglu": word}
    model = small_dense()
    moved = {one.name: sum(each.amount for each in one.moved) for one in listed(model, model.layer_kinds[0], **options)}
    one = stack == "fused"
    assert moved["rotation"] == (4 if one else 20) * (64 + 32)
    assert moved["attention_norm"] == moved["ffn_norm"] == (4 if one else 36) * 64
    assert moved["ffn_activation"] == (6 if one else 10) * 160
    compiled = options | {"compiled": "true"}
    whole = {
        one.name: sum(each.amount for each in one.moved) for one in listed(model, model.layer_kinds[0], **compiled)
    }
    assert whole["rotation"] == 4 * (64 + 32)
    assert whole["attention_norm"] == 4 * 64
    assert whole["ffn_activation"] == 6 * 160
