"""Collectives on real topologies against times worked by hand; links reach 75 % of their nominal rate.

S is the size of the whole result of a gather, or what one member sends in an exchange: 2.7 GB.
"""

from typing import Any, get_args

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.operations.record import CollectiveGroup
from simulator.cost.timing import collectives
from simulator.cost.timing.collectives import (
    RankGroup,
    all_to_all_seconds,
    gather_seconds,
    group_of,
    neighbour_seconds,
)
from tests.scenario.cases import ROUND, block, only, scenario_of, small_dense, small_moe

S = 2.7e9
US = 1e-6


def on(hardware: str) -> Any:
    return scenario_of(small_dense(), hardware, devices=1, coefficients=ROUND)


def group(size: int, stride: int = 1) -> RankGroup:
    return RankGroup(np.array([float(size)]), np.array([float(stride)]))


def gather(hardware: str, size: int, stride: int = 1) -> float:
    return only(gather_seconds(on(hardware), group(size, stride), np.array([S])))


def exchange(hardware: str, size: int, stride: int = 1) -> float:
    return only(all_to_all_seconds(on(hardware), group(size, stride), np.array([S])))


def neighbour(hardware: str, size: int, stride: int = 1) -> float:
    return only(neighbour_seconds(on(hardware), group(size, stride), np.array([S])))


# Z2000: NVLink 450 GB/s x 0.75 = 337.5 and 2 us; eight ports of 50 GB/s for eight devices, 37.5 each, and 10 us.


def test_a_group_of_one_moves_nothing() -> None:
    for seconds in (gather, exchange, neighbour):
        assert seconds("z2000", 1) == 0


def test_a_gather_inside_a_node() -> None:
    # Each takes in 7/8 of the result, in 7 steps.
    assert gather("z2000", 8) == pytest.approx(7 / 8 * S / 337.5e9 + 7 * 2 * US)
    assert gather("z2000", 2) == pytest.approx(1 / 2 * S / 337.5e9 + 2 * US)


def test_a_gather_over_two_nodes_uses_all_ports_of_a_node() -> None:
    # Half of the result enters a node over eight ports: 1.35 / 300 = 4.5 ms; inside, 7/8 over NVLink: 7 ms. The slower.
    assert gather("z2000", 16) == pytest.approx(7e-3 + 7 * 2 * US + 10 * US)
    # Eight nodes: 7/8 x 2.7 / 300 = 7.875 ms.
    assert gather("z2000", 64) == pytest.approx(7.875e-3 + 7 * 2 * US + 7 * 10 * US)


def test_a_group_with_one_member_a_node_has_one_port_each() -> None:
    assert gather("z2000", 4, stride=8) == pytest.approx(3 / 4 * S / 37.5e9 + 3 * 10 * US)


def test_a_group_with_two_members_a_node() -> None:
    # Eight members four apart: over four nodes, two in each. 3/4 enters a node over two ports.
    assert gather("z2000", 8, stride=4) == pytest.approx(3 / 4 * S / 75e9 + 2 * US + 3 * 10 * US)


def test_an_exchange() -> None:
    # In a node 7/8 of what a member sends leaves it; over two nodes 8/16 leaves through its own port.
    assert exchange("z2000", 8) == pytest.approx(7 / 8 * S / 337.5e9 + 2 * US)
    assert exchange("z2000", 16) == pytest.approx(8 / 16 * S / 37.5e9 + 12 * US)
    assert exchange("z2000", 64) == pytest.approx(56 / 64 * S / 37.5e9 + 12 * US)


def test_a_send_to_a_neighbour() -> None:
    assert neighbour("z2000", 8) == pytest.approx(S / 337.5e9 + 2 * US)
    assert neighbour("z2000", 2, stride=8) == pytest.approx(S / 37.5e9 + 10 * US)
    # A ring over two nodes waits for the link between them.
    assert neighbour("z2000", 16) == pytest.approx(S / 37.5e9 + 10 * US)


