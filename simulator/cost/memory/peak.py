"""Peak memory of every pipeline rank: the moment of most bytes, and its parts."""

from __future__ import annotations

from dataclasses import fields
from functools import reduce
from typing import Literal

import numpy as np

from simulator.cost.derived import Pricing, derived, of_sizes, of_work
from simulator.cost.dtypes import FP32, HALF, element_bytes, gradient_bytes, parameter_bytes
from simulator.cost.memory.activations import (
    StageActivations,
    activations_in_flight,
    adapter_casts,
    by_policy,
    gathers_adapters,
    has_wide_stream,
    in_flight,
    layer_input_bytes,
    merged_bytes,
    network_bytes,
    overlapped_bytes,
    recompute_plan,
    score_bytes,
    score_tensors,
    stage_activations,
)
from simulator.cost.memory.encoder import encoder_bytes
from simulator.cost.memory.fully_shard import idle_stream_bytes, sharded_moments, shards_by_unit
from simulator.cost.memory.loss import (
    bytes_per_logit,
    deferred_head_bytes,
    head_gradient_bytes,
    head_input_bytes,
    labelled_tokens,
    loss_bytes,
    widened_head_bytes,
)
from simulator.cost.memory.moments import Moment, overlap_workspace_bytes, retained_bytes, table_sums, workspace_bytes
from simulator.cost.memory.outside import OutsideAllocator, outside_allocator, room
from simulator.cost.memory.state import (
    TrainingState,
    dequantised_bytes,
    device_parameters,
    gathered,
    kept_gathers_bytes,
    module_bytes,
    optimizer_on_device,
    resident_optimizer,
    training_state,
)
from simulator.cost.operations.blocks import adapts, decomposed, decomposing, input_casts
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import conditions_of, summed
from simulator.cost.operations.sums import extent, local_sides, micro_batches, tokens_per_device, total
from simulator.cost.stages import StageContents
from simulator.question.arrays import Index, NDArray, largest, selected
from simulator.question.scenario.block import Array, KindArray, Mask, StageArray
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import NARROW
from simulator.records import Bare, NamedTuple, replace


