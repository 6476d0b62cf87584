"""Bytes on the device beside tensors: context, communication buffers, unusable allocator space. Counts no tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.cost.derived import Pricing, of_sizes
from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.memory.loss import logits_per_micro_batch
from simulator.cost.operations.extents import inner_context, tokens_per_device
from simulator.question.scenario.block import Array, Mask, StageArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import MIB


@dataclass(frozen=True, slots=True)
class OutsideAllocator:
    """Bytes by named part. Shapes (n,) but `fragmentation`, which is (pipeline_parallel, n)."""

    context: Array
    """Device context and loaded kernels."""
    communicators: Array
    """Buffers of the collective library's groups."""
    user_buffers: Array
    """Pre-allocated buffers of overlapped tensor-parallel collectives."""
    ring_buffers: Array
    """Buffers of the context-parallel exchange."""
    fragmentation: StageArray
    """Space the caching allocator holds but cannot use."""
    streams: StageArray | float = 0.0
    """Blocks that the caching allocator keeps for streams that do not use them at the peak."""

    @property
    def total(self) -> StageArray:
        """Everything outside the tensors."""
        held = self.context + self.communicators + self.user_buffers + self.ring_buffers + self.fragmentation
        return held + self.streams


def outside_allocator(pricing: Pricing, allocated: StageArray) -> OutsideAllocator:
    """Price the parts outside the tensors, given the tensors' peak (M18, M19, M20)."""
    scenario, block = pricing.scenario, pricing.block
    values = scenario.coefficients.memory
    profile, model = scenario.framework, scenario.model
    if scenario.hardware.communicator_buffer_bytes is not None:
        return _documented(pricing, allocated, scenario.hardware.communicator_buffer_bytes)
    per_width = element_bytes(scenario) * tokens_per_device(pricing)
    # PyTorch's async tensor parallelism registers none.
    registers = profile.tp_comm_overlap and not profile.functional_collectives
    overlapped = (block.tensor_parallel > 1.0) & registers
    registered = values.user_buffers_bytes + values.user_buffers_per_gathered_tensor * per_width * model.hidden_size
    grown = values.ring_buffers_per_activation * per_width * model.hidden_size / block.tensor_parallel
    ring = np.minimum(grown, values.ring_buffers_bytes)
    if profile.growing_pool:
        fragmentation = values.fragmentation_growing * allocated
    elif profile.expandable_segments:
        fragmentation = values.fragmentation_expandable * allocated
    else:
        split = np.where(block.tensor_parallel > 1.0, values.unexpandable_tensor_parallel_bytes, 0.0)
        share = values.fragmentation_early if profile.eager_modules else values.fragmentation
        fragmentation = share * allocated + np.minimum(values.unexpandable_bytes + split, allocated)
    on_last = np.arange(block.pipeline_parallel)[:, None] == block.pipeline_parallel - 1
    fragmentation = fragmentation + np.where(on_last, stranded_logits(pricing), 0.0)
    return OutsideAllocator(
        context=np.full(len(pricing), _context_bytes(scenario)),
        communicators=values.communicator_bytes * communicator_groups(pricing),
        user_buffers=np.where(overlapped, registered, 0.0),
        ring_buffers=np.where(_passed_on(pricing), ring, 0.0),
        fragmentation=fragmentation,
    )


EAGER_CONTEXT_BYTES = 1573.0 * MIB
"""What a process of PyTorch 1 shows on an A100 before it computes anything (BigScience, chronicles-prequel.md)."""


def _context_bytes(scenario: Scenario) -> float:
    """Context and loaded kernels; all of the libraries' at least, where they are not loaded as they are used (M17)."""
    context = scenario.coefficients.memory.context_bytes
    return np.maximum(context, EAGER_CONTEXT_BYTES) if scenario.framework.eager_modules else context


def stranded_logits(pricing: Pricing) -> Array:
    """Blocks of logits that nothing fits into while a loss of several kernels is differentiated, shape (n,) (M20).

    PyTorch's casts the logits to fp32, frees the cast, takes the gradient of the picked tokens in its place, and then
    needs a third fp32 tensor: larger than the block that the 16-bit logits left. What else was seen is
    `unfused_loss_bytes_per_logit`, none of it in the bytes that tensors take (Megatron-LM's and MindSpeed-LLM's runs).
    """
    scenario, profile = pricing.scenario, pricing.scenario.framework
    at_once = not profile.fused_cross_entropy and not profile.cross_entropy_chunk_tokens
    if not at_once or scenario.precision == "fp32" or not scenario.hardware.caching_allocator:
        return np.zeros(len(pricing))
    cast = element_bytes(scenario) if profile.fully_shard else 0.0
    held = cast + scenario.coefficients.memory.unfused_loss_bytes_per_logit
    return held * logits_per_micro_batch(pricing)


def _passed_on(pricing: Pricing) -> Mask:
    """Whether ranks pass keys and values on in a ring, shape (n,).

    What is gathered or exchanged by heads lies in tensors, which the layer's passes hold.
    """
    rings = pricing.scenario.framework.cp_communication in ("ring", "all_to_all_ring")
    return np.asarray((pricing.block.context_parallel > inner_context(pricing)) & rings)


def _documented(pricing: Pricing, allocated: StageArray, buffer: float) -> OutsideAllocator:
    """The parts on a device whose collective library has a documented buffer for every group (M22).

    What NVIDIA's libraries register for overlapped collectives is not there, and of a caching allocator's holes the
    share that grows with the tensors alone is taken: the rest was seen on NVIDIA devices only. A ring of contexts holds
    two blocks of keys and values, `2 x 2 x 2 k T / t`, and a partial result in fp32.
    """
    scenario, block = pricing.scenario, pricing.block
    values, profile, model = scenario.coefficients.memory, scenario.framework, scenario.model
    if profile.communicator_buffer_mib:
        buffer = profile.communicator_buffer_mib * float(MIB)
    tokens = tokens_per_device(pricing) / block.tensor_parallel
    ring = tokens * (4.0 * element_bytes(scenario) * model.kv_width + FP32 * model.query_width)
    share = values.fragmentation_expandable if profile.expandable_segments else values.fragmentation
    return OutsideAllocator(
        context=np.full(len(pricing), values.context_bytes),
        communicators=buffer * communicator_groups(pricing),
        user_buffers=np.zeros(len(pricing)),
        ring_buffers=np.where(_passed_on(pricing), ring, 0.0),
        fragmentation=share * allocated,
    )


@of_sizes
def communicator_groups(pricing: Pricing) -> Array:
    """Groups of the collective library that a rank is in, a count, as Megatron makes them (M22).

    All ranks; tensor, context, data and pipeline parallel; the model-parallel group that adds up norms; the ends of a
    pipeline that share the table; experts, and the replicas of theirs.
    """
    scenario, block = pricing.scenario, pricing.block
    model_parallel = block.tensor_parallel * block.pipeline_parallel
    several = [block.tensor_parallel, block.context_parallel, block.replicas, model_parallel]
    if scenario.model.is_moe:
        several += [block.expert_ranks, block.expert_replicas]
    pipelined = np.where(block.pipeline_parallel > 1, 2.0, 0.0)
    count: Array = np.full(len(pricing), 1.0 if scenario.devices > 1 else 0.0) + pipelined
    for ranks in several:
        count = count + (np.asarray(ranks) > 1.0)
    return count
