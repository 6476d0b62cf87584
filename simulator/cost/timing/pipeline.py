"""Stages of unequal work under the schedules of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from simulator.cost.memory.activations import layer_input_bytes
from simulator.cost.memory.schedule import RecomputePlan, micro_batches
from simulator.cost.operations.recompute import Modules
from simulator.cost.schedule.events import kinds_of_pass, makespan_seconds
from simulator.cost.schedule.registry import schedule_of
from simulator.cost.schedule.schedule import Schedule
from simulator.cost.stages import LayerCounts, StageContents
from simulator.cost.timing.collectives import gather_seconds, neighbour_seconds, pipeline_group, tensor_group
from simulator.cost.timing.layers import LayerTimer, head_seconds, projection_seconds
from simulator.cost.timing.parts import PARTS, Parts, PassSeconds
from simulator.question.scenario.block import Array, KindArray, LayoutBlock, Mask
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode

MOST_PASSES = 200_000
"""Passes of a run beyond which unequal chunks are taken as equal: pipelines of hundreds of ranks."""
CYCLES = 3
"""Cycles of as many micro batches as ranks that are run pass by pass where chunks are unequal."""


class Pieces(NamedTuple):
    """Seconds of the pieces a pipeline rank is made of, on one kind of device.

    One figure for each of `LayoutBlock.kinds_of_work`.
    """

    seconds: tuple[PassSeconds, ...]
    """One layer of each kind, the output layer, and one prediction module's projection, in the order of counts."""
    again: tuple[Array, ...]
    """Computing one layer of each kind again in full."""
    inside: tuple[Array, ...]
    """What recompute inside a layer of each kind adds, zero for other recompute, shape (n,)."""


class ChunkSeconds(NamedTuple):
    """Seconds of the passes through one chunk of every kind of rank, shape (kinds, n)."""

    forward: KindArray
    backward: KindArray
    weights: KindArray
    """What gradients of weights take of the backward pass; zero where the schedule splits none."""


class StageWork(NamedTuple):
    """Seconds per micro batch of every kind of pipeline rank, shape (kinds, n)."""

    forward: KindArray
    backward: KindArray
    """Recomputation included."""
    counts: LayerCounts
    """How many of each piece a kind of rank works on, shape (kinds, pieces)."""
    pieces: tuple[Pieces, ...]
    """By node group."""
    by_chunk: tuple[ChunkSeconds, ...] = ()
    """Of each chunk where the passes are run one by one, else nothing."""


