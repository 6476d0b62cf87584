"""Recipe files judged per second by `simulate check`, in one process, over a folder of recipes.

The folder is named on the command line; else it is the public corpus in `shared/` beside the checkout
(`SIMULATE_SHARED`), by its manifest. Each file is read, asked and priced as with `--hardware h100-sxm-80g --nodes 1`;
then with what a report shows beside the verdict: speed, peaks, the largest that fits, and changes that help.
"""

from __future__ import annotations

import csv
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import judged, say, say_machine
from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.show.cli.main import COLLECTED_AT

TARGET = 80
"""Files per second."""
SLOWEST = 5
_SHARED = Path(os.environ.get("SIMULATE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def files_of(folder: Path | None) -> list[str]:
    """The files of a folder, or of the corpus."""
    if folder is not None:
        return sorted(str(path) for path in folder.rglob("*") if path.is_file())
    with corpus().open(encoding="utf-8", newline="") as stream:
        return [str(corpus().parent / row["file"]) for row in csv.DictReader(stream)]


def corpus() -> Path:
    """The table of the public recipes, which may not be there."""
    return _SHARED / "corpus" / "manifest.csv"


def measure(files: Sequence[str]) -> tuple[float, float, Counter[str]]:
    """Processor seconds of judging files together, and with all advice, and how often which verdict came."""
    asked, gates = question_of({"hardware": "h100-sxm-80g", "nodes": 1}), Gates()
    check_files(files[:1], asked, gates)
    gc.freeze()  # what was asked before in this process is no work of a command, which collects as seldom
    gc.set_threshold(COLLECTED_AT)
    start = time.process_time()
    results = check_files(files, asked, gates)
    judged_seconds = time.process_time() - start
    for result in results:
        _ = (result.peaks, result.without_offload, result.changes, result.room)
        _ = result.estimate and result.estimate.throughput.interval_seconds
    return judged_seconds, time.process_time() - start, Counter(result.outcome for result in results)


def main() -> None:
    """Print the rate, the verdicts and the slowest files."""
    say_machine()
    files = files_of(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    say_rate(files)
    slowest = sorted(((measure([file])[1], file) for file in files), reverse=True)[:SLOWEST]
    for spent, file in slowest:
        say(f"  slowest: {spent:.2f} s {file}")


def say_rate(files: Sequence[str]) -> None:
    """Print files per second and the verdicts."""
    seconds, advised, outcomes = measure(files)
    rate = len(files) / seconds
    against = f"{rate / TARGET:.2f} of the target {TARGET}: {judged(met=rate >= TARGET)}"
    say(f"{len(files)} files, {sum(outcomes.values())} launches: {rate:.0f} files/s, {against}")
    say(f"  with speed, peaks, largest sizes and changes that help: {len(files) / advised:.0f} files/s")
    say("  " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))


if __name__ == "__main__":
    main()
