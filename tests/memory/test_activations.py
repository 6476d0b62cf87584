"""Saved activations of the megatron and paddle profiles against numbers worked by hand.

Small models: h 64, f 160, 4 heads (q width 64), 2 key-value heads (k width 32), two sequences of 32 tokens: T = 64.
"""

from typing import Any

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory import moments
from simulator.cost.memory.peak import buffer_bytes, layer_gradient_bytes
from simulator.cost.operations.sums import routed_tokens
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from tests.memory.counted import layer_tensors
from tests.scenario.cases import (
    attention_scores,
    block,
    layer_bytes,
    layer_kind,
    only,
    pricing,
    scenario_of,
    small_dense,
    small_mla,
    small_moe,
)

T = 64


@pytest.fixture(autouse=True)
def no_grouped_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped products' workspaces are none too: they are documented, not a coefficient."""
    monkeypatch.setattr(moments, "_GROUPED_STREAMS", 0)


def small(model: ModelSpec, profile: str = "megatron", **options: Any) -> Scenario:
    fields = {name: options.pop(name) for name in ("precision", "lora_rank", "devices") if name in options}
    return scenario_of(model, profile=profile, options=options, seq_length=32, global_batch_size=16, **fields)


def saved_bytes(scenario: Scenario, *, moe: bool = False, **fields: Any) -> float:
    return layer_bytes(scenario, block(scenario, micro_batch_size=2, **fields), moe=moe)


def test_a_dense_layer_of_megatron() -> None:
    # Per token: norms 2 x (2 h in + 4 + 2 h out) = 2 x (128 + 4 + 128) = 520; qkv output 2 (q + 2 k) = 256;
    # rotated q, k 2 (64 + 32) = 192; attention output 128; row sums 4 x 4 = 16; gate, up 4 f = 640; product 2 f = 320.
    assert 520 + 256 + 192 + 128 + 16 + 640 + 320 == 2072
    assert saved_bytes(small(small_dense())) == T * 2072


def test_a_dense_layer_of_paddle() -> None:
    # Without the fused qkv output only v (2 k = 64) lives beside rotated q and k: 2072 - 256 + 64.
    # Two norms in pieces keep 6 bytes a feature for 2: 512 more.
    assert saved_bytes(small(small_dense(), "paddle")) == T * (1880 + 512)
    assert saved_bytes(small(small_dense(), "paddle", fused_rms_norm="true")) == T * 1880


def test_sequence_parallelism_splits_everything() -> None:
    assert saved_bytes(small(small_dense()), tensor_parallel=2, sequence_parallel=True) == T * 2072 / 2


def test_without_sequence_parallelism_the_norms_stay_whole() -> None:
    # 520 of the norms whole, the other 1552 in halves.
    assert saved_bytes(small(small_dense()), tensor_parallel=2) == T * (520 + 1552 / 2)


def test_context_parallelism_splits_the_tokens_and_the_ring_joins_keys_and_values() -> None:
    # Ring: k and v once more as one tensor, 2 x 2 k = 128 per token.
    assert saved_bytes(small(small_dense()), context_parallel=2) == T / 2 * (2072 + 128)
    # Heads: the output once more, 2 q = 128 per token, as the core made it and as the product behind it reads it.
    assert saved_bytes(small(small_dense(), cp_communication="all_to_all"), context_parallel=2) == T / 2 * (2072 + 128)


def test_tokens_of_all_ranks_leave_masks_and_a_buffer() -> None:
    # For each of 8 experts over four ranks and each of their tokens, probabilities in fp32 and two masks.
    alone = {"tp_comm_overlap": "false"}
    given, plain = small(small_moe(), expert_dispatch="allgather", **alone), small(small_moe(), **alone)
    fields: dict[str, Any] = {"moe": True, "expert_parallel": 4}
    assert saved_bytes(given, **fields) == saved_bytes(plain, **fields) + 6 * 8 * T
    # Expert tensor parallelism over the same ranks takes in the tokens of both.
    both: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2}
    split = both | {"moe": True, "expert_tensor_parallel": 2}
    assert saved_bytes(given, **split) == saved_bytes(plain, **split) + 6 * 8 * T
    buffers = [
        buffer_bytes(pricing(one, micro_batch_size=2, **cut))[0] - one.coefficients.memory.workspace_bytes
        for one, cut in ((given, both), (given, {"expert_parallel": 4}), (plain, {"expert_parallel": 4}), (given, {}))
    ]
    # The hidden states of all: half the tokens of two times two ranks, those of four, none where nothing is gathered.
    assert buffers == [2 * 64 * T / 2 * 2, 2 * 64 * T * 4, 0, 0]


