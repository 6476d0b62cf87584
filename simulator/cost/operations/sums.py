"""Sums over operations: parameters of a model, work of a layer, and what turns a figure per token into bytes or counts.

A norm's output has 2 h bytes a token and the spread `sequence`: a device holds 2 h bytes times `extent(pricing,
"sequence")`, the tokens of its micro batch over its sequence-parallel group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal, assert_never, cast

import numpy as np

from simulator.cost.derived import Pricing, of_sizes, of_work, remembered
from simulator.cost.operations.blocks import adapted, decomposed, embedding, inputs, merges_experts, output_layer
from simulator.cost.operations.layer import layer_operations, shared_repeats
from simulator.cost.operations.recompute import Modules, repeated
from simulator.cost.operations.record import (
    Collective,
    Conditions,
    CopySpread,
    HeadSpread,
    Operation,
    Split,
    Spread,
    Weight,
    Window,
    summed,
)
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind, ModelSpec
from simulator.question.specs.optimizers import TensorClass
from simulator.question.vocabulary import RecomputeMode
from simulator.records import NamedTuple, Record, replace


@of_sizes
def micro_batches(pricing: Pricing) -> Array:
    """Return m, the micro batches per step on one replica, `B / (b d)`, shape (n,)."""
    block = pricing.block
    return pricing.scenario.global_batch_size / (block.micro_batch_size * block.data_parallel)


def context_ranks(pricing: Pricing) -> Array:
    """Return the context-parallel ranks of a token, shape (n,): all, or the mean of those of its sample (T27).

    Dynamic packing gives a sample the fewest ranks, a power of two, that hold it with `package / c` tokens each.
    """
    lengths, context = pricing.scenario.lengths, pricing.block.context_parallel
    if lengths is None or lengths.batching != "packed_dynamic" or lengths.bound:
        return context
    tokens, shares = lengths.segments(1)
    filled = np.outer(tokens, context) / lengths.package
    ranks = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(filled, 1.0))), context)
    return np.asarray(tokens * shares @ ranks / lengths.segments(1).mean)


@of_work
def tokens_per_device(pricing: Pricing) -> Array:
    """Return T, the tokens of one micro batch on a device, `b s / cp` for every sequence in a sample, shape (n,)."""
    return sequences(pricing) * sequence_tokens(pricing) / pricing.block.context_parallel


def sequence_tokens(pricing: Pricing) -> Array | float:
    """Return s, the tokens of a sequence: of the fullest micro batch, or of the mean one where lengths differ (T27)."""
    lengths = pricing.scenario.lengths
    if lengths is None or not lengths.averaged:
        return float(pricing.scenario.seq_length)
    return _by_size(pricing, lengths.sequence)


def attended_tokens(pricing: Pricing) -> Array | float:
    """Return the tokens that a token attends to: s, or mean square over mean of what attends to itself (T27).

    Attention that computes all scores of a sequence does not tell packed samples apart.
    """
    lengths = pricing.scenario.lengths
    if lengths is None or not lengths.averaged:
        return float(pricing.scenario.seq_length)
    if lengths.packs and not pricing.scenario.framework.flash_attention:
        return float(lengths.package)
    return _by_size(pricing, lambda size: lengths.segments(size).attended)


def _by_size(pricing: Pricing, figure: Callable[[int], float]) -> Array:
    """Return a figure of the micro batch size of every layout, shape (n,)."""
    sizes, kind = np.unique(pricing.block.micro_batch_size, return_inverse=True)
    values: Array = np.array([figure(int(size)) for size in sizes])[kind]
    return values


def sequences(pricing: Pricing) -> Array:
    """Return the sequences of one micro batch, shape (n,); preference training has two per sample."""
    return pricing.block.micro_batch_size * float(pricing.scenario.framework.sequences_per_sample)


def sequence_split(block: LayoutBlock) -> Array:
    """Return the ranks that share tensors between tensor-parallel regions: t with sequence parallelism, else 1."""
    return np.where(block.sequence_parallel > 0, block.tensor_parallel, 1.0)


def routed_tokens(pricing: Pricing) -> Array:
    """Return the token copies that a device's experts process per micro batch and layer, shape (n,).

    Each device owns T / t tokens (all T without sequence parallelism) and sends k copies of each; balanced routing
    returns as many. Expert tensor parallelism gathers the copies of its group; without sequence parallelism these hold
    the same tokens already. `expert_imbalance` scales the busiest rank.
    """
    scenario, block = pricing.scenario, pricing.block
    split = sequence_split(block)
    copies = tokens_per_device(pricing) / split * scenario.model.num_experts_per_tok
    gathered = np.where((split > 1.0) | (block.tensor_parallel == 1.0), block.expert_tensor_parallel, 1.0)
    return copies * gathered * scenario.framework.expert_imbalance


def inner_context(pricing: Pricing) -> Array:
    """Return the context-parallel ranks that exchange tokens for heads, shape (n,): 1, all, or those of a node."""
    profile, block = pricing.scenario.framework, pricing.block
    context = block.context_parallel
    match profile.cp_communication:
        case "all_to_all":
            return context
        case "all_to_all_ring":
            joined = float(pricing.scenario.hardware.joined_devices(pricing.scenario.devices))
            node = np.floor_divide(joined, block.tensor_parallel)
            inside = float(profile.cp_inner_degree) if profile.cp_inner_degree else np.maximum(node, 1.0)
            return np.minimum(inside, context)
        case _:
            return np.ones_like(context)


def expected_islands(model: ModelSpec, islands: Array) -> Array:
    """Return the expected number of `islands` (ranks or nodes) with a token's experts, shape (n,) (T9)."""
    values, kind = np.unique(islands, return_inverse=True)
    expected: Array = np.array([_islands(model, float(each)) for each in values])[kind]
    return expected


