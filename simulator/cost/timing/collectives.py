"""Seconds of one collective on the cluster's topology: inside a node, inside an NVLink domain, across the network.

A group is `size` ranks, `stride` device numbers apart. Ranks are numbered tensor parallel fastest, then context, data,
pipeline (Megatron's default order); expert tensor parallel, then expert parallel, in the expert numbering.

Link levels are nested islands: level j joins islands of level j-1. A group has `m` members in an island of `D` devices,
`m = min(size, D / stride)`. Data that leaves an island uses the links of all its members. All levels move data at once
(rings are pipelined), so the slowest level sets the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.operations.record import CollectiveGroup
from simulator.cost.operations.sums import expected_islands, inner_context
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.hardware import LinkLevel
from simulator.records import NamedTuple


class RankGroup(NamedTuple):
    """A process group of each layout; arrays of shape (n,)."""

    size: Array
    stride: Array


def tensor_group(block: LayoutBlock) -> RankGroup:
    """Return the tensor-parallel group: neighbouring devices."""
    return RankGroup(block.tensor_parallel, np.ones_like(block.tensor_parallel))


def group_of(pricing: Pricing, name: CollectiveGroup) -> RankGroup:
    """Return the group of a collective; the neighbours that exchange tokens for heads form a ring of their own."""
    block = pricing.block
    size, stride = tensor_group(block)
    match name:
        case "tensor":
            pass
        case "context":
            size, stride = block.context_parallel, size
        case "context_inner":
            size, stride = inner_context(pricing), size
        case "context_outer":
            inner = inner_context(pricing)
            size, stride = block.context_parallel / inner, size * inner
        case "expert":
            size, stride = block.expert_parallel, block.expert_tensor_parallel
        case "expert_tensor":
            size = block.expert_tensor_parallel
        case "expert_ranks":
            size = block.expert_ranks
        case _:
            assert_never(name)
    return RankGroup(size, stride)


def shard_group(block: LayoutBlock, degree: Array | None = None) -> RankGroup:
    """Return the ranks with the same parameters, or `degree` of them: data x context parallel."""
    return RankGroup(block.replicas if degree is None else degree, block.tensor_parallel)


def expert_shard_group(block: LayoutBlock, degree: Array | None = None) -> RankGroup:
    """Return the ranks with the same experts, or `degree` of them."""
    return RankGroup(block.expert_replicas if degree is None else degree, block.expert_ranks)


def pipeline_group(block: LayoutBlock) -> RankGroup:
    """Return the pipeline group: one device of each rank."""
    stride = block.tensor_parallel * block.context_parallel * block.data_parallel
    return RankGroup(np.full(len(block), float(block.pipeline_parallel)), stride)


class _Crossing(NamedTuple):
    """A group's use of one link level."""

    members: Array
    """Group members inside one island of the level below."""
    within: Array
    """Group members inside one island of this level."""
    bandwidth: Array
    """Bytes per second of one member, one direction."""
    level: LinkLevel


def _crossings(
    scenario: Scenario, group: RankGroup, efficiency: Callable[[Scenario, LinkLevel], float]
) -> Iterator[_Crossing]:
    members = np.ones_like(group.size)
    for level in scenario.hardware.links_of(scenario.devices):
        within = _within(level, group)
        yield _Crossing(members, within, _bandwidth(level, within, efficiency(scenario, level)), level)
        members = within


def _within(level: LinkLevel, group: RankGroup) -> Array:
    """Return how many members of a group one island of a level has."""
    if level.devices is None:
        return group.size
    members: Array = np.minimum(np.maximum(level.devices / group.stride, 1.0), group.size)
    return members


def _efficiency(scenario: Scenario, level: LinkLevel) -> float:
    """Return the share of a level's rate that collectives reach; a rate measured with collectives includes theirs."""
    values = scenario.coefficients.time
    return (1.0 if level.measured else values.link_efficiency) / values.collective_slowdown


def _exchange_efficiency(scenario: Scenario, level: LinkLevel) -> float:
    """Return the share of a level's nominal rate that exchanges between all ranks reach.

    Measured for DeepEP's kernels on H100, 437 points of one to eight nodes (ai-dynamo/aiconfigurator 095f58a,
    wideep_deepep_normal_perf): 43 to 45 of 50 GB/s over the network, 320 to 370 of 450 inside a node.
    """
    values = scenario.coefficients.time
    share = values.exchange_network_efficiency if level.devices is None else values.exchange_link_efficiency
    return (1.0 if level.measured else share) / values.collective_slowdown


def _bandwidth(level: LinkLevel, within: Array, efficiency: float) -> Array:
    """Return a member's bandwidth at a level; on a mesh only the links to its own peers count."""
    full = level.bandwidth_bytes_per_second * efficiency
    if level.topology == "mesh":
        pair = level.pair_bandwidth_bytes_per_second * efficiency
        return np.minimum(full, np.maximum(within - 1.0, 1.0) * pair)
    return np.full_like(within, full)


def gather_seconds(scenario: Scenario, group: RankGroup, size_bytes: Array) -> Array:
    """Return the seconds of an all-gather or reduce-scatter of `size_bytes` in total on every member (T17)."""
    seconds = np.zeros_like(group.size)
    latency = np.zeros_like(group.size)
    for crossing in _crossings(scenario, group, _efficiency):
        islands = crossing.within / crossing.members
        share = (islands - 1.0) / islands
        seconds = np.maximum(seconds, share * size_bytes / (crossing.members * crossing.bandwidth))
        latency = latency + (islands - 1.0) * crossing.level.latency_seconds
    return seconds + latency


def all_to_all_seconds(scenario: Scenario, group: RankGroup, sent_bytes: Array) -> Array:
    """Return the seconds of an all-to-all: each member sends `sent_bytes`, spread evenly over the group (T17)."""
    seconds = np.zeros_like(group.size)
    latency = np.zeros_like(group.size)
    for crossing in _crossings(scenario, group, _exchange_efficiency):
        # Members reached at this level and at none inside it.
        reached = crossing.within - crossing.members
        seconds = np.maximum(seconds, reached / group.size * sent_bytes / crossing.bandwidth)
        latency = latency + np.where(reached > 0.0, crossing.level.latency_seconds, 0.0)
    return seconds + latency


def once_seconds(scenario: Scenario, group: RankGroup, token_bytes: Array) -> Array:
    """Return the seconds to send each token once to every island with a chosen expert, level by level (T9)."""
    seconds, nodes = np.zeros_like(group.size), np.ones_like(group.size)
    for crossing in _crossings(scenario, group, _exchange_efficiency):
        islands = crossing.within / crossing.members
        reached = expected_islands(scenario.model, group.size / crossing.members)
        transfer = token_bytes * reached * (islands - 1.0) / islands / crossing.bandwidth
        seconds = np.maximum(seconds, transfer)
        nodes = islands if crossing.level.devices is None else nodes
    start = scenario.coefficients.time.dispatch_latency_seconds
    return seconds + np.where(group.size > 1.0, start * (1.0 + np.log2(nodes)), 0.0)


def neighbour_seconds(scenario: Scenario, group: RankGroup, sent_bytes: Array) -> Array:
    """Return the seconds for each member to send `sent_bytes` to the next, over the slowest link crossed (T17)."""
    seconds = np.zeros_like(group.size)
    for crossing in _crossings(scenario, group, _efficiency):
        rate = crossing.level.pair_bandwidth_bytes_per_second * _efficiency(scenario, crossing.level)
        hop = sent_bytes / rate + crossing.level.latency_seconds
        seconds = np.where(crossing.within > crossing.members, np.maximum(seconds, hop), seconds)
    return seconds
