"""The moments of a step under PyTorch's FSDP2 (`fully_shard`): parts are gathered and reduced unit by unit.

The units are the input table, every layer, and the final norm with the output layer. Parameters, gradients and states
are stored in fp32 and in parts; a unit's gathered weights are of the type computed with. Beside a pipeline, PyTorch's
schedules add up whole fp32 gradients over the micro batches, reduce them once, and keep what a backward pass gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.elements import (
    FP32,
    element_bytes,
    gathered_narrow,
    gradient_bytes,
    narrow_weight_bytes,
    optimizer_bytes_per_parameter,
    parameter_dtype,
)
from simulator.cost.memory.activations import layer_bytes, layer_input_bytes
from simulator.cost.memory.layer_backward import layer_backward_bytes
from simulator.cost.memory.loss import head_input_bytes, logits_per_micro_batch, loss_bytes
from simulator.cost.memory.moment import Moment
from simulator.cost.memory.parameters import (
    device_parameters,
    largest_linear_layer,
    linear_parameters,
    model_totals,
    optimizer_on_device,
    shard,
    shard_degrees,
    whole_layer,
)
from simulator.cost.memory.schedule import RecomputePlan, StageActivations, in_flight, micro_batches
from simulator.cost.stages import StageContents
from simulator.question.scenario.block import Array, KindArray, LayoutBlock, StageArray
from simulator.question.scenario.scenario import Scenario


def shards_by_unit(scenario: Scenario) -> bool:
    """Whether these moments describe the run: all weights trained, stored in fp32, and never on the host."""
    profile = scenario.framework
    trained = scenario.lora_rank is None and not profile.offload_parameters
    return profile.fully_shard and trained and (parameter_dtype(scenario), gradient_bytes(scenario)) == ("fp32", FP32)


def sharded_moments(
    scenario: Scenario,
    block: LayoutBlock,
    has: StageContents,
    activations: StageActivations,
    plan: RecomputePlan,
) -> tuple[Moment, ...]:
    """What is alive at the moments of the first backward pass, of a later one, and of what follows them."""
    step = _Step(scenario, block, has, activations, plan)
    return tuple(step.moments())


def idle_stream_bytes(
    scenario: Scenario, block: LayoutBlock, has: StageContents, gradients: StageArray
) -> StageArray | float:
    """Blocks that FSDP2's own streams hold and do not use when most is alive, with so many gradients alive then.

    A caching allocator keeps a block for the stream it was taken for. Units are gathered into blocks of one stream, of
    which the largest unit needs more than what a moment counts as coming in; parts of gradients are blocks of another
    (PyTorch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py: foreach_all_gather, foreach_reduce). Without a
    pipeline.
    """
    streams = (block.replicas > 1.0) & (block.zero_stage >= 3) & (block.pipeline_parallel == 1)
    if not scenario.hardware.caching_allocator or not streams.any():
        return 0.0
    parts = device_parameters(scenario, block, has)
    units = _units(scenario, block, has, parts.dense + parts.routed)
    largest = np.maximum(np.maximum(units.table, units.head), units.layer)
    reduced = FP32 * shard(scenario, block, parts, 1)[has.kind]
    idle = np.maximum(reduced - gradients, 0.0) + element_bytes(scenario) * largest[has.kind]
    return np.where(streams, idle, 0.0)


@dataclass(frozen=True, slots=True)
class _Units:
    """Parameters of the units on one device before sharding; shape (n,) or (kinds, n)."""

    layer: Array
    table: KindArray
    """The input table, where the stage has it as a unit of its own."""
    table_gradient: KindArray
    """Its dense gradient: whole on every tensor-parallel rank until it is reduced."""
    head: KindArray
    """Final norm and output layer, with the table where both are one."""
    all: KindArray


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a backward pass ends; shape (n,) or (kinds, n)."""

    layer_gradients: KindArray
    """Gradients alive when the first layers are differentiated."""
    table_gradients: KindArray
    """Gradients alive when the input table is."""
    copied: Array
    """1 where gathered weights are kept."""
    buffered: Array
    """1 where reduction leaves a buffer until the next unit's."""
    happens: Array
    """1 where there is such a pass."""


