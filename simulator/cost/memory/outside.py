"""Device memory beside tensors, in bytes: driver's context, communication buffers, the allocator's unused blocks."""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing, of_sizes, of_work
from simulator.cost.dtypes import FP32, HALF, element_bytes
from simulator.cost.memory.activations import layer_input_bytes
from simulator.cost.memory.loss import logits_per_micro_batch
from simulator.cost.operations.sums import inner_context, tokens_per_device
from simulator.cost.stages import usable_bytes
from simulator.question.scenario.block import Array, Mask, StageArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import MIB
from simulator.records import Bare, replace


class OutsideAllocator(Bare):
    """Bytes by part, shape (n,); `fragmentation` and what follows have shape (pipeline_parallel, n)."""

    context: Array
    """Device context and loaded kernels."""
    communicators: Array
    """Buffers of the collective library, for all groups."""
    user_buffers: Array
    """Preallocated buffers of overlapped tensor-parallel collectives."""
    ring_buffers: Array
    """Buffers of the context-parallel exchange."""
    fragmentation: StageArray
    """Space the caching allocator holds but cannot use."""
    cached: StageArray | float = 0.0
    """Whole blocks that the caching allocator keeps of freed tensors; it gives them back before it fails."""
    streams: StageArray | float = 0.0
    """Blocks that the caching allocator reserves for streams that leave them unused at the peak."""

    @property
    def total(self) -> StageArray:
        """Return the sum of all parts, shape (pipeline_parallel, n)."""
        held = self.context + self.communicators + self.user_buffers + self.ring_buffers + self.fragmentation
        return held + self.idle

    @property
    def idle(self) -> StageArray | float:
        """Return what the allocator gives back before it fails, shape (pipeline_parallel, n)."""
        return self.cached + self.streams


def outside_allocator(pricing: Pricing, allocated: StageArray, apart: StageArray | float = 0.0) -> OutsideAllocator:
    """Return the memory outside a peak of `allocated` tensor bytes, with blocks cached `apart` (M18, M19, M20)."""
    scenario, block = pricing.scenario, pricing.block
    values = scenario.coefficients.memory
    profile, model = scenario.framework, scenario.model
    if scenario.hardware.communicator_buffer_bytes is not None:
        return _documented(pricing, allocated, scenario.hardware.communicator_buffer_bytes)
    per_width = element_bytes(scenario) * tokens_per_device(pricing)
    registers = profile.tp_comm_overlap and not profile.functional_collectives  # PyTorch's async ones register none
    overlapped = (block.tensor_parallel > 1.0) & registers
    registered = values.user_buffers_bytes + values.user_buffers_per_gathered_tensor * per_width * model.hidden_size
    grown = values.ring_buffers_per_activation * per_width * model.hidden_size / block.tensor_parallel
    ring = np.minimum(grown, values.ring_buffers_bytes)
    fragmentation, cached = _unused(pricing, allocated, apart)
    outside = OutsideAllocator(
        context=np.full(len(pricing), _context_bytes(scenario)),
        communicators=values.communicator_bytes * communicator_groups(pricing),
        user_buffers=np.where(overlapped, registered, 0.0),
        ring_buffers=np.where(_in_ring(pricing), ring, 0.0),
        fragmentation=fragmentation,
    )
    return replace(outside, cached=np.minimum(cached, room(pricing, allocated + outside.total)))


def room(pricing: Pricing, held: StageArray) -> StageArray:
    """Return the bytes beside `held` that idle blocks may take before PyTorch gives them back, as `held` in shape."""
    scenario = pricing.scenario
    usable = scenario.coefficients.memory.starved_from * usable_bytes(scenario, pricing.contents)
    return np.maximum(usable - held, 0.0)


_CACHED_SHARE, _CACHED_BESIDE = 1.0 / 16.0, 1.0 / 4.0
"""Most that freed blocks take of what is allocated where segments cannot grow: of one stream, of several;
powers of two nearest to ten runs on one T4, and to rows with their source left out."""
_OPEN_SEGMENTS = 3.0 * 20.0 * MIB
"""Segments of tensors from 1 to 10 MiB, 20 MiB each (PyTorch 2.13, c10/cuda/CUDACachingAllocator.h, `kLargeBuffer`):
one that is part full in each of forward pass, backward pass and optimizer step."""


def _unused(pricing: Pricing, allocated: StageArray, apart: StageArray | float) -> tuple[StageArray, StageArray]:
    """Return unusable space and cached blocks beside `allocated` bytes, shape (pipeline_parallel, n) (M20)."""
    scenario, block = pricing.scenario, pricing.block
    values, profile = scenario.coefficients.memory, scenario.framework
    on_last = pricing.contents.held[:, None] == block.pipeline_parallel - 1
    cached = np.where(on_last, stranded_logits(pricing), 0.0) + np.zeros_like(allocated)
    if profile.growing_pool:
        return values.fragmentation_growing * allocated, cached
    chunks = np.where((block.pipeline_parallel > 1) & (not profile.kept_boundaries), block.chunks - 1.0, 0.0)
    late = chunks * values.pipeline_buffers * layer_input_bytes(pricing)
    if profile.expandable_segments:
        return values.fragmentation_expandable * allocated + late, cached
    gathers = np.where(block.tensor_parallel > 1.0, values.unexpandable_tensor_parallel_bytes, 0.0)
    always = values.fragmentation_early if profile.eager_modules else values.fragmentation
    share = always + _split_share(pricing)
    most = (_CACHED_SHARE if scenario.devices == 1 else _CACHED_BESIDE) * allocated + _OPEN_SEGMENTS
    beside = np.maximum(np.minimum(values.unexpandable_bytes + gathers, most), apart)
    cached = cached + beside + widened_tables(pricing)
    return share * allocated + late, cached


