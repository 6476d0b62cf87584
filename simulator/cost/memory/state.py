"""Training state of a device: its parameters by what divides them, and bytes of weights, gradients and optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal

import numpy as np

from simulator.cost.derived import Pricing, derived, of_sizes, of_work, remembered
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
    quantised_bytes,
)
from simulator.cost.memory.activations import adapter_casts, has_wide_stream, recompute_plan, widened_rest
from simulator.cost.memory.loss import logits_per_micro_batch, loss_bytes
from simulator.cost.operations.blocks import embedding, inputs, output_layer, prediction
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Conditions, Operation, Weight, conditions_of
from simulator.cost.operations.sums import (
    CountedWeights,
    WeightTotals,
    adapters_of,
    classed,
    local_sides,
    on_device,
    tensor_class,
    weight_totals,
    weights_of,
)
from simulator.cost.stages import StageContents, over_layers
from simulator.question.arrays import largest
from simulator.question.frameworks.profile import DTYPE_BYTES, FrameworkProfile
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.specs.optimizers import OPTIMIZERS, TENSOR_CLASSES
from simulator.question.vocabulary import NARROW
from simulator.records import Bare, NamedTuple


class ModelTotals(Bare):
    """Parameter totals of the model's pieces, whatever the layout. Equal models share one object."""

    layers: tuple[WeightTotals, ...]
    embedding: WeightTotals
    inputs: WeightTotals
    """Learned positions and the norm of embedded tokens, on the first pipeline rank."""
    head: WeightTotals
    """Final norm and output layer."""
    last_norm: WeightTotals
    """The final norm alone: all that an output layer tied to the input table stores of its own."""
    prediction: WeightTotals
    """A multi-token prediction module without its layer."""


Counted = CountedWeights | Literal["trained", "adapters", "small adapters"]
"""What to count: of weights, or parameters that are trained or of LoRA adapters."""


def model_totals(scenario: Scenario, counted: Counted = "parameters") -> ModelTotals:
    """Return the totals of the model's pieces for what is `counted`."""
    return _model_totals(conditions_of(scenario), counted)


@remembered
def _model_totals(conditions: Conditions, counted: Counted) -> ModelTotals:
    def totals(operations: tuple[Operation, ...]) -> WeightTotals:
        if counted in ("adapters", "small adapters"):
            return adapters_of(conditions, operations, _PAGED_FROM if counted == "small adapters" else np.inf)
        return weight_totals(operations, counted)

    return ModelTotals(
        layers=tuple(totals(layer_operations(conditions, kind)) for kind in conditions.model.layer_kinds),
        embedding=totals((embedding(conditions),)),
        inputs=totals(inputs(conditions)),
        head=totals(output_layer(conditions)),
        last_norm=totals(output_layer(conditions)[:1]),
        prediction=totals(prediction(conditions)),
    )


_PAGED_FROM = 1e5  # numbers of a tensor whose moments are paged (bitsandbytes 0.50, optim/optimizer.py)


class ByClass(NamedTuple):
    """A figure by the ranks that replicate parameters, each of shape (kinds, n) or (n,)."""

    dense: KindArray
    """Of everything but routed experts; replicated over data x context parallel ranks."""
    routed: KindArray
    """Of routed experts; replicated over the expert-data-parallel group."""


@of_sizes
def device_parameters(pricing: Pricing, counted: Counted = "parameters") -> ByClass:
    """Return the parameters (or what else is `counted`) by kind of pipeline rank before ZeRO (M1).

    Three classes have divisors of their own: tensor parallel; none; expert parallel x expert tensor parallel.
    """
    scenario, block = pricing.scenario, pricing.block
    if counted == "trained":
        if scenario.lora_rank is None:
            return device_parameters(pricing)
        adapters = device_parameters(pricing, "adapters")
        return ByClass(adapters.dense + saved_modules(pricing), adapters.routed)
    tied = scenario.model.tie_word_embeddings and not scenario.framework.score_head
    split, replicated, routed = _by_class(model_totals(scenario, counted), pricing.contents, tied=tied)
    return ByClass(split / block.tensor_parallel + replicated, routed / block.expert_ranks)


@lru_cache(maxsize=256)
def _by_class(totals: ModelTotals, contents: StageContents, *, tied: bool) -> tuple[KindArray, ...]:
    """Return the split, replicated and routed parameters of each kind of rank, shape (kinds, 1)."""
    head = totals.head
    # A prediction layer embeds the next token: the last rank has its own copy of the input table.
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


@derived
def saved_modules(pricing: Pricing, *ends: Literal["embedding", "output"]) -> KindArray:
    """Return the parameters of whole modules that are trained beside adapters, of `ends`, shape (kinds, n) (M35)."""
    scenario, contents = pricing.scenario, pricing.contents
    rows = np.zeros_like(contents.embeddings)
    for end in ends or ("embedding", "output"):
        each, held = scenario.model.vocab_size, contents.embeddings
        if end == "output":
            each, held = scenario.outputs_per_token, contents.heads
        rows = rows + held * (each * scenario.trains(end))
    return rows * scenario.model.hidden_size / pricing.block.tensor_parallel


