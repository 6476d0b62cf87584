"""A step under PyTorch's FSDP2 (`fully_shard`): what it allocates and frees, replayed in order.

Parts are gathered and reduced unit by unit: the input table, every layer, and the final norm with the output layer.
Parameters, gradients and states are stored in fp32 and in parts; a unit's gathered weights are of the type computed
with. Beside a pipeline, PyTorch's schedules add up whole fp32 gradients over the micro batches, reduce them once, and
keep what a backward pass gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

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
from simulator.cost.memory.moment import Moment, MomentName
from simulator.cost.memory.parameters import (
    DeviceParameters,
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
from simulator.question.scenario.block import Array, KindArray, LayoutBlock, Mask, StageArray
from simulator.question.scenario.scenario import Scenario

MomentPart = Literal["parameters", "gradients", "resident", "activations", "released", "logits", "temporary"]
"""Fields of Moment. What is `released` are activations that were freed."""


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
    step.run()
    return tuple(step.moments)


class _Timeline:
    """Tensors allocated and freed; what is alive at a mark is a moment of the step."""

    def __init__(self) -> None:
        self.alive: dict[str, tuple[MomentPart, KindArray | float]] = {}
        self.moments: list[Moment] = []

    def allocate(self, part: MomentPart, **tensors: KindArray | float) -> None:
        """Bytes that are alive from now on, in place of those of the same name."""
        self.alive |= {name: (part, size) for name, size in tensors.items()}

    def free(self, *names: str) -> None:
        """These are gone."""
        for name in names:
            del self.alive[name]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is allocated and freed inside is as before at the end."""
        before = self.alive.copy()
        yield
        self.alive = before

    def mark(self, name: MomentName, when: Mask | None = None) -> None:
        """What is alive now is a moment of the step; ranks and layouts that do not have it count what stays anyway."""
        parts: dict[MomentPart, KindArray | float] = dict.fromkeys(get_args(MomentPart), 0.0)
        for part, size in self.alive.values():
            parts[part] = parts[part] + size
        if when is not None:
            parts |= {part: np.where(when, parts[part], 0.0) for part in ("gradients", "logits", "temporary")}
        self.moments.append(Moment(name, **parts))


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
    units = _units(scenario, block, has, parts)
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
    copied: Mask
    """Where gathered weights are kept."""
    buffered: Mask
    """Where reduction leaves a buffer until the next unit's."""
    happens: Mask
    """Where there is such a pass."""


