"""Products and kernels: their FLOP and bytes from the operations, and the rates at which a device does them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias, cast

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.dtypes import FP32, element_bytes, gradient_bytes, narrow_element_bytes, quantised_bytes
from simulator.cost.operations.attention import composed
from simulator.cost.operations.blocks import (
    decomposing,
    keeps_inputs,
    merges_experts,
    multiplies_dropped,
    output_layer,
    prediction,
)
from simulator.cost.operations.recompute import Modules
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import (
    Product,
    WeightTotals,
    Work,
    chosen_parameters,
    extent,
    layer_work,
    local_sides,
    mean_attended_share,
    on_device,
    partly_repeated,
    repeated_work,
    sequence_split,
    weight_totals,
)
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LayerKind
from simulator.question.vocabulary import NARROW, AttentionKernel, RecomputeMode
from simulator.records import NamedTuple

_WIDEST_HEAD = 256  # widest head for which TransformerEngine takes cuDNN or FlashAttention 3 (utils.py at d0067d0)
_LOADED_BYTES = 16  # alignment of the operand rows that tensor cores load


def attention_kernel(scenario: Scenario) -> AttentionKernel:
    """Return the attention kernel: the stack's, or the device's own where heads are not too wide for it.

    PyTorch takes cuDNN first on Hopper and Blackwell if it is newer than 9.15, which 2.11 brings (pytorch 001f694,
    native/transformers/cuda/sdp_utils.cpp, `check_prefer_cudnn_attention`).
    """
    profile = scenario.framework
    own, stated = scenario.hardware.attention_kernel or "flash_2", profile.attention_kernel
    if not profile.flash_attention or composed(conditions_of(scenario), "grouped_query"):
        return "unfused"
    fits = own != "flash_3" or scenario.model.head_dim <= _WIDEST_HEAD
    if stated in ("device", "math"):
        return own if fits else "flash_2"
    if stated == "sdpa":
        return "flash_3" if own == "flash_3" and fits else "sdpa_flash"
    return cast("AttentionKernel", stated)


def attention_rate(scenario: Scenario) -> float:
    """Return the FLOP/s of attention; 16 bit also under fp8 (T4).

    FlashAttention 1 and 2 and PyTorch's kernel use the instructions of Ampere, which do not reach a later device's
    peak.
    """
    values, earlier = scenario.coefficients.time, scenario.hardware.earlier_kernels
    reach = 1.0 if earlier is None else earlier.value
    match attention_kernel(scenario):
        case "unfused":
            # Tensor cores load rows of multiples of 16 bytes (NVIDIA, Matrix Multiplication Background User's Guide,
            # "Requirements to use Tensor Cores"); other products of single heads run at the rate of fp32 units, as
            # PyTorch accumulates 16-bit products in fp32, and products of fp32 (M41). Fused kernels pad a head.
            wide = composed(conditions_of(scenario), "grouped_query")
            if wide or element_bytes(scenario) * scenario.model.head_dim % _LOADED_BYTES:
                return fp32_rate(scenario) * values.attention_unaligned
            share = values.attention_efficiency_unfused
        case "flash_1":
            share = reach * values.attention_efficiency_flash_1
        case "sdpa_flash":
            share = reach * values.attention_efficiency_sdpa
        case "flash_2":
            share = reach * values.attention_efficiency
        case "flash_3" | "aiter":
            share = values.attention_efficiency_flash_3
        case "ck":
            share = values.attention_efficiency_ck
        case "npu":
            share = values.attention_efficiency_npu
    return usual_rate(scenario, wide_precision(scenario)) * share


def attention_tile_tokens(scenario: Scenario) -> float:
    """Return the tokens of further sequence that attention's cut tiles and short loops cost, by kernel (T4).

    Both passes of cuDNN 9.19 on H200 reach 397, 502, 567 and 603 TFLOP/s at 2k to 16k tokens, and of 9.22 on GB200 936,
    1212, 1393 and 1418 (NVIDIA/cudnn-frontend 3929da2, benchmark/sdpa_benchmark_training/results): 1,100 tokens; those
    of FlashAttention 2 on A100 133 and 189 at 1k and 16k (Dao 2023): 450.
    """
    values = scenario.coefficients.time
    match attention_kernel(scenario):
        case "flash_3" | "ck" | "aiter":
            return values.attention_tile_tokens_flash_3
        case "unfused" | "npu":
            return 0.0
        case _:
            return values.attention_tile_tokens


def counted_head_width(scenario: Scenario, width: float) -> Array | float:
    """Return the head width that attention's products are timed with.

    Assumption for fused attention on NPUs: the vector work per score (maximum, exponent and sum) is no less in a
    narrower head. Models with heads of 64 on the page of MindSpeed-LLM v1.0.RC3.0 run as if theirs were 128 wide; no
    table of measured rows has such heads, and no document of CANN gives the width from which the products decide.
    """
    on_npu = scenario.framework.flash_attention and scenario.hardware.attention_kernel == "npu"
    return np.maximum(width, scenario.coefficients.time.attention_npu_head_width) if on_npu else width


def wide_precision(scenario: Scenario) -> str:
    """Return the 16-bit type of attention and output layer, which fp8 leaves alone."""
    return "bf16" if scenario.precision in NARROW else scenario.precision


def fp32_rate(scenario: Scenario) -> float:
    """Return the peak of fp32 units: a sixteenth where a data sheet omits it, as on A100 (19.5 of 312 TFLOP/s)."""
    peaks = scenario.hardware.peak_flops_per_second
    return peaks.get("fp32", peaks[wide_precision(scenario)] / 16.0)


def usual_rate(scenario: Scenario, precision: str) -> float:
    """Return the FLOP/s to which efficiencies apply: the peak, scaled by the measured reach of large products (T2)."""
    return scenario.hardware.peak(precision) * scenario.hardware.reach(precision)


def gemm_rate(scenario: Scenario) -> float:
    """Return the FLOP/s of the layers' matrix products (T2)."""
    if scenario.precision in NARROW:
        return usual_rate(scenario, scenario.precision) * scenario.coefficients.time.gemm_efficiency_fp8
    return wide_gemm_rate(scenario)