def module_bytes(scenario: Scenario) -> float:
    """Return the bytes of a number of a module that is trained beside adapters, and of its gradient."""
    return FP32 if scenario.widened_modules else element_bytes(scenario)


@of_work
def local_by_class(pricing: Pricing, piece: WeightTotals) -> ByClass:
    """Return the parameters of one piece of the model on a device before ZeRO, each of shape (n,)."""
    block = pricing.block
    return ByClass(piece.split / block.tensor_parallel + piece.replicated, piece.routed / block.expert_ranks)


def local_count(pricing: Pricing, piece: WeightTotals) -> Array:
    """Return the parameters of one piece of the model on a device before ZeRO, shape (n,)."""
    parts = local_by_class(pricing, piece)
    return parts.dense + parts.routed


@of_sizes
def shard_degrees(pricing: Pricing) -> ByClass:
    """Return the ranks of a ZeRO shard group: all, `sharding_degree`, or one of `sharding_replicas`; experts too."""
    scenario, block = pricing.scenario, pricing.block
    groups = float(scenario.framework.sharding_replicas)
    degree: Array | float = float(scenario.framework.sharding_degree)
    if groups > 1.0:
        degree = np.asarray(np.maximum(block.replicas / groups, 1.0), dtype=np.float64)
    elif not degree:
        return ByClass(block.replicas, block.expert_replicas)
    dense = np.minimum(degree, block.replicas)
    return ByClass(dense, np.maximum(block.expert_replicas * dense / block.replicas, 1.0))


def shard(pricing: Pricing, value: ByClass, from_stage: int) -> KindArray:
    """Return the parameters per device after ZeRO from `from_stage` on (M2; Rajbhandari et al. 2020, section 5)."""
    on, degrees = pricing.block.zero_stage >= from_stage, shard_degrees(pricing)
    return value.dense / np.where(on, degrees.dense, 1.0) + value.routed / np.where(on, degrees.routed, 1.0)


def local_shard(pricing: Pricing, piece: WeightTotals, from_stage: int = 1) -> Array:
    """Return the parameters of one piece of the model on a device after ZeRO from `from_stage` on, shape (n,)."""
    return shard(pricing, local_by_class(pricing, piece), from_stage)


@of_work
def largest_linear_layer(pricing: Pricing, *, routed: bool = True) -> Array:
    """Return the largest number of linear weights of a layer on one device, shape (n,), on demand without experts."""
    kinds = pricing.scenario.model.layer_kinds
    parts = [local_by_class(pricing, _linear(pricing.scenario, kind)) for kind in kinds]
    parameters: Array = largest(part.dense + part.routed * routed for part in parts)
    return parameters


def _linear(scenario: Scenario, kind: LayerKind) -> WeightTotals:
    """Return the linear weights of one layer."""
    return weight_totals(layer_operations(conditions_of(scenario), kind), "products")


@derived
def linear_by_class(pricing: Pricing) -> ByClass:
    """Return the linear weights of the layers on one device, which fp8 caches, by the ranks that replicate them."""
    contents = pricing.contents
    kinds = [local_by_class(pricing, _linear(pricing.scenario, kind)) for kind in contents.layer_kinds]
    return ByClass(*(over_layers(contents.with_prediction, each) for each in zip(*kinds, strict=True)))


@remembered
def _matrices(conditions: Conditions, kind: LayerKind) -> tuple[Weight, ...]:
    """Return the unnamed matrices of a layer that an optimizer updates whole.

    Gate and up are one, with the outputs of both; q, k and v are three (`muon_split_qkv`).
    """
    matrices: list[Weight] = []
    for operation in layer_operations(conditions, kind):
        outputs: Counter[Weight] = Counter()
        for weight in operation.weights:
            if tensor_class(operation, weight) == "matrix":
                apart = weight.name if operation.group == "attention_projection" else ""
                outputs[weight._replace(name=apart, outputs=0)] += weight.outputs
        matrices += (matrix._replace(name="", outputs=width) for matrix, width in outputs.items())
    return tuple(matrices)


@of_work
def largest_matrix(pricing: Pricing) -> ByClass:
    """Return the parameters of the largest matrix on a device; for experts, of one expert."""
    sizes = {False: np.zeros(len(pricing)), True: np.zeros(len(pricing))}
    for matrix in _model_matrices(pricing):
        inputs, outputs = local_sides(pricing, matrix)
        sizes[matrix.routed] = np.maximum(sizes[matrix.routed], inputs * outputs)
    return ByClass(sizes[False], sizes[True])


def _model_matrices(pricing: Pricing) -> Iterator[Weight]:
    conditions = conditions_of(pricing.scenario)
    for kind in pricing.scenario.model.layer_kinds:
        yield from _matrices(conditions, kind)


