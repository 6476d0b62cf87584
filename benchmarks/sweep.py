"""A sweep over Dask's workers: how much of their time prices questions.

On a machine that does nothing else the wall clock says it (`--idle-machine`): efficiency = wall of one process /
(workers x wall of all). On one that others load, the cores are not the workers' own and a wall says little. There two
losses are measured, as shares of the workers' wall: time in which a worker had nothing to price (the scheduler records
when each task ran), and what a worker's other threads compute (messages, heartbeats, profile), which goes by the clock.
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

import distributed

import simulator
from benchmarks.machine import judged, say, say_machine

TARGET = 0.85
"""Least share of four workers' time that prices questions."""
QUESTIONS = {
    "model": ["llama3.1-8b", "mistral-7b-v0.1", "qwen3-8b", "qwen3-14b"],
    "hardware": ["h100-sxm-80g", "a100-sxm-80g", "h20"],
    "nodes": [8],
    "seq_length": [2048, 3072, 4096, 6144, 8192, 12_288],
    "global_batch_size": [256, 512, 768, 1024, 1536, 2048],
}
"""Questions that take much the same."""
NUMBER = prod(map(len, QUESTIONS.values()))
_TICKS = os.sysconf("SC_CLK_TCK")


def threads_seconds(pid: int) -> dict[str, float]:
    """What each thread of a process has computed."""
    found = {}
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        fields = file.read_text(encoding="utf-8").rpartition(")")[2].split()
        found[file.parent.name] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


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
    """Wall seconds of the sweep, and the shares of the workers' wall that priced and that other threads computed."""
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
        before = [threads_seconds(pid) for pid in pids]
        began, clock = time.time(), time.monotonic()
        simulator.sweep(QUESTIONS, scheduler=file)
        wall = time.monotonic() - clock
        after = [threads_seconds(pid) for pid in pids]
        tasks = watcher.get_task_stream(start=began, count=10**6)
    busy = sum(one["stop"] - one["start"] for task in tasks for one in task["startstops"] if one["action"] == "compute")
    spent = [[now[name] - past.get(name, 0.0) for name in now] for past, now in zip(before, after, strict=True)]
    beside = sum(sum(one) - max(one) for one in spent)  # the thread that computes most is the one that prices
    return wall, busy / wall / workers, beside / wall / workers


def on_an_idle_machine(workers: int, rounds: int) -> float:
    """The efficiency by the wall clock."""
    simulator.sweep(QUESTIONS | {"seq_length": [1024]}, workers=1)
    walls = []
    for _ in range(rounds):
        began = time.monotonic()
        simulator.sweep(QUESTIONS, workers=1)
        walls.append((time.monotonic() - began, over_workers(workers)[0]))
    one, all_of_them = (median(wall[place] for wall in walls) for place in (0, 1))
    say(f"one process: {one:.1f} s; {workers} workers: {all_of_them:.1f} s, {one / all_of_them:.2f} times as fast")
    return one / all_of_them / workers


def on_a_loaded_machine(workers: int, rounds: int) -> float:
    """The efficiency by what the workers did."""
    found = [over_workers(workers) for _ in range(rounds)]
    wall, busy, beside = (median(one[place] for one in found) for place in range(3))
    say(f"{workers} workers: {wall:.1f} s, {NUMBER / wall:.1f} questions/s under this load")
    say(f"of the workers' wall: {busy:.1%} something to price, less {beside:.1%} for what their other threads compute")
    return median(busy - beside for _, busy, beside in found)


def main() -> None:
    """Print the efficiency, and how it was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-machine", action="store_true", help="measure by the wall clock")
    asked = parser.parse_args()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    say_machine()
    say(f"load of the machine before: {os.getloadavg()[0]:.1f}; {NUMBER} questions, medians of {asked.rounds} rounds")
    measure = on_an_idle_machine if asked.idle_machine else on_a_loaded_machine
    share = measure(asked.workers, asked.rounds)
    say(f"efficiency {share:.0%}, target {TARGET:.0%}: {judged(met=share >= TARGET)}")


if __name__ == "__main__":
    main()
