"""Memory of a training step under PyTorch's FSDP2 (`fully_shard`): a replay of its allocations and frees in order.

Units and their tensors are M15's, their moments M16's (docs/model.md). `state` has the other ways of sharding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import add
from typing import assert_never

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.dtypes import (
    FP32,
    element_bytes,
    gathered_narrow,
    gradient_bytes,
    optimizer_bytes_per_parameter,
    parameter_bytes,
)
from simulator.cost.memory.activations import (
    autocasts,
    in_flight,
    layer_bytes,
    layer_input_bytes,
    most_in_flight,
    recompute_plan,
    stage_activations,
)
from simulator.cost.memory.loss import head_input_bytes, logits_per_micro_batch, loss_bytes
from simulator.cost.memory.moments import Moment, MomentName, layer_backward_bytes, table_sums, workspace_bytes
from simulator.cost.memory.state import (
    cached_bytes,
    device_parameters,
    largest_linear_layer,
    largest_weight,
    linear_by_class,
    local_by_class,
    local_count,
    local_shard,
    model_totals,
    optimizer_on_device,
    orthogonal_step,
    shard,
    shard_degrees,
    state_by_class,
    step_bytes,
)
from simulator.cost.operations.sums import micro_batches
from simulator.question.arrays import largest
from simulator.question.scenario.block import Array, KindArray, Mask, StageArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.records import NamedTuple

_PARTS = ("parameters", "gradients", "sharded", "resident", "activations", "released", "logits")
"""Tensor names that are fields of Moment; all others count as temporary."""


def shards_by_unit(scenario: Scenario) -> bool:
    """Return whether this module describes the run: all weights trained, stored in fp32 or accelerate's type."""
    profile, stored = scenario.framework, parameter_bytes(scenario)
    prepared = profile.plain_module and scenario.devices > 1 and not profile.loss_chunks
    alike = stored == gradient_bytes(scenario) and (stored == FP32 or prepared)
    return profile.fully_shard and scenario.lora_rank is None and alike and not profile.step_in_backward


def sharded_moments(pricing: Pricing) -> tuple[Moment, ...]:
    """Return the moments of the first backward pass, of a later one, and of the reduction and optimizer step (M16)."""
    scenario, fsdp, units = pricing.scenario, _policy(pricing), _units(pricing)
    state = units.shards / parameter_bytes(scenario) * optimizer_bytes_per_parameter(scenario) + state_by_class(pricing)
    states, states_in_step = optimizer_on_device(pricing, state)
    rotary = FP32 * scenario.seq_length * float(scenario.model.qk_rope_head_dim or scenario.model.head_dim)
    lasting = _Allocate(resident=states, workspace=workspace_bytes(scenario) + rotary)
    return _replay(lasting, _scenes(_Step(pricing, fsdp, units, _ranks(pricing, fsdp)), states_in_step))


def _ranks(pricing: Pricing, fsdp: _Policy) -> _Ranks:
    block, contents = pricing.block, pricing.contents
    activations, plan = stage_activations(pricing), recompute_plan(pricing)

    def largest_there(figure: Callable[[LayerKind], Array]) -> KindArray:
        kinds = zip(contents.layer_kinds, contents.layers > 0.0, strict=True)
        return np.asarray(largest(present * figure(kind) for kind, present in kinds))

    layer = largest_there(lambda kind: layer_bytes(pricing, kind))
    backward = largest_there(lambda kind: layer_backward_bytes(pricing, kind, fsdp.wrapped))
    layers, recomputed = contents.num_layers, plan.on_rank.sum(axis=0)
    count, boundary = micro_batches(pricing), layer_input_bytes(pricing)
    # Receive buffers exist for every micro batch of the step, forward and backward, from the first step on.
    # A receive buffer is the input that a chunk's first layer saves; a sent tensor stays until its backward pass.
    chunks = np.where(block.pipeline_parallel > 1, block.chunks, 1.0)
    received, sent = chunks - contents.embeddings, chunks - contents.heads
    beside_layers = boundary * (sent - received) + activations.embedded
    of_chunk = pricing.chunk_layers.sum(axis=1)
    return _Ranks(
        layers=layers,
        first_chunk=of_chunk[contents.chunk[0]],
        last_chunk=of_chunk[contents.chunk[-1]],
        first=contents.embeddings > 0.0,
        last=contents.heads > 0.0,
        micro_batches=count,
        flight=np.where(activations.offloaded, 1.0, in_flight(pricing)),
        boundary=boundary,
        beside_layers=contents.on_ranks(np.broadcast_to(beside_layers, activations.one_micro_batch.shape)),
        buffers=contents.on_ranks(count * boundary * (received + sent)),
        first_layer=np.where(recomputed > 0.0, boundary, layer),
        last_layer=np.where(recomputed >= layers, boundary, layer),
        # A recomputed unit of several layers is computed again as a whole.
        backward=backward + np.where(recomputed > 0.0, plan.unit - 1.0, 0.0) * layer,
    )