class MemoryByStage(Bare):
    """Peak bytes of every pipeline rank that is held: shape (pipeline_parallel, n), or of fewer (`Pricing.fullest`)."""

    contents: StageContents
    state: TrainingState
    after_step: StageArray
    """Bytes left when a step has ended: parameters, gradients, optimizer state and retained tensors."""
    retained: StageArray
    """Bytes of `after_step` that are not parameters, gradients or optimizer state; alive at every moment."""
    activations: StageActivations
    moments: tuple[Moment, ...]
    moment: NDArray[np.int8]
    """Index into `moments` of the moment that peaks."""
    allocated: StageArray
    """Bytes of tensors alive at the peak."""
    outside: OutsideAllocator
    device: StageArray
    """Memory in use as the driver reports it: tensors and everything outside the allocator."""
    encoder: StageArray | float = 0.0
    """Bytes of an encoder of images and of its activations."""

    @property
    def reserved(self) -> StageArray:
        """Return what the framework's allocator reserves, shape (pipeline_parallel, n).

        Context and communicators are left out: the driver and the collective library allocate them.
        """
        return self.device - self.outside.context - self.outside.communicators

    @property
    def need(self) -> StageArray:
        """Return the memory that must fit: all but idle blocks, which the allocator can give back."""
        return self.device - self.outside.idle

    def take(self, where: Index) -> MemoryByStage:
        """Return the memory of the layouts at an index."""
        figures = tuple(getattr(self, name) for name in _OF_LAYOUTS)
        return MemoryByStage(self.contents, *selected(figures, where, self.allocated.shape[-1]))

    def state_share(self, stage: Index, at: Index) -> Array:
        """Return the part of `need` that is parameters, gradients and optimizer state, on a `stage` of layouts `at`."""
        kind, moment, last = self.contents.held_kind[stage], self.moment[stage, at], self.allocated.shape[-1]

        def held(name: str, ranks: Index, count: int) -> Array:
            values = [getattr(each, name) for each in self.moments]
            known = {id(value): value for value in values}
            there = {each: np.broadcast_to(value, (count, last))[ranks, at] for each, value in known.items()}
            return np.array([there[id(value)] for value in values])[moment, np.arange(len(at))]

        kinds = len(self.contents.ranks)
        gradients = held("gradients", kind, kinds) - held("gradients_absent", stage, len(self.contents.held))
        state = held("parameters", kind, kinds) + gradients + held("resident", kind, kinds)
        return np.asarray(
            state / (self.device[stage, at] - np.broadcast_to(self.outside.idle, self.device.shape)[stage, at])
        )

    def parts(self) -> dict[str, StageArray]:
        """Return the named parts at each rank's own peak; they add up to `device`."""
        moments = self.moments
        held = self._at_peak([m.activations for m in moments]) - self._of_kinds([m.released for m in moments])
        absent = self._at_peak([m.gradients_absent for m in moments])
        return {
            "parameters": self._of_kinds([m.parameters for m in moments]),
            "gradients": self._of_kinds([m.gradients for m in moments]) - absent,
            "optimizer": self._of_kinds([m.resident for m in moments]),
            "activations": held,
            "logits": self._of_kinds([m.logits for m in moments]),
            "temporary": self._of_kinds([m.temporary for m in moments]) + self.retained,
            "outside_allocator": self.outside.total,
            **({"encoder": np.asarray(self.encoder)} if np.any(self.encoder) else {}),
        }

    def _at_peak(self, values: list[StageArray | float]) -> StageArray:
        """Return what each rank has at the moment of its peak, of values by moment."""
        peak = np.array(np.broadcast_to(values[0], self.allocated.shape))
        for index, value in enumerate(values[1:], start=1):
            if value is not values[0]:
                np.copyto(peak, value, where=self.moment == index)
        return peak

    def _of_kinds(self, values: list[KindArray | float]) -> StageArray:
        """Return the same of values by kind of rank."""
        kinds = len(self.contents.ranks)
        spread = {
            id(value): self.contents.on_ranks(np.broadcast_to(value, (kinds, np.atleast_1d(value).shape[-1])))
            for value in {id(value): value for value in values}.values()
        }
        return self._at_peak([spread[id(value)] for value in values])


_OF_LAYOUTS = [field.name for field in fields(MemoryByStage) if field.name != "contents"]


@derived
def memory_by_stage(pricing: Pricing) -> MemoryByStage:
    """Price the memory of a block of layouts, in bytes."""
    scenario, contents, state = pricing.scenario, pricing.contents, training_state(pricing)
    retained = contents.on_ranks(retained_bytes(pricing))
    moments = sharded_moments(pricing) if shards_by_unit(scenario) else _moments(pricing)
    moments = (*moments, *loading_moment(pricing))
    totals = [each.total(contents) for each in moments]
    peak = totals[0]
    moment = np.zeros(peak.shape, dtype=np.int8)
    for index, value in enumerate(totals[1:], start=1):
        np.copyto(moment, index, where=value > peak)
        peak = np.maximum(peak, value)
    encoder = encoder_bytes(pricing)
    peak = peak + retained + encoder
    outside = outside_allocator(pricing, peak, _apart(pricing, moments, totals))
    if shards_by_unit(scenario):
        streams = np.minimum(idle_stream_bytes(pricing, moments, totals), room(pricing, peak + outside.total))
        outside = replace(outside, streams=streams)
    after = contents.on_ranks(lasting_bytes(pricing) + state.widened) + retained
    activations, device = stage_activations(pricing), peak + outside.total
    return MemoryByStage(contents, state, after, retained, activations, moments, moment, peak, outside, device, encoder)