def _islands(model: ModelSpec, islands: float) -> float:
    experts, chosen, groups, used = model.num_experts, model.num_experts_per_tok, model.n_group, model.topk_group
    if not groups:
        return _reached(islands, chosen, experts)
    if islands <= groups:
        return _reached(islands, used, groups)
    return _reached(islands * used / groups, chosen, experts * used / groups)


def _reached(islands: float, chosen: float, members: float) -> float:
    """Return `n [1 - C(E - E/n, K) / C(E, K)]`: islands of E/n members that K distinct members reach (T9)."""
    missed, part = 1.0, members / islands
    for drawn in range(int(chosen)):
        missed *= max(members - part - drawn, 0.0) / (members - drawn)
    return islands * (1.0 - missed)


def local_sides(pricing: Pricing, matrix: Weight) -> tuple[Array, Array]:
    """Return the inputs and outputs of a device's part of a matrix, each of shape (n,)."""
    block = pricing.block
    inputs, outputs = (np.full(len(block), float(side)) for side in (matrix.inputs, matrix.outputs))
    cut = block.expert_tensor_parallel if matrix.routed else block.tensor_parallel
    if matrix.split.endswith("row"):
        return inputs / cut, outputs
    return inputs, outputs if matrix.split == "replicated" else outputs / cut


def on_device(pricing: Pricing, matrix: Weight) -> Array:
    """Return how many matrices like one a device has, shape (n,): its share of the experts, or one."""
    ranks = pricing.block.expert_parallel if matrix.routed else 1.0
    return np.full(len(pricing), float(matrix.copies)) / ranks


def total(pricing: Pricing, amounts: Mapping[Spread, float]) -> Array:
    """Return the sum of amounts times their extents, in their order, shape (n,)."""
    result: Array | None = None
    for spread, amount in amounts.items():
        part = amount * extent(pricing, spread)
        result = part if result is None else result + part
    return np.zeros(len(pricing)) if result is None else result


@of_work
def extent(pricing: Pricing, spread: Spread) -> Array:
    """Return the factor of a number per token on a device, shape (n,); see `Spread`."""
    sequence, block = sequence_tokens(pricing), pricing.block
    match spread:
        case "whole":
            result = tokens_per_device(pricing)
        case "unsplit":
            unsplit = (block.tensor_parallel > 1.0) & (block.sequence_parallel == 0)
            result = unsplit * extent(pricing, "whole")
        case "sequence":
            result = extent(pricing, "whole") / sequence_split(block)
        case "scattered":
            result = np.where(block.tensor_parallel > 1.0, extent(pricing, "sequence"), 0.0)
        case "tensor":
            result = extent(pricing, "whole") / block.tensor_parallel
        case "tensor_exchanged":
            result = np.where(block.context_parallel > 1.0, extent(pricing, "tensor"), 0.0)
        case "scores":
            result = extent(pricing, "tensor") * attended_tokens(pricing)
        case "positions":
            result = sequence / block.context_parallel
        case "copies" | "copies_exchanged" | "copies_tensor" | "reached" | "pooled" | "pooled_choices":
            result = _of_copies(pricing, spread)
        case _:
            result = _by_heads(pricing, spread)
    return result


