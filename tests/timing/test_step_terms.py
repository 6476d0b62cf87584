"""Terms of a step that few layouts have: what replicas exchange beside short passes, waiting, a reference's passes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.pricing.price import Priced
from simulator.cost.timing.collectives import RankGroup, gather_seconds
from simulator.cost.timing.products import memory_rate
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import ROUND, only, priced, scenario_of, small_dense, small_moe

LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64
"""Attention and norms of one layer of the small models."""
DENSE = 4 * (LAYER + 3 * 64 * 160) + 2 * 1000 * 64 + 64
EXPERTS = 3 * 8 * 3 * 64 * 48
"""Routed experts of three layers; what stands beside them, a router and a shared expert, is dense."""
BESIDE_EXPERTS = 4 * LAYER + 3 * 64 * 160 + 3 * (64 * 8 + 3 * 64 * 48) + 2 * 1000 * 64 + 64


def per_byte(scenario: Scenario, ranks: float, stride: float) -> float:
    """Seconds of gathering a byte, of a gibibyte at once."""
    group = RankGroup(np.array([ranks]), np.array([stride]))
    return only(gather_seconds(scenario, group, np.array([2.0**30]))) / 2**30


def exchanged(answer: Priced) -> float:
    return only(answer.step.data_parallel)


@pytest.mark.parametrize(("zero_stage", "name"), [(1, "data_exposed"), (2, "shard_exposed")])
def test_which_share_of_hidden_exchanges_shows(zero_stage: int, name: str) -> None:
    model = small_dense(hidden_size=2048, intermediate_size=8192)

    def seconds(**changes: float) -> float:
        values = replace(ROUND, time=replace(ROUND.time, **changes))
        options = {"overlap_grad_reduce": "true"}
        scenario = scenario_of(model, coefficients=values, seq_length=4096, global_batch_size=32, options=options)
        return exchanged(priced(scenario, zero_stage=zero_stage))

    (other,) = {"data_exposed", "shard_exposed"} - {name}
    assert seconds(**{other: 0.5}) == seconds() < seconds(**{name: 0.5})


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("reduces", [True, False])
@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("sequence", [8, 4096])
def test_what_hides_behind_passes_of_any_length(zero_stage: int, reduces: bool, gathers: bool, sequence: int) -> None:
    """Beside a pass too short for it, communication shows what the pass does not cover; else its exposed quarter.

    The first bucket of 40 million parameters that is gathered hides behind nothing, nor the last that is reduced.
    Gradients, 4 bytes, are scattered (ZeRO 0: and gathered) once, or from ZeRO 2 on once a micro batch; parameters, 2
    bytes, gathered once, or under ZeRO 3 in each pass. Gathers run beside forward passes, the second one of ZeRO 3
    beside the backward pass like the reduction.
    """
    options = {"overlap_grad_reduce": str(reduces).lower(), "overlap_param_gather": str(gathers).lower()}
    model = small_dense(hidden_size=2048, intermediate_size=8192)
    scenario = scenario_of(model, coefficients=ROUND, seq_length=sequence, global_batch_size=32, options=options)
    answer = priced(scenario, zero_stage=zero_stage)
    passes = 4
    forward, backward = only(answer.step.work.forward), only(answer.step.work.backward)
    layer = 2048 * (2 * 64 + 2 * 32 + 2 + 3 * 8192)
    byte = per_byte(scenario, 8, 1) * (4 * layer + 2 * 1000 * 2048 + 2048)
    bucket = per_byte(scenario, 8, 1) * 4e7
    reducing = 4 * byte * {0: 2, 1: 1, 2: passes, 3: passes}[zero_stage]
    gathering = 2 * byte * {0: 0, 1: 1, 2: 1, 3: 2 * passes}[zero_stage]
    late = gathering / 2 if zero_stage == 3 else 0.0
    beside_forward = (gathering - late) * gathers
    beside_backward = late * gathers + reducing * reduces
    waits = reducing + gathering - beside_forward - beside_backward
    of_forward = forward * (passes if zero_stage == 3 else 1)
    of_backward = backward * (passes if zero_stage >= 2 else 1)
    first = 2 * bucket * gathers * {0: 0, 1: 1, 2: 1, 3: passes}[zero_stage]
    last = 4 * bucket * reduces * {0: 2, 1: 1, 2: passes, 3: passes}[zero_stage]
    shown = max(first + (beside_forward - first) / 4, beside_forward - of_forward)
    shown += max(last + (beside_backward - last) / 4, beside_backward - of_backward)
    assert exchanged(answer) == pytest.approx(waits + shown, rel=1e-9)


OVERLAPS = {"overlap_grad_reduce": "true", "overlap_param_gather": "true"}
WAITING = {"overlap_grad_reduce": "false", "overlap_param_gather": "false"}


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_experts_are_exchanged_among_those_that_hold_the_same(zero_stage: int) -> None:
    """Of 16 devices each two that lie eight apart; the rest of the model among all."""
    scenario = scenario_of(
        small_moe(), coefficients=ROUND, devices=16, seq_length=64, global_batch_size=32, options=WAITING
    )
    answer = priced(scenario, zero_stage=zero_stage, expert_parallel=8)
    moved = {0: 2 * 4, 1: 4 + 2, 2: 2 * 4 + 2, 3: 2 * 4 + 2 * 2 * 2}[zero_stage]
    seconds = per_byte(scenario, 16, 1) * BESIDE_EXPERTS + per_byte(scenario, 2, 8) * EXPERTS / 8
    assert exchanged(answer) == pytest.approx(moved * seconds, rel=1e-9)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_adapters_are_reduced_and_frozen_weights_gathered_where_they_are_divided(zero_stage: int) -> None:
    """Adapters' gradients and, below ZeRO 3, adapters; there the weights, which are stored in parts."""
    scenario = scenario_of(
        small_dense(), coefficients=ROUND, lora_rank=8, seq_length=64, global_batch_size=32, options=WAITING
    )
    answer = priced(scenario, zero_stage=zero_stage)
    pairs = (64 + 128) + (64 + 64) + (64 + 2 * 160) + (160 + 64)
    adapters = 4 * 8 * pairs
    gathered = {0: 0, 1: adapters, 2: adapters, 3: 2 * 4 * DENSE}[zero_stage]
    reduced = adapters * {0: 2, 1: 1, 2: 4, 3: 4}[zero_stage]
    assert exchanged(answer) == pytest.approx(per_byte(scenario, 8, 1) * (4 * reduced + 2 * gathered), rel=1e-9)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_adapters_of_experts_are_exchanged_among_those_that_hold_the_same(zero_stage: int) -> None:
    scenario = scenario_of(
        small_moe(),
        coefficients=ROUND,
        devices=16,
        lora_rank=8,
        seq_length=64,
        global_batch_size=32,
        options=WAITING,
    )
    answer = priced(scenario, zero_stage=zero_stage, expert_parallel=8)
    # Rows and columns of q, k and v together, output; the dense network; the shared expert and the router.
    dense = 8 * (4 * (64 + 128 + 64 + 64) + (64 + 320 + 160 + 64) + 3 * (64 + 96 + 48 + 64 + 64 + 8))
    routed = 8 * 3 * 8 * (64 + 96 + 48 + 64)
    reduced = 4 * {0: 2, 1: 1, 2: 2, 3: 2}[zero_stage]
    seconds = per_byte(scenario, 16, 1) * dense + per_byte(scenario, 2, 8) * routed / 8
    gathered = {0: 0.0, 1: 2 * seconds, 2: 2 * seconds}.get(
        zero_stage, 2 * 2 * 2 * (per_byte(scenario, 16, 1) * BESIDE_EXPERTS + per_byte(scenario, 2, 8) * EXPERTS / 8)
    )
    assert exchanged(answer) == pytest.approx(reduced * seconds + gathered, rel=1e-9)


