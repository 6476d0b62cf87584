"""Seconds of one layer, the embedding and the output layer, for one micro batch on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias, assert_never

import numpy as np

from simulator.cost.elements import element_bytes, gradient_bytes, narrow_element_bytes
from simulator.cost.memory.loss import labelled_tokens, logits_per_micro_batch
from simulator.cost.memory.parameters import whole_layer
from simulator.cost.operations.conditions import conditions_of
from simulator.cost.operations.extents import Extents, inner_context, sequence_split, tokens_per_device
from simulator.cost.operations.recompute import Modules
from simulator.cost.operations.record import Collective
from simulator.cost.operations.sums import WeightTotals, attended_share
from simulator.cost.operations.work import Product, Work, layer_work, repeated_work
from simulator.cost.timing.collectives import (
    RankGroup,
    all_to_all_seconds,
    context_group,
    expert_group,
    expert_ranks_group,
    expert_tensor_group,
    gather_seconds,
    inner_context_group,
    neighbour_seconds,
    once_seconds,
    outer_context_group,
    tensor_group,
)
from simulator.cost.timing.flops import head_parameters, prediction_projection
from simulator.cost.timing.parts import Parts, PassSeconds, sum_parts
from simulator.cost.timing.rates import attention_rate, counted_head_width, gemm_rate, memory_rate, wide_precision
from simulator.cost.timing.waits import beside_weight_gradients, exposed, host_seconds
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode

WAITS_WITH_OVERLAP = 0.22  # Of waiting for counts, beside other compute (Megatron-Bridge: 0.67 of 3.11 s).


Side: TypeAlias = "Array | float"
"""One side of a matrix product on a device, shape (n,) or the same for all layouts."""


def attention_backward_factor(scenario: Scenario) -> float:
    """Flash attention's backward pass computes five products for the forward pass's two (Dao 2023)."""
    products = 2.5 if scenario.framework.flash_attention else 2.0
    return products * scenario.coefficients.time.attention_backward_slowdown


class ProductSeconds(NamedTuple):
    """Compute of matrix products by pass, shape (n,): without what reading weights or adding gradients may take."""

    forward: Array
    inputs: Array
    """Gradient of the inputs."""
    weights: Array
    """Gradient of the weights."""


class Products(NamedTuple):
    """Seconds of matrix products with weights by pass, shape (n,)."""

    forward: Array
    inputs: Array
    weights: Array | float = 0.0

    @property
    def passes(self) -> tuple[Array, Array]:
        """Forward and whole backward pass."""
        return self.forward, self.inputs + self.weights


def product_seconds(scenario: Scenario, compute: ProductSeconds, parameters: Array) -> Products:
    """Seconds of matrix products with weights, by roofline.

    Forward and input gradient read the weights; the weight gradient reads and writes the accumulated gradients, while
    it is computed or in a kernel behind it. Frozen weights have no weight gradient.
    """
    reads = element_bytes(scenario) * parameters / memory_rate(scenario)
    forward, inputs = np.maximum(compute.forward, reads), np.maximum(compute.inputs, reads)
    if scenario.lora_rank is not None:
        return Products(forward, inputs)
    if scenario.framework.fused_gradient_accumulation:
        accumulates = 2.0 * gradient_bytes(scenario) * parameters / memory_rate(scenario)
        return Products(forward, inputs, np.maximum(compute.weights, accumulates))
    weights = np.maximum(compute.weights, reads)
    return Products(forward, inputs, weights + accumulation_seconds(scenario, parameters))


def at_rate(flops: Array, rate: float) -> ProductSeconds:
    """Products at one rate in every pass, whatever their shape."""
    seconds = flops / rate
    return ProductSeconds(seconds, seconds, seconds)


def shaped_seconds(scenario: Scenario, rate: float, rows: Array, outputs: Side, depth: Side) -> ProductSeconds:
    """The three products of a layer with a weight: rows (tokens), outputs and depth (inputs) per device."""
    seconds = 2.0 * rows * outputs * depth / rate
    return ProductSeconds(
        forward=seconds * shape_factor(scenario, rate, rows, outputs, depth),
        inputs=seconds * shape_factor(scenario, rate, rows, depth, outputs),
        weights=seconds * shape_factor(scenario, rate, depth, outputs, rows),
    )


def shape_factor(scenario: Scenario, rate: float, rows: Side, outputs: Side, depth: Side) -> Array | float:
    """Time of a matrix product over that of its FLOPs at the rate of large ones, `(1 + K j / k) (1 + A / (m n j))`.

    A device works on tiles of `a` outputs, one per processor: `A = w S a` outputs are started for nothing (waves that
    are not full). A product with few outputs is split into `j` pieces along its depth `k`, as many as balance both
    factors, and each piece costs `t` seconds: `K = t rate / (2 S a)`. Without the device's processors no shape counts.
    """
    hardware, values = scenario.hardware, scenario.coefficients.time
    if hardware.processors is None or hardware.product_tile is None:
        return 1.0
    at_once = float(hardware.processors.value * hardware.product_tile.value)
    started = np.maximum(values.product_waves, 0.0) * at_once
    piece = np.maximum(values.product_split_seconds, 0.0) * rate / (2.0 * at_once)
    made = rows * outputs
    with np.errstate(divide="ignore", invalid="ignore"):
        pieces = np.maximum(1.0, np.sqrt(started * depth / (np.maximum(piece, 1e-9) * made)))
    factor: Array = (1.0 + piece * pieces / depth) * (1.0 + started / (made * pieces))
    return factor


def accumulation_seconds(scenario: Scenario, parameters: Array) -> Array:
    """Adding weight gradients to the accumulated ones in a kernel of its own: it reads both and writes the sum."""
    each = element_bytes(scenario) + 2.0 * gradient_bytes(scenario)
    return each * parameters / memory_rate(scenario)


class _Compute(NamedTuple):
    """Seconds of what a device computes in operations, shape (n,)."""

    dense: Products
    """Products with everything but routed experts."""
    routed: Products
    adapters: Array | float
    """Forward."""
    attention: Array
    """Forward."""
    elementwise: Array
    """Forward."""


class LayerTimer:
    """Prices operations of layers on one kind of device; what layers have alike is priced once."""

    def __init__(self, scenario: Scenario, block: LayoutBlock) -> None:
        self.scenario, self.block = scenario, block
        self.given, self.extents = conditions_of(scenario), Extents(scenario, block)
        self._exchanges: dict[Collective, Array] = {}
        self._products: dict[Product, ProductSeconds] = {}

    def layer(self, kind: LayerKind) -> PassSeconds:
        """Both passes of one layer; a backward pass does twice the forward's matrix products."""
        work = layer_work(self.given, kind)
        compute = self._compute(work)
        attending = attention_backward_factor(self.scenario)
        return PassSeconds(
            self._pass(work, compute, 0, 1.0, 1.0),
            self._pass(work, compute, 1, attending, 2.0),
            compute.dense.weights + compute.routed.weights,
        )

    def repeated(self, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Array:
        """Forward seconds of what a recompute policy does again in one layer, shape (n,)."""
        work = repeated_work(self.given, kind, mode, modules)
        return sum_parts(self._pass(work, self._compute(work), 0, 1.0, 1.0))

    def _shaped(self, work: Work) -> ProductSeconds:
        """Compute of all products but the routed experts', each at the rate of its shape."""
        nothing = np.zeros_like(self.extents.of("whole"))
        total = ProductSeconds(nothing, nothing, nothing)
        for one in work.shapes:
            if one not in self._products:
                self._products[one] = self._product(one)
            here = self._products[one]
            total = ProductSeconds(
                total.forward + here.forward, total.inputs + here.inputs, total.weights + here.weights
            )
        return total

    def _product(self, one: Product) -> ProductSeconds:
        block, m = self.block, self.extents.of("whole")
        n: Side = float(one.outputs)
        k: Side = float(one.inputs)
        match one.split:
            case "column" | "vocabulary":
                n = n / block.tensor_parallel
            case "row":
                k = k / block.tensor_parallel
            case _:
                m = m / sequence_split(block)
        return shaped_seconds(self.scenario, gemm_rate(self.scenario), m, n, k)

    def _pass(self, work: Work, compute: _Compute, index: int, attending: float, repeats: float) -> Parts:
        """Seconds by part of one pass; `index` 0 is the forward, 1 the backward pass."""
        scenario, block, values = self.scenario, self.block, self.scenario.coefficients.time
        gemm, experts = compute.dense.passes[index], compute.routed.passes[index]
        attention = attending * compute.attention
        tensor = self._exchange(work, "products", index)
        products = experts + gemm
        if scenario.framework.tp_comm_overlap:
            tensor = self._overlapped(work, tensor, gemm, index)
            products = products + tensor
        elif index and scenario.framework.overlap_tensor_gradients:
            alone, left = beside_weight_gradients(scenario, block, work, tensor, gemm)
            tensor, products = alone + left, products + left
        context = (
            exposed(values.context_exposed, self._exchange(work, "core_attention", index), attention)
            + exposed(
                values.context_exposed, self._exchange(work, "first_block", index), attention / block.context_parallel
            )
            + self._exchange(work, "attention_apart", index)
        )
        tensor = tensor + self._exchange(work, "nothing", index)
        parts: Parts = {
            "gemm": gemm + experts + compute.adapters * repeats,
            "attention": attention,
            "memory_bound": compute.elementwise * repeats,
            "tensor_parallel": tensor,
            "overlap": overlap_seconds(scenario, block, gemm),
            "context_parallel": context,
            "ring_attention": repeats * ring_seconds(scenario, block, work),
        }
        if work.products.routed:
            exchange = self._exchange(work, "experts", index)
            waits = np.where(block.expert_ranks > 1.0, scenario.framework.expert_wait_ms / 2e3, 0.0)
            if scenario.framework.overlap_expert_exchange:
                # What others hid behind is not twice as long: theirs that is left is time to hide behind as well.
                exchange = exposed(values.expert_exposed, exchange, products + attention + context)
                waits = WAITS_WITH_OVERLAP * waits
            parts["expert_parallel"] = exchange + waits
        split = np.where(block.tensor_parallel > 1.0, values.tensor_overhead_seconds / 2.0, 0.0)
        parts["overhead"] = work.calls * (values.layer_overhead_seconds / 3.0 * repeats + split)
        host = host_seconds(scenario, block, work) / 3.0 * repeats
        beside = 0.0 if scenario.framework.blocking_launches else sum_parts(parts)
        parts["overhead"] = parts["overhead"] + np.maximum(host - beside, 0.0)
        return parts

    def _overlapped(self, work: Work, tensor: Array, gemm: Array, index: int) -> Array:
        """What is left of tensor-parallel collectives beside matrix products, of all of them or each beside its own."""
        share, left = self.scenario.coefficients.time.tensor_exposed, np.zeros_like(tensor)
        if not self.scenario.framework.fused_collectives:
            return exposed(share, tensor, gemm)
        for one, products in work.paired:
            # Backward, a scatter runs beside the gradient of the weights, and a gather within that of the inputs.
            name = ("weights" if one.pattern == "gather" else "inputs") if index else "forward"
            beside = sum((getattr(self._products[product], name) for product in products), np.zeros_like(tensor))
            left = left + exposed(share, (one.backward if index else 1.0) * self._seconds(one), beside)
        return left

    def product_flops(self, totals: WeightTotals) -> tuple[Array, Array]:
        """Forward FLOPs on one device of products with these weights: all but routed experts, and those, shape (n,)."""
        block, tokens = self.block, self.extents.of("whole")
        dense = 2.0 * tokens * (totals.split / block.tensor_parallel + totals.replicated / sequence_split(block))
        if not totals.routed:
            return dense, np.zeros_like(tokens)
        return dense, 2.0 * self.extents.of("copies_tensor") * totals.routed / self.scenario.model.num_experts

    def _compute(self, work: Work) -> _Compute:
        scenario, products = self.scenario, work.products
        _, routed = self.product_flops(products)
        adapters: Array | float = 0.0
        if work.adapters.all:
            adapters = np.add(*self.product_flops(work.adapters)) / gemm_rate(scenario)
        held = whole_layer(self.block, WeightTotals(products.split, products.replicated))
        experts = whole_layer(self.block, WeightTotals(routed=products.routed))
        return _Compute(
            dense=product_seconds(scenario, self._shaped(work), held),
            routed=self._grouped(work, routed, experts),
            adapters=adapters,
            attention=attention_seconds(scenario, self.extents, work.core_width)
            + bounded_seconds(scenario, self.extents, work),
            elementwise=self.extents.total(work.moved) / memory_rate(scenario),
        )

    def _grouped(self, work: Work, flops: Array, parameters: Array) -> Products:
        """Seconds of the experts' products, all experts of a device in one grouped kernel.

        Both what they compute and what they move count: weights, tokens, accumulated gradients (read and written).
        """
        scenario, tensor = self.scenario, self.block.expert_tensor_parallel
        compute, rate = flops / gemm_rate(scenario), memory_rate(scenario)
        narrow, wide = narrow_element_bytes(scenario), element_bytes(scenario)
        entered: Array | float = 0.0
        left: Array | float = 0.0
        for one in work.grouped:
            entered = entered + (one.inputs / tensor if one.split == "expert_row" else one.inputs)
            left = left + (one.outputs / tensor if one.split == "expert_column" else one.outputs)
        copies = self.extents.of("copies")
        weights = narrow * parameters
        joined, parted = self._sliced(copies)
        forward = compute + (weights + (narrow * entered + wide * left) * copies + joined) / rate
        inputs = compute + (weights + (narrow * left + wide * entered) * copies + parted) / rate
        if scenario.lora_rank is not None:
            return Products(forward, inputs)
        tokens = narrow * (entered + left) * copies
        gradients = 2.0 * gradient_bytes(scenario) * parameters / rate
        if not scenario.framework.fused_gradient_accumulation:
            gradients = wide * parameters / rate + accumulation_seconds(scenario, parameters)
        return Products(forward, inputs, compute + tokens / rate + gradients)

    def _sliced(self, copies: Array) -> tuple[Array | float, Array | float]:
        """Bytes beside the products where experts run one by one on slices, forward and backward.

        Forward, outputs are zeroed and copied into slices. Backward, every expert copies the gradient of all outputs,
        and fills and adds one of all inputs: SequentialMLP of megatron-core up to 0.8.
        """
        if not self.scenario.framework.sliced_experts:
            return 0.0, 0.0
        whole = element_bytes(self.scenario) * self.scenario.model.expert_width * copies
        return 3.0 * whole, 6.0 * self.scenario.model.num_experts / self.block.expert_parallel * whole

    def _exchange(self, work: Work, beside: str, index: int) -> Array:
        """Seconds of one pass's collectives that may hide behind one kind of work, hidden or not."""
        result = np.zeros(len(self.block))
        for one in work.collectives:
            if one.beside == beside:
                result = result + (one.backward if index else 1.0) * self._seconds(one)
        return result

    def _seconds(self, one: Collective) -> Array:
        if one not in self._exchanges:
            seconds = collective_seconds(self.scenario, self.block, self.extents, one)
            self._exchanges[one] = np.where(self.extents.of(one.spread) > 0.0, seconds, 0.0)
        return self._exchanges[one]


def collective_seconds(scenario: Scenario, block: LayoutBlock, extents: Extents, one: Collective) -> Array:
    """One forward collective of a layer, shape (n,); a reduction is `reduce_slowdown` gathers of its bytes."""
    inner = inner_context(scenario, block)
    groups: dict[str, Callable[[LayoutBlock], RankGroup]] = {
        "tensor": tensor_group,
        "context": context_group,
        "context_inner": partial(inner_context_group, ranks=inner),
        "context_outer": partial(outer_context_group, ranks=inner),
        "expert": expert_group,
        "expert_tensor": expert_tensor_group,
        "expert_ranks": expert_ranks_group,
    }
    group = groups[one.group](block)
    size = one.amount * extents.of(one.spread)
    if one.pattern in ("gather_each", "reduce_each"):
        size = group.size * size
    match one.pattern:
        case "gather" | "gather_each":
            return gather_seconds(scenario, group, size)
        case "reduce" | "reduce_each":
            return scenario.coefficients.time.reduce_slowdown * gather_seconds(scenario, group, size)
        case "once":
            return once_seconds(scenario, group, size)
        case "all_to_all":
            return all_to_all_seconds(scenario, group, size)
        case "ring":
            return (group.size - 1.0) * neighbour_seconds(scenario, group, size)
    assert_never(one.pattern)


def projection_seconds(scenario: Scenario, block: LayoutBlock) -> PassSeconds:
    """The projection that joins embedding and hidden state in one prediction layer."""
    parameters = prediction_projection(scenario) / block.tensor_parallel
    compute = at_rate(2.0 * tokens_per_device(scenario, block) * parameters, gemm_rate(scenario))
    products = product_seconds(scenario, compute, parameters)
    forward, backward = products.passes
    return PassSeconds({"gemm": forward}, {"gemm": backward}, products.weights)


def attention_seconds(scenario: Scenario, extents: Extents, width: float) -> Array:
    """Forward seconds of attention's products: on the causal half of the scores, without a fused kernel on all.

    Beside them something for every score and every cut tile. With context parallelism every device attends its tokens
    to the whole sequence, balanced over the ring.
    """
    values = scenario.coefficients.time
    if not width:
        return np.zeros_like(extents.of("scores"))
    heads = float(scenario.model.num_attention_heads)
    counted = heads * (counted_head_width(scenario, width / heads) + values.attention_score_width)
    tiles = 1.0 + values.attention_tile_tokens / scenario.seq_length
    half = 1.0 if scenario.framework.flash_attention else 2.0
    return half * 2.0 * counted * extents.of("scores") / attention_rate(scenario) * tiles


def bounded_seconds(scenario: Scenario, extents: Extents, work: Work) -> Array | float:
    """Forward seconds of attention within windows, whose cut tiles weigh more, and of linear mixers."""
    seconds: Array | float = 0.0
    if work.core_flops:
        seconds = work.core_flops * extents.of("tensor") / attention_rate(scenario)
    tile, length = scenario.coefficients.time.attention_tile_tokens, scenario.seq_length
    for window, width in work.windows:
        cut = (1.0 + tile / min(window.tokens, length)) / (1.0 + tile / length)
        whole = attention_seconds(scenario, extents, width)
        seconds = seconds + whole * (attended_share(length, window) * cut)
    return seconds


def overlap_seconds(scenario: Scenario, block: LayoutBlock, gemm: Array) -> Array:
    """What matrix products lose to collectives that run under them: smaller pieces, shared units."""
    overlapped = (block.tensor_parallel > 1.0) & scenario.framework.tp_comm_overlap
    return np.where(overlapped, scenario.coefficients.time.overlap_slowdown * gemm, 0.0)


def ring_seconds(scenario: Scenario, block: LayoutBlock, work: Work) -> Array:
    """Merging the partial results of a ring's further steps in a forward pass, at the rate of memory.

    Steps are `c - 1`, whether keys and values come one by one or were gathered; within all-to-alls those of the ring
    that is left. A single attention over gathered tokens merges nothing.
    """
    exchanged = any(one.group.startswith("context") and one.beside != "attention_apart" for one in work.collectives)
    if not exchanged:
        return np.zeros(len(block))
    steps = block.context_parallel / inner_context(scenario, block) - 1.0
    queries = tokens_per_device(scenario, block) * scenario.model.query_width / block.tensor_parallel
    moved = scenario.coefficients.time.ring_bytes_per_query_element * queries
    return steps * moved / memory_rate(scenario)


def head_seconds(scenario: Scenario, block: LayoutBlock) -> PassSeconds:
    """The output layer and the loss, in 16 bit also under fp8: products, and passes over the logits.

    What the loss reads and writes is the stack's, in one fused kernel sixteen bytes a logit; half of it in either pass.
    """
    rate = scenario.hardware.peak(wide_precision(scenario)) * scenario.coefficients.time.gemm_efficiency
    parameters = head_parameters(scenario) / block.tensor_parallel
    reads = element_bytes(scenario) * parameters / memory_rate(scenario)
    labelled = labelled_tokens(scenario, block)
    outputs = scenario.outputs_per_token / block.tensor_parallel
    compute = shaped_seconds(scenario, rate, labelled, outputs, float(scenario.model.hidden_size))
    forward_products = np.maximum(compute.forward, reads)
    per_logit = 16.0 if scenario.framework.fused_cross_entropy else float(scenario.framework.loss_traffic_bytes)
    passes = per_logit / 2.0 * logits_per_micro_batch(scenario, block) / memory_rate(scenario)
    ends = scenario.coefficients.time.tensor_ends_overhead_seconds / 2.0
    around = passes + np.where(block.tensor_parallel > 1.0, ends, 0.0)
    frozen = scenario.lora_rank is not None
    accumulates = np.zeros(len(block))
    if not frozen and not scenario.framework.fused_gradient_accumulation:
        accumulates = accumulation_seconds(scenario, parameters)
    weights = np.zeros_like(reads) if frozen else np.maximum(compute.weights, reads)
    backward_products = np.maximum(compute.inputs, reads) + weights
    forward: Parts = {"vocabulary": forward_products + around}
    backward: Parts = {"vocabulary": backward_products + around + accumulates}
    if not scenario.framework.vocabulary_parallel_loss:
        # Every rank takes its own part of the gradient: nothing is sent back.
        whole = element_bytes(scenario) * labelled * scenario.outputs_per_token
        forward["tensor_parallel"] = gather_seconds(scenario, tensor_group(block), whole)
        backward["tensor_parallel"] = np.zeros(len(block))
    return PassSeconds(forward, backward, weights + accumulates)