def idle_stream_bytes(pricing: Pricing, moments: tuple[Moment, ...], totals: list[StageArray]) -> StageArray | float:
    """Return the bytes of blocks that FSDP2's streams hold unused at the peak of tensors (M21).

    Whole gradients, which `no_sync` sums, lie in no stream's (FSDPParamGroup.unshard, foreach_reduce).
    """
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    pipelined = block.pipeline_parallel > 1
    streams = (block.replicas > 1.0) & (block.zero_stage >= (1 if pipelined else 3))
    if not scenario.hardware.caching_allocator or not streams.any():
        return 0.0
    units = _units(pricing)
    unit = np.maximum(np.maximum(units.table, units.head), units.next_layer)
    gathered = np.where(shard_degrees(pricing).dense > 1.0, element_bytes(scenario) * unit, 0.0)
    shape = (len(contents.ranks), len(pricing))
    shards = (np.broadcast_to(each.sharded if pipelined else each.gradients, shape) for each in moments)
    parted = pipelined | _policy(pricing).reduces_each
    beside = [total - contents.on_ranks(parted * alive) for total, alive in zip(totals, shards, strict=True)]
    held = parted * units.reduced + gathered
    idle = reduce(np.maximum, beside) - reduce(np.maximum, totals) + contents.on_ranks(held)
    return np.where(streams, idle, 0.0)


class _Allocate(dict[str, KindArray | float]):
    """Bytes of newly allocated tensors by name, in place of tensors of the same name."""


class _Free(frozenset[str]):
    """Names of freed tensors."""


class _Mark(NamedTuple):
    """Record the tensors alive as a moment. Where `when` is false, gradients, logits and temporaries count as 0."""

    name: MomentName
    when: Mask | bool = True


_Event = _Allocate | _Free | _Mark


def _replay(lasting: _Allocate, scenes: Iterable[Iterable[_Event]]) -> tuple[Moment, ...]:
    """Return the moments of a step's scenes; each scene begins with the `lasting` tensors."""
    moments: list[Moment] = []
    for scene in scenes:
        alive: dict[str, KindArray | float] = {**lasting}
        for event in scene:
            match event:
                case _Allocate():
                    alive |= event
                case _Free():
                    alive = {name: size for name, size in alive.items() if name not in event}
                case _Mark(name, when):
                    parts = {part: alive.get(part, 0.0) for part in _PARTS}
                    parts["temporary"] = reduce(add, (size for name_of, size in alive.items() if name_of not in parts))
                    parts |= {part: np.where(when, parts[part], 0.0) for part in ("gradients", "logits", "temporary")}
                    moments.append(Moment(name, **parts))
                case _:
                    assert_never(event)
    return tuple(moments)