def wide_gemm_rate(scenario: Scenario) -> float:
    """Return the FLOP/s of products that stay in 16 bits under fp8."""
    return usual_rate(scenario, wide_precision(scenario)) * scenario.coefficients.time.gemm_efficiency


def memory_rate(scenario: Scenario) -> float:
    """Return the bytes per second of elementwise kernels (T6)."""
    return scenario.hardware.memory_bandwidth_bytes_per_second * scenario.coefficients.time.memory_efficiency


def _flops_per_token(scenario: Scenario, work: Work) -> float:
    """Return the forward FLOP per token of operations: `2 x matmul parameters + 4 s h`, and linear mixers' (T1, T5)."""
    return 2.0 * work.chosen.all + _score_flops_per_token(scenario, work) + work.core_flops


def _score_flops_per_token(scenario: Scenario, work: Work) -> float:
    """Return the forward FLOP per token of attention's two products over all scores, masked ones too."""
    bounded = sum(width * mean_attended_share(scenario, window) for window, width in work.windows)
    # With lengths that differ, that of equal segments with as many scores per token as the samples, without padding.
    attended = float(scenario.seq_length) if scenario.lengths is None else scenario.lengths.segments(1).attended
    return 4.0 * attended * (work.core_width + bounded)


def layer_flops_per_token(scenario: Scenario, kind: LayerKind) -> float:
    """Return the forward FLOP per token of one layer."""
    return _flops_per_token(scenario, layer_work(conditions_of(scenario), kind))


def repeated_flops_per_token(scenario: Scenario, kind: LayerKind, mode: RecomputeMode, modules: Modules) -> float:
    """Return the FLOP per token that recompute adds to one layer."""
    return _flops_per_token(scenario, repeated_work(conditions_of(scenario), kind, mode, modules))


