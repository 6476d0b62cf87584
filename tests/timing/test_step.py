"""Parts of a step of Llama-8B on one Z2000 node against sums worked by hand.

Rates of tests.scenario.cases.ROUND: matrix products at half of 989 TFLOP/s (494.5), attention at a quarter (247.25),
elementwise kernels at half of 3350 GB/s (1675), NVLink at 75 % of 450 GB/s (337.5). Eight replicas of one sequence of
8192 tokens, 1024 sequences a step: m = 128 micro batches. h 4096, k 1024, f 14336, V 128256, 32 layers.
"""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.state import device_parameters
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import layer_work, total
from simulator.cost.pricing.price import Priced
from simulator.cost.timing.collectives import RankGroup, gather_seconds
from simulator.cost.timing.step import min_step_seconds
from simulator.question.frameworks.stacks import profile_of
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import ROUND, layer_kind, only, priced, pricing, scenario_of, small_dense, small_moe

M, LAYERS, T = 128, 32, 8192
MATMUL = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336
PARAMETERS = 8_030_261_248
TABLE = 128_256 * 4096


def llama(**fields: Any) -> Scenario:
    return scenario_of("llama3.1-8b", coefficients=ROUND, **fields)


def parts(scenario: Scenario, **fields: Any) -> dict[str, float]:
    answer = priced(scenario, **fields)
    return {name: only(value) for name, value in answer.step.parts(answer.pricing).items()}


def test_compute() -> None:
    found = parts(llama())
    # A backward pass does twice the forward's products.
    assert found["gemm"] == pytest.approx(M * LAYERS * 3 * 2 * T * MATMUL / 494.5e12)
    # The causal half, 2 s h per token; the flash kernel's backward pass takes 2.5 x 1.2 times the forward.
    assert found["attention"] == pytest.approx(M * LAYERS * 4 * 2 * T * T * 4096 / 247.25e12)
    # Bytes: norms and residuals 20 h, rotary 4 (q + k), SwiGLU 6 f per token; twice that backward.
    elementwise = 20 * 4096 + 4 * (4096 + 1024) + 6 * 14_336
    # 14 for each feature of a query around the backward pass of attention.
    assert found["memory_bound"] == pytest.approx(M * LAYERS * T * (3 * elementwise + 14 * 4096) / 1675e9)
    # The output layer's products, and 52 bytes a logit in both passes of Megatron's loss.
    products, logits = 3 * 2 * T * 4096 * 128_256 / 494.5e12, 52 * T * 128_256 / 1675e9
    # Rows of the table read and written in both passes; its gradient written, read, and added in fp32.
    table = (8 * T + (2 + 2 + 8) * 128_256) * 4096 / 1675e9
    assert found["vocabulary"] == pytest.approx(M * (products + logits + table))
    # 300 us a layer, 1 ms a micro batch, 10 ms a step.
    assert found["overhead"] == pytest.approx(M * LAYERS * 300e-6 + M * 1e-3 + 10e-3)


@pytest.mark.parametrize(
    ("options", "per_logit"),
    [
        ({"fused_cross_entropy": "true"}, 16),
        ({"loss_traffic_bytes": "108"}, 108),
        ({"fused_cross_entropy": "true", "loss_traffic_bytes": "108"}, 16),
    ],
)
def test_what_the_loss_reads_and_writes_is_the_stacks(options: dict[str, str], per_logit: int) -> None:
    plain, other = parts(llama()), parts(llama(options=options))
    saved = plain["vocabulary"] - other["vocabulary"]
    assert saved == pytest.approx(M * (52 - per_logit) * T * 128_256 / 1675e9)


def test_megatrons_loss_takes_more_passes_than_a_log_softmax_in_one_kernel() -> None:
    """Megatron's core 0.6 to 0.16, tensor_parallel/cross_entropy.py: each kernel over fp32 logits, counted by hand."""
    forward = {"cast": 2 + 4, "maximum": 4, "difference": 4 + 4, "exponent": 4 + 4, "sum": 4, "quotient": 4 + 4}
    backward = {"product": 4 + 4, "cast": 4 + 2}
    assert profile_of("megatron").loss_traffic_bytes == sum(forward.values()) + sum(backward.values())
    one_kernel = {"cast": 2 + 4, "log-softmax": 4 + 4, "its gradient": 4 + 4 + 4, "cast back": 4 + 2}
    assert profile_of("torch").loss_traffic_bytes == profile_of("paddle").loss_traffic_bytes == sum(one_kernel.values())