class _Policy(NamedTuple):
    """What FSDP2 gathers and reduces in each layout; bytes are per parameter, shape (n,)."""

    element: float
    """Bytes of a weight in the compute type."""
    stored: float
    """Bytes of a part of a weight as it is stored, and of its gradient."""
    wrapped: Mask
    reduces_each: Mask
    """Whether every backward pass reduces gradients, unit by unit."""
    ranks: Array
    """Ranks that share a unit's parameters."""
    copied: Array
    """Gathered bytes that stay until the last pass ends."""
    used: Array
    """Gathered bytes of the unit in use."""
    ahead: Array
    """Gathered bytes of the next unit, prefetched while one is used."""
    stays: Array
    """Gathered bytes that stay after a backward pass: with a pipeline."""
    buffer: Array
    """Bytes that a unit's reduction holds until the next unit's, in the last pass at least."""
    sent: Array
    """Bytes of a gradient as it is reduced, and as it is summed whole over micro batches."""
    root: Array
    """Gathered bytes of table, norm and output layer, which are one unit of FSDP 1 and stay through both passes."""
    group_sum: Array
    """Bytes of a part of a gradient that its sum over groups of shards holds until the pass ends (`AllReduceState`)."""


def _policy(pricing: Pricing) -> _Policy:
    scenario, block = pricing.scenario, pricing.block
    element, alone, pipelined = element_bytes(scenario), block.replicas == 1.0, block.pipeline_parallel > 1
    # fp32 without replicas needs neither casts nor sharding: the weights are used as they are. Autocast wraps nothing.
    cast = autocasts(pricing)
    stored = parameter_bytes(scenario)
    wrapped = ~((alone | ((block.zero_stage < 1) & (stored < FP32))) & (element == stored)) & ~cast
    reshards = wrapped & (block.zero_stage >= 3)
    reduces = wrapped & (not pipelined)
    # accelerate reduces in the compute type, and a step's gradients once (1.14, `set_mixed_precision`, `no_sync`).
    prepared = scenario.framework.plain_module & (block.zero_stage >= 1)
    sent, flat = np.where(prepared, element, stored), scenario.framework.flat_parameters & prepared
    each = (block.zero_stage >= 2) & (~prepared | scenario.framework.sync_each_batch) | (micro_batches(pricing) == 1.0)
    whole = alone | (block.zero_stage == 0)  # whose reduction takes a second buffer
    return _Policy(
        element=element,
        stored=stored,
        wrapped=wrapped,
        reduces_each=reduces & each,
        ranks=np.where(block.zero_stage >= 1, shard_degrees(pricing).dense, 1.0),
        copied=np.where((wrapped & ~reshards) | cast, element, 0.0),
        used=np.where(reshards, element, 0.0),
        ahead=np.where(reshards & ~alone & (scenario.framework.backward_prefetch | ~flat), element, 0.0),
        stays=np.where(reshards & pipelined, element, 0.0),
        buffer=np.where(reduces & (each | whole) & ~flat, sent, 0.0),
        sent=sent,
        root=np.where(wrapped & flat, element, 0.0),
        group_sum=np.where(reduces & ~flat & (shard_degrees(pricing).dense < block.replicas), sent, 0.0),
    )


class _Units(NamedTuple):
    """Parameters of the FSDP units on one device (M15), unsharded unless noted; shape (n,) or (kinds, n)."""

    layer: Array
    table: KindArray
    """The input table, on stages where it is a unit of its own."""
    table_gradient: KindArray
    """Its dense gradient: unsharded on every tensor-parallel rank until it is reduced."""
    head: KindArray
    """Final norm and output layer, with the input table where they share a unit."""
    all: KindArray
    layer_shard: Array
    """The rank's shard of a layer's gradients: experts are cut over the ranks that hold the same ones."""
    gathered_layer: Array
    """Parameters to gather for a layer; those gathered in 8 bits count half."""
    next_layer: Array
    """Of these, those that come from other ranks, ahead of their use: not experts that one rank alone holds."""
    gathered_all: KindArray
    cast_again: KindArray
    """Parameters that autocast casts for a forward pass and, their layers done again, not for the backward pass."""
    accumulated: KindArray
    """Parameters with unsharded gradients."""
    shards: KindArray
    """Bytes of the rank's shard of parameters."""
    table_shard: KindArray
    """The rank's shard of the table's gradient, likewise."""
    reduced: KindArray
    """Bytes of the rank's shard of gradients, unless on the host."""
    stored: KindArray
    """Bytes of parameters at any moment: the rank's shard, a reference's too, unless on the host; 8-bit copies."""