@of_work
def orthogonal_flops(pricing: Pricing, kind: LayerKind) -> ByClass:
    """Return the FLOP that orthogonalize the updates of a layer's matrices on a device (T21).

    A Newton-Schulz iteration on m x n, m the shorter side, takes `4 m^2 n + 2 m^3`: X Xᵀ, its square, and their product
    with X (Jordan et al. 2024). Each tensor-parallel rank works on its own part (`--muon-tp-mode blockwise`).
    """
    steps = float(OPTIMIZERS[pricing.scenario.framework.optimizer].newton_schulz_steps)
    flops = {False: np.zeros(len(pricing)), True: np.zeros(len(pricing))}
    for matrix in _matrices(conditions_of(pricing.scenario), kind) if steps else ():
        sides = local_sides(pricing, matrix)
        short, long = np.minimum(*sides), np.maximum(*sides)
        each = steps * (4.0 * short**2 * long + 2.0 * short**3)
        flops[matrix.routed] = flops[matrix.routed] + each * on_device(pricing, matrix)
    return ByClass(flops[False], flops[True])


@of_work
def orthogonal_bytes(pricing: Pricing) -> Array:
    """Return the fp32 temporaries for one matrix at a time, shape (n,): update, two iterates, X Xᵀ and its square."""
    sides = (local_sides(pricing, matrix) for matrix in _model_matrices(pricing))
    numbers = (3.0 * inputs * outputs + 2.0 * np.minimum(inputs, outputs) ** 2 for inputs, outputs in sides)
    return FP32 * np.asarray(largest(numbers))


def gathered_bytes(pricing: Pricing, ranks: Array) -> KindArray:
    """Return the bytes of 16-bit copies of whole matrices that ranks gather, shape (kinds, n) (M2).

    Equal matrices are spread over the `ranks` by an exchange; the remainder is gathered on each rank (InternLM/xtuner
    b934f46, v1/optim/muon.py, `remainder_strategy` agrs). A layer's experts are one tensor.
    """
    copies, contents = OPTIMIZERS[pricing.scenario.framework.optimizer].gathered_copies, pricing.contents
    counts: dict[Weight, KindArray] = {}
    for kind, layers in zip(contents.layer_kinds, contents.with_prediction, strict=True):
        for matrix in _matrices(conditions_of(pricing.scenario), kind):
            counts[matrix] = counts.get(matrix, 0.0) + layers
    largest = np.zeros((len(contents.ranks), len(pricing)))
    for matrix, count in counts.items():
        inputs, outputs = local_sides(pricing, matrix)
        left = np.where((ranks > 1.0) & (count > 0.0), np.maximum(np.mod(count, ranks), 1.0), 0.0)
        largest = np.maximum(largest, left * inputs * outputs * on_device(pricing, matrix))
    return HALF * copies * largest


class TrainingState(NamedTuple):
    """Bytes alive throughout the step, shape (kinds, n)."""

    parameters: KindArray
    gradients: KindArray
    optimizer: KindArray
    gathered: KindArray
    """Unsharded copies that ZeRO 3 (parameters) and ZeRO 2 (gradients) hold temporarily."""
    step_temporary: KindArray
    """Bytes that only the optimizer step needs, less those of gradients that it frees first."""
    widened: KindArray
    """fp32 copies of 16-bit gradients, from the optimizer step until the next step begins."""
    parameters_on_host: KindArray
    """The rank's shard of the parameters where it is stored on the host."""


@of_sizes
def training_state(pricing: Pricing) -> TrainingState:
    """Return the bytes of parameters, gradients and optimizer state by kind of pipeline rank (M2)."""
    scenario, block, profile = pricing.scenario, pricing.block, pricing.scenario.framework
    weights = device_parameters(pricing)
    lora = scenario.lora_rank is not None
    frozen = 1.0 if profile.frozen_reference else 0.0
    trained = device_parameters(pricing, "trained")
    of_trained = _stored_bytes(pricing, trained, cast=profile.parameter_dtype == "fp32")
    parameters = (_frozen_bytes(pricing, weights) if lora else of_trained) * (1.0 + frozen)
    if lora:
        passing = [adapter_casts(pricing, kind) for kind in pricing.contents.layer_kinds]
        parameters = parameters + of_trained - over_layers(pricing.contents.with_prediction, passing)
    if scenario.precision in NARROW or profile.fp8_experts == "kept":
        parameters = parameters + narrow_bytes(pricing)
    parameters = parameters + _unused_bytes(pricing)
    trained_shard = shard(pricing, trained, 1)
    gradients = _gradients(pricing, trained, trained_shard)
    optimizer = trained_shard * optimizer_bytes_per_parameter(scenario) + state_by_class(pricing)
    stepped = trained_shard
    if lora and profile.saved_modules != "none":
        apart = _modules_apart(pricing)
        parameters, gradients, optimizer = parameters + apart[0], gradients + apart[1], optimizer + apart[2]
        stepped = trained_shard - apart[3]
    if profile.fp32_router and scenario.model.is_moe and parameter_dtype(scenario) == "bf16":
        routers = _routers(pricing)
        parameters = parameters + shard(pricing, routers, 3) * (FP32 - HALF)
        if not lora:
            gradients = gradients + shard(pricing, routers, 2) * (FP32 - gradient_bytes(scenario))
            optimizer = optimizer - shard(pricing, routers, 1) * master_bytes(scenario)
    # The optimizer makes fp32 copies of 16-bit gradients for its master weights.
    widens = profile.widened_gradients and master_bytes(scenario) > 0.0 and gradient_bytes(scenario) < FP32
    on_host = np.where((block.zero_stage >= 3) & profile.offload_parameters, parameters, 0.0)
    return TrainingState(
        parameters=parameters - on_host,
        gradients=gradients,
        optimizer=optimizer,
        gathered=gathered(pricing),
        step_temporary=_step_temporary(pricing, stepped, gradients),
        widened=trained_shard * FP32 * widens,
        parameters_on_host=on_host,
    )


