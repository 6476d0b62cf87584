"""What replicas exchange and what communication hides behind, to the last microsecond of latency.

The small model with experts on Z2000: NVLink at 75 % of 450 GB/s, 2 us a step. D parameters are held by 8 replicas, R
by the 2 ranks that have the same experts. m = 128 micro batches.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import extent, routed_tokens
from simulator.cost.stages import stage_contents
from simulator.cost.timing.collectives import RankGroup, gather_seconds, once_seconds
from simulator.cost.timing.layers import layer_seconds
from simulator.cost.timing.products import expert_launches
from simulator.cost.timing.step import pipeline_seconds, stage_work, with_waits
from simulator.question.scenario.scenario import NodeGroup, Scenario
from tests.scenario.cases import (
    ROUND,
    block,
    layer_kind,
    layout_of,
    only,
    priced,
    pricing,
    scenario_of,
    small_dense,
    small_moe,
)
from tests.timing.by_hand import untiled
from tests.timing.test_collectives import US, group

M = 128
LINEAR, LINEAR_ROUTED = 43_008 + 3 * (12_288 + 512 + 9216), 3 * 73_728
D, R = LINEAR + 2 * 64_000 + (4 * 2 + 1) * 64, LINEAR_ROUTED / 4
WAITS = {"overlap_grad_reduce": "false", "overlap_param_gather": "false"}


def scenario_with(
    *, options: dict[str, str] | None = None, time: dict[str, float] | None = None, **fields: Any
) -> Scenario:
    values = {"shard_overhead_seconds": 0.0} | (time or {})
    coefficients = replace(ROUND, time=replace(ROUND.time, **values))
    model = fields.pop("model", small_moe())
    return scenario_of(model, coefficients=coefficients, options=WAITS | (options or {}), **fields)


def exchanged(scenario: Scenario, **fields: Any) -> float:
    return only(priced(scenario, **({"expert_parallel": 4} | fields)).step.data_parallel)


def per_byte(ranks: int) -> float:
    """Of a gather over neighbours in a node, latency spread over a gibibyte."""
    return (ranks - 1) / ranks / 337.5e9 + (ranks - 1) * 2 * US / 2**30


@pytest.mark.parametrize("slow", [1, 3])
@pytest.mark.parametrize(
    ("zero_stage", "scatters", "extra", "gathers"), [(0, 1, 1, 0), (1, 1, 0, 1), (2, M, 0, 1), (3, M, 0, 2 * M)]
)
def test_each_class_of_parameters_over_its_own_replicas(
    zero_stage: int, scatters: int, extra: int, gathers: int, slow: int
) -> None:
    """fp32 gradients are reduced, as slow as said; without ZeRO gathered too; 16-bit parameters gathered."""
    found = exchanged(scenario_with(time={"reduce_slowdown": slow}), zero_stage=zero_stage)
    both = per_byte(8) * D + per_byte(2) * R
    assert found == pytest.approx((4 * scatters * (slow + extra) + 2 * gathers) * both)


def test_fp8_gathers_linear_weights_in_8_bits() -> None:
    options = {"fp8_param_gather": "true", "fp8_recipe": "delayed"}
    found = exchanged(scenario_with(options=options, precision="fp8"), zero_stage=1)
    wide = (4 + 2) * (per_byte(8) * D + per_byte(2) * R)
    assert found == pytest.approx(wide - per_byte(8) * LINEAR - per_byte(2) * LINEAR_ROUTED / 4)


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_shards_of_several_groups_are_summed(zero_stage: int) -> None:
    """Pairs shard: of the dense parameters' halves four groups, a scatter and a gather; of experts' one pair is all."""
    found = exchanged(scenario_with(options={"sharding_degree": "2"}), zero_stage=zero_stage)
    within = per_byte(2) * D
    # Experts' replicas in proportion: 2 x 2 / 8 is less than one.
    between = 2 * 4 * (per_byte(4) * D / 2 + per_byte(2) * R)
    expected = (4 + 2) * within + between if zero_stage else 4 * 2 * within
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("seq_length", [1, 512, 8192])
@pytest.mark.parametrize(("zero_stage", "gathered", "reduced", "turns"), [(1, 2, 4, 1), (3, 2, 2 + 4, M)])
def test_communication_that_overlaps_hides_behind_its_own_pass(
    zero_stage: int, gathered: int, reduced: int, turns: int, seq_length: int
) -> None:
    """Nothing is exposed but what outlasts, or the first or last bucket: gathers beside forward passes."""
    options = {"overlap_grad_reduce": "true", "overlap_param_gather": "true"}
    quick = {"data_exposed": 0.0, "shard_exposed": 0.0, "layer_overhead_seconds": 0.0, "launch_seconds": 0.0}
    model = small_dense(hidden_size=2048, intermediate_size=8192)
    question: dict[str, Any] = {"model": model, "seq_length": seq_length, "time": quick}
    both = exchanged(scenario_with(**question), expert_parallel=1, zero_stage=1) / (4 + 2)
    answer = priced(scenario_with(**question, options=options), zero_stage=zero_stage)
    forward, backward = only(answer.step.work.forward), only(answer.step.work.backward)
    # The shortest passes hide neither, the longest hide both.
    hidden = (gathered * both < forward, reduced * both < backward)
    assert hidden == {1: (False, False), 512: (False, False), 8192: (True, True)}[seq_length]
    # A bucket is 40 million parameters.
    bucket = per_byte(8) * 4e7
    left = max(gathered * both - forward, 2 * bucket) + max(reduced * both - backward, 4 * bucket)
    assert only(answer.step.data_parallel) == pytest.approx(turns * left, rel=1e-12)


def test_slow_collectives_move_fewer_bytes_a_second() -> None:
    """Twice the bytes' time; starts take what they took, DeepEP's too."""
    usual, slow = scenario_with(), scenario_with(time={"collective_slowdown": 2.0})
    eight = group(8)
    size = eight.size * 1e9
    for seconds, start in ((gather_seconds, 7 * 2 * US), (once_seconds, 40 * US)):
        found = [only(seconds(scenario, eight, size)) - start for scenario in (usual, slow)]
        assert found[1] == pytest.approx(2 * found[0])


def test_reductions_of_layers_are_as_slow_as_said() -> None:
    """Two gathers and two scatters of a dense layer in either pass."""
    options = {"tp_comm_overlap": "false", "overlap_tensor_gradients": "false"}
    found = []
    for slow in (1.0, 3.0):
        scenario = scenario_with(model=small_dense(), options=options, time={"reduce_slowdown": slow})
        timer = pricing(scenario, tensor_parallel=2, sequence_parallel=True)
        layer = layer_seconds(timer, scenario.model.layer_kinds[0])
        found.append([only(one["tensor_parallel"]) for one in (layer.forward, layer.backward)])
    assert found[1] == pytest.approx([2 * seconds for seconds in found[0]])


@pytest.mark.parametrize(("flash", "factor"), [("true", 2.5), ("false", 2.0)])
def test_attention_s_backward_pass(flash: str, factor: float) -> None:
    """Five products for two; without a flash kernel four; slower by a factor."""
    for slow in (1.0, 1.5):
        scenario = scenario_with(options={"flash_attention": flash}, time={"attention_backward_slowdown": slow})
        layer = layer_seconds(pricing(scenario), scenario.model.layer_kinds[0])
        assert only(layer.backward["attention"]) == pytest.approx(slow * factor * only(layer.forward["attention"]))


def test_an_optimizer_of_several_kernels_takes_as_many_passes() -> None:
    one, three = (
        only(priced(scenario_with(time={"optimizer_slowdown": slow}), expert_parallel=4).step.optimizer)
        for slow in (1.0, 3.0)
    )
    assert one == pytest.approx(30 * (D / 8 + R / 2) / 1675e9)
    assert three == pytest.approx(3 * one)


@pytest.mark.parametrize(("share", "outlasts"), [(0.0, True), (1.0, False)])
def test_an_overlapped_exchange_hides_behind_products_attention_and_their_exchanges(
    share: float, outlasts: bool
) -> None:
    """Tiny layers over two nodes: latency outlasts compute and what tensor and context parallelism leave exposed."""
    fields: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2}
    fields |= {"expert_parallel": 8, "expert_tensor_parallel": 2}
    plain, beside = (
        scenario_with(
            options={"overlap_expert_exchange": word, "tp_comm_overlap": "true"},
            time={"expert_exposed": share},
            seq_length=64,
            devices=16,
        )
        for word in ("false", "true")
    )
    kind = layer_kind(plain.model, moe=True)
    layers = [layer_seconds(pricing(scenario, **fields), kind) for scenario in (plain, beside)]
    for index, name in enumerate(("forward", "backward")):
        alone, hidden = (getattr(layer, name) for layer in layers)
        assert index == 0 or only(alone["gemm"]) > 0
        exchange = only(alone["expert_parallel"]) - 0.5e-3
        others = sum(only(alone[part]) for part in ("gemm", "tensor_parallel", "attention", "context_parallel"))
        left = max(share * exchange, exchange - others)
        assert (left > share * exchange) == outlasts
        assert only(hidden["expert_parallel"]) == pytest.approx(left + 0.25 * 0.5e-3)


def test_a_group_of_one_exchanges_nothing_once() -> None:
    scenario = scenario_with()
    alone = RankGroup(group(1).size, group(1).stride)
    assert only(once_seconds(scenario, alone, alone.size * 1e9)) == 0


@pytest.mark.parametrize(("fused", "rank"), [("true", None), ("false", None), ("true", 8)])
@pytest.mark.parametrize(("precision", "narrow"), [("bf16", 2), ("fp8", 1)])
def test_products_of_few_tokens(precision: Any, narrow: int, fused: str, rank: int | None) -> None:
    """64 tokens, two copies each, eight experts of 64 x 48: all are bound by memory.

    What enters a product is read and what leaves it written. Weights are read in as many bits as their inputs; in the
    backward pass the gradients' types change places. Accumulated gradients are read and written by the product, or by a
    kernel that reads new ones too.
    """
    options = {"fused_gradient_accumulation": fused}
    scenario = scenario_with(options=options, precision=precision, lora_rank=rank, seq_length=64, devices=1)
    layer = layer_seconds(pricing(untiled(scenario)), layer_kind(scenario.model, moe=True))
    dense, routed, copies, rate = 12_288 + 512 + 9216, 8 * 9216, 128, 1675e9
    # q, k and v; o; router; gate and up, down of the shared expert. Then those of an expert.
    once, left_once = 64 + 64 + 64 + (64 + 48), 128 + 64 + 8 + (2 * 48 + 64)
    entered, left = 64 * once + copies * (64 + 48), 64 * left_once + copies * (2 * 48 + 64)
    forward = (narrow * (dense + routed) + narrow * entered + 2 * left) / rate
    backward = (narrow * (dense + routed) + narrow * left + 2 * entered) / rate
    added = 0.0
    if rank is None:
        each = 2 * 4 if fused == "true" else 2 + (2 + 2 * 4)
        backward += (narrow * (entered + left) + each * (dense + routed)) / rate
    else:
        # q, k, v; o; router; gate and up, down of the shared and of two routed experts.
        pairs = (64 + 128) + (64 + 64) + (64 + 8) + 3 * ((64 + 2 * 48) + (48 + 64))
        added = 2 * 64 * rank * pairs / (989e12 / 2 if precision == "bf16" else 1979e12 / 4)
    assert only(layer.forward["gemm"]) == pytest.approx(forward + added, rel=1e-9, abs=0.0)
    assert only(layer.backward["gemm"]) == pytest.approx(backward + 2 * added, rel=1e-9, abs=0.0)


@pytest.mark.parametrize(
    ("precision", "recipe", "casts"), [("bf16", "delayed", 0), ("fp8", "delayed", 4), ("fp8", "tensorwise", 20)]
)
def test_kernels_that_a_layer_with_experts_starts(precision: Any, recipe: str, casts: int) -> None:
    """103, and of each of the rank's four experts six products and the casts."""
    scenario = scenario_with(precision=precision, options={"fp8_recipe": recipe})
    assert only(expert_launches(pricing(scenario, expert_parallel=2))) == 103 + (6 + casts) * 4


