"""Per-operation checkpointing: what a layer keeps, what its backward pass holds, and what it does again."""

from typing import Any

import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory.activations import layer_bytes, repeated_working_set
from simulator.cost.memory.outside import stranded_logits
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.recompute import freed, repeated
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import saved_amounts, weights_of
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import estimate_layout
from tests.scenario.cases import layout_of, scenario_of

GIB = 2**30


def torch(model: str = "llama3-8b", **given: Any) -> Scenario:
    asked: dict[str, Any] = {"model": model, "profile": "torch", "devices": 8, "global_batch_size": 16}
    return scenario_of(**(asked | given))


def saved_bytes(scenario: Scenario, **layout: Any) -> float:
    """Bytes that the model's last kind of layer keeps."""
    block = block_of([layout_of(scenario, micro_batch_size=2, zero_stage=3, **layout)])
    return float(layer_bytes(Pricing(scenario, block), scenario.model.layer_kinds[-1])[0])


@pytest.mark.parametrize(("compiled", "last"), [("false", 4096), ("true", 0)])
def test_a_dense_layer_keeps_its_input_attention_and_every_second_product(compiled: str, last: int) -> None:
    """q, v and gate by their outputs; down too, but not compiled, where nothing reads it; fp32 row sums of 32 heads."""
    scenario = torch(options={"compiled": compiled})
    numbers = 4096 + 4096 + 4096 + 1024 + 14336 + last
    assert saved_bytes(scenario, recompute="operations") == 2 * 8192 * (2 * numbers + 4 * 32)


def test_tensor_parallelism_keeps_what_it_scatters_as_well() -> None:
    """Down's output is whole before it is scattered; both scatters of a layer are kept."""
    scenario = torch()
    split = (4096 + 4096 + 1024 + 14336) / 4 + 4096 + (1 + 2) * 4096 / 4
    whole = 2 * 8192 * (2 * split + 4 * 32 / 4)
    assert saved_bytes(scenario, tensor_parallel=4, sequence_parallel=True, recompute="operations") == whole


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "qwen2.5-7b"])
@pytest.mark.parametrize("layout", [{}, {"tensor_parallel": 4, "sequence_parallel": True}])
def test_it_lies_between_nothing_and_whole_layers(model: str, layout: dict[str, Any]) -> None:
    scenario = torch(model, devices=64, global_batch_size=128)
    found = {
        mode: estimate_layout(scenario, layout_of(scenario, micro_batch_size=2, zero_stage=3, recompute=mode, **layout))
        for mode in ("none", "operations", "full")
    }
    memory = [found[mode].memory.device_bytes for mode in ("full", "operations", "none")]
    assert memory == sorted(memory)
    speed = [found[mode].throughput.step_seconds for mode in ("none", "operations", "full")]
    assert speed == sorted(speed)
    if model == "llama3-8b":
        assert memory[0] < memory[1] < memory[2]
        assert speed[0] < speed[1] < speed[2]


def test_queries_come_first_in_latent_attention() -> None:
    """Of DeepSeek-V3's projections the first, third and fifth are kept: q_a, kv_a and o; of a shared expert `up`."""
    scenario = torch("deepseek-v3")
    given, kind = conditions_of(scenario), scenario.model.layer_kinds[-1]
    again = {weight.name for weight in weights_of(repeated(given, kind, "operations", ())) if weight.matmul}
    assert {"q_b", "kv_b", "shared_gate", "router", "expert_gate"} <= again
    assert not again & {"q_a", "kv_a", "o", "shared_up"}


def test_what_is_freed_is_what_is_not_kept() -> None:
    """Nothing is freed twice: what is kept in the end is never below zero, whatever it is spread over."""
    for name in ("llama3-8b", "deepseek-v3", "qwen3-30b-a3b"):
        scenario = torch(name)
        given = conditions_of(scenario)
        for kind in scenario.model.layer_kinds:
            away = freed(given, kind, "operations", ())
            before = saved_amounts(given, kind)
            assert all(before.get(spread, 0.0) - amount > -1e-9 for spread, amount in away.items()), (name, kind)


def test_the_stock_8b_of_torchtitan_fits_where_it_ran() -> None:
    """Two sequences of 8,192 on each of eight H100 of 96 GB took 77.0 GiB compiled and 82.4 not (reserved)."""
    found = {}
    for compiled in ("true", "false"):
        scenario = torch(options={"compiled": compiled, "expandable_segments": "true"})
        layout = layout_of(scenario, micro_batch_size=2, zero_stage=3, recompute="operations")
        found[compiled] = estimate_layout(scenario, layout).memory.allocated_bytes / GIB
    assert 60 < found["true"] < 77.0
    assert 65 < found["false"] < 82.4
    # What the last product of 32 layers puts out: 4 of the 5.4 GiB between both runs.
    assert found["false"] - found["true"] == pytest.approx(32 * 2 * 16384 * 4096 / GIB, rel=0.01)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b"])