def _modules_apart(pricing: Pricing) -> tuple[KindArray | float, ...]:
    """Return the bytes of weights, gradients and state by which modules beside adapters differ from these (M35).

    A copy has the base's type, or fp32, and so have its gradient and torch's moments; autocast casts an output layer in
    fp32, and looks up in a table as it is. An engine with master weights keeps all that is trained alike. Last come the
    parameters that the step's temporaries, priced in fp32, do not fill.
    """
    scenario, profile, stage = pricing.scenario, pricing.scenario.framework, pricing.block.zero_stage
    if master_bytes(scenario):
        return 0.0, 0.0, 0.0, 0.0
    optimizer, number, fp32 = OPTIMIZERS[profile.optimizer], module_bytes(scenario), profile.parameter_dtype == "fp32"
    modules, table = saved_modules(pricing), saved_modules(pricing, "embedding")
    saved, wide = ByClass(modules, np.zeros_like(modules)), number > element_bytes(scenario)
    weights = _stored_bytes(pricing, saved, cast=wide) - _stored_bytes(pricing, saved, cast=fp32)
    weights = weights - np.where(stage < 2, HALF * wide, 0.0) * table
    gradients = shard(pricing, saved, 2) * (number - gradient_bytes(scenario))
    moments = (optimizer.moment_bytes or number) * optimizer.moments["embedding"]
    state = shard(pricing, saved, 1) * (moments - optimizer_bytes_per_parameter(scenario))
    if profile.wide_table_moments and optimizer.wide_table and optimizer.moment_bytes:
        more = (FP32 - optimizer.moment_bytes) * optimizer.moments["embedding"]
        state = state + np.where(stage < 1, more, 0.0) * table
    return weights, gradients, state, shard(pricing, saved, 1) * (1.0 - number / FP32)


def _gradients(pricing: Pricing, trained: ByClass, trained_shard: KindArray) -> KindArray:
    """Return the bytes on the device of gradients that live between a weight's backward pass and its step."""
    scenario, profile, stage = pricing.scenario, pricing.scenario.framework, pricing.block.zero_stage
    gradients = shard(pricing, trained, 2) * gradient_bytes(scenario)
    if profile.master_gradients and gradient_bytes(scenario) < FP32:
        gradients = gradients + trained_shard * FP32
    if profile.gradient_copies and gradient_bytes(scenario) > element_bytes(scenario):
        gradients = gradients + shard(pricing, trained, 2) * element_bytes(scenario)
    if profile.step_in_backward:  # no more than a rank's part of the largest layer's
        layer = largest(local_shard(pricing, piece, 2) for piece in model_totals(scenario).layers)
        gradients = np.minimum(gradients, gradient_bytes(scenario) * layer)
    if profile.frozen_reference and scenario.lora_rank is None and profile.reference_gradients:
        gradients = gradients * np.where(stage >= 1, 1.0, 2.0)
    # A share of reduced gradients goes to the host, to FSDP2's parameters or DeepSpeed's state (M25).
    away = np.where(stage >= 3, float(profile.fully_shard and profile.offload_parameters), 0.0)
    if profile.step_parameters:
        away = np.where(
            stage >= 2, pricing.offloads("optimizer", "optimizer_tensorwise") * profile.offload_fraction, 0.0
        )
    return gradients * (1.0 - away)


def _unused_bytes(pricing: Pricing) -> KindArray | float:
    """Return the bytes of an untied output layer that a reward model holds and does not train (M2)."""
    scenario, profile = pricing.scenario, pricing.scenario.framework
    if not profile.unused_output_layer or not profile.score_head or scenario.model.tie_word_embeddings:
        return 0.0
    weights = scenario.model.vocab_size * scenario.model.hidden_size / pricing.block.tensor_parallel
    return pricing.contents.heads * (element_bytes(scenario) * weights)


