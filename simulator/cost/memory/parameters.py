"""Parameters on one device and the training state they bring with them, in bytes. No activation is counted here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from simulator.cost.derived import Pricing, derived, of_sizes, of_work
from simulator.cost.dtypes import (
    FP32,
    HALF,
    element_bytes,
    gradient_bytes,
    master_bytes,
    narrow_number_bytes,
    narrow_weight_bytes,
    optimizer_bytes_per_parameter,
    parameter_dtype,
)
from simulator.cost.memory.matrices import gathered_bytes, largest_matrix, orthogonal_bytes
from simulator.cost.operations.conditions import Conditions, conditions_of
from simulator.cost.operations.ends import embedding, inputs, output_layer, prediction
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Operation
from simulator.cost.operations.sums import (
    WeightTotals,
    adapters_of,
    class_totals,
    classed,
    side_totals,
    weight_totals,
    weights_of,
)
from simulator.cost.stages import StageContents, over_layers
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.specs.optimizers import OPTIMIZERS, TENSOR_CLASSES, TensorClass
from simulator.question.vocabulary import NARROW


@dataclass(frozen=True, slots=True, eq=False)
class ModelTotals:
    """Parameter totals of the pieces a stage is made of, whatever the layout; of one model there is one object."""

    layers: tuple[WeightTotals, ...]
    """One layer of each of the model's kinds."""
    embedding: WeightTotals
    inputs: WeightTotals
    """Learned positions and the norm of embedded tokens, on the first rank before the layers."""
    head: WeightTotals
    """Last norm and output layer."""
    last_norm: WeightTotals
    """The last norm alone: all that the output layer stores of its own where it shares the input table."""
    prediction: WeightTotals
    """A next-token prediction module, its layer apart."""


Counted = TensorClass | Literal["parameters", "adapters", "sides"]
"""What is counted: parameters, all or of a class of tensor, those of LoRA adapters, or rows and columns of matrices."""


def model_totals(scenario: Scenario, counted: Counted = "parameters") -> ModelTotals:
    """Totals of the model's pieces, or of the LoRA adapters on them."""
    return _model_totals(conditions_of(scenario), counted)


@lru_cache(maxsize=64)
def _model_totals(conditions: Conditions, counted: Counted) -> ModelTotals:
    def totals(operations: tuple[Operation, ...]) -> WeightTotals:
        match counted:
            case "parameters":
                return weight_totals(operations)
            case "adapters":
                return adapters_of(conditions, operations)
            case "sides":
                return side_totals(operations)
            case _:
                return class_totals(operations, counted)

    return ModelTotals(
        layers=tuple(totals(layer_operations(conditions, kind)) for kind in conditions.model.layer_kinds),
        embedding=totals((embedding(conditions),)),
        inputs=totals(inputs(conditions)),
        head=totals(output_layer(conditions)),
        last_norm=totals(output_layer(conditions)[:1]),
        prediction=totals(prediction(conditions)),
    )


class DeviceParameters(NamedTuple):
    """Parameters on one device, by the group that could shard them further; shape (kinds, n)."""

    dense: KindArray
    """Everything but routed experts; replicated over data x context parallel."""
    routed: KindArray
    """Routed experts; replicated over the expert-data-parallel group."""


@of_sizes
def device_parameters(pricing: Pricing, counted: Counted = "parameters") -> DeviceParameters:
    """Parameters (or what else is counted) per kind of pipeline rank before any ZeRO sharding (M1).

    Three classes with their own divisors: tensor parallel; none; expert parallel x expert tensor parallel.
    """
    scenario, block = pricing.scenario, pricing.block
    tied = scenario.model.tie_word_embeddings and not scenario.framework.score_head
    split, replicated, routed = _by_class(model_totals(scenario, counted), pricing.contents, tied=tied)
    return DeviceParameters(split / block.tensor_parallel + replicated, routed / block.expert_ranks)


