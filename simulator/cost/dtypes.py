"""Bytes of one number of each kind, as the precision and the framework decide: the one place that knows them.

fp32 training has one type: activations, parameters, gradients and what is sent are fp32, with no 16-bit copy and no
master copy; the profile's `parameter_dtype`, `gradient_dtype` and `master_weights` describe 16-bit training.
"""

from __future__ import annotations

from typing import Final, Protocol

from simulator.question.frameworks.profile import DTYPE_BYTES, DType, FrameworkProfile
from simulator.question.specs.optimizers import OPTIMIZERS, TensorClass
from simulator.question.vocabulary import NARROW

HALF: Final = 2.0
"""Bytes of a bf16 or fp16 number."""
FP32: Final = 4.0
_FP4: Final = {"nvfp4": 0.5 + 1.0 / 16.0, "mxfp4": 0.5 + 1.0 / 32.0}
"""Bytes of a 4-bit number: 8 bits of scale for every 16 (TransformerEngine, `NVFP4BlockScaling`) or 32 (that of ROCm,
`MXFP4BlockScaling`, common/recipe)."""


class Typed(Protocol):
    """What decides the types of numbers: a scenario, or the conditions of a layer's listing."""

    @property
    def precision(self) -> str:
        """Compute type of the matrix products."""

    @property
    def framework(self) -> FrameworkProfile:
        """The stack's switches."""


def element_bytes(scenario: Typed) -> float:
    """Bytes of an activation, and of a weight as computed with: 16 bit, also under fp8, unless training in fp32."""
    return FP32 if scenario.precision == "fp32" else HALF


def fp4_bytes(scenario: Typed) -> float:
    """Bytes of a 4-bit number with its share of a scale."""
    return _FP4[scenario.framework.fp4_recipe]


def narrow_element_bytes(scenario: Typed) -> float:
    """Bytes of what fp8 keeps in 8 bits, fp4 in 4: inputs of the layers' matrix products, with their scales."""
    if scenario.precision not in NARROW or not scenario.framework.fp8_inputs:
        return element_bytes(scenario)
    if scenario.precision == "fp4":
        return fp4_bytes(scenario)
    return 1.0 + _SCALES[scenario.framework.fp8_recipe]


def expert_input_bytes(scenario: Typed) -> float:
    """Bytes of what routed experts keep of their input; in fp8 of their own with fp32 scales of 1 x 128 blocks."""
    if scenario.framework.fp8_experts != "none" and scenario.precision != "fp32":
        return 1.0 + _SCALES["blockwise"]
    return narrow_element_bytes(scenario)


def activation_input_bytes(scenario: Typed) -> float:
    """Bytes of what an activation function keeps of its input: 8 bits without scales, or an element."""
    return 1.0 if scenario.framework.fp8_activation_inputs else element_bytes(scenario)


def dispatched_bytes(scenario: Typed) -> float:
    """Bytes of a token's feature on the way to its experts."""
    if not scenario.framework.fp8_dispatch or scenario.precision == "fp32":
        return element_bytes(scenario)
    return 1.0 + _SCALES["blockwise"]


_SCALES: Final = {"delayed": 0.0, "tensorwise": 0.0, "blockwise": FP32 / 128.0, "mxfp8": 1.0 / 32.0}
"""Bytes of scales for each number of an activation: fp32 for every 128 (blocks of 1 x 128), or 8 bits for every 32."""


def narrow_weight_bytes(scenario: Typed) -> float:
    """Bytes of the 8-bit or 4-bit copies of a linear weight that stay between micro batches: one for each pass.

    The second is the transpose of the first, or (blocks, mxfp8) scaled along the other side. Weights have blocks of
    128 x 128, whose scales do not count.
    """
    if scenario.precision not in NARROW or not scenario.framework.fp8_weight_cache:
        return 0.0
    if scenario.precision == "fp4":
        return 2.0 * fp4_bytes(scenario)
    return 2.0 * (1.0 + (_SCALES["mxfp8"] if scenario.framework.fp8_recipe == "mxfp8" else 0.0))


def narrow_number_bytes(scenario: Typed) -> float:
    """Bytes of one number as fp8 or fp4 computes with it; scales of fp4 included."""
    return fp4_bytes(scenario) if scenario.precision == "fp4" else 1.0


def gathered_narrow(scenario: Typed) -> bool:
    """Whether linear weights travel in 8 bits: mxfp8's are gathered in 16 and cast then (megatron-core 0.16.1)."""
    profile = scenario.framework
    return scenario.precision == "fp8" and profile.fp8_param_gather and profile.fp8_recipe != "mxfp8"


def parameter_dtype(scenario: Typed) -> DType:
    """Type of stored parameters."""
    return "fp32" if scenario.precision == "fp32" else scenario.framework.parameter_dtype


def gradient_bytes(scenario: Typed) -> float:
    """Bytes of an accumulated gradient."""
    return FP32 if scenario.precision == "fp32" else float(DTYPE_BYTES[scenario.framework.gradient_dtype])


def reduced_bytes(scenario: Typed) -> float:
    """Bytes of a gradient as ranks exchange it."""
    reduced = scenario.framework.reduce_dtype
    return gradient_bytes(scenario) if reduced == "gradient" else float(DTYPE_BYTES[reduced])


def optimizer_bytes_per_parameter(scenario: Typed, tensor: TensorClass = "matrix") -> float:
    """Master copy (none where the parameters themselves are fp32) and the moments of a class of tensor."""
    optimizer = OPTIMIZERS[scenario.framework.optimizer]
    each = optimizer.moment_bytes or DTYPE_BYTES[scenario.framework.optimizer_dtype]
    return master_bytes(scenario) + optimizer.moments[tensor] * each


def master_bytes(scenario: Typed) -> float:
    """Bytes of the optimizer's own copy of a parameter."""
    profile = scenario.framework
    kept = profile.master_weights and parameter_dtype(scenario) != "fp32"
    return float(DTYPE_BYTES[profile.master_weight_dtype]) if kept else 0.0