def test_gradients_of_tokens_of_all_ranks_are_whole_for_a_moment() -> None:
    # 64 ranks: their tokens' gradients and the copies', beside the layer's own incoming gradient.
    scenario = small(small_moe(num_experts=64), devices=64, expert_dispatch="allgather")
    here = block(scenario, micro_batch_size=2, expert_parallel=64, data_parallel=64)
    assert layer_gradient_bytes(Pricing(scenario, here))[0] == 2 * 64 * (64 * T + 2 * T) + 2 * 64 * T


def test_fp8_takes_h_and_f_off() -> None:
    # Norm outputs 2 x (-h), the product -f, an 8-bit copy of the attention output +h: h + f = 224 less per token.
    assert saved_bytes(small(small_dense(), precision="fp8")) == T * (2072 - 64 - 160)


def test_a_query_key_norm_keeps_statistics_and_where_nothing_else_does_its_input() -> None:
    # fp32 per head and token: 4 x (4 + 2) = 24. Paddle's composed norm keeps 6 (q + k) = 576 too; Megatron's input is
    # the qkv output.
    model = small_dense(qk_norm=True)
    assert saved_bytes(small(model)) == T * (2072 + 24)
    assert saved_bytes(small(model, "paddle")) == T * (1880 + 512 + 24 + 576)


@pytest.mark.parametrize("keeps", ["true", "false"])
@pytest.mark.parametrize(
    ("qk_norm", "attention"),
    [
        # Queries, keys and values are one tensor, 2 (q + 2 k), or three.
        (False, 256),
        # Their norm's input and statistics, and what it puts out; values.
        (True, 192 + 24 + 192 + 64),
    ],
)
def test_attention_without_positions_keeps_what_it_reads_once(keeps: str, qk_norm: bool, attention: int) -> None:
    rotated = 192 + 256
    scenario = small(small_dense(rotary=False, qk_norm=qk_norm), keep_qkv_output=keeps)
    assert saved_bytes(scenario) == T * (2072 - rotated + attention)


@pytest.mark.parametrize(("score_bytes", "whole"), [("2", 2), ("4", 4 + 2)])
def test_unfused_attention_keeps_the_scores(score_bytes: str, whole: int) -> None:
    # Scores: bytes x T x s x heads = bytes x 64 x 32 x 4; the row sums (16 per token) go. An fp32 softmax is kept, and
    # its cast for the product with the values (transformers 5.23, models/llama/modeling_llama.py,
    # `eager_attention_forward`).
    scenario = small(small_dense(), flash_attention="false", attention_matrix_bytes=score_bytes)
    assert saved_bytes(scenario) == T * (2072 - 16) + whole * 64 * 32 * 4
    assert attention_scores(scenario, block(scenario, micro_batch_size=2)) == whole * 8192
    assert saved_bytes(scenario, tensor_parallel=2, sequence_parallel=True) == (T * 2056 + whole * 8192) / 2


def test_dropout_keeps_masks() -> None:
    # A byte for each number of two residual additions; of the scores one for the mask and two for the product.
    assert saved_bytes(small(small_dense(), hidden_dropout="true")) == T * (2072 + 2 * 64)
    split = saved_bytes(small(small_dense(), hidden_dropout="true"), tensor_parallel=2, sequence_parallel=True)
    assert split == saved_bytes(small(small_dense()), tensor_parallel=2, sequence_parallel=True) + T * 64
    assert saved_bytes(small(small_dense(), attention_dropout="true")) == T * 2072
    unfused = small(small_dense(), flash_attention="false", attention_dropout="true")
    assert saved_bytes(unfused) == T * (2072 - 16) + (2 + 1 + 2) * 64 * 32 * 4
    assert saved_bytes(unfused, recompute="selective") == T * (2072 - 16)
    # An fp32 softmax takes four; it is cast before, so the product is two still.
    wide = small(small_dense(), flash_attention="false", attention_dropout="true", attention_matrix_bytes="4")
    assert saved_bytes(wide) == T * (2072 - 16) + (4 + 1 + 2) * 64 * 32 * 4


