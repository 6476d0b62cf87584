"""FLOPs: the reported convention against published rows, and a layer's work against sums made by hand."""

from typing import Any

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import layer_work
from simulator.cost.timing.layers import layer_seconds
from simulator.cost.timing.products import (
    attention_rate,
    attention_tile_tokens,
    forward_flops_per_token,
    model_flops_per_token,
    product_flops,
)
from tests.memory.test_families import DELTA, INDEX, MAMBA
from tests.scenario.cases import layer_kind, only, pricing, scenario_of, small_dense, small_mla, small_moe


@pytest.mark.parametrize(
    ("model", "devices", "milliseconds", "tflops"),
    [
        ("llama3.1-8b", 32, 30272.5, 501.5),
        ("qwen2.5-14b", 32, 59146.6, 479.1),
        ("llama3.1-70b", 64, 100041.5, 630.8),
    ],
)
def test_measured_rows_are_reproduced(model: str, devices: int, milliseconds: float, tflops: float) -> None:
    scenario = scenario_of(model, devices=devices, seq_length=8192, global_batch_size=1024)
    seconds = milliseconds / 1e3
    found = model_flops_per_token(scenario) * scenario.tokens_per_step / seconds / scenario.devices
    assert found / 1e12 == pytest.approx(tflops, rel=1e-3)


def test_the_convention_by_hand() -> None:
    # Llama-8B: per layer q, o 2 x 4096^2, k, v 2 x 4096 x 1024, FFN 3 x 4096 x 14336; the head 4096 x 128256.
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336
    forward = 32 * (2 * layer + 4 * 8192 * 4096) + 2 * 4096 * 128_256
    scenario = scenario_of("llama3.1-8b", devices=32)
    assert forward_flops_per_token(scenario) == forward
    assert model_flops_per_token(scenario) == 3 * forward


def test_tied_tables_multiply_all_the_same() -> None:
    tied, apart = (scenario_of(small_dense(tie_word_embeddings=tie)) for tie in (True, False))
    assert forward_flops_per_token(tied) == forward_flops_per_token(apart)


def test_frozen_weights_have_no_gradient() -> None:
    full, adapters = scenario_of("llama3.1-8b"), scenario_of("llama3.1-8b", lora_rank=16)
    # Per layer and rank: q, k, v together 4096 + 6144, o 8192, gate and up together 4096 + 28672, down 18432.
    adapter = 16 * 32 * (4096 + 6144 + 8192 + 4096 + 28_672 + 18_432)
    assert model_flops_per_token(adapters) == 2 / 3 * model_flops_per_token(full) + 6 * adapter


def test_a_token_passes_the_chosen_and_the_shared_experts() -> None:
    # Dense layer 12288 + 30720; with experts 12288 + router 512 + (2 + 1) x 9216; attention 4 s h; head 64000.
    scenario = scenario_of(small_moe(), seq_length=32)
    layers = 43_008 + 3 * (12_288 + 512 + 3 * 9216)
    assert forward_flops_per_token(scenario) == 2 * (layers + 64_000) + 4 * 4 * 32 * 64


def test_latent_attention_runs_over_wider_keys_than_values() -> None:
    # q_a, kv_a 2560 each, q_b 3840, kv_b 4608, o 5120, FFN 30720; products over 4 x 24 and 4 x 20: 2 s (96 + 80).
    scenario = scenario_of(small_mla(), seq_length=32)
    assert forward_flops_per_token(scenario) == 4 * (2 * 49_408 + 2 * 32 * 176) + 2 * 64_000


def test_vectors_multiply_nothing() -> None:
    """Biases of every product, sinks, norms of heads: FLOPs and adapters of the matrices alone."""
    biased: dict[str, Any] = {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True, "qk_norm": True}
    biased |= {"attention_sinks": "all", "norm_placement": "around"}
    for model in (small_dense, small_moe):
        more = biased | ({"router_bias": True} if model is small_moe else {})
        for rank in (None, 8):
            plain, full = (scenario_of(model(**fields), lora_rank=rank) for fields in ({}, more))
            assert model_flops_per_token(full) == model_flops_per_token(plain)


