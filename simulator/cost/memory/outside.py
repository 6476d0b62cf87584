"""What the device holds beside the tensors: context, communication buffers, unusable allocator space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.cost.elements import element_bytes
from simulator.cost.operations.extents import inner_context, tokens_per_device
from simulator.question.scenario.block import Array, LayoutBlock, StageArray
from simulator.question.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class OutsideAllocator:
    """Bytes by named part. Shapes (n,) but `fragmentation`, which is (pipeline_parallel, n)."""

    context: Array
    """Device context, loaded kernels, buffers of the collective library."""
    user_buffers: Array
    """Pre-allocated buffers of overlapped tensor-parallel collectives."""
    ring_buffers: Array
    """Buffers of the context-parallel exchange."""
    fragmentation: StageArray
    """Space the caching allocator holds but cannot use."""

    @property
    def total(self) -> StageArray:
        """Everything outside the tensors."""
        return self.context + self.user_buffers + self.ring_buffers + self.fragmentation


def outside_allocator(scenario: Scenario, block: LayoutBlock, allocated: StageArray) -> OutsideAllocator:
    """Price the parts outside the tensors, given the tensors' peak."""
    values = scenario.coefficients.memory
    profile, model = scenario.framework, scenario.model
    per_width = element_bytes(scenario) * tokens_per_device(scenario, block)
    overlapped = (block.tensor_parallel > 1.0) & profile.tp_comm_overlap
    registered = values.user_buffers_bytes + values.user_buffers_per_gathered_tensor * per_width * model.hidden_size
    grown = values.ring_buffers_per_activation * per_width * model.hidden_size / block.tensor_parallel
    ring = np.minimum(grown, values.ring_buffers_bytes)
    # What is gathered or exchanged by heads lies in tensors, which the layer's passes hold.
    passes_on = profile.cp_communication in ("ring", "all_to_all_ring")
    ring_ranks = block.context_parallel / inner_context(scenario, block) if passes_on else np.ones(len(block))
    if profile.expandable_segments:
        fragmentation = values.fragmentation_expandable * allocated
    else:
        split = np.where(block.tensor_parallel > 1.0, values.unexpandable_tensor_parallel_bytes, 0.0)
        fragmentation = values.fragmentation * allocated + np.minimum(values.unexpandable_bytes + split, allocated)
    return OutsideAllocator(
        context=np.full(len(block), values.context_bytes),
        user_buffers=np.where(overlapped, registered, 0.0),
        ring_buffers=np.where(ring_ranks > 1.0, ring, 0.0),
        fragmentation=fragmentation,
    )
