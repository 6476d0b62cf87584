"""Seconds of what stands behind the layers for one micro batch: output layer, loss, projections of prediction modules.

The product with a vocabulary of 128,256 tokens takes as long as several layers of an 8B model, on the last rank alone.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.dtypes import element_bytes
from simulator.cost.memory.loss import labelled_tokens, logits_per_micro_batch
from simulator.cost.operations.extents import tokens_per_device
from simulator.cost.timing.collectives import gather_seconds, tensor_group
from simulator.cost.timing.flops import head_parameters, prediction_projection
from simulator.cost.timing.parts import Parts, PassSeconds
from simulator.cost.timing.products import accumulation_seconds, at_rate, product_seconds, shaped_seconds
from simulator.cost.timing.rates import gemm_rate, memory_rate, wide_precision


@derived
def projection_seconds(pricing: Pricing) -> PassSeconds:
    """The projection that joins embedding and hidden state in one prediction layer."""
    scenario = pricing.scenario
    parameters = prediction_projection(scenario) / pricing.block.tensor_parallel
    compute = at_rate(2.0 * tokens_per_device(pricing) * parameters, gemm_rate(scenario))
    products = product_seconds(scenario, compute, parameters)
    forward, backward = products.passes
    return PassSeconds({"gemm": forward}, {"gemm": backward}, products.weights)


@derived
def head_seconds(pricing: Pricing) -> PassSeconds:
    """The output layer and the loss, in 16 bit also under fp8: products, and passes over the logits (T15).

    What the loss reads and writes is the stack's, in one fused kernel sixteen bytes a logit; half of it in either pass.
    """
    scenario, block = pricing.scenario, pricing.block
    rate = scenario.hardware.peak(wide_precision(scenario)) * scenario.coefficients.time.gemm_efficiency
    parameters = head_parameters(scenario) / block.tensor_parallel
    reads = element_bytes(scenario) * parameters / memory_rate(scenario)
    labelled = labelled_tokens(pricing)
    outputs = scenario.outputs_per_token / block.tensor_parallel
    compute = shaped_seconds(scenario, rate, labelled, outputs, float(scenario.model.hidden_size))
    forward_products = np.maximum(compute.forward, reads)
    per_logit = 16.0 if scenario.framework.fused_cross_entropy else float(scenario.framework.loss_traffic_bytes)
    passes = per_logit / 2.0 * logits_per_micro_batch(pricing) / memory_rate(scenario)
    ends = scenario.coefficients.time.tensor_ends_overhead_seconds / 2.0
    around = passes + np.where(block.tensor_parallel > 1.0, ends, 0.0)
    frozen = scenario.lora_rank is not None
    accumulates = np.zeros(len(pricing))
    if not frozen and not scenario.framework.fused_gradient_accumulation:
        accumulates = accumulation_seconds(scenario, parameters)
    weights = np.zeros_like(reads) if frozen else np.maximum(compute.weights, reads)
    backward_products = np.maximum(compute.inputs, reads) + weights
    forward: Parts = {"vocabulary": forward_products + around}
    backward: Parts = {"vocabulary": backward_products + around + accumulates}
    if not scenario.framework.vocabulary_parallel_loss:
        # Every rank takes its own part of the gradient: nothing is sent back.
        whole = element_bytes(scenario) * labelled * scenario.outputs_per_token
        forward["tensor_parallel"] = gather_seconds(scenario, tensor_group(block), whole)
        backward["tensor_parallel"] = np.zeros(len(pricing))
    return PassSeconds(forward, backward, weights + accumulates)
