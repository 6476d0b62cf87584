"""Parts of a step's time, and rates, against sums worked by hand from published formulas; overheads at nothing.

Llama-8B on one Z2000 node with the rates of tests.scenario.cases.ROUND: matrix products at half of 989 TFLOP/s (494.5),
attention at a quarter (247.25), elementwise kernels at half of 3350 GB/s (1675), NVLink at 75 % of 450 GB/s (337.5).
"""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.pricing.estimate import Estimate
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.search.build import estimate_layout
from tests.scenario.cases import ROUND, layout_of, scenario_of, small_dense, small_mla, small_moe
from tests.timing.by_hand import product, untiled

BARE = replace(
    ROUND,
    time=replace(ROUND.time, layer_overhead_seconds=0, micro_batch_overhead_seconds=0, step_overhead_seconds=0),
)
M, LAYERS, T = 128, 32, 8192
PROJECTIONS = 2 * 4096**2 + 2 * 4096 * 1024
MATMUL = PROJECTIONS + 3 * 4096 * 14_336
PARAMETERS = 8_030_261_248


def llama(model: ModelSpec | str = "llama3.1-8b", **fields: Any) -> Scenario:
    return scenario_of(model, coefficients=BARE, **fields)


def estimated(scenario: Scenario, **fields: Any) -> Estimate:
    return estimate_layout(scenario, layout_of(scenario, **fields))


def parts(scenario: Scenario, **fields: Any) -> dict[str, float]:
    return dict(estimated(scenario, **fields).throughput.parts_seconds)


def test_attention_computed_again_repeats_its_two_collectives() -> None:
    """A gather before the projections, a scatter behind the output projection (Korthikanti et al. 2022, 4.2)."""
    scenario = llama(options={"tp_comm_overlap": "false"})
    found = parts(scenario, tensor_parallel=2, sequence_parallel=True, recompute="attention")["recompute"]
    compute = 2 * T * PROJECTIONS / 494.5e12 + 2 * T * T * 4096 / 247.25e12 + 4 * T * (4096 + 1024) / 1675e9
    # Half of 2 T h over the one link of two ranks.
    collective = 0.5 * 2 * T * 4096 / 337.5e9 + 2e-6
    assert found == pytest.approx(2 * M * LAYERS * (compute / 2 + 2 * collective))


def test_gradients_added_in_a_kernel_of_their_own() -> None:
    """It reads the 16-bit gradient and the fp32 sum, and writes the sum: 10 bytes per weight."""
    fused, apart = (parts(llama(options={"fused_gradient_accumulation": word})) for word in ("true", "false"))
    assert apart["gemm"] - fused["gemm"] == pytest.approx(M * LAYERS * MATMUL * 10 / 1675e9)
    assert apart["vocabulary"] - fused["vocabulary"] == pytest.approx(M * 4096 * 128_256 * 10 / 1675e9)


def test_an_unfused_swiglu_writes_and_reads_silu() -> None:
    fused, apart = (parts(llama(options={"fused_swiglu": word})) for word in ("true", "false"))
    moved = M * LAYERS * 3 * T * 14_336 * (2 + 2) / 1675e9
    assert apart["memory_bound"] - fused["memory_bound"] == pytest.approx(moved)


def test_context_parallel_ranks_exchange_values_of_their_own_width() -> None:
    """Latent attention: 4 heads with keys of 24 and values of 20. m 32 of one sequence of 64 tokens on 4 replicas."""
    tokens, passes = 32, 32 * 4 * 3
    ring = scenario_of(small_mla(), coefficients=BARE, seq_length=64, global_batch_size=128)
    keys_values = 2 * tokens * 4 * (24 + 20)
    found = parts(ring, context_parallel=2)["context_parallel"]
    assert found == pytest.approx(passes * (keys_values / 337.5e9 + 2e-6))
    swapped = scenario_of(
        small_mla(),
        coefficients=BARE,
        seq_length=64,
        global_batch_size=128,
        options={"cp_communication": "all_to_all"},
    )
    # q, k, v and the output, of which half leaves a rank of two.
    sent = 2 * tokens * 4 * (24 + 24 + 20 + 20) / 2
    found = parts(swapped, context_parallel=2)["context_parallel"]
    assert found == pytest.approx(passes * (sent / 337.5e9 + 2e-6))