class _Step(_Timeline):
    """One step of a block of layouts."""

    def __init__(
        self,
        scenario: Scenario,
        block: LayoutBlock,
        has: StageContents,
        activations: StageActivations,
        plan: RecomputePlan,
    ) -> None:
        super().__init__()
        self.scenario, self.block, self.has = scenario, block, has
        self.element = element_bytes(scenario)
        parts = device_parameters(scenario, block, has)
        self.units = _units(scenario, block, has, parts)
        sharded = shard(scenario, block, parts, 1)
        self.shards = FP32 * sharded
        self.states, self.states_in_step = optimizer_on_device(
            scenario, block, sharded * optimizer_bytes_per_parameter(scenario)
        )
        # Gathered weights, of which linear ones may be of 8 bits: a byte less.
        slim = float(gathered_narrow(scenario))
        self.gathered_all = self.element * self.units.all - slim * linear_parameters(scenario, block, has)
        self.gathered_layer = self.element * self.units.layer - slim * largest_linear_layer(scenario, block)
        self.layers = has.num_layers[:, None]
        self.several = self.layers / block.chunks > 1.0
        self.first, self.last = has.embeddings[:, None] > 0.0, has.heads[:, None] > 0.0
        self.boundary = layer_input_bytes(scenario, block)
        self.count = micro_batches(scenario, block)
        self._data_parallel(block)
        self._activations(activations, plan)

    def _data_parallel(self, block: LayoutBlock) -> None:
        """What FSDP2 does in each layout."""
        alone = block.replicas == 1.0
        self.pipelined = block.pipeline_parallel > 1
        # fp32 without replicas needs neither casts nor sharding: the weights are used as they are.
        self.wrapped = ~(alone & (self.scenario.precision == "fp32"))
        self.reshards = self.wrapped & (block.zero_stage >= 3)
        self.collects = self.reshards & ~alone
        self.copied = self.wrapped & ~self.reshards
        # What a backward pass gathered stays beside a pipeline.
        self.stays = self.reshards & self.pipelined
        self.reduces_each = self.wrapped & ((block.zero_stage >= 2) | (self.count == 1.0)) & (not self.pipelined)
        # Where a gradient's part is the whole of it, reducing it takes a second buffer.
        whole = self.wrapped & (alone | (block.zero_stage == 0)) & (not self.pipelined)
        self.buffered = self.reduces_each | whole
        # Ranks among which a unit's parameters are divided.
        self.ranks = np.where(block.zero_stage >= 1, shard_degrees(self.scenario, block).dense, 1.0)

    def _activations(self, activations: StageActivations, plan: RecomputePlan) -> None:
        scenario, block, has = self.scenario, self.block, self.has
        chunks = block.chunks
        receives, sends = self.pipelined * (chunks - has.embeddings), self.pipelined * (chunks - has.heads)
        # A receive buffer for every micro batch of the step, forward and backward, is there from the first step on.
        # What a chunk received is the input that its first layer keeps; what it sent is kept until its backward pass.
        self.buffers = self.count * self.boundary * (receives + sends)[:, None]
        self.one_micro_batch = activations.one_micro_batch + self.boundary * (sends - receives)[:, None]
        self.one_micro_batch = self.one_micro_batch + activations.embedded
        self.flight = np.where(activations.offloaded, 1.0, in_flight(scenario, block))
        # Of interleaved chunks, what was sent is kept and counted apart.
        self.sent = np.where(self.first | (chunks > 1), 0.0, self.boundary)
        of_kinds = [
            (
                here[:, None] * layer_bytes(scenario, block, kind),
                here[:, None] * layer_backward_bytes(scenario, block, kind, self.wrapped),
            )
            for kind, here in zip(has.layer_kinds, has.layers.T > 0.0, strict=True)
        ]
        layer, backward = (np.max(each, axis=0) for each in zip(*of_kinds, strict=True))
        recomputed = plan.on_rank.sum(axis=0)
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
        chunks, ranks = self.block.chunks, float(self.block.pipeline_parallel)
        if chunks == 1 or ranks == 1.0:
            return 0.0
        done = np.maximum(self.count - flight, 0.0) * chunks
        cycles, rest = np.divmod(done, ranks * chunks)
        of_last_chunk = cycles * ranks + np.minimum(rest, ranks)
        of_first_chunk = cycles * ranks + np.maximum(rest - (chunks - 1.0) * ranks, 0.0)
        first, last = self.first[self.has.kind], self.last[self.has.kind]
        return self.boundary * (2.0 * done - last * of_last_chunk - first * of_first_chunk)

    def run(self) -> None:
        """The first backward pass begins without gradients; a later one, if there is one, with all of them."""
        model, workspace = self.scenario.model, self.scenario.coefficients.memory.workspace_bytes
        narrow = narrow_weight_bytes(self.scenario) * linear_parameters(self.scenario, self.block, self.has)
        self.allocate("parameters", shards=self.shards, narrow=narrow)
        self.allocate("resident", states=self.states)
        rotary = FP32 * self.scenario.seq_length * float(model.qk_rope_head_dim or model.head_dim)
        self.allocate("temporary", workspace=workspace + rotary)
        repeated = self.count > 1.0
        later = np.where(self.reduces_each, self.shards, self.accumulated)
        behind = np.minimum(self.flight, self.count - 1.0)
        if not (self.count > self.flight).all():
            # Otherwise a later pass finds as many micro batches in flight, and the gradients beside them.
            self._pass(self.flight, 0.0)
        self._pass(np.where(repeated, behind, self.flight), np.where(repeated, later, 0.0))
        layer, table = (later - absent for absent in self._not_yet())
        self._end(self._left(self.flight), _Ending(layer, table, self.copied, self.reduces_each, repeated))
        middle = self.count > (1.0 if self.pipelined else 2.0)
        self._end(self._left(np.maximum(behind, 1.0)), _Ending(later, later, self.copied, self.reduces_each, middle))
        if self.pipelined:
            self._reduction()
        else:
            self._end(self._left(self.flight), self._last_pass())
        self._optimizer_step()

    def _left(self, flight: StageArray) -> StageArray:
        """Micro batches whose activations are left when a backward pass ends: it frees a chunk's.

        With as many micro batches as ranks, the first chunk's turn comes when the later chunks' are all done.
        """
        chunks = float(self.block.chunks)
        if chunks == 1.0:
            return flight - 1.0
        return np.where(self.count == self.block.pipeline_parallel, (self.count - 1.0) / chunks, flight - 1.0 / chunks)

    def _last_pass(self) -> _Ending:
        """Without a pipeline, gathered weights are freed and whole gradients reduced as the last pass goes."""
        units = self.units
        whole = np.where(self.reduces_each, 0.0, FP32)
        table = self.shards + whole * (units.table_gradient - units.table / self.ranks)
        layer = table + whole * units.layer * (1.0 - 1.0 / self.ranks)
        no_layer, no_table = (np.where(self.count == 1.0, absent, 0.0) for absent in self._not_yet())
        always = np.ones(len(self.block), dtype=np.bool_)
        return _Ending(layer - no_layer, table - no_table, ~always, self.buffered, always)

    def _not_yet(self) -> tuple[KindArray, KindArray]:
        """Gradients that the first pass has not made when its first layers, and its input table, are differentiated."""
        units = self.units
        parts = FP32 / self.ranks
        # A 16-bit gradient turns into an accumulated one at the end of its unit, where both are alive.
        of_table = np.where(self.wrapped & (self.element < FP32), 0.0, FP32 * units.table_gradient)
        table = np.where(self.reduces_each, parts * units.table, of_table)
        return table + np.where(self.reduces_each, parts * units.layer, 0.0), table

    @property
    def accumulated(self) -> KindArray:
        """Whole gradients, the input table's on every tensor-parallel rank."""
        units = self.units
        return FP32 * (units.all - units.table + units.table_gradient)

    def _pass(self, flight: StageArray, gradients: KindArray | float) -> None:
        """Loss, output layer, and the last layers' backward passes, with so many micro batches in flight."""
        with self.scope():
            self.allocate("activations", micro_batches=self.held(flight))
            self.allocate("gradients", gradients=gradients)
            self.allocate("parameters", gathered=np.where(self.copied, self.gathered_all, 0.0))
            # What a backward pass of another chunk gathered stays until that chunk's next forward pass.
            others = self.gathered_layer * self.layers * (1.0 - 1.0 / self.block.chunks)
            self.allocate("temporary", sent=self.sent, other_chunks=np.where(self.stays, others, 0.0))
            self._loss()
            self._last_layers()

    def _loss(self) -> None:
        """The logits' widest moment; then the output layer's gradient, and its reduction."""
        scenario, block, units, element = self.scenario, self.block, self.units, self.element
        logits = logits_per_micro_batch(scenario, block)
        head = element * units.head
        with self.scope():
            # In the forward pass one fp32 gradient is missing beside the 16-bit logits, but the output layer is there.
            forward = np.where(self.collects, head, 0.0) - (2.0 * FP32 - element - FP32) * logits
            left = FP32 * np.where(units.table > 0.0, units.table, units.head)
            left = np.where(self.reduces_each & (self.count > 1.0), left, 0.0)
            self.allocate("temporary", head_input=head_input_bytes(scenario, block), reduced_before=left)
            self.allocate("logits", logits=loss_bytes(scenario, block))
            self.allocate("temporary", forward=np.maximum(forward, 0.0))
            self.mark("loss", self.last)
            self.free("forward")
            self.allocate("logits", logits=element * logits)
            self.allocate("temporary", head=np.where(self.reshards, head, 0.0), head_gradient=head)
            self.allocate("temporary", input_gradient=self.boundary)
            self.allocate("temporary", next_layer=np.where(self.collects, self.gathered_layer, 0.0))
            self.mark("loss", self.last)
            self.free("head_input", "logits", "head", "head_gradient", "reduced_before")
            self.allocate("temporary", head_reduction=self._reduction_buffers(units.head))
            self.mark("loss", self.last)

    def _last_layers(self) -> None:
        """The last layer's backward pass, and the one before it."""
        units, layer = self.units, self.gathered_layer
        received = np.where(self.last, 0.0, self.boundary)
        # While one unit is used, the next one's gathered weights come in.
        follows = self.collects & (self.several | self.first)
        gathered = np.where(self.reshards, layer, 0.0)
        self.allocate("temporary", used=gathered, next_layer=np.where(follows, layer, 0.0))
        self.allocate("released", last_layer=self.kept_by_last)
        self.allocate("temporary", layer=self.layer_backward - received)
        self.allocate("temporary", head_reduction=np.where(self.buffered, FP32 * units.head, 0.0))
        self.mark("backward")
        self.free("head_reduction")
        self.allocate("released", layer_before=self.kept_by_last)
        self.allocate("temporary", layer=self.layer_backward, done=np.where(self.stays, layer, 0.0))
        self.allocate("temporary", layer_reduction=np.where(self.buffered, FP32 * units.layer, 0.0))
        self.mark("backward", self.several)

    def _end(self, flight: StageArray, ending: _Ending) -> None:
        """The first layers' backward passes and the input table's gradient, when all else is done."""
        units, element = self.units, self.element
        with self.scope():
            self.allocate("activations", micro_batches=self.held(flight))
            self.allocate("parameters", gathered=np.where(ending.copied, self.gathered_all, 0.0))
            self.allocate("temporary", reduction=np.where(ending.buffered, FP32 * units.layer, 0.0))
            with self.scope():
                self.allocate("gradients", gradients=ending.layer_gradients)
                used = np.where(self.wrapped & ~ending.copied, self.gathered_layer, 0.0)
                # The first layer's input is a receive buffer, counted already; the gradient sent last is not.
                sends = np.where(self.last, 0.0, self.boundary)
                self.allocate("temporary", layer=self.layer_backward, used=used, sent=sends)
                done = np.where(self.stays, element * np.maximum(units.all - units.table - units.layer, 0.0), 0.0)
                done_before = done - np.where(self.stays, element * units.layer, 0.0)
                ahead = np.where(self.collects, element * units.layer, 0.0)
                self.allocate("temporary", first_layer=self.kept_by_first, done=done_before, ahead=ahead)
                self.mark("backward", ending.happens & self.several)
                self.free("first_layer")
                ahead = np.where(self.collects, element * units.table, 0.0)
                self.allocate("temporary", done=done, ahead=ahead)
                self.mark("backward", ending.happens)
            self.allocate("gradients", gradients=ending.table_gradients)
            self._table(ending)

    def _table(self, ending: _Ending) -> None:
        """The input table's gradient, and its reduction."""
        units, element = self.units, self.element
        here = ending.happens & self.first
        # The order of the passes is forgotten in the last backward pass only: until then the unit before the table is
        # the previous micro batch's output layer, which is gathered ahead.
        astray = self.collects & (self.count > 1.0) & (not self.pipelined)
        self.allocate("temporary", ahead=np.where(astray, element * units.head, 0.0))
        with self.scope():
            used = np.where(self.wrapped & ~ending.copied, element * units.table, 0.0)
            # Of interleaved chunks only the first one's, whose backward pass this is.
            chunks = self.block.chunks
            done = units.all - units.table if chunks == 1 else self.layers / chunks * units.layer
            # The gradient of the residual stream comes in and, split over the tokens, is gathered for the table.
            split_stream = self.block.sequence_parallel > 0.0
            incoming = self.boundary * (1.0 + split_stream * self.block.tensor_parallel)
            # A gradient that is whole on every tensor-parallel rank is scattered over the group before it is reduced.
            scattered = self.reduces_each & (units.table_gradient > units.table)
            beside = np.maximum(incoming, np.where(scattered, element * units.table, 0.0))
            self.allocate("temporary", used=used, done=np.where(self.stays, element * done, 0.0))
            self.allocate("temporary", gradient=element * units.table_gradient, beside=beside)
            self.mark("embedding gradient", here)
        reduction = np.where(ending.buffered, self._reduction_buffers(units.table), 0.0)
        self.allocate("temporary", reduction=reduction)
        self.mark("embedding gradient", here)

    def _reduction_buffers(self, unit: KindArray) -> KindArray:
        """What reducing a unit takes beside the gradients counted: its gradient, the buffer, and the reduced part."""
        each = FP32 * unit + np.maximum(self.element * unit, FP32 * unit / self.ranks)
        return np.where(self.reduces_each, each, np.where(self.buffered, FP32 * unit, 0.0))

    def _reduction(self) -> None:
        """Whole gradients are reduced unit by unit after a chunk's last pass, the input table's first."""
        units, element = self.units, self.element
        others = units.layer * self.layers * (1.0 - 1.0 / self.block.chunks)
        with self.scope():
            self.allocate("activations", buffers=self.buffers[self.has.kind])
            gradients = self.accumulated - FP32 * others * (1.0 - 1.0 / self.ranks)
            self.allocate("gradients", gradients=gradients)
            self.allocate("parameters", gathered=np.where(self.copied, self.gathered_all, 0.0))
            of_table = FP32 * units.table * np.where(units.table_gradient > units.table, 2.0, 1.0)
            of_unit = np.where(units.table > 0.0, of_table - element * units.table, (FP32 - element) * units.layer)
            self.allocate("temporary", done=np.where(self.reshards, element * (units.all - others), 0.0), unit=of_unit)
            self.mark("gradient reduction", self.wrapped)

    def _optimizer_step(self) -> None:
        """Everything in parts, with the temporary of an optimizer that works on all tensors at once."""
        with self.scope():
            self.allocate("activations", buffers=self.buffers[self.has.kind])
            # Without FSDP2 nothing scatters the input table's gradient.
            self.allocate("gradients", gradients=np.where(self.wrapped, self.shards, self.accumulated))
            self.allocate("resident", states=self.states_in_step)
            self.allocate("temporary", foreach=self.shards * self.scenario.framework.foreach_optimizer)
            self.mark("optimizer step")


def _units(scenario: Scenario, block: LayoutBlock, has: StageContents, parts: DeviceParameters) -> _Units:
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
        all=parts.dense + parts.routed,
    )
