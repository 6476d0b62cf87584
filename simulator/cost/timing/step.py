"""Seconds of a step by part: passes, pipeline, exchanges of gradients, optimizer, and waits for the slowest.

Stages of a pipeline may work unequally; an encoder of images works on the ranks that hold the input table (T29). Where
lengths differ, replicas wait for each other, and a pipeline for its longest micro batch.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from simulator.cost.derived import Pricing, derived, of_passes, of_sizes, recomputed_inside
from simulator.cost.dtypes import HALF, element_bytes, gradient_bytes, optimizer_bytes_per_parameter, parameter_bytes
from simulator.cost.memory.activations import layer_input_bytes, recompute_plan, sent_bytes
from simulator.cost.memory.encoder import images_of_micro_batch
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.memory.state import ByClass, device_parameters, orthogonal_flops, shard, state_by_class
from simulator.cost.operations.sums import micro_batches
from simulator.cost.schedule.orders import schedule_of
from simulator.cost.schedule.schedule import Schedule, kinds_of_pass, makespan_seconds
from simulator.cost.stages import LayerCounts, over_layers
from simulator.cost.timing.collectives import gather_seconds, neighbour_seconds, pipeline_group, tensor_group
from simulator.cost.timing.data_parallel import data_parallel_seconds, on_own_devices, shard_seconds_per_byte
from simulator.cost.timing.layers import (
    PARTS,
    Parts,
    PassSeconds,
    head_seconds,
    layer_seconds,
    passes_are_captured,
    projection_seconds,
    repeated_seconds,
    table_seconds,
)
from simulator.cost.timing.products import attention_rate, memory_rate, wide_gemm_rate
from simulator.question.arrays import Index, NDArray, equal_columns, largest, numbered
from simulator.question.scenario.block import Array, KindArray, Mask
from simulator.question.scenario.layout import BY_NAME
from simulator.question.scenario.lengths import Lengths
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.optimizers import OPTIMIZERS
from simulator.records import NamedTuple


def encoder_seconds(pricing: Pricing) -> tuple[Array, Array]:
    """Return the seconds of both passes over a micro batch's images, a frozen copy one, each of shape (n,) (T29)."""
    scenario, count = pricing.scenario, images_of_micro_batch(pricing)
    images, encoder = scenario.images, scenario.model.encoder
    if images is None or encoder is None:
        return count, count
    image = images.each(encoder)
    scores = 4.0 * encoder.layers * encoder.width * encoder.attended_patches(image, images.frames)
    moved = 2.0 * element_bytes(scenario) * encoder.layers * encoder.widths[1]
    of_patch = 2.0 * encoder.parameters / wide_gemm_rate(scenario)
    forward = image.patches * (of_patch + scores / attention_rate(scenario) + moved / memory_rate(scenario))
    projector = 2.0 * encoder.projector_parameters * image.tokens / wide_gemm_rate(scenario)
    passes = 1.0 if images.rank else 2.0 * images.trains_encoder
    backward = passes * forward + 2.0 * projector * images.trains_projector
    # Images that fill the longest sequence fill shorter ones too.
    count = count * (scenario.sample_tokens / scenario.seq_length if images.fills else 1.0)
    passes = 1.0 + scenario.framework.reference_forward
    return count * passes * (forward + projector), count * backward


MOST_PASSES = 200_000
"""Largest number of passes that are run one by one; longer pipelines count unequal chunks as equal."""
CYCLES = 3
"""Cycles, of as many micro batches as ranks, that are run pass by pass where chunks are unequal."""


class ChunkSeconds(NamedTuple):
    """Seconds of the passes through one chunk of every kind of rank, shape (kinds, n)."""

    forward: KindArray
    backward: KindArray
    weights: KindArray
    """Seconds of weight gradients in the backward pass; 0 where the schedule does not split it."""


class StageWork(NamedTuple):
    """Seconds per micro batch of every kind of pipeline rank, shape (kinds, n)."""

    forward: KindArray
    backward: KindArray
    """Includes recompute."""
    by_chunk: tuple[ChunkSeconds, ...] = ()
    """Seconds of each chunk where passes are run one by one, else empty."""


