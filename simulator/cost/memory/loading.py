"""Memory of a device while the model is built, before the first step (M30); `memory.peak` compares it with a step's."""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.dtypes import element_bytes
from simulator.cost.memory.moments import Moment
from simulator.cost.memory.state import device_parameters


def loading_moment(pricing: Pricing) -> Moment | None:
    """Return what is alive when weights are built; None where it is no more than a step's state (M30).

    With `builds_whole_layers` a rank builds the weights of its tensor and pipeline parallel part before ZeRO 3 cuts
    them (PaddleNLP 2.8, transformers/model_utils.py, `_from_config`; Paddle's GroupShardedStage3).
    """
    if not pricing.scenario.framework.builds_whole_layers:
        return None
    parts = device_parameters(pricing)
    built = np.where(pricing.block.zero_stage >= 3, element_bytes(pricing.scenario) * (parts.dense + parts.routed), 0.0)
    return Moment("load", built, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
