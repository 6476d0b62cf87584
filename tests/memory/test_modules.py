"""What layers of megatron-core 0.16 keep, and what each module of selective recompute drops, worked by hand.

The totals were measured with megatron-core 0.16.1 on a CPU in bf16; rstd of the norms, four bytes each, are apart.
"""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory import activations
from simulator.cost.memory.activations import repeated_working_set
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import RECOMPUTE_MODULES
from tests.scenario.cases import (
    ROUND,
    block,
    layer_bytes,
    layer_kind,
    layout_of,
    only,
    priced,
    scenario_of,
    small_mla,
    small_moe,
)
from tests.timing.by_hand import MEMORY, product

T = 64
CORE = {"probabilities_in_experts": "true"}
# h 512, 8 experts of width 320, 4 a token, one shared, dense width 1152; 8 heads of 64 + 32 rotary, values of 48.
MEASURED = small_mla(
    hidden_size=512,
    intermediate_size=1152,
    num_attention_heads=8,
    num_key_value_heads=8,
    q_lora_rank=192,
    kv_lora_rank=96,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=48,
    head_dim=96,
    num_experts=8,
    num_experts_per_tok=4,
    num_shared_experts=1,
    moe_intermediate_size=320,
    first_k_dense_replace=1,
)


def core(model: ModelSpec | str, **options: str) -> Scenario:
    return scenario_of(model, options=CORE | options, seq_length=64, global_batch_size=64, coefficients=ROUND)


def per_token(scenario: Scenario, *modules: str, moe: bool = True) -> float:
    fields: dict[str, Any] = {"recompute": "selective", "recompute_modules": modules} if modules else {}
    return layer_bytes(scenario, block(scenario, **fields), moe=moe) / T


def test_the_measured_layer() -> None:
    # Norms 8 h + 8 of rstd; latents 2 (192 + 96 + 32), their norms' outputs 2 (192 + 96) and 8 of rstd; q and k
    # 2 x 2 x 8 x 96; a copy of v and the attention's output 2 x 8 x 48 each; row sums 4 x 8; router 5 x 8 + 24 x 4;
    # dispatched 2 x 4 x 512; gate and up 4 x 4 x 320; their product half of it; shared experts 6 x 320.
    attention = 4096 + 8 + 640 + 576 + 8 + 3072 + 768 + 768 + 32
    experts = 136 + 4096 + 5120 + 2560 + 1920
    assert per_token(core(MEASURED)) == attention + experts == 23_800
    # Measured: 24,056 with cos and sin of 32, for q and for k.
    assert per_token(core(MEASURED, rope_tables_per_call="true")) == 24_056


@pytest.mark.parametrize(
    ("name", "measured", "statistics"),
    [
        # Beside rstd: two of the latents' norms; one number a head of the norms of 64 queries and 4 keys.
        ("deepseek-v3", 456_768, 16),
        ("qwen3-235b-a22b", 225_344, 8 + 4 * (64 + 4)),
        ("mixtral-8x7b-v0.1", 252_120, 8),
    ],
)
def test_real_layers(name: str, measured: int, statistics: int) -> None:
    assert per_token(core(name)) == measured + statistics


def test_older_software_keeps_the_experts_outputs_and_all_probabilities() -> None:
    # 2 K h, and 8 E instead of 5 E + 24 K.
    older = core("deepseek-v3", probabilities_in_experts="false")
    assert per_token(older) == 456_784 + 114_688 + 2048 - 1472
    # Without a copy of v the kv projection stays: 2 x 128 x (128 + 128) instead of 2 x 128 x 128.
    assert per_token(core("deepseek-v3", copy_latent_value="false")) == 456_784 + 32_768


@pytest.mark.parametrize(
    ("modules", "dropped"),
    [
        (("core_attn",), 0),
        (("layernorm",), 2056),
        # q, k and v; measured are 128 of rotary tables more.
        (("mla_up_proj",), 3840),
        (("moe_act",), 2560),
        (("moe_gate_up",), 5120),
        (("shared_experts",), 1920),
        (("moe",), 13_832),
        (("mlp",), 0),
        (("layernorm", "mla_up_proj", "moe_act"), 2056 + 3840 + 2560),
        (("moe_act", "moe", "shared_experts"), 13_832),
    ],
)
def test_what_modules_drop_of_a_layer_with_experts(modules: tuple[str, ...], dropped: int) -> None:
    assert per_token(core(MEASURED, fuse_latent_norm="false"), *modules) == 23_800 - dropped


def test_what_modules_drop_of_a_dense_layer() -> None:
    dense = per_token(core(MEASURED), moe=False)
    assert per_token(core(MEASURED), "mlp", moe=False) == dense - 6912
    # Of its norms only the one before latent attention stands apart.
    assert per_token(core(MEASURED), "layernorm", moe=False) == dense - 1028
    assert per_token(core(MEASURED), "moe", "moe_act", moe=False) == dense


def test_fused_latent_norms_go_with_the_projections() -> None:
    # 2 (192 + 96), and 8 of rstd.
    assert per_token(core(MEASURED), "mla_up_proj") == 23_800 - 3840 - 576 - 8


def test_grouped_query_layers_have_no_norm_apart_before_attention() -> None:
    model = small_moe()
    whole = per_token(core(model))
    assert per_token(core(model), "layernorm") == whole - (2 * 64 + 4)
    assert per_token(core(model), "layernorm", moe=False) == per_token(core(model), moe=False)
    # Without the fused kernel silu goes too, and the output before it is weighed.
    unfused = core(model, fused_swiglu="false")
    assert per_token(unfused, "moe_act") == per_token(unfused) - 3 * (2 * 2 * 48)


