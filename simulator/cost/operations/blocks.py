"""Operations shared by layers of every kind: norms, additions, activations, casts and gathers. Sums nothing."""

from __future__ import annotations

from typing import Literal

from simulator.cost.dtypes import (
    FP32,
    HALF,
    activation_input_bytes,
    element_bytes,
    fp4_bytes,
    narrow_element_bytes,
)
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Collective, Operation, OperationGroup, Saved, Split, Spread, Weight


def vector(name: str, length: int, split: Split = "replicated") -> Weight:
    """Return the weight of a norm scale or a bias."""
    return Weight(name, 1, length, split, matmul=False)


def norm(conditions: Conditions, name: str, weight: str) -> Operation:
    """Return a norm with the input of the linear layer behind it: saves its input, fp32 statistics and its output.

    RMSNorm has a scale and saves one number per token; LayerNorm has a scale, mostly a bias, and saves two. A fused
    norm saves its 16-bit input; an RMSNorm of elementwise operations saves `composed_norm_bytes` per feature instead.
    fp8 saves the output in 8 bits. Without `keep_gathered_inputs` the output is saved split over the sequence-parallel
    group and gathered again in backward (Korthikanti et al. 2022, section 4.2.2). A composed norm casts to fp32 and
    back, squares, averages and multiplies twice: 36 bytes.
    """
    model, element = conditions.model, element_bytes(conditions)
    hidden, centred = float(model.hidden_size), model.norm != "rms_norm"
    return Operation(
        name=name,
        group="norm",
        weights=norm_weights(conditions, weight, model.hidden_size),
        saved=(
            Saved(f"{name}_input", (element if _fused(conditions) else _composed(conditions)) * hidden, "sequence"),
            Saved(f"{name}_statistics", (2.0 if centred else 1.0) * FP32, "sequence"),
            linear_input(conditions, f"{name}_output"),
        ),
        moved=(
            Amount(_again(conditions.framework.recomputed_norm_share) * norm_bytes(conditions) * hidden, "sequence"),
        ),
    )


def norm_bytes(conditions: Conditions) -> float:
    """Return the bytes per feature that a norm moves: input and output in one kernel, 36 composed."""
    return 2.0 * element_bytes(conditions) if _fused(conditions) else 9.0 * FP32


def _fused(conditions: Conditions) -> bool:
    profile = conditions.framework
    return conditions.model.norm != "rms_norm" or profile.fused_rms_norm or profile.compiled


def _composed(conditions: Conditions) -> float:
    """Return the bytes per feature that a composed norm saves; in fp32 training every copy is fp32."""
    saved = float(conditions.framework.composed_norm_bytes)
    return saved if element_bytes(conditions) == HALF else max(saved, 2.0 * FP32)


def _again(share: float) -> float:
    """Return the passes where a share of layers is recomputed, relative to the usual three."""
    return 1.0 + share / 3.0


def _saved_product(conditions: Conditions, width: float) -> float:
    """Return the bytes saved of an activation function's output: none where it is recomputed."""
    return (1.0 - conditions.framework.recomputed_activation_share) * narrow_element_bytes(conditions) * width


def norm_weights(conditions: Conditions, name: str, width: int) -> tuple[Weight, ...]:
    """Return the scale and bias of a norm of the model's kind, as far as it has them."""
    match conditions.model.norm:
        case "layer_norm_unweighted":
            return ()
        case "layer_norm":
            return (vector(name, width), vector(f"{name}_bias", width))
        case _:
            return (vector(name, width),)


def linear_input(conditions: Conditions, name: str) -> Saved:
    """Return the hidden state that a block's first products save; 8 bits under fp8."""
    output: Spread = "whole" if conditions.framework.keep_gathered_inputs else "sequence"
    saved = 1.0 - conditions.framework.recomputed_norm_share
    return Saved(name, saved * narrow_element_bytes(conditions) * conditions.model.hidden_size, output)


def post_norm(conditions: Conditions, name: str, weight: str) -> Operation:
    """Return a norm behind a block: its output enters an addition, which saves nothing."""
    whole = norm(conditions, name, weight)
    return whole._replace(saved=whole.saved[:2])


def residual(conditions: Conditions, name: str) -> Operation:
    """Return an addition to the residual stream: two reads, one write; dropout saves a byte per number (M4).

    Korthikanti et al. 2022, section 4.1: `2 s b h` bytes of masks a layer, split with the sequence.
    """
    hidden = float(conditions.model.hidden_size)
    masks = (Saved(f"{name}_mask", hidden, "sequence"),) if conditions.framework.hidden_dropout else ()
    moved = Amount(3.0 * element_bytes(conditions) * hidden, "sequence")
    return Operation(name=name, group="residual", saved=masks, moved=(moved,))