class Chunk(NamedTuple):
    """A model chunk of every kind of rank, as far as its work differs."""

    distinct: int
    last: bool
    """Whether it is a rank's last, which has the modules behind the layers."""
    first: bool
    """Whether it is a rank's first, which has the input table."""


def pieces_of(pricing: Pricing, group: int) -> tuple[PassSeconds, ...]:
    """Return the seconds of the pieces on the devices of a node group, for each of `Pricing.kinds_of_work`.

    In the order of `piece_counts`: layers by kind, output layer, input table, prediction projection.
    """
    return _pieces(pricing.kinds_of_work.members[group], projects=bool(pricing.contents.prediction_layers.any()))


def _pieces(each: Pricing, *, projects: bool) -> tuple[PassSeconds, ...]:
    projections = (projection_seconds(each),) if projects else ()
    layers = (layer_seconds(each, kind) for kind in each.scenario.model.layer_kinds)
    return (*layers, head_seconds(each), table_seconds(each), *projections)


@derived
def _piece_seconds(each: Pricing, *, projects: bool) -> NDArray[np.float64]:
    """Return the seconds of `pieces_of`, forward, backward and of weight gradients, shape (3, pieces, n)."""
    pieces = _pieces(each, projects=projects)
    rows = [(piece.forward_seconds, piece.backward_seconds, piece.weight_seconds) for piece in pieces]
    return np.array([[np.broadcast_to(figure, len(each)) for figure in figures] for figures in zip(*rows, strict=True)])


@derived
def repeated_whole(pricing: Pricing, group: int) -> tuple[Array, ...]:
    """Return the seconds to recompute one layer of each kind in full, each of shape (n,)."""
    contents, each = pricing.contents, pricing.kinds_of_work.members[group]
    return tuple(pricing.spread_work(repeated_seconds(each, kind, "full", ())) for kind in contents.layer_kinds)


@of_passes
def repeated_inside(pricing: Pricing, group: int) -> tuple[Array, ...]:
    """Return the seconds that selective recompute adds to one layer of each kind, 0 elsewhere, each of shape (n,)."""
    contents, each = pricing.contents, pricing.kinds_of_work.members[group]
    inside = [np.zeros(len(pricing)) for _ in contents.layer_kinds]
    for mode, modules, chosen in recomputed_inside(pricing):
        # Listed layers are taken as spread evenly over the ranks.
        shares = np.where(pricing.recomputes_by("list"), contents.listed_shares[:, None], 1.0)
        for index, kind in enumerate(contents.layer_kinds):
            again = shares[index] * pricing.spread_work(repeated_seconds(each, kind, mode, modules))
            inside[index] = np.where(chosen, again, inside[index])
    return tuple(inside)


def piece_counts(pricing: Pricing, chunk: Chunk | None = None) -> LayerCounts:
    """Return the pieces on every kind of rank, or in one of its chunks, shape (pieces, kinds, 1).

    Pieces are layers by kind, output layers, input tables, prediction modules. Where the pipeline holds the model
    twice, a micro batch passes through one of the copies.
    """
    contents = pricing.contents
    heads, tables = contents.heads + contents.prediction_layers, contents.embeddings
    if chunk is None:
        ends = np.stack((heads, tables, contents.prediction_layers))
        return np.concatenate((contents.with_prediction, ends)) / pricing.block.copies
    layers = contents.chunks[chunk.distinct] + chunk.last * (contents.with_prediction - contents.layers)
    ends = np.stack((chunk.last * heads, chunk.first * tables, chunk.last * contents.prediction_layers))
    return np.concatenate((layers, ends))


def stage_work(pricing: Pricing) -> StageWork:
    """Return the work of every rank on its own kind of device: its layers, and the output layer on the last."""
    contents, plan = pricing.contents, recompute_plan(pricing)
    last = len(contents.chunk) - 1
    chunks = [Chunk(int(distinct), place == last, place == 0) for place, distinct in enumerate(contents.chunk)]
    runs = contents.unequal or (schedule_of(pricing).by_run and np.all(pricing.block.chunks == len(chunks)))
    by_chunk = {
        chunk: _with_recompute(pricing, chunk, plan.layers[chunk.distinct])
        for chunk in (dict.fromkeys(chunks) if runs else ())
    }
    whole = _with_recompute(pricing, None, plan.on_rank / pricing.block.copies)
    if pricing.scenario.images is not None:
        forward, backward = (contents.embeddings * seconds for seconds in encoder_seconds(pricing))
        whole = whole._replace(forward=whole.forward + forward, backward=whole.backward + backward)
    return StageWork(whole.forward, whole.backward, tuple(by_chunk[chunk] for chunk in chunks) if by_chunk else ())


