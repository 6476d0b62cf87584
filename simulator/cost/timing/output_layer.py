"""Seconds outside the layers for one micro batch: input table, output layer, loss, prediction modules.

The product with a vocabulary of 128,256 tokens takes as long as several layers of an 8B model, on the last rank alone.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.dtypes import element_bytes, gradient_bytes
from simulator.cost.memory.loss import labelled_tokens, logits_per_micro_batch
from simulator.cost.operations.extents import tokens_per_device
from simulator.cost.timing.captured import output_rate
from simulator.cost.timing.collectives import gather_seconds, tensor_group
from simulator.cost.timing.parts import PassSeconds
from simulator.cost.timing.products import ProductShape, product_seconds
from simulator.cost.timing.rates import gemm_rate, memory_rate


@derived
def projection_seconds(pricing: Pricing) -> PassSeconds:
    """Return the seconds of the projection that joins embedding and hidden state in a prediction module."""
    scenario, hidden = pricing.scenario, float(pricing.scenario.model.hidden_size)
    shape = ProductShape(tokens_per_device(pricing), hidden / pricing.block.tensor_parallel, 2.0 * hidden)
    element = element_bytes(scenario)
    products = product_seconds(scenario, gemm_rate(scenario), shape, element, element)
    forward, backward = products.passes
    return PassSeconds({"gemm": forward}, {"gemm": backward}, products.weights)


@derived
def head_seconds(pricing: Pricing) -> PassSeconds:
    """Return the seconds of the output layer and the loss: products and passes over the logits (T15).

    Products run in 16 bits unless `fp8_output_layer`. The loss moves as many bytes as the stack states, a fused kernel
    16 per logit; half of them in either pass.
    """
    scenario, block = pricing.scenario, pricing.block
    labelled, outputs = labelled_tokens(pricing), scenario.outputs_per_token / block.tensor_parallel
    shape = ProductShape(labelled, outputs, float(scenario.model.hidden_size))
    element = element_bytes(scenario)
    products = product_seconds(scenario, output_rate(scenario), shape, element, element)
    per_logit = 16.0 if scenario.framework.fused_cross_entropy else float(scenario.framework.loss_traffic_bytes)
    passes = per_logit / 2.0 * logits_per_micro_batch(pricing) / memory_rate(scenario)
    ends = scenario.coefficients.time.tensor_ends_overhead_seconds / 2.0
    around = passes + np.where(block.tensor_parallel > 1.0, ends, 0.0)
    forward, backward = products.passes
    parts = {"vocabulary": forward + around}, {"vocabulary": backward + around}
    if not scenario.framework.vocabulary_parallel_loss:
        # Every rank slices its own part of the gradient: nothing is sent back.
        whole = element * labelled * scenario.outputs_per_token
        parts[0]["tensor_parallel"] = gather_seconds(scenario, tensor_group(block), whole)
        parts[1]["tensor_parallel"] = np.zeros(len(pricing))
    return PassSeconds(*parts, products.weights)


@derived
def table_seconds(pricing: Pricing) -> PassSeconds:
    """Return the seconds of the input table: the lookup, and a gradient of the table's size.

    `torch.nn.functional.embedding` clears that gradient and adds into it; Megatron's hook then adds it to the
    accumulated gradients (core_v0.16.1, distributed_data_parallel.py, `param.main_grad.add_`). FSDP2 reduces it
    unchanged.
    """
    scenario, model = pricing.scenario, pricing.scenario.model
    element = element_bytes(scenario)
    looked_up = 2.0 * element * model.hidden_size * tokens_per_device(pricing) / memory_rate(scenario)
    if scenario.lora_rank is not None:
        return PassSeconds({"vocabulary": looked_up}, {"vocabulary": np.zeros(len(pricing))})
    added = 0.0 if scenario.framework.fully_shard else element + 2.0 * gradient_bytes(scenario)
    parameters = model.vocab_size * float(model.hidden_size) / pricing.block.tensor_parallel
    gradient = (element + added) * parameters / memory_rate(scenario)
    return PassSeconds({"vocabulary": looked_up}, {"vocabulary": gradient + looked_up})