@derived
def _units(pricing: Pricing) -> _Units:
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    parts, totals = device_parameters(pricing), model_totals(scenario)
    # An input table tied to the output layer of the same stage shares its unit.
    apart = contents.embeddings * (1.0 - contents.heads * scenario.model.tie_word_embeddings)
    table = apart * (totals.embedding.split / block.tensor_parallel)
    table_gradient, whole = table * block.tensor_parallel, parts.dense + parts.routed
    layer: Array = largest(local_count(pricing, piece) for piece in totals.layers)
    experts = largest(local_by_class(pricing, piece).routed for piece in totals.layers)
    linear, half = sum(linear_by_class(pricing)), 0.5 * gathered_narrow(scenario)
    gathered = layer - half * largest_linear_layer(pricing)
    shards = parameter_bytes(scenario) * shard(pricing, parts, 1)
    copies = 2.0 if scenario.framework.frozen_reference else 1.0  # a reference is sharded alike
    # Offloaded shards come in one tensor at a time and are gathered, reduced gradients leave (PyTorch 2.13, fsdp/
    # _fully_shard/_fsdp_param.py, `all_gather_inputs`; `foreach_reduce`); below ZeRO 3 nothing is offloaded.
    on_device = np.where(scenario.framework.offload_parameters & (block.zero_stage >= 3), 0.0, 1.0)
    cast, again = autocasts(pricing), recompute_plan(pricing).on_rank
    cast_again = cast * sum(
        count * local_count(pricing, piece) for count, piece in zip(again, totals.layers, strict=True)
    )
    return _Units(
        layer=layer,
        table=table,
        table_gradient=table_gradient,
        head=contents.heads * local_count(pricing, totals.head),
        all=whole,
        layer_shard=on_device * largest(local_shard(pricing, piece) for piece in totals.layers),
        gathered_layer=gathered,
        next_layer=gathered - np.where(shard_degrees(pricing).routed > 1.0, 0.0, (1.0 - half) * experts),
        gathered_all=whole - half * linear - cast * table - cast_again,
        cast_again=cast_again,
        accumulated=whole - table + table_gradient,
        shards=shards,
        table_shard=on_device * table / np.where(block.zero_stage >= 1, shard_degrees(pricing).dense, 1.0),
        reduced=on_device * shards,
        stored=on_device * copies * shards + cached_bytes(scenario) * linear,
    )


class _Ranks(NamedTuple):
    """Layers, micro batches (counts) and activations (bytes) of the ranks; shape (n,), (kinds, 1) or (kinds, n)."""

    layers: KindArray
    first_chunk: KindArray
    """Layers of the rank's first model chunk; `last_chunk`, of its last."""
    last_chunk: KindArray
    first: Mask
    """Ranks with the input table; `last`, with the output layer."""
    last: Mask
    micro_batches: Array
    flight: StageArray
    """Largest number of micro batches with activations alive, shape (pipeline_parallel, n)."""
    boundary: Array
    """Bytes of the residual stream between two layers."""
    beside_layers: StageArray
    """Bytes that each micro batch saves outside layers and buffers, shape (pipeline_parallel, n)."""
    buffers: StageArray
    """Receive buffers of the pipeline, shape (pipeline_parallel, n)."""
    first_layer: KindArray
    """Bytes that the first layer saves for its backward pass; `last_layer`, the last."""
    last_layer: KindArray
    backward: KindArray
    """Bytes alive in a layer's backward pass."""


