"""Parameters on one device and the training state they bring with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.memory.elements import (
    FP32,
    HALF,
    element_bytes,
    gradient_bytes,
    master_bytes,
    optimizer_bytes_per_parameter,
    parameter_dtype,
)
from simulator.question.scenario.block import Array, KindArray, LayoutBlock
from simulator.question.scenario.layout import OFFLOADS, model_chunks
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.weights import (
    Weight,
    embedding_weight,
    final_norm,
    head_weight,
    layer_weights,
    mtp_weights,
)


@dataclass(frozen=True, slots=True)
class WeightTotals:
    """Parameters of a group of weights, by the way they are divided."""

    split: float = 0.0
    """Divided over the tensor-parallel group (column, row and vocabulary splits)."""
    replicated: float = 0.0
    """Whole on every tensor-parallel rank (norms, router, low-rank down projections)."""
    routed: float = 0.0
    """Routed experts: divided over expert parallel x expert tensor parallel."""

    def __add__(self, other: WeightTotals) -> WeightTotals:
        return WeightTotals(self.split + other.split, self.replicated + other.replicated, self.routed + other.routed)


def weight_totals(weights: tuple[Weight, ...], *, matmul_only: bool = False) -> WeightTotals:
    """Sum `weights` by class; `matmul_only` leaves norms and biases out."""
    sums = {"split": 0, "replicated": 0, "routed": 0}
    for weight in weights:
        if matmul_only and not weight.matmul:
            continue
        sums[_weight_class(weight)] += weight.inputs * weight.outputs * weight.copies
    return WeightTotals(**{name: float(value) for name, value in sums.items()})


def adapter_totals(weights: tuple[Weight, ...], rank: int) -> WeightTotals:
    """LoRA parameters of rank `rank` on every linear weight: rank x (inputs + outputs), divided as the weight is.

    Megatron and Paddle split one of the two adapter matrices with the weight and keep the other whole: the inner
    matrix on the unsplit side is replicated.
    """
    split = replicated = routed = 0.0
    for weight in weights:
        if not weight.matmul or weight.split == "vocabulary":
            continue
        first, second = rank * weight.inputs * weight.copies, rank * weight.outputs * weight.copies
        if weight.split == "column":
            replicated, split = replicated + first, split + second
        elif weight.split == "row":
            split, replicated = split + first, replicated + second
        elif weight.split == "replicated":
            replicated += first + second
        else:
            routed += first + second
    return WeightTotals(split, replicated, routed)


def _weight_class(weight: Weight) -> str:
    if weight.split in ("expert_column", "expert_row"):
        return "routed"
    return "replicated" if weight.split == "replicated" else "split"


@dataclass(frozen=True, slots=True)
class StageContents:
    """What the pipeline ranks hold. Ranks with equal contents are one kind, priced once; arrays of shape (kinds,)."""

    kind: NDArray[np.intp]
    """Kind of every pipeline rank, shape (pipeline_parallel,); `array[kind]` spreads a kind's figure over the ranks."""
    ranks: Array
    """Pipeline ranks of each kind."""
    dense_by_chunk: Array
    """Dense layers in each model chunk, shape (kinds, chunks)."""
    group: NDArray[np.intp]
    """Node group whose devices the kind is on; all 0 in a uniform cluster."""
    dense_layers: Array
    moe_layers: Array
    listed_dense: Array
    """Dense layers on the explicit recompute list."""
    listed_moe: Array
    embeddings: Array
    """1 where the input table lives (with tied embeddings also on the last rank)."""
    heads: Array
    """1 on the last rank."""
    mtp_layers: Array