@pytest.mark.parametrize(("sequence", "tensor", "copies"), [(True, 2, 64), (False, 2, 64), (False, 1, 128)])
def test_copies_of_a_rank_s_experts(sequence: bool, tensor: int, copies: int) -> None:
    """32 tokens, two copies each: expert tensor parallel 2 gathers those of ranks that hold different tokens."""
    scenario = scenario_with(seq_length=32)
    here = block(scenario, tensor_parallel=tensor, sequence_parallel=sequence, expert_tensor_parallel=2)
    assert only(routed_tokens(Pricing(scenario, here))) == copies


def test_gathered_keys_and_values_hide_behind_a_rank_s_own_tokens() -> None:
    """Of attention over four parts of the sequence the first; what outlasts it waits."""
    scenario = scenario_with(
        model=small_dense(), options={"cp_communication": "gathered_ring"}, time={"context_exposed": 0.0}
    )
    layer = layer_seconds(pricing(scenario, context_parallel=4), scenario.model.layer_kinds[0])
    # Each of four ranks brings 2 x 2 k a token of 2048, three quarters over NVLink; backward twice as much.
    gathered = 3 / 4 * 4 * 2048 * 2 * 2 * 32 / 337.5e9 + 3 * 2 * US
    for found, volume in ((layer.forward, 1), (layer.backward, 2)):
        behind = only(found["attention"]) / 4
        assert 0 < behind < volume * gathered
        assert only(found["context_parallel"]) == pytest.approx(volume * gathered - behind)