def test_gathers_are_done_again_and_what_ends_an_exchange_is_not(name: str) -> None:
    """Scatters and all-to-alls are kept, those of contexts with attention; a context is not exchanged twice."""
    for kind_of_context in ("ring", "all_to_all", "all_gather"):
        scenario = torch(name, options={"cp_communication": kind_of_context})
        given, kind = conditions_of(scenario), scenario.model.layer_kinds[0]
        whole = {each.pattern for one in layer_operations(given, kind) for each in one.collectives}
        again = [each.pattern for one in repeated(given, kind, "operations", ()) for each in one.collectives]
        assert set(again) == {"gather"}
        assert {"gather", "reduce"} <= whole
        # Into attention; into a dense network, or among ranks that hold parts of an expert.
        assert len(again) == 2


@pytest.mark.parametrize(("name", "experts"), [("llama3-8b", 1), ("qwen3-30b-a3b", 4)])
def test_what_contexts_exchange_is_not_kept_as_what_experts_do(name: str, experts: int) -> None:
    """Keys and values of a ring belong to it; attention keeps what it makes whatever brought its tokens."""
    fields = {"context_parallel": 4, "expert_parallel": experts, "recompute": "operations"}
    found = {
        kind: saved_bytes(torch(name, options={"cp_communication": kind}), **fields)
        for kind in ("ring", "all_gather", "all_to_all")
    }
    assert len(set(found.values())) == 1


@pytest.mark.parametrize(("experts", "exchanged"), [(1, 0), (8, 2)])
def test_experts_keep_what_was_exchanged(experts: int, exchanged: int) -> None:
    """Both all-to-alls of eight copies of 2,048 features; none on a rank that has all experts."""
    scenario = torch("qwen3-30b-a3b", options={"expert_dispatch": "alltoall"})
    without = torch("qwen3-30b-a3b", options={"expert_dispatch": "allgather"})
    found, plain = (saved_bytes(one, expert_parallel=experts, recompute="operations") for one in (scenario, without))
    assert found - plain == exchanged * 2 * 8192 * 8 * 2 * 2048


@pytest.mark.parametrize("compiled", ["false", "true"])
def test_all_of_a_layer_is_back_before_its_backward_pass(compiled: str) -> None:
    """What it keeps when nothing is done again, and beside it what it keeps now and its backward pass does not read.

    Not compiled that is the last product's output: it is kept, and no tensor of the layer.
    """
    scenario = torch(options={"compiled": compiled})
    block = block_of([layout_of(scenario, micro_batch_size=2, zero_stage=3, recompute="operations")])
    back = float(repeated_working_set(Pricing(scenario, block), scenario.model.layer_kinds[0])[0])
    unread = 2 * 4096 if compiled == "false" else 0
    whole = saved_bytes(scenario)
    assert saved_bytes(scenario, recompute="operations") + back == whole + 2 * 8192 * unread


@pytest.mark.parametrize(("switch", "saved"), [("recompute_stops_early", "down"), ("compiled", "down")])
def test_recomputation_ends_with_what_is_read(switch: str, saved: str) -> None:
    options = {"recompute_stops_early": "false", "compiled": "false"}
    whole, early = torch(options=options), torch(options=options | {switch: "true"})
    kind = whole.model.layer_kinds[0]
    names = [
        {weight.name for weight in weights_of(repeated(conditions_of(one), kind, "full", ()))} for one in (whole, early)
    ]
    assert names[0] - names[1] == {saved}


def test_logits_in_16_bits_leave_a_block_that_nothing_fits_into() -> None:
    """2 bytes a logit and what else was seen, reserved beside 12 allocated; none of one kernel or of fp32 logits."""
    logits = 2 * 8192 * 128256
    layout: dict[str, Any] = {"micro_batch_size": 2, "zero_stage": 3, "recompute": "operations"}
    beside = {}
    for name, options in {"apart": {}, "fused": {"fused_cross_entropy": "true"}}.items():
        scenario = torch(options={"expandable_segments": "true"} | options)
        block = block_of([layout_of(scenario, **layout)])
        beside[name] = float(stranded_logits(Pricing(scenario, block))[0])
    seen = scenario.coefficients.memory.unfused_loss_bytes_per_logit
    assert beside == {"apart": (2.0 + seen) * logits, "fused": 0.0}
    scenario = torch(precision="fp32")
    assert float(stranded_logits(pricing_of(scenario, layout_of(scenario, **layout)))[0]) == 0.0