def test_zero_3_gathers_half_of_its_traffic_in_either_pass() -> None:
    """Few tokens: a gather outlasts the forward pass beside it, but not the backward pass. Reductions wait."""
    answer = estimated(llama(seq_length=64, options={"overlap_grad_reduce": "false"}), zero_stage=3)
    (work,) = answer.throughput.stages
    # 7/8 over one link, and seven steps of 2 us on every gibibyte.
    per_byte = 7 / 8 / 337.5e9 + 7 * 2e-6 / 2**30
    gather, reduction = 2 * PARAMETERS * per_byte, 4 * PARAMETERS * per_byte
    assert work.forward_seconds < 0.75 * gather < gather < work.backward_seconds
    # A quarter of what overlaps is exposed in any case.
    shown = gather - work.forward_seconds + gather / 4 + reduction
    assert answer.throughput.parts_seconds["data_parallel"] == pytest.approx(M * shown, rel=1e-4)


def test_few_tokens_read_the_experts_parts_of_a_rank() -> None:
    """Reading 2 bytes per weight in each pass, and reading and writing fp32 gradients, outlast the products.

    With what goes in and comes out of 64 tokens, and of the experts' 128 copies: 2 of each token, over both ranks.
    """
    scenario = untiled(llama("mixtral-8x7b-v0.1", seq_length=64))
    found = parts(scenario, tensor_parallel=2, sequence_parallel=True, expert_parallel=2, expert_tensor_parallel=2)
    weights = PROJECTIONS / 2 + 8 * 4096 + 8 * 3 * 4096 * 14_336 / (2 * 2)
    copies, wide = 128, 14_336 / 2
    tokens = copies * ((4096 + 2 * wide) + (wide + 4096)) * 2
    # q, k and v; o; the router on half of the tokens.
    tokens += (64 * ((4096 + 6144 / 2) + (4096 / 2 + 4096)) + 32 * (4096 + 8)) * 2
    each = weights * (2 + 2 + 8) / 1675e9 + 3 * tokens / 1675e9
    assert found["gemm"] == pytest.approx(2 * M * 32 * each)


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_bubble_s_share_of_equal_stages(chunks: int) -> None:
    """(p - 1) / v idle of m busy micro batches (Narayanan et al. 2021, section 2.2), where no rank has more to do."""
    scenario = llama(global_batch_size=16, seq_length=2**17)
    cut = replace(scenario, model=replace(scenario.model, vocab_size=8))
    found = estimated(cut, pipeline_parallel=4, virtual_stages=chunks).throughput
    m, idle = 8, 3 / chunks
    assert found.bubble_fraction == pytest.approx(idle / (m + idle), rel=1e-4)
    assert found.parts_seconds["bubble"] == pytest.approx(
        idle * (found.stages[0].forward_seconds + found.stages[0].backward_seconds), rel=1e-3
    )


@pytest.mark.parametrize(
    ("recompute", "per_layer"),
    [("none", 0), ("selective", 4 * T * 4096), ("attention", 4 * T * 4096 + 2 * PROJECTIONS)],
)
def test_hardware_flops_count_what_is_computed_again(recompute: str, per_layer: float) -> None:
    """Two products of s h multiplications a token (Korthikanti et al. 2022, appendix A), and the projections'."""
    found = estimated(llama(), recompute=recompute).throughput
    added = found.hardware_flops_per_second_per_device - found.flops_per_second_per_device
    assert added / found.tokens_per_second_per_device == pytest.approx(LAYERS * per_layer)


def test_hardware_flops_of_latent_attention_count_both_widths() -> None:
    """Scores over keys of 24, sums of values of 20, four heads, four layers."""
    scenario = scenario_of(small_mla(), coefficients=BARE, seq_length=64, global_batch_size=128)
    found = estimated(scenario, recompute="selective").throughput
    added = found.hardware_flops_per_second_per_device - found.flops_per_second_per_device
    assert added / found.tokens_per_second_per_device == pytest.approx(4 * 2 * 64 * 4 * (24 + 20))


