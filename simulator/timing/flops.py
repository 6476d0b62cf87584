"""FLOPs of training: per token for the whole model (the reported figure) and per layer on one device."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.memory.activations import routed_tokens, tokens_per_device
from simulator.memory.parameters import WeightTotals, weight_totals
from simulator.scenario.block import Array, LayoutBlock
from simulator.scenario.scenario import Scenario
from simulator.specs.model import ModelSpec
from simulator.specs.weights import head_weight, layer_weights, mtp_weights


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
    """Forward FLOPs per token of the whole model: layers and output layer (not the input table)."""
    model = scenario.model
    head = 2.0 * head_weight(model).parameters
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

    Adapter training computes no gradients of frozen weights, so its backward pass counts once.
    """
    return (2.0 if scenario.lora_rank is not None else 3.0) * forward_flops_per_token(scenario)


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """Forward FLOPs of one layer, one micro batch, on one device; shape (n,)."""

    matmul: Array
    attention: Array
    """Computed FLOPs: the causal half."""


def layer_flops(scenario: Scenario, block: LayoutBlock, *, moe: bool) -> LayerFlops:
    """FLOPs one device spends in one layer.

    With context parallelism every device attends its tokens to the whole sequence, balanced over the ring.
    """
    model = scenario.model
    tokens, t = tokens_per_device(scenario, block), block.tensor_parallel
    totals = weight_totals(layer_weights(model, moe=moe), matmul_only=True)
    matmul = 2.0 * tokens * (totals.split / t + totals.replicated / _replicated_split(block))
    if moe:
        per_copy = totals.routed / model.num_experts / block.expert_tensor_parallel
        matmul = matmul + 2.0 * routed_tokens(scenario, block) * per_copy
    attention = 2.0 * tokens * scenario.seq_length * attention_width(model) / t
    return LayerFlops(matmul, attention)


def _replicated_split(block: LayoutBlock) -> Array:
    """Replicated weights (router, latent projections) work on the rank's own part of the sequence."""
    return 1.0 + block.sequence_parallel * (block.tensor_parallel - 1.0)


def head_flops(scenario: Scenario, block: LayoutBlock) -> Array:
    """Forward FLOPs of the output layer for one micro batch on one device, shape (n,)."""
    return 2.0 * tokens_per_device(scenario, block) * head_weight(scenario.model).parameters / block.tensor_parallel
