"""Moments of a step (a layer's backward pass, the loss, the optimizer's step ...) and the bytes alive at each."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np

from simulator.cost.derived import Pricing, of_sizes, remembered
from simulator.cost.dtypes import FP32, HALF, element_bytes
from simulator.cost.memory.activations import (
    layer_bytes,
    layer_input_bytes,
    network_bytes,
    repeated_working_set,
    score_bytes,
)
from simulator.cost.memory.state import lasting_buckets, local_count
from simulator.cost.operations.blocks import into_products
from simulator.cost.operations.layer import NETWORKS, layer_operations
from simulator.cost.operations.record import Conditions, Operation, Weight, conditions_of, summed
from simulator.cost.operations.sums import tokens_per_device, total, weight_totals
from simulator.cost.stages import StageContents
from simulator.question.scenario.block import Array, KindArray, Mask, StageArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.units import MIB
from simulator.records import Bare

MomentName = Literal["backward", "loss", "embedding gradient", "optimizer step", "gradient reduction", "gather", "load"]
"""Moments that are compared for the peak."""


class Moment(Bare):
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
    sharded: KindArray | float = 0.0
    """Of `gradients`, the shards that are there already beside a pipeline: another stream's."""

    def total(self, contents: StageContents) -> StageArray:
        """Return the sum of all parts on every rank, shape (pipeline_parallel, n)."""
        by_kind = np.asarray(self.parameters + self.gradients)
        for part in (self.resident, self.logits, self.temporary):
            by_kind = by_kind if _is_nothing(part) else by_kind + part
        by_kind = by_kind if _is_nothing(self.released) else by_kind - self.released
        total = contents.on_ranks(by_kind)
        total = total if _is_nothing(self.activations) else total + self.activations
        return total if _is_nothing(self.gradients_absent) else total - self.gradients_absent


def _is_nothing(part: Array | float) -> bool:
    """Return whether a part is the number 0, which takes no sum of arrays."""
    return isinstance(part, float) and part == 0.0


_COMPRESSED_MASK = 2048.0  # side of the mask that torch_npu's fused attention uses for any causal sequence


_CUBLAS_WORKSPACE = 32.0 * MIB
"""Most that PyTorch allocates for a handle of cuBLAS (PyTorch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp: on Hopper,
and with CUBLAS_WORKSPACE_CONFIG=:4096:8; on Blackwell NVIDIA's container 26.04 and later, not those before)."""
_SMALL_WORKSPACE = 8.125 * MIB  # the same on NVIDIA's older devices, `:4096:2:16:8`
_SMALL_FAMILIES = frozenset(("volta", "turing", "ampere", "ampere-rtx", "ada"))
_HANDLES = 2.0  # handles of cuBLAS: of the forward pass's thread and of autograd's


_GROUPED_STREAMS = 4  # streams of experts' grouped products
_OVERLAP_STREAMS = 3  # streams of overlapped tensor-parallel products
_STREAM_BYTES = {"ampere": 4.0 * MIB, **dict.fromkeys(("hopper", "blackwell", "cdna3", "cdna4"), 32.0 * MIB)}
"""Workspace of a stream by family; none where TransformerEngine does not run."""


def workspace_bytes(scenario: Scenario) -> float:
    """Return the bytes of library workspaces: of cuBLAS alone on one device, else as fitted (M11).

    The fitted ones have cuBLAS' largest workspaces; before Hopper each is smaller unless results repeat. Experts'
    grouped products of TransformerEngine have one for each of 4 streams: 32 MiB from compute capability 9 on, 4 before
    (NVIDIA/TransformerEngine and ROCm/TransformerEngine, pytorch/cpp_extensions/gemm.py, `get_cublas_workspace`).
    """
    fitted, framework = scenario.coefficients.memory.workspace_bytes, scenario.framework
    small = all(device.family in _SMALL_FAMILIES for device in scenario.kinds_of_device)
    if scenario.devices == 1:
        alone: float = np.minimum(fitted, _HANDLES * _SMALL_WORKSPACE if small else _CUBLAS_WORKSPACE)
        return alone
    if small and framework.deterministic_kernels == "none" and not framework.growing_pool:
        fitted = np.maximum(fitted - _HANDLES * (_CUBLAS_WORKSPACE - _SMALL_WORKSPACE), 0.0)
    grouped = framework.grouped_experts and not framework.sliced_experts and scenario.model.is_moe
    return fitted + _GROUPED_STREAMS * _stream_bytes(scenario) if grouped else fitted


