"""FLOPs of training: per token for the whole model (the reported figure) and per layer on one device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.cost.memory.activations import routed_tokens, sequence_split, tokens_per_device
from simulator.cost.memory.loss import labelled_tokens
from simulator.cost.memory.parameters import WeightTotals, adapter_totals, weight_totals
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.weights import attention_weights, head_weight, layer_weights, mtp_weights


def attention_width(model: ModelSpec) -> float:
    """Width that the two attention products run over: `heads (qk size + v size) / 2`, h for the usual shapes."""
    return (model.query_width + model.value_width) / 2.0


def layer_matmul_parameters(model: ModelSpec, *, moe: bool) -> WeightTotals:
    """Parameters of one layer that tokens are multiplied by; routed experts counted for the k chosen ones."""
    totals = weight_totals(layer_weights(model, moe=moe), matmul_only=True)
    if not moe:
        return totals
    chosen = totals.routed * model.num_experts_per_tok / model.num_experts
    return WeightTotals(totals.split, totals.replicated, chosen)


def layers_flops_per_token(scenario: Scenario) -> float:
    """Forward FLOPs per token of the model's layers: `2 x matmul parameters + 4 s h` each.

    Attention is counted non-causal, Megatron's convention, which reproduces the measured tables to 0.1 %.
    """
    model = scenario.model
    flops = 0.0
    for moe, layers in ((False, model.num_dense_layers), (True, model.num_moe_layers)):
        if layers:
            flops += layers * _layer_flops_per_token(scenario, moe=moe)
    return flops


def _layer_flops_per_token(scenario: Scenario, *, moe: bool) -> float:
    totals = layer_matmul_parameters(scenario.model, moe=moe)
    parameters = totals.split + totals.replicated + totals.routed
    return 2.0 * parameters + 4.0 * scenario.seq_length * attention_width(scenario.model)


def forward_flops_per_token(scenario: Scenario) -> float:
    """Forward FLOPs per token of the whole model: layers and output layer (not the input table).

    The output layer counts for the tokens that pass it.
    """
    model = scenario.model
    head = 2.0 * head_weight(model).parameters * scenario.framework.labelled_token_fraction
    flops = layers_flops_per_token(scenario) + head
    if scenario.framework.mtp and model.num_nextn_predict_layers:
        projection = 2.0 * prediction_projection(model)
        layer = _layer_flops_per_token(scenario, moe=model.is_moe)
        flops += model.num_nextn_predict_layers * (layer + projection + head)
    return flops


def prediction_projection(model: ModelSpec) -> float:
    """Parameters of the projection that joins embedding and hidden state in one prediction layer."""
    return float(sum(w.parameters for w in mtp_weights(model) if w.name == "eh_proj"))


def model_flops_per_token(scenario: Scenario) -> float:
    """Model FLOPs per token of a step: forward, and twice that backward.

    Adapter training computes no gradients of frozen weights, so their backward pass counts once; adapters count whole.
    """
    forward = forward_flops_per_token(scenario)
    if scenario.lora_rank is None:
        return 3.0 * forward
    return 2.0 * forward + 3.0 * adapter_flops_per_token(scenario)


def attention_block_flops_per_token(scenario: Scenario) -> float:
    """Forward FLOPs per token of one layer's attention block: projections and, non-causal, the core."""
    totals = weight_totals(attention_weights(scenario.model), matmul_only=True)
    return 2.0 * (totals.split + totals.replicated) + 4.0 * scenario.seq_length * attention_width(scenario.model)


def adapter_flops_per_token(scenario: Scenario) -> float:
    """Forward FLOPs per token of the LoRA adapters; of routed experts' those of the k chosen ones."""
    model, flops = scenario.model, 0.0
    for moe, layers in ((False, model.num_dense_layers), (True, model.num_moe_layers)):
        if layers:
            totals = adapter_totals(layer_weights(model, moe=moe), scenario.lora_rank or 0)
            chosen = totals.routed * model.num_experts_per_tok / max(model.num_experts, 1)
            flops += layers * 2.0 * (totals.split + totals.replicated + chosen)
    return flops


@dataclass(frozen=True, slots=True)
class LayerWork:
    """What one device computes in one forward layer for one micro batch; arrays of shape (n,)."""

    dense_flops: Array
    """Matrix products with everything but routed experts."""
    dense_parameters: Array
    """Parameters of those products on the device."""
    routed_flops: Array
    routed_parameters: Array
    adapter_flops: Array
    """Matrix products with LoRA adapters."""
    attention_flops: Array
    """Computed FLOPs of attention: the causal half."""


def layer_work(scenario: Scenario, block: LayoutBlock, *, moe: bool) -> LayerWork:
    """FLOPs and parameters one device works with in one layer.

    With context parallelism every device attends its tokens to the whole sequence, balanced over the ring.
    """
    model = scenario.model
    tokens, t = tokens_per_device(scenario, block), block.tensor_parallel
    weights = layer_weights(model, moe=moe)
    totals = weight_totals(weights, matmul_only=True)
    copies = routed_tokens(scenario, block) if moe else np.zeros(len(block))
    per_copy = totals.routed / max(model.num_experts, 1) / block.expert_tensor_parallel
    adapters = np.zeros(len(block))
    if scenario.lora_rank is not None:
        extra = adapter_totals(weights, scenario.lora_rank)
        routed = 2.0 * copies * extra.routed / max(model.num_experts, 1) / block.expert_tensor_parallel
        adapters = 2.0 * tokens * (extra.split / t + extra.replicated / sequence_split(block)) + routed
    return LayerWork(
        dense_flops=2.0 * tokens * (totals.split / t + totals.replicated / sequence_split(block)),
        dense_parameters=totals.split / t + totals.replicated,
        routed_flops=2.0 * copies * per_copy,
        routed_parameters=totals.routed / block.expert_ranks,
        adapter_flops=adapters,
        attention_flops=2.0 * tokens * scenario.seq_length * attention_width(model) / t,
    )


def head_flops(scenario: Scenario, block: LayoutBlock) -> Array:
    """Forward FLOPs of the output layer for one micro batch on one device, shape (n,)."""
    return 2.0 * labelled_tokens(scenario, block) * head_weight(scenario.model).parameters / block.tensor_parallel
