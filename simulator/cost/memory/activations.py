"""Activations that one decoder layer keeps from its forward pass until its backward pass: sums over its operations.

Per micro batch, layer and device. Notation of the docstrings: T tokens on the device (micro batch x sequence / context
parallel), t tensor parallel, h hidden size. Bytes are those of 16-bit training; in fp32 an element takes four.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.cost.elements import element_bytes
from simulator.cost.operations.conditions import conditions_of
from simulator.cost.operations.ends import inputs
from simulator.cost.operations.extents import Extents
from simulator.cost.operations.layer import layer_operations, whole_operations
from simulator.cost.operations.recompute import Modules, freed, returning
from simulator.cost.operations.record import Spread, summed
from simulator.cost.operations.sums import kept_amounts
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode

SavedTensors = dict[str, Array]
"""Bytes by tensor name; each array has shape (n,)."""


def layer_input_bytes(scenario: Scenario, block: LayoutBlock) -> Array:
    """The residual stream at a layer boundary, `2 T h`: what full recompute keeps of a layer."""
    per_token = element_bytes(scenario) * scenario.model.hidden_size
    return block.worked(scenario, "input", lambda each: per_token * Extents(scenario, each).of("sequence"))


def embedded_bytes(scenario: Scenario, block: LayoutBlock) -> Array:
    """What a micro batch keeps before the first layer, shape (n,): the norm and the dropout of embedded tokens."""

    def kept(each: LayoutBlock) -> Array:
        return _bytes(scenario, each, summed(x for one in inputs(conditions_of(scenario)) for x in one.kept))

    return block.worked(scenario, "embedded", kept)


def layer_tensors(scenario: Scenario, block: LayoutBlock, kind: LayerKind) -> SavedTensors:
    """Everything a layer keeps when nothing is recomputed."""
    extents = Extents(scenario, block)
    operations = layer_operations(conditions_of(scenario), kind)
    return {tensor.name: tensor.amount * extents.of(tensor.spread) for one in operations for tensor in one.kept}


def _bytes(scenario: Scenario, block: LayoutBlock, amounts: Mapping[Spread, float]) -> Array:
    """Amounts by spread in bytes, shape (n,)."""
    return Extents(scenario, block).total(amounts)


def kept_bytes(scenario: Scenario, block: LayoutBlock, kind: LayerKind) -> Array:
    """Bytes a layer keeps where nothing is recomputed."""
    given = conditions_of(scenario)
    return block.worked(scenario, ("kept", kind), lambda each: _bytes(scenario, each, kept_amounts(given, kind)))


def layer_bytes(scenario: Scenario, block: LayoutBlock, kind: LayerKind) -> Array:
    """Bytes a layer keeps, less what recompute inside it drops; full recompute is applied per stage."""
    given = conditions_of(scenario)
    result = kept_bytes(scenario, block, kind)
    for mode, modules, chosen in block.recomputed_inside():

        def less(each: LayoutBlock, mode: RecomputeMode = mode, modules: Modules = modules) -> Array:
            amounts = freed(given, kind, mode, modules)
            kept = _bytes(scenario, each, kept_amounts(given, kind))
            return kept - _bytes(scenario, each, amounts) if amounts else kept

        result = np.where(chosen, block.worked(scenario, ("kept", kind, mode, modules), less), result)
    return result


def repeated_working_set(scenario: Scenario, block: LayoutBlock, kind: LayerKind) -> Array:
    """Bytes that recompute inside a layer adds to its backward pass, shape (n,).

    A part is done again when those behind it have been passed and what they kept is freed; of several the largest
    counts. The scores are back while their gradient is there.
    """
    given = conditions_of(scenario)
    result = np.zeros(len(block))
    for mode, modules, chosen in block.recomputed_inside():

        def again(each: LayoutBlock, mode: RecomputeMode = mode, modules: Modules = modules) -> Array:
            most = np.zeros(len(each))
            for back, gone in returning(given, kind, mode, modules):
                if back:
                    most = np.maximum(_bytes(scenario, each, back) - _bytes(scenario, each, gone), most)
            return most

        result = np.where(chosen, block.worked(scenario, ("again", kind, mode, modules), again), result)
    return result


def returning_bytes(scenario: Scenario, block: LayoutBlock, kind: LayerKind) -> Array:
    """What comes back in a layer's backward pass, shape (n,): two layers swapped to the host, or one done again."""
    given = conditions_of(scenario)
    profile = scenario.framework
    shares = profile.recomputed_expert_share, profile.recomputed_network_share
    if not profile.swapped_attention and not any(shares):
        return np.zeros(len(block))
    whole = summed(tensor for one in whole_operations(given, kind) for tensor in one.kept)
    layers = 2.0 if profile.swapped_attention else 1.0
    return block.worked(
        scenario,
        ("returning", kind),
        lambda each: layers * (_bytes(scenario, each, whole) - _bytes(scenario, each, kept_amounts(given, kind))),
    )


def score_bytes(scenario: Scenario, block: LayoutBlock, kind: LayerKind) -> Array:
    """Scores that attention without a flash kernel holds in its backward pass beside those kept: their gradient."""
    operations = layer_operations(conditions_of(scenario), kind)
    return _bytes(scenario, block, summed(t for one in operations for t in one.kept if t.spread == "scores"))
