"""Seconds of a step by part: passes, pipeline, exchanges of gradients, optimizer and waits.

`timing.layers` prices a layer, `timing.pipeline` the passes over ranks, `timing.data_parallel` what gradients exchange;
`timing.parts` has the records.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Pricing, of_sizes
from simulator.cost.dtypes import (
    HALF,
    gradient_bytes,
    optimizer_bytes_per_parameter,
    parameter_dtype,
)
from simulator.cost.memory.activations import sent_bytes
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.memory.state import DeviceParameters, device_parameters, orthogonal_flops, shard, state_by_class
from simulator.cost.stages import over_layers
from simulator.cost.timing.data_parallel import data_parallel_seconds, on_own_devices, shard_seconds_per_byte
from simulator.cost.timing.parts import Parts, passes_are_captured
from simulator.cost.timing.pipeline import (
    PipelineSeconds,
    StageWork,
    pace_parts,
    pipeline_seconds,
    stage_work,
    with_waits,
)
from simulator.cost.timing.products import memory_rate, wide_gemm_rate
from simulator.cost.timing.unequal import length_waits
from simulator.question.frameworks.profile import DTYPE_BYTES
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.layout import BY_NAME
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.optimizers import OPTIMIZERS


class StepSeconds(NamedTuple):
    """Seconds of a step of every layout; arrays of shape (n,)."""

    total: Array
    pipeline: PipelineSeconds
    work: StageWork
    data_parallel: Array
    optimizer: Array
    offload: Array
    overhead: Array
    length_waits: Array | None = None
    """Waits for the longest where lengths differ; None where they are equal."""

    def parts(self, pricing: Pricing) -> Parts:
        """Return the named parts as the pacing rank sees them; they add up to `total`."""
        parts = pace_parts(pricing.by_mean, self.pipeline)
        if self.length_waits is not None:
            parts["length_waits"] = self.length_waits
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
    """Price a block's time; `memory` states what is offloaded, and `work` the passes if known.

    A step that takes at least `below` seconds, shape (n,), need not be priced in full: its total is then a lower bound
    of at least `below`.
    """
    if pricing.by_mean is not pricing:
        pricing = pricing.by_mean
        memory = memory_by_stage(pricing)
    work = work or stage_work(pricing)
    pipeline = pipeline_seconds(pricing, work)
    moves = host_moves(pricing, memory)
    forward = np.maximum(work.forward, moves.each_pass)
    micro_batch = _largest(forward + np.maximum(work.backward, moves.each_pass))
    data = data_parallel_seconds(pricing, forward, np.maximum(work.backward, moves.each_pass))
    optimizer = _largest(optimizer_seconds(pricing))
    offload = moves.each_step + (micro_batch - pipeline.pace_seconds) * pipeline.micro_batches
    overhead = _overhead_seconds(pricing.scenario, pipeline) + reference_seconds(pricing, pipeline, forward)
    rest = data + optimizer + offload + overhead
    passes = pipeline.micro_batches * pipeline.pace_seconds + pipeline.sends
    pipeline = with_waits(pricing, work, pipeline, passes + rest < below)
    total = passes + pipeline.fill + rest
    if pricing.scenario.lengths is None:
        return StepSeconds(total, pipeline, work, data, optimizer, offload, overhead)
    waits = length_waits(pricing, pace_parts(pricing, pipeline), pipeline)
    return StepSeconds(total + waits, pipeline, work, data, optimizer, offload, overhead, waits)


@of_sizes
def min_step_seconds(pricing: Pricing) -> Array:
    """Return a cheap lower bound on a step's seconds, shape (n,): its passes without recompute."""
    bare = pricing.by_mean.changed(recompute=np.full(len(pricing), BY_NAME["recompute"].encoded("none")))
    pipeline = pipeline_seconds(bare, stage_work(bare))
    bound: Array = pipeline.micro_batches * pipeline.pace_seconds + pipeline.sends + pipeline.fill
    return bound + _overhead_seconds(pricing.scenario, pipeline)


def _overhead_seconds(scenario: Scenario, pipeline: PipelineSeconds) -> Array:
    """Return the fixed seconds of a step and of its micro batches, and waits for other ranks, shape (n,) (T23)."""
    values = scenario.coefficients.time
    each = 0.0 if passes_are_captured(scenario) else values.micro_batch_overhead_seconds
    overhead = values.step_overhead_seconds + pipeline.micro_batches * each
    return overhead + waiting_seconds(scenario, pipeline)


