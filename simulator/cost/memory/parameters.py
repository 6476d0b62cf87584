"""Parameters on one device by what divides them, and the ranks that ZeRO shards them over. Counts, not bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from simulator.cost.derived import Pricing, derived, of_sizes, of_work
from simulator.cost.operations.conditions import Conditions, conditions_of
from simulator.cost.operations.ends import embedding, inputs, output_layer, prediction
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Operation
from simulator.cost.operations.sums import (
    WeightTotals,
    adapters_of,
    class_totals,
    side_totals,
    weight_totals,
)
from simulator.cost.stages import StageContents, over_layers
from simulator.question.arrays import largest
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.specs.optimizers import TensorClass


@dataclass(frozen=True, slots=True, eq=False)
class ModelTotals:
    """Parameter totals of the model's pieces, whatever the layout. Equal models share one object."""

    layers: tuple[WeightTotals, ...]
    """Totals of one layer of each kind."""
    embedding: WeightTotals
    inputs: WeightTotals
    """Learned positions and the norm of embedded tokens, on the first pipeline rank."""
    head: WeightTotals
    """Final norm and output layer."""
    last_norm: WeightTotals
    """The final norm alone: all that an output layer tied to the input table stores of its own."""
    prediction: WeightTotals
    """A multi-token prediction module without its layer."""


Counted = TensorClass | Literal["parameters", "adapters", "sides"]
"""What to count: all parameters, those of a tensor class, of LoRA adapters, or rows and columns of matrices."""


def model_totals(scenario: Scenario, counted: Counted = "parameters") -> ModelTotals:
    """Return the totals of the model's pieces for what is `counted`."""
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
    """Parameters on one device, by the ranks that replicate them; shape (kinds, n)."""

    dense: KindArray
    """Everything but routed experts; replicated over data x context parallel ranks."""
    routed: KindArray
    """Routed experts; replicated over the expert-data-parallel group."""


@of_sizes
def device_parameters(pricing: Pricing, counted: Counted = "parameters") -> DeviceParameters:
    """Return the parameters (or what else is `counted`) by kind of pipeline rank before ZeRO (M1).

    Three classes have divisors of their own: tensor parallel; none; expert parallel x expert tensor parallel.
    """
    scenario, block = pricing.scenario, pricing.block
    tied = scenario.model.tie_word_embeddings and not scenario.framework.score_head
    split, replicated, routed = _by_class(model_totals(scenario, counted), pricing.contents, tied=tied)
    return DeviceParameters(split / block.tensor_parallel + replicated, routed / block.expert_ranks)


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


@of_work
def local_count(pricing: Pricing, piece: WeightTotals) -> Array:
    """Return the parameters of one piece of the model on a device before ZeRO, shape (n,)."""
    block = pricing.block
    return piece.split / block.tensor_parallel + piece.replicated + piece.routed / block.expert_ranks


class ShardDegrees(NamedTuple):
    """Number of ranks that ZeRO shards over, shape (n,)."""

    dense: Array
    routed: Array


@of_sizes
def shard_degrees(pricing: Pricing) -> ShardDegrees:
    """Return the ranks of a ZeRO shard group: all replicas, `sharding_degree`, or one of `sharding_replicas` groups.

    Routed experts are sharded in proportion.
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
    """Return the parameters per device after ZeRO from `from_stage` on (M2; Rajbhandari et al. 2020, section 5)."""
    on, degrees = pricing.block.zero_stage >= from_stage, shard_degrees(pricing)
    return value.dense / np.where(on, degrees.dense, 1.0) + value.routed / np.where(on, degrees.routed, 1.0)


def linear_parameters(pricing: Pricing) -> KindArray:
    """Return the parameters of the layers' linear weights on one device: those that fp8 caches."""
    parts = linear_by_class(pricing)
    return parts.dense + parts.routed


@of_work
def largest_linear_layer(pricing: Pricing) -> Array:
    """Return the largest number of linear weights of a layer on one device, over the kinds, shape (n,)."""
    kinds = pricing.scenario.model.layer_kinds
    parameters: Array = largest(local_count(pricing, _linear(pricing.scenario, kind)) for kind in kinds)
    return parameters


def _linear(scenario: Scenario, kind: LayerKind) -> WeightTotals:
    """Return the linear weights of one layer."""
    return weight_totals(layer_operations(conditions_of(scenario), kind), matmul_only=True)


@derived
def linear_by_class(pricing: Pricing) -> DeviceParameters:
    """Return the linear weights of the layers on one device, by the ranks that replicate them."""
    contents = pricing.contents
    kinds = [_linear(pricing.scenario, kind) for kind in contents.layer_kinds]
    dense = [local_count(pricing, WeightTotals(kind.split, kind.replicated)) for kind in kinds]
    routed = [local_count(pricing, WeightTotals(routed=kind.routed)) for kind in kinds]
    return DeviceParameters(over_layers(contents.with_prediction, dense), over_layers(contents.with_prediction, routed))
