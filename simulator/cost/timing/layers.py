"""Seconds of a layer and of the output layer: products, kernels and the collectives that run beside them."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import assert_never

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.dtypes import element_bytes, gradient_bytes, narrow_element_bytes
from simulator.cost.memory.loss import labelled_tokens, logits_per_micro_batch
from simulator.cost.operations.recompute import Modules
from simulator.cost.operations.record import Collective, Hiding, conditions_of
from simulator.cost.operations.sums import (
    Work,
    attended_tokens,
    context_ranks,
    extent,
    inner_context,
    layer_work,
    mean_attended_share,
    partly_repeated,
    repeated_work,
    tokens_per_device,
    total,
)
from simulator.cost.timing.collectives import (
    all_to_all_seconds,
    gather_seconds,
    group_of,
    neighbour_seconds,
    once_seconds,
    tensor_group,
)
from simulator.cost.timing.products import (
    Products,
    ProductShape,
    attention_rate,
    attention_tile_tokens,
    counted_head_width,
    decomposed_seconds,
    dequantised_seconds,
    expert_launches,
    expert_products,
    gemm_rate,
    memory_rate,
    product_flops,
    product_passes,
    product_seconds,
    summed_products,
    wide_gemm_rate,
)
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import NARROW, RecomputeMode
from simulator.records import Bare, NamedTuple, field

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


class PassSeconds(Bare):
    """Seconds by part of a forward and a backward pass, without recompute."""

    forward: Parts
    backward: Parts
    weight_seconds: Array | float = 0.0
    """Seconds of weight gradients in the backward pass: a pass of their own where a schedule splits it."""
    forward_seconds: Array = field(init=False)
    """Sum of all parts, shape (n,)."""
    backward_seconds: Array = field(init=False)

    def __post_init__(self) -> None:
        """Add up the parts once."""
        object.__setattr__(self, "forward_seconds", sum_parts(self.forward))
        object.__setattr__(self, "backward_seconds", sum_parts(self.backward))


def sum_parts(parts: Parts) -> Array:
    """Return the sum of all parts, in the dictionary's fixed order."""
    return reduce(add, parts.values())


def passes_are_captured(scenario: Scenario) -> bool:
    """Return whether one CUDA graph holds all passes of a step: no host schedule, no waits for token counts."""
    return scenario.framework.cuda_graphs == "full_iteration"


def layers_are_captured(scenario: Scenario) -> bool:
    """Return whether CUDA graphs start every kernel of a layer."""
    return scenario.framework.cuda_graphs in ("layers", "full_iteration")


def attention_share(scenario: Scenario) -> float:
    """Return the time of attention's products relative to 16 bits where they run in 8, also under fp4 (T4)."""
    narrow = scenario.hardware.fp8_attention
    if scenario.precision not in NARROW or not scenario.framework.fp8_attention or narrow is None:
        return 1.0
    return 1.0 / narrow.value


def output_rate(scenario: Scenario) -> float:
    """Return the FLOP/s of the output layer's product (T15): the 16-bit rate, unless fp8 computes it."""
    if scenario.precision == "fp8" and scenario.framework.fp8_output_layer:
        return gemm_rate(scenario)
    return wide_gemm_rate(scenario)


def exposed(share: float, seconds: Array | float, beside: Array) -> Array:
    """Return the exposed seconds of communication: its exposed share, at least what outlasts the compute (T10)."""
    left: Array = np.maximum(share * seconds, seconds - beside)
    return left


def beside_weight_gradients(pricing: Pricing, work: Work, tensor: Array, gemm: Array) -> tuple[Array, Array]:
    """Return the seconds of backward tensor-parallel collectives that run alone, and the rest's exposed part (T13)."""
    sizes = [(product.inputs * product.outputs, product.split == "column") for product in work.shapes]
    beside = sum(size for size, cut in sizes if cut) / max(sum(size for size, _ in sizes), 1)
    runs = tensor * np.where(pricing.block.sequence_parallel > 0.0, 0.5, 1.0)
    share = pricing.scenario.coefficients.time.tensor_exposed
    return tensor - runs, exposed(share, runs, beside / 2.0 * gemm)