def test_fp8_speeds_up_the_layers_products_only() -> None:
    bf16, fp8 = parts(llama()), parts(llama(precision="fp8"))
    assert fp8["gemm"] == pytest.approx(M * LAYERS * 3 * 2 * T * MATMUL / (1979e12 / 4))
    assert fp8["attention"] == bf16["attention"]
    assert fp8["vocabulary"] == bf16["vocabulary"]
    # Casts: 4 bytes per element of the two norm outputs, the attention output and the product; three passes.
    casts = 4 * (2 * 4096 + 4096 + 14_336)
    assert fp8["memory_bound"] - bf16["memory_bound"] == pytest.approx(M * LAYERS * 3 * T * casts / 1675e9)


def test_adapters_save_the_weights_gradients() -> None:
    full, adapters = parts(llama()), parts(llama(lora_rank=8))
    # Two products for three, and three of the adapters' 8 (4096 + 6144 + 8192 + 4096 + 28672 + 18432) a layer.
    own = 3 * 2 * T * 8 * 69_632 / 494.5e12 * M * LAYERS
    assert adapters["gemm"] == pytest.approx(2 / 3 * full["gemm"] + own)
    assert adapters["attention"] == full["attention"]


def test_unfused_attention_moves_the_scores() -> None:
    flash, plain = parts(llama()), parts(llama(options={"flash_attention": "false"}))
    # On all of the scores, not the causal half; the backward pass is 2 x 1.2 times the forward.
    assert plain["attention"] == pytest.approx(2 * flash["attention"] * 3.4 / 4)
    scores, around = 4.5 * 2 * T * T * 32, 14 * T * 4096
    more = M * LAYERS * (3 * scores - around) / 1675e9
    assert plain["memory_bound"] - flash["memory_bound"] == pytest.approx(more)


def test_tensor_parallelism() -> None:
    found = parts(llama(), tensor_parallel=2, sequence_parallel=True)
    # Four collectives of the whole activation a pass, 2 T h = 64 MiB: half over one link of two. Half is exposed.
    collective = 0.5 * 2 * T * 4096 / 337.5e9 + 2e-6
    assert found["tensor_parallel"] == pytest.approx(2 * M * LAYERS * 2 * 4 * 0.5 * collective)
    alone = {"tp_comm_overlap": "false", "overlap_tensor_gradients": "false"}
    waiting = parts(llama(options=alone), tensor_parallel=2, sequence_parallel=True)
    assert waiting["tensor_parallel"] == pytest.approx(2 * found["tensor_parallel"])
    # Two ranks share a micro batch's products; four replicas work on twice the micro batches.
    assert found["gemm"] == pytest.approx(parts(llama())["gemm"])
    assert parts(llama())["tensor_parallel"] == 0


def test_compute_loses_to_communication_beside_it() -> None:
    # An eighth of the products' time under tensor-parallel collectives, 16 bytes per query merged in a ring step.
    found = parts(llama(), tensor_parallel=2, sequence_parallel=True)
    assert found["overlap"] == pytest.approx(found["gemm"] / 8)
    waiting = parts(llama(options={"tp_comm_overlap": "false"}), tensor_parallel=2, sequence_parallel=True)
    assert waiting["overlap"] == 0
    for ranks in (2, 4):
        ring = parts(llama(), context_parallel=ranks)
        merged = (ranks - 1) * 16 * T / ranks * 4096 / 1675e9
        assert ring["ring_attention"] == pytest.approx(ranks * M * LAYERS * 3 * merged)
    exchanged = parts(llama(options={"cp_communication": "all_to_all"}), context_parallel=2)
    assert exchanged["ring_attention"] == 0
    assert parts(llama())["overlap"] == parts(llama())["ring_attention"] == 0


def test_context_parallelism() -> None:
    # Ring of two: one send of the rank's keys and values, 2 x 4096 x 2048 bytes, forward and two backward.
    ring = parts(llama(), context_parallel=2)["context_parallel"]
    assert ring == pytest.approx(2 * M * LAYERS * 3 * (2 * 4096 * 2048 / 337.5e9 + 2e-6))
    # All-to-all of q, k, v and output: widths 4096 + 4096 + 1024 + 1024, half of it sent to the other.
    exchange = parts(llama(options={"cp_communication": "all_to_all"}), context_parallel=2)["context_parallel"]
    assert exchange == pytest.approx(2 * M * LAYERS * 3 * (0.5 * 2 * 4096 * 10_240 / 337.5e9 + 2e-6))


