"""Seconds of a layer's collectives, whether hidden or not.

A projection split by columns gathers its input over the tensor-parallel group; one split by rows scatters its output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.operations.extents import extent, inner_context
from simulator.cost.operations.record import Collective, CollectiveGroup, Hiding
from simulator.cost.operations.work import Work
from simulator.cost.timing.collectives import (
    RankGroup,
    all_to_all_seconds,
    context_group,
    expert_group,
    expert_ranks_group,
    expert_tensor_group,
    gather_seconds,
    inner_context_group,
    neighbour_seconds,
    once_seconds,
    outer_context_group,
    tensor_group,
)
from simulator.question.scenario.block import Array, LayoutBlock


def exchange_seconds(pricing: Pricing, work: Work, beside: Hiding, index: int) -> Array:
    """Return the seconds of a pass's collectives that one kind of work may hide (T7, T8, T9); `index` 1 is backward."""
    result = np.zeros(len(pricing))
    for collective in work.collectives:
        if collective.beside == beside:
            result = result + (collective.backward if index else 1.0) * collective_seconds(pricing, collective)
    return result


@derived
def collective_seconds(pricing: Pricing, collective: Collective) -> Array:
    """Return the seconds of a forward collective, shape (n,); a reduction is `reduce_slowdown` gathers of its bytes."""
    scenario, group = pricing.scenario, _group(pricing, collective.group)
    per_token = extent(pricing, collective.spread)
    size = collective.amount * per_token
    if collective.pattern in ("gather_each", "reduce_each"):
        size = group.size * size
    match collective.pattern:
        case "gather" | "gather_each":
            seconds = gather_seconds(scenario, group, size)
        case "reduce" | "reduce_each":
            seconds = scenario.coefficients.time.reduce_slowdown * gather_seconds(scenario, group, size)
        case "once":
            seconds = once_seconds(scenario, group, size)
        case "all_to_all":
            seconds = all_to_all_seconds(scenario, group, size)
        case "ring":
            seconds = (group.size - 1.0) * neighbour_seconds(scenario, group, size)
        case _:
            assert_never(collective.pattern)
    return np.where(per_token > 0.0, seconds, 0.0)


def _group(pricing: Pricing, name: CollectiveGroup) -> RankGroup:
    inner = inner_context(pricing)
    groups: dict[CollectiveGroup, Callable[[LayoutBlock], RankGroup]] = {
        "tensor": tensor_group,
        "context": context_group,
        "context_inner": partial(inner_context_group, ranks=inner),
        "context_outer": partial(outer_context_group, ranks=inner),
        "expert": expert_group,
        "expert_tensor": expert_tensor_group,
        "expert_ranks": expert_ranks_group,
    }
    return groups[name](pricing.block)