def _apart(pricing: Pricing, moments: tuple[Moment, ...], totals: list[StageArray]) -> StageArray | float:
    """Return the bytes by which optimizer step and logits exceed `totals`, as no freed gradient takes in logits (M20).

    DeepSpeed's flat blocks do: measured runs show no more than its step.
    """
    scenario = pricing.scenario
    if shards_by_unit(scenario) or scenario.framework.step_parameters:
        return 0.0
    wide = FP32 * labelled_tokens(pricing) > gradient_bytes(scenario) * scenario.model.hidden_size
    logits = np.where(wide, pricing.contents.on_ranks(np.asarray(moments[1].logits)), 0.0)
    return np.maximum(totals[3] + logits - reduce(np.maximum, totals), 0.0)


@of_sizes
def lasting_bytes(pricing: Pricing) -> KindArray:
    """Return the bytes of the training state that no moment of a step is without, shape (kinds, n)."""
    state, profile = training_state(pricing), pricing.scenario.framework
    gradients = np.where(_released(pricing) | profile.step_in_backward, 0.0, state.gradients)
    return state.parameters + gradients + resident_optimizer(pricing, state.optimizer)


@derived
def _moments(pricing: Pricing) -> tuple[Moment, ...]:
    """Return the moments of a step where parameters and gradients have buffers for the whole run (M10)."""
    state, activations, other = training_state(pricing), stage_activations(pricing), _other_bytes(pricing)
    held = activations_in_flight(pricing)
    overlapped = held + overlapped_bytes(pricing)
    # At the embedding's gradient the first rank has freed the micro batch (the chunk of it) whose backward pass ends.
    ending = pricing.contents.embeddings * activations.first_chunk(pricing)
    gathers, (in_backward, at_loss, at_table) = kept_gathers_bytes(pricing), _gradients_absent(pricing)
    inside = np.maximum(layer_gradient_bytes(pricing), dequantised_bytes(pricing) + _product_bytes(pricing))
    inside = np.maximum(inside, largest(_norm_bytes(pricing, kind) for kind in pricing.contents.layer_kinds))
    # Casts of a forward pass are there at its loss, whatever is done again.
    at_end = other.at_loss + gathers
    if pricing.scenario.lora_rank is not None:
        again = zip(recompute_plan(pricing).on_rank, pricing.contents.layer_kinds, strict=True)
        at_end = at_end + sum(count * adapter_casts(pricing, kind) for count, kind in again)
    backward = other.steady + activations.recompute_working_set + inside + gathers
    state_held, profile = (state.parameters, state.gradients, other.resident), pricing.scenario.framework
    # What a unit is gathered into is beside it, and its first layer.
    outer = (pricing.block.zero_stage >= 3) & (profile.fully_shard and profile.outer_unit)
    twice = 2.0 * gathered(pricing, at_loss=True) + buffer_bytes(pricing) if outer.any() else 0.0
    return (
        Moment("backward", *state_held, overlapped, 0.0, 0.0, backward, in_backward),
        Moment("loss", *state_held, held, 0.0, other.losses, at_end, at_loss),
        Moment("embedding gradient", *state_held, held, ending, 0.0, other.at_table + gathers, at_table),
        Moment("optimizer step", *state_held[:2], other.in_step, 0.0, 0.0, 0.0, other.at_step),
        *([Moment("gather", *state_held, 0.0, 0.0, 0.0, np.where(outer, twice, 0.0), at_loss)] if outer.any() else ()),
    )


class _OtherBytes(NamedTuple):
    """Bytes of a step beside parameters, gradients and activations, whatever is recomputed; shape (kinds, n)."""

    resident: KindArray
    """Optimizer state on the device in the passes."""
    in_step: KindArray
    """The same in the optimizer step."""
    steady: KindArray
    """Temporary bytes of all backward passes."""
    losses: KindArray
    at_loss: KindArray
    """Temporary bytes at the loss, where the last rank also holds the output layer's input."""
    at_table: KindArray
    """Temporary bytes at the gradient of the input table."""
    at_step: KindArray


