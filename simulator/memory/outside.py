"""What the device holds beside the tensors: context, communicators, user buffers, unusable allocator space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.memory.activations import ELEMENT, layer_input_bytes, tokens_per_device
from simulator.scenario.block import Array, LayoutBlock, StageArray
from simulator.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class OutsideAllocator:
    """Bytes by named part. Shapes (n,) but `fragmentation`, which is (pipeline_parallel, n)."""

    context: Array
    """Device context, loaded kernels, library workspaces."""
    communicators: Array
    """Buffers of the collective library, per process group with more than one member."""
    user_buffers: Array
    """Pre-allocated buffers of overlapped tensor-parallel collectives."""
    pipeline_buffers: Array
    """Send and receive buffers of the pipeline, per model chunk."""
    fragmentation: StageArray
    """Space the caching allocator holds but cannot use."""

    @property
    def total(self) -> StageArray:
        """Everything outside the tensors."""
        return self.context + self.communicators + self.user_buffers + self.pipeline_buffers + self.fragmentation


def outside_allocator(scenario: Scenario, block: LayoutBlock, allocated: StageArray) -> OutsideAllocator:
    """Price the parts outside the tensors, given the tensors' peak."""
    values = scenario.coefficients.memory
    profile = scenario.framework
    t = block.tensor_parallel
    groups: Array = np.asarray(
        (t > 1.0) * 1.0
        + (block.context_parallel > 1.0)
        + (block.data_parallel * block.context_parallel > 1.0)
        + float(block.pipeline_parallel > 1)
        + (block.expert_parallel > 1.0)
    )
    whole = ELEMENT * tokens_per_device(scenario, block) * scenario.model.hidden_size
    chunks = float(block.virtual_stages) if block.pipeline_parallel > 1 else 0.0
    overlapped = (t > 1.0) & profile.tp_comm_overlap
    fraction = values.fragmentation_expandable if profile.expandable_segments else values.fragmentation
    return OutsideAllocator(
        context=np.full(len(block), values.context_bytes),
        communicators=groups * values.communicator_bytes,
        user_buffers=np.where(overlapped, values.user_buffers_per_gathered_tensor * whole, 0.0),
        pipeline_buffers=chunks * values.pipeline_buffers_per_chunk * layer_input_bytes(scenario, block),
        fragmentation=fraction * allocated,
    )