def _with_recompute(pricing: Pricing, chunk: Chunk | None, full: NDArray[np.float64]) -> ChunkSeconds:
    """Return the seconds of passes through a chunk or a rank that recomputes `full` layers by kind."""
    contents, passes = pricing.contents, _passes(pricing, chunk)
    if pricing.recomputes("none").all():
        return passes
    counts, backward = piece_counts(pricing, chunk), passes.backward
    for group in range(len(pricing.members)):
        on_group = (contents.group == group)[:, None]
        inside = repeated_inside(pricing, group)
        for kind, again in enumerate(repeated_whole(pricing, group)):
            if counts[kind].any():
                more = full[kind] * again + counts[kind] * inside[kind]
                backward = backward + (more if on_group.all() else on_group * more)
    return passes._replace(backward=backward)


@of_sizes
def _passes(pricing: Pricing, chunk: Chunk | None) -> ChunkSeconds:
    """Return the seconds of passes through a chunk, or all chunks of a rank, without recompute."""
    contents, counts = pricing.contents, piece_counts(pricing, chunk)
    splits = chunk is not None and schedule_of(pricing).splits
    shape = len(contents.ranks), len(pricing)
    total = np.zeros((2 + splits, *shape))
    projects = bool(contents.prediction_layers.any())
    for group, member in enumerate(pricing.kinds_of_work.members):
        each = pricing.spread_work(_piece_seconds(member, projects=projects)[: len(total)])
        for index, count in enumerate(counts * (contents.group == group)[:, None]):
            if count.any():
                total += count * each[:, index, None]
    return ChunkSeconds(*total, *[np.broadcast_to(0.0, shape)] * (1 - splits))


class PipelineSeconds(NamedTuple):
    """Seconds of a step's pipeline, shape (n,)."""

    pace: NDArray[np.intp]
    """Index of the slowest kind of rank, which sets the pace."""
    pace_seconds: Array
    """Its seconds per micro batch."""
    fill: Array
    """Its idle time while the pipeline fills and drains; 0 where chunks are unequal, until `with_waits`."""
    sends: Array
    """Exposed sends of activations and gradients per step."""
    micro_batches: Array


def pipeline_seconds(pricing: Pricing, work: StageWork) -> PipelineSeconds:
    """Return a pipeline's seconds: `m max_i(w_i)`, the schedule's filling and draining, and sends (T18)."""
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    m = micro_batches(pricing)
    per_rank = work.forward + work.backward
    pace = np.argmax(per_rank, axis=0)
    slowest = per_rank.max(axis=0)
    whole = np.zeros(len(pricing))
    for kind, ranks in enumerate(contents.ranks):
        whole = whole + ranks * per_rank[kind]
    schedule, ranks, chunks = schedule_of(pricing), block.pipeline_parallel, block.chunks
    fill = np.zeros(len(pricing)) if _run_by_pass(work, ranks) else schedule.fill_seconds(whole - slowest, chunks)
    hidden = scenario.framework.overlap_p2p & (chunks > 1)
    exposed = np.where(hidden, scenario.coefficients.time.point_to_point_exposed, 1.0)
    sends = (exposed * m + ranks - 1.0) * schedule.sends(ranks, chunks) * send_seconds(pricing)
    return PipelineSeconds(pace, slowest, fill, sends, m)


def _run_by_pass(work: StageWork, ranks: int) -> bool:
    """Return whether the pipeline is run pass by pass: chunks are unequal, and passes are not too many."""
    return 0 < 2 * len(work.by_chunk) * ranks * CYCLES * ranks <= MOST_PASSES