@derived
def _other_bytes(pricing: Pricing) -> _OtherBytes:
    """Return what no recompute changes; copies have other coefficients of memory, which it reads (`Pricing.copies`)."""
    if (alike := pricing.sizes) is not None and alike.pricing.scenario is pricing.scenario:
        return alike.spread(_other_bytes(alike.pricing))  # type: ignore[no-any-return]  # as a record of them
    scenario, contents, state = pricing.scenario, pricing.contents, training_state(pricing)
    heads, embeddings = contents.heads, contents.embeddings
    resident, in_step = optimizer_on_device(pricing, state.optimizer)
    steady = state.gathered + (buffers := buffer_bytes(pricing))
    deferred = heads * deferred_head_bytes(pricing)
    predicted = contents.prediction_layers
    losses = heads if scenario.framework.losses_in_turn else heads + predicted
    at_loss = gathered(pricing, at_loss=True)
    loss_temporary = at_loss + buffers + deferred + heads * head_input_bytes(pricing)
    of_table = embedding_gradient_bytes(pricing)
    embedding_gradient = embeddings * (of_table + table_sums(pricing, of_table / parameter_bytes(scenario)))
    # Losses of prediction layers wait for their backward passes with an fp32 softmax each.
    loss, own = loss_bytes(pricing), np.minimum(losses, 1.0)
    saved = loss * FP32 / max(bytes_per_logit(scenario), FP32)
    at_head = (losses - heads) * saved + heads * head_gradient_bytes(pricing)
    losses_held = np.maximum((losses - own) * saved + own * (loss + widened_head_bytes(pricing)), at_head)
    table = steady + embedding_gradient + scenario.framework.step_in_backward * state.step_temporary
    if scenario.framework.flat_parameters and scenario.lora_rank is not None:  # two layers as one follows another
        table = table + state.gathered - at_loss
    at_step = state.step_temporary + state.widened
    return _OtherBytes(resident, in_step, steady + deferred, losses_held, loss_temporary, table, at_step)


@derived
def loading_moment(pricing: Pricing) -> tuple[Moment, ...]:
    """Return what is alive when weights are built; empty where it is no more than a step's state (M30).

    Frozen weights do not move into buffers, and 8-bit ones share the gradients'.
    """
    scenario, stage, profile = pricing.scenario, pricing.block.zero_stage, pricing.scenario.framework
    narrow = profile.fp8_param_gather and scenario.precision in NARROW
    elsewhere = narrow or profile.step_parameters or scenario.lora_rank is not None
    buffers = (stage >= 1) & (stage < 3) & (profile.buffers_weights and not elsewhere)
    element = element_bytes(scenario)
    in_fp32 = profile.builds_in_fp32 * (FP32 + (stage == 2) * element)
    read = (stage < 3) * (profile.quantised_base and profile.loads_unquantised) * HALF
    built = np.maximum(np.maximum((stage >= 3) * profile.builds_whole_layers * element, in_fp32), read)
    quantising = profile.quantised_base * float(profile.quantising_bytes)
    if not (quantising or (buffers | (built > 0.0)).any()):
        return ()
    whole = sum(device_parameters(pricing))
    weights = (2.0 * buffers * parameter_bytes(scenario) + built) * whole
    if quantising:
        weights = np.maximum(
            weights, training_state(pricing).parameters + quantising / HALF * dequantised_bytes(pricing)
        )
    return (Moment("load", weights, buffers * gradient_bytes(scenario) * whole, 0.0, 0.0, 0.0, 0.0, 0.0),)


@derived
def _gradients_absent(pricing: Pricing) -> tuple[StageArray | float, StageArray | float, StageArray | float]:
    """Return the gradients not there in the backward pass, at the loss and at the embedding's gradient (M14)."""
    gone = pricing.contents.on_ranks(training_state(pricing).gradients)
    if pricing.scenario.framework.step_in_backward:
        return 0.0, gone, gone
    if not pricing.scenario.framework.release_grads:
        return 0.0, 0.0, 0.0
    stay = (micro_batches(pricing) > in_flight(pricing)) | ~_released(pricing)
    freed = np.minimum(gone, pricing.contents.on_ranks(stage_activations(pricing).one_micro_batch))
    # The table's gradient comes last and is taken as it is (PyTorch 2.13, accumulate_grad.h, `accumulateGrad`).
    adds = stay | pricing.scenario.model.tie_word_embeddings | (pricing.block.zero_stage > 0.0)
    taken = pricing.contents.on_ranks(pricing.contents.embeddings * embedding_gradient_bytes(pricing))
    taken = np.where(adds, 0.0, taken)
    return np.where(stay, 0.0, np.minimum(freed + taken, gone)), np.where(stay, 0.0, gone), taken