def test_attention_computed_again_loses_to_the_collectives_beside_it() -> None:
    """Half of what overlaps is exposed; the products lose an eighth of their time."""
    found = parts(llama(), tensor_parallel=2, sequence_parallel=True, recompute="attention")["recompute"]
    gemm = T * PROJECTIONS / 494.5e12
    core, moved = T * T * 4096 / 247.25e12, 2 * T * (4096 + 1024) / 1675e9
    collective = 0.5 * 2 * T * 4096 / 337.5e9 + 2e-6
    assert found == pytest.approx(2 * M * LAYERS * (gemm * 9 / 8 + core + moved + collective))


def test_the_vocabulary_s_work_is_divided_over_the_tensor_parallel_group() -> None:
    """Half the products and half the logits on each of two ranks, for twice the micro batches."""
    scenario = untiled(llama())
    whole, half = parts(scenario), parts(scenario, tensor_parallel=2, sequence_parallel=True)
    # Both look up all tokens, whose gradients every rank has.
    looked_up = 2 * M * 2 * 4 * T * 4096 / 1675e9 / 2
    assert half["vocabulary"] == pytest.approx(whole["vocabulary"] + looked_up)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pipeline_parallel": 4, "virtual_stages": 2, "offload": "optimizer"},
        {"tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2, "recompute": "full"},
        {"pipeline_parallel": 2, "offload": "activations", "micro_batch_size": 4, "recompute": "selective"},
    ],
)
def test_a_step_is_the_sum_of_its_parts(fields: dict[str, Any]) -> None:
    found = estimated(scenario_of("llama3.1-8b", coefficients=ROUND), **fields).throughput
    assert min(found.parts_seconds.values()) >= 0
    assert found.step_seconds == pytest.approx(sum(found.parts_seconds.values()))
    busiest = max(stage.forward_seconds + stage.backward_seconds for stage in found.stages)
    assert found.step_seconds > 128 / fields.get("micro_batch_size", 1) * busiest


def test_a_frozen_output_layer_has_no_weight_gradient() -> None:
    products, logits = 2 * T * 4096 * 128_256 / 494.5e12, 26 * T * 128_256 / 1675e9
    table = 2 * 2 * T * 4096 / 1675e9
    assert parts(llama(lora_rank=8))["vocabulary"] == pytest.approx(M * (2 * (products + logits) + table))


def test_a_prediction_layer_multiplies_by_its_layer_and_its_projection() -> None:
    """The projection joins two vectors of h; the output layer counts under the vocabulary."""
    h = 4096
    model = small_dense(num_nextn_predict_layers=1, hidden_size=h, intermediate_size=2 * h)
    # Queries, keys and values of 128 features, attention's output of 64, gate and up, and down.
    layer = sum(sum(product(T, *sides)) for sides in ((128, h), (h, 64), (4 * h, h), (h, 2 * h)))
    found = [parts(llama(model=model, options={"mtp": word}))["gemm"] for word in ("false", "true")]
    assert found[0] == pytest.approx(M * 4 * layer)
    assert found[1] - found[0] == pytest.approx(M * (layer + sum(product(T, h, 2 * h))))


def with_time(**values: float) -> Scenario:
    return replace(llama(), coefficients=replace(BARE, time=replace(BARE.time, **values)))


def test_what_attention_does_beside_its_products() -> None:
    """Per score the work of so many features of a head's 128; per sequence that of so many more tokens."""
    plain = parts(llama())["attention"]
    assert parts(with_time(attention_score_width=64))["attention"] == pytest.approx(1.5 * plain)
    # Over 8,192 tokens by FlashAttention 2; a ring of four sees 2,048 at a time, three of four steps without a mask.
    assert parts(with_time(attention_tile_tokens=2048))["attention"] == pytest.approx(1.25 * plain)
    assert parts(with_time(attention_tile_tokens_flash_3=2048))["attention"] == pytest.approx(plain)
    ring = {"context_parallel": 4}
    tiled, alone = (parts(with_time(attention_tile_tokens=tile), **ring)["attention"] for tile in (2048, 0))
    assert tiled == pytest.approx((1 + (1 + 3 / 3) / 4) * alone)


