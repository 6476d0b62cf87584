"""Stages of unequal work under 1F1B and the interleaved schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.memory.activations import layer_input_bytes
from simulator.cost.memory.parameters import StageContents
from simulator.cost.memory.schedule import RecomputePlan, micro_batches
from simulator.cost.timing.collectives import neighbour_seconds, pipeline_group
from simulator.cost.timing.layers import (
    PARTS,
    Parts,
    PassSeconds,
    attention_block_seconds,
    attention_core_seconds,
    head_seconds,
    layer_seconds,
    layer_traffic,
    projection_seconds,
)
from simulator.question.scenario.block import Array, KindArray, LayoutBlock
from simulator.question.scenario.layout import RECOMPUTE_MODES
from simulator.question.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Pieces:
    """Seconds of the pieces a pipeline rank is made of, on one kind of device."""

    layers: dict[str, PassSeconds]
    """One `dense` layer, one `moe` layer, the `head`, and one prediction layer's `projection`."""
    recompute_layer: dict[str, Array]
    """Computing one `dense` or `moe` layer again in full, shape (n,)."""
    core_recompute: Array
    """Computing one layer's attention again, its core or the whole block, zero for other recompute, shape (n,)."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """Seconds per micro batch of every kind of pipeline rank, shape (kinds, n)."""

    forward: KindArray
    backward: KindArray
    """Recomputation included."""
    counts: dict[str, Array]
    """How many of each piece a kind of rank works on, shape (kinds,)."""
    pieces: tuple[Pieces, ...]
    """By node group."""


def _sum(parts: Parts) -> Array:
    """Sum in the dictionary's fixed order."""
    values = iter(parts.values())
    result = next(values)
    for value in values:
        result = result + value
    return result


def pieces_of(scenario: Scenario, block: LayoutBlock, has: StageContents) -> Pieces:
    """Price the pieces on one kind of device."""
    model = scenario.model
    layers: dict[str, PassSeconds] = {}
    traffic = layer_traffic(scenario, block)
    if model.num_dense_layers:
        layers["dense"] = layer_seconds(scenario, block, traffic, moe=False)
    if model.is_moe:
        layers["moe"] = layer_seconds(scenario, block, traffic, moe=True)
    again = {kind: _sum(seconds.forward) for kind, seconds in layers.items()}
    layers["head"] = head_seconds(scenario, block)
    if has.mtp_layers.any():
        layers["projection"] = projection_seconds(scenario, block)
    selective = block.recompute == RECOMPUTE_MODES.index("selective")
    core = np.where(selective, attention_core_seconds(scenario, block), 0.0)
    attention = block.recompute == RECOMPUTE_MODES.index("attention")
    if attention.any():
        core = np.where(attention, attention_block_seconds(scenario, block, traffic), core)
    return Pieces(layers, again, core)


def stage_work(scenario: Scenario, block: LayoutBlock, has: StageContents, plan: RecomputePlan) -> StageWork:
    """Work of every rank: its layers, and on the last rank the output layer; each on its own kind of device."""
    counts = layer_counts(scenario, has)
    by_group = tuple(pieces_of(member, block, has) for member in scenario.members)
    forward = np.zeros((len(has.ranks), len(block)))
    backward = forward
    for group, pieces in enumerate(by_group):
        here = has.group == group
        for kind, seconds in pieces.layers.items():
            count = (counts[kind] * here)[:, None]
            forward = forward + count * _sum(seconds.forward)
            backward = backward + count * _sum(seconds.backward)
        for kind, again in pieces.recompute_layer.items():
            recomputed = plan.dense if kind == "dense" else plan.moe
            count = (counts[kind] * here)[:, None]
            backward = backward + here[:, None] * recomputed * again + count * pieces.core_recompute
    return StageWork(forward, backward, counts, by_group)


def layer_counts(scenario: Scenario, has: StageContents) -> dict[str, Array]:
    """Layers by kind on every kind of rank, shape (kinds,); extra prediction layers count as the main kind."""
    moe_main = scenario.model.is_moe
    return {
        "dense": has.dense_layers + (0.0 if moe_main else has.mtp_layers),
        "moe": has.moe_layers + (has.mtp_layers if moe_main else 0.0),
        "head": has.heads + has.mtp_layers,
        "projection": has.mtp_layers,
    }


@dataclass(frozen=True, slots=True)
class PipelineSeconds:
    """A step's pipeline, shape (n,)."""

    pace: NDArray[np.intp]
    """The slowest kind of rank, which sets the pace."""
    pace_seconds: Array
    """Its work per micro batch."""
    fill: Array
    """Its idle time while the pipeline fills and drains."""
    sends: Array
    """Exposed activation and gradient sends of the step."""
    micro_batches: Array


def pipeline_seconds(scenario: Scenario, block: LayoutBlock, has: StageContents, work: StageWork) -> PipelineSeconds:
    """`m max_i(w_i) + (sum_i w_i - max_i w_i) / v` plus sends.

    The slowest rank works on m micro batches; before its first and after its last one the others' work passes by, in
    chunks of 1/v of a rank (Narayanan et al. 2021, section 2.2, with unequal stages).
    """
    values = scenario.coefficients.time
    m = micro_batches(scenario, block)
    per_rank = work.forward + work.backward
    pace = np.argmax(per_rank, axis=0)
    slowest = np.max(per_rank, axis=0)
    whole = np.zeros(len(block))
    for kind, ranks in enumerate(has.ranks):
        whole = whole + ranks * per_rank[kind]
    fill = (whole - slowest) / block.virtual_stages
    activation = layer_input_bytes(scenario, block)
    # A pipeline over several node groups goes at the pace of their slowest links.
    send = np.zeros(len(block))
    for member in scenario.members:
        send = np.maximum(send, neighbour_seconds(member, pipeline_group(block), activation))
    hidden = scenario.framework.overlap_p2p and block.virtual_stages > 1
    exposed = values.point_to_point_exposed if hidden else 1.0
    crossings = 2.0 * block.virtual_stages if block.pipeline_parallel > 1 else 0.0
    sends = (exposed * m + block.pipeline_parallel - 1.0) * crossings * send
    return PipelineSeconds(pace, slowest, fill, sends, m)


def pace_parts(
    block: LayoutBlock, has: StageContents, plan: RecomputePlan, work: StageWork, pipeline: PipelineSeconds
) -> Parts:
    """Seconds per step by part on the pacing rank, `recompute` apart; their sum is `m` times its work."""
    zero = np.zeros(len(block))
    parts: Parts = dict.fromkeys(PARTS, zero)
    columns = np.arange(len(block))
    recompute = zero
    for group, pieces in enumerate(work.pieces):
        here = pipeline.micro_batches * (has.group == group)[pipeline.pace]
        for kind, seconds in pieces.layers.items():
            count = here * work.counts[kind][pipeline.pace]
            for name in seconds.forward:
                parts[name] = parts[name] + count * (seconds.forward[name] + seconds.backward[name])
        for kind, again in pieces.recompute_layer.items():
            recomputed = (plan.dense if kind == "dense" else plan.moe)[pipeline.pace, columns]
            core = work.counts[kind][pipeline.pace] * pieces.core_recompute
            recompute = recompute + here * (recomputed * again + core)
    return parts | {"recompute": recompute}