@pytest.mark.parametrize("option", ["sharding_degree", "sharding_replicas"])
@pytest.mark.parametrize("zero_stage", [0, 1, 2])
# Over four: each four devices from the next with the same experts, of which nobody shards any. Over two: two of eight
# such ranks shard.
@pytest.mark.parametrize(("experts", "together"), [(4, 1), (2, 2), (1, 4)])
def test_shards_of_several_groups_are_summed(option: str, zero_stage: int, experts: int, together: int) -> None:
    """Four groups of four of 16 devices; experts' in proportion.

    Under ZeRO a quarter of the gradients is scattered and gathered among every fourth device, and so are the experts'
    parts; of each micro batch from ZeRO 2 on.
    """
    scenario = scenario_of(
        small_moe(),
        coefficients=ROUND,
        devices=16,
        seq_length=64,
        global_batch_size=32,
        options=WAITING | {option: "4"},
    )
    answer = priced(scenario, zero_stage=zero_stage, expert_parallel=experts)
    held = EXPERTS / experts
    inside = per_byte(scenario, 4, 1) * BESIDE_EXPERTS + per_byte(scenario, together, experts) * held
    across = per_byte(scenario, 4, 4) * BESIDE_EXPERTS / 4 + per_byte(scenario, 4, 4) * held / together
    times = 2 if zero_stage == 2 else 1
    expected = 4 * times * inside + 2 * inside + 4 * times * 2 * across
    if zero_stage == 0:
        expected = 4 * 2 * inside
    assert exchanged(answer) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("profile", "options", "devices", "starts"),
    [
        ("megatron", {}, 1, 0),
        # Parameters in another type than they are computed in: casts of autocast are no exchange, those of units are.
        ("megatron", {"parameter_dtype": "fp32"}, 1, 0),
        ("torch", {}, 1, 2 + 2 * 2),
        ("torch", {"parameter_dtype": "bf16"}, 1, 0),
        ("torch", {}, 2, 2 + 2 * 2),
        ("megatron", {}, 2, 2 + 2 * 2),
    ],
)
def test_units_are_exchanged_where_they_are_divided_or_cast(
    profile: str, options: dict[str, str], devices: int, starts: int
) -> None:
    """Four layers and both ends, under ZeRO 3: a scatter and two gathers of each for each of two micro batches."""
    plain = scenario_of(
        small_dense(),
        devices=devices,
        profile=profile,
        options=options,
        global_batch_size=2 * devices,
        coefficients=ROUND,
    )
    slow = replace(plain, coefficients=replace(ROUND, time=replace(ROUND.time, shard_overhead_seconds=0.5)))
    before, after = (exchanged(priced(one, zero_stage=3)) for one in (plain, slow))
    assert after - before == pytest.approx((4 + 2) * starts * 0.5)


