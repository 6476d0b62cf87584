"""Outside the allocator on devices whose collective library has a documented buffer for every group."""

from dataclasses import replace
from typing import Any

import pytest

from simulator import api
from simulator.cost.derived import pricing_of
from simulator.cost.memory.outside import communicator_groups
from simulator.search.build import bare_estimate, estimate_layout
from tests.scenario.cases import layout_of, scenario_of

MIB = 2**20


def outside(layout: dict[str, Any], **question: Any) -> dict[str, float]:
    """Parts outside the allocator, bytes."""
    scenario = scenario_of(model="llama3.1-8b", devices=16, hardware="ascend-910b-64g-8", **question)
    return dict(bare_estimate(scenario, layout_of(scenario, **layout)).memory.outside_parts_bytes)


@pytest.mark.parametrize(
    ("model", "layout", "groups"),
    [
        # All ranks, and their replicas.
        ("llama3.1-8b", {}, 2),
        # Tensor parallel, model parallel, 8 replicas, all.
        ("llama3.1-8b", {"tensor_parallel": 2}, 4),
        # The pipeline and its ends on top.
        ("llama3.1-8b", {"tensor_parallel": 2, "pipeline_parallel": 2}, 6),
        ("llama3.1-8b", {"tensor_parallel": 2, "pipeline_parallel": 2, "context_parallel": 2}, 7),
        # Experts on eight ranks, with two replicas of each.
        ("mixtral-8x7b-v0.1", {"expert_parallel": 8}, 4),
        ("mixtral-8x7b-v0.1", {"expert_parallel": 8, "tensor_parallel": 16}, 5),
    ],
)
def test_groups_of_a_rank(model: str, layout: dict[str, Any], groups: int) -> None:
    scenario = scenario_of(model=model, devices=16, hardware="ascend-910b-64g-8")
    assert communicator_groups(pricing_of(scenario, layout_of(scenario, **layout)))[0] == groups


def test_every_group_has_its_buffer() -> None:
    assert outside({"tensor_parallel": 2})["communicators"] == 4 * 200 * MIB
    told = outside({"tensor_parallel": 2}, options={"communicator_buffer_mib": "400"})
    assert told["communicators"] == 4 * 400 * MIB


def test_nothing_that_only_nvidia_devices_showed() -> None:
    parts = outside({"tensor_parallel": 2}, options={"expandable_segments": "false", "tp_comm_overlap": "true"})
    assert parts["user_buffers"] == 0
    assert sum(parts.values()) < 4 * 2**30


def test_a_ring_holds_two_blocks_and_a_partial_result() -> None:
    layout = {"context_parallel": 2, "tensor_parallel": 2}
    tokens = 8192 / 2 / 2
    assert outside(layout)["ring_buffers"] == tokens * (2 * 2 * 2 * 1024 + 4 * 4096)


def test_the_interval_says_that_it_was_not_measured() -> None:
    documented = api.scenario_of(model="llama3.1-8b", hardware="ascend-910b-64g-8")
    hardware = replace(documented.hardware, communicator_buffer=None)
    scenarios = (documented, replace(documented, hardware=hardware))
    wide, narrow = (
        next(
            part.half_width
            for part in estimate.provenance.contributions
            if (part.figure, part.name) == ("memory", "coefficients")
        )
        for estimate in (estimate_layout(one, layout_of(one, zero_stage=1)) for one in scenarios)
    )
    assert wide > narrow


def test_what_was_not_measured_counts_as_on_the_fullest_rank() -> None:
    """A light first stage, where buffers are a larger part, says nothing of the stage that decides."""
    scenario = api.scenario_of(model="llama3.1-8b", hardware="ascend-910b-64g-8")
    even = layout_of(scenario, pipeline_parallel=2, zero_stage=1)
    halves = []
    for layout in (even, replace(even, stage_layers=(1, 31))):
        estimate = estimate_layout(scenario, layout)
        assert estimate.memory.binding_stage == (0 if layout is even else 1)
        (half,) = (
            part.half_width
            for part in estimate.provenance.contributions
            if (part.figure, part.name) == ("memory", "coefficients")
        )
        memory = estimate.memory
        halves.append(half / (memory.parts_bytes["outside_allocator"] / memory.device_bytes))
    assert halves[1] < 1.3 * halves[0]
