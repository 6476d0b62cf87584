"""All layouts of a space that fit, or an honest choice of them where they are many: what a scatter of them shows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.cost.pricing.price import FITS, Sized, timed
from simulator.question.arrays import Index
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import SPLIT, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.space import Space
from simulator.search.walk import walk


class _Fitting(NamedTuple):
    """Layouts of a block that fit; arrays of shape (n,)."""

    block: LayoutBlock
    seconds: Array
    device_bytes: Array


class Feasible(NamedTuple):
    """A layout that fits."""

    layout: Layout
    step_seconds: float
    device_bytes: float
    """Of the fullest device."""
    chosen: bool
    """Whether it is one of the choice that is looked at in detail."""


def spread(scenario: Scenario, space: Space, most: int, drawn: int) -> list[Feasible]:
    """The layouts that fit, fastest first, at most `drawn`; of them at most `most` are chosen.

    Where there are more, these come first: every one that no other beats in both speed and memory, and the fastest of
    each split (tensor, pipeline, context, expert parallel sizes); of the others as many as there is room for, evenly
    spread by rank of speed.
    """
    fitting = [
        _fitting(judged.sized.take(np.flatnonzero(judged.sized.verdict == FITS)))
        for judged in walk(scenario, space)
        if judged.sized is not None and (judged.sized.verdict == FITS).any()
    ]
    if not fitting:
        return []
    seconds = np.concatenate([one.seconds for one in fitting])
    memory = np.concatenate([one.device_bytes for one in fitting])
    splits = np.concatenate([_splits(one.block) for one in fitting], axis=1)
    order = np.argsort(seconds, kind="stable")
    order = order[_chosen(memory[order], splits[:, order], drawn)]
    chosen = np.zeros(len(order), bool)
    chosen[_chosen(memory[order], splits[:, order], most)] = True
    starts = np.cumsum([0, *(len(one.seconds) for one in fitting)])
    blocks = np.searchsorted(starts, order, side="right") - 1
    pairs = zip(blocks.tolist(), (order - starts[blocks]).tolist(), strict=True)
    figures = zip(seconds[order].tolist(), memory[order].tolist(), chosen.tolist(), strict=True)
    return [
        Feasible(fitting[number].block.layout(index), *told)
        for (number, index), told in zip(pairs, figures, strict=True)
    ]


def _fitting(sized: Sized) -> _Fitting:
    return _Fitting(sized.block, timed(sized).step.total, sized.device_bytes)


def _splits(block: LayoutBlock) -> Array:
    """The sizes of the split of every layout, shape (sizes, n)."""
    return np.array([np.broadcast_to(np.asarray(getattr(block, one.name), float), (len(block),)) for one in SPLIT])


def _chosen(memory: Array, splits: Array, most: int) -> Index:
    """Positions of layouts sorted by speed: all, or the front, the best of each split, others evenly."""
    if len(memory) <= most:
        return np.arange(len(memory))
    least_before = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]]))
    kept = memory < least_before
    kept[np.unique(splits, axis=1, return_index=True)[1]] = True
    others = np.flatnonzero(~kept)
    room = max(most - int(np.count_nonzero(kept)), 0)
    kept[others[np.linspace(0, len(others) - 1, room).astype(np.intp)]] = True
    found: Index = np.flatnonzero(kept)
    return found