def with_waits(pricing: Pricing, work: StageWork, pipeline: PipelineSeconds, where: Mask) -> PipelineSeconds:
    """Return the pipeline with idle time from a run pass by pass for layouts `where`; elsewhere a lower bound."""
    if not _run_by_pass(work, pricing.block.pipeline_parallel) or not where.any():
        return pipeline
    fill, at = pipeline.fill.copy(), np.flatnonzero(where)
    _, first, alike = numbered(at if pricing.passes is None else pricing.passes.index[at])
    idle = run_fill_seconds(schedule_of(pricing), pricing.contents.kind, work, pipeline.micro_batches, at[first])
    fill[at] = idle[alike]
    return pipeline._replace(fill=fill)


def run_fill_seconds(schedule: Schedule, kind: Index, work: StageWork, micro_batches: Array, at: Index) -> Array:
    """Return the idle time of the pacing rank for the layouts `at`, run pass by pass, of ranks of each `kind` (T24)."""
    ranks = float(len(kind))
    cycles = np.ceil(np.maximum(micro_batches[at], schedule.min_micro_batches(len(kind))) / ranks)
    pace = ranks * np.max((work.forward + work.backward).take(at, axis=-1), axis=0)
    distinct = {id(chunk): chunk for chunk in work.by_chunk}.values()
    figures = [figure for chunk in distinct for figure in (chunk if schedule.splits else chunk[:2])]
    first, alike = equal_columns(np.vstack((cycles, pace, *(figure.take(at, axis=-1) for figure in figures))))
    cycles, pace, at = cycles[first], pace[first], at[first]
    seconds = kinds_of_pass(
        *(
            np.stack([getattr(chunk, name).take(at, axis=-1) for chunk in work.by_chunk])
            for name in ("forward", "backward", "weights")
        )
    )

    def idle(run: int, now: Index) -> Array:
        passes = run * len(kind)
        waits: Array = makespan_seconds(schedule, seconds.take(now, axis=-1), kind, passes) - run * pace[now]
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


@of_sizes
def send_seconds(pricing: Pricing) -> Array:
    """Return the seconds of one activation send, over the slowest links of the node groups (T19)."""
    scenario, block = pricing.scenario, pricing.block
    activation, group = layer_input_bytes(pricing), pipeline_group(block)
    held, sent = tensor_group(block), activation
    gathered: Array | float = 0.0
    if scenario.framework.scattered_sends:
        whole = block.sequence_parallel == 0.0
        sent = np.where(whole, activation / held.size, activation)
        gathers = [gather_seconds(member, held, activation) for member in scenario.members]
        gathered = np.where(whole, largest(gathers), 0.0)
    slowest: Array = largest(neighbour_seconds(member, group, sent) for member in scenario.members)
    return slowest + gathered


def pace_parts(pricing: Pricing, pipeline: PipelineSeconds) -> Parts:
    """Return the seconds per step by part on the pacing rank; with `recompute` they add up to `m` times its work."""
    contents, counts = pricing.contents, piece_counts(pricing)
    shape, columns = (len(contents.ranks), len(pricing)), np.arange(len(pricing))

    def paced(by_kind: KindArray) -> Array:
        return np.broadcast_to(by_kind, shape)[pipeline.pace, columns]

    parts: Parts = dict.fromkeys((*PARTS, "recompute"), np.zeros(len(pricing)))
    full = recompute_plan(pricing).on_rank / pricing.block.copies
    for group in range(len(pricing.members)):
        here = pipeline.micro_batches * (contents.group == group)[pipeline.pace]
        for count, seconds in zip(counts, pieces_of(pricing, group), strict=False):
            times = here * paced(count)
            for name in seconds.forward:
                both = seconds.forward[name] + seconds.backward[name]
                if both.any():
                    parts[name] = parts[name] + times * pricing.spread_work(both)
        if pricing.recomputes("none").all():
            continue
        both_ways = zip(repeated_whole(pricing, group), repeated_inside(pricing, group), strict=True)
        for kind, (again, inside) in enumerate(both_ways):
            repeated = paced(full[kind]) * again + paced(counts[kind]) * inside
            parts["recompute"] = parts["recompute"] + here * repeated
    if pricing.scenario.images is not None:
        parts["encoder"] = pipeline.micro_batches * paced(contents.embeddings) * sum(encoder_seconds(pricing))
    return parts


_POINTS = 2**12  # points on which the work of a rank in a step is spread
_SUMMED = 128  # micro batches from which the work of a rank counts as normally distributed
_SHARES = 32  # steps in which the share of attention in a micro batch is told apart


