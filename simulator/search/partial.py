"""The least recompute that fits: full recompute of the first layers of every chunk, solved for their number.

Memory falls and time grows with the recomputed layers, so the smallest number that fits is the fastest. A search
divides the range for all layouts of a block and several numbers at once. No rule is judged and nothing is timed here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import FITS, Sized, size
from simulator.question.scenario.block import Array, LayoutBlock, Mask
from simulator.question.scenario.layout import BY_NAME
from simulator.question.scenario.scenario import Scenario
from simulator.search.space import Space

_PRICED_AT_ONCE = 256
"""Largest block that takes about as long to price as one layout."""
PassesLimit = Callable[[Sized], Mask]
"""Predicate of a block: which layouts have enough memory. True for more recomputed layers if true for fewer."""


def searches_partial(scenario: Scenario, space: Space) -> bool:
    """Return whether a search solves for recomputed layers: the framework counts them, and recompute is left open."""
    recompute = (
        space.recompute,
        space.recompute_modules,
        space.recompute_method,
        space.recompute_layers,
        space.recompute_layer_list,
    )
    return scenario.framework.limits.recomputes_leading_layers and not any(recompute)


def solved(sized: Sized) -> Sized | None:
    """Return layouts that fit only with recompute, with the fewest recomputed layers that fit; None if none.

    Layouts that need all layers of the largest chunk are left out.
    """
    full = sized.pricing.recomputes("full") & (sized.verdict == FITS)
    pricing = sized.pricing.take(full & (_largest_chunk(sized.block) > 1.0))
    if not len(pricing):
        return None

    def fits(tried: Sized) -> Mask:
        return np.asarray(tried.verdict == FITS)

    return _fewest(pricing, np.full(len(pricing), -1.0), fits)


def raised(pricing: Pricing, passes: PassesLimit) -> Sized | None:
    """Return failing layouts with the fewest recomputed layers that pass, or None.

    Layouts recompute nothing, or the first layers of every chunk. Those that fail with all layers are left out.
    """
    pricing = pricing.take(_largest_chunk(pricing.block) > 1.0)
    if not len(pricing):
        return None
    low, most = np.where(pricing.recomputes("full"), pricing.block.recompute_layers, 0.0), _largest_chunk(pricing.block)
    numbers = np.arange(1.0, np.max(most - low) + 1.0)[:, None]
    if numbers.size * len(pricing) > _PRICED_AT_ONCE:
        possible = passes(size(_with_layers(pricing, most)))
        return _fewest(pricing.take(possible), low[possible], passes)
    tried = np.minimum(low + numbers, most)  # every number, shape (numbers, n)
    each = np.tile(np.arange(len(pricing), dtype=np.intp), len(numbers))
    sized = size(_with_layers(pricing.take(each), tried.ravel()))
    enough = passes(sized).reshape(tried.shape)
    fewest = enough.argmax(axis=0)
    some = np.flatnonzero(enough[-1] & (tried[fewest, each[: len(pricing)]] < most))
    return sized.take(fewest[some] * len(pricing) + some) if len(some) else None


def _largest_chunk(block: LayoutBlock) -> Array:
    """Return the layers of each layout's largest chunk, shape (n,)."""
    if block.chunk_layers:
        return np.full(len(block), float(max(block.chunk_layers)))
    return np.asarray(max(block.stage_layers) // block.virtual_stages)


def _fewest(pricing: Pricing, low: Array, passes: PassesLimit) -> Sized | None:
    """Return layouts with the fewest layers above `low`, shape (n,), that pass, where that is some but not all."""
    most = _largest_chunk(pricing.block)
    high = most
    sized, tried = None, np.empty((0, len(pricing)))
    while len(pricing) and np.any(high - low > 1.0):
        parts = min(max(_PRICED_AT_ONCE // len(pricing), 1), int(np.max(high - low)) - 1) + 1
        steps = np.floor(np.outer(np.arange(1, parts), high - low) / parts)
        tried = low + np.maximum(steps, 1.0)  # shape (parts - 1, n)
        each = np.tile(np.arange(len(pricing), dtype=np.intp), parts - 1)
        sized = size(_with_layers(pricing.take(each), tried.ravel()))
        enough = passes(sized).reshape(tried.shape)
        low = np.max(np.where(enough, low, tried), axis=0)
        high = np.min(np.where(enough, tried, high), axis=0)
    some = np.flatnonzero((high > 0.0) & (high < most))
    if not len(some):
        return None
    last = (tried == high)[:, some]
    if sized is not None and last.any(axis=0).all():  # the last trial priced them
        return sized.take(last.argmax(axis=0) * len(pricing) + some)
    return size(_with_layers(pricing.take(some), high[some]))


def _with_layers(pricing: Pricing, layers: Array) -> Pricing:
    """Return the layouts with that many layers of every chunk recomputed in full; 0 recomputes nothing."""
    some = layers > 0.0

    def column(name: str, word: object, other: object) -> Array:
        return np.where(some, BY_NAME[name].encoded(word), BY_NAME[name].encoded(other))

    return pricing.changed(
        recompute=column("recompute", "full", "none"),
        recompute_method=column("recompute_method", "block", "uniform"),
        recompute_modules=np.full(
            len(pricing), BY_NAME["recompute_modules"].encoded(BY_NAME["recompute_modules"].default)
        ),
        recompute_layers=np.where(some, layers, 1.0),
    )