def shared_flops_per_token(scenario: Scenario, kind: LayerKind) -> float:
    """Return the FLOP per token that one layer repeats on average where the stack recomputes a share of the layers."""
    repeats = partly_repeated(conditions_of(scenario), kind)
    return sum(share * _flops_per_token(scenario, again) for share, again in repeats)


def head_parameters(scenario: Scenario) -> float:
    """Return the parameters of the output layer's product."""
    return weight_totals(output_layer(conditions_of(scenario)), "products").all


def prediction_projection(scenario: Scenario) -> float:
    """Return the parameters of a prediction module's projection of embedding and hidden state."""
    return weight_totals(prediction(conditions_of(scenario))).split


def forward_flops_per_token(scenario: Scenario) -> float:
    """Return the forward FLOP per token of all layers, and of the output layer for labelled tokens alone."""
    model = scenario.model
    head = 2.0 * head_parameters(scenario) * scenario.framework.labelled_token_fraction
    flops = head + sum(layers * layer_flops_per_token(scenario, kind) for kind, layers in model.layer_counts.items())
    if scenario.framework.mtp and model.num_nextn_predict_layers:
        layer = layer_flops_per_token(scenario, model.prediction_kind)
        flops += model.num_nextn_predict_layers * (layer + 2.0 * prediction_projection(scenario) + head)
    return flops


def model_flops_per_token(scenario: Scenario) -> float:
    """Return the model FLOP per token of a step: forward, and twice that backward, once of frozen weights (T1)."""
    forward = forward_flops_per_token(scenario)
    if scenario.lora_rank is None:
        return 3.0 * forward
    head = scenario.trains("output") * head_parameters(scenario) * scenario.framework.labelled_token_fraction
    model, conditions = scenario.model, conditions_of(scenario)
    works = [(layers, layer_work(conditions, kind)) for kind, layers in model.layer_counts.items()]
    adapters = sum(2.0 * layers * chosen_parameters(model, work.adapters).all for layers, work in works)
    return 2.0 * (forward + head) + 3.0 * adapters


def masked_flops_per_token(scenario: Scenario) -> float:
    """Return the model FLOP per token over scores that a causal mask hides, half of all (T1)."""
    model, conditions = scenario.model, conditions_of(scenario)
    layers = list(model.layer_counts.items())
    if scenario.framework.mtp and model.num_nextn_predict_layers:
        layers.append((model.prediction_kind, model.num_nextn_predict_layers))
    scores = sum(count * _score_flops_per_token(scenario, layer_work(conditions, kind)) for kind, count in layers)
    return (1.5 if scenario.lora_rank is None else 1.0) * scores


def expert_launches(pricing: Pricing) -> Array:
    """Return the kernels launched in both passes of a layer with routed experts, shape (n,) (T12)."""
    scenario, values = pricing.scenario, pricing.scenario.coefficients.time
    casts = 0.0 if scenario.precision not in NARROW else 5.0 if scenario.framework.fp8_recipe == "tensorwise" else 1.0
    of_expert = values.launches_per_expert + 4.0 * casts
    return values.launches_per_layer + of_expert * scenario.model.num_experts / pricing.block.expert_parallel


Side: TypeAlias = "Array | float"
"""A side of a matrix product on a device, shape (n,) or equal for all layouts."""


class Products(NamedTuple):
    """Seconds of matrix products with weights by pass, shape (n,)."""

    forward: Array
    inputs: Array
    """Gradient of the inputs."""
    weights: Array | float = 0.0
    """Gradient of the weights; 0 if they are frozen."""

    @property
    def passes(self) -> tuple[Array, Array]:
        """Return the seconds of the forward and the whole backward pass."""
        return self.forward, self.inputs + self.weights


class ProductShape(NamedTuple):
    """A forward product on a device."""

    rows: Array
    """Tokens, shape (n,)."""
    outputs: Side
    depth: Side
    """Inputs."""
    at_once: Side = 1.0
    """Number of equal products that run together."""
    uneven: bool = False
    """Whether `rows` is a mean, as experts' tokens are: the last tile is then half full."""
    trained: bool = False
    """Whether the weight is trained beside adapters too."""


