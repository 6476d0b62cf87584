"""Which layouts are equal to the fastest within what is known, and which of them is surer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import simulator
from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.search.rank import surer_than_first
from tests.report import samples

ASKED = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "nodes": 1}


@pytest.fixture(scope="module")
def ranking() -> simulator.Ranking:
    return simulator.rank(model="llama3.1-8b", hardware="h100-sxm-80g", nodes=1)


def half_width(estimate: Estimate) -> float:
    interval = estimate.throughput.interval_seconds
    assert interval is not None
    return math.log(interval.high / interval.low) / 2.0


def test_layouts_share_most_of_what_is_not_known(ranking: simulator.Ranking) -> None:
    """So their difference is known better than by two ranges that know nothing of one another."""
    steps = [
        math.log(e.throughput.step_seconds / ranking.estimates[0].throughput.step_seconds) for e in ranking.estimates
    ]
    alone = {
        position
        for position, step in enumerate(steps)
        if position and step <= math.hypot(half_width(ranking.estimates[0]), half_width(ranking.estimates[position]))
    }
    assert len(ranking.equal) > 0
    assert set(ranking.equal) <= alone
    assert max((steps[position] for position in ranking.equal), default=0.0) < 0.25
    assert ranking.surer is None or ranking.surer in ranking.equal


def test_without_a_calibration_nothing_tells() -> None:
    found = simulator.rank(model="llama3.1-8b", hardware="h100-sxm-80g", nodes=1, calibration="none")
    assert (found.equal, found.surer) == ((), None)


def known(low: float, high: float, probability: float) -> Estimate:
    plain = samples.calibrated()
    speed = replace(plain.throughput, step_seconds=math.sqrt(low * high), interval_seconds=Interval(low, high))
    return replace(plain, throughput=speed, memory=replace(plain.memory, fit_probability=probability))


def test_the_surer_one_is_named() -> None:
    wide, narrow = known(1.0, 1.4, 0.999), known(1.15, 1.3, 0.999)
    assert surer_than_first([wide, narrow], (1,)) == 1
    assert surer_than_first([narrow, wide], (1,)) is None
    assert surer_than_first([wide, narrow], ()) is None
    tight, roomy = known(1.0, 1.2, 0.96), known(1.05, 1.3, 0.9999)
    assert surer_than_first([tight, roomy], (1,)) == 1
    # Of several the one with the smallest upper end; its place among them does not matter.
    narrower = known(1.1, 1.2, 0.999)
    assert surer_than_first([wide, narrow, narrower], (1, 2)) == 2
    assert surer_than_first([wide, narrower, narrow], (1, 2)) == 1
    # Where the first may not fit, the likeliest to fit.
    risky, safe, safer = (known(1.0, 1.4, share) for share in (0.95, 0.97, 0.98))
    assert surer_than_first([risky, safe, safer], (1, 2)) == 2
    assert surer_than_first([safe, risky, wide], (1,)) is None