def stage_contents(scenario: Scenario, block: LayoutBlock) -> StageContents:
    """Layers by kind on each pipeline rank; the model's first layers are the dense ones."""
    model = scenario.model
    first_moe = model.num_dense_layers
    last = block.pipeline_parallel - 1
    prediction = model.num_nextn_predict_layers if scenario.framework.mtp else 0
    contents: list[tuple[int, ...]] = []
    dense_by_chunk: list[tuple[int, ...]] = []
    for rank, chunks in enumerate(model_chunks(block.stage_layers, block.virtual_stages)):
        dense = tuple(min(max(first_moe - start, 0), layers) for start, layers in chunks)
        listed = [x for x in block.recompute_layer_list if any(start <= x < start + n for start, n in chunks)]
        listed_dense = sum(x < first_moe for x in listed)
        head = int(rank == last)
        layers = sum(n for _, n in chunks)
        contents.append(
            (
                sum(dense),
                layers - sum(dense),
                listed_dense,
                len(listed) - listed_dense,
                int(rank == 0),
                head,
                head * prediction,
            )
        )
        dense_by_chunk.append(dense)
    width = scenario.devices // block.pipeline_parallel
    groups = [scenario.group_of(rank * width) for rank in range(block.pipeline_parallel)]
    identities = list(zip(contents, dense_by_chunk, groups, strict=True))
    kinds = list(dict.fromkeys(identities))
    columns = np.array([content for content, _, _ in kinds], dtype=np.float64).T
    kind = np.array([kinds.index(identity) for identity in identities], dtype=np.intp)
    ranks = np.bincount(kind).astype(np.float64)
    by_chunk = np.array([dense for _, dense, _ in kinds], dtype=np.float64)
    group = np.array([group for _, _, group in kinds], dtype=np.intp)
    return StageContents(kind, ranks, by_chunk, group, *columns)


@dataclass(frozen=True, slots=True)
class ModelTotals:
    """Parameter totals of the pieces a stage is made of; None of them depends on the layout."""

    dense_layer: WeightTotals
    moe_layer: WeightTotals
    embedding: WeightTotals
    head: WeightTotals
    mtp_layer: WeightTotals


def model_totals(scenario: Scenario, *, adapters: bool = False) -> ModelTotals:
    """Totals of the model's pieces, or of the LoRA adapters on them."""
    model = scenario.model
    rank = scenario.lora_rank or 0

    def totals(weights: tuple[Weight, ...]) -> WeightTotals:
        return adapter_totals(weights, rank) if adapters else weight_totals(weights)

    empty = WeightTotals()
    return ModelTotals(
        dense_layer=totals(layer_weights(model, moe=False)) if model.num_dense_layers else empty,
        moe_layer=totals(layer_weights(model, moe=True)) if model.is_moe else empty,
        embedding=totals((embedding_weight(model),)),
        head=totals((head_weight(model), final_norm(model))),
        mtp_layer=totals(mtp_weights(model)) if model.num_nextn_predict_layers else empty,
    )


@dataclass(frozen=True, slots=True)
class DeviceParameters:
    """Parameters on one device, by the group that could shard them further; shape (kinds, n)."""

    dense: KindArray
    """Everything but routed experts; replicated over data x context parallel."""
    routed: KindArray
    """Routed experts; replicated over the expert-data-parallel group."""


def device_parameters(
    scenario: Scenario, block: LayoutBlock, has: StageContents, *, adapters: bool = False
) -> DeviceParameters:
    """Parameters (or adapter parameters) per kind of pipeline rank before any ZeRO sharding.

    Three classes with their own divisors: tensor parallel; none; expert parallel x expert tensor parallel.
    """
    totals = model_totals(scenario, adapters=adapters)
    tied = scenario.model.tie_word_embeddings
    head = totals.head
    embeddings = has.embeddings
    if scenario.framework.mtp and scenario.model.num_nextn_predict_layers:
        # A prediction layer embeds the next token: the last rank has its own copy of the table.
        embeddings = np.maximum(has.embeddings, has.heads)
    if tied:
        # The output layer uses the input table; with a pipeline the last rank holds its own copy of it.
        head = WeightTotals(head.split - totals.embedding.split, head.replicated, head.routed)
        embeddings = np.maximum(has.embeddings, has.heads)

    def per_stage(name: str) -> Array:
        def part(piece: WeightTotals) -> float:
            return float(getattr(piece, name))

        return (
            has.dense_layers * part(totals.dense_layer)
            + has.moe_layers * part(totals.moe_layer)
            + embeddings * part(totals.embedding)
            + has.heads * part(head)
            + has.mtp_layers * part(totals.mtp_layer)
        )

    dense = per_stage("split")[:, None] / block.tensor_parallel + per_stage("replicated")[:, None]
    experts = block.expert_ranks
    routed = per_stage("routed")[:, None] / experts
    return DeviceParameters(dense, routed)