@pytest.mark.parametrize(("size", "nodes"), [(2, 1), (8, 1), (16, 2), (32, 4)])
def test_a_copy_of_each_token_starts_later_over_more_nodes(size: int, nodes: int) -> None:
    """DeepEP's kernels: 40 us inside a node, and as many for every doubling of nodes."""
    scenario = scenario_of(small_moe(num_experts=32), "z2000", devices=1, coefficients=ROUND)
    assert only(collectives.once_seconds(scenario, group(size), np.zeros(1))) == pytest.approx(
        40 * US * (1 + np.log2(nodes))
    )
    assert only(collectives.once_seconds(scenario, group(1), np.zeros(1))) == 0


# Ascend: a mesh of eight, 28 GB/s a pair and 196 in all; x 0.75 = 21 and 147; 3 us.


@pytest.mark.parametrize(("size", "rate"), [(2, 21e9), (4, 63e9), (8, 147e9)])
def test_a_group_on_a_mesh_has_the_links_to_its_own_peers(size: int, rate: float) -> None:
    share = (size - 1) / size
    assert gather("ascend-910b-64g", size) == pytest.approx(share * S / rate + (size - 1) * 3 * US)
    assert exchange("ascend-910b-64g-8", size) == pytest.approx(share * S / rate + 3 * US)


def test_a_pair_on_a_mesh_has_one_link() -> None:
    for size in (2, 8):
        assert neighbour("ascend-910b-64g", size) == pytest.approx(S / 21e9 + 3 * US)


def test_two_meshes_joined_by_pcie() -> None:
    # Sixteen: half of the result enters a mesh over eight PCIe links of 24 GB/s; inside, 7/8 over the mesh is slower.
    mesh, joint = 7 / 8 * S / 147e9, 1 / 2 * S / (8 * 24e9)
    assert mesh > joint
    assert gather("ascend-910b-64g", 16) == pytest.approx(mesh + 7 * 3 * US + 5 * US)
    # One member in each mesh: half over one link.
    assert gather("ascend-910b-64g", 2, stride=8) == pytest.approx(1 / 2 * S / 24e9 + 5 * US)
    assert exchange("ascend-910b-64g", 16) == pytest.approx(8 / 16 * S / 24e9 + 8 * US)
    # A ring of sixteen waits for its mesh pairs, which are slower than the PCIe link between the meshes.
    assert neighbour("ascend-910b-64g", 16) == pytest.approx(S / 21e9 + 3 * US)
    assert neighbour("ascend-910b-64g", 2, stride=8) == pytest.approx(S / 24e9 + 5 * US)
    # Two machines: their ports, 25 GB/s x 0.75 a device.
    assert gather("ascend-910b-64g", 2, stride=16) == pytest.approx(1 / 2 * S / 18.75e9 + 10 * US)


def test_a_pcie_tree() -> None:
    # 64 GB/s x 0.75 = 48 whichever the group.
    for size in (2, 4, 8):
        share = (size - 1) / size
        assert gather("h100-pcie-80g", size) == pytest.approx(share * S / 48e9 + (size - 1) * 5 * US)


def test_measured_rates_are_not_discounted_again() -> None:
    # Collectives reached 46 GB/s inside a BI-V150 machine and 7.8 GB/s on the one port that its 16 devices share.
    assert gather("bi150-64g", 16) == pytest.approx(15 / 16 * S / 46e9 + 15 * 5 * US)
    assert gather("bi150-64g", 32) == pytest.approx(1 / 2 * S / 7.8e9 + 15 * 5 * US + 10 * US)
    assert gather("bi150-64g", 2, stride=16) == pytest.approx(1 / 2 * S / (7.8e9 / 16) + 10 * US)


@pytest.mark.parametrize("hardware", ["z2000", "ascend-910b-64g", "ascend-910c", "bi150-64g", "b200-sxm"])
def test_larger_groups_are_never_faster(hardware: str) -> None:
    # A mesh alone gets faster with its members: a pair has one link of it.
    sizes = (8, 16, 32, 64)
    for seconds in (gather, exchange, neighbour):
        times = [seconds(hardware, size) for size in sizes]
        assert times == sorted(times)