def test_linear_mixers_multiply_by_their_projections_alone() -> None:
    """Gated delta net: h x 264 and 96 x h beside the network; its convolution, decay and norm are no products."""
    scenario = scenario_of(small_dense(**DELTA), seq_length=32)
    core = 4 * (6 * 8 * 16 + 4 * 8 * 24 + 2 * 8**2 / 3 + 6 * 16 * 24)
    layer = 2 * (64 * 264 + 96 * 64 + 3 * 64 * 160) + core
    assert forward_flops_per_token(scenario) == pytest.approx(4 * layer + 2 * 64_000)
    # Mamba-2, a plain network, and attention without a network, twice each.
    scenario = scenario_of(small_dense(**MAMBA), seq_length=32)
    scan = 2 * 2 * 16 * 16 + 4 * (2 * 16 * 32 + 4 * 16 * 32)
    layers = 2 * (64 * 324 + 128 * 64) + scan + 2 * 2 * 64 * 160 + 2 * 12_288 + 4 * 32 * 64
    assert forward_flops_per_token(scenario) == 2 * layers + 2 * 64_000


def test_an_indexer_scores_with_half_of_attention_s_products() -> None:
    """Two heads of 16 over all tokens: queries from h, one key, and 2 s x 32 once, beside attention to eight tokens."""
    scenario = scenario_of(small_dense(mixers=("sparse",), **INDEX), seq_length=32)
    attended = 4 * 32 * 64 * (32 * 8 - 8**2 / 2) / (32**2 / 2)
    layer = 2 * (43_008 + 64 * 32 + 64 * 16) + 4 * 32 * 16 + attended
    assert forward_flops_per_token(scenario) == pytest.approx(4 * layer + 2 * 64_000)


def test_prediction_layers_count_when_trained() -> None:
    without = scenario_of("deepseek-v3", "h800-sxm-80g")
    trained = scenario_of("deepseek-v3", "h800-sxm-80g", options={"mtp": "true"})
    # One more layer of 61, its projection 2 h x h and one more pass through the head.
    extra = forward_flops_per_token(trained) - forward_flops_per_token(without)
    head, projection = 2 * 7168 * 129_280, 2 * 2 * 7168**2
    layer = extra - head - projection
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 7168 * 256 + 9 * 3 * 7168 * 2048
    assert layer == 2 * (attention + experts) + 2 * 8192 * 128 * (192 + 128)


def test_a_layer_on_one_device() -> None:
    scenario = scenario_of(small_dense(), seq_length=32)
    for t, c in ((1, 1), (2, 1), (2, 2)):
        here = pricing(scenario, tensor_parallel=t, context_parallel=c, micro_batch_size=2)
        work = layer_work(conditions_of(scenario), layer_kind(scenario.model))
        tokens = 64 / c
        assert only(product_flops(here, work.products)[0]) == 2 * tokens * 43_008 / t
        # The causal half of 4 s h: 2 s h.
        attention = only(layer_seconds(here, layer_kind(scenario.model)).forward["attention"])
        # Cut tiles: c = 2 has a step without a mask, which costs a third.
        cut = 1 + attention_tile_tokens(scenario) * (c + 2) / 3 / 32
        assert attention == pytest.approx(cut * 2 * tokens * 32 * 64 / t / attention_rate(scenario))


def test_a_layer_with_experts_on_one_device() -> None:
    scenario = scenario_of(small_moe(), seq_length=32)

    def products(here: Pricing) -> float:
        work = layer_work(conditions_of(scenario), layer_kind(scenario.model, moe=True))
        return sum(map(only, product_flops(here, work.products)))

    # Attention and shared expert 21504 split, the router 512 on the rank's part of the sequence, two copies of 9216.
    whole = products(pricing(scenario))
    assert whole == 2 * 32 * (21_504 + 512 + 2 * 9216)
    split = pricing(scenario, tensor_parallel=2, sequence_parallel=True, expert_parallel=4)
    assert products(split) == whole / 2
    replicated = pricing(scenario, tensor_parallel=2, expert_parallel=4)
    # Without sequence parallelism router and experts see all tokens.
    assert products(replicated) == whole / 2 + 32 * (512 + 2 * 9216)
    gathered = pricing(scenario, tensor_parallel=2, sequence_parallel=True, expert_tensor_parallel=2)
    assert products(gathered) == whole / 2