@derived
def state_by_class(pricing: Pricing) -> KindArray | float:
    """Return the optimizer state that differs from a matrix parameter's, in bytes, shape (kinds, n) (M2).

    Tables and vectors have more; factored optimizers have fp32 means of rows and columns; where ranks hold whole
    matrices, the largest exceeds an equal share (Megatron-LM core_v0.19.0, core/optimizer/layer_wise_optimizer.py), and
    so does a whole table. Adapters are matrices, and shared evenly.
    """
    scenario = pricing.scenario
    profile, optimizer = scenario.framework, OPTIMIZERS[scenario.framework.optimizer]
    of_matrix = optimizer_bytes_per_parameter(scenario)
    state: KindArray | float = 0.0
    if scenario.lora_rank is not None:
        return state
    for tensor in TENSOR_CLASSES[1:]:
        more = optimizer_bytes_per_parameter(scenario, tensor) - of_matrix
        if more:
            state = state + more * shard(pricing, device_parameters(pricing, tensor), 1)
    if optimizer.factored:
        # DeepSpeed steps on its flat partition (v0.19.5, runtime/zero), of which nothing is a row or a column.
        flat = (pricing.block.zero_stage >= 1) & (not profile.fully_shard)
        whole = sum(shard(pricing, device_parameters(pricing, name), 1) for name in ("matrix", "embedding"))
        sides = shard(pricing, device_parameters(pricing, "sides"), 1)
        state = state + FP32 * np.where(flat, whole, sides)
    table = device_parameters(pricing, "embedding").dense
    if optimizer.newton_schulz_steps and not profile.fully_shard:
        state = state + of_matrix * _uneven_shares(pricing)
        if profile.whole_table_state:
            above = table - shard(pricing, ByClass(table, np.zeros_like(table)), 1)
            state = state + optimizer_bytes_per_parameter(scenario, "embedding") * above
    if profile.wide_table_moments and optimizer.wide_table and optimizer.moment_bytes:
        # bitsandbytes finds the module's own tensor, which sharding replaces.
        each = (FP32 - optimizer.moment_bytes) * optimizer.moments["embedding"]
        inputs = pricing.contents.embeddings * local_count(pricing, model_totals(scenario).embedding)
        state = state + np.where(pricing.block.zero_stage < 1, each * inputs, 0.0)
    return state


def orthogonal_step(pricing: Pricing) -> KindArray | float:
    """Return the bytes that orthogonalizing matrix updates takes in the optimizer step, shape (kinds, n) (M2)."""
    scenario, block = pricing.scenario, pricing.block
    if not OPTIMIZERS[scenario.framework.optimizer].newton_schulz_steps or scenario.lora_rank is not None:
        return 0.0
    held = np.broadcast_to(orthogonal_bytes(pricing), (len(pricing.contents.ranks), len(pricing)))
    if not scenario.framework.fully_shard:
        return held
    ranks = np.where(block.zero_stage >= 1, shard_degrees(pricing).dense, 1.0)
    return held + gathered_bytes(pricing, ranks)


def _uneven_shares(pricing: Pricing) -> KindArray:
    """Return the parameters by which a device's largest matrix exceeds an equal share, dense plus experts'."""
    matrices, degrees, largest = device_parameters(pricing, "matrix"), shard_degrees(pricing), largest_matrix(pricing)
    above = sum(
        np.maximum(np.minimum(matrix, whole) - whole / degree, 0.0)
        for whole, degree, matrix in zip(matrices, degrees, largest, strict=True)
    )
    return np.asarray(np.where(pricing.block.zero_stage >= 1, above, 0.0))


def _step_temporary(pricing: Pricing, trained: KindArray, gradients: KindArray) -> KindArray:
    """Return the fp32 temporaries of the optimizer step: of all parameters of the rank, or of the largest tensor."""
    profile = pricing.scenario.framework
    if OPTIMIZERS[profile.optimizer].newton_schulz_steps:
        return np.zeros_like(trained) + orthogonal_step(pricing)
    if profile.step_parameters and not profile.step_in_backward:
        return _flat_step(pricing, trained, gradients)
    return step_bytes(pricing, trained, lambda: largest_weight(pricing))


def step_bytes(pricing: Pricing, trained: KindArray, largest: Callable[[], Array]) -> KindArray:
    """Return the bytes that a step makes for all `trained` parameters at once, or for the `largest` tensor of them."""
    profile, optimizer = pricing.scenario.framework, OPTIMIZERS[pricing.scenario.framework.optimizer]
    at_once = profile.foreach_optimizer and not (optimizer.by_tensor or profile.step_in_backward)
    if not (profile.foreach_optimizer or profile.largest_tensor_step or optimizer.by_tensor):
        return np.broadcast_to(0.0, trained.shape)
    # Adam's root has the type of its moments.
    width = FP32 if optimizer.step_numbers is not None else min(FP32, float(DTYPE_BYTES[profile.optimizer_dtype]))
    return width * step_numbers(pricing.scenario) * (trained if at_once else np.minimum(trained, largest()))


def step_numbers(scenario: Scenario) -> float:
    """Return the fp32 numbers that the optimizer step makes for each parameter it works on (M29)."""
    profile, optimizer = scenario.framework, OPTIMIZERS[scenario.framework.optimizer]
    cast = optimizer.by_tensor and parameter_dtype(scenario) != "fp32" and not master_bytes(scenario)
    return float(profile.step_temporaries) if optimizer.step_numbers is None else optimizer.step_numbers + 2.0 * cast


def _flat_step(pricing: Pricing, trained: KindArray, gradients: KindArray) -> KindArray:
    """Return what DeepSpeed's step adds to state and gradients, less the gradients that it frees first (M28)."""
    scenario, stage = pricing.scenario, pricing.block.zero_stage
    whole, each = stage < 3, gradient_bytes(scenario)
    worked = np.where(whole, trained, np.minimum(trained, float(scenario.framework.step_parameters)))
    copied = worked * (np.where(stage < 1, FP32, each) + (FP32 if each < FP32 else 0.0))
    norm = np.where(whole & (stage >= 1), 2.0 * FP32 * np.minimum(worked, largest_weight(pricing)), 0.0)
    updated = worked * FP32 * (1.0 + step_numbers(scenario)) - np.where(whole, each * worked, 0.0)
    others = np.where(whole, gradients - each * trained, 0.0)
    away = pricing.offloads("optimizer", "optimizer_tensorwise") * scenario.framework.offload_fraction
    return np.asarray((np.maximum(np.maximum(copied, norm), updated) - others) * (1.0 - away))


