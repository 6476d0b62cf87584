"""What several operations share: norms, residual additions, gated activations, casts and gathers."""

from __future__ import annotations

from typing import Literal

from simulator.cost.elements import FP32, HALF, element_bytes, narrow_element_bytes
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Collective, Group, Kept, Operation, Split, Spread, Weight


def vector(name: str, length: int, split: Split = "replicated") -> Weight:
    """A norm scale or a bias."""
    return Weight(name, 1, length, split, matmul=False)


def norm(given: Conditions, name: str, weight: str) -> Operation:
    """One RMSNorm with the linear layer behind it: its input, one fp32 number per token, and its output.

    A fused norm keeps its 16-bit input; one composed of elementwise operations keeps two fp32 copies instead. fp8
    keeps the output in 8 bits. Without `keep_gathered_inputs` the output is kept split over the sequence-parallel
    group and gathered again in the backward pass (Korthikanti et al. 2022, section 4.2.2). It reads and writes the
    residual stream.
    """
    hidden, profile, element = float(given.model.hidden_size), given.framework, element_bytes(given)
    output: Spread = "whole" if profile.keep_gathered_inputs else "sequence"
    return Operation(
        name=name,
        group="norm",
        weights=(vector(weight, given.model.hidden_size),),
        kept=(
            Kept(f"{name}_input", (element if profile.fused_rms_norm else 2.0 * FP32) * hidden, "sequence"),
            Kept(f"{name}_statistics", FP32, "sequence"),
            Kept(f"{name}_output", narrow_element_bytes(given) * hidden, output),
        ),
        moved=(Amount(2.0 * element * hidden, "sequence"),),
    )


def residual(given: Conditions, name: str) -> Operation:
    """An addition to the residual stream: reads two tensors, writes one."""
    moved = Amount(3.0 * element_bytes(given) * given.model.hidden_size, "sequence")
    return Operation(name=name, group="residual", moved=(moved,))


def cast(given: Conditions, width: float, spread: Spread) -> tuple[Amount, ...]:
    """fp8 reads the 16-bit input of a matrix product and writes it and its transpose in 8 bits."""
    return (Amount(4.0 * width, spread),) if given.precision == "fp8" else ()


def tensor_collective(given: Conditions, pattern: Literal["gather", "reduce"]) -> Collective:
    """A gather or a scatter of the whole activation `2 T h` around a block that tensor parallelism splits.

    An all-reduce without sequence parallelism is the same traffic as both.
    """
    amount = element_bytes(given) * given.model.hidden_size
    return Collective(group="tensor", pattern=pattern, amount=amount, spread="whole", beside="products")


def gated_activation(given: Conditions, name: str, group: Group, width: float, spread: Spread) -> Operation:
    """SwiGLU over a feed-forward width: keeps gate and up `4 T f`, (silu `2 T f`,) product `2 T f` (fp8: half).

    It reads gate and up and writes their product, `6 f` a token; composed of two kernels also silu, `4 f`. Its backward
    pass holds the gradients of gate and up. The product is the next matrix product's input, cast there in fp8.
    """
    element, fused = element_bytes(given), given.framework.fused_swiglu
    silu = () if fused else (Kept(f"{name}_silu", element * width, spread),)
    return Operation(
        name=f"{name}_activation",
        group=group,
        kept=(
            Kept(f"{name}_gate_up", 2.0 * element * width, spread),
            *silu,
            Kept(f"{name}_product", narrow_element_bytes(given) * width, spread),
        ),
        temporary=(Amount(2.0 * element * width, spread),),
        moved=(Amount((6.0 if fused else 10.0) / HALF * element * width, spread), *cast(given, width, spread)),
    )