def test_recompute_of_the_core_saves_the_joint_projection() -> None:
    # Queries and keys, 2 (64 + 32) a token, beside their rotated ones; values are a view of all three.
    copied = small(small_dense(), keep_qkv_output="false")
    assert saved_bytes(copied, recompute="selective") == saved_bytes(copied) + T * 2 * (64 + 32)
    assert (
        saved_bytes(copied, recompute="selective", tensor_parallel=2) == saved_bytes(copied, tensor_parallel=2) + T * 96
    )
    # Under fp8 the product behind has its own copy of the output, 2 x 64 in 16 bits.
    narrow = small(small_dense(), precision="fp8", keep_qkv_output="false")
    assert saved_bytes(narrow, recompute="selective") == saved_bytes(narrow) + T * (2 * (64 + 32) - 2 * 64)


def test_selective_recompute_drops_the_scores_and_nothing_of_a_flash_kernel() -> None:
    unfused = small(small_dense(), flash_attention="false")
    assert saved_bytes(unfused, recompute="selective") == T * (2072 - 16)
    assert saved_bytes(small(small_dense()), recompute="selective") == T * 2072


def test_other_switches_of_a_dense_layer() -> None:
    # Composite norms: 2 x (8 h - 2 h) more. Unfused SwiGLU: silu 2 f more. Repeated k and v: 2 (q - k) more
    # each, and Megatron's qkv output 2 (q + 2 k) goes with the v that was its part, unless a norm's input is one too.
    assert saved_bytes(small(small_dense(), fused_rms_norm="false")) == T * (2072 + 2 * 6 * 64)
    assert saved_bytes(small(small_dense(), fused_swiglu="false")) == T * (2072 + 320)
    assert saved_bytes(small(small_dense(), repeat_kv="true")) == T * (2072 + 64 + 2 * 64 - 2 * 128)
    normed = small_dense(qk_norm=True)
    assert saved_bytes(small(normed, repeat_kv="true")) == saved_bytes(small(normed)) + T * (64 + 2 * 64)
    assert saved_bytes(small(small_dense(), "paddle", repeat_kv="true")) == T * (1880 + 512 + 64 + 64)
    # cos and sin for q and for k: 4 x 2 bytes x s x head size, once for the micro batch.
    assert saved_bytes(small(small_dense(), rope_tables_per_call="true")) == T * 2072 + 4 * 2 * 32 * 16
    # Gathered norm outputs stay whole: 2 x 2 h = 256 more than its half.
    gathered = small(small_dense(), keep_gathered_inputs="true")
    assert saved_bytes(gathered, tensor_parallel=2, sequence_parallel=True) == T * (2072 / 2 + 256 / 2)


def test_separate_products_keep_copies_of_their_input_under_tensor_parallelism() -> None:
    """PaddlePaddle 2.5, distributed/fleet/layers/mpu/mp_ops.py, `c_identity_eager`: q, k, v, gate and up copy it."""
    split: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": False}
    joint, apart = (small(small_dense(), "paddle", fused_projections=text) for text in ("true", "false"))
    assert saved_bytes(apart, **split) == saved_bytes(joint, **split) + T * (2 + 1) * 2 * 64
    assert saved_bytes(apart) == saved_bytes(joint)
    split["sequence_parallel"] = True
    assert saved_bytes(apart, **split) == saved_bytes(joint, **split)


def test_adapters_keep_their_inner_activation() -> None:
    # Four linear groups, 2 r each: 4 x 2 x 8 per token.
    assert saved_bytes(small(small_dense(), lora_rank=8)) == T * (2072 + 64)


def test_a_mixture_of_experts_layer() -> None:
    # Dense layer without its feed-forward inner part: 2072 - 640 - 320 = 1112 per token. Router: logits and
    # probabilities fp32, 2 x 4 x 8 = 64. Two copies per token: dispatched 2 x 2 h = 256, gate and up 2 x 4 x 48 = 384,
    # product 2 x 2 x 48 = 192, outputs 2 x 2 h = 256. Shared expert: 6 x 48 = 288.
    assert 1112 + 64 + 256 + 384 + 192 + 256 + 288 == 2552
    assert saved_bytes(small(small_moe()), moe=True) == T * 2552
    # The leading layer is dense.
    assert saved_bytes(small(small_moe())) == T * 2072