@derived
def largest_weight(pricing: Pricing, *, sharded: bool = False) -> Array:
    """Return the parameters of the largest local tensor, shape (n,); gate and up are fused, as are local experts."""
    count = local_shard if sharded else local_count
    return np.asarray(largest(count(pricing, piece) for piece in _largest_pieces(conditions_of(pricing.scenario))))


@remembered
def _largest_pieces(conditions: Conditions) -> tuple[WeightTotals, ...]:
    """Return the largest tensor of each class: among tensors split alike it is the largest on every device."""
    pieces: dict[str, WeightTotals] = {}
    for operation in _table_and_layers(conditions):
        fused: Counter[tuple[int, str]] = Counter()
        for weight in operation.weights:
            fused[weight.inputs, weight.split] += weight.parameters
        for weight in operation.weights:
            piece = classed(weight, float(fused[weight.inputs, weight.split]))
            pieces[weight.split] = max(piece, pieces.get(weight.split, piece), key=lambda each: each.all)
    return tuple(pieces.values())


def _table_and_layers(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the input table and the operations of one layer of each kind."""
    return (
        embedding(conditions),
        *(operation for kind in conditions.model.layer_kinds for operation in layer_operations(conditions, kind)),
    )


def _quantised(pricing: Pricing, weights: ByClass) -> KindArray:
    """Return the bytes of frozen weights: linear ones in 4 bits with a scale per 64 (Dettmers et al. 2023).

    Routed experts that are one parameter of a layer are no linear layer to bitsandbytes 0.49 (its issue 1849).
    """
    scenario = pricing.scenario
    quantised = linear_by_class(pricing)
    if not scenario.framework.quantised_experts:
        quantised = quantised._replace(routed=np.zeros_like(quantised.routed))
    linear = shard(pricing, quantised, 3)
    rest = shard(pricing, weights, 3) - linear
    held = linear * quantised_bytes(scenario) + rest * np.where(widened_rest(pricing), FP32, HALF)
    # A head of 4 bits; the table's first copy and its gradient.
    other = scenario.framework.quantised_head * (quantised_bytes(scenario) - HALF + 2.0 * HALF)
    return np.asarray(held + end_table(pricing) * other)


@derived
def dequantised_bytes(pricing: Pricing) -> float | Array:
    """Return the bytes of a quantised base's largest weight, 8 bits as wide as the input, shape (n,) (M38)."""
    scenario, profile = pricing.scenario, pricing.scenario.framework
    width = np.where(has_wide_stream(pricing) & (profile.quantised_bits == "8"), FP32, HALF)
    widened = (scenario.lora_rank is not None) * profile.quantised_base * (1.0 + profile.quantised_head) * width
    layers = (layer_operations(conditions_of(scenario), kind) for kind in scenario.model.layer_kinds)
    largest = max(each.inputs * each.outputs for layer in layers for each in weights_of(layer) if each.matmul)
    return widened * largest / pricing.block.tensor_parallel


def _routers(pricing: Pricing) -> ByClass:
    """Return the parameters of the layers' routers, replicated on every rank."""
    conditions, contents = conditions_of(pricing.scenario), pricing.contents
    weights = (weights_of(layer_operations(conditions, kind)) for kind in contents.layer_kinds)
    of_kind = [np.array([float(sum(w.parameters for w in each if w.name == "router"))]) for each in weights]
    routers = over_layers(contents.with_prediction, of_kind)
    return ByClass(routers, np.zeros_like(routers))


def _stored_bytes(pricing: Pricing, value: ByClass, *, cast: bool) -> KindArray:
    """Return the bytes of stored parameters, with 16-bit copies where they are stored in fp32 and `cast` (M2)."""
    scenario, block = pricing.scenario, pricing.block
    stage, element, apart = block.zero_stage, element_bytes(scenario), gathers_apart(scenario.framework)
    copied = stage == 2 if scenario.precision == "fp32" else stage < 3
    if not cast:  # FSDP gathers into other tensors than its parts, DeepSpeed into the same
        copied = apart & (block.replicas > 1.0) & (stage >= 1) & (stage < 3)
    whole = (value.dense + value.routed) * np.where(copied, element, 0.0)
    return shard(pricing, value, 1 if apart else 2 if cast else 3) * (FP32 if cast else element) + whole


def gathers_apart(profile: FrameworkProfile) -> bool:
    """Return whether weights are gathered beside their parts, as FSDP does and DeepSpeed does not."""
    return profile.fully_shard and not (profile.live_parameters or profile.step_parameters)


def _frozen_bytes(pricing: Pricing, weights: ByClass) -> KindArray:
    """Return the bytes of frozen weights, of the compute type or in fp32 (M2)."""
    scenario = pricing.scenario
    if scenario.framework.quantised_base:
        return _quantised(pricing, weights)
    stored, sharded = (_stored_bytes(pricing, weights, cast=cast) for cast in (False, True))
    if not scenario.frozen_in_fp32:
        return stored
    return np.asarray(np.where(pricing.block.zero_stage >= 1, sharded, stored * (FP32 / HALF)))


def narrow_bytes(pricing: Pricing) -> KindArray:
    """Return the bytes that fp8 adds to stored weights: its copies, less the 16-bit weights that they replace.

    Weights stored in fp32 or sharded (ZeRO 3) are not replaced. fp8 in routed experts alone keeps one copy per pass.
    """
    scenario, block = pricing.scenario, pricing.block
    if scenario.precision not in NARROW:
        return 2.0 * linear_by_class(pricing).routed
    instead = scenario.framework.fp8_param_gather and parameter_dtype(scenario) == "bf16"
    replaced = np.where(block.zero_stage < 3, element_bytes(scenario) if instead else 0.0, 0.0)
    copies = np.maximum(cached_bytes(scenario), np.where(replaced > 0.0, narrow_number_bytes(scenario), 0.0))
    return sum(linear_by_class(pricing)) * (copies - replaced)


def cached_bytes(scenario: Scenario) -> float:
    """Return the bytes of a linear weight's cached copies; Blackwell's products take 8-bit matrices of any layout.

    A device of compute capability 10 keeps no transpose (NVIDIA/TransformerEngine d0067d0, pytorch/tensor/storage/
    float8_tensor_storage.py, `update_usage`, and utils.py, `is_non_tn_fp8_gemm_supported`).
    """
    transposed = any(device.family != "blackwell" for device in scenario.kinds_of_device)
    return narrow_weight_bytes(scenario, transposed=transposed)


@derived
def gathered(pricing: Pricing, *, at_loss: bool = False) -> KindArray:
    """Return the bytes of the whole layers that ZeRO 2 and 3 gather (M2, M24), `at_loss` under FSDP one or none (M37).

    A base in 4 bits is gathered as it is stored (torchao 0598012, dtypes/nf4tensor.py,
    `_INNER_TENSOR_NAMES_FOR_SHARDING`).
    """
    scenario, block, profile = pricing.scenario, pricing.block, pricing.scenario.framework
    layer = largest(local_count(pricing, piece) for piece in model_totals(scenario).layers)
    element, gradient = element_bytes(scenario), gradient_bytes(scenario)
    narrowed = element - quantised_bytes(scenario) if profile.quantised_base else 0.0
    quantised = largest_linear_layer(pricing, routed=profile.quantised_experts)
    of_layer = layer * element - narrowed * quantised
    begins = at_loss and gathers_apart(profile)
    flat, outer = profile.fully_shard and profile.flat_parameters, profile.fully_shard and profile.outer_unit
    prepared = begins and profile.plain_module and not flat
    late = prepared or (begins and flat and not profile.backward_prefetch)
    ahead = 0.0 if late else 1.0 if begins or flat else 2.0
    weights = np.where(block.zero_stage >= 3, ahead * of_layer, 0.0)
    whole = layer if scenario.lora_rank is None else np.minimum(end_table(pricing), saved_modules(pricing))
    none_yet = at_loss and (profile.fully_shard or profile.step_parameters > 0)
    gradients = np.where((block.zero_stage >= 2) & (not none_yet), whole * gradient, 0.0)
    tables = 2.0 - scenario.model.tie_word_embeddings if flat or outer else 1.0
    ends = end_table(pricing) * np.where(block.zero_stage >= 3, element * tables, 0.0)
    held: KindArray = weights + gradients + ends
    if outer and scenario.lora_rank is None and not at_loss:  # the output layer's waits for the table's
        held = held + end_table(pricing) * np.where(block.zero_stage >= 3, gradient, 0.0)
    if prepared:  # as it was gathered, in the forward pass: an fp32 gradient less, or before logits beside a layer
        less = np.minimum((FP32 - element) * logits_per_micro_batch(pricing), loss_bytes(pricing) - of_layer)
        ends = np.where(block.zero_stage >= 2, element, 0.0) * end_table(pricing)
        held = held + (ends > 0.0) * np.maximum(ends - less, 0.0)
    if profile.live_parameters:
        held = np.where(block.zero_stage >= 3, _live_bytes(pricing, layer) + gradients, held)
    elif not profile.step_parameters:
        return held
    # ZeRO 3 copies a bucket, rank by rank, before it scatters it (runtime/comm/coalesced_collectives.py); pipelines
    # reduce after the passes.
    copies = float(scenario.trains("embedding") or scenario.trains("output"))
    buffers = np.where(block.zero_stage >= 3, copies, float(profile.reduction_buffers))
    during = (block.zero_stage >= 1) & (block.pipeline_parallel == 1)
    return held + np.where(during, buffers * _bucket_bytes(scenario), 0.0)


def _bucket_bytes(scenario: Scenario) -> float:
    """Return the bytes of one flat buffer that DeepSpeed reduces gradients from; adapters fill a part of it (M24)."""
    return element_bytes(scenario) * (scenario.framework.reduction_parameters or float(scenario.model.hidden_size) ** 2)


def lasting_buckets(pricing: Pricing) -> KindArray:
    """Return the bytes of buffers that gradients are reduced from in every step, shape (kinds, n) (M24, M36).

    ZeRO 1 and 2 free theirs when a backward pass ends (stage_1_and_2.py, `_release_ipg_buffers`).
    """
    scenario, block, profile = pricing.scenario, pricing.block, pricing.scenario.framework
    reduces = (block.zero_stage >= 3) & (block.pipeline_parallel == 1)
    engine = bool(profile.live_parameters or profile.step_parameters)
    copied = profile.plain_module & (block.zero_stage < 1) & (block.replicas > 1.0)
    return np.where(copied, training_state(pricing).gradients, np.where(reduces & engine, _bucket_bytes(scenario), 0.0))


def _live_bytes(pricing: Pricing, layer: Array) -> KindArray:
    """Return the bytes that DeepSpeed's ZeRO 3 holds gathered as forward turns to backward, shape (kinds, n) (M24)."""
    scenario, profile = pricing.scenario, pricing.scenario.framework
    parts, square = device_parameters(pricing), float(scenario.model.hidden_size) ** 2
    used = np.maximum(layer, end_table(pricing))
    # transformers 4.57, integrations/deepspeed.py, `trainer_config_finalize`.
    ahead = float(profile.prefetch_parameters) or 0.9 * square
    reused = np.minimum(profile.reuse_parameters / 2.0 + ahead, np.maximum(profile.live_parameters - used, 0.0))
    # No backward pass reads a frozen table, unless checkpoints have its output as an input.
    unread = scenario.lora_rank is not None and not (scenario.model.tie_word_embeddings or scenario.trains("embedding"))
    table = np.where(recompute_plan(pricing).on_rank.any(axis=0), 0.0, unread * end_table(pricing))
    return np.asarray(element_bytes(scenario) * np.minimum(used + reused, parts.dense + parts.routed - table))


@derived
def end_table(pricing: Pricing) -> KindArray:
    """Return the parameters of a vocabulary table on ranks that hold one, shape (kinds, n); 0 elsewhere."""
    ends = np.maximum(pricing.contents.embeddings, pricing.contents.heads)
    return np.asarray(ends * local_count(pricing, model_totals(pricing.scenario).embedding))


@derived
def kept_gathers_bytes(pricing: Pricing) -> KindArray | float:
    """Return the bytes of `kept_gathers` beside those of `_live_bytes`, shape (kinds, n), or 0 (M24)."""
    scenario, profile = pricing.scenario, pricing.scenario.framework
    if not (profile.kept_gathers and profile.live_parameters):
        return 0.0
    layer = largest(local_count(pricing, piece) for piece in model_totals(scenario).layers)
    gathered = np.minimum(sum(linear_by_class(pricing)) + end_table(pricing), sum(device_parameters(pricing)))
    more = np.maximum(element_bytes(scenario) * gathered - _live_bytes(pricing, layer), 0.0)
    repeated = recompute_plan(pricing).on_rank.sum(axis=0) / np.maximum(pricing.contents.num_layers, 1.0)
    return np.where(pricing.block.zero_stage >= 3, more * np.maximum(1.0 - repeated, 0.0), 0.0)


def resident_optimizer(pricing: Pricing, optimizer: KindArray) -> KindArray:
    """Return the optimizer state on the device between optimizer steps, shape (kinds, n)."""
    profile, resident = pricing.scenario.framework, optimizer
    if OPTIMIZERS[profile.optimizer].paged:
        resident = shard(pricing, device_parameters(pricing, "small adapters"), 1)
        resident = resident * optimizer_bytes_per_parameter(pricing.scenario)
    return resident - resident * (pricing.offloads("optimizer", "optimizer_tensorwise") * profile.offload_fraction)


def optimizer_on_device(pricing: Pricing, optimizer: KindArray) -> tuple[KindArray, KindArray]:
    """Return the optimizer state on the device in the passes, and in the optimizer step, each of shape (kinds, n)."""
    resident, by_tensor = resident_optimizer(pricing, optimizer), pricing.offloads("optimizer_tensorwise")
    by_tensor = by_tensor | OPTIMIZERS[pricing.scenario.framework.optimizer].paged
    if "optimizer" not in pricing.scenario.framework.limits.offloads:
        # Paddle alone brings the whole state back.
        by_tensor = by_tensor | pricing.offloads("optimizer")
    if not by_tensor.any():
        return resident, optimizer
    brought = np.minimum(largest_state_tensor(pricing), optimizer - resident)
    return resident, np.where(by_tensor, resident + brought, optimizer)


@of_sizes
def largest_state_tensor(pricing: Pricing) -> Array:
    """Return the optimizer state of the largest tensor, which tensor-wise offload brings back, shape (n,).

    A rank's experts are stored as one grouped tensor.
    """
    scenario = pricing.scenario
    # Among tensors split alike, the largest is the largest on every device.
    weights = sorted(weights_of(_table_and_layers(conditions_of(scenario))), key=lambda weight: weight.parameters)
    classes = [classed(each, float(each.parameters)) for each in {each.split: each for each in weights}.values()]
    parameters: Array = largest(local_shard(pricing, piece) for piece in classes)
    return parameters * max(optimizer_bytes_per_parameter(scenario, tensor) for tensor in TENSOR_CLASSES)
