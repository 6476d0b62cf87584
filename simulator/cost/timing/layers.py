"""Seconds of one layer, the embedding and the output layer, for one micro batch on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from simulator.cost.elements import element_bytes, gradient_bytes
from simulator.cost.memory.loss import labelled_tokens
from simulator.cost.memory.parameters import whole_layer
from simulator.cost.operations.conditions import conditions_of
from simulator.cost.operations.extents import Extents, sequence_split, tokens_per_device
from simulator.cost.operations.recompute import Modules
from simulator.cost.operations.record import Collective
from simulator.cost.operations.sums import WeightTotals
from simulator.cost.operations.work import Work, layer_work, repeated_work
from simulator.cost.timing.collectives import (
    all_to_all_seconds,
    context_group,
    expert_group,
    expert_ranks_group,
    expert_tensor_group,
    gather_seconds,
    neighbour_seconds,
    once_seconds,
    tensor_group,
)
from simulator.cost.timing.flops import head_flops, head_parameters, prediction_projection
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import RecomputeMode

PARTS = (
    "gemm",
    "attention",
    "memory_bound",
    "vocabulary",
    "tensor_parallel",
    "context_parallel",
    "ring_attention",
    "expert_parallel",
    "overlap",
    "overhead",
)
"""Parts of a pipeline rank's work per micro batch."""

Parts = dict[str, Array]
"""Seconds by part, shape (n,)."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds by part of a forward and a backward pass, recomputation apart."""

    forward: Parts
    backward: Parts


def sum_parts(parts: Parts) -> Array:
    """Sum in the dictionary's fixed order."""
    values = iter(parts.values())
    result = next(values)
    for value in values:
        result = result + value
    return result


def attention_backward_factor(scenario: Scenario) -> float:
    """Flash attention's backward pass computes five products for the forward pass's two (Dao 2023)."""
    products = 2.5 if scenario.framework.flash_attention else 2.0
    return products * scenario.coefficients.time.attention_backward_slowdown


def exposed(share: float, seconds: Array | float, beside: Array) -> Array:
    """What is left of communication that runs beside compute: its exposed share, and what outlasts the compute."""
    left: Array = np.maximum(share * seconds, seconds - beside)
    return left


def product_seconds(scenario: Scenario, flops: Array, parameters: Array) -> tuple[Array, Array]:
    """Forward and backward seconds of matrix products with weights, by roofline.

    Forward and input gradient read the weights; the weight gradient reads and writes the accumulated gradients, while
    it is computed or in a kernel behind it. Frozen weights have no weight gradient.
    """
    compute = flops / gemm_rate(scenario)
    reads = element_bytes(scenario) * parameters / memory_rate(scenario)
    once = np.maximum(compute, reads)
    if scenario.lora_rank is not None:
        return once, once
    if scenario.framework.fused_gradient_accumulation:
        accumulates = 2.0 * gradient_bytes(scenario) * parameters / memory_rate(scenario)
        return once, once + np.maximum(compute, accumulates)
    return once, 2.0 * once + accumulation_seconds(scenario, parameters)


def accumulation_seconds(scenario: Scenario, parameters: Array) -> Array:
    """Adding weight gradients to the accumulated ones in a kernel of its own: it reads both and writes the sum."""
    each = element_bytes(scenario) + 2.0 * gradient_bytes(scenario)
    return each * parameters / memory_rate(scenario)


@dataclass(frozen=True, slots=True)
class _Compute:
    """Seconds of what a device computes in operations, shape (n,)."""

    dense: tuple[Array, Array]
    """Products with everything but routed experts, forward and backward."""
    routed: tuple[Array, Array]
    adapters: Array | float
    """Forward."""
    attention: Array
    """Forward."""
    elementwise: Array
    """Forward."""


