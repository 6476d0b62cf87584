"""What offload needs of a node's host, against what its spec states."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simulator
from simulator.api import scenario_of
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.hardware import MemorySize
from simulator.question.units import GIB
from simulator.question.vocabulary import Offload
from simulator.recipes.check import judge
from simulator.search.build import estimate_layout
from simulator.show.report.text import host_text, verdict_sentence

PARAMETERS = 8030261248
"""Of llama3.1-8b."""
LAYOUT = Layout(tensor_parallel=2, pipeline_parallel=2, data_parallel=2, stage_layers=default_cut(32, 2))


def ask(offload: Offload, host: str | None = "2 TB", micro_batch_size: int = 1) -> simulator.Estimate:
    """Llama 3.1 8B on one node whose host has so much memory."""
    scenario = scenario_of(model="llama3.1-8b", hardware="h100-sxm-80g", nodes=1)
    memory = None if host is None else MemorySize(value=host, source=("test",), status="assumed")
    hardware = replace(scenario.hardware, host_memory=memory)
    return estimate_layout(
        replace(scenario, hardware=hardware), replace(LAYOUT, offload=offload, micro_batch_size=micro_batch_size)
    )


def test_nothing_is_moved_without_offload() -> None:
    assert ask("none").memory.host_bytes_per_node == 0.0
    assert load_hardware("h100-sxm-80g").host_memory is not None


def test_optimizer_state_of_all_devices_of_a_node() -> None:
    """What the devices of both ranks no longer hold between steps: 12 bytes a parameter, and the gradients' buffers."""
    plain, moved = ask("none"), ask("optimizer")
    state = 4 * sum(stage.parts_bytes["optimizer"] for stage in plain.memory.stages)
    parts = moved.memory.host_parts_bytes
    assert parts["optimizer"] == pytest.approx(state, rel=1e-6)
    assert parts["optimizer"] == pytest.approx(12 * PARAMETERS, rel=0.01)
    assert parts["gradient_buffers"] == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert moved.memory.host_bytes_per_node == pytest.approx(sum(parts.values()))
    # Master weights and gradients are pinned, the moments are not.
    assert moved.memory.host_pinned_bytes == pytest.approx(8 * PARAMETERS, rel=0.01)


@pytest.mark.parametrize(
    ("framework", "stack", "zero_stage", "options", "bytes_per_parameter"),
    [
        ("megatron", "default", 1, {}, {"optimizer": 12, "gradient_buffers": 4}),
        ("megatron", "default", 1, {"offload_fraction": "0.5"}, {"optimizer": 6, "gradient_buffers": 2}),
        ("megatron", "mindspeed-llm", 1, {}, {"optimizer": 12}),
        (
            "torch",
            "default",
            3,
            {"offload_parameters": "true"},
            {"optimizer": 8, "gradient_buffers": 4, "parameters": 4},
        ),
        # 1,003.8 million parameters a rank: pinned blocks of 2^30, of a group of 1e9 beside one of 2^22.
        ("torch", "deepspeed", 3, {}, {"optimizer": 12.30, "gradient_buffers": 6.43}),
        (
            *("torch", "deepspeed", 3, {"offload_parameters": "true"}),
            {"optimizer": 12.30, "gradient_buffers": 6.43, "parameters": 2.14},
        ),
        ("torch", "deepspeed", 2, {}, {"optimizer": 12.28, "gradient_buffers": 6.42, "parameter_buffers": 2.14}),
    ],
)
def test_what_each_framework_keeps_on_the_host(
    framework: str, stack: str, zero_stage: int, options: dict[str, str], bytes_per_parameter: dict[str, float]
) -> None:
    """Bytes a parameter as the frameworks' sources allocate them (docs/model.md, M25), on one node."""
    scenario = scenario_of(
        model="llama3.1-8b",
        hardware="h100-sxm-80g",
        nodes=1,
        framework=framework,
        stack=stack,
        options=options,
        global_batch_size=16,
    )
    layout = Layout(data_parallel=8, zero_stage=zero_stage, offload="optimizer_tensorwise", stage_layers=(32,))
    memory = estimate_layout(scenario, layout).memory
    staged = 8 * 2 * 128256 * 4096 if (stack, zero_stage) == ("deepspeed", 2) else 0
    parts = {**memory.host_parts_bytes}
    parts["gradient_buffers"] = parts.get("gradient_buffers", 0) - staged
    found = {name: round(size / PARAMETERS, 2) for name, size in parts.items() if size}
    assert found == bytes_per_parameter


def test_activations_alone_need_no_buffers_of_gradients() -> None:
    scenario = scenario_of(model="llama3.1-8b", hardware="h100-sxm-80g", nodes=1, framework="torch", stack="deepspeed")
    layout = Layout(data_parallel=8, zero_stage=2, offload="activations", stage_layers=(32,))
    parts = estimate_layout(scenario, layout).memory.host_parts_bytes
    assert {name for name, size in parts.items() if size} == {"activations"}