@pytest.mark.parametrize(("nodes", "doublings"), [(1, 0.0), (2, 1.0), (3, math.log2(3)), (8, 3.0)])
def test_every_doubling_of_the_nodes_waits_for_a_share_of_the_passes(nodes: int, doublings: float) -> None:
    """Bubble included, sends not."""
    found = []
    for share in (0.0, 0.1):
        scenario = scenario_of(
            small_dense(num_hidden_layers=8),
            devices=8 * nodes,
            global_batch_size=16 * nodes,
            coefficients=replace(ROUND, time=replace(ROUND.time, node_doubling_wait=share)),
        )
        found.append(priced(scenario, pipeline_parallel=4).step)
    pipeline = found[0].pipeline
    assert only(pipeline.fill) > 0
    passes = only(pipeline.micro_batches * pipeline.pace_seconds + pipeline.fill)
    assert only(found[1].overhead - found[0].overhead) == pytest.approx(0.1 * doublings * passes, abs=1e-12)


@pytest.mark.parametrize(("ranks", "fills"), [(1, 0), (4, 3)])
def test_a_reference_scores_every_micro_batch_in_forward_passes(ranks: int, fills: int) -> None:
    """Of the slowest rank; a pipeline of forward passes fills once."""
    found = []
    for word in ("false", "true"):
        scenario = scenario_of(
            small_dense(), devices=8, global_batch_size=64, coefficients=ROUND, options={"reference_forward": word}
        )
        found.append(priced(scenario, pipeline_parallel=ranks).step)
    batches = 64 / (8 / ranks)
    slowest = float(np.max(found[0].work.forward))
    assert only(found[1].overhead - found[0].overhead) == pytest.approx((batches + fills) * slowest)


