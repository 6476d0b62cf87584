"""A sweep over Dask's workers against one process: how much of the workers' time prices questions.

On a machine that does nothing else the wall clock says it: efficiency = wall of one / (workers x wall of all). On one
that others load the cores are not the workers' own, so two losses are measured apart, and multiplied: time in which a
worker had nothing to price (from the scheduler's record of when each task ran), and processor time of the workers
beyond that of one process for the same questions. Takes some minutes; `--workers 4 --rounds 3` by default.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.machine import judged, say, say_machine

TARGET = 0.85
"""Least share of four workers' time that prices questions."""
QUESTIONS = {
    "model": ["llama3.1-8b", "llama3.1-70b"],
    "hardware": ["h100-sxm-80g", "a100-sxm-80g", "h20"],
    "nodes": [2, 4, 8, 16, 32],
    "seq_length": [2048, 3072, 4096, 6144, 8192, 16_384],
    "global_batch_size": [256, 512, 1024],
}
"""540 questions, most of a twentieth to a fifth of a second."""


def processor_seconds(pid: int) -> float:
    """What a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(folder: Path, kind: str, *arguments: str) -> Iterator[int]:
    """A scheduler or worker as a process; its process id."""
    command = [sys.executable, "-m", "dask", kind, "--no-dashboard", "--scheduler-file", str(folder / "dask.json")]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([*command, *arguments], stdout=log, stderr=log)  # noqa: S603  this package
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def over_workers(workers: int) -> tuple[float, float, float]:
    """Wall seconds of the sweep over so many workers, the share of it in which they price, their processor seconds."""
    import distributed  # noqa: PLC0415  of the extra sweep

    import simulator  # noqa: PLC0415  after the environment is set

    with TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        stack.enter_context(started(folder, "scheduler", "--port", "0"))
        worker = ("--nthreads", "1", "--nworkers", "1", "--no-nanny")
        pids = [stack.enter_context(started(folder, "worker", *worker)) for _ in range(workers)]
        file = str(folder / "dask.json")
        watcher = stack.enter_context(distributed.Client(scheduler_file=file, set_as_default=False))
        watcher.wait_for_workers(workers)
        watcher.get_task_stream()  # from here on the scheduler records
        simulator.sweep(QUESTIONS | {"seq_length": [1024]}, scheduler=file)  # each worker imports what it needs
        before = sum(map(processor_seconds, pids))
        began, clock = time.time(), time.monotonic()
        simulator.sweep(QUESTIONS, scheduler=file)
        wall = time.monotonic() - clock
        spent = sum(map(processor_seconds, pids)) - before
        tasks = watcher.get_task_stream(start=began, count=10**6)
    busy = sum(one["stop"] - one["start"] for task in tasks for one in task["startstops"] if one["action"] == "compute")
    return wall, busy / wall / workers, spent


def alone() -> tuple[float, float]:
    """Wall and processor seconds of the sweep in this process."""
    import simulator  # noqa: PLC0415  after the environment is set

    began, cpu = time.monotonic(), time.process_time()
    simulator.sweep(QUESTIONS, workers=1)
    return time.monotonic() - began, time.process_time() - cpu


def main() -> None:
    """Print walls, rates and efficiencies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    say_machine()
    load = os.getloadavg()[0]
    rounds = [(alone(), over_workers(asked.workers)) for _ in range(asked.rounds)]
    number = prod(len(values) for values in QUESTIONS.values())
    wall_one, cpu_one = (median(one[place] for one, _ in rounds) for place in (0, 1))
    wall, busy, cpu = (median(many[place] for _, many in rounds) for place in (0, 1, 2))
    share = median(many[1] * one[1] / many[2] for one, many in rounds)
    say(f"load of the machine before: {load:.1f}; {number} questions, medians of {asked.rounds} rounds")
    say(f"one process: {wall_one:.1f} s, {cpu_one:.1f} s of processor, {number / cpu_one:.1f} questions/s")
    say(f"{asked.workers} workers of Dask: {wall:.1f} s, {number / wall:.1f} questions/s, {cpu:.1f} s of processor")
    say(f"by the wall clock: {wall_one / wall:.2f} times as fast, efficiency {wall_one / wall / asked.workers:.0%}")
    say(f"workers had something to price {busy:.0%} of the time, for {cpu / cpu_one:.2f} times the processor time")
    say(f"efficiency {share:.0%}, target {TARGET:.0%}: {judged(met=share >= TARGET)}")


if __name__ == "__main__":
    main()