@pytest.mark.parametrize(
    ("zero_stage", "options", "model_states"), [(2, {}, 16), (3, {"offload_parameters": "true"}, 18)]
)
def test_need_is_within_what_deepspeed_estimates(zero_stage: int, options: dict[str, str], model_states: int) -> None:
    """DeepSpeed estimates up to 1.5 times the model states (v0.19.5, runtime/zero/stage_1_and_2.py, stage3.py)."""
    scenario = scenario_of(
        model="llama3.1-8b", hardware="h100-sxm-80g", nodes=1, framework="torch", stack="deepspeed", options=options
    )
    layout = Layout(data_parallel=8, zero_stage=zero_stage, offload="optimizer_tensorwise", stage_layers=(32,))
    memory = estimate_layout(scenario, layout).memory
    assert 1.0 <= memory.host_bytes_per_node / (model_states * PARAMETERS) <= 1.5


def test_attention_that_is_swapped_is_on_the_host() -> None:
    scenario = scenario_of(model="llama3.1-8b", hardware="h100-sxm-80g", nodes=1, options={"swapped_attention": "true"})
    memory = estimate_layout(scenario, LAYOUT).memory
    assert set(memory.host_parts_bytes) == {"activations"}
    assert memory.host_pinned_bytes == memory.host_bytes_per_node > GIB


def test_offloaded_modules_take_time_where_the_link_is_slow() -> None:
    scenario = scenario_of(
        model="qwen3-30b-a3b", hardware="h100-sxm-80g", nodes=1, options={"offloaded_modules": "expert_fc1,moe_act"}
    )
    layout = replace(LAYOUT, expert_parallel=4, stage_layers=(24, 24))
    slow = replace(scenario.hardware.host_bandwidth, value="1 GB/s")
    slower = replace(scenario, hardware=replace(scenario.hardware, host_bandwidth=slow))
    fast, late = (estimate_layout(each, layout) for each in (scenario, slower))
    assert set(fast.memory.host_parts_bytes) == {"activations"}
    assert fast.memory.host_pinned_bytes == fast.memory.host_bytes_per_node > GIB
    assert fast.throughput.parts_seconds["offload"] < late.throughput.parts_seconds["offload"]


def test_pipeline_ranks_that_share_a_node_are_added_up() -> None:
    """Of two nodes with a rank each the fuller one counts; on one node both ranks do."""
    together, apart = (
        estimate_layout(
            scenario_of(model="llama3.1-8b", hardware="h100-sxm-80g", nodes=nodes),
            replace(LAYOUT, offload="optimizer", data_parallel=2 * nodes),
        )
        for nodes in (1, 2)
    )
    assert together.memory.host_bytes_per_node == pytest.approx(16 * PARAMETERS, rel=0.01)
    assert apart.memory.host_bytes_per_node == pytest.approx(8 * PARAMETERS, rel=0.01)


def test_activations_of_all_micro_batches_in_flight() -> None:
    one, two = (ask("activations", micro_batch_size=size).memory.host_bytes_per_node for size in (1, 2))
    assert two == pytest.approx(2.0 * one, rel=1e-6)
    # Two ranks: the first has two micro batches in flight, and the bytes of eight devices are on the host.
    assert one > 8 * GIB


def test_a_host_that_is_too_small_does_not_fit() -> None:
    roomy, tight, unknown = ask("optimizer"), ask("optimizer", "64 GiB"), ask("optimizer", None)
    assert (roomy.memory.fits_host, roomy.verdict) == (True, "fits")
    assert (tight.memory.fits_host, tight.verdict) == (False, "does_not_fit")
    assert tight.memory.fit_probability == 0.0
    assert (unknown.memory.fits_host, unknown.verdict) == (None, "fits")
    assert tight.memory.device_bytes == roomy.memory.device_bytes
    assert verdict_sentence(tight, colour=False).startswith("does not fit the host: needs ")
    said = [[(one.rule, one.severity) for one in judge._host(each)] for each in (roomy, tight, unknown, ask("none"))]
    assert said == [
        [("host-memory", "note")],
        [("host-memory", "error")],
        [("host-memory-not-judged", "note")],
        [],
    ]


def test_rounding_of_pinned_blocks_leaves_it_open() -> None:
    """128 GB are needed and 64 of them pinned: a host of 160 GB may have room, one of 200 has."""
    open_, roomy = ask("optimizer", "160 GB"), ask("optimizer", "200 GB")
    assert (open_.memory.fits_host, open_.verdict) == (None, "fits")
    assert roomy.memory.fits_host is True
    assert "a run decides" in str(host_text(open_.memory))
    (remark,) = judge._unsure_host(open_)
    assert (remark.rule, remark.severity) == (judge.UNDECIDED, "error")
    assert not [
        *judge._unsure_host(roomy),
        *judge._unsure_host(ask("optimizer", None)),
        *judge._unsure_host(ask("none")),
    ]
