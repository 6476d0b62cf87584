"""Seconds of one optimizer step, by part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Pricing, of_sizes
from simulator.cost.dtypes import (
    element_bytes,
    gathered_narrow,
    gradient_bytes,
    optimizer_bytes_per_parameter,
    parameter_dtype,
)
from simulator.cost.memory.parameters import (
    DeviceParameters,
    device_parameters,
    linear_by_class,
    shard,
    shard_degrees,
)
from simulator.cost.memory.peak import MemoryByStage
from simulator.cost.operations.extents import micro_batches
from simulator.cost.timing.collectives import RankGroup, expert_shard_group, gather_seconds, shard_group
from simulator.cost.timing.parts import Parts
from simulator.cost.timing.pipeline import (
    PipelineSeconds,
    StageWork,
    pace_parts,
    pipeline_seconds,
    stage_work,
    with_waits,
)
from simulator.cost.timing.rates import memory_rate
from simulator.cost.timing.waits import exposed
from simulator.question.frameworks.profile import DTYPE_BYTES
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.layout import BY_NAME
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import GIB


class StepSeconds(NamedTuple):
    """A step of every layout; arrays of shape (n,)."""

    total: Array
    pipeline: PipelineSeconds
    work: StageWork
    data_parallel: Array
    optimizer: Array
    offload: Array
    overhead: Array

    def parts(self, pricing: Pricing) -> Parts:
        """Named parts seen from the pacing rank; they add up to `total`."""
        parts = pace_parts(pricing, self.pipeline)
        parts["overhead"] = parts["overhead"] + self.overhead
        return parts | {
            "bubble": self.pipeline.fill,
            "pipeline_sends": self.pipeline.sends,
            "data_parallel": self.data_parallel,
            "optimizer": self.optimizer,
            "offload": self.offload,
        }


def step_seconds(
    pricing: Pricing, memory: MemoryByStage, below: Array | float = np.inf, work: StageWork | None = None
) -> StepSeconds:
    """Price a block's time. The memory result supplies what is offloaded.

    A step that is known to take `below` seconds or more, shape (n,), need not be priced to the end: its total is then
    a lower bound that does. `work` is that of the passes, where it is known.
    """
    work = work or stage_work(pricing)
    pipeline = pipeline_seconds(pricing, work)
    moves = host_moves(pricing, memory)
    forward = np.maximum(work.forward, moves.each_pass)
    micro_batch = _largest(forward + np.maximum(work.backward, moves.each_pass))
    data = _largest(data_parallel_seconds(pricing, forward, micro_batch))
    optimizer = _largest(optimizer_seconds(pricing))
    offload = moves.each_step + (micro_batch - pipeline.pace_seconds) * pipeline.micro_batches
    overhead = _overhead_seconds(pricing.scenario, pipeline) + reference_seconds(pricing, pipeline, forward)
    rest = data + optimizer + offload + overhead
    passes = pipeline.micro_batches * pipeline.pace_seconds + pipeline.sends
    pipeline = with_waits(pricing, work, pipeline, passes + rest < below)
    return StepSeconds(passes + pipeline.fill + rest, pipeline, work, data, optimizer, offload, overhead)


@of_sizes
def least_step_seconds(pricing: Pricing) -> Array:
    """What a step takes at least, shape (n,), for a fraction of the work: its passes with nothing done again."""
    bare = pricing.changed(recompute=np.full(len(pricing), BY_NAME["recompute"].encoded("none")))
    pipeline = pipeline_seconds(bare, stage_work(bare))
    bound: Array = pipeline.micro_batches * pipeline.pace_seconds + pipeline.sends + pipeline.fill
    return bound + _overhead_seconds(pricing.scenario, pipeline)


def _overhead_seconds(scenario: Scenario, pipeline: PipelineSeconds) -> Array:
    """What a step and each of its micro batches take beside all else, and waiting for others, shape (n,) (T23)."""
    values = scenario.coefficients.time
    overhead = values.step_overhead_seconds + pipeline.micro_batches * values.micro_batch_overhead_seconds
    return overhead + waiting_seconds(scenario, pipeline)


def reference_seconds(pricing: Pricing, pipeline: PipelineSeconds, forward: KindArray) -> Array | float:
    """Forward passes without gradients of all micro batches, where a reference scores them before they are trained on.

    A pipeline of forward passes alone fills once (PaddleNLP 136516b, paddlenlp/trl/dpo_trainer.py, `eval_batch`).
    """
    if not pricing.scenario.framework.reference_forward:
        return 0.0
    return (pipeline.micro_batches + pricing.block.pipeline_parallel - 1.0) * _largest(forward)


def waiting_seconds(scenario: Scenario, pipeline: PipelineSeconds) -> Array:
    """Waiting for the slowest of ever more ranks, where the stack's `node_doubling_wait` counts it (T23)."""
    work = pipeline.micro_batches * pipeline.pace_seconds + pipeline.fill
    return scenario.framework.node_doubling_wait * math.log2(max(scenario.nodes, 1)) * work