def host_seconds(pricing: Pricing, work: Work) -> Array | float:
    """Return the host's seconds for both passes of a layer where they show: a lower bound on a pass's time (T14)."""
    profile, values = pricing.scenario.framework, pricing.scenario.coefficients.time
    shows = profile.host_paced_layers or profile.blocking_launches
    host: Array | float = shows * (work.calls - work.captured) * values.host_layer_seconds
    if not layers_are_captured(pricing.scenario):
        left = values.launches_per_layer * (work.calls - work.captured) * (not profile.compiled)
        launches = expert_launches(pricing) if work.products.routed else left
        host = np.maximum(host, values.launch_seconds * launches)
    return host


def exchange_seconds(pricing: Pricing, work: Work, beside: Hiding, index: int) -> Array:
    """Return the seconds of a pass's collectives that one kind of work may hide (T7, T8, T9); `index` 1 is backward."""
    result = np.zeros(len(pricing))
    for collective in work.collectives:
        if collective.beside == beside:
            result = result + (collective.backward if index else 1.0) * collective_seconds(pricing, collective)
    return result


@derived
def collective_seconds(pricing: Pricing, collective: Collective) -> Array:
    """Return the seconds of a forward collective, shape (n,); a reduction is `reduce_slowdown` gathers of its bytes."""
    scenario, group = pricing.scenario, group_of(pricing, collective.group)
    per_token = extent(pricing, collective.spread)
    size = collective.amount * per_token
    if collective.pattern in ("gather_each", "reduce_each"):
        size = group.size * size
    match collective.pattern:
        case "gather" | "gather_each":
            seconds = gather_seconds(scenario, group, size)
        case "reduce" | "reduce_each":
            seconds = scenario.coefficients.time.reduce_slowdown * gather_seconds(scenario, group, size)
        case "once":
            seconds = once_seconds(scenario, group, size)
        case "all_to_all":
            seconds = all_to_all_seconds(scenario, group, size)
        case "ring":
            seconds = (group.size - 1.0) * neighbour_seconds(scenario, group, size)
        case _:
            assert_never(collective.pattern)
    return np.where(per_token > 0.0, seconds, 0.0)


def attention_backward_factor(scenario: Scenario) -> float:
    """Return attention's backward time over its forward time: five products for two in flash attention (Dao 2023).

    They run slower than the forward pass's: causal bf16 of cuDNN 9.19 on H200 reaches 484 and 370, 644 and 541, 688 and
    581 TFLOP/s at 2k, 8k and 32k tokens, 1.2 times (NVIDIA/cudnn-frontend 3929da2, results/h200_919_only_cudnn).
    """
    products = 2.5 if scenario.framework.flash_attention else 2.0
    return products * scenario.coefficients.time.attention_backward_slowdown


class _Compute(NamedTuple):
    """Compute seconds of a layer's operations, shape (n,); forward, or by pass."""

    dense: Products
    """All products but routed experts'."""
    routed: Products
    adapters: Array | float
    attention: Array
    elementwise: tuple[Array, Array]
    """Memory-bound kernels, forward and backward."""


@derived
def layer_seconds(pricing: Pricing, kind: LayerKind) -> PassSeconds:
    """Price both passes of one layer; a backward pass does twice the forward's matrix products.

    Work that the stack repeats in every layer counts in the backward pass.
    """
    work = layer_work(conditions_of(pricing.scenario), kind)
    compute = _compute(pricing, work)
    attending = attention_backward_factor(pricing.scenario)
    backward = _pass(pricing, work, compute, 1, attending, 2.0)
    for share, done_again in partly_repeated(conditions_of(pricing.scenario), kind):
        repeated = _pass(pricing, done_again, _compute(pricing, done_again), 0, 1.0, 1.0)
        backward = {name: seconds + share * repeated.get(name, 0.0) for name, seconds in backward.items()}
    weights = compute.dense.weights + compute.routed.weights
    return PassSeconds(_pass(pricing, work, compute, 0, 1.0, 1.0), backward, weights)