def length_waits(pricing: Pricing, parts: Parts, pipeline: PipelineSeconds) -> Array:
    """Return the seconds per step that ranks wait for the slowest, shape (n,); `parts` are the pacing rank's (T28)."""
    lengths, block = pricing.scenario.lengths, pricing.block
    if lengths is None:
        return np.zeros(len(pricing))
    passes = pipeline.micro_batches * pipeline.pace_seconds
    attention = (parts["attention"] + parts["ring_attention"]) / np.maximum(passes, 1e-30)
    exchanging = block.expert_ranks / (block.tensor_parallel * block.context_parallel)
    together = np.clip(np.where(block.zero_stage > 2, block.data_parallel, exchanging), 1.0, block.data_parallel)
    waits = np.zeros(len(pricing))
    for at in range(len(pricing)):
        share = min(float(attention[at]), 1.0)
        size, count = int(block.micro_batch_size[at]), max(round(float(pipeline.micro_batches[at])), 1)
        joined, replicas = int(together[at]), int(block.data_parallel[at])
        slowest = _between(share, lengths, size, _Waiting(joined, count, max(replicas // joined, 1)))
        fill = _between(share, lengths, size, _Waiting(count, 1, 1)) if block.pipeline_parallel > 1 else 1.0
        waits[at] = (slowest - 1.0) * passes[at] + (fill - 1.0) * pipeline.fill[at]
    return waits


class _Waiting(NamedTuple):
    """Levels at which ranks wait for each other."""

    joined: int
    """Ranks of a group, which wait in every micro batch."""
    micro_batches: int
    """Micro batches of a rank in a step."""
    replicas: int
    """Groups, which wait once a step."""


def _between(attention: float, lengths: Lengths, micro_batch_size: int, ranks: _Waiting) -> float:
    """Return the slowest's work for a share of attention, between the two steps around it."""
    low = math.floor(attention * _SHARES)
    above = attention * _SHARES - low
    ends = (expected_slowest(lengths, each / _SHARES, micro_batch_size, ranks) for each in (low, min(low + 1, _SHARES)))
    return (1.0 - above) * next(ends) + above * next(ends)


@lru_cache(maxsize=4096)
def expected_slowest(lengths: Lengths, attention: float, micro_batch_size: int, ranks: _Waiting) -> float:
    """Return the expected work of the slowest group of ranks in a step over the mean of a rank, from 1 (T28)."""
    joined, micro_batches, replicas = ranks
    works, shares = work_of_micro_batch(lengths, micro_batch_size, attention)
    within = np.minimum(np.cumsum(shares), 1.0)
    shares = np.diff(within**joined, prepend=0.0)
    mean = float(works @ shares)
    deviation = math.sqrt(max(float((works - mean) ** 2 @ shares), 0.0))
    if deviation < 1e-12 or replicas == 1:
        return max(mean, 1.0)
    if micro_batches > _SUMMED:
        # The mean of as many equal micro batches is normally distributed.
        points = np.linspace(-8.0, 8.0, _POINTS)
        below = np.array([0.5 * math.erfc(-point / math.sqrt(2.0)) for point in points]) ** replicas
        return max(mean + deviation / math.sqrt(micro_batches) * float(points @ np.diff(below, prepend=0.0)), 1.0)
    top = float(works[-1]) * micro_batches
    place = works / top * (_POINTS - 1)
    low = np.floor(place).astype(int)
    spread = np.bincount(low, shares * (1.0 - (place - low)), _POINTS)
    spread = spread + np.bincount(np.minimum(low + 1, _POINTS - 1), shares * (place - low), _POINTS)
    summed = np.fft.irfft(np.fft.rfft(spread, 2 * _POINTS) ** micro_batches, 2 * _POINTS)[:_POINTS]
    below = np.clip(np.cumsum(summed), 0.0, 1.0) ** replicas
    slowest = float(np.linspace(0.0, top, _POINTS) @ np.diff(below, prepend=0.0))
    return max(slowest / micro_batches, mean, 1.0)


def work_of_micro_batch(lengths: Lengths, micro_batch_size: int, attention: float) -> tuple[Array, Array]:
    """Return the work of a micro batch over its mean, ascending, and the share of the micro batches with it (T28)."""
    tokens, shares = lengths.segments(micro_batch_size)
    squares = float(tokens**2 @ shares)
    if not lengths.packs:
        mean = float(tokens @ shares)
        return (1.0 - attention) * tokens / mean + attention * tokens**2 / squares, shares
    attended = squares / float(tokens @ shares)
    left_over = float((tokens**2 - attended * tokens) ** 2 @ shares)
    samples = lengths.package / float(tokens @ shares) * micro_batch_size
    deviation = math.sqrt(left_over / samples) / squares
    points = np.linspace(-3.5, 3.5, 71)
    normal = np.exp(-(points**2) / 2.0)
    scores = np.clip(1.0 + deviation * points, 0.0, lengths.package / attended)
    normal = normal / normal.sum()
    scores = scores / float(scores @ normal)
    return 1.0 - attention + attention * scores, normal


class StepSeconds(NamedTuple):
    """Seconds of a step of every layout; arrays of shape (n,)."""

    total: Array
    pipeline: PipelineSeconds
    work: StageWork
    data_parallel: Array
    optimizer: Array
    offload: Array
    overhead: Array
    length_waits: Array | None = None
    """Waits for the longest where lengths differ; None where they are equal."""

    def parts(self, pricing: Pricing) -> Parts:
        """Return the named parts as the pacing rank sees them; they add up to `total`."""
        parts = pace_parts(pricing.by_mean, self.pipeline)
        if self.length_waits is not None:
            parts["length_waits"] = self.length_waits
        parts["overhead"] = parts["overhead"] + self.overhead
        return parts | {
            "bubble": self.pipeline.fill,
            "pipeline_sends": self.pipeline.sends,
            "data_parallel": self.data_parallel,
            "optimizer": self.optimizer,
            "offload": self.offload,
        }


def step_seconds(pricing: Pricing, memory: MemoryByStage, below: Array | float = np.inf) -> StepSeconds:
    """Price a block's time; `memory` states what is offloaded.

    A step that takes at least `below` seconds, shape (n,), need not be priced in full: its total is then a lower bound
    of at least `below`.
    """
    if pricing.by_mean is not pricing:
        pricing = pricing.by_mean
        memory = memory_by_stage(pricing)
    work, pipeline, bound = _passing(pricing)
    if not (bound < below).any():
        return StepSeconds(bound, pipeline, work, *[np.zeros(len(pricing))] * 4)
    passes = pipeline.micro_batches * pipeline.pace_seconds + pipeline.sends
    each_pass, each_step = host_moves(pricing, memory)
    forward, backward = (np.maximum(seconds, each_pass) for seconds in (work.forward, work.backward))
    micro_batch = (forward + backward).max(axis=0)
    data = data_parallel_seconds(pricing, forward, backward)
    optimizer = optimizer_seconds(pricing).max(axis=0)
    offload = each_step + (micro_batch - pipeline.pace_seconds) * pipeline.micro_batches
    # Forward passes of a reference model fill a pipeline once (PaddleNLP 136516b, paddlenlp/trl/dpo_trainer.py).
    passing = (pipeline.micro_batches + pricing.block.pipeline_parallel - 1.0) * forward.max(axis=0)
    overhead = _overhead_seconds(pricing.scenario, pipeline) + pricing.scenario.framework.reference_forward * passing
    rest = data + optimizer + offload + overhead
    pipeline = with_waits(pricing, work, pipeline, passes + rest < below)
    total = passes + pipeline.fill + rest
    if pricing.scenario.lengths is None:
        return StepSeconds(total, pipeline, work, data, optimizer, offload, overhead)
    waits = length_waits(pricing, pace_parts(pricing, pipeline), pipeline)
    return StepSeconds(total + waits, pipeline, work, data, optimizer, offload, overhead, waits)


@of_sizes
def min_step_seconds(pricing: Pricing) -> Array:
    """Return a cheap lower bound on a step's seconds with any recompute, shape (n,): its passes without."""
    without = np.full(len(pricing), BY_NAME["recompute"].encoded("none"))
    return least_step_seconds(pricing.by_mean.changed(recompute=without))


def least_step_seconds(pricing: Pricing) -> Array:
    """Return a lower bound on a step's seconds, shape (n,): its passes."""
    return _passing(pricing.by_mean)[-1]


@of_passes
def _passing(pricing: Pricing) -> tuple[StageWork, PipelineSeconds, Array]:
    """Return the work of a pipeline, its seconds, and a lower bound on those of the step."""
    work = stage_work(pricing)
    pipeline = pipeline_seconds(pricing, work)
    passes = pipeline.micro_batches * pipeline.pace_seconds + pipeline.sends + pipeline.fill
    return work, pipeline, np.asarray(ROUNDING * (passes + _overhead_seconds(pricing.scenario, pipeline)))


ROUNDING = 1.0 - 1e-9
"""Factor on a bound that absorbs rounding in another order."""


def _overhead_seconds(scenario: Scenario, pipeline: PipelineSeconds) -> Array:
    """Return the fixed seconds of a step and of its micro batches, and waits for the slowest rank, shape (n,) (T23)."""
    values, work = scenario.coefficients.time, pipeline.micro_batches * pipeline.pace_seconds + pipeline.fill
    each = 0.0 if passes_are_captured(scenario) else values.micro_batch_overhead_seconds
    waiting = values.node_doubling_wait * math.log2(max(scenario.nodes, 1)) * work
    return values.step_overhead_seconds + pipeline.micro_batches * each + waiting


@of_sizes
def optimizer_seconds(pricing: Pricing) -> KindArray:
    """Return the seconds to read and write the sharded state, read gradients and write weights (T21).

    `optimizer_slowdown` is the time of an update over that of one pass: several kernels each read and write it again.
    `gradient_passes` adds passes over all gradients of a device, sharded or not.
    """
    scenario = pricing.scenario
    trained = device_parameters(pricing, "trained")
    beside = 2.0 * optimizer_bytes_per_parameter(scenario) + gradient_bytes(scenario)
    per_parameter = beside + parameter_bytes(scenario)
    per_byte = on_own_devices(pricing, lambda member: member.coefficients.time.optimizer_slowdown / memory_rate(member))
    whole = float(scenario.framework.gradient_passes) * gradient_bytes(scenario) * (trained.dense + trained.routed)
    moved = shard(pricing, trained, 1) * per_parameter + 2.0 * state_by_class(pricing) + whole
    return moved * per_byte + _orthogonal_seconds(pricing)


def _orthogonal_seconds(pricing: Pricing) -> KindArray | float:
    """Return the seconds of orthogonalizing matrix updates, spread over the ranks that share the matrices (T21)."""
    scenario, contents = pricing.scenario, pricing.contents
    if not OPTIMIZERS[scenario.framework.optimizer].newton_schulz_steps or scenario.lora_rank is not None:
        return 0.0
    of_layers = [orthogonal_flops(pricing, kind) for kind in contents.layer_kinds]
    flops = ByClass(*(over_layers(contents.with_prediction, each) for each in zip(*of_layers, strict=True)))
    seconds = shard(pricing, flops, 1) * on_own_devices(pricing, lambda member: 1.0 / wide_gemm_rate(member))
    if not scenario.framework.fully_shard:
        return seconds
    parts = shard(pricing, device_parameters(pricing, "matrix"), 1)
    return seconds + 2.0 * HALF * parts * shard_seconds_per_byte(pricing).dense


def host_moves(pricing: Pricing, memory: MemoryByStage) -> tuple[KindArray, Array]:
    """Return the seconds of traffic with the host under either pass, (kinds, n), and while nothing runs (T22)."""
    profile = pricing.scenario.framework
    per_byte = on_own_devices(pricing, lambda member: 1.0 / member.hardware.host_bandwidth_bytes_per_second)
    each_pass = (memory.activations.offload_traffic + sent_bytes(pricing)) * per_byte
    optimizer = pricing.offloads("optimizer", "optimizer_tensorwise")
    state = 2.0 * (memory.state.optimizer * per_byte).max(axis=0) * profile.offload_fraction
    each_step = np.where(optimizer, state, 0.0)
    if profile.offload_parameters:
        parameters = memory.state.parameters_on_host * per_byte
        each_pass, each_step = each_pass + parameters, each_step + parameters.max(axis=0)
    return each_pass, each_step
