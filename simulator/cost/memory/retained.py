"""Tensors retained on a device between steps beside parameters, gradients and optimizer state.

Read from MindSpeed-LLM v1.0 to v26 (mindspeed_llm/training, core/pipeline_parallel) and confirmed by the allocated
bytes that its continuous integration measures after the first step (tests/st/baseline_results).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.cost.derived import Pricing, of_sizes
from simulator.cost.dtypes import HALF, element_bytes
from simulator.cost.memory.activations import layer_input_bytes
from simulator.cost.operations.conditions import conditions_of
from simulator.cost.operations.extents import tokens_per_device
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Operation, Weight
from simulator.question.scenario.block import Array, KindArray

_COMPRESSED_MASK = 2048.0
"""Side of the mask that torch_npu's fused attention uses for any causal sequence."""


def retained_bytes(pricing: Pricing) -> KindArray:
    """Return the bytes of masks, bias tables, boundaries, dispatched tokens and dummy gradients, shape (kinds, n)."""
    others = _masks(pricing) + _bias_tables(pricing) + _boundaries(pricing) + _dispatched(pricing)
    return others + _dummy_gradients(pricing)


def _masks(pricing: Pricing) -> KindArray:
    """Return the bytes of attention masks: one per score."""
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
    """Return the bytes of position bias: `2 a s^2 / t` per sequence of a micro batch and per shared table (M26).

    One object holds them for all layers (`Alibi`, mindspeed_llm/tasks/models/common/alibi.py, v1.0.RC3 to v26.1.0).
    """
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    tables = scenario.framework.position_bias_tables
    if not tables:
        return np.zeros_like(contents.ranks)
    scores = scenario.model.num_attention_heads * float(scenario.seq_length) ** 2 / block.tensor_parallel
    return (contents.num_layers > 0.0) * HALF * scores * (block.micro_batch_size + tables - 1.0)


def _boundaries(pricing: Pricing) -> KindArray:
    """Return the bytes of retained boundary tensors: `2 H` on later ranks; interleaved, `2 v H` more on all."""
    profile, block, contents = pricing.scenario.framework, pricing.block, pricing.contents
    if not profile.kept_boundaries:
        return np.zeros_like(contents.ranks)
    passes = np.where(block.pipeline_parallel > 1, 2.0 if profile.frozen_reference else 1.0, 0.0)
    interleaved = np.where(block.virtual_stages > 1, block.virtual_stages, 0.0)
    return 2.0 * passes * (1.0 - contents.embeddings + interleaved) * layer_input_bytes(pricing)


def _dispatched(pricing: Pricing) -> KindArray:
    """Return the bytes that a token dispatcher holds of the last micro batch, once on a rank with experts."""
    scenario, contents = pricing.scenario, pricing.contents
    states = scenario.framework.kept_dispatches
    if not states or not scenario.model.is_moe:
        return np.zeros_like(contents.ranks)
    hidden: Array = element_bytes(scenario) * scenario.model.hidden_size * tokens_per_device(pricing)
    of_experts = [kind.routed for kind in contents.layer_kinds]
    with_experts: KindArray = (contents.layers[of_experts].sum(axis=0) > 0.0) * states * hidden
    return with_experts


@of_sizes
def _dummy_gradients(pricing: Pricing) -> KindArray:
    """Return the bytes of an unused gradient for each distinct weight shape, `2 outputs x inputs` on the device.

    TransformerEngine's backward pass hands autograd an empty tensor where it has added the gradient to the accumulated
    one, and keeps it by shape and type (`get_dummy_wgrad`, transformer_engine/pytorch/module/base.py, v2.3 to v2.14;
    grouped_linear.py since v2.10). All experts of a rank share two. Frozen weights have none.
    """
    scenario, contents = pricing.scenario, pricing.contents
    profile, sizes = scenario.framework, np.zeros((len(contents.ranks), len(pricing)))
    if profile.dummy_weight_gradients == "none" or not profile.fused_gradient_accumulation or scenario.lora_rank:
        return sizes
    conditions, layers = conditions_of(scenario), contents.with_prediction
    modules: dict[Weight, KindArray] = {}
    for position, kind in enumerate(contents.layer_kinds):
        for weight in _module_weights(layer_operations(conditions, kind), fused=profile.fused_projections):
            if not weight.routed or profile.dummy_weight_gradients == "all":
                modules[weight] = modules.get(weight, np.zeros_like(layers[position])) + layers[position]
    counted: list[tuple[NDArray[np.bool_], Array, Array]] = []
    for weight, users in modules.items():
        outputs, inputs = _local_shape(pricing, weight)
        equal_shapes = [others & (outputs == rows) & (inputs == columns) for others, rows, columns in counted]
        fresh = (users > 0.0) & ~np.any([np.zeros(sizes.shape, dtype=bool), *equal_shapes], axis=0)
        sizes = sizes + fresh * (element_bytes(scenario) * outputs * inputs)
        counted.append((users > 0.0, outputs, inputs))
    return sizes


def _local_shape(pricing: Pricing, weight: Weight) -> tuple[Array, Array]:
    """Return the outputs and inputs of one weight on a device, each of shape (n,)."""
    block, whole = pricing.block, np.ones(len(pricing))
    parts = block.expert_tensor_parallel if weight.routed else block.tensor_parallel
    of_outputs = parts if weight.split in ("column", "expert_column") else whole
    of_inputs = parts if weight.split in ("row", "expert_row") else whole
    return weight.outputs / of_outputs, weight.inputs / of_inputs


def _module_weights(operations: Iterable[Operation], *, fused: bool) -> Iterator[Weight]:
    """Yield one unnamed weight per linear module of a layer; products of one input are one module if `fused`."""
    for operation in operations:
        outputs: Counter[Weight] = Counter()
        for weight in operation.weights:
            if weight.matmul and operation.group != "router":
                outputs[Weight("" if fused else weight.name, weight.inputs, 0, weight.split)] += weight.outputs
        yield from (module._replace(name="", outputs=width) for module, width in outputs.items())
