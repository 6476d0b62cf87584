"""Peak memory and time of a search that prices more than ten million layouts, in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from benchmarks.machine import judged, say, say_machine

CANDIDATES = 10_000_000
TARGET_MB = 600
PER_REPLICA = 720_720
"""Sequences per replica and step where all devices are replicas: a number with 240 divisors."""
QUESTION = {"model": "llama3.1-70b", "hardware": "z2000", "nodes": 16}


def search_once() -> dict[str, object]:
    """Search, and return counts, seconds and peak resident memory of this process."""
    from simulator.api import scenario_of  # noqa: PLC0415  the parent stays small: a child starts with its peak
    from simulator.search.rank import search  # noqa: PLC0415
    from simulator.search.space import Query, Space, divisors  # noqa: PLC0415

    space = Space(
        tensor_parallel=(1, 2, 4, 8),
        pipeline_parallel=(1, 2),
        virtual_stages=(1,),
        micro_batch_size=divisors(PER_REPLICA, PER_REPLICA),
        zero_stage=(0, 1),
        sequence_parallel=(False, True),
        recompute_method=("uniform", "block"),
        recompute_layers=tuple(range(1, 51)),
        offload=("none", "optimizer", "optimizer_tensorwise", "activations"),
    )
    scenario = scenario_of(**QUESTION, global_batch_size=PER_REPLICA * 128)  # type: ignore[arg-type]  # by keyword
    start, start_cpu = time.perf_counter(), time.process_time()
    found = search(Query(scenario=scenario, space=space))
    elapsed, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    by_verdict = sum(found.rejected.get(name, 0) for name in ("memory", "near_capacity"))
    return {
        "evaluated": found.evaluated,
        "priced": found.feasible + by_verdict,
        "feasible": found.feasible,
        "rejected": found.rejected,
        "elapsed": elapsed,
        "cpu": cpu,
        "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def main() -> None:
    """Run the search in a fresh process and print what it took."""
    if sys.argv[1:] == ["--search"]:
        say(json.dumps(search_once()))
        return
    say_machine()
    command = [sys.executable, "-m", "benchmarks.search_memory", "--search"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  this file itself
    found = json.loads(done.stdout)
    peak_mb = found["peak_kib"] * 1024 / 1e6
    say(f"{' '.join(map(str, QUESTION.values()))} nodes")
    say(f"  evaluated {found['evaluated']:,} candidates, of which {found['priced']:,} keep all rules and were priced")
    say(f"  rejected: {', '.join(f'{name} {count:,}' for name, count in found['rejected'].items())}")
    say(f"  feasible {found['feasible']:,}")
    say(
        f"  {found['elapsed']:.1f} s elapsed, {found['cpu']:.1f} s of processor time, "
        f"{found['evaluated'] / found['cpu']:,.0f} candidates/s per core"
    )
    verdict = judged(met=peak_mb < TARGET_MB)
    say(f"  peak resident memory {peak_mb:.0f} MB, {peak_mb / TARGET_MB:.2f} of the target {TARGET_MB} MB: {verdict}")
    if found["priced"] < CANDIDATES:
        say(f"  fewer than {CANDIDATES:,} priced: this run says nothing about the target")
        sys.exit(1)


if __name__ == "__main__":
    main()