@lru_cache(maxsize=256)
def _by_class(totals: ModelTotals, contents: StageContents, *, tied: bool) -> tuple[KindArray, ...]:
    """Parameters of each kind of rank that are split, replicated and routed, shape (kinds, 1)."""
    head = totals.head
    # A prediction layer embeds the next token: the last rank has its own copy of the table.
    embeddings = np.where(contents.prediction_layers > 0.0, 1.0, contents.embeddings)
    if tied:
        # The output layer uses the input table; with a pipeline the last rank holds its own copy of it.
        head = totals.last_norm
        embeddings = np.maximum(contents.embeddings, contents.heads)
    pieces = (*totals.layers, totals.embedding, totals.inputs, head, totals.prediction)
    layers, ends = contents.with_prediction[..., 0].T, (contents.embeddings, contents.heads, contents.prediction_layers)
    counts = np.column_stack((layers, embeddings, *ends))
    by_piece = np.array([(each.split, each.replicated, each.routed) for each in pieces], dtype=np.float64).T
    return tuple((counts @ np.ascontiguousarray(of_class))[:, None] for of_class in by_piece)


@of_work
def whole_layer(pricing: Pricing, piece: WeightTotals) -> Array:
    """Parameters of one piece of the model on a device, before any ZeRO sharding, shape (n,)."""
    block = pricing.block
    return piece.split / block.tensor_parallel + piece.replicated + piece.routed / block.expert_ranks


class ShardDegrees(NamedTuple):
    """Ranks that ZeRO shards over, shape (n,)."""

    dense: Array
    routed: Array


@of_sizes
def shard_degrees(pricing: Pricing) -> ShardDegrees:
    """All ranks with the same parameters, those of one of `sharding_replicas`, or `sharding_degree` of them.

    Experts' in proportion.
    """
    scenario, block = pricing.scenario, pricing.block
    groups = float(scenario.framework.sharding_replicas)
    degree: Array | float = float(scenario.framework.sharding_degree)
    if groups > 1.0:
        degree = np.asarray(np.maximum(block.replicas / groups, 1.0), dtype=np.float64)
    elif not degree:
        return ShardDegrees(block.replicas, block.expert_replicas)
    dense = np.minimum(degree, block.replicas)
    return ShardDegrees(dense, np.maximum(block.expert_replicas * dense / block.replicas, 1.0))


def shard(pricing: Pricing, value: DeviceParameters, from_stage: int) -> KindArray:
    """Parameters left on a device when ZeRO shards them from a stage on (Rajbhandari et al (M2). 2020, section 5)."""
    on, degrees = pricing.block.zero_stage >= from_stage, shard_degrees(pricing)
    return value.dense / np.where(on, degrees.dense, 1.0) + value.routed / np.where(on, degrees.routed, 1.0)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Bytes that live through the step, shape (kinds, n)."""

    parameters: KindArray
    gradients: KindArray
    optimizer: KindArray
    gathered: KindArray
    """Whole copies that ZeRO 3 (parameters) and ZeRO 2 (gradients) hold for a moment."""
    step_temporary: KindArray
    """What only the optimizer step needs."""
    widened: KindArray
    """fp32 copies of 16-bit gradients, from the optimizer step until the next step begins."""
    parameters_on_host: KindArray
    """The rank's part of the parameters where it is kept in host memory."""