def overlap_workspace_bytes(scenario: Scenario) -> float:
    """Return the bytes of workspaces of TransformerEngine's overlapped tensor-parallel products, on 3 streams (M11).

    NVIDIA/TransformerEngine v2.16, pytorch/cpp_extensions/gemm.py, `_NUM_MAX_UB_STREAMS`.
    """
    overlapped = scenario.framework.tp_comm_overlap and not scenario.framework.functional_collectives
    return _OVERLAP_STREAMS * _stream_bytes(scenario) if overlapped else 0.0


def _stream_bytes(scenario: Scenario) -> float:
    """Return the bytes of a TransformerEngine workspace, of the device kind that has the largest."""
    return max(_STREAM_BYTES.get(device.family, 0.0) for device in scenario.kinds_of_device)


def retained_bytes(pricing: Pricing) -> KindArray:
    """Return the bytes of masks, tables, boundaries, dispatched tokens, dummy gradients and gradients' buckets."""
    model, positions = pricing.scenario.model, pricing.scenario.framework.rotary_tables
    rotary = FP32 * positions * float(model.qk_rope_head_dim or model.head_dim)
    others = _masks(pricing) + _bias_tables(pricing) + _boundaries(pricing) + _dispatched(pricing)
    return others + _dummy_gradients(pricing) + lasting_buckets(pricing) + rotary


def _masks(pricing: Pricing) -> KindArray:
    """Return the bytes of attention masks: one per score."""
    scenario, layers = pricing.scenario, pricing.contents.num_layers
    none, sequence = np.zeros_like(layers), float(scenario.seq_length)
    masks = {"compressed": _COMPRESSED_MASK**2 + none, "sequence": sequence**2 + none, "layers": layers * sequence**2}
    return masks.get(scenario.framework.attention_mask, none)


def _bias_tables(pricing: Pricing) -> KindArray:
    """Return the bytes of position bias: `2 a s^2 / t` per sequence of a micro batch and per shared table (M26)."""
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    tables = scenario.framework.position_bias_tables
    scores = scenario.model.num_attention_heads * float(scenario.seq_length) ** 2 / block.tensor_parallel
    return bool(tables) * (contents.num_layers > 0.0) * HALF * scores * (block.micro_batch_size + tables - 1.0)


def _boundaries(pricing: Pricing) -> KindArray:
    """Return the bytes of retained boundary tensors: `2 H` on later ranks; interleaved, `2 v H` more on all."""
    profile, block, contents = pricing.scenario.framework, pricing.block, pricing.contents
    passes = np.where(block.pipeline_parallel > 1, profile.kept_boundaries * (1.0 + profile.frozen_reference), 0.0)
    interleaved = np.where(block.virtual_stages > 1, block.virtual_stages, 0.0)
    return 2.0 * passes * (1.0 - contents.embeddings + interleaved) * layer_input_bytes(pricing)


def _dispatched(pricing: Pricing) -> KindArray:
    """Return the bytes that a token dispatcher holds of the last micro batch, once on a rank with experts."""
    scenario, contents = pricing.scenario, pricing.contents
    states = scenario.framework.kept_dispatches
    hidden: Array = element_bytes(scenario) * scenario.model.hidden_size * tokens_per_device(pricing)
    of_experts = [kind.routed for kind in contents.layer_kinds]
    return np.asarray((contents.layers[of_experts].sum(axis=0) > 0.0) * states * hidden)


@of_sizes
def _dummy_gradients(pricing: Pricing) -> KindArray:
    """Return the bytes of an unused gradient for each distinct weight shape, `2 outputs x inputs` (M10)."""
    scenario, contents = pricing.scenario, pricing.contents
    profile, block = scenario.framework, pricing.block
    if profile.dummy_weight_gradients == "none" or not profile.fused_gradient_accumulation or scenario.lora_rank:
        return np.zeros((len(contents.ranks), len(pricing)))
    # The shapes depend on two sizes alone: each pair of them is counted once.
    pairs, pair = np.unique(block.tensor_parallel + 1j * block.expert_tensor_parallel, return_inverse=True)
    conditions = conditions_of(scenario)
    sizes = [_distinct_weights(conditions, contents, both.real, both.imag) for both in pairs.tolist()]
    return element_bytes(scenario) * np.array(sizes).T[:, pair]


