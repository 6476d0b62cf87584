"""Seconds of one optimizer step, by part: pipeline, exchange over replicas, optimizer. Prices no operation itself."""

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
from simulator.cost.memory.matrices import orthogonal_flops
from simulator.cost.memory.parameters import DeviceParameters, device_parameters, shard
from simulator.cost.memory.peak import MemoryByStage
from simulator.cost.memory.state import state_by_class
from simulator.cost.stages import over_layers
from simulator.cost.timing.captured import passes_are_captured
from simulator.cost.timing.data_parallel import data_parallel_seconds, on_own_devices, shard_seconds_per_byte
from simulator.cost.timing.parts import Parts
from simulator.cost.timing.pipeline import (
    PipelineSeconds,
    StageWork,
    pace_parts,
    pipeline_seconds,
    stage_work,
    with_waits,
)
from simulator.cost.timing.rates import memory_rate, wide_gemm_rate
from simulator.question.frameworks.profile import DTYPE_BYTES
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.layout import BY_NAME
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.optimizers import OPTIMIZERS


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
    data = data_parallel_seconds(pricing, forward, np.maximum(work.backward, moves.each_pass))
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
    each = 0.0 if passes_are_captured(scenario) else values.micro_batch_overhead_seconds
    overhead = values.step_overhead_seconds + pipeline.micro_batches * each
    return overhead + waiting_seconds(scenario, pipeline)


def reference_seconds(pricing: Pricing, pipeline: PipelineSeconds, forward: KindArray) -> Array | float:
    """Forward passes without gradients of all micro batches, where a reference scores them before they are trained on.

    A pipeline of forward passes alone fills once (PaddleNLP 136516b, paddlenlp/trl/dpo_trainer.py, `eval_batch`).
    """
    if not pricing.scenario.framework.reference_forward:
        return 0.0
    return (pipeline.micro_batches + pricing.block.pipeline_parallel - 1.0) * _largest(forward)


def waiting_seconds(scenario: Scenario, pipeline: PipelineSeconds) -> Array:
    """Waiting for the slowest of ever more ranks: a share of the passes for every doubling of the nodes (T23).

    Of Megatron's trillion-parameter runs a step at constant work a device takes a few percent more with each factor of
    ten of the nodes; clusters differ (`node_doubling_wait`).
    """
    work = pipeline.micro_batches * pipeline.pace_seconds + pipeline.fill
    return scenario.coefficients.time.node_doubling_wait * math.log2(max(scenario.nodes, 1)) * work


def _largest(by_kind: KindArray) -> Array:
    """The slowest rank's figure: an optimizer step ends when the last rank has ended."""
    slowest: Array = by_kind.max(axis=0)
    return slowest


def optimizer_seconds(pricing: Pricing) -> KindArray:
    """Reading and writing the sharded state once, reading gradients and writing weights, at memory bandwidth (T21).

    `optimizer_slowdown` says how far an update is from one pass: several kernels each read and write it again. Passes
    over all gradients of a device, sharded or not, come beside it (`gradient_passes`).
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
    """Making updates of matrices orthogonal, spread over the ranks that share them, at the rate of 16-bit products.

    Matrices that are stored in equal parts are exchanged whole in 16 bits before, and back behind (T21).
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
    """Moved under each of the two passes of a micro batch, shape (kinds, n): a pass takes no less."""
    each_step: Array
    """Moved on the slowest rank while nothing is computed, shape (n,)."""


def host_moves(pricing: Pricing, memory: MemoryByStage) -> HostMoves:
    """What offload moves between device and host, one after the other (T22).

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
