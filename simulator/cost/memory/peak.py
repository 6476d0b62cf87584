"""Peak of device memory: the tensors alive at each moment of a step, by part, and the moment that needs most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from simulator.cost.derived import Pricing, derived, of_sizes, of_work
from simulator.cost.dtypes import FP32, HALF, element_bytes, parameter_dtype
from simulator.cost.memory.activations import (
    StageActivations,
    activations_in_flight,
    in_flight,
    layer_bytes,
    layer_input_bytes,
    repeated_working_set,
    score_bytes,
    stage_activations,
)
from simulator.cost.memory.fully_shard import idle_stream_bytes, sharded_moments, shards_by_unit
from simulator.cost.memory.loss import deferred_head_bytes, head_gradient_bytes, head_input_bytes, loss_bytes
from simulator.cost.memory.outside import OutsideAllocator, outside_allocator
from simulator.cost.memory.state import TrainingState, optimizer_on_device, resident_optimizer, training_state
from simulator.cost.operations.blocks import into_products
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Operation, Weight, conditions_of, summed
from simulator.cost.operations.sums import extent, micro_batches, tokens_per_device, total
from simulator.cost.stages import StageContents, usable_bytes
from simulator.question.arrays import Index, largest, selected
from simulator.question.scenario.block import Array, KindArray, Mask, StageArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind

MomentName = Literal["backward", "loss", "embedding gradient", "optimizer step", "gradient reduction"]
"""Moments that are compared for the peak."""
MOMENTS: tuple[MomentName, ...] = get_args(MomentName)


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes alive at one moment; shape (kinds, n) unless noted."""

    name: MomentName
    parameters: KindArray | float
    gradients: KindArray | float
    resident: KindArray | float
    """Optimizer state on the device."""
    activations: StageArray | float
    """Shape (pipeline_parallel, n)."""
    released: KindArray | float
    """Activations already freed."""
    logits: KindArray | float
    temporary: KindArray | float
    gradients_absent: StageArray | float = 0.0
    """Bytes of gradients not yet allocated, shape (pipeline_parallel, n)."""

    def total(self, contents: StageContents) -> StageArray:
        """Return the sum of all parts on every rank, shape (pipeline_parallel, n)."""
        static = self.parameters + self.gradients
        by_kind = np.asarray(static + self.resident + self.logits + self.temporary - self.released)
        return contents.on_ranks(by_kind) + self.activations - self.gradients_absent


_COMPRESSED_MASK = 2048.0
"""Side of the mask that torch_npu's fused attention uses for any causal sequence."""


def retained_bytes(pricing: Pricing) -> KindArray:
    """Return the bytes of masks, bias tables, boundaries, dispatched tokens and dummy gradients, shape (kinds, n)."""
    others = _masks(pricing) + _bias_tables(pricing) + _boundaries(pricing) + _dispatched(pricing)
    return others + _dummy_gradients(pricing)


def _masks(pricing: Pricing) -> KindArray:
    """Return the bytes of attention masks: one per score."""
    scenario, layers = pricing.scenario, pricing.contents.num_layers
    sequence = float(scenario.seq_length)
    match scenario.framework.attention_mask:
        case "compressed":
            return np.full_like(layers, _COMPRESSED_MASK**2)
        case "sequence":
            return np.full_like(layers, sequence**2)
        case "layers":
            return layers * sequence**2
        case _:
            return np.zeros_like(layers)


def _bias_tables(pricing: Pricing) -> KindArray:
    """Return the bytes of position bias: `2 a s^2 / t` per sequence of a micro batch and per shared table (M26).

    One object holds them for all layers (`Alibi`, mindspeed_llm/tasks/models/common/alibi.py, v1.0.RC3 to v26.1.0).
    """
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    tables = scenario.framework.position_bias_tables
    if not tables:
        return np.zeros_like(contents.ranks)
    scores = scenario.model.num_attention_heads * float(scenario.seq_length) ** 2 / block.tensor_parallel
    return (contents.num_layers > 0.0) * HALF * scores * (block.micro_batch_size + tables - 1.0)