def _split_share(pricing: Pricing) -> Array:
    """Return the bytes of segments that DeepSpeed's ZeRO 3 leaves split, for each allocated one, shape (n,) (M20)."""
    profile = pricing.scenario.framework
    share = profile.split_blocks if profile.live_parameters else 0.0
    return np.where(pricing.block.zero_stage >= 3, share, 0.0)


EAGER_CONTEXT_BYTES = 1573.0 * MIB
"""Memory of an idle PyTorch 1 process on an A100 (BigScience, chronicles-prequel.md)."""


def _context_bytes(scenario: Scenario) -> float:
    """Return the bytes of context and kernels; at least those of all libraries if modules are loaded eagerly (M17)."""
    context, alone = scenario.coefficients.memory.context_bytes, scenario.hardware.context_memory
    if scenario.framework.eager_modules:
        context = np.maximum(context, EAGER_CONTEXT_BYTES)
    elif alone is not None:
        context = alone.amount if scenario.devices == 1 else np.minimum(context, 2.0 * alone.amount)
    return context


@of_work
def widened_tables(pricing: Pricing) -> Array:
    """Return the bytes of 16-bit tables that were cast to fp32 when the model was prepared, shape (n,) (M20).

    A table's block stays with the allocator; whole logits that fit into it take its place
    (`prepare_model_for_kbit_training` of peft 0.19, utils/other.py, casts one parameter after the other).
    """
    scenario = pricing.scenario
    if not scenario.widened_rest:
        return np.zeros(len(pricing))
    table = HALF * scenario.model.vocab_size * scenario.model.hidden_size / pricing.block.tensor_parallel
    tables = 1.0 if scenario.model.tie_word_embeddings else 2.0
    return np.where(FP32 * logits_per_micro_batch(pricing) > table, tables * table, 0.0)


def stranded_logits(pricing: Pricing) -> Array:
    """Return the bytes of blocks left unusable by logits while an unfused loss is differentiated, shape (n,) (M20).

    PyTorch's loss casts the logits to fp32, frees the cast, puts the gradient of the picked tokens in its place, and
    then needs a third fp32 tensor: larger than the block that the 16-bit logits left. `unfused_loss_bytes_per_logit` is
    what runs of Megatron-LM and MindSpeed-LLM show in addition. One device shows neither.
    """
    scenario, profile = pricing.scenario, pricing.scenario.framework
    at_once = not profile.fused_cross_entropy and not profile.cross_entropy_chunk_tokens
    several = scenario.devices > 1 and scenario.precision != "fp32"
    if not at_once or not several or not scenario.hardware.caching_allocator:
        return np.zeros(len(pricing))
    cast = element_bytes(scenario) if profile.fully_shard else 0.0
    held = cast + scenario.coefficients.memory.unfused_loss_bytes_per_logit
    return held * logits_per_micro_batch(pricing)


def _in_ring(pricing: Pricing) -> Mask:
    """Return where ranks pass keys and values on in a ring, shape (n,); other exchanges are tensors of the layer."""
    rings = pricing.scenario.framework.cp_communication in ("ring", "all_to_all_ring")
    return np.asarray((pricing.block.context_parallel > inner_context(pricing)) & rings)


def _documented(pricing: Pricing, allocated: StageArray, buffer: float) -> OutsideAllocator:
    """Return the parts where a collective library documents its buffer per group (M22).

    Fragmentation is the share that grows with tensors alone: other terms were measured on NVIDIA devices only.
    """
    scenario, block = pricing.scenario, pricing.block
    values, profile, model = scenario.coefficients.memory, scenario.framework, scenario.model
    if profile.communicator_buffer_mib:
        buffer = profile.communicator_buffer_mib * float(MIB)
    tokens = tokens_per_device(pricing) / block.tensor_parallel
    ring = tokens * (4.0 * element_bytes(scenario) * model.kv_width + FP32 * model.query_width)
    split = values.fragmentation + _split_share(pricing)
    share = values.fragmentation_expandable if profile.expandable_segments else split
    return OutsideAllocator(
        context=np.full(len(pricing), values.context_bytes),
        communicators=buffer * communicator_groups(pricing),
        user_buffers=np.zeros(len(pricing)),
        ring_buffers=np.where(_in_ring(pricing), ring, 0.0),
        fragmentation=share * allocated,
    )


@of_sizes
def communicator_groups(pricing: Pricing) -> Array:
    """Return the number of collective groups that a rank belongs to, as Megatron makes them, shape (n,) (M22).

    The world; tensor, context, data and pipeline parallel; the model-parallel group that adds up norms; the two ends of
    a pipeline that share the input table; experts and their replicas.
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