def product_seconds(scenario: Scenario, rate: float, shape: ProductShape, entering: float, weight: float) -> Products:
    """Return the seconds of a product and its gradients, by roofline; `entering` and `weight` are bytes per number.

    Outputs are 16-bit. The weight gradient reads and writes the accumulated gradients, in its own kernel or a following
    one, which reads the new gradient too. Frozen weights have no weight gradient.
    """
    compute, element, memory = shaped_seconds(scenario, rate, shape), element_bytes(scenario), memory_rate(scenario)
    held = shape.at_once * shape.outputs * shape.depth
    inputs, outputs = shape.at_once * shape.rows * shape.depth, shape.at_once * shape.rows * shape.outputs
    forward = roofline(scenario, compute.forward, (weight * held + entering * inputs + element * outputs) / memory)
    backward = roofline(scenario, compute.inputs, (weight * held + entering * outputs + element * inputs) / memory)
    if scenario.lora_rank is not None and not shape.trained:
        return Products(forward, backward)
    fused, added = scenario.framework.fused_gradient_accumulation, 2.0 * gradient_bytes(scenario)
    moves = (entering * (inputs + outputs) + (added if fused else element) * held) / memory
    weights = roofline(scenario, compute.weights, moves)
    return Products(forward, backward, weights if fused else weights + (element + added) * held / memory)


def roofline(scenario: Scenario, compute: Array | float, moves: Array | float) -> Array:
    """Return the seconds of kernels that compute and move data at once, `(c^a + m^a)^(1/a)` (T11)."""
    sharpness = np.maximum(scenario.coefficients.time.roofline_sharpness, 1.0)
    longer = np.maximum(np.maximum(compute, moves), _NO_TIME)
    return cast("Array", longer * (1.0 + (np.minimum(compute, moves) / longer) ** sharpness) ** (1.0 / sharpness))


_NO_TIME = 1e-30  # divisor in place of 0 seconds


def shaped_seconds(scenario: Scenario, rate: float, shape: ProductShape) -> Products:
    """Return the compute seconds of a weight's three products, each of whole tiles of outputs (T3)."""
    rows, outputs, depth, at_once, uneven, _ = shape
    factor = shape_factor(scenario, rate)

    def seconds(across: Side, along: Side, summed: Side, *, uneven: bool = False) -> Array:
        made = at_once * whole_tiles(scenario, across, along, uneven=uneven)
        return cast("Array", 2.0 / rate * summed * made * factor(made, summed))

    return Products(
        forward=seconds(rows, outputs, depth, uneven=uneven),
        inputs=seconds(rows, depth, outputs, uneven=uneven),
        weights=seconds(depth, outputs, rows),
    )