def test_expert_parallelism() -> None:
    scenario = scenario_of("mixtral-8x7b-v0.1", coefficients=ROUND)
    found = parts(scenario, expert_parallel=8)
    # Two copies of every token out and back, 7/8 of them to other ranks; two passes; a wait; nothing is hidden.
    exchange = 7 / 8 * 2 * 2 * T * 4096 / 337.5e9 + 2e-6
    assert found["expert_parallel"] == pytest.approx(M * LAYERS * (2 * 2 * exchange + 1e-3))
    assert parts(scenario)["expert_parallel"] == 0
    # Beside another micro batch's compute half of it shows, and a quarter of the wait.
    overlapped = scenario_of("mixtral-8x7b-v0.1", coefficients=ROUND, options={"overlap_expert_exchange": "true"})
    hidden = parts(overlapped, expert_parallel=8)["expert_parallel"]
    assert hidden == pytest.approx(M * LAYERS * (2 * 0.5 * 2 * exchange + 0.25e-3))
    assert parts(overlapped)["expert_parallel"] == 0
    # Expert tensor parallelism instead: gathers of both ranks' copies, 1/2 over one link.
    gathered = parts(scenario, tensor_parallel=2, sequence_parallel=True, expert_tensor_parallel=2)
    gather = 0.5 * 2 * 2 * T * 4096 / 337.5e9 + 2e-6
    assert gathered["expert_parallel"] == pytest.approx(2 * M * LAYERS * (2 * 2 * gather + 1e-3))


def test_experts_of_a_layer_move_bytes() -> None:
    # 20 h + 4 (q + k) per token; widths of two routed and one shared expert, 6 each; 10 h per copy.
    scenario = scenario_of(small_moe(), seq_length=32)
    kind = layer_kind(scenario.model, moe=True)
    per_token = 20 * 64 + 4 * 96 + 6 * 3 * 48 + 10 * 2 * 64
    moved = layer_work(conditions_of(scenario), kind).moved
    assert only(total(pricing(scenario), moved)) == 32 * per_token


@pytest.mark.parametrize(
    ("stage", "bytes_per_parameter"), [(0, 2 * 4), (1, 4 + 2), (2, M * 4 + 2), (3, M * 4 + 2 * M * 2)]
)
def test_data_parallel_traffic(stage: int, bytes_per_parameter: float) -> None:
    # 7/8 of gradients (4 bytes) and parameters (2 bytes) over NVLink: of the input table, gathered first and reduced
    # last, all is exposed, of the rest a quarter.
    found = parts(llama(), zero_stage=stage)["data_parallel"]
    shown = 0.25 * (PARAMETERS - TABLE) + TABLE
    regathered = (0.25 - 1) * TABLE * 2 * M * (stage == 3)
    expected = (shown * bytes_per_parameter + regathered) * 7 / 8 / 337.5e9
    assert found == pytest.approx(expected, rel=1e-2)


def test_data_parallel_traffic_that_waits() -> None:
    hidden, exposed = parts(llama())["data_parallel"], (0.25 * (PARAMETERS - TABLE) + TABLE) / PARAMETERS
    for name, per_parameter in (
        ("overlap_grad_reduce", 4 + 2 * exposed),
        ("overlap_param_gather", 4 * exposed + 2),
    ):
        shown = parts(llama(options={name: "false"}))["data_parallel"]
        assert shown / hidden == pytest.approx(per_parameter / (6 * exposed))
    assert parts(llama(devices=1))["data_parallel"] == 0
    assert parts(llama(devices=1, lora_rank=8))["data_parallel"] == 0


def test_the_optimizer_step_moves_its_shard() -> None:
    # State 12 bytes read and written, gradient 4 read, weight 2 written.
    for stage, replicas in ((0, 1), (1, 8), (3, 8)):
        found = parts(llama(), zero_stage=stage)["optimizer"]
        assert found == pytest.approx(PARAMETERS / replicas * 30 / 1675e9)


def test_offloaded_state_travels_both_ways() -> None:
    for offload in ("optimizer", "optimizer_tensorwise"):
        found = parts(llama(), offload=offload)["offload"]
        assert found == pytest.approx(2 * 12 * PARAMETERS / 8 / 64e9)
    assert parts(llama())["offload"] == 0