class _Step:
    """One step of a block of layouts: the quantities that its moments share."""

    def __init__(
        self,
        scenario: Scenario,
        block: LayoutBlock,
        has: StageContents,
        activations: StageActivations,
        plan: RecomputePlan,
    ) -> None:
        self.scenario, self.block, self.has, self.plan = scenario, block, has, plan
        self.element = element_bytes(scenario)
        self.parts = device_parameters(scenario, block, has)
        self.units = _units(scenario, block, has, self.parts.dense + self.parts.routed)
        self.shards = FP32 * shard(scenario, block, self.parts, 1)
        self.narrow = narrow_weight_bytes(scenario) * linear_parameters(scenario, block, has)
        # Gathered weights, of which linear ones may be of 8 bits.
        slim = (self.element - 1.0) * gathered_narrow(scenario)
        self.gathered_all = self.element * self.units.all - slim * linear_parameters(scenario, block, has)
        self.gathered_layer = self.element * self.units.layer - slim * largest_linear_layer(scenario, block)
        self.layers = has.num_layers[:, None]
        self.depth = self.layers / block.virtual_stages
        self.first, self.last = has.embeddings[:, None], has.heads[:, None]
        self.boundary = layer_input_bytes(scenario, block)
        self.count = micro_batches(scenario, block)
        self._data_parallel(block)
        self._activations(activations)

    def _data_parallel(self, block: LayoutBlock) -> None:
        """What FSDP2 does in each layout, as 0 or 1."""
        alone = block.replicas == 1.0
        pipelined = block.pipeline_parallel > 1
        # fp32 without replicas needs neither casts nor sharding: the weights are used as they are.
        self.wrapped = 1.0 - (alone & (self.scenario.precision == "fp32"))
        self.reshards = self.wrapped * (block.zero_stage >= 3)
        self.copied = self.wrapped - self.reshards
        self.collects = self.reshards * (1.0 - alone)
        self.pipelined = float(pipelined)
        self.reduces_each = self.wrapped * ((block.zero_stage >= 2) | (self.count == 1.0)) * (1.0 - self.pipelined)
        # Where a gradient's part is the whole of it, reducing it takes a second buffer.
        whole = self.wrapped * (alone | (block.zero_stage == 0)) * (1.0 - self.pipelined)
        self.buffered = np.maximum(self.reduces_each, whole)
        # What a backward pass of another chunk gathered stays until that chunk's next forward pass.
        others = self.pipelined * self.reshards * (1.0 - 1.0 / block.virtual_stages)
        self.other_chunks = others * self.gathered_layer * self.layers

    def _activations(self, activations: StageActivations) -> None:
        scenario, block, has, plan = self.scenario, self.block, self.has, self.plan
        chunks = block.virtual_stages
        receives, sends = self.pipelined * (chunks - self.first), self.pipelined * (chunks - self.last)
        # A receive buffer for every micro batch of the step, forward and backward, is there from the first step on.
        # What a chunk received is the input that its first layer keeps; what it sent is kept until its backward pass.
        self.buffers = self.count * self.boundary * (receives + sends)
        self.one_micro_batch = activations.one_micro_batch + self.boundary * (sends - receives)
        self.flight = np.where(activations.offloaded, 1.0, in_flight(scenario, block))
        # Of interleaved chunks, what was sent is kept and counted apart.
        self.sent = self.boundary * np.minimum(receives, 1.0) * (chunks == 1)
        layer = np.zeros((len(has.ranks), len(block)))
        backward = np.zeros_like(layer)
        for kind, number in zip(has.layer_kinds, has.layers.T, strict=True):
            here = (number > 0.0)[:, None]
            peak = layer_backward_bytes(scenario, block, kind, self.wrapped)
            layer = np.maximum(layer, here * layer_bytes(scenario, block, kind))
            backward = np.maximum(backward, here * peak)
        recomputed = plan.on_rank(has).sum(axis=0)
        self.kept_by_last = np.where(recomputed >= self.layers, self.boundary, layer)
        self.kept_by_first = np.where(recomputed > 0.0, self.boundary, layer)
        # A recomputed unit of several layers is computed again as a whole.
        self.layer_backward = backward + np.where(recomputed > 0.0, plan.unit - 1.0, 0.0) * layer

    def held(self, flight: StageArray) -> StageArray:
        """Activations of so many micro batches on every rank, with what its pipeline receives and has sent."""
        return self.one_micro_batch[self.has.kind] * flight + self.buffers[self.has.kind] + self._sent_chunks(flight)

    def _sent_chunks(self, flight: StageArray) -> StageArray | float:
        """Outputs and input gradients of chunks that are done: the interleaved schedule keeps them for the step.

        When all forward passes but those in flight have their backward pass behind them. Backward passes take turns: of
        each micro batch group the last chunk first, a group being as many as there are pipeline ranks.
        """
        chunks, ranks = self.block.virtual_stages, float(self.block.pipeline_parallel)
        if chunks == 1 or ranks == 1.0:
            return 0.0
        done = np.maximum(self.count - flight, 0.0) * chunks
        cycles, rest = np.divmod(done, ranks * chunks)
        of_last_chunk = cycles * ranks + np.minimum(rest, ranks)
        of_first_chunk = cycles * ranks + np.maximum(rest - (chunks - 1.0) * ranks, 0.0)
        first, last = self.first[self.has.kind], self.last[self.has.kind]
        return self.boundary * (2.0 * done - last * of_last_chunk - first * of_first_chunk)

    def moments(self) -> Iterator[Moment]:
        """The first backward pass begins without gradients; a later one, if there is one, with all of them."""
        zero = np.zeros_like(self.shards)
        repeated = self.count > 1.0
        later = np.where(self.reduces_each > 0.0, self.shards, self.accumulated)
        behind = np.minimum(self.flight, self.count - 1.0)
        if not (self.count > self.flight).all():
            # Otherwise a later pass finds as many micro batches in flight, and the gradients beside them.
            yield from self._passes(self.flight, zero)
        yield from self._passes(np.where(repeated, behind, self.flight), np.where(repeated, later, zero))
        first = np.where(repeated, 1.0, 0.0)
        layer, table = self._not_yet(repeated)
        gradients = first * (later - layer), first * (later - table)
        kept = first * self.copied
        yield from self._end(self._left(self.flight), _Ending(*gradients, kept, self.reduces_each, first))
        middle = np.where(self.count > 2.0 - self.pipelined, 1.0, 0.0)
        ending = _Ending(middle * later, middle * later, middle * self.copied, self.reduces_each, middle)
        yield from self._end(self._left(np.maximum(behind, 1.0)), ending)
        if not self.pipelined:
            yield from self._end(self._left(self.flight), self._last_pass())
        yield self._reduction()
        yield self._optimizer_step()

    def _left(self, flight: StageArray) -> StageArray:
        """Micro batches whose activations are left when a backward pass ends: it frees a chunk's.

        With as many micro batches as ranks, the first chunk's turn comes when the later chunks' are all done.
        """
        chunks = float(self.block.virtual_stages)
        if chunks == 1.0:
            return flight - 1.0
        return np.where(self.count == self.block.pipeline_parallel, (self.count - 1.0) / chunks, flight - 1.0 / chunks)

    def _last_pass(self) -> _Ending:
        """Without a pipeline, gathered weights are freed and whole gradients reduced as the last pass goes."""
        units, replicas = self.units, self._replicas()
        whole = 1.0 - self.reduces_each
        table = self.shards + whole * FP32 * (units.table_gradient - units.table / replicas)
        layer = table + whole * FP32 * units.layer * (1.0 - 1.0 / replicas)
        no_layer, no_table = self._not_yet(self.count == 1.0)
        zero = np.zeros(len(self.block))
        return _Ending(layer - no_layer, table - no_table, zero, self.buffered, zero + 1.0)

    def _not_yet(self, first: NDArray[np.bool_]) -> tuple[KindArray, KindArray]:
        """Gradients that the first pass has not made when its first layers, and its input table, are differentiated."""
        units = self.units
        parts = FP32 / self._replicas()
        narrow = self.element < FP32
        # A 16-bit gradient turns into an accumulated one at the end of its unit, where both are alive.
        of_table = np.where(narrow & (self.wrapped > 0.0), 0.0, FP32 * units.table_gradient)
        table = np.where(self.reduces_each > 0.0, parts * units.table, of_table)
        layer = table + np.where(self.reduces_each > 0.0, parts * units.layer, 0.0)
        return np.where(first, layer, 0.0), np.where(first, table, 0.0)

    def _replicas(self) -> Array:
        """Ranks among which a unit's parameters are divided."""
        return np.where(self.block.zero_stage >= 1, shard_degrees(self.scenario, self.block).dense, 1.0)

    @property
    def accumulated(self) -> KindArray:
        """Whole gradients, the input table's on every tensor-parallel rank."""
        units = self.units
        return FP32 * (units.all - units.table + units.table_gradient)

    def _moment(  # noqa: PLR0913 - what a moment is made of
        self,
        name: str,
        gradients: KindArray,
        activations: StageArray,
        temporary: KindArray,
        *,
        released: KindArray | float = 0.0,
        logits: KindArray | float = 0.0,
        copied: Array | None = None,
    ) -> Moment:
        """A moment; `copied` is 1 where all gathered weights are alive, by default where they are kept."""
        copies = self.copied if copied is None else copied
        parameters = self.shards + copies * self.gathered_all + self.narrow
        resident, _ = self._optimizer()
        values = self.scenario.coefficients.memory
        model = self.scenario.model
        rotary = FP32 * self.scenario.seq_length * float(model.qk_rope_head_dim or model.head_dim)
        steady = values.workspace_bytes + rotary
        return Moment(name, parameters, gradients, resident, activations, released, logits, temporary + steady)

    def _optimizer(self) -> tuple[KindArray, KindArray]:
        whole = shard(self.scenario, self.block, self.parts, 1) * optimizer_bytes_per_parameter(self.scenario)
        return optimizer_on_device(self.scenario, self.block, whole)

    def _passes(self, flight: StageArray, gradients: KindArray) -> Iterator[Moment]:
        """Loss, output layer, and the last layers' backward passes, with so many micro batches in flight."""
        units = self.units
        held = self.held(flight)
        yield from self._loss(held, gradients)
        # While one unit is used, the next one's gathered weights come in.
        gathered = self.gathered_layer * (self.reshards + self.collects * ((self.depth > 1.0) | (self.first > 0.0)))
        gathered = gathered + self.other_chunks
        of_head = self.buffered * FP32 * units.head * self.last
        received = self.pipelined * self.boundary * (1.0 - self.last)
        yield self._moment(
            "backward",
            gradients,
            held,
            self.layer_backward - received + self.sent + gathered + of_head,
            released=self.kept_by_last,
        )
        several = self.depth > 1.0
        of_layer = self.buffered * FP32 * units.layer
        behind = self.pipelined * self.reshards * self.gathered_layer
        yield self._moment(
            "backward",
            gradients,
            held,
            np.where(several, self.layer_backward + self.sent + gathered + of_layer + behind, 0.0),
            released=np.where(several, 2.0, 1.0) * self.kept_by_last,
        )

    def _loss(self, held: StageArray, gradients: KindArray) -> Iterator[Moment]:
        """The logits' widest moment; then the output layer's gradient, and its reduction."""
        scenario, block, units, element = self.scenario, self.block, self.units, self.element
        logits = logits_per_micro_batch(scenario, block)
        # In the forward pass one fp32 gradient is missing beside the 16-bit logits, but the output layer is gathered.
        forward = self.collects * element * units.head - (2.0 * FP32 - element - FP32) * logits
        of_table = self.reduces_each * (self.count > 1.0) * FP32 * np.where(units.table > 0.0, units.table, units.head)
        kept = head_input_bytes(scenario, block)
        loss = kept + np.maximum(forward, 0.0) + of_table * self.first + self.sent + self.other_chunks
        widest = loss_bytes(scenario, block)
        yield self._moment("loss", gradients, held, self.last * loss, logits=self.last * widest)
        ahead = self.collects * self.gathered_layer
        used = self.reshards * element * units.head
        product = kept + used + element * units.head + self.boundary + ahead + of_table * self.first
        reduction = self._reduction_buffers(units.head, units.head) + ahead
        yield self._moment(
            "loss", gradients, held, self.last * (product + self.sent), logits=self.last * element * logits
        )
        yield self._moment("loss", gradients, held, self.last * (reduction + self.boundary))

    def _end(self, flight: StageArray, ending: _Ending) -> Iterator[Moment]:
        """The first layers' backward passes and the input table's gradient, when all else is done."""
        units, element = self.units, self.element
        rest = self.held(flight)
        others = self.pipelined * self.reshards * element
        ahead = np.where(self.first > 0.0, units.table, 0.0)
        before = np.where(self.depth > 1.0, units.layer, 0.0)
        used = (self.wrapped - ending.copied) * self.gathered_layer
        done = others * np.maximum(units.all - units.table - units.layer, 0.0)
        outputs = self.pipelined * self.boundary * (1.0 - self.last)
        # The first layer's input is a receive buffer, counted already; the gradient sent last is not.
        common = self.layer_backward + ending.buffered * FP32 * units.layer + used + done + outputs
        first = common + self.collects * element * ahead
        second = common + self.kept_by_first - others * units.layer + self.collects * element * before
        table = self.first * self._table_gradient(ending)
        for name, gradients, temporary in (
            ("backward", ending.layer_gradients, first),
            ("backward", ending.layer_gradients, np.where(self.depth > 1.0, second, 0.0)),
            ("embedding gradient", ending.table_gradients, table),
        ):
            yield self._moment(name, gradients, rest, ending.happens * temporary, copied=ending.copied)

    def _table_gradient(self, ending: _Ending) -> KindArray:
        """What the input table's backward pass holds, at the widest of its moments."""
        units, element = self.units, self.element
        gathered = element * (self.wrapped - ending.copied) * units.table
        # Of interleaved chunks only the first one's, whose backward pass this is.
        alone = self.block.virtual_stages == 1
        behind = units.all - units.table if alone else self.depth * units.layer
        gathered = gathered + element * self.reshards * self.pipelined * behind
        # The order of the passes is forgotten in the last backward pass only: until then the unit before the table is
        # the previous micro batch's output layer, which is gathered ahead.
        astray = self.collects * (self.count > 1.0) * (1.0 - self.pipelined) * element * units.head
        # The gradient of the residual stream comes in and, split over the tokens, is gathered for the table.
        split_stream = self.block.sequence_parallel > 0.0
        incoming = self.boundary * (1.0 + split_stream * self.block.tensor_parallel)
        # A gradient that is whole on every tensor-parallel rank is scattered over the group before it is reduced.
        scattered = np.where(units.table_gradient > units.table, element * units.table, 0.0)
        beside = np.maximum(incoming, self.reduces_each * scattered)
        dense = element * units.table_gradient + beside + gathered + ending.buffered * FP32 * units.layer + astray
        left = np.where(units.table_gradient > units.table, units.table, units.table_gradient)
        reduction = self._reduction_buffers(left, units.table) * (ending.buffered > 0.0) + astray
        return np.asarray(np.maximum(dense, reduction))

    def _reduction_buffers(self, gradient: KindArray, unit: KindArray) -> KindArray:
        """What reducing a unit takes beside the gradients counted: its gradient, the buffer, and the reduced part."""
        each = FP32 * unit + np.maximum(self.element * gradient, FP32 * unit / self._replicas())
        return np.where(self.reduces_each > 0.0, each, self.buffered * FP32 * unit)

    def _reduction(self) -> Moment:
        """Whole gradients are reduced unit by unit after a chunk's last pass, the input table's first."""
        units, element = self.units, self.element
        of_table = FP32 * units.table * np.where(units.table_gradient > units.table, 2.0, 1.0) - element * units.table
        of_unit = np.where(units.table > 0.0, of_table, (FP32 - element) * units.layer)
        others = units.layer * self.layers * (1.0 - 1.0 / self.block.virtual_stages)
        gradients = self.accumulated - FP32 * others * (1.0 - 1.0 / self._replicas())
        gathered = self.reshards * element * (units.all - others) + of_unit
        active = self.pipelined * self.wrapped
        held = self.buffers[self.has.kind]
        return self._moment("gradient reduction", active * gradients, held, active * gathered)

    def _optimizer_step(self) -> Moment:
        """Everything in parts, with the temporary of an optimizer that works on all tensors at once."""
        _, in_step = self._optimizer()
        foreach = self.shards if self.scenario.framework.foreach_optimizer else np.zeros_like(self.shards)
        # Without FSDP2 nothing scatters the input table's gradient.
        gradients = np.where(self.wrapped > 0.0, self.shards, self.accumulated)
        passes = self._moment(
            "optimizer step",
            gradients,
            self.buffers[self.has.kind],
            foreach,
            copied=np.zeros_like(self.copied),
        )
        return Moment(
            passes.name, passes.parameters, passes.gradients, in_step, passes.activations, 0.0, 0.0, passes.temporary
        )


def _units(scenario: Scenario, block: LayoutBlock, has: StageContents, everything: KindArray) -> _Units:
    totals, model = model_totals(scenario), scenario.model
    table = totals.embedding.split / block.tensor_parallel
    # A table that is also the output layer of the same stage is one unit with it.
    apart = has.embeddings * (1.0 - has.heads * model.tie_word_embeddings)
    table_here = apart[:, None] * table
    return _Units(
        layer=np.max([whole_layer(block, piece) for piece in totals.layers], axis=0),
        table=table_here,
        table_gradient=table_here * block.tensor_parallel,
        head=has.heads[:, None] * whole_layer(block, totals.head),
        all=everything,
    )