class _Step(NamedTuple):
    """Inputs of all scenes of a step."""

    pricing: Pricing
    fsdp: _Policy
    units: _Units
    ranks: _Ranks


def _held(step: _Step, flight: StageArray, *, ended: bool = False) -> StageArray:
    """Return the activation bytes of `flight` micro batches on every rank, with pipeline buffers and sent tensors.

    The moment is the start of a backward pass of the last chunk or, if `ended`, the end of one of the first chunk.
    """
    pricing, ranks, activations = step.pricing, step.ranks, stage_activations(step.pricing)
    left, chunks = flight, pricing.block.chunks
    if ended:  # a backward pass has freed its chunk's
        left = np.where(_first_chunk_last(step), (ranks.micro_batches - 1.0) / chunks, flight - 1.0 / chunks)
    layers = pricing.contents.on_ranks(activations.one_micro_batch) * left
    if pricing.contents.unequal:
        first = pricing.contents.on_ranks(activations.by_chunk[pricing.contents.chunk[0]])
        fewer = pricing.contents.on_ranks(activations.one_micro_batch) * (ranks.flight - flight)
        if ended:
            fewer = np.where(_first_chunk_last(step), 0.0, fewer) + first
        layers = np.where(activations.offloaded, layers, most_in_flight(pricing, 0 if ended else -1) - fewer)
    return layers + ranks.beside_layers * left + ranks.buffers + ranks.boundary * _sent_chunks(pricing, left)


def _sent_chunks(pricing: Pricing, flight: StageArray) -> StageArray:
    """Return how many chunk outputs and input gradients are held until the step ends, under the interleaved schedule.

    All forward passes but the `flight` in progress have had their backward pass. Backward passes go in groups of as
    many micro batches as pipeline ranks, the last chunk of each group first.
    """
    block, contents = pricing.block, pricing.contents
    chunks, ranks = block.chunks, float(block.pipeline_parallel)
    done = np.maximum(micro_batches(pricing) - flight, 0.0) * chunks
    cycles, rest = np.divmod(done, ranks * chunks)
    of_last_chunk = cycles * ranks + np.minimum(rest, ranks)
    of_first_chunk = cycles * ranks + np.maximum(rest - (chunks - 1.0) * ranks, 0.0)
    first, last = (contents.on_ranks(ends) > 0.0 for ends in (contents.embeddings, contents.heads))
    until_end = (block.chunks > 1) & (block.pipeline_parallel > 1)
    return np.where(until_end, 2.0 * done - last * of_last_chunk - first * of_first_chunk, 0.0)


def _first_chunk_last(step: _Step) -> Mask:
    """Return where the first chunk's backward passes follow all those of later chunks: micro batches equal ranks."""
    block = step.pricing.block
    return np.asarray((step.ranks.micro_batches == block.pipeline_parallel) & (block.chunks > 1.0))