@remembered
def _distinct_weights(
    conditions: Conditions, contents: StageContents, tensor: float, expert: float
) -> tuple[float, ...]:
    """Return the elements of weights of distinct shapes on every kind of rank, at these tensor parallel sizes."""
    shapes: list[dict[tuple[float, float], None]] = [{} for _ in contents.ranks]
    for kind, layers in zip(contents.layer_kinds, contents.with_prediction[..., 0], strict=True):
        for weight in _module_weights(conditions, kind):
            if not weight.routed or conditions.framework.dummy_weight_gradients == "all":
                ranks = expert if weight.routed else tensor
                outputs = weight.outputs / (ranks if weight.split in ("column", "expert_column") else 1.0)
                shape = outputs, weight.inputs / (ranks if weight.split in ("row", "expert_row") else 1.0)
                for on_rank, users in zip(shapes, layers, strict=True):
                    on_rank.update({shape: None} if users > 0.0 else {})
    return tuple(sum(outputs * inputs for outputs, inputs in on_rank) for on_rank in shapes)


@remembered
def _module_weights(conditions: Conditions, kind: LayerKind) -> tuple[Weight, ...]:
    """Return one unnamed weight per linear module of a layer; fused products of one input are one module."""
    fused, modules = conditions.framework.fused_projections, list[Weight]()
    for operation in layer_operations(conditions, kind):
        outputs: Counter[Weight] = Counter()
        for weight in operation.weights:
            if weight.matmul and operation.group != "router":
                outputs[Weight("" if fused else weight.name, weight.inputs, 0, weight.split)] += weight.outputs
        modules += (module._replace(name="", outputs=width) for module, width in outputs.items())
    return tuple(modules)