def pieces_of(scenario: Scenario, group: int, block: LayoutBlock, has: StageContents) -> Pieces:
    """Price the pieces on the devices of one node group; each once for all of a search."""
    each = block.kinds_of_work
    known = each.known(scenario)

    def once(piece: str, figure: Callable[[LayerTimer], Any], *of: object) -> Any:
        if (group, "timer") not in known:
            known[group, "timer"] = LayerTimer(scenario.members[group], each)
        name = (group, piece, *of)
        if name not in known:
            known[name] = figure(known[group, "timer"])
        return known[name]

    def layer(kind: LayerKind) -> PassSeconds:
        return cast("PassSeconds", once("layer", lambda timer: timer.layer(kind), kind))

    def again(kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Array:
        return cast("Array", once("again", lambda timer: timer.repeated(kind, mode, modules), kind, mode, modules))

    ends = [once("head", lambda timer: head_seconds(timer.scenario, each))]
    if has.prediction_layers.any():
        ends.append(once("projection", lambda timer: projection_seconds(timer.scenario, each)))
    inside = [np.zeros(len(block)) for _ in has.layer_kinds]
    for mode, modules, chosen in block.recomputed_inside():
        # Of listed layers each rank has the share that all have.
        shares = np.where(block.recomputes_by("list"), has.listed_shares[:, None], 1.0)
        for index, kind in enumerate(has.layer_kinds):
            done = shares[index] * block.spread_work(again(kind, mode, modules))
            inside[index] = np.where(chosen, done, inside[index])
    return Pieces(
        seconds=(*(layer(kind) for kind in has.layer_kinds), *ends),
        again=tuple(again(kind, "full", ()) for kind in has.layer_kinds),
        inside=tuple(inside),
    )


def piece_counts(has: StageContents) -> LayerCounts:
    """Pieces on every kind of rank, shape (kinds, pieces): layers by kind, output layers, prediction modules."""
    return np.column_stack((has.with_prediction, has.heads + has.prediction_layers, has.prediction_layers))


def chunk_counts(has: StageContents, distinct: int, *, last: bool) -> LayerCounts:
    """Pieces of one distinct chunk; what stands behind the last layers belongs to the last chunk of a rank."""
    counts = piece_counts(has)
    counts[:, : len(has.layer_kinds)] -= has.layers
    counts *= last
    counts[:, : len(has.layer_kinds)] += has.chunks[distinct]
    return counts


def stage_work(scenario: Scenario, block: LayoutBlock, has: StageContents, plan: RecomputePlan) -> StageWork:
    """Work of every rank: its layers, and on the last rank the output layer; each on its own kind of device.

    Where the pipeline holds the model twice, a micro batch passes through one of the copies.
    """
    counts, schedule = piece_counts(has) / block.copies, schedule_of(scenario, block)
    by_group = tuple(pieces_of(scenario, group, block, has) for group in range(max(len(scenario.groups), 1)))
    by_chunk: dict[tuple[int, bool], ChunkSeconds] = {}
    places = [(int(distinct), place == len(has.chunk) - 1) for place, distinct in enumerate(has.chunk)]
    runs = has.unequal or (schedule.by_run and len(places) == block.chunks)
    for distinct, last in dict.fromkeys(places) if runs else ():
        held, again = chunk_counts(has, distinct, last=last), plan.layers[distinct].swapaxes(0, 1)
        both = _both_passes(block, has, by_group, held, again)
        none: KindArray = np.broadcast_to(0.0, both[1].shape)
        weights = _weight_seconds(block, has, by_group, held) if schedule.splits else none
        by_chunk[distinct, last] = ChunkSeconds(*both, weights)
    forward, backward = _both_passes(block, has, by_group, counts, plan.on_rank / block.copies)
    chunks = tuple(by_chunk[place] for place in places) if by_chunk else ()
    return StageWork(forward, backward, counts, by_group, chunks)


def _both_passes(
    block: LayoutBlock,
    has: StageContents,
    by_group: tuple[Pieces, ...],
    counts: LayerCounts,
    full: NDArray[np.float64],
) -> tuple[KindArray, KindArray]:
    """Forward and backward seconds of so many pieces, of which `full` layers by kind are recomputed."""
    each = block.alike.block if block.alike else block
    forward: KindArray = np.zeros((len(has.ranks), 1))
    backward = forward
    for group, pieces in enumerate(by_group):
        here = (has.group == group)[:, None]
        for piece, seconds in enumerate(pieces.seconds):
            count = counts[:, piece, None] * here
            forward = forward + count * each.spread_work(seconds.forward_seconds)
            backward = backward + count * each.spread_work(seconds.backward_seconds)
    forward, backward = block.spread(forward), block.spread(backward)
    recomputes = not block.recomputes("none").all()
    for group, pieces in enumerate(by_group if recomputes else ()):
        here = (has.group == group)[:, None]
        for kind, (again, inside) in enumerate(zip(pieces.again, pieces.inside, strict=True)):
            backward = backward + here * (full[kind] * block.spread_work(again) + counts[:, kind, None] * inside)
    return forward, backward


def _weight_seconds(
    block: LayoutBlock, has: StageContents, by_group: tuple[Pieces, ...], counts: LayerCounts
) -> KindArray:
    """Seconds that the weights' gradients of so many pieces take."""
    each = block.alike.block if block.alike else block
    total: KindArray = np.zeros((len(has.ranks), 1))
    for group, pieces in enumerate(by_group):
        here = (has.group == group)[:, None]
        for piece, seconds in enumerate(pieces.seconds):
            total = total + counts[:, piece, None] * here * each.spread_work(
                np.broadcast_to(seconds.weight_seconds, seconds.forward_seconds.shape)
            )
    return block.spread(total)


class PipelineSeconds(NamedTuple):
    """A step's pipeline, shape (n,)."""

    pace: NDArray[np.intp]
    """The slowest kind of rank, which sets the pace."""
    pace_seconds: Array
    """Its work per micro batch."""
    fill: Array
    """Its idle time while the pipeline fills and drains; none yet where chunks are unequal (see `with_waits`)."""
    sends: Array
    """Exposed activation and gradient sends of the step."""
    micro_batches: Array


def pipeline_seconds(scenario: Scenario, block: LayoutBlock, has: StageContents, work: StageWork) -> PipelineSeconds:
    """`m max_i(w_i)`, what the schedule fills and drains, and sends.

    The slowest rank works on m micro batches; before its first and after its last one the others' work passes by
    (Narayanan et al. 2021, section 2.2, with unequal stages).
    """
    values = scenario.coefficients.time
    m = micro_batches(scenario, block)
    per_rank = work.forward + work.backward
    pace = np.argmax(per_rank, axis=0)
    slowest = np.max(per_rank, axis=0)
    whole = np.zeros(len(block))
    for kind, ranks in enumerate(has.ranks):
        whole = whole + ranks * per_rank[kind]
    schedule, ranks, chunks = schedule_of(scenario, block), block.pipeline_parallel, block.chunks
    fill = np.zeros(len(block)) if _runs(work, ranks) else schedule.fill_seconds(whole - slowest, chunks)
    send = block.once(lambda each: _send_seconds(scenario, each))
    hidden = scenario.framework.overlap_p2p and chunks > 1
    exposed = values.point_to_point_exposed if hidden else 1.0
    sends = (exposed * m + ranks - 1.0) * schedule.sends(ranks, chunks) * send
    return PipelineSeconds(pace, slowest, fill, sends, m)


def _runs(work: StageWork, ranks: int) -> bool:
    """Whether the pipeline is run pass by pass: chunks are unequal, and not too many passes."""
    return 0 < 2 * len(work.by_chunk) * ranks * CYCLES * ranks <= MOST_PASSES


def with_waits(  # noqa: PLR0913, PLR0917  a block, what is known of it, and which of its layouts
    scenario: Scenario,
    block: LayoutBlock,
    has: StageContents,
    work: StageWork,
    pipeline: PipelineSeconds,
    where: Mask,
) -> PipelineSeconds:
    """The same with the idle time of a run by passes, of the layouts asked for; elsewhere none stays a lower bound."""
    if not _runs(work, block.pipeline_parallel) or not where.any():
        return pipeline
    fill, at = pipeline.fill.copy(), np.flatnonzero(where)
    fill[at] = run_fill_seconds(schedule_of(scenario, block), has, work, pipeline.micro_batches, at)
    return pipeline._replace(fill=fill)


def run_fill_seconds(
    schedule: Schedule, has: StageContents, work: StageWork, micro_batches: Array, at: NDArray[np.intp]
) -> Array:
    """Idle time of the pacing rank, of the layouts at an index: the schedule run pass by pass.

    Ranks of unequal chunks wait for each other between filling and draining too. As many micro batches as there are
    ranks are a cycle; beyond `CYCLES` of them each takes what the last took, and no less than the pacing rank works.
    Held to runs of all micro batches: within 0.2 % for balanced chunks, 1 % for any.
    """
    ranks = float(len(has.kind))
    cycles = np.ceil(np.maximum(micro_batches[at], schedule.least_micro_batches(len(has.kind))) / ranks)
    pace = ranks * np.max((work.forward + work.backward).take(at, axis=-1), axis=0)
    figures = [figure for chunk in work.by_chunk for figure in (chunk.forward, chunk.backward)]
    first, alike = _alike([*figures, *(chunk.weights for chunk in work.by_chunk if schedule.splits)], pace, cycles, at)
    cycles, pace, at = cycles[first], pace[first], at[first]
    seconds = kinds_of_pass(
        *(
            np.stack([getattr(chunk, name).take(at, axis=-1) for chunk in work.by_chunk])
            for name in ("forward", "backward", "weights")
        )
    )

    def idle(run: int, now: NDArray[np.intp]) -> Array:
        passes = run * len(has.kind)
        waits: Array = makespan_seconds(schedule, seconds.take(now, axis=-1), has.kind, passes) - run * pace[now]
        return waits

    fill: Array = np.empty(len(first))
    for run in range(1, CYCLES + 1):
        now = np.flatnonzero(np.minimum(cycles, CYCLES) == run)
        if len(now):
            fill[now] = idle(run, now)
    many = np.flatnonzero(cycles > CYCLES)
    if len(many):
        grown = np.maximum(fill[many] - idle(CYCLES - 1, many), 0.0)
        fill[many] += (cycles[many] - CYCLES) * grown
    return fill[alike]


def _alike(
    figures: list[KindArray], pace: Array, cycles: Array, at: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first of every set of equal steps, and the set of each: what differs in offload or ZeRO alone runs once."""
    both = np.column_stack((pace, cycles)).view(np.complex128).ravel()
    _, first, alike = np.unique(both, return_index=True, return_inverse=True)
    same = at[first[alike]]
    if all(np.array_equal(figure.take(same, axis=-1), figure.take(at, axis=-1)) for figure in figures):
        return first, alike
    every = np.arange(len(pace))
    return every, every


def _send_seconds(scenario: Scenario, block: LayoutBlock) -> Array:
    """One send of an activation; a pipeline over several node groups goes at the pace of their slowest links.

    Where each of the tensor-parallel ranks that hold it sends a part, what comes in is gathered by theirs.
    """
    activation, group = layer_input_bytes(scenario, block), pipeline_group(block)
    held, sent = tensor_group(block), activation
    gathered: Array | float = 0.0
    if scenario.framework.scattered_sends:
        whole = block.sequence_parallel == 0.0
        sent = np.where(whole, activation / held.size, activation)
        gathers = [gather_seconds(member, held, activation) for member in scenario.members]
        gathered = np.where(whole, np.max(gathers, axis=0), 0.0)
    slowest: Array = np.max([neighbour_seconds(member, group, sent) for member in scenario.members], axis=0)
    return slowest + gathered


def pace_parts(
    block: LayoutBlock, has: StageContents, plan: RecomputePlan, work: StageWork, pipeline: PipelineSeconds
) -> Parts:
    """Seconds per step by part on the pacing rank, `recompute` apart; their sum is `m` times its work."""
    zero = np.zeros(len(block))
    parts: Parts = dict.fromkeys(PARTS, zero)
    columns = np.arange(len(block))
    recompute = zero
    full = plan.on_rank / block.copies
    for group, pieces in enumerate(work.pieces):
        here = pipeline.micro_batches * (has.group == group)[pipeline.pace]
        for piece, seconds in enumerate(pieces.seconds):
            count = here * work.counts[pipeline.pace, piece]
            for name in seconds.forward:
                both = seconds.forward[name] + seconds.backward[name]
                if both.any():
                    parts[name] = parts[name] + count * block.spread_work(both)
        for kind, (again, inside) in enumerate(zip(pieces.again, pieces.inside, strict=True)):
            recomputed = np.broadcast_to(full[kind], work.forward.shape)[pipeline.pace, columns]
            recompute = recompute + here * (
                recomputed * block.spread_work(again) + work.counts[pipeline.pace, kind] * inside
            )
    return parts | {"recompute": recompute}
