"""As little recomputation as fits: full recompute of the first layers of every chunk, their number solved from memory.

No rule is judged and nothing is timed here.

What a device needs falls with the layers that are done again, and time grows with them, so the smallest number that
fits is the fastest; it is found by dividing the range, for all layouts of a block and several numbers at once.
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
"""Layouts up to which a block takes about as long as one layout."""
PassesLimit = Callable[[Sized], Mask]
"""Whether each layout of a block has memory enough; true of more recomputed layers where true of fewer."""


def searches_partial(scenario: Scenario, space: Space) -> bool:
    """Whether a search solves for recomputed layers: the framework counts them, and nothing of recompute is given."""
    recompute = (
        space.recompute,
        space.recompute_modules,
        space.recompute_method,
        space.recompute_layers,
        space.recompute_layer_list,
    )
    return scenario.framework.limits.recomputes_leading_layers and not any(recompute)


def solved(sized: Sized) -> Sized | None:
    """The layouts that fit with all layers recomputed but not with none, with the fewest layers that fit; or None.

    Where nothing less than all layers of the largest chunk fits there is no such layout.
    """
    full = sized.pricing.recomputes("full") & (sized.verdict == FITS)
    pricing = sized.pricing.take(full & (_largest_chunk(sized.block) > 1.0))
    if not len(pricing):
        return None

    def fits(tried: Sized) -> Mask:
        return np.asarray(tried.verdict == FITS)

    return _fewest(pricing, np.full(len(pricing), -1.0), fits)


def raised(pricing: Pricing, passes: PassesLimit) -> Sized | None:
    """Layouts that do not pass, with the fewest recomputed layers with which they do; or None.

    They recompute nothing, or the first layers of every chunk. What does not pass with all layers is left out.
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
    """Layers of each layout's largest chunk, shape (n,)."""
    if block.chunk_layers:
        return np.full(len(block), float(max(block.chunk_layers)))
    return np.asarray(max(block.stage_layers) // block.virtual_stages)


def _fewest(pricing: Pricing, low: Array, passes: PassesLimit) -> Sized | None:
    """The fewest layers above `low`, shape (n,), with which each layout passes, where they are some but not all."""
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
    if sized is not None and last.any(axis=0).all():  # of what was tried last
        return sized.take(last.argmax(axis=0) * len(pricing) + some)
    return size(_with_layers(pricing.take(some), high[some]))


def _with_layers(pricing: Pricing, layers: Array) -> Pricing:
    """The layouts with so many layers of every chunk recomputed in full; 0 recomputes nothing."""
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
