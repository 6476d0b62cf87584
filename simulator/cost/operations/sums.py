"""Sums over operations that no layout changes: parameters by how they are split, FLOP per token. No seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.ends import embedding, inputs, output_layer, prediction
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Operation, Spread, Weight, Window, summed
from simulator.question.specs.model import LayerKind, ModelSpec
from simulator.question.specs.optimizers import TensorClass


@dataclass(frozen=True, slots=True)
class WeightTotals:
    """Parameters of a group of weights, by how they are split."""

    split: float = 0.0
    """Split over the tensor-parallel group (column, row and vocabulary splits)."""
    replicated: float = 0.0
    """Replicated on every tensor-parallel rank (norms, router, low-rank down projections)."""
    routed: float = 0.0
    """Routed experts: split over expert parallel x expert tensor parallel."""

    def __add__(self, other: WeightTotals) -> WeightTotals:
        return WeightTotals(self.split + other.split, self.replicated + other.replicated, self.routed + other.routed)

    @property
    def all(self) -> float:
        """Return the parameters of every class."""
        return self.split + self.replicated + self.routed


def weights_of(operations: Iterable[Operation]) -> tuple[Weight, ...]:
    """Return the weights of operations, in order."""
    return tuple(weight for operation in operations for weight in operation.weights)


@lru_cache(maxsize=1024)
def weight_totals(operations: tuple[Operation, ...], *, matmul_only: bool = False) -> WeightTotals:
    """Return the parameters of operations by class; `matmul_only` omits norms and biases."""
    result = WeightTotals()
    for weight in weights_of(operations):
        if weight.matmul or not matmul_only:
            result += classed(weight, float(weight.parameters))
    return result


@lru_cache(maxsize=1024)
def class_totals(operations: tuple[Operation, ...], tensor: TensorClass) -> WeightTotals:
    """Return the parameters of operations whose weights belong to one tensor class."""
    result = WeightTotals()
    for operation in operations:
        for weight in operation.weights:
            if tensor_class(operation, weight) == tensor:
                result += classed(weight, float(weight.parameters))
    return result


def tensor_class(operation: Operation, weight: Weight) -> TensorClass:
    """Return the optimizer's tensor class of a weight."""
    if weight.inputs == 1:
        return "vector"
    return "embedding" if operation.group in ("embedding", "output") else "matrix"


@lru_cache(maxsize=1024)
def side_totals(operations: tuple[Operation, ...]) -> WeightTotals:
    """Return the rows and columns of every matrix: the size of a factored second moment."""
    result = WeightTotals()
    for weight in weights_of(operations):
        if weight.inputs > 1:
            result += classed(weight, float(weight.copies * (weight.inputs + weight.outputs)))
    return result


@lru_cache(maxsize=1024)
def adapters_of(conditions: Conditions, operations: tuple[Operation, ...]) -> WeightTotals:
    """Return the LoRA parameters on the target weights: rank x (inputs + outputs), split as the weight is.

    Megatron and Paddle split one of the two adapter matrices with the weight and replicate the other, on the unsplit
    side. Products of one input may share an adapter.
    """
    rank, fused = conditions.lora_rank, conditions.framework.shared_adapters
    if rank is None:
        return WeightTotals()
    result = WeightTotals()
    attention_alone = conditions.framework.adapter_targets == "attention"
    for operation in operations:
        if attention_alone and operation.group != "attention_projection":
            continue
        shared: set[tuple[int, str]] = set()
        for weight in operation.weights:
            if not weight.matmul or weight.split == "vocabulary":
                continue
            joined = fused and (weight.inputs, weight.split) in shared and weight.split.endswith("column")
            shared.add((weight.inputs, weight.split))
            first = 0.0 if joined else float(rank * weight.inputs * weight.copies)
            second = float(rank * weight.outputs * weight.copies)
            if weight.split == "column":
                result += WeightTotals(split=second, replicated=first)
            elif weight.split == "row":
                result += WeightTotals(split=first, replicated=second)
            else:
                result += classed(weight, first + second)
    return result


def classed(weight: Weight, parameters: float) -> WeightTotals:
    """Return parameters as totals, under the class of a weight."""
    if weight.routed:
        return WeightTotals(routed=parameters)
    return WeightTotals(replicated=parameters) if weight.split == "replicated" else WeightTotals(split=parameters)


@lru_cache(maxsize=256)
def saved_amounts(conditions: Conditions, kind: LayerKind) -> Mapping[Spread, float]:
    """Return the bytes that a layer saves when nothing is recomputed, by spread."""
    return summed(tensor for operation in layer_operations(conditions, kind) for tensor in operation.saved)


def core_width(operations: Iterable[Operation]) -> float:
    """Return the width of attention's two products per token and score, where all scores are computed."""
    return sum(operation.core_width for operation in operations if operation.core_window is None)


def attended_share(seq_length: int, window: Window) -> float:
    """Return the share of the causal scores in a window, `(s w - w^2 / 2) / (s^2 / 2)`, or in chunks, `w / s` (T5)."""
    if window.tokens >= seq_length:
        return 1.0
    if window.chunked:
        return window.tokens / seq_length
    return (seq_length * window.tokens - window.tokens**2 / 2.0) / (seq_length**2 / 2.0)


def chosen_parameters(model: ModelSpec, totals: WeightTotals) -> WeightTotals:
    """Return the parameters that one token uses: of routed experts the k chosen ones."""
    if not model.is_moe:
        return totals
    return replace(totals, routed=totals.routed * model.num_experts_per_tok / model.num_experts)


@lru_cache(maxsize=256)
def total_parameters(model: ModelSpec) -> int:
    """Return the parameters of the main model: a tied table once, no MTP module."""
    conditions = Conditions(model)
    ends = _count(output_layer(conditions)) + _count(inputs(conditions)) + _table_apart(conditions)
    return _over_layers(conditions, _count) + ends


def active_parameters(model: ModelSpec, *, include_input_embedding: bool) -> int:
    """Return the parameters that one token uses: of routed experts only the chosen ones.

    A tied table is the head, so it always counts; an untied input table counts with `include_input_embedding` only.
    Publishers use both conventions.
    """
    conditions = Conditions(model)

    def used(operations: tuple[Operation, ...]) -> int:
        chosen = (w._replace(copies=model.num_experts_per_tok) if w.routed else w for w in weights_of(operations))
        return sum(weight.parameters for weight in chosen)

    table = _table_apart(conditions) + _count(inputs(conditions)) if include_input_embedding else 0
    return _over_layers(conditions, used) + _count(output_layer(conditions)) + table


def mtp_parameters(model: ModelSpec) -> int:
    """Return the parameters of all MTP modules, which the totals omit."""
    conditions = Conditions(model)
    if model.num_nextn_predict_layers == 0:
        return 0
    return model.num_nextn_predict_layers * (
        _count(prediction(conditions)) + _count(layer_operations(conditions, model.prediction_kind))
    )


def _count(operations: tuple[Operation, ...]) -> int:
    return sum(weight.parameters for weight in weights_of(operations))


def _over_layers(conditions: Conditions, measure: Callable[[tuple[Operation, ...]], int]) -> int:
    layers = conditions.model.layers
    return sum(
        layers.count(kind) * measure(layer_operations(conditions, kind)) for kind in conditions.model.layer_kinds
    )


def _table_apart(conditions: Conditions) -> int:
    """Return the parameters of an untied input table."""
    return 0 if conditions.model.tie_word_embeddings else _count((embedding(conditions),))
