"""FLOPs, seconds and exchanges of attention within a window and of linear mixers, against numbers worked by hand."""

from typing import Any

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.loss import bytes_per_logit
from simulator.cost.operations.record import Window
from simulator.cost.operations.sums import attended_share, extent
from simulator.cost.timing.layers import layer_seconds
from simulator.cost.timing.products import attention_rate, layer_flops_per_token
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from tests.memory.test_families import DELTA, INDEX, MAMBA
from tests.scenario.cases import ROUND, block, only, pricing, scenario_of, small_dense, small_mla, small_sliding

SLIDING: dict[str, Any] = {"mixers": ("sliding",), "sliding_window": 8}


def small(model: ModelSpec, **options: Any) -> Scenario:
    return scenario_of(model, seq_length=32, global_batch_size=16, coefficients=ROUND, options=options)


def flops(model: ModelSpec, index: int = 0, **options: str) -> float:
    return layer_flops_per_token(small(model, **options), model.layer_kinds[index])


def test_a_window_counts_what_lies_inside() -> None:
    # 32 tokens, window 8: 32 x 8 - 8^2 / 2 = 224 of 32^2 / 2 = 512 scores.
    assert attended_share(32, Window(8)) == 224 / 512
    # Chunks of 8: four triangles of 8^2 / 2 = 128.
    assert attended_share(32, Window(8, chunked=True)) == 128 / 512
    assert attended_share(8, Window(8)) == attended_share(4, Window(8, chunked=True)) == 1.0


def test_flops_of_a_window() -> None:
    # Scores of all tokens: 4 s h = 4 x 32 x 64.
    assert flops(small_dense()) - flops(small_dense(**SLIDING)) == pytest.approx(8192 * (1 - 224 / 512))
    # Without a fused kernel every score is computed.
    assert flops(small_dense(**SLIDING), flash_attention="false") == flops(small_dense())


def test_flops_of_an_indexer() -> None:
    # Two heads of 16 score all tokens: half of 4 s x 32. Attention itself is over eight keys; its width is that of
    # four heads, (24 + 20) / 2 each.
    whole, chosen = small_mla(), small_mla(mixers=("sparse_latent",), **INDEX)
    index = 2 * (40 * 32 + 64 * 16 + 64 * 2) + 4 * 32 * 16
    assert flops(chosen) - flops(whole) == pytest.approx(index - 4 * 32 * 88 * (1 - 224 / 512))


def test_flops_of_linear_mixers_do_not_grow_with_the_sequence() -> None:
    # Delta rule, four heads, chunk 8, k 16, v 24: 4 x (6 x 8 x 16 + 4 x 8 x 24 + 2 x 64 / 3 + 6 x 16 x 24).
    products = 64 * 264 + 96 * 64 + 3 * 64 * 160
    assert flops(small_dense(**DELTA)) == pytest.approx(2 * products + 4 * (768 + 768 + 128 / 3 + 2304))
    # Lightning, four heads of 16, chunk 8: 4 x (2 x 8 x 32 + 4 x 256).
    lightning = small_dense(mixers=("lightning",), chunk_tokens=8)
    assert flops(lightning) == pytest.approx(2 * (5 * 64**2 + 3 * 64 * 160) + 4 * (512 + 1024))
    # Mamba-2, two groups, four heads of 32, state 16, chunk 16: 2 x 16 x 16 x 2 + 4 x (2 x 16 x 32 + 4 x 16 x 32).
    assert flops(small_dense(**MAMBA)) == pytest.approx(2 * (64 * 324 + 128 * 64) + 1024 + 4 * (1024 + 2048))


def test_seconds_of_a_linear_mixer_are_its_flops_at_the_rate_of_attention() -> None:
    scenario = small(small_dense(**DELTA))
    parts = layer_seconds(pricing(scenario, micro_batch_size=2), scenario.model.layer_kinds[0])
    expected = 64 * 4 * (768 + 768 + 128 / 3 + 2304) / attention_rate(scenario)
    assert only(parts.forward["attention"]) == pytest.approx(expected)


def test_a_window_takes_its_share_of_attention() -> None:
    def seconds(model: ModelSpec) -> float:
        scenario = small(model)
        timer = pricing(scenario, micro_batch_size=2)
        return only(layer_seconds(timer, model.layer_kinds[0]).forward["attention"])

    tile = ROUND.time.attention_tile_tokens
    cut = (1 + tile / 8) / (1 + tile / 32)
    assert seconds(small_dense(**SLIDING)) == pytest.approx(seconds(small_dense()) * 224 / 512 * cut)
    # A window as long as the sequence is no window, nor is a longer one.
    for window in (32, 64):
        whole = small_dense(mixers=("sliding",), sliding_window=window)
        assert seconds(whole) == pytest.approx(seconds(small_dense()))


def test_a_ring_hands_on_no_more_than_the_window() -> None:
    scenario = scenario_of(small_sliding(), devices=8, seq_length=64, global_batch_size=16)
    # Two pieces a rank, eight tokens before each: 16 tokens over three steps, of two sequences; 16 of its own are less
    # than that only where the window is wide.
    extents = pricing(scenario, micro_batch_size=2, context_parallel=4)
    assert only(extent(extents, "window")) == pytest.approx(2 * 16 / 3)
    wide = scenario_of(small_sliding(sliding_window=64), devices=8, seq_length=64, global_batch_size=16)
    extents = pricing(wide, micro_batch_size=2, context_parallel=4)
    assert only(extent(extents, "window")) == only(extent(extents, "key_value")) == 2 * 16


def test_ranks_gather_what_they_have_too_few_heads_for() -> None:
    def tensor_seconds(**changes: Any) -> float:
        scenario = small(small_dense(**changes), tp_comm_overlap="false")
        here = block(scenario, micro_batch_size=2, tensor_parallel=4, sequence_parallel=True)
        return only(layer_seconds(Pricing(scenario, here), scenario.model.layer_kinds[0]).forward["tensor_parallel"])

    assert tensor_seconds() > tensor_seconds(num_key_value_heads=4)


def test_a_soft_cap_keeps_its_tanh() -> None:
    capped, free = small(small_dense(logit_softcap=True)), small(small_dense())
    assert bytes_per_logit(capped) == bytes_per_logit(free) + 2
