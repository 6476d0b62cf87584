"""Questions of a process that is warm: the asked search, the whole ranking, an estimate, and `check` over the corpus.

Seconds are processor time. The search is that of the question itself, without what stands beside its answer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import simulator
from benchmarks import check_files
from benchmarks.machine import judged, say, say_machine
from simulator.api import scenario_of
from simulator.search.rank import search
from simulator.search.space import MIN_FIT_PROBABILITY, Query

ROUNDS = 15
QUESTION = {"model": "llama3.1-70b", "hardware": "z2000", "nodes": 8}
SEARCH_TARGET, ESTIMATE_TARGET = 0.050, 0.010
"""Seconds."""


def seconds(ask: Callable[[], object]) -> list[float]:
    """Processor seconds of each round, after two that are not counted."""
    taken = []
    for _ in range(ROUNDS + 2):
        start = time.process_time()
        ask()
        taken.append(time.process_time() - start)
    return taken[2:]


def report(title: str, taken: list[float], target: float | None = None) -> None:
    """Print the median and the fastest, with the ratio to a target."""
    middle = statistics.median(taken)
    against = (
        f"; {middle / target:.2f} of the target {target * 1e3:g} ms: {judged(met=middle <= target)}" if target else ""
    )
    say(f"{title}: median {middle * 1e3:.1f} ms (fastest {min(taken) * 1e3:.1f}){against}")


def main() -> None:
    """Ask each kind of question."""
    say_machine()
    scenario = scenario_of(**QUESTION)  # type: ignore[arg-type]  # names and a count by keyword
    query = Query(scenario=scenario, min_fit_probability=MIN_FIT_PROBABILITY)
    evaluated = search(query).evaluated
    report(f"the asked search, {evaluated:,} layouts", seconds(lambda: search(query)), SEARCH_TARGET)
    report("the ranking with what stands beside it", seconds(lambda: simulator.rank(**QUESTION)))  # type: ignore[arg-type]
    layout = {"tp": 4, "pp": 8, "vpp": 5}
    report("an estimate", seconds(lambda: simulator.estimate(**QUESTION, **layout)), ESTIMATE_TARGET)  # type: ignore[arg-type]
    if check_files.corpus().is_file():
        check_files.say_rate(check_files.files_of(None))


if __name__ == "__main__":
    main()