def test_only_steps_that_are_asked_for_wait_pass_by_pass() -> None:
    """Unequal chunks: the idle time of a layout that may win is run, of others a bound stays."""
    scenario = scenario_with(model=small_dense(num_hidden_layers=6), devices=2, global_batch_size=8)
    layouts = [
        layout_of(
            scenario,
            pipeline_parallel=2,
            virtual_stages=2,
            chunk_layers=(2, 1, 1, 2),
            stage_layers=(3, 3),
            recompute=mode,
        )
        for mode in ("none", "full")
    ]
    here = pricing_of(scenario, *layouts)
    work = stage_work(here)
    bound = pipeline_seconds(here, work)
    both, one, none = (
        with_waits(here, work, bound, np.array(where)).fill for where in ((True, True), (False, True), (False, False))
    )
    assert bound.fill.tolist() == none.tolist() == [0, 0]
    assert (both > 0).all()
    assert one.tolist() == [0, both[1]]


def test_ranks_of_a_pipeline_lie_on_the_groups_of_a_mixed_cluster() -> None:
    """Of three ranks of eight devices the first is on one kind, the others on another."""
    one, two = (scenario_of(small_dense(), name, devices=8) for name in ("h800-sxm-80g", "bi150-64g"))
    mixed = replace(one, devices=24, groups=(NodeGroup(one.hardware, 8), NodeGroup(two.hardware, 16)))
    has = stage_contents(mixed, block(mixed, pipeline_parallel=3, stage_layers=(2, 1, 1)))
    assert has.group[has.kind].tolist() == [0, 1, 1]
    assert stage_contents(one, block(one, pipeline_parallel=2)).group.tolist() == [0, 0]