def _released(pricing: Pricing) -> Mask:
    """Return where no gradients outlive a step; DeepSpeed's ZeRO 3 has a buffer for them (M14)."""
    profile = pricing.scenario.framework
    return (pricing.block.zero_stage < (3 if profile.step_parameters else 4)) & profile.release_grads


@derived
def buffer_bytes(pricing: Pricing) -> Array:
    """Return the bytes of allocator buffers alive throughout the passes, shape (n,) (M11).

    They are library workspaces, those of overlapped tensor-parallel products among them; tensors that a pipeline rank
    sends and receives, of one chunk at a time (`deallocate_output_tensor`, megatron-core d98e8a6,
    pipeline_parallel/schedules.py); and the tokens of all ranks that an all-gather brings to the experts
    (`use_global_buffer` of megatron-core 0.19.0, transformer/moe/token_dispatcher.py: one for all layers, never freed).
    """
    scenario, block = pricing.scenario, pricing.block
    pipelined = (block.pipeline_parallel > 1) & (not scenario.framework.kept_boundaries)
    sent = np.where(pipelined, scenario.coefficients.memory.pipeline_buffers * layer_input_bytes(pricing), 0.0)
    overlapped = np.where(block.tensor_parallel > 1.0, overlap_workspace_bytes(scenario), 0.0)
    buffers = np.asarray(workspace_bytes(scenario) + overlapped + sent)
    if not scenario.model.is_moe or scenario.framework.expert_dispatch != "allgather":
        return buffers
    hidden = element_bytes(scenario) * scenario.model.expert_width
    return buffers + np.where(block.expert_ranks > 1.0, hidden * extent(pricing, "pooled"), 0.0)


@derived
def layer_gradient_bytes(pricing: Pricing) -> Array:
    """Return the gradients alive inside one layer's backward pass, shape (n,) (M12).

    Attention needs less than the network in every shipped model, except for saved scores.
    """
    scenario, conditions = pricing.scenario, conditions_of(pricing.scenario)
    reads = input_casts(conditions) == "each" and adapts(conditions, "feed_forward", "down")

    def widest(network: NetworkTensors) -> Array:
        plain = _widest_gradients(pricing, network, copied=False)
        if not reads:
            return plain
        return np.where(gathers_adapters(pricing), plain, _widest_gradients(pricing, network, copied=True))

    if not any(score_tensors(conditions, kind) for kind in scenario.model.layer_kinds):
        return widest("held")
    freed = widest("freed")
    if (wide := has_wide_stream(pricing)).any():
        freed = np.where(wide, widest("freed in fp32"), freed)
    return by_policy(pricing, freed, lambda _mode, _modules: widest("held"))


NetworkTensors = Literal["held", "freed", "freed in fp32"]
"""What is left of a layer's feed-forward part when attention's backward pass begins."""


