"""The long run: `python -m tests.fuzz --inputs 300000 --jobs 4 [--seed N]`; docs/security.md has its counts."""

import argparse
import multiprocessing
import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from benchmarks.machine import say
from tests.fuzz.cases import CLASSES
from tests.fuzz.share import part


def main() -> int:
    """Run, and print how many questions of each class ended how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=300_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    given = parser.parse_args()
    say(f"seed {given.seed}")
    parts = [(given.seed, given.inputs, first, given.jobs) for first in range(given.jobs)]
    # A process that dies is an error here; a plain pool would wait for its share forever.
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(part, parts))
    counts = sum((one[0] for one in found), Counter[tuple[str, int]]())
    say("| class | inputs | exit 0 | 1 | 2 | 3 | slowest, s |\n|---|---|---|---|---|---|---|")
    for name in CLASSES:
        codes = [counts[name, code] for code in range(4)]
        slowest = max((one[1].get(name, 0.0) for one in found), default=0.0)
        say(f"| {name} | {sum(codes)} | {' | '.join(map(str, codes))} | {slowest:.2f} |")
    wrong = [line for one in found for line in one[2]]
    say(f"{sum(counts.values())} answered as they must be, {len(wrong)} not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
