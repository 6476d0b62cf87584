"""Memory of the output layer and the loss, in bytes (M13): logits are the largest single tensors of most steps."""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing, of_sizes, of_work
from simulator.cost.dtypes import FP32, HALF, element_bytes
from simulator.cost.memory.activations import autocasts, widened_rest
from simulator.cost.operations.blocks import output_layer
from simulator.cost.operations.record import conditions_of, summed
from simulator.cost.operations.sums import micro_batches, tokens_per_device, total
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import MIB


@of_work
def loss_bytes(pricing: Pricing) -> Array:
    """Return the bytes at the loss for one micro batch of T labelled tokens, `c T V / t`, shape (n,) (M13, M39)."""
    scenario, block = pricing.scenario, pricing.block
    model, profile = scenario.model, scenario.framework
    tokens = labelled_tokens(pricing)
    vocabulary = scenario.outputs_per_token / block.tensor_parallel
    shards = (block.tensor_parallel > 1.0) & profile.vocabulary_parallel_loss
    split = np.where(shards, float(profile.split_loss_bytes_per_logit), 0.0)
    whole = (bytes_per_logit(scenario) + split) * logits_per_micro_batch(pricing)
    # The weight of a head in 4 bits is in fp16 and bf16 when no log-softmax is left (M38).
    if profile.quantised_head and profile.quantised_base:
        whole = np.maximum(whole, whole + FP32 * (vocabulary * model.hidden_size - logits_per_micro_batch(pricing)))
    if not profile.cross_entropy_chunk_tokens:
        return whole
    chunk = np.minimum(tokens, float(profile.cross_entropy_chunk_tokens))
    if profile.cross_entropy_chunk_mib:
        filled = FP32 * logits_per_micro_batch(pricing) / (profile.cross_entropy_chunk_mib * MIB)
        chunk = tokens / np.where(filled > 1.0, 4.0 * np.ceil(filled / 4.0), 1.0)
    weights = FP32 * vocabulary * scenario.trains("output")
    gradients = (element_bytes(scenario) * tokens + weights) * model.hidden_size
    more = gradients * (profile.cross_entropy_chunk_mib > 0)
    return np.minimum(whole * chunk / tokens + gradients, whole + more)


@of_work
def logits_per_micro_batch(pricing: Pricing) -> Array:
    """Return the number of logits on a device, shape (n,): of its vocabulary shard, or of all without parallel loss."""
    scenario = pricing.scenario
    parts = pricing.block.tensor_parallel if scenario.framework.vocabulary_parallel_loss else 1.0
    return np.asarray(labelled_tokens(pricing) * scenario.outputs_per_token / parts)


@of_sizes
def head_gradient_bytes(pricing: Pricing) -> Array:
    """Return the bytes alive at the output layer's weight gradient, `2 T V / t + 2 T h + 2 V h / t` (M13, M37)."""
    scenario, model, profile = pricing.scenario, pricing.scenario.model, pricing.scenario.framework
    if profile.cross_entropy_chunk_tokens:  # the chunks' own gradients are in `loss_bytes`
        return np.zeros(len(pricing))
    logits, number = logits_per_micro_batch(pricing), element_bytes(scenario)
    inputs = number * labelled_tokens(pricing) * model.hidden_size
    deferred = profile.deferred_head_gradients > 0 and pricing.block.pipeline_parallel > 1
    if not scenario.trains("output") or deferred:
        return number * logits + inputs
    weight = number * scenario.outputs_per_token * model.hidden_size / pricing.block.tensor_parallel
    inputs = inputs * np.where(pricing.block.sequence_parallel, 2.0, 1.0)
    if profile.loss_chunks < 2 or profile.fused_cross_entropy:
        return number * logits + inputs + weight
    chunks, gradients = float(profile.loss_chunks), 2.0 * FP32 * logits / profile.loss_chunks
    graph = bytes_per_logit(scenario) * logits - gradients
    second = np.maximum(graph / chunks + gradients, number * logits / chunks + weight)
    return inputs + weight + graph * (1.0 - 2.0 / chunks) + second


def deferred_head_bytes(pricing: Pricing) -> Array:
    """Return the bytes of deferred head gradients on the last pipeline rank, `m (2 T h / t + 2 T V / t)` (M13)."""
    scenario, block = pricing.scenario, pricing.block
    most = np.where(block.pipeline_parallel > 1.0, float(scenario.framework.deferred_head_gradients), 0.0)
    parts = np.where(block.sequence_parallel, block.tensor_parallel, 1.0)
    inputs = tokens_per_device(pricing) * scenario.model.hidden_size / parts
    each = element_bytes(scenario) * (inputs + logits_per_micro_batch(pricing))
    return np.asarray(np.minimum(most, micro_batches(pricing)) * each)


def labelled_tokens(pricing: Pricing) -> Array:
    """Return the tokens of one micro batch that pass the output layer and the loss on a device, shape (n,)."""
    return tokens_per_device(pricing) * pricing.scenario.framework.labelled_token_fraction


def bytes_per_logit(scenario: Scenario) -> float:
    """Return the bytes alive per logit at the loss; a soft cap also saves its tanh (M13)."""
    profile = scenario.framework
    capped = element_bytes(scenario) if scenario.model.logit_softcap else 0.0
    if profile.loss_chunks and not profile.fused_cross_entropy:
        return (element_bytes(scenario) if profile.compiled else FP32) + 2.0 * FP32 / profile.loss_chunks + capped
    if scenario.precision == "fp32":
        return capped + (2.0 * FP32 if profile.fused_cross_entropy else 3.0 * FP32)
    if profile.fused_cross_entropy:
        return float(profile.fused_loss_bytes_per_logit or profile.loss_bytes_per_logit) + capped
    return float(profile.loss_bytes_per_logit) + capped


def widened_head_bytes(pricing: Pricing) -> Array:
    """Return the bytes at the loss of an output layer that peft stored in fp32, shape (n,) (M13)."""
    profile, model = pricing.scenario.framework, pricing.scenario.model
    chunked = profile.fused_cross_entropy or profile.loss_chunks or profile.cross_entropy_chunk_tokens
    wide = (widened_rest(pricing) | autocasts(pricing)) & bool(profile.plain_module or not chunked)
    table = model.vocab_size * model.hidden_size / pricing.block.tensor_parallel
    # Without autocast logits are in fp32, 2 bytes more of each where a loop holds them to the end: 14 bytes, not 12.
    logits = (bytes_per_logit(pricing.scenario) > 3.0 * FP32) * logits_per_micro_batch(pricing)
    return np.where(wide, HALF * np.where(profile.autocast | autocasts(pricing), table, logits), 0.0)


@of_work
def head_input_bytes(pricing: Pricing) -> Array:
    """Return the bytes that the final norm and the output layer save, shape (n,)."""
    operations = output_layer(conditions_of(pricing.scenario))
    return total(pricing, summed(tensor for operation in operations for tensor in operation.saved))