class LayerTimer:
    """Prices operations of layers on one kind of device; exchanges that layers have alike are priced once."""

    def __init__(self, scenario: Scenario, block: LayoutBlock) -> None:
        self.scenario, self.block = scenario, block
        self.given, self.extents = conditions_of(scenario), Extents(scenario, block)
        self._exchanges: dict[Collective, Array] = {}

    def layer(self, kind: LayerKind) -> PassSeconds:
        """Both passes of one layer; a backward pass does twice the forward's matrix products."""
        work = layer_work(self.given, kind)
        compute = self._compute(work)
        attending = attention_backward_factor(self.scenario)
        return PassSeconds(self._pass(work, compute, 0, 1.0, 1.0), self._pass(work, compute, 1, attending, 2.0))

    def repeated(self, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Array:
        """Forward seconds of what a recompute policy does again in one layer, shape (n,)."""
        work = repeated_work(self.given, kind, mode, modules)
        return sum_parts(self._pass(work, self._compute(work), 0, 1.0, 1.0))

    def _pass(self, work: Work, compute: _Compute, index: int, attending: float, repeats: float) -> Parts:
        """Seconds by part of one pass; `index` 0 is the forward, 1 the backward pass."""
        scenario, block, values = self.scenario, self.block, self.scenario.coefficients.time
        gemm, experts, attention = compute.dense[index], compute.routed[index], attending * compute.attention
        tensor = self._exchange(work, "products", index)
        if scenario.framework.tp_comm_overlap:
            tensor = exposed(values.tensor_exposed, tensor, gemm)
        parts: Parts = {
            "gemm": gemm + experts + compute.adapters * repeats,
            "attention": attention,
            "memory_bound": compute.elementwise * repeats,
            "tensor_parallel": tensor,
            "overlap": overlap_seconds(scenario, block, gemm),
            "context_parallel": exposed(
                values.context_exposed, self._exchange(work, "core_attention", index), attention
            ),
            "ring_attention": ring_seconds(scenario, block, work, attention),
        }
        if work.products.routed:
            exchange = self._exchange(work, "experts", index)
            waits = np.where(block.expert_ranks > 1.0, scenario.framework.expert_wait_ms / 2e3, 0.0)
            if scenario.framework.overlap_expert_exchange:
                exchange = exposed(values.expert_exposed, exchange, experts + gemm + attention)
            parts["expert_parallel"] = exchange + waits
        split = np.where(block.tensor_parallel > 1.0, values.tensor_overhead_seconds / 2.0, 0.0)
        return parts | {"overhead": work.calls * (values.layer_overhead_seconds / 3.0 * repeats + split)}

    def product_flops(self, totals: WeightTotals) -> tuple[Array, Array]:
        """Forward FLOPs on one device of products with these weights: all but routed experts, and those, shape (n,)."""
        block, tokens = self.block, self.extents.of("whole")
        dense = 2.0 * tokens * (totals.split / block.tensor_parallel + totals.replicated / sequence_split(block))
        if not totals.routed:
            return dense, 0.0 * tokens
        return dense, 2.0 * self.extents.of("copies_tensor") * totals.routed / self.scenario.model.num_experts

    def _compute(self, work: Work) -> _Compute:
        scenario, products = self.scenario, work.products
        dense, routed = self.product_flops(products)
        adapters: Array | float = 0.0
        if work.adapters.all:
            adapters = np.add(*self.product_flops(work.adapters)) / gemm_rate(scenario)
        held = whole_layer(self.block, WeightTotals(products.split, products.replicated))
        experts = whole_layer(self.block, WeightTotals(routed=products.routed)) if products.routed else 0.0 * routed
        return _Compute(
            dense=product_seconds(scenario, dense, held),
            routed=product_seconds(scenario, routed, experts) if products.routed else (experts, experts),
            adapters=adapters,
            attention=attention_seconds(scenario, self.extents, work.core_width),
            elementwise=self.extents.total(work.moved) / memory_rate(scenario),
        )

    def _exchange(self, work: Work, beside: str, index: int) -> Array:
        """Seconds of one pass's collectives that may hide behind one kind of work, hidden or not."""
        result = np.zeros(len(self.block))
        for one in work.collectives:
            if one.beside == beside:
                result = result + (one.backward if index else 1.0) * self._seconds(one)
        return result

    def _seconds(self, one: Collective) -> Array:
        if one not in self._exchanges:
            self._exchanges[one] = collective_seconds(self.scenario, self.block, self.extents, one)
        return self._exchanges[one]


def collective_seconds(scenario: Scenario, block: LayoutBlock, extents: Extents, one: Collective) -> Array:
    """One forward collective of a layer, shape (n,); a reduction is `reduce_slowdown` gathers of its bytes."""
    groups = {
        "tensor": tensor_group,
        "context": context_group,
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
            return np.where(group.size > 1.0, once_seconds(scenario, group, size), 0.0)
        case "all_to_all":
            return np.where(group.size > 1.0, all_to_all_seconds(scenario, group, size), 0.0)
        case "ring":
            return np.where(group.size > 1.0, (group.size - 1.0) * neighbour_seconds(scenario, group, size), 0.0)
    assert_never(one.pattern)


def projection_seconds(scenario: Scenario, block: LayoutBlock) -> PassSeconds:
    """The projection that joins embedding and hidden state in one prediction layer."""
    parameters = prediction_projection(scenario) / block.tensor_parallel
    forward, backward = product_seconds(scenario, 2.0 * tokens_per_device(scenario, block) * parameters, parameters)
    return PassSeconds({"gemm": forward}, {"gemm": backward})


def attention_seconds(scenario: Scenario, extents: Extents, width: float) -> Array:
    """Forward seconds of attention's products on the causal half of the scores.

    Beside them something for every score and every cut tile. With context parallelism every device attends its tokens
    to the whole sequence, balanced over the ring.
    """
    values = scenario.coefficients.time
    if not width:
        return 0.0 * extents.of("scores")
    beside = 1.0 + values.attention_score_width / (width / scenario.model.num_attention_heads)
    tiles = 1.0 + values.attention_tile_tokens / scenario.seq_length
    return 2.0 * width * extents.of("scores") / attention_rate(scenario) * beside * tiles


def attention_rate(scenario: Scenario) -> float:
    """FLOP/s of attention on the causal half of the scores; 16 bit also under fp8."""
    return scenario.hardware.peak(_wide(scenario)) * scenario.coefficients.time.attention_efficiency


def _wide(scenario: Scenario) -> str:
    """The 16-bit type used where fp8 is not: attention and the output layer."""
    return "bf16" if scenario.precision == "fp8" else scenario.precision


def gemm_rate(scenario: Scenario) -> float:
    """FLOP/s of the layers' matrix products."""
    values = scenario.coefficients.time
    efficiency = values.gemm_efficiency_fp8 if scenario.precision == "fp8" else values.gemm_efficiency
    return scenario.hardware.peak(scenario.precision) * efficiency


def memory_rate(scenario: Scenario) -> float:
    """Bytes per second of elementwise kernels."""
    return scenario.hardware.memory_bandwidth_bytes_per_second * scenario.coefficients.time.memory_efficiency


def overlap_seconds(scenario: Scenario, block: LayoutBlock, gemm: Array) -> Array:
    """What matrix products lose to collectives that run under them: smaller pieces, shared units."""
    overlapped = (block.tensor_parallel > 1.0) & scenario.framework.tp_comm_overlap
    return np.where(overlapped, scenario.coefficients.time.overlap_slowdown * gemm, 0.0)


def ring_seconds(scenario: Scenario, block: LayoutBlock, work: Work, attention: Array) -> Array:
    """What attention loses by working over a ring: `c` pieces, and `c - 1` merges of their results."""
    if not any(one.pattern == "ring" for one in work.collectives):
        return np.zeros(len(block))
    return scenario.coefficients.time.ring_slowdown * (block.context_parallel - 1.0) * attention


def head_seconds(scenario: Scenario, block: LayoutBlock) -> PassSeconds:
    """The output layer and the loss, in 16 bit also under fp8: products, and passes over the logits.

    The loss reads and writes the logits, sixteen bytes each in either pass (cast, maximum, exponent, sum; gradient and
    cast back), half of that in one fused kernel. fp32 logits have no casts, and wider reads: the same bytes.
    """
    rate = scenario.hardware.peak(_wide(scenario)) * scenario.coefficients.time.gemm_efficiency
    parameters = head_parameters(scenario) / block.tensor_parallel
    reads = element_bytes(scenario) * parameters / memory_rate(scenario)
    products = np.maximum(head_flops(scenario, block) / rate, reads)
    labelled = labelled_tokens(scenario, block)
    parts = block.tensor_parallel if scenario.framework.vocabulary_parallel_loss else 1.0
    per_logit = 8.0 if scenario.framework.fused_cross_entropy else 16.0
    passes = per_logit * (labelled * scenario.model.vocab_size / parts) / memory_rate(scenario)
    ends = scenario.coefficients.time.tensor_ends_overhead_seconds / 2.0
    around = passes + np.where(block.tensor_parallel > 1.0, ends, 0.0)
    frozen = scenario.lora_rank is not None
    accumulates = np.zeros(len(block))
    if not frozen and not scenario.framework.fused_gradient_accumulation:
        accumulates = accumulation_seconds(scenario, parameters)
    forward: Parts = {"vocabulary": products + around}
    backward: Parts = {"vocabulary": products * (1.0 if frozen else 2.0) + around + accumulates}
    if not scenario.framework.vocabulary_parallel_loss:
        # Every rank takes its own part of the gradient: nothing is sent back.
        whole = element_bytes(scenario) * labelled * scenario.model.vocab_size
        forward["tensor_parallel"] = gather_seconds(scenario, tensor_group(block), whole)
        backward["tensor_parallel"] = np.zeros(len(block))
    return PassSeconds(forward, backward)
