"""Activations that one decoder layer saves for its backward pass, summed over the layer's operations.

`cost.operations` states what each operation saves; `cost.schedule`, how many micro batches a pipeline rank holds at
once. Figures are per micro batch, layer and device. In formulas T is tokens on the device (micro batch x sequence /
context parallel), t tensor parallel and h hidden size; bytes are those of 16-bit training (an fp32 element takes four).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from simulator.cost.derived import Pricing, of_work, recomputed_inside
from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.conditions import conditions_of
from simulator.cost.operations.ends import inputs
from simulator.cost.operations.extents import extent, total
from simulator.cost.operations.layer import layer_operations, whole_operations
from simulator.cost.operations.offload import sent
from simulator.cost.operations.recompute import Modules, freed, returning
from simulator.cost.operations.record import Amount, Spread, summed
from simulator.cost.operations.sums import saved_amounts
from simulator.cost.stages import over_layers
from simulator.question.scenario.block import Array, KindArray
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode

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


@of_work
def returning_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes brought back to the device beside those that stay there, shape (n,), by offload or recompute.

    Swapped attention holds two layers: one computed, one copied. Offloaded modules hold three, as backward and forward
    passes alternate: one computed, one on its way out, one on its way in.
    """
    profile, conditions = pricing.scenario.framework, conditions_of(pricing.scenario)
    moves = profile.swapped_attention or profile.offloaded_modules
    if not moves and not profile.recomputed_expert_share and not profile.recomputed_network_share:
        return np.zeros(len(pricing))
    whole = summed(tensor for operation in whole_operations(conditions, kind) for tensor in operation.saved)
    layers = 3.0 if profile.offloaded_modules else 2.0 if moves else 1.0
    return layers * (total(pricing, whole) - saved_bytes(pricing, kind))


def sent_bytes(pricing: Pricing) -> KindArray | float:
    """Return the bytes that each kind of rank's layers offload to the host per micro batch; 0 if none do."""
    profile, contents = pricing.scenario.framework, pricing.contents
    if not profile.swapped_attention and not profile.offloaded_modules:
        return 0.0
    return over_layers(contents.layers, [_sent_bytes(pricing, kind) for kind in contents.layer_kinds])


@of_work
def _sent_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    conditions = conditions_of(pricing.scenario)
    operations = whole_operations(conditions, kind)
    return total(pricing, summed(tensor for part in operations for tensor in sent(conditions, kind, part)))


def score_bytes(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes of the score gradients in the backward pass of attention without a flash kernel, shape (n,)."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    return total(
        pricing, summed(tensor for operation in operations for tensor in operation.saved if tensor.spread == "scores")
    )
