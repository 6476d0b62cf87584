"""Activations that one decoder layer saves for its backward pass, summed over the layer's operations.

`cost.operations` states what each operation saves; `cost.schedule`, how many micro batches a pipeline rank holds at
once. Figures are per micro batch, layer and device. In formulas T is tokens on the device (micro batch x sequence /
context parallel), t tensor parallel and h hidden size; bytes are those of 16-bit training (an fp32 element takes four).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from simulator.cost.derived import Pricing, of_work, recomputed_inside
from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.conditions import Conditions, conditions_of
from simulator.cost.operations.ends import inputs
from simulator.cost.operations.extents import extent, total
from simulator.cost.operations.layer import layer_operations, whole_operations
from simulator.cost.operations.offload import moved, sent
from simulator.cost.operations.recompute import Modules, freed, parts, returning
from simulator.cost.operations.record import Amount, Operation, Saved, Spread, summed
from simulator.cost.operations.sums import saved_amounts
from simulator.cost.stages import over_layers
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.scenario.block import Array, KindArray
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode

_Tensors = Callable[[Conditions, LayerKind, Operation], tuple[Saved, ...]]
"""Tensors of an operation that leave the device."""
SavedTensors = dict[str, Array]
"""Bytes by tensor name; each array has shape (n,)."""


@of_work
def layer_input_bytes(pricing: Pricing) -> Array:
    """Return the bytes of residual streams at a layer boundary, `2 T h` each, shape (n,): what full recompute saves."""
    scenario = pricing.scenario
    return element_bytes(scenario) * scenario.model.stream_width * extent(pricing, "sequence")


@of_work
def embedded_bytes(pricing: Pricing) -> Array:
    """Return the bytes that a micro batch saves before the first layer, shape (n,): norm and dropout of embeddings."""
    return total(
        pricing, summed(tensor for operation in inputs(conditions_of(pricing.scenario)) for tensor in operation.saved)
    )


def layer_tensors(pricing: Pricing, kind: LayerKind) -> SavedTensors:
    """Return the tensors that a layer saves when nothing is recomputed (M3)."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    return {
        tensor.name: tensor.amount * extent(pricing, tensor.spread)
        for operation in operations
        for tensor in operation.saved
    }


@of_work
def saved_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that a layer saves when nothing is recomputed, shape (n,)."""
    return total(pricing, saved_amounts(conditions_of(pricing.scenario), kind))


def layer_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that a layer saves under selective recompute, shape (n,); full recompute is per stage (M6)."""
    result = saved_bytes(pricing, kind)
    for mode, modules, chosen in recomputed_inside(pricing):
        result = np.where(chosen, _bytes_left(pricing, kind, mode, modules), result)
    return result


@of_work
def _bytes_left(pricing: Pricing, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Array:
    """Return the bytes that a layer saves under one recompute policy."""
    dropped = freed(conditions_of(pricing.scenario), kind, mode, modules)
    saved = saved_bytes(pricing, kind)
    return saved - total(pricing, dropped) if dropped else saved


_OUTPUT_SPREADS: Final[Mapping[str, Spread]] = {
    "column": "tensor",
    "row": "sequence",
    "replicated": "sequence",
    "expert_column": "copies_tensor",
    "expert_row": "copies",
}
"""Spread of a product's outputs over ranks, by how its weight is split."""


@of_work
def delayed_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that a layer's backward pass holds for weight gradients computed later, shape (n,).

    They are the output gradients of its products, and two copies of each routed token for the other micro batch's
    exchange: one read, one written (MindSpeed 028de58c, moe_feature/fb_overlap/overlap_funcs/fwdbwd.py and
    modules/weight_grad_store.py).
    """
    conditions = conditions_of(pricing.scenario)
    operations = layer_operations(conditions, kind)
    amounts = [
        Amount(float(weight.outputs), _OUTPUT_SPREADS[weight.split])
        for operation in operations
        for weight in operation.weights
        if weight.matmul
    ]
    if any(operation.name == "dispatch" for operation in operations):
        amounts.append(Amount(2.0 * conditions.model.expert_width, "copies"))
    return element_bytes(conditions) * total(pricing, summed(amounts))


def repeated_working_set(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that selective recompute adds to a layer's backward pass, shape (n,).

    Modules are recomputed one at a time, after the modules behind them have freed their tensors: the largest counts.
    Attention scores are alive together with their gradient.
    """
    result = np.zeros(len(pricing))
    for mode, modules, chosen in recomputed_inside(pricing):
        result = np.where(chosen, _policy_working_set(pricing, kind, mode, modules), result)
    return result


@of_work
def _policy_working_set(pricing: Pricing, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Array:
    """Return the bytes that one recompute policy adds to a layer's backward pass."""
    most = np.zeros(len(pricing))
    for returned, released in returning(conditions_of(pricing.scenario), kind, mode, modules):
        if returned:
            most = np.maximum(total(pricing, returned) - total(pricing, released), most)
    return most


def returning_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes that one layer brings back to the device, shape (n,), by offload or a share that is recomputed.

    Selective recompute makes its tensors again, whether or not their module is offloaded.
    """
    profile, conditions = pricing.scenario.framework, conditions_of(pricing.scenario)
    if not returning_layers(profile):
        return np.zeros(len(pricing))
    whole = summed(tensor for operation in whole_operations(conditions, kind) for tensor in operation.saved)
    result = total(pricing, whole) - saved_bytes(pricing, kind)
    for mode, modules, chosen in recomputed_inside(pricing):
        again = _offloaded(pricing, kind, "none", ()) - _offloaded(pricing, kind, mode, modules)
        result = np.where(chosen, result - again, result)
    return result


def returning_layers(profile: FrameworkProfile) -> float:
    """Return how many layers hold what they bring back at once; 0 if nothing is brought back.

    Swapped attention holds two layers: one computed, one copied. Offloaded modules hold three, as backward and forward
    passes alternate: one computed, one on its way out, one on its way in.
    """
    if profile.offloaded_modules:
        return 3.0
    if profile.swapped_attention:
        return 2.0
    return 1.0 if profile.recomputed_expert_share or profile.recomputed_network_share else 0.0


def sent_bytes(pricing: Pricing) -> KindArray | float:
    """Return the bytes that each kind of rank's layers offload to the host per micro batch; 0 if none do."""
    profile, contents = pricing.scenario.framework, pricing.contents
    if not profile.swapped_attention and not profile.offloaded_modules:
        return 0.0
    return over_layers(contents.with_prediction, [_sent_bytes(pricing, kind) for kind in contents.layer_kinds])


def _sent_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    result = _offloaded(pricing, kind, "none", (), sent)
    for mode, modules, chosen in recomputed_inside(pricing):
        result = np.where(chosen, _offloaded(pricing, kind, mode, modules, sent), result)
    return result


@of_work
def _offloaded(
    pricing: Pricing, kind: LayerKind, mode: RecomputeMode, modules: Modules, tensors: _Tensors = moved
) -> Array:
    """Return the bytes of a layer's offloaded tensors that a recompute policy does not make again, shape (n,)."""
    conditions = conditions_of(pricing.scenario)
    again = parts(conditions, kind, mode, modules)
    left = (
        tensor
        for operation in whole_operations(conditions, kind)
        for tensor in tensors(conditions, kind, operation)
        if not any(part.drops(operation, tensor) for part in again)
    )
    return total(pricing, summed(left))


def score_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes of the score gradients in the backward pass of attention without a flash kernel, shape (n,)."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    return total(
        pricing, summed(tensor for operation in operations for tensor in operation.saved if tensor.spread == "scores")
    )