@derived
def training_state(pricing: Pricing) -> TrainingState:
    """Bytes of parameters, gradients and optimizer state by kind of pipeline rank (M2).

    ZeRO 1 shards the optimizer state over the replica group, 2 also the gradients, 3 also the parameters
    (Rajbhandari et al. 2020, section 5). fp8 adds two 8-bit copies of every linear weight to those of 16 bits, or with
    `fp8_param_gather` puts them in their place (measured: fp8 runs take more memory than bf16 ones without it).
    """
    scenario, block = pricing.scenario, pricing.block
    profile = scenario.framework
    weights = device_parameters(pricing)
    lora = scenario.lora_rank is not None
    frozen = 1.0 if profile.frozen_reference else 0.0
    trained = device_parameters(pricing, "adapters") if lora else weights
    parameters = _stored_bytes(pricing, weights, cast=profile.parameter_dtype == "fp32" and not lora)
    if lora and profile.quantised_base:
        parameters = _quantised(pricing, weights)
    parameters = parameters * (1.0 + frozen)
    if lora:
        parameters = parameters + _stored_bytes(pricing, trained, cast=profile.parameter_dtype == "fp32")
    if scenario.precision in NARROW or profile.fp8_experts == "kept":
        parameters = parameters + narrow_bytes(pricing)
    parameters = parameters + _unused_bytes(pricing)
    trained_shard = shard(pricing, trained, 1)
    gradients = shard(pricing, trained, 2) * gradient_bytes(scenario)
    if profile.master_gradients and gradient_bytes(scenario) < FP32:
        gradients = gradients + trained_shard * FP32
    if profile.gradient_copies and gradient_bytes(scenario) > element_bytes(scenario):
        gradients = gradients + shard(pricing, trained, 2) * element_bytes(scenario)
    if frozen and not lora and profile.reference_gradients:
        gradients = gradients * np.where(block.zero_stage >= 1, 1.0, 2.0)
    optimizer = trained_shard * optimizer_bytes_per_parameter(scenario) + state_by_class(pricing)
    if profile.fp32_router and scenario.model.is_moe and parameter_dtype(scenario) == "bf16":
        routers = _routers(pricing)
        parameters = parameters + shard(pricing, routers, 3) * (FP32 - HALF)
        if not lora:
            gradients = gradients + shard(pricing, routers, 2) * (FP32 - gradient_bytes(scenario))
            optimizer = optimizer - shard(pricing, routers, 1) * master_bytes(scenario)
    on_host = np.zeros_like(parameters)
    if profile.offload_parameters:
        on_host = np.where(block.zero_stage >= 3, parameters, 0.0)
    return TrainingState(
        parameters=parameters - on_host,
        gradients=gradients,
        optimizer=optimizer,
        gathered=_gathered(pricing),
        step_temporary=_step_temporary(pricing, trained_shard),
        widened=trained_shard * (FP32 if _widens(scenario) else 0.0),
        parameters_on_host=on_host,
    )


def _unused_bytes(pricing: Pricing) -> KindArray | float:
    """The output layer that a reward model holds and does not train; a tied one is the table (M2)."""
    scenario, profile = pricing.scenario, pricing.scenario.framework
    if not profile.unused_output_layer or not profile.score_head or scenario.model.tie_word_embeddings:
        return 0.0
    weights = scenario.model.vocab_size * scenario.model.hidden_size / pricing.block.tensor_parallel
    return pricing.contents.heads * (element_bytes(scenario) * weights)


@derived
def state_by_class(pricing: Pricing) -> KindArray | float:
    """Optimizer state beside what every parameter has if it is one of a matrix, in bytes, shape (kinds, n) (M2).

    More of tables and vectors; fp32 means of rows and columns; and, where ranks hold whole matrices, what the largest
    one is above an equal share (Megatron-LM core_v0.19.0, core/optimizer/layer_wise_optimizer.py). Adapters are
    matrices, and shared evenly.
    """
    scenario = pricing.scenario
    optimizer = OPTIMIZERS[scenario.framework.optimizer]
    of_matrix = optimizer_bytes_per_parameter(scenario)
    state: KindArray | float = 0.0
    if scenario.lora_rank is not None:
        return state
    for tensor in TENSOR_CLASSES[1:]:
        more = optimizer_bytes_per_parameter(scenario, tensor) - of_matrix
        if more:
            state = state + more * shard(pricing, device_parameters(pricing, tensor), 1)
    if optimizer.factored:
        state = state + FP32 * shard(pricing, device_parameters(pricing, "sides"), 1)
    if optimizer.newton_schulz_steps and not scenario.framework.fully_shard:
        state = state + of_matrix * _uneven_shares(pricing)
    return state