def layer_backward_bytes(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return the most bytes alive in a layer's backward pass, shape (n,): saved tensors and gradients (M16).

    Gathered weights and other layers' gradients are not counted. Where `keeps_gradients`, weight gradients stay until
    the layer ends; elsewhere each is added to an accumulated gradient at once.
    """
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    saved = layer_bytes(pricing, kind) + repeated_working_set(pricing, kind)
    incoming, scores = layer_input_bytes(pricing), score_bytes(pricing, kind)
    routed = kind.routed
    beside = _experts(pricing, operations) if routed else _feed_forward(pricing, kind, keeps_gradients)
    if scores.any():  # what the network saved is gone, its weights' gradients are not
        gone = network_bytes(pricing, kind, wide=False) - keeps_gradients * _network_weights(pricing, operations)
        beside = np.maximum(beside, scores - gone)
    widest = saved + incoming + beside
    core = [operation for operation in operations if operation.group == "core_attention" and not routed]
    if not core:
        return widest
    if all(operation.name != "core_attention" for operation in core):
        # No scores: the scan of a linear mixer, with the gradients of the gathered input and of its first projection.
        gradients = total(pricing, summed(amount for operation in core for amount in operation.temporary))
        first = next(operation for operation in operations if operation.group == "attention_projection")
        inner = sum(weight.outputs for weight in first.weights if weight.matmul)
        gradients = gradients + _widths(pricing, kind)[0] + _weight_bytes(pricing, inner)
        return np.maximum(widest, saved + incoming + gradients)
    return np.maximum(widest, _attention(pricing, kind, keeps_gradients))


def _network_weights(pricing: Pricing, operations: tuple[Operation, ...]) -> Array:
    """Return the bytes of the gradients of a network's weights, experts' too, in the compute type."""
    network = tuple(operation for operation in operations if operation.group in NETWORKS)
    return element_bytes(pricing.scenario) * local_count(pricing, weight_totals(network, "products"))


def _saved(pricing: Pricing, kind: LayerKind, name: str) -> Array:
    """Return the bytes that the operation called `name` saves."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    named = (operation for operation in operations if operation.name == name)
    return total(pricing, summed(tensor for operation in named for tensor in operation.saved))


def _widths(pricing: Pricing, kind: LayerKind) -> tuple[Array, Array, Array]:
    """Return the bytes of the gathered residual stream, one tensor of the feed-forward width, and all queries."""
    scenario, block = pricing.scenario, pricing.block
    model = scenario.model.of_kind(kind)
    per_width = element_bytes(scenario) * tokens_per_device(pricing)
    t = block.tensor_parallel
    return per_width * model.hidden_size, per_width * model.intermediate_size / t, per_width * model.query_width / t


def _feed_forward(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return the feed-forward bytes beside saved tensors and incoming gradient, at the widest of 3 moments (M16)."""
    scenario, block = pricing.scenario, pricing.block
    if kind.feed_forward == "none":
        return np.zeros(len(pricing))
    products = len(into_products(conditions_of(scenario)))
    gathered, inner, _ = _widths(pricing, kind)
    weight = _weight_bytes(pricing, scenario.model.of_kind(kind).intermediate_size)
    saved_inner = _saved(pricing, kind, "ffn_activation")
    down = np.where(block.sequence_parallel > 0.0, gathered, 0.0) + inner + weight
    product = 2.0 * inner + keeps_gradients * weight
    inputs = products * gathered + inner - saved_inner + (products * keeps_gradients + 1.0) * weight
    return np.maximum(np.maximum(down, product), inputs)


def _attention(pricing: Pricing, kind: LayerKind, keeps_gradients: Mask) -> Array:
    """Return all bytes of a layer alive in the backward pass of attention, at the widest of three moments (M16)."""
    scenario, block = pricing.scenario, pricing.block
    model = scenario.model
    gathered, _, query = _widths(pricing, kind)
    wide = FP32 * tokens_per_device(pricing) * model.query_width / block.tensor_parallel
    key_value = 2.0 * query * model.kv_width / model.query_width
    outside = _saved(pricing, kind, "attention_norm") + layer_input_bytes(pricing)
    operations = layer_operations(conditions_of(scenario), kind)
    feed_forward = _network_weights(pricing, operations)
    output = _weight_bytes(pricing, model.query_width)
    projections = output + _weight_bytes(pricing, 2 * model.kv_width)
    rotation = 3.0 * wide + key_value + keeps_gradients * (feed_forward + output)
    inputs = 2.0 * gathered + query + keeps_gradients * (feed_forward + output) + projections
    # The gathered keys and values and their gradients are alive before the rotation is differentiated.
    context = ("key_value_context", "sliding_key_value_context", "ring", "sliding_ring")
    gathers = summed(a for operation in operations for a in operation.temporary if a.spread in context)
    core = 3.0 * query + key_value + total(pricing, gathers)
    return outside + np.maximum(np.maximum(rotation, inputs), core)


def _weight_bytes(pricing: Pricing, width: int) -> Array:
    """Return the bytes of a weight of hidden size times `width`, in the compute type."""
    scenario, block = pricing.scenario, pricing.block
    return element_bytes(scenario) * scenario.model.hidden_size * width / block.tensor_parallel


def table_sums(pricing: Pricing, table: KindArray) -> KindArray:
    """Return the partial sums of a `table`'s gradient, `4 h (T / 10 + min(T, V))` beside its parameters (M34)."""
    tokens, hidden = tokens_per_device(pricing), float(pricing.scenario.model.hidden_size)
    hardware, pool = pricing.scenario.hardware, pricing.scenario.framework.growing_pool
    on_cuda = hardware.caching_allocator and hardware.attention_kernel != "npu" and not pool
    sorts = (tokens > 3072.0) & on_cuda & (table > 0.0)
    return np.where(sorts, FP32 * (hidden * (tokens / 10.0) + np.minimum(hidden * tokens, table)), 0.0)


def _experts(pricing: Pricing, operations: tuple[Operation, ...]) -> Array:
    """Return the gradients of gate, up and the experts' inputs and outputs, and of the largest weight."""
    scenario, block = pricing.scenario, pricing.block
    experts = (operation for operation in operations if operation.group == "experts")
    gradients = total(pricing, summed(amount for operation in experts for amount in operation.temporary))
    largest = max(weight.parameters for operation in operations for weight in operation.weights if weight.routed)
    return gradients + element_bytes(scenario) * largest / block.expert_ranks