@of_work
def _widest_gradients(pricing: Pricing, network: NetworkTensors, *, copied: bool) -> Array:
    """Return the widest gradients of a layer's backward pass, shape (n,), with adapters' casts where `copied`."""
    scenario, conditions = pricing.scenario, conditions_of(pricing.scenario)
    whole = element_bytes(scenario) * scenario.model.hidden_size * tokens_per_device(pricing)
    widest: list[Array] = []
    gated, dropped = scenario.model.gated, scenario.framework.adapter_dropout == "before"
    more = (1.5 if dropped else 0.5) if gated else 2.0 * (1 + dropped) - (scenario.model.activation == "relu")
    for kind in scenario.model.layer_kinds:
        operations = layer_operations(conditions, kind)
        made = [operation.temporary for operation in operations]
        inner = largest(total(pricing, summed(amounts)) for amounts in made if amounts)
        # An adapter behind the product casts it to fp32 and back (peft 0.21, lora/layer.py, `_cast_input_dtype`).
        inner = inner + (more * inner + 3.0 * whole) * (copied and not kind.routed) + merged_bytes(pricing, kind)[1]
        core = next((each.temporary for each in operations if each.name == "core_attention"), ())
        scores = score_bytes(pricing, kind)
        gone = 0.0 if network == "held" else network_bytes(pricing, kind, wide=network == "freed in fp32")
        behind = total(pricing, summed(core)) + scores - gone
        widest.append(np.where(scores > 0.0, np.maximum(inner, behind), inner))
    return np.asarray(largest(widest)) + whole * np.where(pricing.block.sequence_parallel > 0.0, 2.0, 1.0)


def _product_bytes(pricing: Pricing) -> Array:
    """Return the widest gradients of a layer beside a weight that is widened for them, shape (n,)."""
    scenario, conditions = pricing.scenario, conditions_of(pricing.scenario)
    operations = (each for kind in scenario.model.layer_kinds for each in layer_operations(conditions, kind))
    made = largest(total(pricing, summed(each.temporary[:1])) for each in operations)
    return np.asarray(layer_input_bytes(pricing) + made)


def _norm_bytes(pricing: Pricing, kind: LayerKind) -> Array | float:
    """Return the most bytes beside what a layer saves while DoRA makes a weight's norms and outputs (M42).

    `B A` is the adapters' product of an identity matrix that autograd holds as long. There are the input, a residual
    and, in a backward pass, the gradients that came first, but nothing that later operations save.
    """
    scenario, conditions = pricing.scenario, conditions_of(pricing.scenario)
    operations = layer_operations(conditions, kind)
    if not (magnified := decomposed(conditions, operations)):
        return 0.0
    most, later = 0.0 * tokens_per_device(pricing), 0.0 * tokens_per_device(pricing)
    (width, narrow, copied, saved), element = decomposing(conditions), element_bytes(scenario)
    full, dropped = pricing.recomputes("full"), scenario.framework.adapter_dropout == "before"
    # What adapters read is kept itself, unless it is cast or dropped for them: then its source is there too.
    source = element * (dropped | ((width > element) & ~(has_wide_stream(pricing) & (narrow == width))))
    read = source + width * (width > element) * (dropped + (narrow < width and not scenario.framework.quantised_base))
    came = (full & scenario.framework.recompute_stops_early) * (1.0 + (width > element)) * width
    beside = ((1.0 + full) * element + source) * scenario.model.hidden_size * extent(pricing, "sequence")
    for operation in reversed(operations):
        for weight in (each for each in operation.weights if each in magnified):
            (inputs, outputs), last = local_sides(pricing, weight), not later.any()
            number, spread = inputs * outputs, weight.output_spread
            made = narrow * inputs**2 + width * (1.0 + copied) * number
            cast = ((width + narrow) * inputs**2 + narrow * number) * (narrow < width)
            norms = np.maximum(made + 2.0 * width * number, cast) - saved * number
            out, entered = weight.outputs * extent(pricing, spread), inputs * tokens_per_device(pricing)
            products = made + np.where(came > 0.0, came + width, 3.0 * width) * out * last
            here = np.maximum(norms + (came - narrow) * out, products) + read * entered
            most = np.maximum(most, here + beside - later)
        later = later + total(pricing, summed(operation.saved)) * (operation.group != "adapter")
    return most


@of_work
def embedding_gradient_bytes(pricing: Pricing) -> Array:
    """Return the dense gradient of the input table, `2 V h / t`, before it joins the main gradients, shape (n,)."""
    scenario = pricing.scenario
    if not scenario.trains("embedding"):
        return np.zeros(len(pricing))
    table = scenario.model.vocab_size * scenario.model.hidden_size
    number = parameter_bytes(scenario) if scenario.lora_rank is None else module_bytes(scenario)
    return number * table / pricing.block.tensor_parallel
