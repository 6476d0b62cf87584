"""A share of a long run, in a process of its own."""

import gc
import shutil
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

from benchmarks.machine import say
from tests.fuzz.cases import cases, tried
from tests.fuzz.oracle import WrongAnswerError

MOST_SECONDS = 2.0
"""CPU time of one core in which any file is answered."""
Found = tuple[Counter[tuple[str, int]], dict[str, float], list[str]]


def part(job: tuple[int, int, int, int, tuple[str, ...]]) -> Found:
    """Every `jobs`th question of a run of some classes, from the `first`."""
    seed, count, first, jobs, only = job
    counts: Counter[tuple[str, int]] = Counter()
    slowest: dict[str, float] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as home:
        for place, (name, rng) in enumerate(islice(cases(seed, only), count)):
            if place % jobs != first:
                continue
            folder = Path(home) / "work"
            try:
                answer = tried(name, rng, folder, MOST_SECONDS)
            except WrongAnswerError as error:
                kept = Path(tempfile.gettempdir()) / f"fuzz-{seed}-{place}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder, kept)
                wrong.append(f"{name}, number {place}: {error}; kept in {kept}")
                say(wrong[-1])
                continue
            counts[name, answer.code] += 1
            slowest[name] = max(slowest.get(name, 0.0), answer.cpu_seconds)
            if place % 1000 < jobs:
                gc.collect()
    return counts, slowest, wrong
