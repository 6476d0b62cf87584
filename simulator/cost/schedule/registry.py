"""Schedules by name. A new schedule needs one line here."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.schedule.dual_pipe import DualPipe, DualPipeV
from simulator.cost.schedule.interleaved import Interleaved
from simulator.cost.schedule.one_forward_one_backward import OneForwardOneBackward
from simulator.cost.schedule.schedule import Schedule
from simulator.cost.schedule.zero_bubble import ZeroBubbleH1, ZeroBubbleV
from simulator.question.scenario.layout import ROUND


def schedule_of(pricing: Pricing) -> Schedule:
    """Return the schedule of a block; passes overlap where the experts' exchange does (T25)."""
    scenario, block = pricing.scenario, pricing.block
    combined = scenario.framework.overlap_expert_exchange and scenario.model.is_moe
    name = block.schedule
    if name not in ROUND and block.shape == "round":
        name = "1f1b"
    match name:
        case "1f1b":
            if np.any(block.virtual_stages > 1.0):
                return Interleaved(combined, scenario.framework.warm_up_whole_batch)
            return OneForwardOneBackward(combined)
        case "zb_h1":
            return ZeroBubbleH1()
        case "zb_v":
            return ZeroBubbleV()
        case "dualpipev":
            return DualPipeV(combined, scenario.framework.splits_last_backward)
        case "dualpipe":
            return DualPipe(combined, scenario.framework.splits_last_backward)
        case _:
            assert_never(name)
