"""Parts of the time of a step: their names, seconds of a pass through a layer, formulas of exposed time.

`timing.layers` fills the record of a pass, `timing.pipeline` sums the parts on a rank, `timing.step` adds the rest of
a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.operations.sums import Work
from simulator.cost.timing.products import expert_launches, gemm_rate, wide_gemm_rate
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import NARROW

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
    values = iter(parts.values())
    result = next(values)
    for value in values:
        result = result + value
    return result


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
    """Return the seconds of backward tensor-parallel collectives that run alone, and the rest's exposed part (T13).

    Input gradients are reduced while gradients of column-split weights are computed: all bytes of the pass, or half
    with sequence parallelism, which gathers incoming gradients first.
    """
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
    if work.products.routed and not layers_are_captured(pricing.scenario):
        host = np.maximum(host, values.launch_seconds * expert_launches(pricing))
    return host
