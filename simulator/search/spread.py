"""All layouts of a space that fit, or an honest choice of them where they are many: what a scatter of them shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.cost.pricing.price import FITS, size, timed
from simulator.question.arrays import Index
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import SPLIT, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.space import Space
from simulator.search.walk import walk


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Layouts of a block that fit; arrays of shape (n,)."""

    block: LayoutBlock
    seconds: Array
    device_bytes: Array


def spread(scenario: Scenario, space: Space, most: int) -> list[Layout]:
    """The layouts that fit, fastest first.

    Where there are more than `most`: every one that no other beats in both speed and memory, the fastest of each split
    (tensor, pipeline, context, expert parallel sizes), and of the others as many as there is room for, evenly spread by
    rank of speed.
    """
    fitting = [
        _fitting(scenario, judged.sized.block.take(judged.sized.verdict == FITS))
        for judged in walk(scenario, space)
        if judged.sized is not None and (judged.sized.verdict == FITS).any()
    ]
    if not fitting:
        return []
    seconds = np.concatenate([one.seconds for one in fitting])
    order = np.argsort(seconds, kind="stable")
    if len(order) > most:
        memory = np.concatenate([one.device_bytes for one in fitting])
        splits = np.concatenate([_splits(one.block) for one in fitting], axis=1)
        order = order[_chosen(memory[order], splits[:, order], most)]
    starts = np.cumsum([0, *(len(one.seconds) for one in fitting)])
    blocks = np.searchsorted(starts, order, side="right") - 1
    pairs = zip(blocks.tolist(), (order - starts[blocks]).tolist(), strict=True)
    return [fitting[number].block.layout(index) for number, index in pairs]


def _fitting(scenario: Scenario, block: LayoutBlock) -> _Fitting:
    priced = timed(scenario, size(scenario, block))
    return _Fitting(block, priced.step.total, priced.device_bytes)


def _splits(block: LayoutBlock) -> Array:
    """The sizes of the split of every layout, shape (sizes, n)."""
    return np.array([np.broadcast_to(np.asarray(getattr(block, one.name), float), (len(block),)) for one in SPLIT])


def _chosen(memory: Array, splits: Array, most: int) -> Index:
    """Positions of layouts sorted by speed: the front, the best of each split, others evenly."""
    least_before = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]]))
    kept = memory < least_before
    kept[np.unique(splits, axis=1, return_index=True)[1]] = True
    others = np.flatnonzero(~kept)
    room = max(most - int(np.count_nonzero(kept)), 0)
    kept[others[np.linspace(0, len(others) - 1, room).astype(np.intp)]] = True
    found: Index = np.flatnonzero(kept)
    return found
