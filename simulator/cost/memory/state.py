"""Training state of one device in bytes: parameters, gradients and optimizer state. No activation is counted here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from simulator.cost.derived import Pricing, derived, of_work
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
from simulator.cost.memory.parameters import (
    DeviceParameters,
    device_parameters,
    linear_by_class,
    linear_parameters,
    model_totals,
    shard,
    shard_degrees,
    whole_layer,
)
from simulator.cost.operations.conditions import Conditions, conditions_of
from simulator.cost.operations.ends import embedding
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Operation
from simulator.cost.operations.sums import (
    classed,
    weights_of,
)
from simulator.cost.stages import over_layers
from simulator.question.arrays import largest
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.optimizers import OPTIMIZERS, TENSOR_CLASSES
from simulator.question.vocabulary import NARROW


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
    parameters: Array = largest(sizes)
    return parameters


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


def _gathered(pricing: Pricing) -> KindArray:
    """Bytes of the whole layers that ZeRO 2 and 3 gather.

    Two layers' weights (one used, one prefetched) under ZeRO 3; one layer's unsharded gradients under 2 and 3. A
    framework that says how many parameters are live has those, and a buffer of gradients.
    """
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    totals = model_totals(scenario)
    layer = largest(whole_layer(pricing, piece) for piece in totals.layers)
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
    parameters: Array = largest(sizes)
    return parameters * max(optimizer_bytes_per_parameter(scenario, tensor) for tensor in TENSOR_CLASSES)