def test_layers_with_a_window_gather_keys_and_values_of_their_own_heads() -> None:
    """Of three sliding heads or of two others a rank of four has one; with their gradients, of the whole context."""
    own = {"sliding_attention_heads": 12, "sliding_key_value_heads": 3}
    model = small_dense(mixers=("sliding", "grouped_query"), sliding_window=8, **own)
    scenario = scenario_with(model=model, options={"cp_communication": "all_gather"}, seq_length=128)
    extents = pricing(scenario, context_parallel=2, tensor_parallel=4)
    for kind in model.layer_kinds:
        (amount,) = (
            one
            for operation in layer_operations(conditions_of(scenario), kind)
            for one in operation.temporary
            if one.spread.endswith("context")
        )
        assert only(extent(extents, amount.spread)) * amount.amount == pytest.approx(128 * 2 * 2 * (2 * 16))


@pytest.mark.parametrize(
    ("context", "window", "tensor", "tokens"),
    [(2, 8, 1, 2 * 8), (4, 8, 1, 2 * 8 / 3), (2, 512, 1, 64), (2, 8, 4, 2 * 8 / 3)],
)
def test_a_ring_passes_on_what_lies_inside_a_window(context: int, window: int, tensor: int, tokens: float) -> None:
    """Both ends of a rank's piece over the steps, at most all of its 64 tokens; over ranks that share three heads."""
    own = {"sliding_attention_heads": 12, "sliding_key_value_heads": 3}
    model = small_dense(mixers=("sliding", "grouped_query"), sliding_window=window, **own)
    scenario = scenario_with(model=model, seq_length=128)
    extents = pricing(scenario, context_parallel=context, tensor_parallel=tensor)
    assert only(extent(extents, "window")) == pytest.approx(tokens)
    held = 128 / context
    assert only(extent(extents, "sliding_key_value")) == held / min(tensor, 3)
    assert only(extent(extents, "key_value")) == held / min(tensor, 2)


def test_cut_tiles_of_a_window_weigh_more() -> None:
    """Half a tile at each edge: 16 tokens over a window of 8, or over the 32 of a sequence."""
    window = small_dense(mixers=("sliding",), sliding_window=8)
    seconds = []
    for model, tile in ((small_dense(), 0.0), (small_dense(), 16.0), (window, 0.0), (window, 16.0)):
        scenario = scenario_with(model=model, time={"attention_tile_tokens": tile}, seq_length=32)
        seconds.append(only(layer_seconds(pricing(scenario), model.layer_kinds[0]).forward["attention"]))
    assert seconds[1] == pytest.approx(seconds[0] * (1 + 16 / 32))
    share = (32 * 8 - 8**2 / 2) / (32**2 / 2)
    assert seconds[2] == pytest.approx(seconds[0] * share)
    assert seconds[3] == pytest.approx(seconds[0] * share * (1 + 16 / 8))