def _scenes(step: _Step, states_in_step: KindArray) -> Iterator[Iterable[_Event]]:
    """Yield the start and the end of backward passes, and the optimizer step, with the tensors alive in each.

    The first pass begins without gradients; a later one, if any, with all of them.
    """
    pricing, fsdp, units, ranks = step
    count, flight, pipelined = ranks.micro_batches, ranks.flight, pricing.block.pipeline_parallel > 1
    repeated, behind = count > 1.0, np.minimum(flight, count - 1.0)
    later = np.where(fsdp.reduces_each, units.reduced, fsdp.sent * units.accumulated)
    parameters, begin = _parameters(step), _begin(step)
    if not (count > flight).all():
        # Otherwise a later pass has as many micro batches in flight, and gradients too.
        yield _Allocate(parameters=parameters, gradients=0.0, activations=_held(step, flight)), *begin
    held, gradients = _held(step, np.where(repeated, behind, flight)), np.where(repeated, later, 0.0)
    yield _Allocate(parameters=parameters, gradients=gradients, activations=held), *begin
    # The first pass reaches its first layers and input table before their own gradients exist.
    # A 16-bit gradient turns into an accumulated one at the end of its unit, where both are alive.
    of_table = np.where(fsdp.wrapped & (fsdp.element < fsdp.sent), 0.0, fsdp.sent * units.table_gradient)
    no_table = np.where(fsdp.reduces_each, fsdp.stored * units.table_shard, of_table)
    shard = np.where(fsdp.reduces_each, fsdp.stored * units.layer_shard, 0.0)
    no_layer, narrow = no_table + shard, fsdp.sent < FP32  # in fp32 a layer's reduction is as large as its passes
    shard = narrow * np.where(fsdp.reduces_each, shard, fsdp.sent * units.layer)
    buffer = np.where(fsdp.reduces_each & (fsdp.root == 0.0), fsdp.sent, 0.0)
    each = step._replace(fsdp=fsdp._replace(buffer=buffer, group_sum=fsdp.reduces_each * fsdp.group_sum))
    middle = np.maximum(behind, 1.0)
    # FSDP 1's outer unit has the head's gradient beside it (`_end`) until the first pass ends.
    head = np.where(fsdp.reduces_each, 0.0, np.maximum(2.0 * fsdp.root - fsdp.stored / fsdp.ranks, 0.0)) * units.head
    ends = (later - no_layer - shard, later - no_layer, later - no_table - head)
    yield _end(each, flight, ends, repeated, ~repeated)
    yield _end(each, middle, (later, later, later), count > (1.0 if pipelined else 2.0), repeated)
    if pipelined:
        yield _reduction(step)
    else:
        # Gathered weights are freed and whole gradients reduced as the last pass goes.
        whole = np.where(fsdp.reduces_each, 0.0, 1.0)
        table = units.reduced + whole * (fsdp.sent * units.table_gradient - fsdp.stored * units.table_shard)
        more = whole * (fsdp.sent * units.layer - fsdp.stored * units.layer_shard)
        shard, no_layer, no_table = (np.where(count == 1.0, absent, 0.0) for absent in (shard, no_layer, no_table))
        last = step._replace(fsdp=fsdp._replace(copied=np.zeros_like(fsdp.copied), used=fsdp.copied + fsdp.used))
        layer, table = table + more - no_layer, table - no_table
        ends = (layer + narrow * more - shard, layer, table)
        yield _end(last, flight, ends, np.ones_like(repeated), repeated & fsdp.reduces_each)
    # The optimizer may work on all tensors at once. Without FSDP2 nothing scatters the input table's gradient.
    gradients = np.where(fsdp.wrapped, units.reduced, fsdp.sent * units.accumulated)
    foreach = step_bytes(pricing, units.shards / fsdp.stored, lambda: largest_weight(pricing, sharded=True))
    foreach = foreach + orthogonal_step(pricing)
    in_step = _Allocate(parameters=units.stored, gradients=gradients, resident=states_in_step, foreach=foreach)
    yield _Allocate(activations=ranks.buffers, sharded=units.reduced), in_step, _Mark("optimizer step")


