"""The long run: `python -m tests.fuzz --inputs 300000 --jobs 4 [--seed N]`; docs/check.md has its counts."""

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
    parser.add_argument("--only", action="append", choices=CLASSES, help="a class of inputs; repeat for several")
    asked = parser.parse_args()
    say(f"seed {asked.seed}")
    only = tuple(asked.only or CLASSES)
    parts = [(asked.seed, asked.inputs, first, asked.jobs, only) for first in range(asked.jobs)]
    # A process that dies is an error here; a plain pool would wait for its share forever.
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
        shares = list(pool.map(part, parts))
    counts = sum((share[0] for share in shares), Counter[tuple[str, int]]())
    say("| class | inputs | exit 0 | 1 | 2 | 3 | slowest, s |\n|---|---|---|---|---|---|---|")
    for name in only:
        codes = [counts[name, code] for code in range(4)]
        slowest = max((share[1].get(name, 0.0) for share in shares), default=0.0)
        say(f"| {name} | {sum(codes)} | {' | '.join(map(str, codes))} | {slowest:.2f} |")
    wrong = [line for share in shares for line in share[2]]
    say(f"{sum(counts.values())} answered as they must be, {len(wrong)} not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
