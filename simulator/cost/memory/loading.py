"""Memory of a device while the model is built or loaded, before the first step (M30).

`memory.peak` compares it with the moments of a step.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.dtypes import element_bytes, gradient_bytes, parameter_dtype
from simulator.cost.memory.moments import Moment
from simulator.cost.memory.state import device_parameters
from simulator.question.scenario.block import KindArray
from simulator.question.vocabulary import NARROW


def loading_moment(pricing: Pricing) -> Moment | None:
    """Return what is alive at the fullest moment of loading; None where it is no more than a step's state (M30).

    `whole`: a rank builds the weights of its tensor and pipeline parallel part before ZeRO 3 cuts them. `buffers`: the
    distributed optimizer allocates one buffer for weights and one for gradients beside the weights that were built,
    dense ones first, routed experts after those are freed (NVIDIA/Megatron-LM d98e8a6,
    core/distributed/param_and_grad_buffer.py, `_ParamAndGradBuffer`). Frozen weights have no such buffers.
    """
    scenario, stage = pricing.scenario, pricing.block.zero_stage
    build = scenario.framework.model_build
    if build == "parts" or parameter_dtype(scenario) == "fp32":
        return None
    (dense, routed), element = device_parameters(pricing), element_bytes(scenario)
    whole = element * (dense + routed)
    if build == "whole":
        return _moment(np.where(stage >= 3, whole, 0.0), 0.0)
    if scenario.lora_rank is not None or scenario.precision in NARROW:
        return None
    gradient = gradient_bytes(scenario)
    beside = np.maximum((element + gradient) * dense, (routed > 0.0) * (element * routed + gradient * (dense + routed)))
    return _moment(np.where(stage == 1, whole, 0.0), np.where(stage == 1, beside, 0.0))


def _moment(built: KindArray, beside: KindArray | float) -> Moment:
    return Moment("load", built, 0.0, 0.0, 0.0, 0.0, 0.0, beside)