def _of_copies(pricing: Pricing, spread: CopySpread) -> Array:
    """Return an extent by the token copies that experts process."""
    scenario, block = pricing.scenario, pricing.block
    match spread:
        case "copies":
            return routed_tokens(pricing)
        case "copies_exchanged":
            return np.where(block.expert_parallel > 1.0, extent(pricing, "copies"), 0.0)
        case "copies_tensor":
            return extent(pricing, "copies") / block.expert_tensor_parallel
        case "reached":
            ranks = expected_islands(scenario.model, block.expert_ranks)
            return extent(pricing, "sequence") * ranks * scenario.framework.expert_imbalance
        case "pooled":
            return extent(pricing, "sequence") * block.expert_ranks
        case "pooled_choices":
            return extent(pricing, "sequence") * block.expert_tensor_parallel
    assert_never(spread)


def _by_heads(pricing: Pricing, spread: HeadSpread) -> Array:
    """Return an extent by the key-value heads of attention (M5)."""
    scenario, block = pricing.scenario, pricing.block
    sliding = spread == "window" or spread.startswith("sliding")
    shared = float(scenario.model.heads("sliding" if sliding else "grouped_query").shared)
    gathers, whole = block.tensor_parallel > shared, extent(pricing, "whole")
    held = whole / np.minimum(block.tensor_parallel, shared)
    match spread:
        case "key_value" | "sliding_key_value":
            return held
        case "projection" | "sliding_projection":
            return np.where(gathers, whole, extent(pricing, "tensor"))
        case "gathered" | "sliding_gathered":
            return np.where(gathers, whole, 0.0)
        case "ring" | "sliding_ring":
            return np.where(block.context_parallel > 1.0, held, 0.0)
        case "key_value_context" | "sliding_key_value_context":
            return np.where(block.context_parallel > 1.0, block.context_parallel * held, 0.0)
        case "window":
            halo = 2.0 * sequences(pricing) * float(cast("int", scenario.model.sliding_window))
            passed = halo / np.maximum(block.context_parallel - 1.0, 1.0)
            return np.minimum(passed * held / whole, held)
    assert_never(spread)


class WeightTotals(Record):
    """Parameters of a group of weights, by how they are split."""

    split: float = 0.0
    """Split over the tensor-parallel group (column, row and vocabulary splits)."""
    replicated: float = 0.0
    """Replicated on every tensor-parallel rank (norms, router, low-rank down projections)."""
    routed: float = 0.0
    """Routed experts: split over expert parallel x expert tensor parallel."""

    def __add__(self, other: WeightTotals) -> WeightTotals:
        return WeightTotals(self.split + other.split, self.replicated + other.replicated, self.routed + other.routed)

    @property
    def all(self) -> float:
        """Return the parameters of every class."""
        return self.split + self.replicated + self.routed


def weights_of(operations: Iterable[Operation]) -> tuple[Weight, ...]:
    """Return the weights of operations, in order."""
    return tuple(weight for operation in operations for weight in operation.weights)


CountedWeights = TensorClass | Literal["parameters", "products", "sides"]
"""What to count: parameters, all, of matrix products or of a tensor class; rows and columns of matrices."""


@lru_cache(maxsize=1024)
def weight_totals(operations: tuple[Operation, ...], counted: CountedWeights = "parameters") -> WeightTotals:
    """Return the parameters (or what else is `counted`) of operations by class."""
    result = WeightTotals()
    for operation in operations:
        for weight in operation.weights:
            result += classed(weight, float(_counted(operation, weight, counted)))
    return result


def _counted(operation: Operation, weight: Weight, counted: CountedWeights) -> int:
    match counted:
        case "sides":
            return weight.copies * (weight.inputs + weight.outputs) if weight.inputs > 1 else 0
        case "parameters":
            counts = True
        case "products":
            counts = weight.matmul
        case _:
            counts = tensor_class(operation, weight) == counted
    return weight.parameters if counts else 0


def tensor_class(operation: Operation, weight: Weight) -> TensorClass:
    """Return the optimizer's tensor class of a weight."""
    if weight.inputs == 1:
        return "vector"
    return "embedding" if operation.group in ("embedding", "output") else "matrix"