def test_the_host_s_part_of_tensor_parallelism() -> None:
    """A layer's calls once a micro batch in both passes together, and those of the ends."""
    split = {"tensor_parallel": 2, "sequence_parallel": True}
    found = parts(with_time(tensor_overhead_seconds=0.5), **split)
    assert found["overhead"] == pytest.approx(2 * M * LAYERS * 0.5)
    assert parts(with_time(tensor_overhead_seconds=0.5))["overhead"] == 0
    ends = parts(with_time(tensor_ends_overhead_seconds=0.5), **split)["vocabulary"]
    assert ends - parts(llama(), **split)["vocabulary"] == pytest.approx(2 * M * 0.5)


def test_adapters_of_recomputed_attention_are_multiplied_again() -> None:
    """One matrix of each pair is split over the ranks, the other meets a rank's part of the tokens."""
    sizes: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True, "recompute": "attention"}
    options = {"tp_comm_overlap": "false"}
    small, large = (parts(llama(lora_rank=rank, options=options), **sizes)["recompute"] for rank in (8, 16))
    # One adapter for q, k and v.
    widths = (4096 + 4096) + (4096 + 4096 + 2 * 1024)
    assert large - small == pytest.approx(2 * M * LAYERS * 2 * T * 8 * widths / 2 / 494.5e12, rel=1e-6)


def test_a_step_waits_for_the_rank_with_most_parameters() -> None:
    """The first of two ranks: its layers and the input table, 30 bytes per parameter, over 4 replicas."""
    found = parts(llama(), stage_layers=(18, 14), pipeline_parallel=2)["optimizer"]
    first = 18 * (MATMUL + 2 * 4096) + 128_256 * 4096
    assert found == pytest.approx(30 * first / 4 / 1675e9)


def test_only_a_model_with_prediction_layers_tells_that_they_are_left_out() -> None:
    told = [
        any("multi-token-prediction" in note for note in estimated(llama(model=model)).provenance.notes)
        for model in (small_dense(num_nextn_predict_layers=1), small_dense())
    ]
    assert told == [True, False]


@pytest.mark.parametrize(("zero_stage", "exchanges"), [(0, 1), (1, 1 + 1), (2, M + 1), (3, M + 2 * M)])
def test_every_exchange_of_a_layer_takes_its_time(zero_stage: int, exchanges: int) -> None:
    """Scatters once a step, from ZeRO 2 on once a micro batch; gathers once a step, under ZeRO 3 in either pass.

    Of layers of either kind, the input table and the output layer.
    """
    for model, pieces in (("llama3.1-8b", LAYERS + 2), (small_moe(), 4 + 2)):
        plain = llama(model=model, devices=8)
        slow = replace(plain, coefficients=replace(BARE, time=replace(BARE.time, shard_overhead_seconds=0.5)))
        before, after = (parts(scenario, zero_stage=zero_stage)["data_parallel"] for scenario in (plain, slow))
        assert after - before == pytest.approx(pieces * exchanges * 0.5)


def test_replicas_exchange_what_is_trained() -> None:
    """Adapters of rank 8: 4 bytes of gradients and 2 of parameters; 18 million are a bucket that nothing hides."""
    adapters = LAYERS * 8 * (3 * 4096 + 4096 + 2 * 1024 + 4096 + 2 * 14_336 + 4096 + 14_336)
    per_byte = 7 / 8 / 337.5e9 + 7 * 2e-6 / 2**30
    assert parts(llama(lora_rank=8))["data_parallel"] == pytest.approx(adapters * 6 * per_byte)
    # Beside the first bucket, or the last, a quarter of what is exchanged shows.
    wide, bucket = 4 * adapters, 4e7
    shown = bucket + (wide - bucket) / 4
    assert parts(llama(lora_rank=32))["data_parallel"] == pytest.approx(shown * 6 * per_byte)
