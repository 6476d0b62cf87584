"""A representative choice of all fitting layouts of a space, for a scatter plot. Ranks nothing."""

from __future__ import annotations

import numpy as np

from simulator.cost.pricing.price import FITS, Priced, timed
from simulator.question.arrays import Index
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import SPLIT
from simulator.search.query import PricedLayout, Query
from simulator.search.shortlist import priced_layout
from simulator.search.walk import walk


def spread(query: Query, most: int, drawn: int) -> tuple[list[PricedLayout], list[PricedLayout]]:
    """Return at most `most` fitting layouts to look at in detail, and others, together at most `drawn`.

    Fastest first. If there are more, the layouts that no other beats in both speed and memory and the fastest of each
    split come first; others fill the room, evenly spread by rank of speed.
    """
    fitting: list[Priced] = [
        timed(judged.sized.take(np.flatnonzero(judged.sized.verdict == FITS)))
        for judged in walk(query.scenario, query.space)
        if judged.sized is not None and (judged.sized.verdict == FITS).any()
    ]
    if not fitting:
        return [], []
    seconds = np.concatenate([each.step.total for each in fitting])
    memory = np.concatenate([each.device_bytes for each in fitting])
    splits = np.concatenate([_splits(each.block) for each in fitting], axis=1)
    order = np.argsort(seconds, kind="stable")
    order = order[_chosen(memory[order], splits[:, order], drawn)]
    detailed = np.zeros(len(order), bool)
    detailed[_chosen(memory[order], splits[:, order], most)] = True
    starts = np.cumsum([0, *(len(each.pricing) for each in fitting)])
    blocks = np.searchsorted(starts, order, side="right") - 1
    layouts = [
        priced_layout(query, fitting[number], index)
        for number, index in zip(blocks.tolist(), (order - starts[blocks]).tolist(), strict=True)
    ]
    return [layouts[at] for at in np.flatnonzero(detailed)], [layouts[at] for at in np.flatnonzero(~detailed)]


def _splits(block: LayoutBlock) -> Array:
    """Return the split sizes of every layout, shape (sizes, n)."""
    sizes = (np.asarray(getattr(block, size.name), float) for size in SPLIT)
    return np.array([np.broadcast_to(size, (len(block),)) for size in sizes])


def _chosen(memory: Array, splits: Array, most: int) -> Index:
    """Return positions among layouts sorted by speed: all, or the front, the best of each split, and others evenly."""
    if len(memory) <= most:
        return np.arange(len(memory))
    smallest_before = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]]))
    chosen = memory < smallest_before
    chosen[np.unique(splits, axis=1, return_index=True)[1]] = True
    others = np.flatnonzero(~chosen)
    room = max(most - int(np.count_nonzero(chosen)), 0)
    chosen[others[np.linspace(0, len(others) - 1, room).astype(np.intp)]] = True
    positions: Index = np.flatnonzero(chosen)
    return positions