def test_offloaded_activations_show_what_compute_does_not_hide() -> None:
    # Short sequences: 512 tokens move more than their compute hides.
    scenario = scenario_of(small_dense(), coefficients=ROUND, seq_length=512)
    answer = priced(scenario, offload="activations")
    assert only(answer.step.offload) == pytest.approx(128 * waited(answer, 4 * 512 * 2072 / 64e9))
    real = priced(llama(), offload="activations")
    # 38 GB at 64 GB/s out under a forward pass of a third of a second, and back under a backward pass of twice that.
    moved = only(real.memory.activations.offload_traffic) / 64e9
    assert only(real.step.work.forward) < moved < only(real.step.work.backward)
    assert only(real.step.offload) == pytest.approx(128 * (moved - only(real.step.work.forward)))


def waited(answer: Priced, moved: float) -> float:
    """What both passes of a micro batch wait for as many seconds of traffic each."""
    return sum(max(moved - only(work), 0.0) for work in (answer.step.work.forward, answer.step.work.backward))


def test_recompute_repeats_the_forward_pass() -> None:
    found = parts(llama(), recompute="full")
    forward = (
        2 * T * MATMUL / 494.5e12
        + 2 * T * T * 4096 / 247.25e12
        + T * (20 * 4096 + 4 * 5120 + 6 * 14_336) / 1675e9
        + 100e-6
    )
    assert found["recompute"] == pytest.approx(M * LAYERS * forward)
    assert parts(llama(), recompute="selective")["recompute"] == pytest.approx(
        M * LAYERS * 2 * T * T * 4096 / 247.25e12
    )
    assert parts(llama())["recompute"] == 0


def test_groups_that_shard_on_their_own_sum_their_shards() -> None:
    options = {"sharding_degree": "4", "overlap_grad_reduce": "false", "overlap_param_gather": "false"}
    scenario = scenario_of("llama3.1-8b", devices=16, options=options, coefficients=ROUND)
    answer = priced(scenario, zero_stage=1)
    size = only(device_parameters(Pricing(scenario, answer.block)).dense)

    def seconds(ranks: float, stride: float, size_bytes: float) -> float:
        return only(gather_seconds(scenario, RankGroup(np.array([ranks]), np.array([stride])), np.array([size_bytes])))

    # Gradients are scattered in groups of four, the quarters summed over four groups, parameters gathered.
    latency_free = seconds(4, 1, 4 * size) + 2 * seconds(4, 4, 4 * size / 4) + seconds(4, 1, 2 * size)
    assert only(answer.step.data_parallel) == pytest.approx(latency_free, rel=1e-2)


def test_parameters_on_the_host_come_in_twice_a_micro_batch_and_go_out_once() -> None:
    found = []
    for word in ("false", "true"):
        scenario = scenario_of("llama3.1-8b", options={"offload_parameters": word}, coefficients=ROUND, seq_length=64)
        found.append(priced(scenario, zero_stage=3))
    part = only(found[1].memory.state.parameters_on_host) / scenario.hardware.host_bandwidth_bytes_per_second
    assert waited(found[0], part) > 0
    assert only(found[1].step.offload) == pytest.approx(128 * waited(found[0], part) + part)
    assert only(found[0].step.offload) == 0


def test_a_part_of_the_state_takes_a_part_of_the_host_s_time() -> None:
    found = []
    for share in ("1.0", "0.25"):
        scenario = scenario_of("llama3.1-8b", options={"offload_fraction": share}, coefficients=ROUND)
        found.append(only(priced(scenario, offload="optimizer").step.offload))
    assert found[0] > 0
    assert found[1] == pytest.approx(found[0] / 4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pipeline_parallel": 4},
        {"pipeline_parallel": 4, "virtual_stages": 2},
        {"tensor_parallel": 2, "sequence_parallel": True},
    ],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_least_step_is_its_passes_with_nothing_done_again(fields: dict[str, Any], recompute: str) -> None:
    """What replicas exchange, the optimizer, and what recomputation adds come on top."""
    scenario = llama(global_batch_size=64)
    found = parts(scenario, **fields)
    beside = found["data_parallel"] + found["optimizer"] + found["offload"]
    least = only(min_step_seconds(pricing(scenario, recompute=recompute, **fields)))
    assert least == pytest.approx(sum(found.values()) - beside)