def test_experts_of_a_rank_see_the_copies_of_its_own_tokens() -> None:
    scenario = small(small_moe())
    # Two tensor-parallel ranks own T/2 tokens each; expert tensor parallelism gathers both halves of narrower experts.
    whole = block(scenario, micro_batch_size=2, tensor_parallel=2, sequence_parallel=True, expert_parallel=4)
    assert only(routed_tokens(Pricing(scenario, whole))) == T / 2 * 2
    cut = block(scenario, micro_batch_size=2, tensor_parallel=2, sequence_parallel=True, expert_tensor_parallel=2)
    assert only(routed_tokens(Pricing(scenario, cut))) == T * 2
    fields: dict[str, Any] = {"moe": True, "tensor_parallel": 2, "sequence_parallel": True}
    assert saved_bytes(scenario, expert_parallel=4, **fields) == T * 2552 / 2
    # etp 2: gathered copies (256 + 256) are whole, their inner width is halved, the rest is split.
    assert saved_bytes(scenario, expert_tensor_parallel=2, **fields) == T * (512 + (2552 - 512) / 2)


def test_an_uneven_router_loads_the_busiest_rank() -> None:
    # 256 + 384 + 192 + 256 = 1088 of routed copies, one and a half times.
    assert saved_bytes(small(small_moe(), expert_imbalance="1.5"), moe=True) == T * (2552 + 1088 / 2)


def test_fp8_experts_receive_eight_bit_tokens() -> None:
    # Norm outputs and the attention copy: -h. Dispatched -2 h. Products: -2 x 48 of routed, -48 of shared experts.
    assert saved_bytes(small(small_moe(), precision="fp8"), moe=True) == T * (2552 - 64 - 128 - 96 - 48)


def test_latent_attention() -> None:
    # Norms 520; latents 2 (32 + 8 + 40) = 160; their norms' outputs 2 (32 + 40) = 144; q and k 2 x 2 x 4 x 24 = 384;
    # a copy of v 2 x 4 x 20 = 160; output 160; row sums 16; feed-forward 960; two rstd 8.
    assert 520 + 160 + 144 + 384 + 160 + 160 + 16 + 960 + 8 == 2512
    assert saved_bytes(small(small_mla())) == T * 2512
    # Without the copy the projection stays: expanded k and v 2 x 4 x (16 + 20) = 288.
    assert saved_bytes(small(small_mla(), copy_latent_value="false")) == T * (2512 + 128)
    # Without query compression: 2 x 40 less in latents, and in their norms' outputs; one rstd less.
    assert saved_bytes(small(small_mla(q_lora_rank=None))) == T * (2512 - 164)
    # Latents and norms belong to the sequence: whole without sequence parallelism.
    assert saved_bytes(small(small_mla()), tensor_parallel=2) == T * (520 + 160 + 144 + 8 + (2512 - 832) / 2)
    assert saved_bytes(small(small_mla()), tensor_parallel=2, sequence_parallel=True) == T * 2512 / 2
    # A ring joins keys and values of all heads, 2 x 4 x (24 + 20).
    assert saved_bytes(small(small_mla()), context_parallel=2) == T / 2 * (2512 + 352)


def test_the_tensors_of_a_layer_are_named() -> None:
    scenario = small(small_moe())
    dense = layer_tensors(pricing(scenario), layer_kind(scenario.model, moe=False))
    moe = layer_tensors(pricing(scenario), layer_kind(scenario.model, moe=True))
    assert {"attention_norm_input", "qkv_output", "attention_output", "ffn_gate_up"} <= set(dense)
    assert {"router", "dispatched_tokens", "experts_gate_up", "shared_experts_product"} <= set(moe)


def test_the_measured_formula_at_real_size() -> None:
    # 8 h + 2 (h + 2 k) + 2 (h + k) + 2 h + 6 f + 4 a + 8 per token, divided by t; h 4096, k 1024, f 14336, a 32.
    per_token = 8 * 4096 + 2 * (4096 + 2048) + 2 * (4096 + 1024) + 2 * 4096 + 6 * 14336 + 4 * 32 + 8
    scenario = scenario_of("llama3.1-8b")
    here = block(scenario, tensor_parallel=4, sequence_parallel=True)
    assert layer_bytes(scenario, here, moe=False) == 8192 * per_token / 4
