"""Questions of a process that is warm: searches, rankings, an estimate, pages, a sweep, and `check` over the corpus.

Seconds are processor time. A search is that of the question itself, without what stands beside its answer.
"""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, run
from tempfile import TemporaryDirectory

import yaml

import simulator
from benchmarks import check_files
from benchmarks.machine import judged, say, say_machine
from simulator.api import scenario_of
from simulator.search.rank import search
from simulator.search.space import MIN_FIT_PROBABILITY, Query

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 15
QUESTION = {"model": "llama3.1-70b", "hardware": "z2000", "nodes": 8}
LARGE = {"model": "deepseek-v3", "hardware": "h800-sxm-80g", "nodes": 128}
NOWHERE = {"model": "kimi-k2", "hardware": "h100-sxm-80g", "devices": 4}
SEARCH_TARGET, ESTIMATE_TARGET, LARGE_TARGET, NOWHERE_TARGET = 0.050, 0.007, 0.7, 1.0
"""Seconds of processor time."""
BESIDE_TARGET = 1.25
"""Of the search's time, what the ranking takes with all that stands beside it."""
PAGE_TARGET = 3.0
"""Of a ranking's time, what its page takes, each a process."""
SWEEP, SWEEP_TARGET_MINUTES = 1000 * 20, 5.0
"""Questions of a sweep, and the minutes of one core that they may take."""
SAMPLE_MODELS, SAMPLE_MACHINES = 8, 5


def seconds(ask: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Processor seconds of each round, after two that are not counted."""
    taken = []
    for _ in range(rounds + 2):
        start = time.process_time()
        ask()
        taken.append(time.process_time() - start)
    return taken[2:]


def search_of(**question: object) -> Query:
    """Return the asked search of a question."""
    return Query(scenario=scenario_of(**question), min_fit_probability=MIN_FIT_PROBABILITY)  # type: ignore[arg-type]


def report_large() -> None:
    """Print questions that are large: many devices, many layers, and a model that fits nowhere."""
    query = search_of(**LARGE)
    report("deepseek-v3 on 128 nodes, the asked search", seconds(lambda: search(query), 3), LARGE_TARGET)
    report("deepseek-v3 on 128 nodes, the ranking", seconds(lambda: simulator.rank(**LARGE), 3), LARGE_TARGET)  # type: ignore[arg-type]
    report("kimi-k2 on 4 devices", seconds(lambda: simulator.rank(**NOWHERE), 3), NOWHERE_TARGET)  # type: ignore[arg-type]
    with TemporaryDirectory() as folder:
        for layers in (61, 1000):
            deep = search_of(model=deeper(Path(folder), layers), hardware="h800-sxm-80g", nodes=32)
            report(f"deepseek-v3 with {layers:,} layers on 32 nodes", seconds(partial(search, deep), 1))


def deeper(folder: Path, layers: int) -> str:
    """Return a file with deepseek-v3 in another depth."""
    shipped = yaml.safe_load((ROOT / "model_specs" / "deepseek-v3.yaml").read_text(encoding="utf-8"))
    spec = {name: value for name, value in shipped.items() if name not in ("aliases", "published")}
    file = folder / f"{layers}.yaml"
    file.write_text(json.dumps(spec | {"name": f"deep-{layers}", "num_hidden_layers": layers}), encoding="utf-8")
    return str(file)


def report_page() -> None:
    """Print what a mixture's page takes against its ranking, as processes of their own."""
    question = [sys.executable, "-m", "simulator", "--model", "qwen3-30b-a3b", "--nodes", "8"]
    with TemporaryDirectory() as folder:
        forms: tuple[list[str], list[str]] = ([], ["--output", str(Path(folder) / "page.html")])
        taken: tuple[list[float], list[float]] = ([], [])
        for _, (form, times) in itertools.product(range(5), zip(forms, taken, strict=True)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            run([*question, *form], check=True, stdout=DEVNULL, stderr=DEVNULL)  # noqa: S603  this package
            times.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    ranking, page = map(statistics.median, taken)
    say(f"page of a mixture: {page / ranking:.1f} of its ranking's {ranking:.2f} s{share(page / ranking, PAGE_TARGET)}")


def report_sweep() -> None:
    """Print what a sweep of many models and machines takes, from a sample, and how much memory grows with it."""
    models, machines = spread("model_specs", SAMPLE_MODELS), spread("hardware_specs", SAMPLE_MACHINES)
    peaks, start = [], time.process_time()
    for model in models:
        simulator.sweep({"model": [model], "hardware": machines, "nodes": [8]}, workers=1)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    each = (time.process_time() - start) / (len(models) * len(machines))
    minutes = each * SWEEP / 60.0
    say(
        f"a sweep: {each * 1e3:.0f} ms a question, {minutes:.1f} minutes of a core for 1,000 models on 20 machines"
        f"{share(minutes, SWEEP_TARGET_MINUTES)}"
    )
    say(f"  peak resident memory {peaks[0]:.0f} MB after the first model, {peaks[-1]:.0f} MB after {len(peaks)}")


def spread(folder: str, number: int) -> list[str]:
    """Return names of shipped specs, evenly spread over a folder."""
    names = sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))
    return names[:: len(names) // number][:number]


def share(value: float, target: float) -> str:
    """Return the words that compare a value with its target."""
    return f"; {value / target:.2f} of the target {target:g}: {judged(met=value <= target)}"


def report(title: str, taken: list[float], target: float | None = None) -> None:
    """Print the median and the fastest, with the ratio to a target."""
    middle = statistics.median(taken)
    against = share(middle, target) if target else ""
    say(f"{title}: median {middle * 1e3:.1f} ms (fastest {min(taken) * 1e3:.1f}){against}")


def main() -> None:
    """Ask each kind of question."""
    say_machine()
    query = search_of(**QUESTION)
    searched = seconds(lambda: search(query))
    report(f"the asked search, {search(query).evaluated:,} layouts", searched, SEARCH_TARGET)
    ranked = seconds(lambda: simulator.rank(**QUESTION))  # type: ignore[arg-type]  # names and a count by keyword
    report("the ranking with what stands beside it", ranked, BESIDE_TARGET * statistics.median(searched))
    layout = {"tp": 4, "pp": 8, "vpp": 5}
    report("an estimate", seconds(lambda: simulator.estimate(**QUESTION, **layout)), ESTIMATE_TARGET)  # type: ignore[arg-type]
    report_large()
    report_page()
    report_sweep()
    if check_files.corpus().is_file():
        check_files.say_rate(check_files.files_of(None))


if __name__ == "__main__":
    main()
