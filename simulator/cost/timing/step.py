"""Seconds of a step by part: passes, pipeline, exchanges of gradients, optimizer, and waits for the slowest.

Where lengths differ, replicas wait for each other, and a pipeline for its longest micro batch. `timing.layers` prices a
layer and has the records, `timing.pipeline` the passes over ranks, `timing.data_parallel` what gradients exchange;
`question.scenario.lengths` has the lengths.
"""

from __future__ import annotations

import math
from functools import lru_cache
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
from simulator.cost.timing.layers import Parts, passes_are_captured
from simulator.cost.timing.pipeline import (
    PipelineSeconds,
    StageWork,
    pace_parts,
    pipeline_seconds,
    stage_work,
    with_waits,
)
from simulator.cost.timing.products import memory_rate, wide_gemm_rate
from simulator.question.frameworks.profile import DTYPE_BYTES
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.layout import BY_NAME
from simulator.question.scenario.lengths import Lengths
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.optimizers import OPTIMIZERS

_POINTS = 2**12
"""Points on which the work of a rank in a step is spread."""
_SUMMED = 128
"""Micro batches from which the work of a rank counts as normally distributed."""
_SHARES = 32
"""Steps in which the share of attention in a micro batch is told apart."""


def length_waits(pricing: Pricing, parts: Parts, pipeline: PipelineSeconds) -> Array:
    """Return the seconds per step that ranks wait for the slowest, shape (n,) (T28).

    A micro batch takes time by its tokens, and attention by its scores. Replicas wait for each other once a step; those
    that gather parameters or exchange tokens in every layer wait in each micro batch. A pipeline fills with the longest
    of its micro batches. `parts` are the seconds of the pacing rank.
    """
    lengths, block = pricing.scenario.lengths, pricing.block
    if lengths is None:
        return np.zeros(len(pricing))
    passes = pipeline.micro_batches * pipeline.pace_seconds
    attention = (parts["attention"] + parts["ring_attention"]) / np.maximum(passes, 1e-30)
    exchanging = block.expert_ranks / (block.tensor_parallel * block.context_parallel)
    together = np.clip(np.where(block.zero_stage > 2, block.data_parallel, exchanging), 1.0, block.data_parallel)
    waits = np.zeros(len(pricing))
    for at in range(len(pricing)):
        share = min(float(attention[at]), 1.0)
        size, count = int(block.micro_batch_size[at]), max(round(float(pipeline.micro_batches[at])), 1)
        joined, replicas = int(together[at]), int(block.data_parallel[at])
        slowest = _between(share, lengths, size, _Waiting(joined, count, max(replicas // joined, 1)))
        fill = _between(share, lengths, size, _Waiting(count, 1, 1)) if block.pipeline_parallel > 1 else 1.0
        waits[at] = (slowest - 1.0) * passes[at] + (fill - 1.0) * pipeline.fill[at]
    return waits


class _Waiting(NamedTuple):
    """Levels at which ranks wait for each other."""

    joined: int
    """Ranks of a group, which wait in every micro batch."""
    micro_batches: int
    """Micro batches of a rank in a step."""
    replicas: int
    """Groups, which wait once a step."""


def _between(attention: float, lengths: Lengths, micro_batch_size: int, ranks: _Waiting) -> float:
    """Return the slowest's work for a share of attention, between the two steps around it."""
    low = math.floor(attention * _SHARES)
    above = attention * _SHARES - low
    ends = (expected_slowest(lengths, each / _SHARES, micro_batch_size, ranks) for each in (low, min(low + 1, _SHARES)))
    return (1.0 - above) * next(ends) + above * next(ends)


@lru_cache(maxsize=4096)
def expected_slowest(lengths: Lengths, attention: float, micro_batch_size: int, ranks: _Waiting) -> float:
    """Return the expected work of the slowest group of ranks in a step over the mean of a rank, from 1 (T28)."""
    joined, micro_batches, replicas = ranks
    works, shares = work_of_micro_batch(lengths, micro_batch_size, attention)
    within = np.minimum(np.cumsum(shares), 1.0)
    shares = np.diff(within**joined, prepend=0.0)
    mean = float(works @ shares)
    deviation = math.sqrt(max(float((works - mean) ** 2 @ shares), 0.0))
    if deviation < 1e-12 or replicas == 1:
        return max(mean, 1.0)
    if micro_batches > _SUMMED:
        # The mean of as many equal micro batches is normally distributed.
        points = np.linspace(-8.0, 8.0, _POINTS)
        below = np.array([0.5 * math.erfc(-point / math.sqrt(2.0)) for point in points]) ** replicas
        return max(mean + deviation / math.sqrt(micro_batches) * float(points @ np.diff(below, prepend=0.0)), 1.0)
    top = float(works[-1]) * micro_batches
    place = works / top * (_POINTS - 1)
    low = np.floor(place).astype(int)
    spread = np.bincount(low, shares * (1.0 - (place - low)), _POINTS)
    spread = spread + np.bincount(np.minimum(low + 1, _POINTS - 1), shares * (place - low), _POINTS)
    summed = np.fft.irfft(np.fft.rfft(spread, 2 * _POINTS) ** micro_batches, 2 * _POINTS)[:_POINTS]
    below = np.clip(np.cumsum(summed), 0.0, 1.0) ** replicas
    slowest = float(np.linspace(0.0, top, _POINTS) @ np.diff(below, prepend=0.0))
    return max(slowest / micro_batches, mean, 1.0)


def work_of_micro_batch(lengths: Lengths, micro_batch_size: int, attention: float) -> tuple[Array, Array]:
    """Return the work of a micro batch over its mean, ascending, and the share of the micro batches with it.

    Packages are equal in tokens; their scores vary as the sum of squares of the samples that fill one (T28).
    """
    tokens, shares = lengths.segments(micro_batch_size)
    squares = float(tokens**2 @ shares)
    if not lengths.packs:
        mean = float(tokens @ shares)
        return (1.0 - attention) * tokens / mean + attention * tokens**2 / squares, shares
    attended = squares / float(tokens @ shares)
    left_over = float((tokens**2 - attended * tokens) ** 2 @ shares)
    samples = lengths.package / float(tokens @ shares) * micro_batch_size
    deviation = math.sqrt(left_over / samples) / squares
    points = np.linspace(-3.5, 3.5, 71)
    normal = np.exp(-(points**2) / 2.0)
    scores = np.clip(1.0 + deviation * points, 0.0, lengths.package / attended)
    normal = normal / normal.sum()
    scores = scores / float(scores @ normal)
    return 1.0 - attention + attention * scores, normal


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
