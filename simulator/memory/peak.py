"""The peak: for every pipeline rank, the moment of the step at which most bytes are alive, and what they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.memory.activations import ELEMENT, FP32, routed_tokens, tokens_per_device
from simulator.memory.loss import head_input_bytes, loss_bytes
from simulator.memory.outside import OutsideAllocator, outside_allocator
from simulator.memory.parameters import (
    StageContents,
    TrainingState,
    largest_state_tensor,
    stage_contents,
    training_state,
)
from simulator.memory.schedule import RecomputePlan, StageActivations, recompute_plan, stage_activations
from simulator.scenario.block import Array, LayoutBlock, StageArray
from simulator.scenario.layout import OFFLOADS
from simulator.scenario.scenario import Scenario

MOMENTS = ("backward", "loss", "embedding gradient", "optimizer step")
"""The moments compared, in the order of `MemoryByStage.moment`."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes that come and go, at one moment; shape (pipeline_parallel, n) or broadcastable to it."""

    optimizer: StageArray
    activations: StageArray
    logits: StageArray
    temporary: StageArray

    @property
    def total(self) -> StageArray:
        """Their sum."""
        return self.optimizer + self.activations + self.logits + self.temporary


@dataclass(frozen=True, slots=True)
class MemoryByStage:
    """Peak bytes of every pipeline rank, shape (pipeline_parallel, n)."""

    state: TrainingState
    activations: StageActivations
    plan: RecomputePlan
    moments: tuple[Moment, ...]
    moment: NDArray[np.intp]
    """Index into MOMENTS of the binding moment."""
    allocated: StageArray
    """Tensors alive at the peak."""
    outside: OutsideAllocator
    device: StageArray
    """What the driver's tool shows: tensors and everything outside the allocator."""

    def parts(self) -> dict[str, StageArray]:
        """Named parts at each rank's own peak; they add up to `device`."""
        shape = self.allocated.shape

        def at_peak(name: str) -> StageArray:
            return np.choose(self.moment, [np.broadcast_to(getattr(m, name), shape) for m in self.moments])

        return {
            "parameters": np.broadcast_to(self.state.parameters, shape),
            "gradients": np.broadcast_to(self.state.gradients, shape),
            "optimizer": at_peak("optimizer"),
            "activations": at_peak("activations"),
            "logits": at_peak("logits"),
            "temporary": at_peak("temporary"),
            "outside_allocator": np.broadcast_to(self.outside.total, shape),
        }


def memory_by_stage(scenario: Scenario, block: LayoutBlock) -> MemoryByStage:
    """Price a block of layouts. Bytes; nothing here depends on time."""
    has = stage_contents(scenario, block)
    state = training_state(scenario, block)
    plan = recompute_plan(block, has)
    activations = stage_activations(scenario, block, has, plan)
    moments = _moments(scenario, block, has, state, activations)
    static = state.parameters + state.gradients
    peak = static + moments[0].total
    moment = np.zeros(peak.shape, dtype=np.intp)
    for index, candidate in enumerate(moments[1:], start=1):
        value = static + candidate.total
        higher = value > peak
        moment[higher] = index
        peak = np.where(higher, value, peak)
    outside = outside_allocator(scenario, block, peak)
    return MemoryByStage(state, activations, plan, moments, moment, peak, outside, peak + outside.total)


def _moments(
    scenario: Scenario,
    block: LayoutBlock,
    has: StageContents,
    state: TrainingState,
    activations: StageActivations,
) -> tuple[Moment, ...]:
    """What is alive at each of MOMENTS."""
    whole = block.offload == OFFLOADS.index("optimizer")
    by_tensor = block.offload == OFFLOADS.index("optimizer_tensorwise")
    resident = np.where(whole | by_tensor, 0.0, state.optimizer)
    in_step = np.where(by_tensor, np.minimum(largest_state_tensor(scenario, block), state.optimizer), state.optimizer)
    none = np.zeros((1, len(block)))
    heads, embeddings = has.heads[:, None], has.embeddings[:, None]
    head_input = heads * head_input_bytes(scenario, block)
    backward_temporary = state.gathered + activations.recompute_working_set + layer_gradient_bytes(scenario, block)
    earlier = activations.peak - activations.one_micro_batch
    embedding_gradient = embeddings * embedding_gradient_bytes(scenario, block)
    return (
        Moment(resident, activations.peak, none, backward_temporary),
        Moment(resident, activations.peak + head_input, heads * loss_bytes(scenario, block), state.gathered),
        Moment(resident, earlier, none, state.gathered + embedding_gradient),
        Moment(in_step, none, none, state.step_temporary),
    )


def layer_gradient_bytes(scenario: Scenario, block: LayoutBlock) -> Array:
    """Gradients alive inside one layer's backward pass, shape (n,).

    In the feed-forward block: of the product `2 T f`, of gate and up `4 T f`, the incoming gradient and the gathered
    input `2 T h` each. Larger than those of the attention block for every model shipped.
    """
    model = scenario.model
    tokens, t = tokens_per_device(scenario, block), block.tensor_parallel
    hidden = 2.0 * ELEMENT * tokens * model.hidden_size
    dense = 3.0 * ELEMENT * tokens * model.intermediate_size / t if model.num_dense_layers else 0.0
    if not model.is_moe:
        return dense + hidden
    copies = routed_tokens(scenario, block)
    width = 3.0 * model.moe_intermediate_size / block.expert_tensor_parallel + 2.0 * model.hidden_size
    return np.maximum(dense, ELEMENT * copies * width) + hidden


def embedding_gradient_bytes(scenario: Scenario, block: LayoutBlock) -> Array:
    """The dense gradient of the input table, `2 V h / t`, a temporary before it is added to the main gradients."""
    if scenario.lora_rank is not None:
        return np.zeros(len(block))
    element = FP32 if scenario.framework.parameter_dtype == "fp32" else ELEMENT
    return element * scenario.model.vocab_size * scenario.model.hidden_size / block.tensor_parallel