@dataclass(frozen=True, slots=True)
class ShardDegrees:
    """Ranks that ZeRO shards over, shape (n,)."""

    dense: Array
    routed: Array


def shard_degrees(scenario: Scenario, block: LayoutBlock) -> ShardDegrees:
    """All ranks with the same parameters, or the profile's `sharding_degree` of them; experts in proportion."""
    degree = float(scenario.framework.sharding_degree)
    if not degree:
        return ShardDegrees(block.replicas, block.expert_replicas)
    dense = np.minimum(degree, block.replicas)
    return ShardDegrees(dense, np.maximum(block.expert_replicas * dense / block.replicas, 1.0))


def shard(scenario: Scenario, block: LayoutBlock, value: DeviceParameters, from_stage: int) -> KindArray:
    """Parameters left on a device when ZeRO shards them from a stage on (Rajbhandari et al. 2020, section 5)."""
    on = block.zero_stage >= from_stage
    degrees = shard_degrees(scenario, block)
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
    parameters_on_host: KindArray
    """The rank's part of the parameters where it is kept in host memory."""


def training_state(scenario: Scenario, block: LayoutBlock, has: StageContents) -> TrainingState:
    """Bytes of parameters, gradients and optimizer state by kind of pipeline rank.

    ZeRO 1 shards the optimizer state over the replica group, 2 also the gradients, 3 also the parameters
    (Rajbhandari et al. 2020, section 5). fp8 keeps the 16-bit weights and adds two 8-bit copies of every linear
    weight (measured: fp8 runs take more memory than bf16 ones).
    """
    profile = scenario.framework
    weights = device_parameters(scenario, block, has)
    lora = scenario.lora_rank is not None
    trained = device_parameters(scenario, block, has, adapters=True) if lora else weights
    parameters = _stored_bytes(scenario, block, weights, cast=profile.parameter_dtype == "fp32" and not lora)
    if lora:
        parameters = parameters + _stored_bytes(scenario, block, trained, cast=profile.parameter_dtype == "fp32")
    if scenario.precision == "fp8" and profile.fp8_weight_cache:
        parameters = parameters + linear_parameters(scenario, block, has) * 2.0
    trained_shard = shard(scenario, block, trained, 1)
    gradients = shard(scenario, block, trained, 2) * gradient_bytes(scenario)
    optimizer = trained_shard * optimizer_bytes_per_parameter(scenario)
    if profile.fp32_router and scenario.model.is_moe and parameter_dtype(scenario) == "bf16":
        routers = _routers(scenario, block, has)
        parameters = parameters + shard(scenario, block, routers, 3) * (FP32 - HALF)
        if not lora:
            gradients = gradients + shard(scenario, block, routers, 2) * (FP32 - gradient_bytes(scenario))
            optimizer = optimizer - shard(scenario, block, routers, 1) * master_bytes(scenario)
    on_host = np.zeros_like(parameters)
    if profile.offload_parameters:
        on_host = np.where(block.zero_stage >= 3, parameters, 0.0)
    return TrainingState(
        parameters=parameters - on_host,
        gradients=gradients,
        optimizer=optimizer,
        gathered=_gathered(scenario, block, has),
        step_temporary=trained_shard * (4.0 if profile.foreach_optimizer else 0.0),
        parameters_on_host=on_host,
    )


def _routers(scenario: Scenario, block: LayoutBlock, has: StageContents) -> DeviceParameters:
    """Parameters of the layers' routers, whole on every rank."""
    model = scenario.model
    layers = has.moe_layers + has.mtp_layers
    routers = np.broadcast_to(
        (layers * float(model.hidden_size * model.num_experts))[:, None], (len(layers), len(block))
    )
    return DeviceParameters(routers, np.zeros_like(routers))


def _stored_bytes(scenario: Scenario, block: LayoutBlock, value: DeviceParameters, *, cast: bool) -> KindArray:
    """Bytes of parameters as stored, with the copies that compute uses where they are stored in fp32 and `cast`.

    Parameters stored as computed with are whole below ZeRO 3. Those cast from fp32 are sharded from ZeRO 2 on, with
    `fully_shard` from ZeRO 1 on; below ZeRO 3 a whole 16-bit copy is alive beside them (autocast's cast weights, or
    the gathered copy). In fp32 training nothing is cast, so only that gathered copy remains.
    """
    if not cast:
        return shard(scenario, block, value, 3) * element_bytes(scenario)
    copied = block.zero_stage == 2 if scenario.precision == "fp32" else block.zero_stage < 3
    copies = np.where(copied, element_bytes(scenario), 0.0)
    whole = (value.dense + value.routed) * copies
    return shard(scenario, block, value, 1 if scenario.framework.fully_shard else 2) * 4.0 + whole