def _largest(by_kind: KindArray) -> Array:
    """The slowest rank's figure: an optimizer step ends when the last rank has ended."""
    slowest: Array = np.max(by_kind, axis=0)
    return slowest


def _on_own_devices(pricing: Pricing, figure: Callable[[Scenario], Array | float]) -> KindArray:
    """A figure of the device, for each kind of rank by the devices it is on; shape (kinds, n) or (kinds, 1) (T26)."""
    by_group = [np.atleast_2d(figure(member.scenario)) for member in pricing.members]
    return np.concatenate([by_group[group] for group in pricing.contents.group]) if len(by_group) > 1 else by_group[0]


class SecondsPerByte(NamedTuple):
    """Gathering or scattering one byte over the ranks that ZeRO shards over, shape (kinds or 1, n)."""

    dense: KindArray
    routed: KindArray


@of_sizes
def shard_seconds_per_byte(pricing: Pricing) -> SecondsPerByte:
    """What a byte takes over the ranks with the same parameters, and over those with the same experts."""
    degrees = shard_degrees(pricing)
    return SecondsPerByte(
        _seconds_per_byte(pricing, shard_group(pricing.block, degrees.dense)),
        _seconds_per_byte(pricing, expert_shard_group(pricing.block, degrees.routed)),
    )


def data_parallel_seconds(pricing: Pricing, forward: KindArray, micro_batch: Array) -> KindArray:
    """Exposed gradient reduction and parameter gathering of a step (T20).

    ZeRO 0 reduces gradients to every replica once (twice the traffic of a scatter); 1 scatters gradients and gathers
    parameters once; 2 scatters the gradients of every micro batch; 3 also gathers parameters in every pass. What
    overlaps hides behind the passes it belongs to: `forward` seconds of a rank's pass, of `micro_batch` for both of the
    slowest rank, shape (n,), with what they wait for the host.
    """
    scenario, block = pricing.scenario, pricing.block
    profile, values = scenario.framework, scenario.coefficients.time
    lora = scenario.lora_rank is not None
    weights = device_parameters(pricing)
    trained = device_parameters(pricing, adapters=True) if lora else weights
    gradient = gradient_bytes(scenario)
    zero, batches = block.zero_stage, micro_batches(pricing)
    each_time = np.where(zero >= 2, batches, 1.0)
    # An all-reduce is a reduction and a gather.
    scatters = each_time * (values.reduce_slowdown + np.where(zero == 0, 1.0, 0.0))
    gathers = np.select([zero >= 3, zero >= 1], [2.0 * batches, np.ones(len(pricing))], 0.0)
    gathered_dense = np.where(zero >= 3, weights.dense, trained.dense)
    gathered_routed = np.where(zero >= 3, weights.routed, trained.routed)
    dense, routed = shard_seconds_per_byte(pricing)
    reducing = scatters * gradient * (dense * trained.dense + routed * trained.routed)
    if profile.sharding_degree or profile.sharding_replicas > 1:
        reducing = reducing + each_time * gradient * _between_shard_groups(pricing, trained)
    gathering = gathers * element_bytes(scenario) * (dense * gathered_dense + routed * gathered_routed)
    if gathered_narrow(scenario) and not lora:
        linear = linear_by_class(pricing)
        # A byte of the two less.
        gathering = gathering - gathers * (dense * linear.dense + routed * linear.routed)
    # ZeRO 3 gathers once for each pass; its second gather shares the backward pass with the reduction.
    in_backward = np.where(zero >= 3, 0.5, 0.0) * gathering
    in_forward = gathering - in_backward
    beside_forward = in_forward if profile.overlap_param_gather else 0.0
    beside_backward = (in_backward if profile.overlap_param_gather else 0.0) + (
        reducing if profile.overlap_grad_reduce else 0.0
    )
    # A rank that waits for the pacing one goes on communicating meanwhile.
    beside = np.where(zero >= 3, batches, 1.0) * forward, each_time * (micro_batch - forward)
    waited = reducing + gathering - beside_forward - beside_backward
    share = values.data_exposed
    hidden = exposed(share, beside_forward, beside[0]) + exposed(share, beside_backward, beside[1])
    return waited + hidden + _exchange_overhead(pricing, each_time + gathers) + _broadcasts(pricing)