def orthogonal_step(pricing: Pricing) -> KindArray | float:
    """What making updates of matrices orthogonal holds in the optimizer step, shape (kinds, n) (M2)."""
    scenario, block = pricing.scenario, pricing.block
    if not OPTIMIZERS[scenario.framework.optimizer].newton_schulz_steps or scenario.lora_rank is not None:
        return 0.0
    held = np.broadcast_to(orthogonal_bytes(pricing), (len(pricing.contents.ranks), len(pricing)))
    if not scenario.framework.fully_shard:
        return held
    ranks = np.where(block.zero_stage >= 1, shard_degrees(pricing).dense, 1.0)
    return held + gathered_bytes(pricing, ranks)


def _uneven_shares(pricing: Pricing) -> KindArray:
    """Parameters by which the largest matrix of a device exceeds its share of all, dense ones and experts'."""
    matrices, degrees, largest = device_parameters(pricing, "matrix"), shard_degrees(pricing), largest_matrix(pricing)
    above = sum(
        np.maximum(np.minimum(matrix, whole) - whole / degree, 0.0)
        for whole, degree, matrix in zip(matrices, degrees, largest, strict=True)
    )
    return np.asarray(np.where(pricing.block.zero_stage >= 1, above, 0.0))


def _widens(scenario: Scenario) -> bool:
    """Whether the optimizer makes fp32 copies of gradients: where it has master weights and they come in 16 bits."""
    return scenario.framework.widened_gradients and master_bytes(scenario) > 0.0 and gradient_bytes(scenario) < FP32


def _step_temporary(pricing: Pricing, trained: KindArray) -> KindArray:
    """An fp32 temporary of all a rank updates, or of the largest tensor of it."""
    scenario = pricing.scenario
    if OPTIMIZERS[scenario.framework.optimizer].newton_schulz_steps:
        return np.zeros_like(trained) + orthogonal_step(pricing)
    if scenario.framework.foreach_optimizer:
        return trained * FP32
    if scenario.framework.step_parameters:
        cast = FP32 * np.minimum(trained, float(scenario.framework.step_parameters))
        return np.asarray(np.where(pricing.block.zero_stage >= 3, cast, 0.0))
    if scenario.framework.largest_tensor_step:
        largest: KindArray = np.minimum(trained, largest_weight(pricing)) * FP32
        return largest
    return np.zeros_like(trained)


@of_work
def largest_weight(pricing: Pricing) -> Array:
    """Parameters of the largest local tensor, shape (n,): gate and up are one, and so are the experts of a rank."""
    sizes: list[Array] = []
    for operation in _table_and_layers(conditions_of(pricing.scenario)):
        fused: Counter[tuple[int, str]] = Counter()
        for weight in operation.weights:
            fused[weight.inputs, weight.split] += weight.parameters
        sizes += (
            whole_layer(pricing, classed(weight, float(fused[weight.inputs, weight.split])))
            for weight in operation.weights
        )
    largest: Array = np.max(sizes, axis=0)
    return largest


def _table_and_layers(conditions: Conditions) -> tuple[Operation, ...]:
    """The input table and the operations of one layer of each kind."""
    return (
        embedding(conditions),
        *(operation for kind in conditions.model.layer_kinds for operation in layer_operations(conditions, kind)),
    )


def _quantised(pricing: Pricing, weights: DeviceParameters) -> KindArray:
    """Bytes of frozen weights whose linear ones have 4 bits each and a scale for every 64 (Dettmers et al. 2023)."""
    scenario = pricing.scenario
    linear = shard(pricing, linear_by_class(pricing), 3)
    rest = shard(pricing, weights, 3) - linear
    scale = scenario.framework.quantised_scale_bytes / _SCALED_WEIGHTS
    stored: KindArray = linear * (0.5 + scale) + rest * (FP32 if scenario.framework.widened_rest else HALF)
    return stored


_SCALED_WEIGHTS = 64.0
"""Weights that share a scale."""


def _routers(pricing: Pricing) -> DeviceParameters:
    """Parameters of the layers' routers, whole on every rank."""
    conditions, contents = conditions_of(pricing.scenario), pricing.contents
    weights = (weights_of(layer_operations(conditions, kind)) for kind in contents.layer_kinds)
    of_kind = [np.array([float(sum(w.parameters for w in each if w.name == "router"))]) for each in weights]
    routers = over_layers(contents.with_prediction, of_kind)
    return DeviceParameters(routers, np.zeros_like(routers))


