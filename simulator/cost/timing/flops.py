"""FLOP per token as MFU counts them, and the kernel launches of a layer. Counts work; knows no rate."""

from __future__ import annotations

from simulator.cost.derived import Pricing
from simulator.cost.operations.conditions import conditions_of
from simulator.cost.operations.ends import output_layer, prediction
from simulator.cost.operations.recompute import Modules
from simulator.cost.operations.sums import attended_share, chosen_parameters, weight_totals
from simulator.cost.operations.work import Work, layer_work, partly_repeated, repeated_work
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import NARROW, RecomputeMode


def _flops_per_token(scenario: Scenario, work: Work) -> float:
    """Return the forward FLOP per token of operations: `2 x matmul parameters + 4 s h`, and those of linear mixers.

    Attention counts as non-causal, Megatron's convention, which reproduces the measured tables to 0.1 %; bounded
    attention by its share of the causal half.
    """
    bounded = sum(width * attended_share(scenario.seq_length, window) for window, width in work.windows)
    return 2.0 * work.chosen.all + 4.0 * scenario.seq_length * (work.core_width + bounded) + work.core_flops


def layer_flops_per_token(scenario: Scenario, kind: LayerKind) -> float:
    """Return the forward FLOP per token of one layer."""
    return _flops_per_token(scenario, layer_work(conditions_of(scenario), kind))


def layers_flops_per_token(scenario: Scenario) -> float:
    """Return the forward FLOP per token of all layers."""
    layers = scenario.model.layers
    return sum(layers.count(kind) * layer_flops_per_token(scenario, kind) for kind in scenario.model.layer_kinds)


def repeated_flops_per_token(scenario: Scenario, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> float:
    """Return the FLOP per token that recompute adds to one layer."""
    return _flops_per_token(scenario, repeated_work(conditions_of(scenario), kind, mode, modules))


def shared_flops_per_token(scenario: Scenario, kind: LayerKind) -> float:
    """Return the FLOP per token that one layer repeats on average where the stack recomputes a share of the layers."""
    repeats = partly_repeated(conditions_of(scenario), kind)
    return sum(share * _flops_per_token(scenario, again) for share, again in repeats)


def head_parameters(scenario: Scenario) -> float:
    """Return the parameters of the output layer's product."""
    return weight_totals(output_layer(conditions_of(scenario)), matmul_only=True).all


def prediction_projection(scenario: Scenario) -> float:
    """Return the parameters of a prediction module's projection of embedding and hidden state."""
    return weight_totals(prediction(conditions_of(scenario))).split


def forward_flops_per_token(scenario: Scenario) -> float:
    """Return the forward FLOP per token of the whole model: layers and output layer (not the input table).

    The output layer counts for labelled tokens only.
    """
    model = scenario.model
    head = 2.0 * head_parameters(scenario) * scenario.framework.labelled_token_fraction
    flops = layers_flops_per_token(scenario) + head
    if scenario.framework.mtp and model.num_nextn_predict_layers:
        layer = layer_flops_per_token(scenario, model.prediction_kind)
        flops += model.num_nextn_predict_layers * (layer + 2.0 * prediction_projection(scenario) + head)
    return flops


def model_flops_per_token(scenario: Scenario) -> float:
    """Return the model FLOP per token of a step: forward, and twice that backward (T1).

    Adapter training computes no gradients of frozen weights, so their backward pass counts once; adapters count in
    full.
    """
    forward = forward_flops_per_token(scenario)
    if scenario.lora_rank is None:
        return 3.0 * forward
    return 2.0 * forward + 3.0 * adapter_flops_per_token(scenario)


def adapter_flops_per_token(scenario: Scenario) -> float:
    """Return the forward FLOP per token of the LoRA adapters; of routed experts, the k chosen ones'."""
    model, conditions = scenario.model, conditions_of(scenario)

    def one(kind: LayerKind) -> float:
        return 2.0 * chosen_parameters(model, layer_work(conditions, kind).adapters).all

    return sum(model.layers.count(kind) * one(kind) for kind in model.layer_kinds)


def expert_launches(pricing: Pricing) -> Array:
    """Return the kernels launched in both passes of a layer with routed experts, shape (n,) (T12).

    Exchanges wait for counts on the host, which cannot run ahead, so launches bound the layer's time: about a hundred,
    each local expert's products, and in fp8 four casts of one kernel each, or of five for one scale per tensor.
    """
    scenario, values = pricing.scenario, pricing.scenario.coefficients.time
    casts = 0.0 if scenario.precision not in NARROW else 5.0 if scenario.framework.fp8_recipe == "tensorwise" else 1.0
    held: Array = scenario.model.num_experts / pricing.block.expert_parallel
    return values.launches_per_layer + (values.launches_per_expert + 4.0 * casts) * held