def _broadcasts(pricing: Pricing) -> Array:
    """Start of a broadcast of every other rank's share, one after the other, where parameters are sent so (T23)."""
    scenario, block = pricing.scenario, pricing.block
    degrees = shard_degrees(pricing).dense
    sent = scenario.framework.zero_broadcasts & (block.zero_stage >= 1) & (block.zero_stage <= _BROADCAST_STAGES)
    return np.where(sent, _BROADCAST_SECONDS * (degrees - 1.0), 0.0)


_BROADCAST_SECONDS = 3.2e-3
"""Start of one broadcast: of 19 public rows of InternEvo on 8 to 256 A100 within 24 %."""
_BROADCAST_STAGES = 2
"""ZeRO stages that update parameters once a step; 3 gathers them in the passes."""


def _exchange_overhead(pricing: Pricing, exchanges: Array) -> KindArray:
    """What a step's exchanges of parameters and gradients take beside their bytes, layer by layer."""
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    exchanged = contents.num_layers + contents.embeddings + contents.heads
    # What stores parameters in another type than it computes in gathers them even from a single rank.
    cast = scenario.framework.fully_shard and DTYPE_BYTES[parameter_dtype(scenario)] != element_bytes(scenario)
    each = np.where((block.replicas > 1.0) | cast, exchanges, 0.0)
    per_exchange = _on_own_devices(pricing, lambda member: member.coefficients.time.shard_overhead_seconds)
    return exchanged * each * per_exchange


def _between_shard_groups(pricing: Pricing, trained: DeviceParameters) -> KindArray:
    """Seconds per byte and gradient of summing the shards of several sharding groups, a scatter and a gather."""
    block = pricing.block
    degrees = shard_degrees(pricing)
    across = RankGroup(block.replicas / degrees.dense, block.tensor_parallel * degrees.dense)
    experts = RankGroup(block.expert_replicas / degrees.routed, block.expert_ranks * degrees.routed)
    dense = _seconds_per_byte(pricing, across) * trained.dense / degrees.dense
    routed = _seconds_per_byte(pricing, experts) * trained.routed / degrees.routed
    return np.where(block.zero_stage >= 1, 2.0 * (dense + routed), 0.0)


def _seconds_per_byte(pricing: Pricing, group: RankGroup) -> KindArray:
    """Gathering or scattering one byte over a group, for each kind of rank."""
    gibibyte = np.full_like(group.size, 2.0**30)
    return _on_own_devices(pricing, lambda member: gather_seconds(member, group, gibibyte) / GIB)


def optimizer_seconds(pricing: Pricing) -> KindArray:
    """Reading and writing the sharded state once, reading gradients and writing weights, at memory bandwidth (T21).

    `optimizer_slowdown` says how far an update is from one pass: several kernels each read and write it again.
    """
    scenario = pricing.scenario
    trained = device_parameters(pricing, adapters=scenario.lora_rank is not None)
    written = DTYPE_BYTES[parameter_dtype(scenario)]
    per_parameter = 2.0 * optimizer_bytes_per_parameter(scenario) + gradient_bytes(scenario) + written
    per_byte = _on_own_devices(
        pricing, lambda member: member.coefficients.time.optimizer_slowdown / memory_rate(member)
    )
    return shard(pricing, trained, 1) * per_parameter * per_byte


class HostMoves(NamedTuple):
    """Seconds of traffic between device and host."""

    each_pass: KindArray
    """Moved under each of the two passes of a micro batch, shape (kinds, n): a pass takes no less."""
    each_step: Array
    """Moved on the slowest rank while nothing is computed, shape (n,)."""


def host_moves(pricing: Pricing, memory: MemoryByStage) -> HostMoves:
    """What offload moves between device and host, one after the other (T22).

    Optimizer state goes out after and comes back before the step. Activations go out in the forward and come back in
    the backward pass; parameters on the host come in for both passes of every micro batch, and go out after the step.
    """
    profile = pricing.scenario.framework
    per_byte = _on_own_devices(pricing, lambda member: 1.0 / member.hardware.host_bandwidth_bytes_per_second)
    each_pass = memory.activations.offload_traffic * per_byte
    optimizer = pricing.offloads("optimizer", "optimizer_tensorwise")
    state = 2.0 * _largest(memory.state.optimizer * per_byte) * profile.offload_fraction
    each_step = np.where(optimizer, state, 0.0)
    if profile.offload_parameters:
        parameters = memory.state.parameters_on_host * per_byte
        each_pass, each_step = each_pass + parameters, each_step + _largest(parameters)
    return HostMoves(each_pass, each_step)