def _stored_bytes(pricing: Pricing, value: DeviceParameters, *, cast: bool) -> KindArray:
    """Bytes of parameters as stored, with the copies that compute uses where they are stored in fp32 and `cast`.

    Parameters stored as computed with are whole below ZeRO 3. Those cast from fp32 are sharded from ZeRO 2 on, with
    `fully_shard` from ZeRO 1 on; below ZeRO 3 a whole 16-bit copy is alive beside them (autocast's cast weights, or
    the gathered copy). In fp32 training nothing is cast, so only that gathered copy remains.
    """
    scenario, block = pricing.scenario, pricing.block
    if not cast:
        return shard(pricing, value, 3) * element_bytes(scenario)
    copied = block.zero_stage == 2 if scenario.precision == "fp32" else block.zero_stage < 3
    copies = np.where(copied, element_bytes(scenario), 0.0)
    whole = (value.dense + value.routed) * copies
    return shard(pricing, value, 1 if scenario.framework.fully_shard else 2) * 4.0 + whole


def narrow_bytes(pricing: Pricing) -> KindArray:
    """Bytes that fp8 adds to the stored weights: its copies, less the 16-bit weights that they stand for.

    Weights stored in fp32, or in parts (ZeRO 3), stay as they are. Routed experts alone keep one copy for each pass.
    """
    scenario, block = pricing.scenario, pricing.block
    if scenario.precision not in NARROW:
        return 2.0 * linear_by_class(pricing).routed
    instead = scenario.framework.fp8_param_gather and parameter_dtype(scenario) == "bf16"
    saved = np.where(block.zero_stage < 3, element_bytes(scenario) if instead else 0.0, 0.0)
    copies = np.maximum(narrow_weight_bytes(scenario), np.where(saved > 0.0, narrow_number_bytes(scenario), 0.0))
    added: KindArray = linear_parameters(pricing) * (copies - saved)
    return added


def linear_parameters(pricing: Pricing) -> KindArray:
    """Parameters of the layers' linear weights on one device (what fp8 caches); embedding and head stay 16 bit."""
    parts = linear_by_class(pricing)
    return parts.dense + parts.routed


@of_work
def largest_linear_layer(pricing: Pricing) -> Array:
    """The linear weights of a layer on one device, of the kind that has most, shape (n,)."""
    kinds = pricing.scenario.model.layer_kinds
    largest: Array = np.max([whole_layer(pricing, _linear(pricing.scenario, kind)) for kind in kinds], axis=0)
    return largest


def _linear(scenario: Scenario, kind: LayerKind) -> WeightTotals:
    """Linear weights of one layer."""
    return weight_totals(layer_operations(conditions_of(scenario), kind), matmul_only=True)


@derived
def linear_by_class(pricing: Pricing) -> DeviceParameters:
    """`linear_parameters` by the group that could shard them further."""
    contents = pricing.contents
    kinds = [_linear(pricing.scenario, kind) for kind in contents.layer_kinds]
    dense = [whole_layer(pricing, WeightTotals(kind.split, kind.replicated)) for kind in kinds]
    routed = [whole_layer(pricing, WeightTotals(routed=kind.routed)) for kind in kinds]
    return DeviceParameters(over_layers(contents.with_prediction, dense), over_layers(contents.with_prediction, routed))