@remembered
def adapters_of(conditions: Conditions, operations: tuple[Operation, ...], below: float = np.inf) -> WeightTotals:
    """Return the LoRA parameters on the target weights: rank x (inputs + outputs), split as the weight is.

    DoRA's magnitudes are as many as outputs. Of those with `below` numbers or more none count.

    Megatron and Paddle split one of the two adapter matrices with the weight and replicate the other, on the unsplit
    side. A joint product has one adapter.
    """
    rank, result = conditions.lora_rank or 0, WeightTotals()
    magnitudes = float(conditions.framework.decomposed_adapters != "none")
    for operation, weight, leads in adapted(conditions, operations) if rank else ():
        first, second = (float(rank * side) for side in (weight.inputs, weight.outputs))
        first = 0.0 if not leads or first >= below else first * weight.copies
        second = 0.0 if second >= below else second * weight.copies
        second += magnitudes * weight.outputs * weight.copies * (weight.outputs < below)
        if weight.routed and merges_experts(conditions):  # what reads one input has one adapter of their ranks' sum
            second *= sum(each.matmul and each.split == weight.split for each in operation.weights)
        if weight.split == "column":
            result += WeightTotals(split=second, replicated=first)
        elif weight.split == "row":
            result += WeightTotals(split=first, replicated=second)
        else:
            result += classed(weight, first + second)
    return result


def classed(weight: Weight, parameters: float) -> WeightTotals:
    """Return parameters as totals, under the class of a weight."""
    if weight.routed:
        return WeightTotals(routed=parameters)
    return WeightTotals(replicated=parameters) if weight.split == "replicated" else WeightTotals(split=parameters)


@remembered
def saved_amounts(conditions: Conditions, kind: LayerKind) -> Mapping[Spread, float]:
    """Return the bytes that a layer saves when nothing is recomputed, by spread."""
    return summed(tensor for operation in layer_operations(conditions, kind) for tensor in operation.saved)


def core_width(operations: Iterable[Operation]) -> float:
    """Return the width of attention's two products per token and score, where all scores are computed."""
    return sum(operation.core_width for operation in operations if operation.core_window is None)


def attended_share(seq_length: float, window: Window) -> float:
    """Return the share of the causal scores in a window, `(s w - w^2 / 2) / (s^2 / 2)`, or in chunks, `w / s` (T5)."""
    if window.tokens >= seq_length:
        return 1.0
    if window.chunked:
        return window.tokens / seq_length
    return (seq_length * window.tokens - window.tokens**2 / 2.0) / (seq_length**2 / 2.0)


def mean_attended_share(scenario: Scenario, window: Window) -> float:
    """Return the share of the causal scores in a window or in chunks, over all samples where lengths differ (T27)."""
    if scenario.lengths is None:
        return attended_share(scenario.seq_length, window)
    tokens, shares = scenario.lengths.segments(1)
    scores = shares * tokens**2
    return float(
        sum(score * attended_share(each, window) for each, score in zip(tokens, scores, strict=True)) / sum(scores)
    )


def chosen_parameters(model: ModelSpec, totals: WeightTotals) -> WeightTotals:
    """Return the parameters that one token uses: of routed experts the k chosen ones."""
    if not model.is_moe:
        return totals
    return replace(totals, routed=totals.routed * model.num_experts_per_tok / model.num_experts)


@lru_cache(maxsize=256)
def total_parameters(model: ModelSpec) -> int:
    """Return the parameters of the main model: a tied table once, no MTP module."""
    conditions = Conditions(model)
    ends = _count(output_layer(conditions)) + _count(inputs(conditions)) + _table_apart(conditions)
    return _over_layers(conditions, _count) + ends


def active_parameters(model: ModelSpec, *, include_input_embedding: bool) -> int:
    """Return the parameters that one token uses: of routed experts only the chosen ones.

    A tied table is the head, so it always counts; an untied input table counts with `include_input_embedding` only.
    Publishers use both conventions.
    """
    conditions = Conditions(model)

    def used(operations: tuple[Operation, ...]) -> int:
        chosen = (w._replace(copies=model.num_experts_per_tok) if w.routed else w for w in weights_of(operations))
        return sum(weight.parameters for weight in chosen)

    table = _table_apart(conditions) + _count(inputs(conditions)) if include_input_embedding else 0
    return _over_layers(conditions, used) + _count(output_layer(conditions)) + table


def _count(operations: tuple[Operation, ...]) -> int:
    return sum(weight.parameters for weight in weights_of(operations))