def whole_tiles(scenario: Scenario, across: Side, along: Side, *, uneven: bool = False) -> Side:
    """Return the outputs of whole tiles, lying or standing, as fewer are computed; `uneven` sides cut one in half.

    A tile's shorter side is a power of two. A fraction, as of sides divided by degrees, is no further tile.
    """
    tile = scenario.hardware.product_tile
    if scenario.hardware.processors is None or tile is None:
        return across * along
    short = 2.0 ** (math.log2(tile.value) // 2.0)
    sides = (short, tile.value / short)
    lying, standing = (
        (across + a / 2.0 if uneven else np.ceil(across / a - 1e-9) * a) * np.ceil(along / b - 1e-9) * b
        for a, b in (sides, sides[::-1])
    )
    return cast("Side", np.minimum(lying, standing))


def shape_factor(scenario: Scenario, rate: float) -> Callable[[Side, Side], Array | float]:
    """Return the time of a product relative to a large one of equal FLOP, `(1 + K j / k) (1 + A / (m n j))` (T3)."""
    hardware, values = scenario.hardware, scenario.coefficients.time
    if hardware.processors is None or hardware.product_tile is None:
        return lambda _made, _depth: 1.0
    at_once = float(hardware.processors.value * hardware.product_tile.value)
    started = np.maximum(values.product_waves, 0.0) * at_once
    piece = np.maximum(values.product_split_seconds, 0.0) * rate / (2.0 * at_once)
    split = np.maximum(piece, 1e-9)

    def factor(outputs: Side, depth: Side) -> Array | float:
        with np.errstate(divide="ignore", invalid="ignore"):
            pieces = np.maximum(1.0, np.sqrt(started * depth / (split * outputs)))
        return cast("Array", (1.0 + piece * pieces / depth) * (1.0 + started / (outputs * pieces)))

    return factor


def product_flops(pricing: Pricing, totals: WeightTotals) -> tuple[Array, Array]:
    """Return the forward FLOP on one device of products with these weights, dense and routed experts', shape (n,)."""
    block, tokens = pricing.block, extent(pricing, "whole")
    dense = 2.0 * tokens * (totals.split / block.tensor_parallel + totals.replicated / sequence_split(block))
    if not totals.routed:
        return dense, np.zeros_like(tokens)
    return dense, 2.0 * extent(pricing, "copies_tensor") * totals.routed / pricing.scenario.model.num_experts


def summed_products(pricing: Pricing, products: Iterable[Product]) -> Products:
    """Return the summed seconds of products."""
    forward = inputs = weights = np.zeros(len(pricing))
    for each in products:
        seconds = product_passes(pricing, each)
        forward, inputs, weights = forward + seconds.forward, inputs + seconds.inputs, weights + seconds.weights
    return Products(forward, inputs, weights)


@derived
def product_passes(pricing: Pricing, product: Product) -> Products:
    """Return the seconds of one product and its gradients. All products of a device's experts run at once.

    fp8 reads weights in 8 bits where their copies are kept, which a step's first micro batch makes (TransformerEngine
    v2.14, module/linear.py, `is_first_microbatch`); in 16 elsewhere.
    """
    scenario, narrow = pricing.scenario, narrow_element_bytes(pricing.scenario)
    stay = scenario.framework.fp8_weight_cache or scenario.framework.fp8_param_gather
    weight = narrow if stay or product.split in ("expert_column", "expert_row") else element_bytes(scenario)
    shape = product_shape(pricing, product)
    passes = product_seconds(scenario, gemm_rate(scenario), shape, narrow, weight)
    if not keeps_inputs(conditions_of(scenario)) or (shape.uneven and not scenario.framework.quantised_experts):
        return passes
    forward = product_seconds(scenario, _integer_rate(scenario), shape, 1.0, 1.0).forward
    wide = product_seconds(scenario, fp32_rate(scenario), shape, FP32, FP32).inputs
    return Products(forward, np.where(scenario.widened_rest & (pricing.block.zero_stage < 3), wide, passes.inputs))


def _integer_rate(scenario: Scenario) -> float:
    """Return the rate of products of 8-bit integers, in data sheets fp8's, or twice that of 16 bits (T6)."""
    if "fp8" in scenario.hardware.peak_flops_per_second:
        return usual_rate(scenario, "fp8") * scenario.coefficients.time.gemm_efficiency_fp8
    # Volta multiplies in fp32 (`int8_linear_matmul`).
    return wide_gemm_rate(scenario) * {"volta": 1.0 / 8.0, "cdna2": 1.0}.get(scenario.hardware.family, 2.0)


def dequantised_seconds(pricing: Pricing, work: Work) -> tuple[Array | float, Array | float]:
    """Return the seconds in which each pass writes frozen weights of 4 bits in 16, or works for those of 8 (T6).

    bitsandbytes 0.50, `MatMul8bitLt`: inputs are cast, searched for outliers, quantised by row, integers scaled and
    cast, outliers' products added; backward the weight is cast and scaled.
    """
    scenario, profile = pricing.scenario, pricing.scenario.framework
    if not profile.quantised_base:
        return 0.0, 0.0
    products = (*work.shapes, *(work.grouped if profile.quantised_experts else ()))
    shapes = [product_shape(pricing, each) for each in products]
    numbers = sum(shape.at_once * shape.outputs * shape.depth for shape in shapes)
    rate, widened = memory_rate(scenario), (quantised_bytes(scenario) + element_bytes(scenario)) * numbers
    if not keeps_inputs(conditions_of(scenario)):
        return widened / rate, widened / rate
    wide = scenario.widened_rest & (pricing.block.zero_stage < 3)
    cast, added = np.where(wide, 6.0, 4.0 * (scenario.precision != "fp16")), np.where(wide, 8.0, 4.0)
    of_token = [(12.0 + cast) * each.depth + (8.0 + added + cast) * each.outputs for each in shapes]
    forward = sum(each.at_once * each.rows * moved for each, moved in zip(shapes, of_token, strict=True))
    return forward / rate, np.where(wide, 13.0, 7.0) * numbers / rate


def decomposed_seconds(pricing: Pricing, work: Work) -> tuple[Array | float, Array | float]:
    """Return the seconds that DoRA adds to a forward and a backward pass: `B A`, norms, what is dropped (M42)."""
    scenario, forward, backward = pricing.scenario, np.zeros(len(pricing)), np.zeros(len(pricing))
    (width, narrow, copied, _), element = decomposing(conditions_of(scenario)), element_bytes(scenario)
    efficiency = scenario.coefficients.time.gemm_efficiency
    rate = fp32_rate(scenario) * efficiency if narrow > element else wide_gemm_rate(scenario)
    for weight in work.decomposed:
        (inputs, outputs), at_once = local_sides(pricing, weight), on_device(pricing, weight)
        moved = (7.0 * width + narrow + (element + width) * copied + element) * inputs * outputs
        moved = moved + (2.0 * width + (width + 2.0 * narrow) * (narrow < width)) * inputs**2
        ranked = 2.0 * cast("int", scenario.lora_rank) * inputs * (inputs + outputs)
        forward = forward + at_once * (ranked / rate + moved / memory_rate(scenario))
        again = 2.0 * inputs * weight.outputs * extent(pricing, weight.output_spread) / rate
        again = again * multiplies_dropped(conditions_of(scenario))
        forward, backward = forward + again, backward + again
    return forward, backward


def product_shape(pricing: Pricing, product: Product) -> ProductShape:
    """Return the shape of one product on a device, split as its weight is."""
    block, m = pricing.block, extent(pricing, "whole")
    n, k = float(product.outputs), float(product.inputs)
    match product.split:
        case "column" | "vocabulary":
            return ProductShape(m, n / block.tensor_parallel, k)
        case "row":
            return ProductShape(m, n, k / block.tensor_parallel)
        case "expert_column" | "expert_row":
            held = np.maximum(pricing.scenario.model.num_experts / block.expert_parallel, 1.0)
            rows, tensor = extent(pricing, "copies") / held, block.expert_tensor_parallel
            outputs, depth = (n / tensor, k) if product.split == "expert_column" else (n, k / tensor)
            trained = merges_experts(conditions_of(pricing.scenario))
            return ProductShape(rows, outputs, depth, held, uneven=True, trained=trained)
        case _:
            return ProductShape(m / sequence_split(block), n, k)


def expert_products(pricing: Pricing, work: Work) -> Products:
    """Return the seconds of the routed experts' products, with copies where experts take turns on slices of the tokens.

    Forward, outputs are zeroed and copied into slices. Backward, every expert copies the gradient of all outputs, and
    fills and adds one of all inputs: SequentialMLP of megatron-core up to 0.8.
    """
    scenario = pricing.scenario
    products = summed_products(pricing, work.grouped)
    if not scenario.framework.sliced_experts:
        return products
    whole = element_bytes(scenario) * scenario.model.expert_width * extent(pricing, "copies")
    joined = 3.0 * whole / memory_rate(scenario)
    parted = 6.0 * scenario.model.num_experts / pricing.block.expert_parallel * whole / memory_rate(scenario)
    return products._replace(forward=products.forward + joined, inputs=products.inputs + parted)