@pytest.mark.parametrize("offload", ["none", "activations"])
def test_a_pass_that_waits_for_the_host_hides_more_of_what_replicas_exchange(offload: str) -> None:
    """Passes are as long as what moves under them."""
    model = small_dense(vocab_size=100_000, intermediate_size=131_072)
    scenario = scenario_of(model, coefficients=ROUND, seq_length=512, global_batch_size=32)
    answer = priced(scenario, zero_stage=1, offload=offload)
    moved = only(answer.memory.activations.offload_traffic) / scenario.hardware.host_bandwidth_bytes_per_second
    forward, backward = (max(only(one), moved) for one in (answer.step.work.forward, answer.step.work.backward))
    both = DENSE + 2 * 99_000 * 64 + 4 * 3 * 64 * (131_072 - 160)
    byte, bucket = (per_byte(scenario, 8, 1) * parameters for parameters in (both, 4e7))
    shown = bucket + (byte - bucket) / 4
    expected = max(2 * shown, 2 * byte - forward) + max(4 * shown, 4 * byte - backward)
    assert exchanged(answer) == pytest.approx(expected, rel=1e-9)
    assert (moved > 0) == (offload != "none")


def test_broadcasts_start_one_after_the_other() -> None:
    """3.2 ms for each other rank with the same parameters, where parameters are updated once a step."""
    found: list[float] = []
    for word in ("false", "true"):
        options = WAITING | {"zero_broadcasts": word}
        scenario = scenario_of(small_dense(), coefficients=ROUND, global_batch_size=32, options=options)
        found += [exchanged(priced(scenario, zero_stage=stage)) for stage in range(4)]
    more = [after - before for before, after in zip(found[:4], found[4:], strict=True)]
    # ZeRO 1 then reduces gradients to all ranks, as ZeRO 0 does: twice what it scatters.
    assert more == pytest.approx([0, 7 * 3.2e-3 + found[0] / 2, 7 * 3.2e-3, 0])


def test_functional_collectives_take_as_long_where_nothing_overlaps() -> None:
    def seconds(functional: str) -> float:
        options = {"functional_collectives": functional, "tp_comm_overlap": "false"}
        answer = priced(scenario_of(small_dense(), profile="torch", options=options), tensor_parallel=2)
        return only(answer.step.parts(answer.pricing)["tensor_parallel"])

    assert seconds("true") == pytest.approx(seconds("false"))


def test_interleaved_chunks_hide_exchanges_behind_other_chunks() -> None:
    """Two chunks on two ranks hide theirs behind half of the rank's own pass and one of the slowest, else its own."""
    model = small_dense(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16)
    quick = replace(ROUND.time, data_exposed=0.0, layer_overhead_seconds=0.0, launch_seconds=0.0)
    options = {"overlap_grad_reduce": "true", "overlap_param_gather": "true"}
    coefficients = replace(ROUND, time=quick)
    scenario = scenario_of(model, options=options, coefficients=coefficients, seq_length=2, global_batch_size=32)
    one, two = (priced(scenario, zero_stage=1, pipeline_parallel=2, virtual_stages=chunks) for chunks in (1, 2))
    passes = (two.step.work.forward + two.step.work.backward)[:, 0]
    assert exchanged(one) - exchanged(two) == pytest.approx(passes.max() - passes[0] / 2, rel=1e-9)


