"""Memory of a node's host: offloaded tensors and their buffers (M25), models read (M32) or saved (M33) whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.dtypes import element_bytes, master_bytes, optimizer_bytes_per_parameter, parameter_bytes
from simulator.cost.memory.activations import in_flight, sent_bytes
from simulator.cost.memory.peak import MemoryByStage
from simulator.cost.memory.state import device_parameters, end_table, resident_optimizer, shard
from simulator.cost.operations.sums import micro_batches, total_parameters
from simulator.question.arrays import Mask
from simulator.question.scenario.block import Array, KindArray, StageArray
from simulator.question.specs.optimizers import OPTIMIZERS
from simulator.records import Bare


class HostMemory(Bare):
    """Bytes on the host of the fullest node."""

    parts: Mapping[str, Array]
    """Bytes by name of the part, each of shape (n,)."""
    pinned: Array
    """Bytes in pinned blocks, shape (n,); PyTorch rounds them up to powers of two, by less than a factor of 2."""

    @property
    def total(self) -> Array:
        """Return the sum of all parts, shape (n,)."""
        return np.asarray(sum(self.parts.values()))


def uses_host(pricing: Pricing) -> bool:
    """Return whether any layout of a block loads or saves on the host, or offloads something to it."""
    profile = pricing.scenario.framework
    if loading_bytes(pricing).any() or saving_bytes(pricing).any():
        return True
    moved = pricing.offloads("optimizer", "optimizer_tensorwise", "activations").any()
    elsewhere = profile.offload_parameters or profile.swapped_attention or bool(profile.offloaded_modules)
    return bool(moved) or elsewhere or OPTIMIZERS[profile.optimizer].paged


def host_memory(pricing: Pricing, memory: MemoryByStage) -> HostMemory:
    """Return the bytes that a block of layouts holds on the hosts: of a step (M25), or of loading if more (M32)."""
    contents, profile = pricing.contents, pricing.scenario.framework
    # The parameters of a device whose optimizer state is on the host.
    trained = device_parameters(pricing, "trained")
    offloads = pricing.offloads("optimizer", "optimizer_tensorwise")
    state, offloaded = memory.state, shard(pricing, trained, 1) * offloads * profile.offload_fraction
    first = pricing.block.zero_stage < 3
    summed = np.where(first & (micro_batches(pricing) <= 1), 0.0, profile.host_accumulation_bytes)
    weights = np.where(first, profile.host_weight_bytes, 0.0)
    optimizer = state.optimizer - resident_optimizer(pricing, state.optimizer)
    # A dense model's largest tensor is the vocabulary table.
    tables = first & (pricing.scenario.trains("embedding") or pricing.scenario.trains("output"))
    staged = np.where(tables & (offloaded > 0.0), profile.host_accumulation_bytes, 0.0) * end_table(pricing)
    whole, grouped = _rounding(pricing, offloaded)
    activations = contents.on_ranks(memory.activations.offload_traffic + sent_bytes(pricing)) * in_flight(pricing)
    held = np.minimum(optimizer, offloaded * profile.host_pinned_bytes)
    gradients = offloaded * (grouped * profile.host_gradient_bytes + whole * summed) + staged
    parts = {
        "optimizer": contents.on_ranks(optimizer + (grouped - 1.0) * held),
        "parameters": contents.on_ranks(whole * state.parameters_on_host),
        "activations": activations,
        "gradient_buffers": contents.on_ranks(gradients),
        "parameter_buffers": contents.on_ranks(whole * offloaded * weights),
    }
    pinned_state = contents.on_ranks(grouped * held)
    pinned = sum((size for name, size in parts.items() if name != "optimizer"), pinned_state)
    by_node = {name: _on_nodes(pricing, size) for name, size in parts.items()}
    fullest = np.argmax(sum(by_node.values()), axis=0)
    at = fullest, np.arange(len(pricing))
    of_step = {name: size[at] for name, size in by_node.items()} | {"saving": saving_bytes(pricing)}
    step = HostMemory(of_step, _on_nodes(pricing, pinned)[at])
    loading = loading_bytes(pricing)
    loads = loading > step.total
    left = np.where(loads, np.maximum(step.total + step.pinned - loading, 0.0), step.pinned)
    sizes: dict[str, Array] = {name: np.where(loads, 0.0, size) for name, size in step.parts.items()}
    return HostMemory(sizes | {"loading": np.where(loads, loading, 0.0)}, np.asarray(left, dtype=np.float64))


@derived
def loading_bytes(pricing: Pricing) -> Array:
    """Return the bytes on a node while its processes load the model, shape (n,): a whole one in each (M32)."""
    scenario, block = pricing.scenario, pricing.block
    where = scenario.framework.loads_on_host
    if where == "none" or scenario.framework.quantised_base:
        return np.zeros(len(pricing))
    processes = min(scenario.devices, max(device.devices_per_node for device in scenario.kinds_of_device))
    whole = processes * element_bytes(scenario) * total_parameters(scenario.model)
    return np.where((where == "always") | (block.zero_stage >= 3), whole, 0.0)


@derived
def saving_bytes(pricing: Pricing) -> Array:
    """Return the bytes that the first process gathers on its host to save what ranks share, shape (n,) (M33)."""
    scenario, block = pricing.scenario, pricing.block
    match scenario.framework.saves_on_host:
        case "weights":
            whole = element_bytes(scenario) * total_parameters(scenario.model)
            return np.where(block.zero_stage >= 3, whole, 0.0)
        case "state":
            parts = device_parameters(pricing, "trained")
            trained = parts.dense * block.tensor_parallel + parts.routed * block.expert_ranks
            moments = optimizer_bytes_per_parameter(scenario) - master_bytes(scenario)
            gathered = pricing.contents.on_ranks(trained).sum(axis=0) * max(parameter_bytes(scenario), moments)
            return np.where(block.zero_stage >= 2, gathered, 0.0)
        case _:
            return np.zeros(len(pricing))


def _rounding(pricing: Pricing, offloaded: KindArray) -> tuple[KindArray, KindArray]:
    """Return the factors by which pinned blocks exceed a rank's flat partition, whole and in sub groups (M25)."""
    group = float(pricing.scenario.framework.step_parameters)
    none = np.ones_like(offloaded)
    if not group:
        return none, none
    size = np.maximum(offloaded, 1.0)
    groups = np.where(pricing.block.zero_stage >= 3, np.floor(size / group), 0.0)
    rest = size - groups * group
    last = np.where(rest > 0.0, _block(np.maximum(rest, 1.0)), 0.0)
    parts = (groups * _block(np.full_like(size, group)) + last) / size
    used = offloaded > 0.0
    return np.where(used, _block(size) / size, 1.0), np.where(used, parts, 1.0)