def linear_parameters(scenario: Scenario, block: LayoutBlock, has: StageContents) -> KindArray:
    """Parameters of the layers' linear weights on one device (what fp8 caches); embedding and head stay 16 bit."""
    model = scenario.model
    experts = block.expert_ranks
    result = np.zeros((len(has.ranks), len(block)))
    extra = has.mtp_layers
    dense = has.dense_layers + (0.0 if model.is_moe else extra)
    for moe, count in ((False, dense), (True, has.moe_layers + (extra if model.is_moe else 0.0))):
        if not count.any():
            continue
        totals = weight_totals(layer_weights(model, moe=moe), matmul_only=True)
        per_layer = totals.split / block.tensor_parallel + totals.replicated + totals.routed / experts
        result = result + count[:, None] * per_layer
    return result


def _gathered(scenario: Scenario, block: LayoutBlock, has: StageContents) -> KindArray:
    """Bytes of the whole layers that ZeRO 2 and 3 gather.

    Two layers' weights (one used, one prefetched) under ZeRO 3; one layer's unsharded gradients under 2 and 3.
    """
    totals = model_totals(scenario)
    experts = block.expert_ranks

    def whole(piece: WeightTotals) -> Array:
        return piece.split / block.tensor_parallel + piece.replicated + piece.routed / experts

    layer = np.maximum(whole(totals.dense_layer), whole(totals.moe_layer))
    element, gradient = element_bytes(scenario), gradient_bytes(scenario)
    weights = np.where(block.zero_stage >= 3, 2.0 * layer * element, 0.0)
    gradients = np.where(block.zero_stage >= 2, layer * gradient, 0.0)
    if scenario.lora_rank is not None:
        gradients = gradients * 0.0
    table = whole(totals.embedding) * np.where(block.zero_stage >= 3, element, 0.0)
    ends = np.maximum(has.embeddings, has.heads)[:, None] * table
    return np.broadcast_to(weights + gradients, ends.shape) + ends


def optimizer_on_device(scenario: Scenario, block: LayoutBlock, optimizer: KindArray) -> tuple[KindArray, KindArray]:
    """Optimizer state on the device during the passes and in the optimizer step, shape (kinds, n)."""
    whole = block.offload == OFFLOADS.index("optimizer")
    by_tensor = block.offload == OFFLOADS.index("optimizer_tensorwise")
    away = optimizer * scenario.framework.offload_fraction
    resident = np.where(whole | by_tensor, optimizer - away, optimizer)
    in_step = optimizer
    if by_tensor.any():
        brought = np.minimum(largest_state_tensor(scenario, block), away)
        in_step = np.where(by_tensor, resident + brought, in_step)
    return resident, in_step


def largest_state_tensor(scenario: Scenario, block: LayoutBlock) -> Array:
    """Optimizer state of the largest single tensor, what tensor-wise offload brings back at a time, shape (n,)."""
    model = scenario.model
    experts = block.expert_ranks
    sharded, degrees = block.zero_stage >= 1, shard_degrees(scenario, block)
    largest = np.zeros(len(block))
    kinds = ([False] if model.num_dense_layers else []) + ([True] if model.is_moe else [])
    weights = [embedding_weight(model), *(w for moe in kinds for w in layer_weights(model, moe=moe))]
    for weight in weights:
        kind = _weight_class(weight)
        # Experts of one rank are stored as one grouped tensor.
        size = float(weight.inputs * weight.outputs * weight.copies)
        divisors: dict[str, Array] = {
            "split": block.tensor_parallel,
            "replicated": np.ones(len(block)),
            "routed": experts,
        }
        degree = np.where(sharded, degrees.routed if kind == "routed" else degrees.dense, 1.0)
        largest = np.maximum(largest, size / divisors[kind] / degree)
    return largest * optimizer_bytes_per_parameter(scenario)