def test_the_groups_of_a_layout() -> None:
    scenario = scenario_of(small_moe(), devices=64)
    here = block(
        scenario,
        tensor_parallel=4,
        context_parallel=2,
        pipeline_parallel=2,
        expert_parallel=4,
        expert_tensor_parallel=2,
    )
    found = {
        name: (only(one.size), only(one.stride))
        for name in ("tensor_group", "shard_group", "expert_shard_group", "pipeline_group")
        for one in [getattr(collectives, name)(here)]
    }
    pricing, names = Pricing(scenario, here), get_args(CollectiveGroup)
    found |= {name: (only(one.size), only(one.stride)) for name in names for one in [group_of(pricing, name)]}
    # Tensor fastest, then context, data (4), pipeline; a stage has 32 ranks, its experts 8.
    assert found == {
        "tensor_group": (4, 1),
        "shard_group": (8, 4),
        "expert_shard_group": (4, 8),
        "pipeline_group": (2, 32),
        "tensor": (4, 1),
        "context": (2, 4),
        "context_inner": (1, 4),
        "context_outer": (2, 4),
        "expert": (4, 2),
        "expert_tensor": (2, 1),
        "expert_ranks": (8, 1),
    }


def test_rings_of_groups_that_exchange_tokens_for_heads() -> None:
    """Of eight ranks that share a sequence, four devices apart, pairs exchange; four of those form a ring."""
    options = {"cp_communication": "all_to_all_ring", "cp_inner_degree": "2"}
    scenario = scenario_of(small_moe(), devices=64, options=options)
    pricing = Pricing(scenario, block(scenario, tensor_parallel=4, context_parallel=8))
    inner, outer = group_of(pricing, "context_inner"), group_of(pricing, "context_outer")
    assert (only(inner.size), only(inner.stride)) == (2, 4)
    assert (only(outer.size), only(outer.stride)) == (4, 8)


def test_groups_of_so_many_shards() -> None:
    here = block(scenario_of(small_moe(), devices=64), tensor_parallel=4, expert_parallel=2, expert_tensor_parallel=4)
    for degree in (None, np.array([2.0])):
        dense, routed = collectives.shard_group(here, degree), collectives.expert_shard_group(here, degree)
        assert (only(dense.size), only(dense.stride)) == (16 if degree is None else 2, 4)
        assert (only(routed.size), only(routed.stride)) == (8 if degree is None else 2, 8)


# GB300 NVL72: NVLink 900 GB/s x 0.75 = 675 and 2 us over a rack; an 800 Gbit/s adapter a device, 75 GB/s, and 10 us.


def test_a_group_inside_a_rack_crosses_trays_at_full_rate() -> None:
    job = scenario_of(small_dense(), "gb300-nvl72", devices=256, coefficients=ROUND)
    sent = np.array([S])
    # Sixteen trays: each member takes in 63/64 over its own links, wherever the others are.
    assert only(gather_seconds(job, group(64), sent)) == pytest.approx(63 / 64 * S / 675e9 + 63 * 2 * US)
    assert only(gather_seconds(job, group(8, 8), sent)) == pytest.approx(7 / 8 * S / 675e9 + 7 * 2 * US)
    assert only(all_to_all_seconds(job, group(32), sent)) == pytest.approx(31 / 32 * S / 675e9 + 2 * US)
    assert only(neighbour_seconds(job, group(16, 4), sent)) == pytest.approx(S / 675e9 + 2 * US)


def test_a_group_over_racks_leaves_by_the_network() -> None:
    job = scenario_of(small_dense(), "gb300-nvl72", devices=256, coefficients=ROUND)
    sent = np.array([S])
    # Four members 64 apart, one a rack: 3/4 over one adapter.
    assert only(gather_seconds(job, group(4, 64), sent)) == pytest.approx(3 / 4 * S / 75e9 + 3 * 10 * US)
    # All 256: 3/4 enters a rack over its 64 adapters, 63/64 goes round inside it.
    inside, over = 63 / 64 * S / 675e9, 3 / 4 * S / (64 * 75e9)
    assert only(gather_seconds(job, group(256), sent)) == pytest.approx(max(inside, over) + 63 * 2 * US + 3 * 10 * US)
    # An exchange of 128 members: 64 of 128 parts leave the rack.
    assert only(all_to_all_seconds(job, group(128), sent)) == pytest.approx(64 / 128 * S / 75e9 + 12 * US)


def test_a_job_of_one_rack_has_all_of_it() -> None:
    job = scenario_of(small_dense(), "gb300-nvl72", devices=72, coefficients=ROUND)
    assert only(gather_seconds(job, group(72), np.array([S]))) == pytest.approx(71 / 72 * S / 675e9 + 71 * 2 * US)