def _boundaries(pricing: Pricing) -> KindArray:
    """Return the bytes of retained boundary tensors: `2 H` on later ranks; interleaved, `2 v H` more on all."""
    profile, block, contents = pricing.scenario.framework, pricing.block, pricing.contents
    if not profile.kept_boundaries:
        return np.zeros_like(contents.ranks)
    passes = np.where(block.pipeline_parallel > 1, 2.0 if profile.frozen_reference else 1.0, 0.0)
    interleaved = np.where(block.virtual_stages > 1, block.virtual_stages, 0.0)
    return 2.0 * passes * (1.0 - contents.embeddings + interleaved) * layer_input_bytes(pricing)


def _dispatched(pricing: Pricing) -> KindArray:
    """Return the bytes that a token dispatcher holds of the last micro batch, once on a rank with experts."""
    scenario, contents = pricing.scenario, pricing.contents
    states = scenario.framework.kept_dispatches
    if not states or not scenario.model.is_moe:
        return np.zeros_like(contents.ranks)
    hidden: Array = element_bytes(scenario) * scenario.model.hidden_size * tokens_per_device(pricing)
    of_experts = [kind.routed for kind in contents.layer_kinds]
    with_experts: KindArray = (contents.layers[of_experts].sum(axis=0) > 0.0) * states * hidden
    return with_experts


@of_sizes
def _dummy_gradients(pricing: Pricing) -> KindArray:
    """Return the bytes of an unused gradient for each distinct weight shape, `2 outputs x inputs` on the device.

    TransformerEngine's backward pass hands autograd an empty tensor where it has added the gradient to the accumulated
    one, and keeps it by shape and type (`get_dummy_wgrad`, transformer_engine/pytorch/module/base.py, v2.3 to v2.14;
    grouped_linear.py since v2.10). All experts of a rank share two. Frozen weights have none.
    """
    scenario, contents = pricing.scenario, pricing.contents
    profile, sizes = scenario.framework, np.zeros((len(contents.ranks), len(pricing)))
    if profile.dummy_weight_gradients == "none" or not profile.fused_gradient_accumulation or scenario.lora_rank:
        return sizes
    conditions, layers = conditions_of(scenario), contents.with_prediction
    modules: dict[Weight, KindArray] = {}
    for position, kind in enumerate(contents.layer_kinds):
        for weight in _module_weights(layer_operations(conditions, kind), fused=profile.fused_projections):
            if not weight.routed or profile.dummy_weight_gradients == "all":
                modules[weight] = modules.get(weight, np.zeros_like(layers[position])) + layers[position]
    counted: list[tuple[NDArray[np.bool_], Array, Array]] = []
    for weight, users in modules.items():
        outputs, inputs = _local_shape(pricing, weight)
        equal_shapes = [others & (outputs == rows) & (inputs == columns) for others, rows, columns in counted]
        fresh = (users > 0.0) & ~np.any([np.zeros(sizes.shape, dtype=bool), *equal_shapes], axis=0)
        sizes = sizes + fresh * (element_bytes(scenario) * outputs * inputs)
        counted.append((users > 0.0, outputs, inputs))
    return sizes


def _local_shape(pricing: Pricing, weight: Weight) -> tuple[Array, Array]:
    """Return the outputs and inputs of one weight on a device, each of shape (n,)."""
    block, whole = pricing.block, np.ones(len(pricing))
    parts = block.expert_tensor_parallel if weight.routed else block.tensor_parallel
    of_outputs = parts if weight.split in ("column", "expert_column") else whole
    of_inputs = parts if weight.split in ("row", "expert_row") else whole
    return weight.outputs / of_outputs, weight.inputs / of_inputs


def _module_weights(operations: Iterable[Operation], *, fused: bool) -> Iterator[Weight]:
    """Yield one unnamed weight per linear module of a layer; products of one input are one module if `fused`."""
    for operation in operations:
        outputs: Counter[Weight] = Counter()
        for weight in operation.weights:
            if weight.matmul and operation.group != "router":
                outputs[Weight("" if fused else weight.name, weight.inputs, 0, weight.split)] += weight.outputs
        yield from (module._replace(name="", outputs=width) for module, width in outputs.items())


