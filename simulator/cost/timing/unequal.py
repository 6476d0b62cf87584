"""Waits for the slowest where lengths differ: of replicas for each other, of a pipeline for its longest micro batch.

`question.scenario.lengths` has the lengths, `timing.step` adds the waits to a step.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.timing.parts import Parts
from simulator.cost.timing.pipeline import PipelineSeconds
from simulator.question.scenario.block import Array
from simulator.question.scenario.lengths import Lengths

_POINTS = 2**12
"""Points on which the work of a rank in a step is spread."""
_SUMMED = 128
"""Micro batches from which the work of a rank counts as normally distributed."""
_SHARES = 32
"""Steps in which the share of attention in a micro batch is told apart."""


def length_waits(pricing: Pricing, parts: Parts, pipeline: PipelineSeconds) -> Array:
    """Return the seconds per step that ranks wait for the slowest, shape (n,) (T28).

    A micro batch takes time by its tokens, and attention by its scores. Replicas wait for each other once a step; those
    that gather parameters or exchange tokens in every layer wait in each micro batch. A pipeline fills with the longest
    of its micro batches. `parts` are the seconds of the pacing rank.
    """
    lengths, block = pricing.scenario.lengths, pricing.block
    if lengths is None:
        return np.zeros(len(pricing))
    passes = pipeline.micro_batches * pipeline.pace_seconds
    attention = (parts["attention"] + parts["ring_attention"]) / np.maximum(passes, 1e-30)
    exchanging = block.expert_ranks / (block.tensor_parallel * block.context_parallel)
    together = np.clip(np.where(block.zero_stage > 2, block.data_parallel, exchanging), 1.0, block.data_parallel)
    waits = np.zeros(len(pricing))
    for at in range(len(pricing)):
        share = min(float(attention[at]), 1.0)
        size, count = int(block.micro_batch_size[at]), max(round(float(pipeline.micro_batches[at])), 1)
        joined, replicas = int(together[at]), int(block.data_parallel[at])
        slowest = _between(share, lengths, size, _Waiting(joined, count, max(replicas // joined, 1)))
        fill = _between(share, lengths, size, _Waiting(count, 1, 1)) if block.pipeline_parallel > 1 else 1.0
        waits[at] = (slowest - 1.0) * passes[at] + (fill - 1.0) * pipeline.fill[at]
    return waits


class _Waiting(NamedTuple):
    """Levels at which ranks wait for each other."""

    joined: int
    """Ranks of a group, which wait in every micro batch."""
    micro_batches: int
    """Micro batches of a rank in a step."""
    replicas: int
    """Groups, which wait once a step."""


def _between(attention: float, lengths: Lengths, micro_batch_size: int, ranks: _Waiting) -> float:
    """Return the slowest's work for a share of attention, between the two steps around it."""
    low = math.floor(attention * _SHARES)
    above = attention * _SHARES - low
    ends = (expected_slowest(lengths, each / _SHARES, micro_batch_size, ranks) for each in (low, min(low + 1, _SHARES)))
    return (1.0 - above) * next(ends) + above * next(ends)


@lru_cache(maxsize=4096)
def expected_slowest(lengths: Lengths, attention: float, micro_batch_size: int, ranks: _Waiting) -> float:
    """Return the expected work of the slowest group of ranks in a step over the mean of a rank, from 1 (T28)."""
    joined, micro_batches, replicas = ranks
    works, shares = work_of_micro_batch(lengths, micro_batch_size, attention)
    within = np.minimum(np.cumsum(shares), 1.0)
    shares = np.diff(within**joined, prepend=0.0)
    mean = float(works @ shares)
    deviation = math.sqrt(max(float((works - mean) ** 2 @ shares), 0.0))
    if deviation < 1e-12 or replicas == 1:
        return max(mean, 1.0)
    if micro_batches > _SUMMED:
        # The mean of as many equal micro batches is normally distributed.
        points = np.linspace(-8.0, 8.0, _POINTS)
        below = np.array([0.5 * math.erfc(-point / math.sqrt(2.0)) for point in points]) ** replicas
        return max(mean + deviation / math.sqrt(micro_batches) * float(points @ np.diff(below, prepend=0.0)), 1.0)
    top = float(works[-1]) * micro_batches
    place = works / top * (_POINTS - 1)
    low = np.floor(place).astype(int)
    spread = np.bincount(low, shares * (1.0 - (place - low)), _POINTS)
    spread = spread + np.bincount(np.minimum(low + 1, _POINTS - 1), shares * (place - low), _POINTS)
    summed = np.fft.irfft(np.fft.rfft(spread, 2 * _POINTS) ** micro_batches, 2 * _POINTS)[:_POINTS]
    below = np.clip(np.cumsum(summed), 0.0, 1.0) ** replicas
    slowest = float(np.linspace(0.0, top, _POINTS) @ np.diff(below, prepend=0.0))
    return max(slowest / micro_batches, mean, 1.0)


def work_of_micro_batch(lengths: Lengths, micro_batch_size: int, attention: float) -> tuple[Array, Array]:
    """Return the work of a micro batch over its mean, ascending, and the share of the micro batches with it.

    Packages are equal in tokens; their scores vary as the sum of squares of the samples that fill one (T28).
    """
    tokens, shares = lengths.segments(micro_batch_size)
    squares = float(tokens**2 @ shares)
    if not lengths.packs:
        mean = float(tokens @ shares)
        return (1.0 - attention) * tokens / mean + attention * tokens**2 / squares, shares
    attended = squares / float(tokens @ shares)
    left_over = float((tokens**2 - attended * tokens) ** 2 @ shares)
    samples = lengths.package / float(tokens @ shares) * micro_batch_size
    deviation = math.sqrt(left_over / samples) / squares
    points = np.linspace(-3.5, 3.5, 71)
    normal = np.exp(-(points**2) / 2.0)
    scores = np.clip(1.0 + deviation * points, 0.0, lengths.package / attended)
    normal = normal / normal.sum()
    scores = scores / float(scores @ normal)
    return 1.0 - attention + attention * scores, normal
