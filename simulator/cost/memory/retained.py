"""What stays on a device between two steps beside parameters, gradients and optimizer state.

Read from MindSpeed-LLM v1.0 to v26 (mindspeed_llm/training, core/pipeline_parallel) and found again in the allocated
bytes that its continuous integration measures after the first step (tests/st/baseline_results).
"""

from __future__ import annotations

import numpy as np

from simulator.cost.elements import HALF, element_bytes
from simulator.cost.memory.activations import layer_input_bytes
from simulator.cost.operations.extents import tokens_per_device
from simulator.cost.stages import StageContents
from simulator.question.scenario.block import Array, KindArray, LayoutBlock
from simulator.question.scenario.scenario import Scenario

_COMPRESSED_MASK = 2048.0
"""Side of the one mask that torch_npu's fused attention takes for any causal sequence."""


def retained_bytes(scenario: Scenario, block: LayoutBlock, has: StageContents) -> KindArray:
    """Masks, tables of the positions' bias, boundary tensors and dispatched tokens, shape (kinds, n)."""
    return (
        _masks(scenario, has)
        + _bias_tables(scenario, block, has)
        + _boundaries(scenario, block, has)
        + _dispatched(scenario, block, has)
    )


def _masks(scenario: Scenario, has: StageContents) -> KindArray:
    """One byte for every score a mask speaks of."""
    sequence, layers = float(scenario.seq_length), has.num_layers[:, None]
    match scenario.framework.attention_mask:
        case "compressed":
            return np.full_like(layers, _COMPRESSED_MASK**2)
        case "sequence":
            return np.full_like(layers, sequence**2)
        case "layers":
            return layers * sequence**2
        case _:
            return np.zeros_like(layers)


def _bias_tables(scenario: Scenario, block: LayoutBlock, has: StageContents) -> KindArray:
    """`2 a s^2 / t` bytes for every sequence of a micro batch and every layer."""
    if not scenario.framework.position_bias_tables:
        return np.zeros((len(has.ranks), len(block)))
    scores = scenario.model.num_attention_heads * float(scenario.seq_length) ** 2 / block.tensor_parallel
    return has.num_layers[:, None] * HALF * scores * block.micro_batch_size


def _boundaries(scenario: Scenario, block: LayoutBlock, has: StageContents) -> KindArray:
    """Later ranks keep a tensor received and one to send, `2 H`; interleaved ones two of every chunk, `2 v H`."""
    if not scenario.framework.kept_boundaries or block.pipeline_parallel == 1:
        return np.zeros((len(has.ranks), len(block)))
    passes = 2.0 if scenario.framework.frozen_reference else 1.0
    later = 1.0 - has.embeddings[:, None]
    interleaved = float(block.virtual_stages) if block.virtual_stages > 1 else 0.0
    return 2.0 * passes * (later + interleaved) * layer_input_bytes(scenario, block)


def _dispatched(scenario: Scenario, block: LayoutBlock, has: StageContents) -> KindArray:
    """What a token dispatcher holds of the last micro batch, once on a rank with experts."""
    states = scenario.framework.kept_dispatches
    if not states or not scenario.model.is_moe:
        return np.zeros((len(has.ranks), len(block)))
    hidden: Array = element_bytes(scenario) * scenario.model.hidden_size * tokens_per_device(scenario, block)
    routed = sum(has.layers[:, index] for index, kind in enumerate(has.layer_kinds) if kind.feed_forward == "experts")
    return np.asarray(np.asarray(routed)[:, None] > 0.0) * states * hidden