def layer_backward_bytes(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return the most bytes alive in a layer's backward pass, shape (n,): saved tensors and gradients (M16).

    Gathered weights and other layers' gradients are not counted. Where `keeps_gradients`, weight gradients stay until
    the layer ends; elsewhere each is added to an accumulated gradient at once.
    """
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    saved = layer_bytes(pricing, kind) + repeated_working_set(pricing, kind)
    incoming = layer_input_bytes(pricing)
    if kind.routed:
        return saved + incoming + _experts(pricing, operations)
    feed_forward = _feed_forward(pricing, kind, keeps_gradients)
    widest = saved + incoming + feed_forward
    mixing = {operation.name for operation in operations if operation.group == "core_attention"}
    if not mixing:
        return widest
    if "core_attention" not in mixing:  # no scores: a scan of a linear mixer
        return np.maximum(widest, saved + incoming + _scan(pricing, kind, operations))
    return np.maximum(widest, _attention(pricing, kind, keeps_gradients))


def _products(scenario: Scenario, kind: LayerKind) -> int:
    """Return how many products read the input of a dense feed-forward network; 0 where a layer has none."""
    return 0 if kind.feed_forward == "none" else len(into_products(conditions_of(scenario)))


def _scan(pricing: Pricing, kind: LayerKind, operations: tuple[Operation, ...]) -> Array:
    """Return the gradients alive in a linear mixer's scan, with the gathered input's and its first projection's."""
    scan = (operation for operation in operations if operation.group == "core_attention")
    gradients = total(pricing, summed(amount for operation in scan for amount in operation.temporary))
    first = next(operation for operation in operations if operation.group == "attention_projection")
    inner = sum(weight.outputs for weight in first.weights if weight.matmul)
    return gradients + _widths(pricing, kind)[0] + _weight_bytes(pricing, inner)


def _saved(pricing: Pricing, kind: LayerKind, name: str) -> Array:
    """Return the bytes that the operation called `name` saves."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    return total(
        pricing, summed(tensor for operation in operations if operation.name == name for tensor in operation.saved)
    )


def _widths(pricing: Pricing, kind: LayerKind) -> tuple[Array, Array, Array]:
    """Return the bytes of the gathered residual stream, one tensor of the feed-forward width, and all queries."""
    scenario, block = pricing.scenario, pricing.block
    model = scenario.model.of_kind(kind)
    per_width = element_bytes(scenario) * tokens_per_device(pricing)
    t = block.tensor_parallel
    return per_width * model.hidden_size, per_width * model.intermediate_size / t, per_width * model.query_width / t


def _feed_forward(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return the feed-forward bytes beside saved tensors and the incoming gradient, at the widest of three moments.

    Down projection: the gathered incoming gradient and the product's. Product: the gradients of product, silu and up,
    with the product itself freed. Second of gate and up: both input gradients and one inner gradient, with all inner
    tensors freed. Each moment adds the weight gradients made so far. Without a gate, one product replaces gate and up.
    """
    scenario, block = pricing.scenario, pricing.block
    products = _products(scenario, kind)
    if not products:
        return np.zeros(len(pricing))
    gathered, inner, _ = _widths(pricing, kind)
    weight = _weight_bytes(pricing, scenario.model.of_kind(kind).intermediate_size)
    saved_inner = _saved(pricing, kind, "ffn_activation")
    down = np.where(block.sequence_parallel > 0.0, gathered, 0.0) + inner + weight
    product = 2.0 * inner + keeps_gradients * weight
    inputs = products * gathered + inner - saved_inner + (products * keeps_gradients + 1.0) * weight
    return np.maximum(np.maximum(down, product), inputs)


def _attention(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return all bytes of a layer alive in the backward pass of attention, at the widest of three moments.

    Rotation of the queries: their gradient, three products and a negation in fp32, and the gradients of keys and
    values. Last of the three projections: two input gradients and the queries' gradient. Core attention: with context
    parallelism, the gathered keys and values and their gradients.
    """
    scenario, block = pricing.scenario, pricing.block
    model = scenario.model
    gathered, _, query = _widths(pricing, kind)
    wide = FP32 * tokens_per_device(pricing) * model.query_width / block.tensor_parallel
    key_value = 2.0 * query * model.kv_width / model.query_width
    outside = _saved(pricing, kind, "attention_norm") + layer_input_bytes(pricing)
    products = _products(scenario, kind)
    feed_forward = (products + 1.0) * bool(products) * _weight_bytes(pricing, model.of_kind(kind).intermediate_size)
    output = _weight_bytes(pricing, model.query_width)
    projections = output + _weight_bytes(pricing, 2 * model.kv_width)
    rotation = 3.0 * wide + key_value + keeps_gradients * (feed_forward + output)
    inputs = 2.0 * gathered + query + keeps_gradients * (feed_forward + output) + projections
    # The gathered keys and values and their gradients are alive before the rotation is differentiated.
    core = 3.0 * query + key_value + _gathered_context(pricing, kind)
    return outside + np.maximum(np.maximum(rotation, inputs), core)


def _gathered_context(pricing: Pricing, kind: LayerKind) -> Array:
    """Return the bytes of gathered keys and values and their gradients, where ranks share a sequence."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    context = ("key_value_context", "sliding_key_value_context")
    return total(pricing, summed(a for operation in operations for a in operation.temporary if a.spread in context))


def _weight_bytes(pricing: Pricing, width: int) -> Array:
    """Return the bytes of a weight of hidden size times `width`, in the compute type."""
    scenario, block = pricing.scenario, pricing.block
    return element_bytes(scenario) * scenario.model.hidden_size * width / block.tensor_parallel


def _experts(pricing: Pricing, operations: tuple[Operation, ...]) -> Array:
    """Return the gradients of gate, up and the experts' inputs and outputs, and of the largest weight."""
    scenario, block = pricing.scenario, pricing.block
    experts = (operation for operation in operations if operation.group == "experts")
    gradients = total(pricing, summed(amount for operation in experts for amount in operation.temporary))
    largest = max(weight.parameters for operation in operations for weight in operation.weights if weight.routed)
    return gradients + element_bytes(scenario) * largest / block.expert_ranks


@dataclass(frozen=True, slots=True)
class MemoryByStage:
    """Peak bytes of every pipeline rank, shape (pipeline_parallel, n)."""

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

    @property
    def reserved(self) -> StageArray:
        """Return what the framework's allocator reserves, shape (pipeline_parallel, n).

        Context and communicators are left out: the driver and the collective library allocate them.
        """
        return self.device - self.outside.context - self.outside.communicators

    @property
    def need(self) -> StageArray:
        """Return the memory that must fit: all but idle blocks of streams, which the allocator can give back."""
        return self.device - self.outside.streams

    def moment_name(self, stage: int, index: int) -> str:
        """Return the moment at which a pipeline rank of a layout peaks, one of MOMENTS."""
        return self.moments[int(self.moment[stage, index])].name

    def take(self, where: Index) -> MemoryByStage:
        """Return the memory of the layouts at an index."""
        figures = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "contents"}
        count = self.allocated.shape[-1]
        return replace(self, **{name: selected(figure, where, count) for name, figure in figures.items()})

    def parts(self) -> dict[str, StageArray]:
        """Return the named parts at each rank's own peak; they add up to `device`."""
        kinds, ranks = len(self.contents.ranks), self.allocated.shape

        def at_peak(values: list[StageArray | float]) -> StageArray:
            peak = np.array(np.broadcast_to(values[0], ranks))
            for index, value in enumerate(values[1:], start=1):
                if value is not values[0]:
                    np.copyto(peak, value, where=self.moment == index)
            return peak

        def on_ranks(value: KindArray | float) -> StageArray:
            return self.contents.on_ranks(np.broadcast_to(value, (kinds, np.atleast_1d(value).shape[-1])))

        def of_kinds(values: list[KindArray | float]) -> StageArray:
            spread = {key: on_ranks(value) for key, value in {id(value): value for value in values}.items()}
            return at_peak([spread[id(value)] for value in values])

        moments = self.moments
        held = at_peak([m.activations for m in moments]) - of_kinds([m.released for m in moments])
        absent = at_peak([m.gradients_absent for m in moments])
        return {
            "parameters": of_kinds([m.parameters for m in moments]),
            "gradients": of_kinds([m.gradients for m in moments]) - absent,
            "optimizer": of_kinds([m.resident for m in moments]),
            "activations": held,
            "logits": of_kinds([m.logits for m in moments]),
            "temporary": of_kinds([m.temporary for m in moments]) + self.retained,
            "outside_allocator": self.outside.total,
        }


@derived
def memory_by_stage(pricing: Pricing) -> MemoryByStage:
    """Price the memory of a block of layouts, in bytes."""
    scenario, contents, state = pricing.scenario, pricing.contents, training_state(pricing)
    retained = contents.on_ranks(retained_bytes(pricing))
    moments = sharded_moments(pricing) if shards_by_unit(scenario) else _moments(pricing)
    peak = moments[0].total(contents)
    moment = np.zeros(peak.shape, dtype=np.int8)
    for index, candidate in enumerate(moments[1:], start=1):
        value = candidate.total(contents)
        moment[value > peak] = index
        np.maximum(peak, value, out=peak)
    peak = peak + retained
    outside = outside_allocator(pricing, peak)
    if shards_by_unit(scenario):
        outside = replace(outside, streams=_idle_streams(pricing, moments, moment, peak + outside.total))
    resident = resident_optimizer(pricing, state.optimizer)
    gradients = state.gradients * (0.0 if scenario.framework.release_grads else 1.0)
    after = contents.on_ranks(state.parameters + gradients + resident + state.widened) + retained
    activations, device = stage_activations(pricing), peak + outside.total
    return MemoryByStage(contents, state, after, retained, activations, moments, moment, peak, outside, device)


def _idle_streams(
    pricing: Pricing, moments: tuple[Moment, ...], moment: NDArray[np.int8], held: StageArray
) -> StageArray:
    """Return the idle blocks of FSDP2's streams at the peak, as far as there is room: PyTorch frees them when short."""
    scenario, contents = pricing.scenario, pricing.contents
    shape = (len(contents.ranks), len(pricing))
    gradients = np.choose(moment, [contents.on_ranks(np.broadcast_to(each.gradients, shape)) for each in moments])
    idle = idle_stream_bytes(pricing, gradients)
    usable = scenario.coefficients.memory.starved_from * usable_bytes(scenario, contents)
    return np.asarray(np.clip(usable - held, 0.0, idle))


def _moments(pricing: Pricing) -> tuple[Moment, ...]:
    """Return the moments of a step where parameters and gradients have buffers for the whole run (M10)."""
    scenario, contents = pricing.scenario, pricing.contents
    state, activations = training_state(pricing), stage_activations(pricing)
    resident, in_step = optimizer_on_device(pricing, state.optimizer)
    heads, embeddings = contents.heads, contents.embeddings
    held = activations_in_flight(pricing)
    # At the loss the last rank also holds the output layer's input; at the embedding's gradient the first rank has
    # freed the micro batch (the chunk of it) whose backward pass is ending.
    steady = state.gathered + buffer_bytes(pricing)
    deferred = heads * deferred_head_bytes(pricing)
    predicted = contents.prediction_layers
    losses = heads if scenario.framework.losses_in_turn else heads + predicted
    loss_temporary = steady + deferred + heads * head_input_bytes(pricing)
    embedding_gradient = embeddings * embedding_gradient_bytes(pricing)
    ending = embeddings * activations.first_chunk(pricing)
    backward = steady + deferred + activations.recompute_working_set + layer_gradient_bytes(pricing)
    absent = gradients_absent(pricing)
    parameters, gradients = state.parameters, state.gradients
    losses_held = np.maximum(
        losses * loss_bytes(pricing), (losses - heads) * loss_bytes(pricing) + heads * head_gradient_bytes(pricing)
    )
    table = steady + embedding_gradient
    in_step_alone = state.step_temporary + state.widened
    return (
        Moment("backward", parameters, gradients, resident, held, 0.0, 0.0, backward, absent.backward),
        Moment("loss", parameters, gradients, resident, held, 0.0, losses_held, loss_temporary, absent.loss),
        Moment("embedding gradient", parameters, gradients, resident, held, ending, 0.0, table),
        Moment("optimizer step", parameters, gradients, in_step, 0.0, 0.0, 0.0, in_step_alone),
    )


@dataclass(frozen=True, slots=True)
class GradientsAbsent:
    """Gradients not allocated when activations peak, shape (pipeline_parallel, n) or 0."""

    backward: StageArray | float = 0.0
    loss: StageArray | float = 0.0


def gradients_absent(pricing: Pricing) -> GradientsAbsent:
    """Return the bytes that `release_grads` saves at the peaks of the passes (M14).

    Released gradients come back during the first backward pass, while it frees one micro batch's activations. A rank
    with more micro batches than it holds at once peaks again later, with all gradients. On other ranks the first
    backward pass decides: it begins with all activations and no gradients, and ends with one micro batch fewer and all
    gradients.
    """
    if not pricing.scenario.framework.release_grads:
        return GradientsAbsent()
    comes_again = micro_batches(pricing) > in_flight(pricing)
    of_kinds = training_state(pricing).gradients, stage_activations(pricing).one_micro_batch
    gradients, freed = (pricing.contents.on_ranks(each) for each in of_kinds)
    return GradientsAbsent(
        backward=np.where(comes_again, 0.0, np.minimum(gradients, freed)),
        loss=np.where(comes_again, 0.0, gradients),
    )


def buffer_bytes(pricing: Pricing) -> Array:
    """Return the bytes of allocator buffers alive throughout the passes, shape (n,) (M11).

    They are library workspaces; tensors that each model chunk of a pipeline rank sends and receives; and the tokens of
    all ranks that an all-gather brings to the experts (`use_global_buffer` of megatron-core 0.19.0,
    transformer/moe/token_dispatcher.py: one for all layers, never freed).
    """
    scenario, block = pricing.scenario, pricing.block
    values = scenario.coefficients.memory
    pipelined = (block.pipeline_parallel > 1) & (not scenario.framework.kept_boundaries)
    chunks = np.where(pipelined, block.chunks, 0.0)
    boundary = layer_input_bytes(pricing)
    buffers: Array = values.workspace_bytes + chunks * values.pipeline_buffers_per_chunk * boundary
    if not scenario.model.is_moe or scenario.framework.expert_dispatch != "allgather":
        return buffers
    hidden = element_bytes(scenario) * scenario.model.expert_width
    return buffers + np.where(block.expert_ranks > 1.0, hidden * extent(pricing, "pooled"), 0.0)


@of_work
def layer_gradient_bytes(pricing: Pricing) -> Array:
    """Return the gradients alive inside one layer's backward pass, shape (n,) (M12).

    The widest moment of a feed-forward block holds the gradient of gate and up and the incoming one, `2 T h`; the
    product is freed before its gradient is made. Sequence parallelism adds the gathered input, `2 T h`. Attention needs
    less in every shipped model, except for saved scores.
    """
    scenario, conditions = pricing.scenario, conditions_of(pricing.scenario)
    whole = element_bytes(scenario) * scenario.model.hidden_size * tokens_per_device(pricing)
    widest: list[Array] = []
    for kind in scenario.model.layer_kinds:
        operations = (
            summed(operation.temporary) for operation in layer_operations(conditions, kind) if operation.temporary
        )
        inner = largest(total(pricing, amounts) for amounts in operations)
        widest.append(inner + score_bytes(pricing, kind))
    return np.asarray(largest(widest)) + whole * np.where(pricing.block.sequence_parallel > 0.0, 2.0, 1.0)


@of_work
def embedding_gradient_bytes(pricing: Pricing) -> Array:
    """Return the dense gradient of the input table, `2 V h / t`, before it joins the main gradients, shape (n,)."""
    scenario = pricing.scenario
    if scenario.lora_rank is not None:
        return np.zeros(len(pricing))
    element = FP32 if parameter_dtype(scenario) == "fp32" else element_bytes(scenario)
    return element * scenario.model.vocab_size * scenario.model.hidden_size / pricing.block.tensor_parallel