@pytest.mark.parametrize(("passes", "zero_stage"), [("0", 1), ("4", 1), ("4", 0), ("2.5", 3)])
def test_passes_over_all_gradients_of_a_device(passes: str, zero_stage: int) -> None:
    """Whole, however ZeRO divides them: dense ones, and the experts of one of two ranks; 4 bytes each."""
    found = []
    for count in ("0", passes):
        scenario = scenario_of(
            small_moe(), coefficients=ROUND, global_batch_size=32, options=WAITING | {"gradient_passes": count}
        )
        found.append(only(priced(scenario, zero_stage=zero_stage, expert_parallel=2).step.optimizer))
    slowdown, rate = scenario.coefficients.time.optimizer_slowdown, 1675e9
    expected = float(passes) * 4 * (BESIDE_EXPERTS + EXPERTS / 2) * slowdown / rate
    assert found[1] - found[0] == pytest.approx(expected)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_muon_exchanges_what_fsdp_2_has_in_parts(zero_stage: int) -> None:
    """Matrices are whole on one of eight ranks, or come and go in 16 bits; orthogonalized at the rate of products."""
    seconds = {}
    for optimizer, sharded in (("muon", "true"), ("muon", "false"), ("sgd_momentum", "true")):
        options = WAITING | {"optimizer": optimizer, "fully_shard": sharded}
        scenario = scenario_of(
            small_dense(), profile="torch", coefficients=ROUND, global_batch_size=32, options=options
        )
        seconds[optimizer, sharded] = only(priced(scenario, zero_stage=zero_stage).step.optimizer)
    matrices = 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160)
    exchanged = 2 * 2 * matrices / 8 * per_byte(scenario, 8, 1)
    assert seconds["muon", "true"] - seconds["muon", "false"] == pytest.approx(exchanged, rel=1e-6)

    def flop(short: float, long: float) -> float:
        return 5 * (4 * short**2 * long + 2 * short**3)

    layer = 2 * flop(64, 64) + 2 * flop(32, 64) + flop(64, 320) + flop(64, 160)
    # Beside one moment, as SGD's, tables and vectors have another, which is read and written.
    others = 2 * 4 * (2 * 1000 * 64 + 9 * 64) / 8 * scenario.coefficients.time.optimizer_slowdown / 1675e9
    more = seconds["muon", "true"] - seconds["sgd_momentum", "true"] - exchanged
    assert more == pytest.approx(4 * layer / 8 / 494.5e12 + others, rel=1e-6)


@pytest.mark.parametrize("zero_stage", [2, 3])
@pytest.mark.parametrize("chunks", [1, 2])
def test_what_is_exchanged_in_each_micro_batch_hides_behind_its_passes_alone(zero_stage: int, chunks: int) -> None:
    """Links are slow: reductions show what the rank's backward pass leaves, and under ZeRO 3 gathers theirs.

    One gather a step hides, where chunks take turns, behind a pass of one chunk and two of the other's on the slowest
    rank. The last rank has the most to exchange: two layers, the last norm and the output layer.
    """
    model = small_dense(hidden_size=2048, intermediate_size=8192)
    values = replace(ROUND, time=replace(ROUND.time, link_efficiency=0.02))
    scenario = scenario_of(
        model, devices=4, profile="torch", coefficients=values, seq_length=8, global_batch_size=8, options=OVERLAPS
    )
    answer = priced(scenario, pipeline_parallel=2, virtual_stages=chunks, zero_stage=zero_stage)
    work, batches = answer.step.work, 4
    forward, backward = work.forward[:, 0], work.backward[:, 0]
    pace = float((forward + backward).max())
    layer = 2048 * (2 * 64 + 2 * 32 + 2 + 3 * 8192)
    parameters = np.array([2 * layer + 1000 * 2048, 2 * layer + 1000 * 2048 + 2048])
    byte = per_byte(scenario, 2, 1)
    reducing, gathering = 4 * byte * parameters, 2 * byte * parameters
    if zero_stage == 3:
        own, once = 2 * gathering + reducing, np.zeros(2)
    else:
        own = forward + reducing
        beside = forward if chunks == 1 else forward / 2 + pace / 3
        once = gathering - beside
    expected = batches * own.max() - batches * pace + once.max()
    assert exchanged(answer) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2.0), ("full", 3.0)])
def test_weights_of_4_bits_are_written_in_16_in_every_pass(recompute: str, passes: float) -> None:
    """A forward and a backward product each write theirs: half a byte, a scale per 64 and two bytes a weight."""
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)

    def seconds(*, quantised: str) -> float:
        options = {"quantised_base": quantised, "recompute_stops_early": "false"}
        scenario = scenario_of(
            profile="torch", options=options, devices=1, lora_rank=8, seq_length=8192, global_batch_size=1
        )
        return only(priced(scenario, recompute=recompute).step.total)

    rate = memory_rate(scenario_of(profile="torch", devices=1))
    extra = seconds(quantised="true") - seconds(quantised="false")
    assert extra == pytest.approx(passes * (0.5 + 2 / 64 + 2.0) * weights / rate, rel=1e-6)