def _over_layers(conditions: Conditions, measure: Callable[[tuple[Operation, ...]], int]) -> int:
    counts = conditions.model.layer_counts
    return sum(layers * measure(layer_operations(conditions, kind)) for kind, layers in counts.items())


def _table_apart(conditions: Conditions) -> int:
    """Return the parameters of an untied input table."""
    return 0 if conditions.model.tie_word_embeddings else _count((embedding(conditions),))


class Product(NamedTuple):
    """A matrix product of tokens with one weight, or with several side by side, unsharded."""

    inputs: int
    """Number of input features."""
    outputs: int
    """Number of output features."""
    split: Split
    """Axis that tensor parallelism splits."""


class Work(NamedTuple):
    """Sums over operations, per token."""

    products: WeightTotals
    """Parameters of the matrix products, with all routed experts."""
    chosen: WeightTotals
    """The same with only the chosen routed experts."""
    shapes: tuple[Product, ...]
    """Products without routed experts."""
    grouped: tuple[Product, ...]
    """Products of one routed expert."""
    adapters: WeightTotals
    """LoRA parameters on those products; 0 without adapters."""
    decomposed: tuple[Weight, ...]
    """Weights whose adapters have magnitudes (DoRA)."""
    core_width: float
    """Width of attention's two products over all scores."""
    windows: tuple[tuple[Window, float], ...]
    """Bounds and widths of bounded attention."""
    core_flops: float
    """Forward FLOP of mixers whose work does not grow with the sequence."""
    moved: Mapping[Spread, float]
    """Bytes of memory-bound kernels in a forward pass."""
    moved_backward: Mapping[Spread, float]
    """Further bytes of such kernels in a backward pass, beside twice `moved`."""
    collectives: tuple[Collective, ...]
    paired: tuple[tuple[Collective, tuple[Product, ...]], ...]
    """Tensor-parallel collectives with the products of their own operation."""
    calls: float
    """Share of a layer's launches and small kernels."""
    captured: float
    """Part of `calls` inside CUDA graphs."""


@remembered
def layer_work(conditions: Conditions, kind: LayerKind) -> Work:
    """Return the work of a whole layer."""
    return _work(conditions, layer_operations(conditions, kind))


@remembered
def repeated_work(conditions: Conditions, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> Work:
    """Return the work that a recompute policy repeats in a layer: `full` the layer, `none` nothing."""
    return _work(conditions, repeated(conditions, kind, mode, modules))


@remembered
def partly_repeated(conditions: Conditions, kind: LayerKind) -> tuple[tuple[float, Work], ...]:
    """Return the work repeated in a share of the layers, with that share."""
    return tuple((share, _work(conditions, again)) for share, again in shared_repeats(conditions, kind))


def _work(conditions: Conditions, operations: tuple[Operation, ...]) -> Work:
    products = weight_totals(operations, "products")
    return Work(
        products=products,
        chosen=chosen_parameters(conditions.model, products),
        shapes=_shapes(conditions, operations, routed=False),
        grouped=_shapes(conditions, operations, routed=True),
        adapters=adapters_of(conditions, operations),
        decomposed=decomposed(conditions, operations),
        core_width=core_width(operations),
        windows=tuple(
            (operation.core_window, operation.core_width)
            for operation in operations
            if operation.core_window is not None
        ),
        core_flops=sum(operation.core_flops for operation in operations),
        moved=summed(amount for operation in operations for amount in operation.moved),
        moved_backward=summed(amount for operation in operations for amount in operation.moved_backward),
        collectives=tuple(collective for operation in operations for collective in operation.collectives),
        paired=tuple(
            (collective, _shapes(conditions, (operation,), routed=False))
            for operation in operations
            for collective in operation.collectives
            if collective.beside == "products"
        ),
        calls=sum(operation.calls for operation in operations),
        captured=sum(operation.captured for operation in operations),
    )


def _shapes(conditions: Conditions, operations: tuple[Operation, ...], *, routed: bool) -> tuple[Product, ...]:
    """Return the products of operations; weights with the same inputs and split are one product if fused."""
    fused, products = conditions.framework.fused_projections, list[Product]()
    for operation in operations:
        outputs: Counter[tuple[str, int, Split]] = Counter()
        for weight in operation.weights:
            if weight.matmul and weight.routed == routed:
                outputs["" if fused else weight.name, weight.inputs, weight.split] += weight.outputs
        products += (Product(inputs, width, split) for (_, inputs, split), width in outputs.items())
    return tuple(products)
