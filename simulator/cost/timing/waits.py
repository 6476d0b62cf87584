"""Seconds that a layer waits for exposed collectives and for a slow host. Prices no collective."""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.operations.work import Work
from simulator.cost.timing.captured import layers_are_captured
from simulator.cost.timing.flops import expert_launches
from simulator.question.scenario.block import Array


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