def _begin(step: _Step) -> list[_Event]:
    """Return the events of a backward pass's start: loss, output layer, and the last two layers."""
    pricing, fsdp, units, ranks = step
    block, at_loss, layer = pricing.block, _Mark("loss", ranks.last), units.gathered_layer
    logits, several = logits_per_micro_batch(pricing), ranks.last_chunk > 1.0
    plain = pricing.scenario.framework.plain_module
    came = np.maximum(fsdp.ahead, (plain & fsdp.wrapped) * fsdp.copied)
    forward = (fsdp.root == 0.0) * came * units.head - (FP32 - fsdp.element) * logits  # a gradient less
    head = (fsdp.root == 0.0) * fsdp.used * units.head  # at the loss too where accelerate's model makes it
    reduced = np.where(fsdp.reduces_each & (ranks.micro_batches > 1.0), fsdp.buffer, 0.0)  # FSDP 1 keeps none
    # While one unit is used, the next one's gathered weights come in.
    follows = np.where(several | ranks.first, fsdp.ahead, 0.0)
    freed = np.where((fsdp.root == 0.0) & (ranks.micro_batches == 1.0), fsdp.copied, 0.0) * units.head
    received = np.where(ranks.last, 0.0, ranks.boundary)
    return [
        _Allocate(
            # `_sent_chunks` counts what interleaved chunks sent.
            sent=np.where(ranks.first | (block.chunks > 1), 0.0, ranks.boundary),
            # Weights gathered by another chunk's backward pass stay until that chunk's next forward pass.
            other_chunks=fsdp.stays * layer * (ranks.layers - ranks.last_chunk),
            head=plain * head,
            # With BACKWARD_PRE FSDP 1 gathers the last layer before the outer unit's backward pass.
            next_layer=np.minimum(fsdp.root, fsdp.ahead) * units.next_layer,
            head_input=head_input_bytes(pricing),
            reduced_before=reduced * np.where(units.table > 0.0, units.table, units.head),
            logits=loss_bytes(pricing),
            forward=np.maximum(forward + fsdp.copied * units.cast_again, 0.0),
        ),
        at_loss,
        _Free({"forward"}),
        _Allocate(logits=fsdp.element * logits, head=head, head_gradient=fsdp.element * units.head),
        _Allocate(input_gradient=ranks.boundary, next_layer=fsdp.ahead * units.next_layer),
        at_loss,
        _Free({"head_input", "logits", "head", "head_gradient", "reduced_before"}),
        _Allocate(head_reduction=_reduced(fsdp, units.head), freed=-freed),
        at_loss,
        _Free({"input_gradient", "next_layer", "head_reduction"}),
        _Allocate(used=fsdp.used * layer, next_layer=follows * units.next_layer, released=ranks.last_layer),
        _Allocate(layer=ranks.backward - received, head_reduction=fsdp.buffer * units.head),
        _Mark("backward"),
        _Free({"head_reduction"}),
        _Allocate(layer=ranks.backward, done=fsdp.stays * layer, released=2.0 * ranks.last_layer),
        _Allocate(layer_reduction=fsdp.buffer * units.layer),
        _Mark("backward", several),
    ]