def _gathered(pricing: Pricing) -> KindArray:
    """Bytes of the whole layers that ZeRO 2 and 3 gather.

    Two layers' weights (one used, one prefetched) under ZeRO 3; one layer's unsharded gradients under 2 and 3. A
    framework that says how many parameters are live has those, and a buffer of gradients.
    """
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    totals = model_totals(scenario)
    layer = np.max([whole_layer(pricing, piece) for piece in totals.layers], axis=0)
    element, gradient = element_bytes(scenario), gradient_bytes(scenario)
    weights = np.where(block.zero_stage >= 3, 2.0 * layer * element, 0.0)
    gradients = np.where(block.zero_stage >= 2, layer * gradient, 0.0)
    if scenario.lora_rank is not None:
        gradients = gradients * 0.0
    table = whole_layer(pricing, totals.embedding) * np.where(block.zero_stage >= 3, element, 0.0)
    ends = np.maximum(contents.embeddings, contents.heads) * table
    usual: KindArray = np.broadcast_to(weights + gradients, ends.shape) + ends
    if not scenario.framework.live_parameters:
        return usual
    live = np.where(block.zero_stage >= 3, _live_bytes(pricing, layer) + gradients, usual)
    square = float(scenario.model.hidden_size) ** 2
    if scenario.lora_rank is not None:
        return live
    buffer = element * (float(scenario.framework.reduction_parameters) or square)
    return live + np.where(block.zero_stage >= 1, buffer, 0.0)


def _live_bytes(pricing: Pricing, layer: Array) -> KindArray:
    """What DeepSpeed's ZeRO 3 holds gathered where the passes turn, shape (kinds, n) (M24).

    Of what is gathered nothing is let go that comes again within `reuse_parameters`: half of them, as each is passed
    forward and backward. `prefetch_parameters` more are fetched, up to `live_parameters` in all (DeepSpeed v0.19.5,
    runtime/zero/partitioned_param_coordinator.py, `fetch_sub_module`, `__params_to_release`).
    """
    scenario, contents = pricing.scenario, pricing.contents
    profile, square = scenario.framework, float(scenario.model.hidden_size) ** 2
    parts = device_parameters(pricing)
    table = np.maximum(contents.embeddings, contents.heads) * whole_layer(pricing, model_totals(scenario).embedding)
    used = np.maximum(layer, table)
    ahead = float(profile.prefetch_parameters) or _PREFETCHED * square
    kept = np.minimum(profile.reuse_parameters / 2.0 + ahead, np.maximum(profile.live_parameters - used, 0.0))
    live = np.minimum(used + kept, parts.dense + parts.routed)
    return np.asarray(element_bytes(scenario) * live)


_PREFETCHED = 0.9
"""Of the hidden size squared (transformers v4.57, integrations/deepspeed.py, `trainer_config_finalize`)."""


def resident_optimizer(pricing: Pricing, optimizer: KindArray) -> KindArray:
    """Optimizer state on the device between optimizer steps, shape (kinds, n)."""
    fraction = pricing.scenario.framework.offload_fraction
    away = pricing.offloads("optimizer", "optimizer_tensorwise") * fraction
    return optimizer - optimizer * away


def optimizer_on_device(pricing: Pricing, optimizer: KindArray) -> tuple[KindArray, KindArray]:
    """Optimizer state on the device during the passes and in the optimizer step, shape (kinds, n)."""
    resident, by_tensor = resident_optimizer(pricing, optimizer), pricing.offloads("optimizer_tensorwise")
    if not by_tensor.any():
        return resident, optimizer
    brought = np.minimum(largest_state_tensor(pricing), optimizer - resident)
    return resident, np.where(by_tensor, resident + brought, optimizer)


def largest_state_tensor(pricing: Pricing) -> Array:
    """Optimizer state of the largest single tensor, what tensor-wise offload brings back at a time, shape (n,).

    Experts of one rank are stored as one grouped tensor.
    """
    scenario, degrees = pricing.scenario, shard_degrees(pricing)
    # Of those divided alike, the largest is the largest on any device.
    weights = sorted(weights_of(_table_and_layers(conditions_of(scenario))), key=lambda weight: weight.parameters)
    sizes: list[Array] = []
    for weight in {weight.split: weight for weight in weights}.values():
        ranks = np.where(pricing.block.zero_stage >= 1, degrees.routed if weight.routed else degrees.dense, 1.0)
        sizes.append(whole_layer(pricing, classed(weight, float(weight.parameters))) / ranks)
    largest: Array = np.max(sizes, axis=0)
    return largest * max(optimizer_bytes_per_parameter(scenario, tensor) for tensor in TENSOR_CLASSES)
