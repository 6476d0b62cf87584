"""Bytes in the memory of a node's host: what offload moves there.

Counted is what is moved, once: optimizer state, parameters, and the activations of all micro batches in flight. What a
framework keeps beside it (staging buffers, the host's own processes) is not, so that a need above the capacity is firm.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.memory.peak import MemoryByStage
from simulator.cost.memory.rank_activations import in_flight
from simulator.cost.memory.state import resident_optimizer
from simulator.question.arrays import Mask
from simulator.question.scenario.block import Array


def uses_host(pricing: Pricing) -> bool:
    """Whether any layout of a block moves something to the host."""
    moved = pricing.offloads("optimizer", "optimizer_tensorwise", "activations").any()
    return bool(moved) or pricing.scenario.framework.offload_parameters


def host_bytes_per_node(pricing: Pricing, memory: MemoryByStage) -> Array:
    """Bytes of the fullest node's host, shape (n,): all of its devices are taken as the fullest pipeline rank's."""
    state, activations, contents = memory.state, memory.activations, memory.contents
    held = contents.on_ranks(state.optimizer - resident_optimizer(pricing, state.optimizer))
    held = held + contents.on_ranks(state.parameters_on_host)
    held = held + contents.on_ranks(activations.offload_traffic) * in_flight(pricing)
    scenario = pricing.scenario
    on_a_node = min(scenario.devices, max(device.devices_per_node for device in scenario.kinds_of_device))
    return np.asarray(np.max(held, axis=0) * on_a_node)


def host_capacity_bytes(pricing: Pricing) -> float | None:
    """Memory of a node's host, the smallest of a mixed cluster; None where a spec does not state it."""
    stated = [device.host_memory for device in pricing.scenario.kinds_of_device]
    known = [size.amount for size in stated if size is not None]
    return min(known) if len(known) == len(stated) else None


def beyond_host(pricing: Pricing, memory: MemoryByStage) -> Mask:
    """Which layouts move more to the host than it has, shape (n,); none where no spec states how much that is."""
    capacity = host_capacity_bytes(pricing)
    if capacity is None or not uses_host(pricing):
        return np.zeros(len(pricing), dtype=np.bool_)
    return np.asarray(host_bytes_per_node(pricing, memory) > capacity)
