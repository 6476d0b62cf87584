"""Bytes per number (activations, parameters, gradients, states, exchanges), by precision and framework.

In fp32 training every one of them is fp32, without 16-bit or master copies; the profile describes the others.
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
"""Bytes of a 4-bit number with its 8-bit scale.

One scale for 16 numbers (TransformerEngine, `NVFP4BlockScaling`) or 32 (ROCm, `MXFP4BlockScaling`, common/recipe).
"""


class Typed(Protocol):
    """A scenario or a layer's conditions: whatever decides the types of numbers."""

    @property
    def precision(self) -> str:
        """Compute type of the matrix products."""

    @property
    def framework(self) -> FrameworkProfile:
        """Switches of the stack."""


def element_bytes(scenario: Typed) -> float:
    """Return the bytes of an activation or weight in compute: 16 bit, also under fp8; fp32 in fp32 training."""
    return FP32 if scenario.precision == "fp32" else HALF


def fp4_bytes(scenario: Typed) -> float:
    """Return the bytes of a 4-bit number with its share of a scale."""
    return _FP4[scenario.framework.fp4_recipe]


def narrow_element_bytes(scenario: Typed) -> float:
    """Return the bytes of an input of the layers' matrix products, with scales: narrow under fp8 and fp4."""
    if scenario.precision not in NARROW or not scenario.framework.fp8_inputs:
        return element_bytes(scenario)
    if scenario.precision == "fp4":
        return fp4_bytes(scenario)
    return 1.0 + _SCALES[scenario.framework.fp8_recipe]


def expert_input_bytes(scenario: Typed) -> float:
    """Return the bytes that routed experts save per input; experts' own fp8 has fp32 scales of 1 x 128 blocks."""
    if scenario.framework.fp8_experts != "none" and scenario.precision != "fp32":
        return 1.0 + _SCALES["blockwise"]
    return narrow_element_bytes(scenario)


def activation_input_bytes(scenario: Typed) -> float:
    """Return the bytes that an activation function saves per input: 8 bits without scales, or an element."""
    return 1.0 if scenario.framework.fp8_activation_inputs else element_bytes(scenario)


def dispatched_bytes(scenario: Typed) -> float:
    """Return the bytes of a token's feature on the way to its experts."""
    if not scenario.framework.fp8_dispatch or scenario.precision == "fp32":
        return element_bytes(scenario)
    return 1.0 + _SCALES["blockwise"]


_SCALES: Final = {"delayed": 0.0, "tensorwise": 0.0, "blockwise": FP32 / 128.0, "mxfp8": 1.0 / 32.0}
"""Bytes of scales per number of an activation: fp32 for every 128 (blocks of 1 x 128), or 8 bits for every 32."""


def narrow_weight_bytes(scenario: Typed, *, transposed: bool = True) -> float:
    """Return the bytes of the 8-bit or 4-bit copies of a linear weight cached between micro batches: one per pass.

    The second is the transpose of the first, or (blocks, mxfp8) scaled along the other side; tensors of one scale have
    one copy where products need it not `transposed`. Weights have blocks of 128 x 128, whose scales do not count.
    """
    if scenario.precision not in NARROW or not scenario.framework.fp8_weight_cache:
        return 0.0
    if scenario.precision == "fp4":
        return 2.0 * fp4_bytes(scenario)
    recipe = scenario.framework.fp8_recipe
    copies = 2.0 if transposed or recipe not in ("delayed", "tensorwise") else 1.0
    return copies * (1.0 + (_SCALES["mxfp8"] if recipe == "mxfp8" else 0.0))


def quantised_bytes(scenario: Typed) -> float:
    """Return the bytes of a frozen weight in 4 or 8 bits with its part of a scale, which a row of 8-bit ones shares."""
    if scenario.framework.quantised_bits == "8":
        return 1.0
    return 0.5 + scenario.framework.quantised_scale_bytes / _SCALED_WEIGHTS


_SCALED_WEIGHTS: Final = 64.0  # number of weights that share a scale


def narrow_number_bytes(scenario: Typed) -> float:
    """Return the bytes of one number as fp8 or fp4 computes with it; with the scales of fp4."""
    return fp4_bytes(scenario) if scenario.precision == "fp4" else 1.0


def gathered_narrow(scenario: Typed) -> bool:
    """Return whether linear weights are gathered in 8 bits: mxfp8 gathers 16 and casts after (megatron-core 0.16.1)."""
    profile = scenario.framework
    return scenario.precision == "fp8" and profile.fp8_param_gather and profile.fp8_recipe != "mxfp8"


def parameter_dtype(scenario: Typed) -> DType:
    """Return the type of stored parameters."""
    return "fp32" if scenario.precision == "fp32" else scenario.framework.parameter_dtype


def adapter_bytes(scenario: Typed) -> float:
    """Return the bytes of a number of adapters and of what they read, which peft casts to fp32 (M36)."""
    wide = scenario.framework.adapter_copies and parameter_dtype(scenario) == "fp32"
    return FP32 if wide else element_bytes(scenario)


def parameter_bytes(scenario: Typed) -> float:
    """Return the bytes of a stored parameter, copies in 8 bits apart."""
    return float(DTYPE_BYTES[parameter_dtype(scenario)])


def gradient_bytes(scenario: Typed) -> float:
    """Return the bytes of an accumulated gradient."""
    return FP32 if scenario.precision == "fp32" else float(DTYPE_BYTES[scenario.framework.gradient_dtype])


def reduced_bytes(scenario: Typed) -> float:
    """Return the bytes of a gradient as ranks exchange it."""
    reduced = scenario.framework.reduce_dtype
    return gradient_bytes(scenario) if reduced == "gradient" else float(DTYPE_BYTES[reduced])


def optimizer_bytes_per_parameter(scenario: Typed, tensor: TensorClass = "matrix") -> float:
    """Return the bytes of the master copy, if any, and of the moments of a class of tensor."""
    optimizer = OPTIMIZERS[scenario.framework.optimizer]
    each = optimizer.moment_bytes or DTYPE_BYTES[scenario.framework.optimizer_dtype]
    return master_bytes(scenario) + optimizer.moments[tensor] * each


def master_bytes(scenario: Typed) -> float:
    """Return the bytes of the optimizer's own copy of a parameter; 0 where parameters are fp32."""
    profile = scenario.framework
    separate = profile.master_weights and parameter_dtype(scenario) != "fp32"
    return float(DTYPE_BYTES[profile.master_weight_dtype]) if separate else 0.0