def _block(size: KindArray) -> KindArray:
    return np.asarray(2.0 ** np.ceil(np.log2(size)))


def _on_nodes(pricing: Pricing, held: StageArray) -> StageArray:
    """Return the bytes of all devices of each distinct node, shape (nodes, n); pipeline ranks are consecutive (A6)."""
    scenario = pricing.scenario
    on_a_node = min(scenario.devices, max(device.devices_per_node for device in scenario.kinds_of_device))
    ranks = len(held)
    of_a_rank = max(scenario.devices // ranks, 1)
    together = min(max(on_a_node // of_a_rank, 1), ranks)
    return np.add.reduceat(held, np.arange(0, ranks, together), axis=0) * (on_a_node / together)


def host_capacity_bytes(pricing: Pricing) -> float | None:
    """Return the host memory of a node, the smallest in a mixed cluster; None where a device spec states none."""
    stated = [device.host_memory for device in pricing.scenario.kinds_of_device]
    known = [size.amount for size in stated if size is not None]
    return min(known) if len(known) == len(stated) else None


def beyond_host(pricing: Pricing, memory: MemoryByStage) -> Mask:
    """Return which layouts need more host memory than a node has, shape (n,); none where its capacity is unknown."""
    capacity = host_capacity_bytes(pricing)
    if capacity is None or not uses_host(pricing):
        return np.zeros(len(pricing), dtype=np.bool_)
    return np.asarray(host_memory(pricing, memory).total > capacity)