def _end(step: _Step, flight: StageArray, gradients: tuple[KindArray, ...], when: Mask, again: Mask) -> list[_Event]:
    """Return the events of a backward pass's end, `again` one's: first layers and input table beside `gradients`."""
    pricing, fsdp, units, ranks = step
    apart, block, at_table = fsdp.root == 0.0, pricing.block, _Mark("embedding gradient", when & ranks.first)
    # The first layer's input is a receive buffer, counted already; the gradient sent last is not.
    sent = np.where(ranks.last, 0.0, ranks.boundary)
    done = fsdp.stays * np.maximum(units.all - units.table - units.layer, 0.0)
    # FSDP2 forgets the order of the passes in the last backward pass only: until then the unit before the table is
    # the previous micro batch's output layer, which is gathered ahead.
    wrong_prefetch = np.where((ranks.micro_batches > 1.0) & (block.pipeline_parallel == 1), apart * fsdp.ahead, 0.0)
    # With interleaved chunks, this backward pass gathered the first chunk's layers alone.
    at_end = np.where(block.chunks == 1, units.all - units.table, ranks.first_chunk * units.layer)
    # The gradient of the residual stream comes in and, split over the tokens, is gathered for the table.
    incoming = ranks.boundary * (1.0 + (block.sequence_parallel > 0.0) * block.tensor_parallel)
    # A gradient that is whole on every tensor-parallel rank is scattered over the group before it is reduced.
    scattered = np.where(fsdp.reduces_each & (units.table_gradient > units.table), fsdp.element * units.table, 0.0)
    # FSDP 1 reduces its outer unit last, from a copy of its gradients in one (torch 2.13, fsdp/_flat_param.py).
    of_head = np.where(fsdp.reduces_each, 0.0, fsdp.root) - np.where(apart, 0.0, fsdp.stored / fsdp.ranks)
    outer = fsdp.root * (units.table + 2.0 * units.head) + of_head * units.head
    # A sum over groups of shards is the gradient itself where it is neither cast nor added to an earlier pass's.
    waiting = np.where(again | (fsdp.sent < fsdp.stored), fsdp.group_sum, 0.0)
    summed = waiting * (units.shards / fsdp.stored - units.table_shard)
    return [
        _Allocate(parameters=_parameters(step), activations=_held(step, flight, ended=True)),
        _Allocate(gradients=gradients[0], reduction=fsdp.buffer * units.layer, layer=ranks.backward),
        _Allocate(used=fsdp.used * units.gathered_layer, sent=sent, first_layer=ranks.first_layer),
        _Allocate(
            done=done - fsdp.stays * units.layer,
            ahead=fsdp.ahead * units.next_layer,
            summed=summed - waiting * units.layer_shard,
        ),
        _Mark("backward", when & (ranks.first_chunk > 1.0)),
        _Free({"first_layer"}),
        _Allocate(gradients=gradients[1], done=done, ahead=fsdp.ahead * units.table),
        _Mark("backward", when),
        _Free({"layer", "used", "sent", "done", "ahead"}),
        _Allocate(gradients=gradients[2], ahead=wrong_prefetch * units.head, used=apart * fsdp.used * units.table),
        _Allocate(done=fsdp.stays * at_end, gradient=fsdp.element * units.table_gradient, summed=summed),
        _Allocate(beside=np.maximum(incoming + table_sums(pricing, units.table_gradient), scattered) + outer),
        at_table,
        _Free({"used", "done", "gradient", "beside"}),
        _Allocate(reduction=apart * _reduced(fsdp, units.table)),
        at_table,
    ]


def _parameters(step: _Step) -> KindArray:
    """Return the bytes of stored parameters and of those that stay gathered through the passes."""
    _, fsdp, units, _ = step
    root = np.where(fsdp.copied > 0.0, 0.0, fsdp.root) * (units.table + units.head)
    return units.stored + fsdp.copied * units.gathered_all + root


def _reduced(fsdp: _Policy, unit: KindArray) -> KindArray:
    """Return the bytes that reducing a unit adds to the counted gradients: its gradient, buffer and reduced shard."""
    # A loop's variable holds the unit's last gradient, here its largest (PyTorch 2.13, `foreach_reduce`).
    shard = (fsdp.stored + np.where(fsdp.sent < fsdp.stored, fsdp.sent, 0.0)) * unit / fsdp.ranks
    each = np.where(fsdp.ranks > 1.0, fsdp.element * unit + shard, np.maximum(fsdp.element * unit, shard))
    return np.where(fsdp.reduces_each, fsdp.sent * unit + each, fsdp.buffer * unit)


def _reduction(step: _Step) -> list[_Event]:
    """Return the events that reduce unsharded gradients by unit after a chunk's last pass, the input table first."""
    _, fsdp, units, ranks = step
    others = ranks.layers - ranks.first_chunk
    whole = np.where(units.table_gradient > units.table, 2.0, 1.0)
    of_table = (fsdp.stored * whole - fsdp.element) * units.table
    unit = np.where(units.table > 0.0, of_table, (fsdp.stored - fsdp.element) * units.layer)
    gradients = fsdp.sent * units.accumulated - fsdp.stored * others * (units.layer - units.layer_shard)
    parameters, done = _parameters(step), fsdp.used * (units.all - others * units.layer)
    return [
        _Allocate(parameters=parameters, gradients=gradients, sharded=fsdp.stored * others * units.layer_shard),
        _Allocate(activations=ranks.buffers, done=done, unit=unit),
        _Mark("gradient reduction", fsdp.wrapped),
    ]