def reference_seconds(pricing: Pricing, pipeline: PipelineSeconds, forward: KindArray) -> Array | float:
    """Return the seconds of a reference model's forward passes, which score all micro batches before training.

    A pipeline of forward passes alone fills once (PaddleNLP 136516b, paddlenlp/trl/dpo_trainer.py, `eval_batch`).
    """
    if not pricing.scenario.framework.reference_forward:
        return 0.0
    return (pipeline.micro_batches + pricing.block.pipeline_parallel - 1.0) * _largest(forward)


def waiting_seconds(scenario: Scenario, pipeline: PipelineSeconds) -> Array:
    """Return the seconds of waiting for the slowest rank: a share of the passes per doubling of the nodes (T23).

    In Megatron's trillion-parameter runs a step at constant work per device takes a few percent more with each factor
    of ten of the nodes; clusters differ (`node_doubling_wait`).
    """
    work = pipeline.micro_batches * pipeline.pace_seconds + pipeline.fill
    return scenario.coefficients.time.node_doubling_wait * math.log2(max(scenario.nodes, 1)) * work


def _largest(by_kind: KindArray) -> Array:
    """Return the slowest rank's figure: a step ends when its last rank ends."""
    slowest: Array = by_kind.max(axis=0)
    return slowest


def optimizer_seconds(pricing: Pricing) -> KindArray:
    """Return the seconds to read and write the sharded state, read gradients and write weights (T21).

    `optimizer_slowdown` is the time of an update over that of one pass: several kernels each read and write it again.
    `gradient_passes` adds passes over all gradients of a device, sharded or not.
    """
    scenario = pricing.scenario
    trained = device_parameters(pricing, "parameters" if scenario.lora_rank is None else "adapters")
    written = DTYPE_BYTES[parameter_dtype(scenario)]
    per_parameter = 2.0 * optimizer_bytes_per_parameter(scenario) + gradient_bytes(scenario) + written
    per_byte = on_own_devices(pricing, lambda member: member.coefficients.time.optimizer_slowdown / memory_rate(member))
    whole = float(scenario.framework.gradient_passes) * gradient_bytes(scenario) * (trained.dense + trained.routed)
    moved = shard(pricing, trained, 1) * per_parameter + 2.0 * state_by_class(pricing) + whole
    return moved * per_byte + _orthogonal_seconds(pricing)


def _orthogonal_seconds(pricing: Pricing) -> KindArray | float:
    """Return the seconds of orthogonalizing matrix updates, spread over the ranks that share the matrices (T21).

    It runs at the rate of 16-bit products. Matrices stored in equal shards are exchanged whole in 16 bits before and
    after.
    """
    scenario, contents = pricing.scenario, pricing.contents
    if not OPTIMIZERS[scenario.framework.optimizer].newton_schulz_steps or scenario.lora_rank is not None:
        return 0.0
    of_layers = [orthogonal_flops(pricing, kind) for kind in contents.layer_kinds]
    flops = DeviceParameters(
        over_layers(contents.with_prediction, [figure.dense for figure in of_layers]),
        over_layers(contents.with_prediction, [figure.routed for figure in of_layers]),
    )
    seconds = shard(pricing, flops, 1) * on_own_devices(pricing, lambda member: 1.0 / wide_gemm_rate(member))
    if not scenario.framework.fully_shard:
        return seconds
    parts = shard(pricing, device_parameters(pricing, "matrix"), 1)
    return seconds + 2.0 * HALF * parts * shard_seconds_per_byte(pricing).dense


class HostMoves(NamedTuple):
    """Seconds of traffic between device and host."""

    each_pass: KindArray
    """Moved under either pass of a micro batch, shape (kinds, n): a lower bound on its time."""
    each_step: Array
    """Moved on the slowest rank while nothing is computed, shape (n,)."""


def host_moves(pricing: Pricing, memory: MemoryByStage) -> HostMoves:
    """Return the seconds of offload traffic between device and host, one transfer after another (T22).

    Optimizer state goes out after and comes back before the step. Activations, or those of parts of a layer
    (`swapped_attention`, `offloaded_modules`), go out in the forward and come back in the backward pass; parameters on
    the host come in for both passes of every micro batch, and go out after the step.
    """
    profile = pricing.scenario.framework
    per_byte = on_own_devices(pricing, lambda member: 1.0 / member.hardware.host_bandwidth_bytes_per_second)
    each_pass = (memory.activations.offload_traffic + sent_bytes(pricing)) * per_byte
    optimizer = pricing.offloads("optimizer", "optimizer_tensorwise")
    state = 2.0 * _largest(memory.state.optimizer * per_byte) * profile.offload_fraction
    each_step = np.where(optimizer, state, 0.0)
    if profile.offload_parameters:
        parameters = memory.state.parameters_on_host * per_byte
        each_pass, each_step = each_pass + parameters, each_step + _largest(parameters)
    return HostMoves(each_pass, each_step)
