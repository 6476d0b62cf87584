"""Clusters of several kinds of device: read, refused, priced by stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator
from simulator import InputError, Layout, Space
from simulator.api import scenario_of
from simulator.evidence.cluster import cluster
from simulator.question.scenario.layout import default_cut
from simulator.search.build import estimate_layout

MIXED = "h800-sxm-80g:1,bi150-64g:1x8"
QUESTION: dict[str, Any] = {"model": "llama-13b", "seq_length": 4096, "global_batch_size": 64}


def layout(**changes: object) -> Layout:
    base = Layout(tensor_parallel=8, pipeline_parallel=2, sequence_parallel=True, stage_layers=(34, 6))
    return replace(base, **changes)  # type: ignore[arg-type]


def test_groups_are_read() -> None:
    found = cluster(MIXED)
    assert [(group.hardware.name, group.devices) for group in found.groups] == [("h800-sxm-80g", 8), ("bi150-64g", 8)]
    assert found.devices == 16
    # Groups of one kind are a uniform cluster.
    assert cluster("h800-sxm-80g:2").groups == ()
    assert cluster("h800-sxm-80g:2").devices == 16


@pytest.mark.parametrize(
    "text", ["h800-sxm-80g:0", "h800-sxm-80g:1x9", "h800-sxm-80g:1,", "h800-sxm-80g:1,nothing:1", "a:b"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        cluster(text)


def test_sizes_stand_in_the_groups_alone() -> None:
    with pytest.raises(InputError, match="their own sizes"):
        cluster(MIXED, nodes=2)


def test_each_stage_is_on_its_own_device() -> None:
    found = simulator.estimate(hardware=MIXED, layout=layout(), **QUESTION)
    assert [stage.hardware for stage in found.memory.stages] == ["h800-sxm-80g", "bi150-64g"]
    assert [round(stage.capacity_bytes / 2**30) for stage in found.memory.stages] == [79, 32]
    assert found.verdict == "fits"
    assert sum(found.memory.parts_bytes.values()) == pytest.approx(found.memory.device_bytes)
    assert sum(found.throughput.parts_seconds.values()) == pytest.approx(found.throughput.step_seconds)


def test_time_is_the_slower_device_s() -> None:
    """An even cut is paced by the slow half, and takes as long there as on a cluster of that kind alone."""
    even = layout(stage_layers=(20, 20))
    mixed = estimate_layout(scenario_of(hardware=MIXED, **QUESTION), even)
    alone = {
        name: estimate_layout(scenario_of(hardware=name, devices=16, **QUESTION), even)
        for name in ("h800-sxm-80g", "bi150-64g")
    }
    for stage, name in enumerate(("h800-sxm-80g", "bi150-64g")):
        assert mixed.throughput.stages[stage] == alone[name].throughput.stages[stage]
    assert mixed.throughput.step_seconds > alone["h800-sxm-80g"].throughput.step_seconds
    assert (
        mixed.throughput.step_seconds
        > estimate_layout(scenario_of(hardware=MIXED, **QUESTION), layout()).throughput.step_seconds
    )


def test_memory_is_compared_with_the_rank_s_own_device() -> None:
    """The rank that binds is the one that needs most of its device, not the one that needs most bytes."""
    found = simulator.estimate(hardware=MIXED, layout=layout(stage_layers=(10, 30)), **QUESTION)
    assert found.memory.binding_stage == 1
    assert found.memory.capacity_bytes == found.memory.stages[1].capacity_bytes


def test_a_rank_inside_one_group() -> None:
    layout_of_four = Layout(data_parallel=24, stage_layers=(40,))
    scenario = scenario_of(hardware="h800-sxm-80g:1,bi150-64g:1", **QUESTION)
    broken = estimate_layout(scenario, layout_of_four)
    assert "node_groups" in [violation.rule for violation in broken.violations]
    kept = Layout(pipeline_parallel=3, data_parallel=8, stage_layers=default_cut(40, 3))
    assert "node_groups" not in [violation.rule for violation in estimate_layout(scenario, kept).violations]


def test_ranking_cuts_by_speed() -> None:
    ranking = simulator.rank(hardware=MIXED, space=Space(pipeline_parallel=(2,)), **QUESTION)
    cut = ranking.estimates[0].layout.stage_layers
    assert cut[0] > 3 * cut[1]
    assert ranking.estimates[0].provenance.status == "never"
    assert ranking.query["nodes"] == 2


def test_a_precision_that_one_kind_lacks_is_refused() -> None:
    with pytest.raises(simulator.UnsupportedError, match="a100-sxm-80g"):
        scenario_of(hardware="h800-sxm-80g:1,a100-sxm-80g:1", precision="fp8", **QUESTION)