def cast(conditions: Conditions, width: float, spread: Spread) -> tuple[Amount, ...]:
    """Return the bytes of casting a product's 16-bit input: fp8 writes it and its transpose; NVFP4 reads it twice.

    NVFP4 needs a tensor's largest number before it casts (TransformerEngine, NVFP4 quantization); MXFP4 scales by
    block.
    """
    if conditions.precision == "fp4":
        reads = 2.0 if conditions.framework.fp4_recipe == "nvfp4" else 1.0
        return (Amount((reads * HALF + 2.0 * fp4_bytes(conditions)) * width, spread),)
    return (Amount(4.0 * width, spread),) if conditions.precision == "fp8" else ()


def summed_gradients(conditions: Conditions, products: int) -> tuple[Amount, ...]:
    """Return the bytes of adding up input gradients of separate products: two reads and one write per sum.

    Every tensor-parallel rank has the whole gradient.
    """
    if conditions.framework.fused_projections or products < 2:
        return ()
    return (Amount(3.0 * (products - 1.0) * element_bytes(conditions) * conditions.model.hidden_size, "whole"),)


def tensor_collective(conditions: Conditions, pattern: Literal["gather", "reduce"]) -> Collective:
    """Return a gather or scatter of the whole activation `2 T h` around a tensor-parallel block.

    An all-reduce without sequence parallelism is the same traffic as both.
    """
    amount = element_bytes(conditions) * conditions.model.hidden_size
    return Collective(group="tensor", pattern=pattern, amount=amount, spread="whole", beside="products")


def network(
    conditions: Conditions, name: str, width: int, group: OperationGroup, prefix: str = ""
) -> tuple[Operation, ...]:
    """Return a feed-forward network for all tokens: gate and up (or up alone), activation, down.

    Weight names start with `prefix`.
    """
    hidden, bias = conditions.model.hidden_size, conditions.model.mlp_bias
    into = into_products(conditions)
    first = [Weight(f"{prefix}{name}", hidden, width, "column") for name in into]
    first += [vector(f"{prefix}{name}_bias", width, "column") for name in into if bias]
    last = (Weight(f"{prefix}down", width, hidden, "row"), *((vector(f"{prefix}down_bias", hidden),) if bias else ()))
    gather, reduce = tensor_collective(conditions, "gather"), tensor_collective(conditions, "reduce")
    return (
        Operation(
            name=f"{name}_{'_'.join(into)}",
            group=group,
            weights=tuple(first),
            moved_backward=summed_gradients(conditions, len(into)),
            collectives=(gather,),
        ),
        activation(conditions, name, group, float(width), "tensor"),
        Operation(name=f"{name}_down", group=group, weights=last, collectives=(reduce,)),
    )


def into_products(conditions: Conditions) -> tuple[str, ...]:
    """Return the names of the products that read the input of a feed-forward network."""
    return ("gate", "up") if conditions.model.gated else ("up",)


def activation(conditions: Conditions, name: str, group: OperationGroup, width: float, spread: Spread) -> Operation:
    """Return the activation of the model's feed-forward networks, gated or plain."""
    chosen = gated_activation if conditions.model.gated else plain_activation
    return chosen(conditions, name, group, width, spread)


def plain_activation(
    conditions: Conditions, name: str, group: OperationGroup, width: float, spread: Spread
) -> Operation:
    """Return GELU or (squared) ReLU: saves its input, `2 T f`, and its output for the next product (fp8: half).

    ReLU saves its output only. It reads one tensor and writes one; its backward pass holds the input's gradient.
    """
    element = element_bytes(conditions)
    entered = (
        ()
        if conditions.model.activation == "relu"
        else (Saved(f"{name}_up", activation_input_bytes(conditions) * width, spread),)
    )
    return Operation(
        name=f"{name}_activation",
        group=group,
        saved=(*entered, Saved(f"{name}_product", _saved_product(conditions, width), spread)),
        temporary=(Amount(element * width, spread),),
        moved=(Amount(2.0 * element * width, spread), *cast(conditions, width, spread)),
    )


def gated_activation(
    conditions: Conditions, name: str, group: OperationGroup, width: float, spread: Spread
) -> Operation:
    """Return SwiGLU or GeGLU: saves gate and up `4 T f`, silu `2 T f` if unfused, product `2 T f` (fp8: half).

    It reads gate and up and writes their product, `6 f` a token; composed of two kernels also silu, `4 f`. Its backward
    pass holds the gradients of gate and up. The product is the next matrix product's input, cast there in fp8.
    """
    element, fused = element_bytes(conditions), conditions.framework.fused_swiglu or conditions.framework.compiled
    share = conditions.framework.recomputed_activation_share
    again = _again(share)
    silu = () if fused else (Saved(f"{name}_silu", (1.0 - share) * element * width, spread),)
    return Operation(
        name=f"{name}_activation",
        group=group,
        saved=(
            Saved(f"{name}_gate_up", 2.0 * activation_input_bytes(conditions) * width, spread),
            *silu,
            Saved(f"{name}_product", _saved_product(conditions, width), spread),
        ),
        temporary=(Amount(2.0 * element * width, spread),),
        moved=(
            Amount(again * (6.0 if fused else 10.0) / HALF * element * width, spread),
            *cast(conditions, width, spread),
        ),
    )
