"""Which schedule a block of layouts runs."""

from __future__ import annotations

from typing import Final

from simulator.cost.schedule.interleaved import Interleaved
from simulator.cost.schedule.one_forward_one_backward import OneForwardOneBackward
from simulator.cost.schedule.schedule import Schedule
from simulator.question.scenario.block import LayoutBlock

ONE_FORWARD_ONE_BACKWARD: Final = OneForwardOneBackward()
INTERLEAVED: Final = Interleaved()


def schedule_of(block: LayoutBlock) -> Schedule:
    """The schedule of a block: interleaved where its ranks have several chunks."""
    return INTERLEAVED if block.virtual_stages > 1 else ONE_FORWARD_ONE_BACKWARD
