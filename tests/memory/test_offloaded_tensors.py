"""The tensors that each offloaded module moves, by kind of layer, and how often they travel; as Megatron-LM has them.

Megatron-LM d98e8a6: core/transformer/attention.py, multi_latent_attention.py, transformer_layer.py, moe/experts.py.
"""

from typing import Any

import pytest

from simulator.cost.memory.activations import score_bytes
from simulator.cost.operations.layer import layer_operations, whole_operations
from simulator.cost.operations.recompute import parts, returning
from simulator.cost.operations.record import Conditions, conditions_of, moved, sent
from simulator.question.specs.model import LayerKind, ModelSpec
from simulator.question.vocabulary import OFFLOADED_MODULES
from tests.scenario.cases import only, pricing, scenario_of, small_dense, small_mla, small_moe

EXPERTS = small_moe(first_k_dense_replace=0, num_shared_experts=0)
MLA_EXPERTS = small_mla(
    **{name: getattr(EXPERTS, name) for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")},
    first_k_dense_replace=0,
)


def away(model: ModelSpec, modules: str, *, how: Any = moved, **fields: Any) -> dict[str, float]:
    """Bytes by name of the tensors that leave the device."""
    options = {"offloaded_modules": modules, **fields.pop("options", {})}
    conditions = conditions_of(scenario_of(model, options=options, **fields))
    kind = model.layer_kinds[-1]
    return {
        tensor.name: tensor.amount
        for operation in whole_operations(conditions, kind)
        for tensor in how(conditions, kind, operation)
    }


CORE = {"rotated_query", "rotated_key", "qkv_output"}
LATENT_CORE = {"query", "key", "latent_value"}
MODULES: list[tuple[ModelSpec, str, dict[str, Any], set[str]]] = [
    # The norm before a joint projection is in its kernel, and so is that of a dense network.
    (small_dense(), "attn_norm", {}, set()),
    (small_dense(), "mlp_norm", {}, set()),
    (small_dense(), "qkv_linear", {}, {"attention_norm_input", "attention_norm_output"}),
    # Values are a view of the projection's output; norms of queries and keys save it too, and keep it here.
    (small_dense(), "core_attn", {}, CORE),
    (small_dense(qk_norm=True), "core_attn", {}, CORE - {"qkv_output"}),
    (
        small_dense(qk_norm=True),
        "core_attn,qkv_linear",
        {},
        CORE | {"attention_norm_input", "attention_norm_output"},
    ),
    (
        small_dense(qk_norm=True),
        "qkv_linear",
        {"options": {"keep_qkv_output": "false"}},
        {"attention_norm_input", "attention_norm_output", "qk_norm_input"},
    ),
    # Attention's output is saved by attention and by the product behind it: both have to let it go, unless that has a
    # copy of its own in 8 bits, or a gate between them saves it.
    (small_dense(), "core_attn,attn_proj", {}, CORE | {"attention_output"}),
    (small_dense(), "core_attn", {"precision": "fp8"}, CORE | {"attention_output"}),
    (small_dense(), "core_attn,attn_proj", {"precision": "fp8"}, CORE | {"attention_output", "attention_output_fp8"}),
    (small_dense(), "core_attn", {"precision": "fp8", "options": {"fp8_inputs": "false"}}, CORE),
    (
        small_dense(attention_gate="head"),
        "core_attn,attn_proj",
        {},
        CORE | {"gated_attention_output"},
    ),
    (small_dense(), "core_attn", {"options": {"flash_attention": "false"}}, CORE | {"attention_scores"}),
    # Without a flash kernel dropout's product and mask go with the scores.
    (
        small_dense(),
        "core_attn",
        {"options": {"flash_attention": "false", "attention_dropout": "true"}},
        CORE | {"attention_scores", "attention_dropout"},
    ),
    (small_dense(), "core_attn", {"options": {"repeat_kv": "true"}}, {"rotated_query", "rotated_key", "value"}),
    # Latent attention's norm is a kernel of its own; its products read latents and what their norms put out.
    (small_mla(), "attn_norm", {}, {"attention_norm_input"}),
    (small_mla(), "qkv_linear", {}, {"attention_norm_output", "latents", "latent_norm_outputs"}),
    (small_mla(), "core_attn", {}, LATENT_CORE),
    (
        small_mla(),
        "core_attn",
        {"options": {"copy_latent_value": "false"}},
        LATENT_CORE - {"latent_value"} | {"key_value_projection"},
    ),
    # Before routed experts the norm is a kernel of its own.
    (EXPERTS, "mlp_norm", {}, {"ffn_norm_input"}),
    (EXPERTS, "attn_norm", {}, set()),
    (MLA_EXPERTS, "attn_norm,mlp_norm", {}, {"attention_norm_input", "ffn_norm_input"}),
    (EXPERTS, "expert_fc1", {}, {"dispatched_tokens"}),
    (EXPERTS, "moe_act", {}, {"experts_gate_up"}),
    (EXPERTS, "moe_act", {"options": {"fused_swiglu": "false"}}, {"experts_gate_up", "experts_silu"}),
    (EXPERTS, "fused_group_mlp", {}, {"experts_gate_up", "dispatched_tokens", "experts_product"}),
    (small_dense(), "expert_fc1,moe_act,fused_group_mlp", {}, set()),
]


@pytest.mark.parametrize(("model", "modules", "fields", "names"), MODULES)
def test_the_tensors_of_a_module(model: ModelSpec, modules: str, fields: dict[str, Any], names: set[str]) -> None:
    # The ring of ranks that share a sequence is the core's too.
    ring = {"ring_key_value"} if "core_attn" in modules.split(",") else set()
    assert set(away(model, modules, **fields)) == names | ring


def test_the_gradient_of_scores_is_made_on_the_device() -> None:
    """Wherever the scores were: TransformerEngine's unfused attention writes it in place of what came in."""
    for modules in ("", "core_attn"):
        options = {"flash_attention": "false", "offloaded_modules": modules}
        here = pricing(scenario_of(small_dense(), options=options))
        assert only(score_bytes(here, small_dense().layer_kinds[0])) == 2 * 4 * 8192**2


def test_every_module_is_asked_about() -> None:
    assert {word for _, modules, _, _ in MODULES for word in modules.split(",")} == set(OFFLOADED_MODULES)


def test_nothing_leaves_where_nothing_is_asked_to() -> None:
    conditions = Conditions(small_dense())
    kind = small_dense().layer_kinds[0]
    assert not any(moved(conditions, kind, one) for one in whole_operations(conditions, kind))


def test_what_travels_of_a_tensor() -> None:
    """Of a joint projection of q 64, k 32 and v 32 the values alone; of 16-bit outputs both savers' copies."""
    of = small_dense()
    both = away(of, "core_attn,attn_proj"), away(of, "core_attn,attn_proj", how=sent)
    assert both[1] == {
        **both[0],
        "qkv_output": both[0]["qkv_output"] * 32 / 128,
        "attention_output": 2 * both[0]["attention_output"],
    }
    # With norms of queries and keys all of the projection does; in fp8 the second saver has its own copy.
    normed = small_dense(qk_norm=True)
    assert (
        away(normed, "core_attn,qkv_linear", how=sent)["qkv_output"]
        == away(normed, "core_attn,qkv_linear")["qkv_output"]
    )
    narrow = [away(of, "core_attn,attn_proj", how=how, precision="fp8")["attention_output"] for how in (moved, sent)]
    assert narrow[0] == narrow[1] == 2 * 64
    alone = [away(of, "core_attn", how=how, precision="fp8")["attention_output"] for how in (moved, sent)]
    assert alone[0] == alone[1]
    assert away(of, "moe_act", how=sent) == {}


def test_swapped_attention_sends_all_that_attention_saves_as_it_is() -> None:
    model = small_dense()
    conditions = conditions_of(scenario_of(model, options={"swapped_attention": "true"}))
    kind = model.layer_kinds[0]
    operations = whole_operations(conditions, kind)
    swapped = {"attention_projection", "position", "context_exchange", "core_attention"}
    for operation in operations:
        assert moved(conditions, kind, operation) == (operation.saved if operation.group in swapped else ())
        assert sent(conditions, kind, operation) == moved(conditions, kind, operation)
    left = [one for one in layer_operations(conditions, kind) if one.saved]
    assert {one.group for one in left} == {"norm", "feed_forward"}


@pytest.mark.parametrize(
    ("model", "modules", "names"),
    [
        (small_dense(), ("mlp",), {"ffn_gate_up", "ffn_activation", "ffn_down"}),
        (
            small_moe(),
            ("shared_experts",),
            {"shared_experts_gate_up", "shared_experts_activation", "shared_experts_down"},
        ),
        (small_mla(), ("mla_up_proj",), {"latent_up", "rotation"}),
        (small_dense(), ("mla_up_proj",), set()),
        (small_mla(), ("layernorm",), {"attention_norm"}),
        (small_moe(), ("layernorm",), {"ffn_norm"}),
        (small_dense(), ("layernorm",), set()),
        (small_moe(), ("moe_act",), {"experts_activation"}),
        (small_moe(), ("moe_gate_up",), {"experts_gate_up"}),
    ],
)
def test_the_operations_of_a_module_of_selective_recompute(
    model: ModelSpec, modules: tuple[Any, ...], names: set[str]
) -> None:
    """megatron-core 0.16, transformer/transformer_config.py, `recompute_modules`."""
    conditions, kind = Conditions(model), model.layer_kinds[-1]
    (part,) = parts(conditions, kind, "selective", modules)
    assert {one.name for one in layer_operations(conditions, kind) if part.repeats(one)} == names


@pytest.mark.parametrize("module", ["layernorm", "moe_act", "mla_up_proj", "moe"])
def test_a_module_that_a_layer_does_not_have_brings_nothing_back(module: Any) -> None:
    kind = LayerKind("grouped_query", "gated")
    for recomputed, released in returning(Conditions(small_dense()), kind, "selective", (module,)):
        assert not any(recomputed.values())
        assert not any(released.values())


def test_what_comes_behind_a_recomputed_part_is_freed_by_then() -> None:
    """The up projections of latent attention: all that is saved behind the rotation, but for adapters."""
    model = small_mla()
    conditions = conditions_of(scenario_of(model, options={"copy_latent_value": "false", "fuse_latent_norm": "false"}))
    ((recomputed, released),) = returning(conditions, model.layer_kinds[0], "selective", ("mla_up_proj",))
    by_name = {
        tensor.name: tensor for one in layer_operations(conditions, model.layer_kinds[0]) for tensor in one.saved
    }
    behind = ["ring_key_value", "attention_output", "attention_statistics"]
    behind += ["ffn_norm_input", "ffn_norm_statistics", "ffn_norm_output", "ffn_gate_up", "ffn_product"]
    expected: dict[str, float] = {}
    for name in behind:
        expected[by_name[name].spread] = expected.get(by_name[name].spread, 0.0) + by_name[name].amount
    assert dict(released) == pytest.approx(expected)
    made = ("query", "key", "key_value_projection")
    assert sum(recomputed.values()) == sum(by_name[name].amount for name in made)


def test_two_norms_that_are_done_again_end_with_the_second() -> None:
    """Of latent attention with experts: what attention saves between them is still alive, what experts save is not."""
    conditions, kind = Conditions(MLA_EXPERTS), MLA_EXPERTS.layer_kinds[0]
    ((recomputed, released),) = returning(conditions, kind, "selective", ("layernorm",))
    norms = 2 * (2 * 64 + 4)
    assert dict(recomputed) == {"sequence": norms}
    saved: dict[str, float] = {}
    for operation in layer_operations(conditions, kind):
        for tensor in operation.saved:
            if operation.group in ("router", "dispatch", "experts"):
                saved[tensor.spread] = saved.get(tensor.spread, 0.0) + tensor.amount
    assert dict(released) == saved
