"""What stays on a device between two steps beside parameters, gradients and optimizer state.

Read from MindSpeed-LLM v1.0 to v26 (mindspeed_llm/training, core/pipeline_parallel) and found again in the allocated
bytes that its continuous integration measures after the first step (tests/st/baseline_results).
"""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.dtypes import HALF, element_bytes
from simulator.cost.memory.activations import layer_input_bytes
from simulator.cost.operations.extents import tokens_per_device
from simulator.question.scenario.block import Array, KindArray

_COMPRESSED_MASK = 2048.0
"""Side of the one mask that torch_npu's fused attention takes for any causal sequence."""


def retained_bytes(pricing: Pricing) -> KindArray:
    """Masks, tables of the positions' bias, boundary tensors and dispatched tokens, shape (kinds, n)."""
    return _masks(pricing) + _bias_tables(pricing) + _boundaries(pricing) + _dispatched(pricing)


def _masks(pricing: Pricing) -> KindArray:
    """One byte for every score a mask speaks of."""
    scenario, layers = pricing.scenario, pricing.contents.num_layers
    sequence = float(scenario.seq_length)
    match scenario.framework.attention_mask:
        case "compressed":
            return np.full_like(layers, _COMPRESSED_MASK**2)
        case "sequence":
            return np.full_like(layers, sequence**2)
        case "layers":
            return layers * sequence**2
        case _:
            return np.zeros_like(layers)


def _bias_tables(pricing: Pricing) -> KindArray:
    """`2 a s^2 / t` bytes for every sequence of a micro batch and every layer."""
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    if not scenario.framework.position_bias_tables:
        return np.zeros_like(contents.ranks)
    scores = scenario.model.num_attention_heads * float(scenario.seq_length) ** 2 / block.tensor_parallel
    return contents.num_layers * HALF * scores * block.micro_batch_size


def _boundaries(pricing: Pricing) -> KindArray:
    """Later ranks keep a tensor received and one to send, `2 H`; interleaved ones two of every chunk, `2 v H`."""
    profile, block, contents = pricing.scenario.framework, pricing.block, pricing.contents
    if not profile.kept_boundaries:
        return np.zeros_like(contents.ranks)
    passes = np.where(block.pipeline_parallel > 1, 2.0 if profile.frozen_reference else 1.0, 0.0)
    interleaved = np.where(block.virtual_stages > 1, block.virtual_stages, 0.0)
    return 2.0 * passes * (1.0 - contents.embeddings + interleaved) * layer_input_bytes(pricing)


def _dispatched(pricing: Pricing) -> KindArray:
    """What a token dispatcher holds of the last micro batch, once on a rank with experts."""
    scenario, contents = pricing.scenario, pricing.contents
    states = scenario.framework.kept_dispatches
    if not states or not scenario.model.is_moe:
        return np.zeros_like(contents.ranks)
    hidden: Array = element_bytes(scenario) * scenario.model.hidden_size * tokens_per_device(pricing)
    of_experts = [kind.routed for kind in contents.layer_kinds]
    with_experts: KindArray = (contents.layers[of_experts].sum(axis=0) > 0.0) * states * hidden
    return with_experts