@derived
def repeated_seconds(pricing: Pricing, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Array:
    """Return the forward seconds of the work that a recompute policy repeats in one layer, shape (n,) (T16)."""
    work = repeated_work(conditions_of(pricing.scenario), kind, mode, modules)
    return sum_parts(_pass(pricing, work, _compute(pricing, work), 0, 1.0, 1.0))


def _compute(pricing: Pricing, work: Work) -> _Compute:
    adapters: Array | float = 0.0
    if work.adapters.all:
        adapters = np.add(*product_flops(pricing, work.adapters)) / gemm_rate(pricing.scenario)
    rate = memory_rate(pricing.scenario)
    forward, (before, anew) = total(pricing, work.moved) / rate, dequantised_seconds(pricing, work)
    norms, dropped = decomposed_seconds(pricing, work) if work.decomposed else (0.0, 0.0)
    backward = 2.0 * forward + total(pricing, work.moved_backward) / rate
    return _Compute(
        dense=summed_products(pricing, work.shapes),
        routed=expert_products(pricing, work),
        adapters=adapters,
        attention=attention_seconds(pricing, work.core_width) + bounded_seconds(pricing, work),
        elementwise=(forward + before + norms, backward + anew + dropped),
    )


def _pass(  # noqa: PLR0913, PLR0917  a pass is its work and how often it does each kind
    pricing: Pricing, work: Work, compute: _Compute, index: int, attending: float, repeats: float
) -> Parts:
    """Return the seconds by part of one pass; `index` 0 is the forward, 1 the backward pass."""
    scenario, block, values = pricing.scenario, pricing.block, pricing.scenario.coefficients.time
    gemm, experts = compute.dense.passes[index], compute.routed.passes[index]
    attention = attending * compute.attention
    tensor = exchange_seconds(pricing, work, "products", index)
    # Products lose time to overlapped collectives: smaller pieces, shared units (T7).
    products, lost = experts + gemm, np.zeros(len(pricing))
    if scenario.framework.functional_collectives:
        gathers = scatters = tensor / 2.0
        if scenario.framework.tp_comm_overlap:
            gathers = exposed(values.tensor_exposed, gathers, gemm)
        tensor = gathers + scatters
        products = products + gathers
    elif scenario.framework.tp_comm_overlap:
        tensor = _overlapped(pricing, work, index)
        products = products + tensor
        lost = np.where(block.tensor_parallel > 1.0, values.overlap_slowdown * gemm, 0.0)
    elif index and scenario.framework.overlap_tensor_gradients:
        alone, left = beside_weight_gradients(pricing, work, tensor, gemm)
        tensor, products = alone + left, products + left
    passed = (context_ranks(pricing) - 1.0) / np.maximum(block.context_parallel - 1.0, 1.0)
    ring, first_block = (
        passed * exchange_seconds(pricing, work, name, index) for name in ("core_attention", "first_block")
    )
    context = (
        exposed(values.context_exposed, ring, attention)
        + exposed(values.context_exposed, first_block, attention / block.context_parallel)
        + exchange_seconds(pricing, work, "attention_apart", index)
    )
    tensor = tensor + exchange_seconds(pricing, work, "nothing", index)
    parts: Parts = {
        "gemm": gemm + experts + compute.adapters * repeats,
        "attention": attention,
        "memory_bound": compute.elementwise[index] + copy_seconds(pricing, work),
        "tensor_parallel": tensor,
        "overlap": lost,
        "context_parallel": context,
        "ring_attention": repeats * ring_seconds(pricing, work),
    }
    if work.products.routed:
        exchange = exchange_seconds(pricing, work, "experts", index)
        waiting = (block.expert_ranks > 1.0) & (not passes_are_captured(scenario))
        waits = np.where(waiting, values.expert_wait_seconds / 2.0, 0.0)
        if scenario.framework.overlap_expert_exchange:
            # Exposed seconds of other collectives hide this exchange too.
            exchange = exposed(values.expert_exposed, exchange, products + attention + context)
            waits = values.expert_wait_exposed * waits
        parts["expert_parallel"] = exchange + waits
    split = np.where(block.tensor_parallel > 1.0, values.tensor_overhead_seconds / 2.0, 0.0)
    calls = work.calls - values.captured_launch_share * work.captured
    parts["overhead"] = calls * (values.layer_overhead_seconds / 3.0 * repeats + split)
    host = host_seconds(pricing, work) / 3.0 * repeats
    beside = 0.0 if scenario.framework.blocking_launches else sum_parts(parts)
    parts["overhead"] = parts["overhead"] + np.maximum(host - beside, 0.0)
    return parts


def _overlapped(pricing: Pricing, work: Work, index: int) -> Array:
    """Return the exposed seconds of tensor-parallel collectives, each overlapped with its operation's product (T10).

    Gathers of products' inputs move 8 bits under fp8, 16 under fp4 (Megatron-LM d98e8a6, training/initialize.py).
    """
    share, nothing = pricing.scenario.coefficients.time.tensor_exposed, np.zeros(len(pricing))
    left = nothing
    is_fp8 = pricing.scenario.precision == "fp8"
    narrow = narrow_element_bytes(pricing.scenario) / element_bytes(pricing.scenario) if is_fp8 else 1.0
    for collective, products in work.paired:
        # In backward, a gather's scatter overlaps the weights' gradient, a scatter's gather the inputs' gradient.
        gather = collective.pattern == "gather"
        name = ("weights" if gather else "inputs") if index else "forward"
        seconds = (getattr(product_passes(pricing, product), name) for product in products)
        size = (collective.backward if index else 1.0) * (narrow if gather != bool(index) else 1.0)
        exchange = size * collective_seconds(pricing, collective)
        left = left + exposed(share, exchange, sum(seconds, nothing))
    return left


def attention_seconds(pricing: Pricing, width: float) -> Array:
    """Return the forward seconds of attention's products, over the causal half of the scores or, unfused, all (T4)."""
    scenario, values = pricing.scenario, pricing.scenario.coefficients.time
    scores = extent(pricing, "scores")
    if not width:
        return np.zeros_like(scores)
    heads = float(scenario.model.num_attention_heads)
    narrow = attention_share(scenario)
    counted = heads * (narrow * counted_head_width(scenario, width / heads) + values.attention_score_width)
    tiles = 1.0 + attention_tile_tokens(scenario) / kernel_tokens(pricing)
    half = 1.0 if scenario.framework.flash_attention else 2.0
    return half * 2.0 * counted * scores / attention_rate(scenario) * tiles


def kernel_tokens(pricing: Pricing) -> Array:
    """Return the tokens over which attention cuts its tiles, shape (n,): `3 s / (c + 2)` in a ring of c (T4).

    A kernel sees the tokens of a ring step, `s / c`; c - 1 of c steps have no causal mask, and short loops cost a third
    as much there: cuDNN 9.19 on H200 reaches 535, 587 and 619 TFLOP/s at 2k, 4k and 8k tokens, 630 at most.
    """
    ring = np.maximum(context_ranks(pricing) / inner_context(pricing), 1.0)
    return 3.0 * attended_tokens(pricing) / (ring + 2.0)


def bounded_seconds(pricing: Pricing, work: Work) -> Array | float:
    """Return the forward seconds of windowed attention, with more cut tiles per score, and of linear mixers (T5)."""
    scenario, seconds = pricing.scenario, np.zeros(len(pricing))
    if work.core_flops:
        seconds = work.core_flops * extent(pricing, "tensor") / attention_rate(scenario)
    tile, kernel = attention_tile_tokens(scenario), kernel_tokens(pricing)
    for window, width in work.windows:
        cut = (1.0 + tile / np.minimum(window.tokens, kernel)) / (1.0 + tile / kernel)
        whole = attention_seconds(pricing, width)
        seconds = seconds + whole * (mean_attended_share(scenario, window) * cut)
    return seconds


def copy_seconds(pricing: Pricing, work: Work) -> Array:
    """Return the seconds of copies around a pass's tensor-parallel functional collectives.

    Along a dimension other than the first, gathered tensors are split and joined afterwards, and scattered ones before:
    each is read and written in full (PyTorch 2.5 torch/distributed/_functional_collectives.py, `all_gather_tensor` and
    `reduce_scatter_tensor`). Eager DTensor moves more, which no document counts.
    """
    scenario = pricing.scenario
    if not scenario.framework.functional_collectives:
        return np.zeros(len(pricing))
    gathered = sum(part.amount for part in work.collectives if part.group == "tensor" and part.beside == "products")
    passes = 2.0 + (0.0 if scenario.framework.compiled else scenario.coefficients.time.functional_copies)
    seconds = passes * gathered * extent(pricing, "whole") / memory_rate(scenario)
    return np.where(pricing.block.tensor_parallel > 1.0, seconds, 0.0)


def ring_seconds(pricing: Pricing, work: Work) -> Array:
    """Return the forward seconds of merging the partial results of a ring's later steps, bound by memory (T8)."""
    scenario, block = pricing.scenario, pricing.block
    if not any(part.group.startswith("context") and part.beside != "attention_apart" for part in work.collectives):
        return np.zeros(len(pricing))
    steps = np.maximum(context_ranks(pricing) / inner_context(pricing) - 1.0, 0.0)
    queries = tokens_per_device(pricing) * scenario.model.query_width / block.tensor_parallel
    moved = scenario.coefficients.time.ring_bytes_per_query_element * queries
    return steps * moved / memory_rate(scenario)


@derived
def projection_seconds(pricing: Pricing) -> PassSeconds:
    """Return the seconds of the projection that joins embedding and hidden state in a prediction module."""
    scenario, hidden = pricing.scenario, float(pricing.scenario.model.hidden_size)
    shape = ProductShape(tokens_per_device(pricing), hidden / pricing.block.tensor_parallel, 2.0 * hidden)
    element = element_bytes(scenario)
    products = product_seconds(scenario, gemm_rate(scenario), shape, element, element)
    forward, backward = products.passes
    return PassSeconds({"gemm": forward}, {"gemm": backward}, products.weights)


@derived
def head_seconds(pricing: Pricing) -> PassSeconds:
    """Return the seconds of the output layer and the loss: products and passes over the logits (T15)."""
    scenario, block = pricing.scenario, pricing.block
    labelled, outputs = labelled_tokens(pricing), scenario.outputs_per_token / block.tensor_parallel
    trained = scenario.trains("output")
    shape = ProductShape(labelled, outputs, float(scenario.model.hidden_size), trained=trained)
    element = element_bytes(scenario)
    products = product_seconds(scenario, output_rate(scenario), shape, element, element)
    per_logit = 16.0 if scenario.framework.fused_cross_entropy else float(scenario.framework.loss_traffic_bytes)
    passes = per_logit / 2.0 * logits_per_micro_batch(pricing) / memory_rate(scenario)
    ends = scenario.coefficients.time.tensor_ends_overhead_seconds / 2.0
    around = passes + np.where(block.tensor_parallel > 1.0, ends, 0.0)
    forward, backward = products.passes
    parts = {"vocabulary": forward + around}, {"vocabulary": backward + around}
    if not scenario.framework.vocabulary_parallel_loss:
        # Every rank slices its own part of the gradient: nothing is sent back.
        whole = element * labelled * scenario.outputs_per_token
        parts[0]["tensor_parallel"] = gather_seconds(scenario, tensor_group(block), whole)
        parts[1]["tensor_parallel"] = np.zeros(len(pricing))
    return PassSeconds(*parts, products.weights)


@derived
def table_seconds(pricing: Pricing) -> PassSeconds:
    """Return the seconds of the input table: the lookup, and a gradient of the table's size (T15)."""
    scenario, model = pricing.scenario, pricing.scenario.model
    element = element_bytes(scenario)
    looked_up = 2.0 * element * model.hidden_size * tokens_per_device(pricing) / memory_rate(scenario)
    if not scenario.trains("embedding"):
        return PassSeconds({"vocabulary": looked_up}, {"vocabulary": np.zeros(len(pricing))})
    added = 0.0 if scenario.framework.fully_shard else element + 2.0 * gradient_bytes(scenario)
    parameters = model.vocab_size * float(model.hidden_size) / pricing.block.tensor_parallel
    gradient = (element + added) * parameters / memory_rate(scenario)
    return PassSeconds({"vocabulary": looked_up}, {"vocabulary": gradient + looked_up})
