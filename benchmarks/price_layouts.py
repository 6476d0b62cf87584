"""Layouts per second on one core, priced in full: memory by pipeline rank, time by part, verdict.

Blocks are taken evenly from a large space, as the search makes them: of equal ranks the first alone where no other can
need more memory. Three rates: of `price`, which computes memory of these ranks, step time and verdict; of `price` with
the time by part assembled for every layout; and with their memory by part assembled too. The search assembles parts for
the layouts it shows only. Seconds are processor time of this process.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.machine import judged, say, say_machine
from simulator.api import scenario_of
from simulator.cost.derived import Alike, Pricing
from simulator.cost.pricing.price import price
from simulator.question.scenario.scenario import Scenario
from simulator.search.space import CHUNK, Space, blocks, candidates

ROUNDS = 7
BLOCKS = 60
SPACE = Space(
    micro_batch_size=(1, 2, 3, 4, 6, 8),
    zero_stage=(0, 1),
    recompute_method=("uniform", "block"),
    recompute_layers=tuple(range(1, 21)),
    offload=("none", "optimizer", "optimizer_tensorwise", "activations"),
)
QUESTIONS = (
    {"model": "llama3.1-70b", "hardware": "z2000", "nodes": 8},
    {"model": "deepseek-v3", "hardware": "h800-sxm-80g", "nodes": 32},
)
TARGETS = (1_400_000, 1_000_000)
"""Layouts per second of each question."""


@dataclass(frozen=True)
class Timed:
    """One block and its rates over the rounds, layouts per second."""

    pricing: Pricing
    priced: list[float]
    with_time: list[float]
    with_both: list[float]


def sample(scenario: Scenario) -> list[Pricing]:
    """Full blocks, evenly spread over the space."""
    full = [pricing for pricing in blocks(scenario, SPACE, fullest=True) if len(pricing) == CHUNK]
    return list(itertools.islice(full, 0, None, max(len(full) // BLOCKS, 1)))


def anew(pricing: Pricing) -> Pricing:
    """The same layouts, of which nothing is known but the search's kinds of work."""
    sizes, passes = pricing.sizes, pricing.passes
    sizes = sizes and Alike(replace(sizes.pricing), sizes.index)
    if passes is not None:
        of_kinds = passes.pricing.sizes
        of_kinds = sizes and of_kinds and Alike(sizes.pricing, of_kinds.index)
        passes = Alike(replace(passes.pricing, sizes=of_kinds), passes.index)
    return replace(pricing, sizes=sizes, passes=passes)


def measure(chosen: list[Pricing]) -> list[Timed]:
    """Price every block once per round, after one round that is not counted."""
    timed = [Timed(pricing, [], [], []) for pricing in chosen]
    for counted in (False, *[True] * ROUNDS):
        for entry in timed:
            pricing = anew(entry.pricing)
            start = time.process_time()
            priced = price(pricing)
            middle = time.process_time()
            priced.step.parts(pricing)
            later = time.process_time()
            priced.memory.parts()
            end = time.process_time()
            if counted:
                entry.priced.append(middle - start)
                entry.with_time.append(later - start)
                entry.with_both.append(end - start)
    return timed


def element_seconds() -> float:
    """What one number of an array takes in a product of two arrays as long as a block, which stay in the cache."""
    factors = np.linspace(1.0, 2.0, CHUNK)
    product, often = np.empty(CHUNK), 200
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(often):
            np.multiply(factors, factors, out=product)
        rounds.append((time.process_time() - start) / (often * CHUNK))
    return min(rounds)


def growing_seconds(chosen: list[Pricing]) -> tuple[float, float]:
    """Seconds of a layout in a whole block, and those of them that a block of half as many layouts has too few of."""
    whole = half = layouts = 0.0
    for pricing in chosen[::4]:
        few = pricing.take(np.arange(0, len(pricing), 2))
        whole += min(_seconds(pricing) for _ in range(ROUNDS))
        half += min(_seconds(few) for _ in range(ROUNDS))
        layouts += len(pricing)
    return whole / layouts, (whole - half) / (layouts / 2.0)


def _seconds(pricing: Pricing) -> float:
    fresh = anew(pricing)
    start = time.process_time()
    price(fresh)
    return time.process_time() - start


def report_limit(chosen: list[Pricing]) -> None:
    """Print what a layout takes beside what its numbers alone would."""
    each = element_seconds()
    seconds, growing = growing_seconds(chosen)
    say(
        f"  limit: {growing * 1e9:,.0f} of {seconds * 1e9:,.0f} ns a layout grow with the layouts, some "
        f"{growing / each:,.0f} element operations of {each * 1e9:.2f} ns; {growing / seconds:.2f} of the limit"
    )


def rate(timed: list[Timed], seconds: list[list[float]]) -> list[float]:
    """Layouts per second of each round, over all blocks."""
    layouts = sum(len(entry.pricing) for entry in timed)
    return [layouts / sum(of_round) for of_round in zip(*seconds, strict=True)]


def report(title: str, rates: list[float], target: int) -> None:
    """Print median, extremes and the ratio to the target."""
    middle = statistics.median(rates)
    say(
        f"  {title}: median {middle:,.0f} layouts/s per core (rounds {min(rates):,.0f} to {max(rates):,.0f}), "
        f"{middle / target:.2f} of the target {target:,}: {judged(met=middle >= target)}"
    )


def main() -> None:
    """Measure a dense and a mixture-of-experts model."""
    say_machine()
    for question, target in zip(QUESTIONS, TARGETS, strict=True):
        scenario = scenario_of(**question)  # type: ignore[arg-type]  # names and a count by keyword
        chosen = sample(scenario)
        timed = measure(chosen)
        layouts = sum(len(entry.pricing) for entry in timed)
        say(f"{' '.join(map(str, question.values()))} nodes: space of {candidates(scenario, SPACE):,}")
        say(f"  {len(timed)} blocks of {CHUNK} layouts, {layouts:,} in all, {ROUNDS} rounds")
        report("price", rate(timed, [entry.priced for entry in timed]), target)
        report("price, time by part", rate(timed, [entry.with_time for entry in timed]), target)
        report("price, time by part, memory by part", rate(timed, [entry.with_both for entry in timed]), target)
        report_limit(chosen)
        slowest = min(timed, key=lambda entry: len(entry.pricing) / statistics.median(entry.priced))
        fastest = max(timed, key=lambda entry: len(entry.pricing) / statistics.median(entry.priced))
        for word, entry in (("slowest", slowest), ("fastest", fastest)):
            of_block = len(entry.pricing) / statistics.median(entry.priced)
            chunks = np.unique(entry.pricing.block.virtual_stages)
            shape = f"pp {entry.pricing.block.pipeline_parallel}, vpp {', '.join(f'{count:g}' for count in chunks)}"
            say(f"  {word} block: {of_block:,.0f} layouts/s ({shape})")


if __name__ == "__main__":
    main()