def test_fp8_halves_the_product_that_comes_back() -> None:
    scenario = scenario_of(MEASURED, options=CORE, precision="fp8", seq_length=64, global_batch_size=64)
    assert per_token(scenario) - per_token(scenario, "moe_act") == 1280


def again(scenario: Scenario, *modules: str) -> float:
    here = block(scenario, recompute="selective", recompute_modules=modules)
    return only(repeated_working_set(Pricing(scenario, here), layer_kind(scenario.model, moe=True))) / T


def test_what_is_back_is_alive_where_it_exceeds_what_the_backward_pass_has_freed() -> None:
    scenario = core(MEASURED)
    assert again(scenario, "moe") == 13_832
    # Behind the projections lie attention's output and row sums, a norm and the experts: more than what comes back.
    assert again(scenario, "mla_up_proj") == 0
    # The experts have gone and their module with them: attention's output and row sums, 800, and the norm's 2052.
    assert again(scenario, "mla_up_proj", "moe") == 13_832
    assert again(core(MEASURED, flash_attention="false"), "core_attn") == 2 * 8 * 64
    # Behind the activation stand the shared experts, 6 x 320; gate and up before it are alive.
    assert again(core(MEASURED), "moe_act") == 2560 - 1920
    # Done again themselves they are not there to go.
    assert again(core(MEASURED), "moe_act", "shared_experts") == 2560
    # A module that the layer has nothing of brings nothing back, and nothing has gone.
    assert again(core(MEASURED), "mlp") == 0
    # Adapters' inner activations, 4 x 2 x 8, belong to products before and behind: they are not gone.
    tuned = replace(core(MEASURED), lora_rank=8)
    assert again(tuned, "moe_act") == 2560 - 1920


def test_layouts_of_a_block_keep_what_each_keeps_alone() -> None:
    """Modes and modules side by side: what a layer keeps, and what comes back in its backward pass."""
    scenario = core(MEASURED, flash_attention="false")
    ways: list[dict[str, Any]] = [
        {"recompute": "none"},
        {"recompute": "selective", "recompute_modules": ("core_attn",)},
        {"recompute": "selective", "recompute_modules": ("moe_act", "layernorm")},
        {"recompute": "attention"},
        {"recompute": "operations"},
        {"recompute": "full"},
        {"recompute": "none"},
    ]
    together = pricing_of(scenario, *(layout_of(scenario, **way) for way in ways))
    for kind in scenario.model.layer_kinds:
        kept, back = (one(together, kind) for one in (activations.layer_bytes, repeated_working_set))
        for index, way in enumerate(ways):
            alone = block(scenario, **way)
            assert kept[index] == only(activations.layer_bytes(Pricing(scenario, alone), kind))
            assert back[index] == only(repeated_working_set(Pricing(scenario, alone), kind))
        # Full recompute is counted by layer, and leaves the layer itself as it is.
        assert kept[0] == kept[5] == kept[6] > max(kept[1:5])
        assert back[0] == back[5] == back[6] == 0


def seconds(*modules: str) -> float:
    """What selective recompute takes per micro batch and layer with experts."""
    model = replace(MEASURED, first_k_dense_replace=0, num_hidden_layers=1)
    answer = priced(core(model), recompute="selective", recompute_modules=modules)
    return only(answer.step.parts(answer.pricing)["recompute"]) / 8


def test_modules_of_listed_layers_take_their_share() -> None:
    model = replace(MEASURED, first_k_dense_replace=0, num_hidden_layers=4)

    def all_of(**listed: Any) -> float:
        answer = priced(core(model), recompute="selective", recompute_modules=("moe_gate_up",), **listed)
        return only(answer.step.parts(answer.pricing)["recompute"])

    assert all_of(recompute_method="list", recompute_layer_list=(1,)) == pytest.approx(all_of() / 4)


def test_what_modules_take() -> None:
    assert seconds("layernorm") == pytest.approx(T * 2 * 4 * 512 / MEMORY)
    assert seconds("moe_act") == pytest.approx(T * 4 * 6 * 320 / MEMORY)
    ups = product(T, 8 * 96, 192).forward + product(T, 8 * (64 + 48), 96).forward
    rotary = T * 4 * 2 * 8 * 96 / MEMORY
    assert seconds("mla_up_proj") == pytest.approx(ups + rotary)
    shared = product(T, 2 * 320, 512).forward + product(T, 512, 320).forward
    assert seconds("shared_experts") == pytest.approx(shared + T * 6 * 320 / MEMORY)
    both = seconds("layernorm", "moe_act")
    assert both == pytest.approx(seconds("layernorm") + seconds("moe_act"))
    assert seconds("moe", "moe_act", "shared_experts") == pytest.approx(seconds("moe"))
    assert 0 < seconds("shared_experts") < seconds("moe")


def test_every_module_lies_between_none_and_full() -> None:
    scenario = core(MEASURED)
    none, full = (only(priced(scenario, recompute=mode).step.total) for mode in ("none", "full"))
    for module in RECOMPUTE_MODULES:
        one = only(priced(scenario, recompute="selective", recompute_modules=(module,)).step.total)
        assert none <= one <= full
